//! A place in the file of a program or a library, wherever processes have that in their memory.

use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter, Result};

/// A place in a file, as users write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramPlace {
    /// The file, by its path from the root that the guest's first process has.
    pub path: String,
    /// Where in it.
    pub at: InFile,
    /// Where in the file a counter of two bytes lies that is not 0 while somebody probes there, if there is one.
    pub counter: Option<u64>,
    /// Whether the returns are wanted of the function that begins there.
    pub returns: bool,
    /// What is known of the file, where a file outside the guest has said something of the place.
    pub known: Option<KnownFile>,
}

/// A file of a program, as it is outside the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownFile {
    /// What the linker has made of all that is in it (`.note.gnu.build-id`), if it has.
    pub build_id: Option<Vec<u8>>,
    /// How long it is, in bytes.
    pub length: u64,
    /// Where in the file the symbol is that the place is counted from, if the file itself does not say it.
    pub symbol: Option<u64>,
}

/// Where in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InFile {
    /// So many bytes behind a symbol of its own.
    Symbol {
        /// The symbol.
        name: String,
        /// Bytes from there.
        offset: u64,
    },
    /// So many bytes from the file's start.
    Offset(u64),
    /// The entries of all functions whose names match this pattern.
    Functions(String),
    /// A tracepoint that the program has of its own (USDT), wherever that is.
    Tracepoint {
        /// Whose it is: often the name of the program.
        provider: String,
        /// What it is called.
        name: String,
    },
}

impl InFile {
    /// Whether it stands for as many places as the file says.
    #[must_use]
    pub fn is_several(&self) -> bool {
        match self {
            Self::Symbol { .. } | Self::Offset(_) => false,
            Self::Functions(_) | Self::Tracepoint { .. } => true,
        }
    }
}

/// Whether a symbol is of a part of a function that the compiler has put elsewhere (`f.cold`). The function jumps there: the word on the
/// stack is no return address.
#[must_use]
pub fn is_fragment(symbol: &str) -> bool {
    symbol.ends_with(".cold") || symbol.contains(".cold.")
}

impl ProgramPlace {
    /// Which argument of the kernel's handlers leads to the program's registers, from 0 on: `handler(consumer, registers)`,
    /// `ret_handler(consumer, entry, registers)` (include/linux/uprobes.h).
    #[must_use]
    pub fn saved(&self) -> u8 {
        if self.returns { 2 } else { 1 }
    }
}

impl Display for ProgramPlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}:{}", self.path, self.at)?;
        self.counter.iter().try_for_each(|counter| write!(f, "({counter:#x})"))
    }
}

impl Display for InFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Symbol { name, offset: 0 } => f.write_str(name),
            Self::Symbol { name, offset } => write!(f, "{name}+{offset:#x}"),
            Self::Offset(offset) => write!(f, "{offset:#x}"),
            Self::Functions(pattern) => f.write_str(pattern),
            Self::Tracepoint { provider, name } => write!(f, "{provider}:{name}"),
        }
    }
}
