//! Where the host and the guest's detours meet: what lies where in the data window. Version 7.
//!
//! | offset | what |
//! |---|---|
//! | 0 | [`HITS`]: a u64 a probe, how often it was hit, beside what its [`Slots`] say |
//! | 1 MiB | [`DROPS`]: a u64 a probe, how many of these hits found no room in a ring |
//! | 2 MiB | [`UNFOLLOWED`]: a u64 a probe, how many calls were not followed to their return |
//! | 3 MiB | [`STRAYS`]: a u64 a probe, how many followed calls came back in another task, or on another stack |
//! | 4 MiB | [`TICKETS`]: a u64 a probe, how many more calls it may follow now, where that is limited |
//! | 5 MiB | [`UNREAD`]: a u64 a probe, how many hits were missed because memory could not be read then, or not enough of it for the condition |
//! | 6 MiB | [`OUTSIDE`]: a u64 a probe, how many passes were not in its [scope](crate::linux::scope) |
//! | 7 MiB | [`LIVE`]: a u64 an [instance](super::instances), then [`POOLS`]: 64 bytes a CPU, then [`RAN_OUT`]: a byte a probe, not 0 once a call of it found its pool empty |
//! | 7.5 MiB | [`ERRANDS`]: [`slot::SIZE`](crate::errand::slot::SIZE) bytes for each worker that makes calls for us; 64 KiB behind that [`CONSUMERS`]: [`CONSUMER`] bytes each |
//! | 8 MiB | [`INSTANCES`]: [`INSTANCE`] bytes each |
//! | 12 MiB | [`TABLE_OF_GROUPS`]: [`GROUP`] bytes each |
//! | 16 MiB | [`SLOTS`]: for each CPU, a u64 a probe, how often it was hit on that CPU |
//! | 17 MiB | the rings, one a CPU, one behind the other, [`Rings::stride`] bytes each |
//!
//! A ring begins with a line of its own for each end: at 0 the [`HEAD`], how many cells the guest has claimed since its
//! start, at 64 the [`TAIL`], how many of them the host has read. [`Rings::cells`] cells follow at [`CELLS`], and behind
//! them so many that the longest record may begin in the last one.
//!
//! A record takes a number of cells in a row, and is claimed by moving the head. All its words are little-endian:
//!
//! | offset | what |
//! |---|---|
//! | 0 | u64: [`sequence`] of its first cell, written last: until then, whatever stands there is another number |
//! | 8 | u64: the guest's time-stamp counter |
//! | 16 | u32: the probe, as in the tables of counters, and in the top 8 bits how many cells; u32: the CPU's `preempt_count`, with what its task has of that by itself |
//! | 24 | u64: the current task (GVA) |
//! | 32 | u32: its pid; u32: its tgid |
//! | 40 | u64: its uid, or [`UNKNOWN`] |
//! | 48 | u64: its pid in its own namespace, or [`UNKNOWN`] |
//! | 56 | 16 bytes: its name |
//! | 72 | 6 u64 of a hit: rdi, rsi, rdx, rcx, r8, r9; of a return: rax, when the call began, where it returns to (GVA) |
//! | 120 | a u64 each: at a return rdi, rsi, rdx, rcx, r8, r9 of the call, if the probe reads any; the other registers that it reads; the area of its [reads](super::reads) of memory |
//!
//! A [group](super::groups) is found by its key, and taken by whoever makes the first word of a free one [`TAKEN`]:
//!
//! | offset | what |
//! |---|---|
//! | 0 | u64: 0, [`TAKEN`], or the [`tag`] of its probe, written when the rest stands there |
//! | 8 | u64: a bit for each of its keys that could not be read, the first one the lowest |
//! | 16 | 6 u64: its keys, a number in one each, a name in two; and nothing behind them |
//! | 64 | u64: the guest's time-stamp counter at its first hit |
//! | 72 | 16 bytes: the name of the task then |
//! | 88 | u64: how many hits |
//! | 96 | 2 numbers of 16 bytes: its sums |

use crate::linux::task::COMM;
pub use crate::linux::uprobes::CONSUMER;
use crate::paging::window;

/// How many of a function's arguments are in registers (the System V ABI for x86-64, 3.2.3).
pub(super) const ARGUMENTS: usize = 6;

/// Bytes of the data window.
pub const SIZE: u64 = window::DATA;
/// How many probes have counters: those with a smaller number.
pub const COUNTERS: u32 = 128 << 10;
const TABLE: u64 = COUNTERS as u64 * 8;
/// See the [module](self).
pub const HITS: u64 = 0;
/// See the [module](self).
pub const DROPS: u64 = TABLE;
/// See the [module](self).
pub const UNFOLLOWED: u64 = 2 * TABLE;
/// See the [module](self).
pub const STRAYS: u64 = 3 * TABLE;
/// See the [module](self).
pub const TICKETS: u64 = 4 * TABLE;
/// See the [module](self).
pub const UNREAD: u64 = 5 * TABLE;
/// See the [module](self).
pub const OUTSIDE: u64 = 6 * TABLE;
/// See the [module](self).
pub const LIVE: u64 = 7 * TABLE;
/// See the [module](self).
pub const POOLS: u64 = LIVE + CALLS as u64 * 8;
/// See the [module](self).
pub const RAN_OUT: u64 = POOLS + POOL * (u8::MAX as u64 + 1);
/// See the [module](self).
pub const ERRANDS: u64 = LIVE + TABLE / 2;
/// See the [module](self).
pub const CONSUMERS: u64 = ERRANDS + (64 << 10);
/// How many consumers of the guest's own probes in programs there is room for.
pub const MOST_CONSUMERS: u32 = 4096;
/// See the [module](self).
pub const INSTANCES: u64 = 8 * TABLE;
/// See the [module](self).
pub const TABLE_OF_GROUPS: u64 = INSTANCES + CALLS as u64 * INSTANCE;
/// See the [module](self).
pub const SLOTS: u64 = TABLE_OF_GROUPS + GROUPS * GROUP;
const RINGS: u64 = SLOTS + TABLE;

/// How many groups there is room for, a power of two.
pub const GROUPS: u64 = 32 << 10;
/// Bytes of one.
pub const GROUP: u64 = 128;
/// Most sums of one.
pub const SUMS: usize = 2;
/// The first word of a group that is being made.
pub const TAKEN: u32 = 1;

/// How many instances there are, of calls that are followed. Number 0 stands for none.
pub const CALLS: u32 = 32 << 10;
/// Bytes of an instance.
pub const INSTANCE: u64 = 128;
/// Bytes of a pool.
pub const POOL: u64 = 64;
/// Offset in the line of a CPU's pool, a u32: not 0 while that CPU reads memory for a probe.
pub const READING: u64 = 8;
/// Bytes of the trampoline of an instance, and of its word in [`LIVE`].
pub const TRAMPOLINE: u64 = 8;
/// Bytes of all of them.
pub const TRAMPOLINES: u64 = CALLS as u64 * TRAMPOLINE;

const _: () = assert!(RAN_OUT + COUNTERS as u64 <= ERRANDS && RINGS < SIZE);
const _: () = assert!(CONSUMERS + MOST_CONSUMERS as u64 * CONSUMER <= INSTANCES);

/// See the [module](self).
pub const HEAD: u64 = 0;
/// See the [module](self).
pub const TAIL: u64 = 64;
/// See the [module](self).
pub const CELLS: u64 = 128;

/// Bytes of a cell.
pub const CELL: u64 = 128;
/// Cells of the longest record.
pub const MOST_CELLS: u64 = 10;

/// Offsets in a record: see the [module](self).
pub mod record {
    #![allow(missing_docs, reason = "the table of the module says it")]
    pub const SEQUENCE: u64 = 0;
    pub const TICKS: u64 = 8;
    pub const PROBE: u64 = 16;
    pub const PREEMPT_COUNT: u64 = 20;
    pub const TASK: u64 = 24;
    pub const PID: u64 = 32;
    pub const TGID: u64 = 36;
    pub const UID: u64 = 40;
    pub const NAMESPACE_PID: u64 = 48;
    pub const COMM: u64 = 56;
    pub const ARGUMENTS: u64 = COMM + super::COMM as u64;
    pub const VALUE: u64 = ARGUMENTS;
    pub const BEGAN: u64 = ARGUMENTS + 8;
    pub const BACK: u64 = ARGUMENTS + 16;
    pub const REGISTERS: u64 = ARGUMENTS + 6 * 8;
}

/// Offsets in a group: see the [module](self).
pub mod group {
    #![allow(missing_docs, reason = "the table of the module says it")]
    pub const TAG: u64 = 0;
    pub const MISSING: u64 = 8;
    pub const KEYS: u64 = 16;
    pub const KEYS_WORDS: usize = 6;
    pub const FIRST: u64 = KEYS + 8 * KEYS_WORDS as u64;
    pub const COMM: u64 = FIRST + 8;
    pub const HITS: u64 = COMM + super::COMM as u64;
    pub const SUMS: u64 = HITS + 8;
    const _: () = assert!(SUMS + 16 * super::SUMS as u64 == super::GROUP);
}

/// The first word of a group of a probe.
#[must_use]
pub fn tag(probe: u32) -> u32 {
    (probe & (COUNTERS - 1)) + TAKEN + 1
}

/// Stands for what is not known. No u32 is so large.
pub const UNKNOWN: u64 = u64::MAX;

/// How many cells a record with so many other registers takes.
#[must_use]
pub fn cells_of(registers: usize) -> u64 {
    (record::REGISTERS + 8 * registers as u64).div_ceil(CELL)
}

/// What says in a record whose it is, and how many cells it takes.
#[must_use]
pub fn head(probe: u32, cells: u64) -> u32 {
    probe & (COUNTERS - 1) | (cells as u32) << 24
}

/// What that says.
#[must_use]
pub fn of_head(head: u32) -> (u32, u64) {
    (head & 0xff_ffff, u64::from(head >> 24))
}

/// Where in the data window a consumer lies.
#[must_use]
pub fn consumer(number: u32) -> u64 {
    CONSUMERS + u64::from(number % MOST_CONSUMERS) * CONSUMER
}

/// The number that is written into a record that begins with the cell which `claimed` others came before. It is never 0.
#[must_use]
pub fn sequence(claimed: u64) -> u64 {
    claimed.wrapping_add(1)
}

/// Where each CPU counts the hits of a probe for itself, so that CPUs that run the same function do not wait for one line of
/// memory. There are slots for the probes with the smallest numbers, the more the fewer CPUs there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    cpus: u32,
}

impl Slots {
    /// Those of a guest with so many CPUs, 256 at most.
    #[must_use]
    pub fn of(cpus: u32) -> Self {
        Self { cpus: cpus.clamp(1, 256).next_power_of_two() }
    }

    /// Bytes from the slot of one CPU to that of the next, a power of two.
    #[must_use]
    pub fn stride(self) -> u64 {
        TABLE / u64::from(self.cpus)
    }

    /// What is left of a CPU's number: the guest's word leads to no other memory.
    #[must_use]
    pub fn mask(self) -> u32 {
        self.cpus - 1
    }

    /// Where the slot of `probe` and of CPU 0 is in the data window, if it has any.
    #[must_use]
    pub fn offset(self, probe: u32) -> Option<u64> {
        let offset = 8 * u64::from(probe);
        (self.cpus > 1 && offset < self.stride()).then_some(SLOTS + offset)
    }

    /// Where all slots of `probe` are in the data window.
    pub fn offsets(self, probe: u32) -> impl Iterator<Item = u64> {
        let first = self.offset(probe);
        first
            .into_iter()
            .flat_map(move |first| (0..self.cpus).map(move |cpu| first + u64::from(cpu) * self.stride()))
    }
}

/// The rings of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rings {
    /// How many there are, one a CPU.
    pub cpus: u32,
    /// Bytes from one to the next.
    pub stride: u64,
    /// Cells of each, a power of two.
    pub cells: u64,
}

impl Rings {
    /// Those of a guest with so many CPUs, 256 at most.
    #[must_use]
    pub fn of(cpus: u8) -> Self {
        const LINE: u64 = 128;
        let cpus = u32::from(cpus).max(1);
        let stride = (SIZE - RINGS) / u64::from(cpus) / LINE * LINE;
        let room = (stride - CELLS) / CELL - (MOST_CELLS - 1);
        Self { cpus, stride, cells: 1 << room.ilog2() }
    }

    /// Where the ring of `cpu` begins in the data window.
    #[must_use]
    pub fn offset(&self, cpu: u32) -> u64 {
        RINGS + u64::from(cpu) * self.stride
    }

    /// Whose ring begins at this offset in the data window, if one does.
    #[must_use]
    pub fn cpu(&self, offset: u64) -> Option<u32> {
        (0..self.cpus).find(|cpu| self.offset(*cpu) == offset)
    }

    /// Where in its ring the cell lies that `claimed` others came before.
    #[must_use]
    pub fn cell(&self, claimed: u64) -> u64 {
        CELLS + claimed % self.cells * CELL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_lie_in_the_window_and_not_in_each_other() {
        for cpus in 1..=255 {
            let rings = Rings::of(cpus);
            let longest = rings.cell(rings.cells - 1) + MOST_CELLS * CELL;
            assert!(longest <= rings.stride, "{rings:?}");
            assert!(rings.offset(u32::from(cpus)) <= SIZE, "{rings:?}");
            assert!(rings.cells >= 64 && rings.stride.is_multiple_of(64), "{rings:?}");
        }
        assert_eq!(Rings::of(2).cells, 32 << 10);
    }

    #[test]
    fn slots_are_of_one_probe_and_one_cpu_and_share_no_line() {
        for cpus in [2, 3, 4, 16, 255] {
            let slots = Slots::of(cpus);
            let probes = (slots.stride() / 8) as u32;
            assert!(probes >= 512 && slots.stride().is_multiple_of(64));
            assert!(slots.offset(probes).is_none());
            let last: Vec<u64> = slots.offsets(probes - 1).collect();
            let next: Vec<u64> = slots.offsets(0).skip(1).collect();
            assert_eq!(last.len() as u32, slots.mask() + 1);
            assert!(last.len() as u32 >= cpus && last.last() == Some(&(RINGS - 8)));
            assert!(last.iter().zip(&next).all(|(last, next)| last + 8 == *next));
        }
        assert_eq!(Slots::of(1).offset(0), None);
    }

    #[test]
    fn a_record_without_other_registers_takes_one_cell() {
        assert_eq!((cells_of(0), cells_of(1), cells_of(2), cells_of(12)), (1, 1, 2, 2));
    }
}
