//! Memory that a detour reads for a probe: what is read is planned here, and kept in an area of the record.
//!
//! Each read has an entry in the area, at an offset that the plan says, all words little-endian:
//!
//! | offset | what |
//! |---|---|
//! | 0 | u64: where it was read (GVA) |
//! | 8 | u64: how many bytes were; 0 if none could be |
//! | 16 | the bytes, up to a multiple of 8 |
//!
//! What lies between a per-CPU variable and the CPU's own one is a word of the area, where it is needed.
//!
//! A value that lies behind pointers takes a chain of entries: each is read where the one before it leads.

use super::layout::ARGUMENTS;
use crate::addr::Gva;
use crate::capture::{Base, Fetch, Hop, Read, Register, What};
use crate::paging::{Access, AddressSpace, PageFault};
use crate::virt_memory::ReadVirt;

/// Offset in an entry.
pub(super) const ADDRESS: u64 = 0;
/// Offset in an entry.
pub(super) const LENGTH: u64 = 8;
/// Offset in an entry.
pub(super) const DATA: u64 = 16;

/// Longest string that a detour keeps, in bytes.
pub const LONGEST_STRING: u16 = 256;
/// Most bytes of the area of a probe. It is on the guest's stack while it is filled.
pub const LONGEST: u64 = 1024;

/// What is read of memory for a probe.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reads {
    /// The values, each by its chain.
    pub(super) chains: Vec<Chain>,
    /// Bytes of the area.
    pub(super) length: u64,
    /// Where in it is what lies between a per-CPU variable and the CPU's own one.
    pub(super) per_cpu: Option<u64>,
}

/// How a value is come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    /// Where it begins.
    pub(super) start: Given,
    pub(super) entries: Vec<ReadEntry>,
}

/// A value that is there without a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// A register.
    Register(Register),
    /// An argument in a register, from 0 on, that the call was made with which returns.
    Entered(u8),
    /// Known beforehand.
    Constant(u64),
    /// An address in the kernel, as it was linked.
    Kernel(Gva),
    /// The address of the task that runs.
    Current,
}

impl Given {
    /// What `base` stands for, at a return or not, if it is such a value.
    pub(super) fn of(base: &Base, at_return: bool) -> Option<Self> {
        match base {
            Base::Register(register) => Some(Self::Register(*register)),
            Base::Argument(n) if at_return => (usize::from(*n) < ARGUMENTS).then_some(Self::Entered(*n)),
            Base::Argument(n) => Register::of_argument((*n).into()).map(Self::Register),
            Base::Constant(number) => Some(Self::Constant(*number)),
            Base::Kernel(link) => Some(Self::Kernel(*link)),
            Base::Current => Some(Self::Current),
            Base::Saved(..)
            | Base::Usdt(_)
            | Base::Place
            | Base::Stack(_)
            | Base::Arguments(_)
            | Base::Comm
            | Base::Cgroup(_)
            | Base::CommandLine(_)
            | Base::Text(_)
            | Base::Unknown => None,
        }
    }
}

/// One read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadEntry {
    /// Where in the area.
    pub(super) at: u64,
    /// Bytes from where the chain has come to.
    pub(super) offset: i64,
    /// Only a process's memory will do.
    pub(super) user: bool,
    /// The CPU's own variable is meant.
    pub(super) per_cpu: bool,
    pub(super) kept: Kept,
}

/// What is kept of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    Bytes(u16),
    /// Up to a NUL, or so many bytes.
    String(u16),
    /// Nothing of it: the address itself, as if it had been read.
    Address,
}

impl Reads {
    /// Plans what `fetch` reads, at a return or not, and says where in the area the last of it is; `None` if it needs no
    /// memory.
    ///
    /// # Errors
    /// It cannot be read by a detour.
    pub(super) fn add(&mut self, fetch: &Fetch, at_return: bool) -> Result<Option<u64>, CannotRead> {
        let on_stack = |n| (Given::Register(Register::Rsp), Some(slot(n)));
        let (start, first) = match (Given::of(&fetch.base, at_return), &fetch.base) {
            (Some(given), _) => (given, None),
            (None, Base::Stack(n)) => on_stack(*n),
            (None, Base::Saved(n, register)) if !at_return => {
                let leads = Register::of_argument((*n).into()).ok_or(CannotRead)?;
                (Given::Register(leads), Some(Hop::at(register.saved().into())))
            }
            // Behind the six in registers, and behind the return address.
            (None, Base::Argument(n)) if !at_return => on_stack(u16::from(*n) - 5),
            (None, _) => return Err(CannotRead),
        };
        let last = match fetch.read {
            Read::Word(_) => None,
            Read::Extended { at, of, .. } => at.map(|hop| (hop, Kept::Bytes(of.into()))),
            Read::Memory(hop, what) => Some((hop, Kept::of(what)?)),
            Read::Pointee { what, user } => Some((Hop { user, ..Hop::at(0) }, Kept::of(what)?)),
            Read::Address(hop, _) => Some((hop, Kept::Address)),
        };
        let hops = first.into_iter().chain(fetch.hops.iter().copied());
        let mut entries: Vec<ReadEntry> = Vec::new();
        for hop in hops {
            entries.push(self.entry(hop, Kept::Bytes(8))?);
        }
        if let Some((hop, kept)) = last {
            entries.push(self.entry(hop, kept)?);
        }
        let last = entries.last().map(|entry| entry.at);
        if last.is_some() {
            self.chains.push(Chain { start, entries });
        }
        Ok(last)
    }

    fn entry(&mut self, Hop { offset, user, per_cpu }: Hop, kept: Kept) -> Result<ReadEntry, CannotRead> {
        // A displacement of the guest's code.
        i32::try_from(offset).map_err(|_| CannotRead)?;
        if per_cpu && self.per_cpu.is_none() {
            self.per_cpu = Some(self.length);
            self.length += 8;
        }
        let entry = ReadEntry { at: self.length, offset, user, per_cpu, kept };
        self.length += DATA + kept.room();
        if self.length <= LONGEST { Ok(entry) } else { Err(CannotRead) }
    }

    /// Whether nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &ReadEntry> {
        self.chains.iter().flat_map(|chain| &chain.entries)
    }
}

fn slot(n: u16) -> Hop {
    Hop::at(8 * i64::from(n))
}

impl Kept {
    fn of(what: What) -> Result<Self, CannotRead> {
        match what {
            What::Bytes(bytes) => Ok(Self::Bytes(bytes)),
            What::String(most) => Ok(Self::String(most.min(LONGEST_STRING))),
            What::Strings(_) | What::Path(_) => Err(CannotRead),
        }
    }

    /// Bytes that it takes. Behind a string the guest puts a NUL of its own.
    fn room(self) -> u64 {
        match self {
            Self::Bytes(bytes) => u64::from(bytes),
            Self::String(most) => u64::from(most) + 1,
            Self::Address => 8,
        }
        .next_multiple_of(8)
    }
}

/// A detour cannot read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CannotRead;

/// The memory that a record has kept: there is no other.
pub(super) struct Kepts<'a> {
    pub(super) reads: &'a Reads,
    /// The area, as words.
    pub(super) area: &'a [u64],
}

impl Kepts<'_> {
    /// What lies between a per-CPU variable and the CPU's own one, if it was kept.
    pub(super) fn per_cpu(&self) -> Option<u64> {
        self.reads.per_cpu.map(|at| self.word(at))
    }

    fn word(&self, at: u64) -> u64 {
        self.area.get((at / 8) as usize).copied().unwrap_or_default()
    }

    /// Fills `buf` from `at`, if this entry has all of it. Behind the NUL of a string there is nothing but zeros.
    fn read_of(&self, entry: &ReadEntry, at: Gva, buf: &mut [u8]) -> Option<()> {
        let skipped = at.offset_from(Gva(self.word(entry.at + ADDRESS)))?;
        let length = self.word(entry.at + LENGTH).min(entry.kept.room());
        let rest = length.checked_sub(skipped)?;
        let bytes = (skipped..length).map(|n| (self.word(entry.at + DATA + n) >> (8 * (n % 8))) as u8);
        let ends = match entry.kept {
            Kept::Bytes(_) => false,
            Kept::Address => return None,
            Kept::String(most) => length < u64::from(most) || bytes.clone().next_back() == Some(0),
        };
        if rest == 0 || (rest < buf.len() as u64 && !ends) {
            return None;
        }
        buf.fill(0);
        buf.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        Some(())
    }
}

impl ReadVirt for Kepts<'_> {
    const LONGEST_STRING: u16 = LONGEST_STRING;

    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), PageFault> {
        let there = self.reads.entries().any(|entry| self.read_of(entry, at, buf).is_some());
        if there || buf.is_empty() {
            return Ok(());
        }
        Err(AddressSpace::new(0, 0).not_present(at, Access::Read))
    }
}
