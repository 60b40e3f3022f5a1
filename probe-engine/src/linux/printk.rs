//! The kernel's log, read from outside: printk's ring of records (kernel/printk/printk_ringbuffer.h, since 5.10).
//!
//! What a record says of itself (who wrote it, when, and whether the kernel did or a process by `/dev/kmsg`) is beside its text, and
//! neither `loglevel` nor `quiet` leaves a record out. The ring is read while the guest writes to it, as the kernel's own readers
//! do: a record counts if its descriptor says before and behind the copy that it is whole.

pub mod console;
mod record;

use super::btf::Btf;
use super::read::{u16_at, u32_at, u64_at};
use super::symbols::SymbolTable;
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;
use serde::{Deserialize, Serialize};

pub use record::{PrintkCaller, PrintkRecord};

/// Longest text that is kept of a record, in bytes. The kernel's own limit is 1024 (`PRINTKRB_RECORD_MAX`).
const LONGEST: usize = 2048;
/// Most records that are read at a time.
const MOST: usize = 4096;
/// Largest binary logarithm of the number of descriptors, and of the bytes of text (`LOG_BUF_LEN_MAX` is 2 GiB).
const MOST_BITS: u32 = 31;

/// How to read the ring: offsets in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrintkLayout {
    /// `prb`, a pointer to the ring: a link-time address.
    pointer: Gva,
    /// Of `struct printk_ringbuffer`: `desc_ring.count_bits`, `.descs`, `.infos`, `.tail_id`.
    count_bits: u32,
    descs: u32,
    infos: u32,
    tail_id: u32,
    /// `text_data_ring.size_bits` and `.data`.
    size_bits: u32,
    data: u32,
    /// Bytes of a `struct prb_desc`, and where its members lie.
    desc_size: u32,
    state: u32,
    begin: u32,
    next: u32,
    /// Bytes of a `struct printk_info`, and where its members lie.
    info_size: u32,
    sequence: u32,
    nanos: u32,
    text_len: u32,
    facility: u32,
    caller: u32,
}

impl PrintkLayout {
    /// Finds it; `None` before 5.10, or where the ring is not as it is known here.
    #[must_use]
    pub fn find(symbols: &SymbolTable, btf: &Btf<'_>) -> Option<Self> {
        let at = |structure, path| u32::try_from(btf.member(structure, path)?.offset()?).ok();
        let size = |structure| u32::try_from(btf.size_of(structure)?).ok().filter(|size| *size <= 4096);
        Some(Self {
            pointer: symbols.address_of("prb")?,
            count_bits: at("printk_ringbuffer", "desc_ring.count_bits")?,
            descs: at("printk_ringbuffer", "desc_ring.descs")?,
            infos: at("printk_ringbuffer", "desc_ring.infos")?,
            tail_id: at("printk_ringbuffer", "desc_ring.tail_id")?,
            size_bits: at("printk_ringbuffer", "text_data_ring.size_bits")?,
            data: at("printk_ringbuffer", "text_data_ring.data")?,
            desc_size: size("prb_desc")?,
            state: at("prb_desc", "state_var")?,
            begin: at("prb_desc", "text_blk_lpos.begin")?,
            next: at("prb_desc", "text_blk_lpos.next")?,
            info_size: size("printk_info")?,
            sequence: at("printk_info", "seq")?,
            nanos: at("printk_info", "ts_nsec")?,
            text_len: at("printk_info", "text_len")?,
            facility: at("printk_info", "facility")?,
            caller: at("printk_info", "caller_id")?,
        })
    }

    /// The same where KASLR has moved the kernel by `slide`.
    #[must_use]
    pub fn slid(&self, slide: u64) -> Self {
        Self { pointer: self.pointer.add(slide), ..self.clone() }
    }
}

/// Reads the log from its start, each record once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrintkReader {
    next: u64,
    lost: u64,
}

/// What there is in place of the next record.
enum LogSlot {
    Record(PrintkRecord),
    /// It is not written, or not to its end.
    NotYet,
    /// Its text is gone.
    Gone,
    /// Another one has taken its place.
    Overwritten,
}

impl PrintkReader {
    /// How many records were gone before they were read.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// What has come in, at most some thousands of records: none are left when there are none here. `has_ended`: the guest writes no
    /// more, and what it has begun counts as well.
    pub fn read<M: PhysMemory + ?Sized>(
        &mut self,
        layout: &PrintkLayout,
        memory: &VirtMemory<'_, M>,
        has_ended: bool,
    ) -> Vec<PrintkRecord> {
        let mut records = Vec::new();
        let Some(ring) = LogRing::at(layout, memory) else { return records };
        for _ in 0..MOST {
            match ring.slot(self.next, has_ended) {
                Some(LogSlot::Record(record)) => records.push(record),
                Some(LogSlot::Gone) => self.lost = self.lost.saturating_add(1),
                Some(LogSlot::Overwritten) => {
                    let first = ring.first().filter(|first| *first > self.next);
                    let Some(first) = first else { break };
                    self.lost = self.lost.saturating_add(first - self.next);
                    self.next = first;
                    continue;
                }
                Some(LogSlot::NotYet) | None => break,
            }
            self.next = self.next.wrapping_add(1);
        }
        records
    }
}

/// The ring as it is now.
struct LogRing<'a, M: PhysMemory + ?Sized> {
    layout: &'a PrintkLayout,
    memory: &'a VirtMemory<'a, M>,
    at: Gva,
    descs: Gva,
    infos: Gva,
    data: Gva,
    count_bits: u32,
    size_bits: u32,
}

/// Bits of `state_var` above the number of a descriptor.
const STATE_SHIFT: u32 = 62;
/// States of a descriptor: `desc_committed`, `desc_finalized`, `desc_reusable`.
const COMMITTED: u64 = 1;
const FINAL: u64 = 2;
const REUSABLE: u64 = 3;
/// The number of its descriptor comes before the text of a record.
const HEAD: u64 = 8;
/// `begin` and `next` of a record without a text (`EMPTY_LINE_LPOS`; of one that has lost it, they are odd as well).
const NO_TEXT: u64 = 3;
impl<'a, M: PhysMemory + ?Sized> LogRing<'a, M> {
    fn at(layout: &'a PrintkLayout, memory: &'a VirtMemory<'a, M>) -> Option<Self> {
        let at = Gva(memory.read_u64(layout.pointer).ok()?);
        let pointer = |offset: u32| memory.read_u64(at.add(offset.into())).ok().map(Gva);
        let bits =
            |offset: u32| memory.read_u32(at.add(offset.into())).ok().filter(|bits| *bits <= MOST_BITS);
        Some(Self {
            layout,
            memory,
            at,
            descs: pointer(layout.descs)?,
            infos: pointer(layout.infos)?,
            data: pointer(layout.data)?,
            count_bits: bits(layout.count_bits)?,
            size_bits: bits(layout.size_bits)?,
        })
    }

    fn desc(&self, number: u64) -> Gva {
        self.descs.add(self.index(number).wrapping_mul(self.layout.desc_size.into()))
    }

    fn info(&self, number: u64) -> Gva {
        self.infos.add(self.index(number).wrapping_mul(self.layout.info_size.into()))
    }

    /// Where the descriptor of that number is, and the record: their numbers differ by whole turns of the ring.
    fn index(&self, number: u64) -> u64 {
        number & ((1 << self.count_bits) - 1)
    }

    /// The number of the first record that is there.
    fn first(&self) -> Option<u64> {
        let tail = self.memory.read_u64(self.at.add(self.layout.tail_id.into())).ok()?;
        self.memory.read_u64(self.info(tail).add(self.layout.sequence.into())).ok()
    }

    /// What there is in place of the record with this number.
    fn slot(&self, number: u64, has_ended: bool) -> Option<LogSlot> {
        /// So often the guest may change a record while it is read.
        const AGAIN: usize = 3;
        let (desc, layout) = (self.desc(number), self.layout);
        let word = |offset: u32| self.memory.read_u64(desc.add(offset.into())).ok();
        for _ in 0..AGAIN {
            let state = word(layout.state)?;
            let mut info = vec![0; layout.info_size as usize];
            self.memory.read(self.info(number), &mut info).ok()?;
            let sequence = u64_at(&info, layout.sequence as usize)?;
            if sequence != number {
                return Some(if sequence > number { LogSlot::Overwritten } else { LogSlot::NotYet });
            }
            let slot = match state >> STATE_SHIFT {
                FINAL => self.record(&info, (word(layout.begin)?, word(layout.next)?))?,
                COMMITTED if has_ended => self.record(&info, (word(layout.begin)?, word(layout.next)?))?,
                REUSABLE => LogSlot::Gone,
                _ => LogSlot::NotYet,
            };
            if word(layout.state)? == state {
                return Some(slot);
            }
        }
        Some(LogSlot::NotYet)
    }

    /// The record whose text lies between these places.
    fn record(&self, info: &[u8], (begin, next): (u64, u64)) -> Option<LogSlot> {
        let layout = self.layout;
        let text = match self.text(begin, next) {
            Some((at, room)) => {
                let len = u64::from(u16_at(info, layout.text_len as usize)?).min(room).min(LONGEST as u64);
                let mut text = vec![0; len as usize];
                self.memory.read(at, &mut text).ok()?;
                text
            }
            None if (begin, next) == (NO_TEXT, NO_TEXT) => Vec::new(),
            None => return Some(LogSlot::Gone),
        };
        let caller = u32_at(info, layout.caller as usize)?;
        let is_cpu = caller & 1 << 31 != 0;
        Some(LogSlot::Record(PrintkRecord {
            sequence: u64_at(info, layout.sequence as usize)?,
            nanos: u64_at(info, layout.nanos as usize)?,
            facility: *info.get(layout.facility as usize)?,
            caller: if is_cpu { PrintkCaller::Cpu(caller & !(1 << 31)) } else { PrintkCaller::Task(caller) },
            text,
        }))
    }

    /// Where the text between these places is, and how much room it has; `None` where there is none.
    fn text(&self, begin: u64, next: u64) -> Option<(Gva, u64)> {
        if begin & 1 == 1 && next & 1 == 1 {
            return None;
        }
        let size = 1 << self.size_bits;
        let turn = |at: u64| at >> self.size_bits;
        // It lies in one piece: what does not fit before the end of the ring begins at its start.
        let (at, room) = match turn(begin) == turn(next.wrapping_sub(1)) {
            true => (begin & (size - 1), next.checked_sub(begin)?),
            false => (0, next & (size - 1)),
        };
        let is_inside = at.checked_add(room)? <= size;
        Some((self.data.add(at).add(HEAD), room.checked_sub(HEAD).filter(|_| is_inside)?))
    }
}

#[cfg(test)]
mod tests;
