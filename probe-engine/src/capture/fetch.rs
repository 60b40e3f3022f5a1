//! Where a value comes from: a register, then memory that it leads to.

use super::scene::{LONGEST_RECORD, Scene};
use super::value;
use crate::addr::Gva;
use crate::linux::cgroup::{self, CgroupLayout};
use crate::linux::command_line::{self, CommandLineLayout, Words};
use crate::linux::path::{self, NoPath, PathLayout};
use crate::paging::PageFault;
use crate::regs::Register;
use crate::virt_memory::{LONGEST_STRING, ReadVirt, page_rest};
use serde::{Deserialize, Serialize};

/// Addresses below belong to processes: the lower half of the address space, with 4 and with 5 levels.
const USER_END: u64 = 1 << 56;

/// Where a value begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// A register.
    Register(Register),
    /// Argument `n` of the function, from 0 on, at its entry, also when it is asked for at a return: then only those
    /// in registers are known.
    Argument(u8),
    /// Two arguments in registers from this on, which are one value of up to 16 bytes.
    Arguments(u8),
    /// A register of a program, among those that the kernel has saved where an argument leads, by its number from 0 on.
    Saved(u8, Register),
    /// Argument `n` of a tracepoint that a program has of its own, from 0 on. Where that is is known when the file is: until then, and
    /// where nobody has [said](super::Capture::at_usdt), it cannot be read.
    Usdt(u8),
    /// Where a process has the place in a program at which the probe is.
    Place,
    /// Slot `n` of the stack, of 8 bytes: 0 is where RSP points.
    Stack(u16),
    /// A number.
    Constant(u64),
    /// An address in the kernel, as it was linked.
    Kernel(Gva),
    /// The name of the task that runs.
    Comm,
    /// The address of that task's `task_struct`.
    Current,
    /// The path of that task's control group.
    Cgroup(CgroupLayout),
    /// The words with which that task's program was started.
    CommandLine(CommandLineLayout),
    /// A text.
    Text(String),
    /// Nowhere that can be read.
    Unknown,
}

/// From one value to the next: 8 bytes of memory at an offset from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// Bytes from the address that the value is.
    pub offset: i64,
    /// Only a process's memory will do.
    pub user: bool,
    /// The value is the address of a per-CPU variable: the CPU's own one is meant.
    pub per_cpu: bool,
}

impl Hop {
    /// At this offset, in whatever memory.
    #[must_use]
    pub const fn at(offset: i64) -> Self {
        Self { offset, user: false, per_cpu: false }
    }

    /// At this offset, in a process's memory.
    #[must_use]
    pub const fn of_user(offset: i64) -> Self {
        Self { user: true, ..Self::at(offset) }
    }
}

/// What is kept in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Read {
    /// So many low bytes of the value itself, 8 at most, or 16 of two arguments.
    Word(u8),
    /// So many `bytes` of a number that has only `of` low bytes of the value, or of what lies at an offset from that.
    Extended {
        /// Where it lies, if it is not the value itself.
        at: Option<Hop>,
        /// How many it has: 8 at most.
        of: u8,
        /// Whether it may be negative.
        is_signed: bool,
        /// How many are kept: 8 at most.
        bytes: u8,
    },
    /// What lies at an offset from the address that the value is.
    Memory(Hop, What),
    /// The value as an address, and what lies there. A null pointer leads nowhere.
    Pointee {
        /// What is kept of that.
        what: What,
        /// Only a process's memory will do.
        user: bool,
    },
    /// So many low bytes of the address to which a hop leads, 8 at most.
    Address(Hop, u8),
}

/// What is kept of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// So many bytes.
    Bytes(u16),
    /// Up to a NUL, or so many bytes.
    String(u16),
    /// So many pointers to strings.
    Strings(u16),
    /// The path that a `struct path` there is.
    Path(PathLayout),
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetch {
    /// Where it begins.
    pub base: Base,
    /// Over which pointers it goes.
    pub hops: Vec<Hop>,
    /// What is kept.
    pub read: Read,
}

impl Fetch {
    /// The low `bytes` of what `base` is.
    #[must_use]
    pub fn word(base: Base, bytes: u8) -> Self {
        Self { base, hops: Vec::new(), read: Read::Word(bytes) }
    }

    /// Whether it follows a pointer. Where that leads is known at a hit.
    pub(super) fn follows_pointers(&self) -> bool {
        !self.hops.is_empty() || !matches!(self.read, Read::Word(_) | Read::Extended { at: None, .. })
    }

    /// Reads the value, and appends it to `record`.
    pub(super) fn take<M: ReadVirt + ?Sized>(&self, scene: &Scene<'_, M>, record: &mut Vec<u8>) {
        let start = record.len();
        // What is left out takes a byte as well.
        let room = LONGEST_RECORD.saturating_sub(start);
        let read = match room {
            0..LEAST_ROOM => Err(Lack::Missing),
            _ => self.put(scene, record, room),
        };
        if let Err(lack) = read {
            record.truncate(start);
            match lack {
                Lack::Fault(at) => value::put_fault(record, at),
                Lack::Missing if room > 0 => value::put_missing(record),
                Lack::Missing => {}
            }
        }
    }

    fn put<M: ReadVirt + ?Sized>(
        &self,
        scene: &Scene<'_, M>,
        record: &mut Vec<u8>,
        room: usize,
    ) -> Result<(), Lack> {
        let mut at = match &self.base {
            Base::Comm => {
                value::put_text(record, scene.task.ok_or(Lack::Missing)?.comm(), false);
                return Ok(());
            }
            Base::Cgroup(layout) => {
                fits(cgroup::LONGEST, room)?;
                let task = scene.task.ok_or(Lack::Missing)?.at;
                let start = record.len();
                value::put_text(record, &[], false);
                layout.path(scene.memory, task, record)?;
                value::finish_text(record, start, false);
                return Ok(());
            }
            Base::CommandLine(layout) => {
                fits(command_line::LONGEST, room)?;
                let task = scene.task.ok_or(Lack::Missing)?.at;
                let start = record.len();
                value::put_text(record, &[], false);
                let read = layout.words(scene.memory, task, record)?;
                value::finish_text(record, start, read == Words::Cut);
                return Ok(());
            }
            Base::Text(text) => {
                fits(text.len(), room)?;
                value::put_text(record, text.as_bytes(), false);
                return Ok(());
            }
            Base::Arguments(n) => {
                let (Read::Word(bytes), low, high) = (self.read, scene.argument(*n)?, scene.argument(n + 1)?)
                else {
                    return Err(Lack::Missing);
                };
                let words = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
                value::put_bytes(record, words.get(..usize::from(bytes)).unwrap_or(&words));
                return Ok(());
            }
            Base::Usdt(_) | Base::Place | Base::Unknown => return Err(Lack::Missing),
            Base::Current => scene.task.ok_or(Lack::Missing)?.at.0,
            Base::Register(register) => register.of(scene.regs),
            Base::Constant(number) => *number,
            Base::Kernel(link) => link.0.wrapping_add(scene.slide),
            Base::Argument(n) => scene.argument(*n)?,
            Base::Saved(n, register) => {
                let saved = Gva(scene.argument(*n)?).add(register.saved().into());
                scene.memory.read_u64(saved)?
            }
            Base::Stack(n) => scene.stack_slot(u64::from(*n))?,
        };
        for hop in &self.hops {
            at = scene.memory.read_u64(scene.address(at, *hop)?)?;
        }
        match self.read {
            Read::Word(bytes) => {
                put_word(record, at, bytes);
                Ok(())
            }
            Read::Extended { at: from, of, is_signed, bytes } => {
                if let Some(hop) = from {
                    let mut word = [0; 8];
                    let length = usize::from(of).min(word.len());
                    let (low, _) = word.split_at_mut(length);
                    scene.memory.read(scene.address(at, hop)?, low)?;
                    at = u64::from_le_bytes(word);
                }
                put_word(record, extended(at, of, is_signed), bytes);
                Ok(())
            }
            Read::Address(hop, bytes) => {
                put_word(record, scene.address(at, hop)?.0, bytes);
                Ok(())
            }
            Read::Memory(hop, what) => scene.put(scene.address(at, hop)?, what, record, room),
            Read::Pointee { what, user } => {
                value::put_pointer(record, Gva(at));
                let start = record.len();
                let room = room.saturating_sub(value::POINTER);
                let there = match at {
                    0 => Err(Lack::Missing),
                    _ => scene
                        .address(at, Hop { user, ..Hop::at(0) })
                        .and_then(|at| scene.put(at, what, record, room)),
                };
                match there {
                    Ok(()) => {}
                    Err(Lack::Fault(at)) => {
                        record.truncate(start);
                        value::put_fault(record, at);
                    }
                    Err(Lack::Missing) => {
                        record.truncate(start);
                        value::put_missing(record);
                    }
                }
                Ok(())
            }
        }
    }
}

/// Why there is no value.
enum Lack {
    /// No memory is mapped there (GVA).
    Fault(Gva),
    /// It cannot be known, or there is no room for it.
    Missing,
}

impl From<PageFault> for Lack {
    fn from(fault: PageFault) -> Self {
        Self::Fault(fault.at)
    }
}

impl From<NoPath> for Lack {
    fn from(none: NoPath) -> Self {
        match none {
            NoPath::Fault(fault) => fault.into(),
            NoPath::Endless => Self::Missing,
        }
    }
}

/// Room for every value that keeps no more than a pointer and a word.
const LEAST_ROOM: usize = 2 * value::LONGEST_HEAD;

/// The number that has so many low bytes of `word`.
fn extended(word: u64, bytes: u8, is_signed: bool) -> u64 {
    let others = 64 - 8 * u32::from(bytes.clamp(1, 8));
    match is_signed {
        true => ((word << others).cast_signed() >> others).cast_unsigned(),
        false => word << others >> others,
    }
}

/// Appends so many low bytes of `word`.
fn put_word(record: &mut Vec<u8>, word: u64, bytes: u8) {
    let word = word.to_le_bytes();
    value::put_bytes(record, word.get(..usize::from(bytes)).unwrap_or(&word));
}

fn fits(len: usize, room: usize) -> Result<(), Lack> {
    if len + value::LONGEST_HEAD <= room { Ok(()) } else { Err(Lack::Missing) }
}

impl<M: ReadVirt + ?Sized> Scene<'_, M> {
    /// Argument `n` of the function, from 0 on.
    fn argument(&self, n: u8) -> Result<u64, Lack> {
        let n = usize::from(n);
        match (self.entered_with, Register::of_argument(n)) {
            (Some(args), _) => args.get(n).copied().ok_or(Lack::Missing),
            (None, Some(register)) => Ok(register.of(self.regs)),
            // Behind the six in registers, and behind the return address.
            (None, None) => self.stack_slot(n as u64 - 5),
        }
    }

    fn stack_slot(&self, n: u64) -> Result<u64, Lack> {
        Ok(self.memory.read_u64(Gva(self.regs.rsp).add(8 * n))?)
    }

    /// Where a hop leads; a fault when that has to be a process's memory and is not.
    fn address(&self, from: u64, hop: Hop) -> Result<Gva, Lack> {
        let base = if hop.per_cpu { self.per_cpu.ok_or(Lack::Missing)? } else { 0 };
        let at = Gva(from).add(base).offset(hop.offset);
        if hop.user && at.0 >= USER_END { Err(Lack::Fault(at)) } else { Ok(at) }
    }

    /// Appends what lies at `at`.
    fn put(&self, at: Gva, what: What, record: &mut Vec<u8>, room: usize) -> Result<(), Lack> {
        match what {
            What::Bytes(len) => {
                let len = usize::from(len);
                fits(len, room)?;
                Ok(self.memory.read(at, value::put_room(record, len))?)
            }
            What::String(most) => self.put_string(at, most, record, room),
            What::Path(layout) => {
                fits(path::LONGEST, room)?;
                let start = record.len();
                value::put_text(record, &[], false);
                layout.path(self.memory, at, record)?;
                value::finish_text(record, start, false);
                Ok(())
            }
            What::Strings(count) => {
                let end = record.len() + room;
                value::put_count(record, count);
                for n in 0..u64::from(count) {
                    let room = end.saturating_sub(record.len());
                    fits(value::LONGEST_HEAD, room)?;
                    let start = record.len();
                    let string = self.memory.read_u64(at.add(8 * n));
                    let put = string
                        .map_err(Lack::from)
                        .and_then(|string| self.put_string(Gva(string), LONGEST_STRING, record, room));
                    match put {
                        Err(Lack::Fault(at)) => {
                            record.truncate(start);
                            value::put_fault(record, at);
                        }
                        put => put?,
                    }
                }
                Ok(())
            }
        }
    }

    /// Appends the string at `at`, or its beginning.
    fn put_string(&self, at: Gva, most: u16, record: &mut Vec<u8>, room: usize) -> Result<(), Lack> {
        let start = record.len();
        let most = usize::from(most.min(M::LONGEST_STRING)).min(room.saturating_sub(value::LONGEST_HEAD));
        value::put_text(record, &[], false);
        let text = record.len();
        let mut next = at;
        loop {
            let have = record.len();
            let piece = page_rest(next).min(most.saturating_sub(have - text)).min(256);
            if piece == 0 {
                value::finish_text(record, start, true);
                return Ok(());
            }
            record.resize(have + piece, 0);
            let bytes = record.get_mut(have..).unwrap_or_default();
            self.memory.read(next, bytes)?;
            if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
                record.truncate(have + end);
                value::finish_text(record, start, false);
                return Ok(());
            }
            next = next.add(piece as u64);
        }
    }
}
