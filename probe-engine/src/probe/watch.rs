//! Watched memory: `jiffies:8:w`, `panic_on_oops+0:4:rw`, `schedule:1:x`.
//!
//! The CPU watches by its debug registers (Intel SDM volume 3, 18.2): four places, each 1, 2, 4 or 8 bytes long and
//! aligned to that.

use super::spec::{Location, ProbeSpec, SpecError};
use crate::addr::Gva;
use crate::insn::decode::{BoundaryError, instruction_at};
use crate::linux::kernel::Kernel;
use crate::linux::nearest::suggestion;
use crate::linux::per_cpu;
use crate::linux::symbols::named::NotOne;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What the CPU watches for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Condition {
    /// An instruction that is about to be executed.
    Execute,
    /// Writes.
    Write,
    /// Reads and writes. The CPU does not tell which of them it was.
    ReadWrite,
}

/// How many bytes are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Length {
    /// 1 byte.
    One,
    /// 2 bytes.
    Two,
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl Length {
    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Two => 2,
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// What a user asked to be watched, as text and as understood. Nothing is looked up yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchSpec {
    written: String,
    place: ProbeSpec,
    length: Length,
    condition: Condition,
}

/// Why a text is no [`WatchSpec`], and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchSpecError {
    /// Not three parts.
    #[error(
        "`{0}` is no watch: write SYMBOL:LENGTH:ACCESS, as jiffies:8:w (an offset or an address will do, too)"
    )]
    Parts(String),
    /// `jiffies:3:w`.
    #[error("`{0}` is no length that a CPU watches: write 1, 2, 4 or 8 bytes")]
    Length(String),
    /// `jiffies:8:r`.
    #[error(
        "`{0}` is nothing that a CPU watches for: write w (writes), rw (reads and writes) or x (execution)"
    )]
    Condition(String),
    /// `schedule:8:x`.
    #[error("execution is watched at an instruction's first byte: write `:1:x` instead of `:{0}:x`")]
    ExecuteLength(String),
    /// `ext4:ext4_mount_opts:4:w`.
    #[error("`{0}` is in a module: only the kernel's own memory can be watched")]
    Module(String),
    /// `jiff*:8:w`, `vfs_read%return:1:x`.
    #[error("`{0}` does not name one place: a watch needs a symbol, symbol+offset or an address")]
    NotOnePlace(String),
    /// The place means nothing.
    #[error(transparent)]
    Place(#[from] SpecError),
}

/// What the user wrote.
impl fmt::Display for WatchSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl FromStr for WatchSpec {
    type Err = WatchSpecError;

    fn from_str(written: &str) -> Result<Self, WatchSpecError> {
        let mut parts = written.rsplitn(3, ':');
        let (Some(condition), Some(length), Some(place)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(WatchSpecError::Parts(written.to_owned()));
        };
        let condition = match condition {
            "w" => Condition::Write,
            "rw" => Condition::ReadWrite,
            "x" => Condition::Execute,
            _ => return Err(WatchSpecError::Condition(condition.to_owned())),
        };
        let length = match length {
            "1" => Length::One,
            _ if condition == Condition::Execute => {
                return Err(WatchSpecError::ExecuteLength(length.to_owned()));
            }
            "2" => Length::Two,
            "4" => Length::Four,
            "8" => Length::Eight,
            _ => return Err(WatchSpecError::Length(length.to_owned())),
        };
        let place: ProbeSpec = place.parse()?;
        match place.location() {
            Location::Module { .. } => return Err(WatchSpecError::Module(place.to_string())),
            Location::Glob(_) | Location::Line { .. } | Location::SystemCall(_) => {
                return Err(WatchSpecError::NotOnePlace(place.to_string()));
            }
            _ if place.returns() => return Err(WatchSpecError::NotOnePlace(place.to_string())),
            Location::Symbol { .. } | Location::Address(_) => {}
        }
        Ok(Self { written: written.to_owned(), place, length, condition })
    }
}

/// Memory of the kernel that can be watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// What the user calls it.
    pub name: String,
    /// Its link-time address (GVA), a multiple of its length.
    pub at: Gva,
    /// How much of it is watched.
    pub length: Length,
    /// What it is watched for.
    pub condition: Condition,
}

/// A watch that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// No such symbol.
    #[error("the kernel has no symbol `{name}`{}", suggestion(.nearest))]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names like it.
        nearest: Vec<String>,
    },
    /// Several symbols share the name, and it is not said which.
    #[error("in the kernel, {0}")]
    NotOne(NotOne),
    /// An absolute symbol.
    #[error("`{0}` is a per-CPU variable or a constant: it has no one address that could be watched")]
    Absolute(String),
    /// An address that is not of the kernel's image.
    #[error("{0} is not in the kernel's text or data: only what its file lays out can be watched")]
    Outside(Gva),
    /// Some of it lies behind the symbol.
    #[error("`{name}` is {size} bytes long: {length} bytes at offset {offset:#x} reach behind it")]
    Behind {
        /// The symbol.
        name: String,
        /// Its length.
        size: u64,
        /// What was asked for.
        offset: u64,
        /// How much is to be watched.
        length: u64,
    },
    /// Not a multiple of the length.
    #[error("{at} is no multiple of {length}: a CPU watches {length} bytes only where they are aligned")]
    Unaligned {
        /// The address.
        at: Gva,
        /// How much is to be watched.
        length: u64,
    },
    /// Execution of data.
    #[error("{0} is not in the kernel's text: nothing is executed there, so watch it with w or rw")]
    NotText(Gva),
    /// Not the start of an instruction.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// The one handler that debug registers are needed at themselves.
    #[error(
        "{0} is the guest's breakpoint handler, through which other probes may come: it cannot be watched"
    )]
    BreakpointHandler(Gva),
}

/// Finds what `spec` means in `kernel`.
///
/// # Errors
/// [`WatchError`], a sentence for the user.
pub fn resolve(spec: &WatchSpec, kernel: &Kernel) -> Result<Watch, WatchError> {
    let length = spec.length.bytes();
    let at = match spec.place.location() {
        Location::Symbol { name, offset } => in_symbol(name, *offset, length, kernel)?,
        // No other location makes a WatchSpec.
        Location::Address(at) => *at,
        Location::Module { .. } | Location::Glob(_) | Location::Line { .. } | Location::SystemCall(_) => {
            return Err(WatchError::Outside(Gva(0)));
        }
    };
    // Every CPU has its own copy of what lies there, and the kernel uses none of it but those.
    if per_cpu::section(kernel.symbols()).is_some_and(|section| at.is_in(&section)) {
        return Err(WatchError::Absolute(spec.place.to_string()));
    }
    let last = at.add(length - 1);
    let segments = kernel.image().segments();
    if at < kernel.image().text_start()
        || !segments.iter().any(|s| at.is_in(&s.range) && last.is_in(&s.range))
    {
        return Err(WatchError::Outside(at));
    }
    if !at.0.is_multiple_of(length) {
        return Err(WatchError::Unaligned { at, length });
    }
    if spec.condition == Condition::Execute {
        check_instruction(at, kernel)?;
    }
    Ok(Watch { name: spec.to_string(), at, length: spec.length, condition: spec.condition })
}

/// The address of `length` bytes at `offset` in the symbol that `name` means.
fn in_symbol(name: &str, offset: u64, length: u64, kernel: &Kernel) -> Result<Gva, WatchError> {
    /// How many names are offered for one that is unknown.
    const SUGGESTIONS: usize = 3;
    let symbols = kernel.symbols();
    let start = match symbols.find(name, |_| true) {
        // System.map has per-CPU variables as data, at their offsets in the per-CPU area.
        Ok(found) if !found.is_placed() => return Err(WatchError::Absolute(name.to_owned())),
        Ok(found) => found.at,
        Err(NotOne { name, found, .. }) if found.is_empty() => {
            let nearest = symbols.nearest_of_all(&name, SUGGESTIONS).into_iter().map(str::to_owned).collect();
            return Err(WatchError::Unknown { name, nearest });
        }
        Err(which) => return Err(WatchError::NotOne(which)),
    };
    let name = name.to_owned();
    // Nothing tells the end of the last symbol.
    let size = symbols.end_of(start).and_then(|end| end.offset_from(start)).unwrap_or(u64::MAX);
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(start.add(offset)),
        _ => Err(WatchError::Behind { name, size, offset, length }),
    }
}

/// A breakpoint inside an instruction would never be met.
fn check_instruction(at: Gva, kernel: &Kernel) -> Result<(), WatchError> {
    let not_text = WatchError::NotText(at);
    if !kernel.image().is_text(at) {
        return Err(not_text);
    }
    if kernel.symbol("asm_exc_int3") == Some(at) {
        return Err(WatchError::BreakpointHandler(at));
    }
    let Some(function) = kernel.function(at) else { return Err(not_text) };
    let Some(text) = kernel.image().bytes(&function) else { return Err(not_text) };
    instruction_at(text, function.start, at)?;
    Ok(())
}

#[cfg(test)]
mod tests;
