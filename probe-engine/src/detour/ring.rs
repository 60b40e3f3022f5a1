//! Reading a ring that the guest fills. It is the guest's memory: whatever stands in it has to do no harm.

use super::layout::{self, CELL, HEAD, MOST_CELLS, Rings, Slots, TAIL, UNKNOWN, record, sequence};
use crate::addr::{Gpa, Gva};
use crate::linux::read::{array, u32_at, u64_at};
use crate::linux::task::{Context, Task};
use crate::memory::{NoMemory, PhysMemory};

/// The reader's end of one ring.
#[derive(Debug, Clone)]
pub struct Ring {
    rings: Rings,
    at: Gpa,
    /// Cells that have been read.
    tail: u64,
    /// The guest has written nonsense to it.
    is_broken: bool,
}

/// Why no more of a ring is read for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// All of it has been.
    All,
    /// Enough of it has been.
    More,
    /// The next record has been claimed and is not published: its CPU is about to, or an NMI has come in between.
    Unfinished {
        /// How many cells come before it.
        tail: u64,
    },
    /// The guest has written to it what no detour writes.
    Broken,
}

/// What a detour has noted down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The guest's time-stamp counter.
    pub ticks: u64,
    /// The probe, as in the tables of counters. It may be any number.
    pub probe: u32,
    /// The task that ran.
    pub task: Task,
    /// Of a hit: rdi, rsi, rdx, rcx, r8, r9.
    pub args: [u64; 6],
    /// What follows them, to the end of the record's last cell.
    pub registers: Vec<u64>,
}

/// What a record says of a call that has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Returned {
    /// rax.
    pub value: u64,
    /// The guest's time-stamp counter when it began.
    pub began: u64,
    /// Where it returned to.
    pub back: Gva,
}

impl Ring {
    /// The ring of `cpu` in the data window at `window`.
    #[must_use]
    pub fn new(rings: Rings, window: Gpa, cpu: u32) -> Self {
        Self { rings, at: window.add(rings.offset(cpu)), tail: 0, is_broken: false }
    }

    /// Whether the guest has written to it what no detour writes. It is not read any more then.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Reads the records that are there, oldest first, a sixteenth of what the ring can hold at most: meanwhile the guest
    /// has no more room.
    ///
    /// # Errors
    /// The memory of the ring is not there.
    pub fn drain<M: PhysMemory + ?Sized>(
        &mut self,
        memory: &M,
        mut each: impl FnMut(Record),
    ) -> Result<Drained, NoMemory> {
        let begin = self.tail;
        let is_over = |tail: u64| tail.wrapping_sub(begin) >= (self.rings.cells / 16).max(MOST_CELLS);
        while !self.is_broken && !is_over(self.tail) {
            let cell = self.at.add(self.rings.cell(self.tail));
            let expected = sequence(self.tail);
            // An atomic access: what was written before the sequence number is there when that is.
            if !memory.compare_exchange(cell.add(record::SEQUENCE), expected, expected)? {
                break;
            }
            let mut bytes = [0; (MOST_CELLS * CELL) as usize];
            let (first, more) = bytes.split_at_mut(CELL as usize);
            memory.read(cell, first)?;
            let (_, length) = layout::of_head(u32_at(first, record::PROBE as usize).unwrap_or_default());
            if !(1..=MOST_CELLS).contains(&length) {
                self.is_broken = true;
                break;
            }
            if let Some(rest) = more.get_mut(..((length - 1) * CELL) as usize) {
                memory.read(cell.add(CELL), rest)?;
            }
            each(Record::of(bytes.get(..(length * CELL) as usize).unwrap_or_default()));
            // What a record holds must not look like the start of another one, when its cells are used again.
            for n in 0..length {
                memory.write(self.at.add(self.rings.cell(self.tail.wrapping_add(n))), &[0; 8])?;
            }
            self.tail = self.tail.wrapping_add(length);
        }
        // The guest may use the cells again once it sees this, and not before they have been read.
        let tail = self.at.add(TAIL);
        let is_its = match self.tail == begin {
            true => word(memory, tail)? == begin,
            false => memory.compare_exchange(tail, begin, self.tail)?,
        };
        self.is_broken |= !is_its;
        Ok(if self.is_broken {
            Drained::Broken
        } else if is_over(self.tail) {
            Drained::More
        } else if word(memory, self.at.add(HEAD))? == self.tail {
            Drained::All
        } else {
            Drained::Unfinished { tail: self.tail }
        })
    }
}

/// How full a ring is, as a CPU sees it that waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupied {
    /// There is room for any record.
    Partly,
    /// There is none: so many cells have been read, and the next record is there or not.
    Full {
        /// How many cells have been read.
        tail: u64,
        /// Whether the next record is published.
        is_published: bool,
    },
}

impl Occupied {
    /// How full the ring of `cpu` in the data window at `window` is.
    ///
    /// # Errors
    /// The memory of the ring is not there.
    pub fn of<M: PhysMemory + ?Sized>(
        memory: &M,
        rings: Rings,
        window: Gpa,
        cpu: u32,
    ) -> Result<Self, NoMemory> {
        let at = window.add(rings.offset(cpu));
        let (head, tail) = (word(memory, at.add(HEAD))?, word(memory, at.add(TAIL))?);
        if head.wrapping_sub(tail) <= rings.cells - MOST_CELLS {
            return Ok(Self::Partly);
        }
        let first = word(memory, at.add(rings.cell(tail)).add(record::SEQUENCE))?;
        Ok(Self::Full { tail, is_published: first == sequence(tail) })
    }
}

fn word<M: PhysMemory + ?Sized>(memory: &M, at: Gpa) -> Result<u64, NoMemory> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

impl Record {
    /// The call, for the record of a return.
    #[must_use]
    pub fn returned(&self) -> Returned {
        let [value, began, back, ..] = self.args;
        Returned { value, began, back: Gva(back) }
    }

    fn of(bytes: &[u8]) -> Self {
        let word = |at: u64| u64_at(bytes, at as usize).unwrap_or_default();
        let half = |at: u64| u32_at(bytes, at as usize).unwrap_or_default();
        let known = |word: u64| (word != UNKNOWN).then_some(word as u32);
        let registers = (record::REGISTERS..bytes.len() as u64).step_by(8).map(word).collect();
        let arguments: [u64; 6] = std::array::from_fn(|n| word(record::ARGUMENTS + 8 * n as u64));
        Self {
            ticks: word(record::TICKS),
            probe: layout::of_head(half(record::PROBE)).0,
            task: Task {
                at: Gva(word(record::TASK)),
                pid: half(record::PID),
                tgid: half(record::TGID),
                ns_pid: known(word(record::NAMESPACE_PID)),
                uid: known(word(record::UID)),
                context: Context::of(half(record::PREEMPT_COUNT)),
                comm: array(bytes, record::COMM as usize).unwrap_or_default(),
            },
            args: arguments,
            registers,
        }
    }
}

/// How often the probe of this number was hit, as the data window at `window` says, in a guest with so many CPUs.
#[must_use]
pub fn hits<M: PhysMemory + ?Sized>(memory: &M, window: Gpa, cpus: u32, probe: u32) -> u64 {
    let slots = Slots::of(cpus).offsets(probe).map(|at| number(memory, window.add(at)));
    slots.fold(counter(memory, window, layout::HITS, probe), u64::saturating_add)
}

/// Counters in the data window at `window`: of the probe of this number, at [`HITS`](layout::HITS) or
/// [`DROPS`](layout::DROPS). 0 for one that has none. The guest can write to them: none is so large that a few of them
/// could not be added up.
#[must_use]
pub fn counter<M: PhysMemory + ?Sized>(memory: &M, window: Gpa, table: u64, probe: u32) -> u64 {
    match probe < layout::COUNTERS {
        true => number(memory, window.add(table).add(8 * u64::from(probe))),
        false => 0,
    }
}

/// A counter's number, or 0 where there is no memory.
fn number<M: PhysMemory + ?Sized>(memory: &M, at: Gpa) -> u64 {
    const MOST: u64 = 1 << 46;
    let mut bytes = [0; 8];
    match memory.read(at, &mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes).min(MOST),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests;
