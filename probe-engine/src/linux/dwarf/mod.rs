//! What the debugging information of a `vmlinux` says (DWARF, by `gimli`): which source line each instruction is from,
//! through which inlined functions, what its types are, and where
//! its local variables are.
//!
//! A kernel's is some 250 MB, and is walked once for each question. What comes out of a walk is plain data without a
//! reference to the file. A damaged file ends a walk with an error, or leaves out what it has damaged; work and memory
//! are linear in its size.

mod attributes;
mod btf;
mod code;
mod files;
mod functions;
mod inlined;
mod locals;
mod location;
mod places;
mod rows;
mod scopes;
mod sections;
mod source;
mod type_dies;
mod types;
mod units;

use gimli::{EndianSlice, LittleEndian};

pub use self::functions::{FunctionTypes, NoFunction};
pub use self::locals::{LocalVariable, VariablesInScope};
pub use self::location::{Hidden, VariablePlace};
pub use self::places::LinePlace;
pub use self::sections::DebugFile;
pub use self::source::SourceMap;
pub use self::types::btf;

/// How a section is read.
type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Debugging information that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DwarfError {
    /// An ELF file without it.
    #[error("the file has no debugging information (DWARF): CONFIG_DEBUG_INFO makes it")]
    Missing,
    /// Not an ELF file, or a damaged one.
    #[error("the file's sections cannot be read")]
    Elf(#[from] object::read::Error),
    /// A section is compressed in a way that is not known, or damaged.
    #[error("the section {0} cannot be unpacked")]
    Packed(&'static str),
    /// It does not hold.
    #[error("the debugging information (DWARF) is damaged")]
    Damaged(#[from] gimli::Error),
    /// Types of several units are entangled.
    #[error(
        "types of a kernel that was compiled at once (LTO) are not read from its debugging information (DWARF)"
    )]
    ForeignType,
    /// Far more than any kernel has.
    #[error("the debugging information (DWARF) describes more than a kernel can have")]
    TooMuch,
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
