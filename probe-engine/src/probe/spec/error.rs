//! What can be wrong with a place as a user writes it, and what to write instead.

use super::NOT_YET_ADVICE;
use crate::linux::glob::GlobError;

/// Why a text is no [`ProbeSpec`](super::ProbeSpec), and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// `vfs_read:0`.
    #[error("`{0}` is no line: they are counted from 1 on")]
    BadLine(String),
    /// `vfs_read:10%return`.
    #[error("`{0}` is a line of the source: a return probe needs the function's name before `%return`")]
    ReturnLine(String),
    /// `vfs_*:10`, `vfs_read+4:10`.
    #[error("`{0}` is neither a function nor a file of source (open.c): write one of them before the `:`")]
    LineOfOther(String),
    /// Nothing at all.
    #[error(
        "empty: write a symbol (vfs_read), symbol+offset, MODULE:SYMBOL, an address (0xffffffff81000000) or a pattern (vfs_*)"
    )]
    Empty,
    /// `vfs_read@0xffffffff81000000`, or an "offset" that is an address.
    #[error("`{0}` has both a symbol and an address: write one of them")]
    SymbolAndAddress(String),
    /// `0xffffffff81000000+4`.
    #[error("an address takes no offset: add `{0}` to it yourself")]
    AddressOffset(String),
    /// `vfs_read+4%return`.
    #[error("a return probe takes no offset: leave out `{0}`, a function returns as a whole")]
    ReturnOffset(String),
    /// `0xffffffff81000000%return`.
    #[error("`{0}` is an address: a return probe needs the function's name before `%return`")]
    ReturnAddress(String),
    /// `vfs_read%exit`.
    #[error("`{0}` is not known: `%return` is all that may follow a symbol")]
    UnknownSuffix(String),
    /// `ext4:`.
    #[error("`{0}` has no symbol: write one after the `:`")]
    NoModuleSymbol(String),
    /// `:ext4_readdir`.
    #[error("`{0}` has no module: write its name before the `:`, or leave out the `:`")]
    NoModule(String),
    /// `a:b:c`.
    #[error("`{0}` has more than one `:`: write MODULE:SYMBOL")]
    SeveralModules(String),
    /// `syscall:open*`, `syscall:openat+4`.
    #[error("`{0}` is no name of a system call: write one, as in syscall:openat")]
    NoSystemCall(String),
    /// `kprobe:vfs_read`, as other tools have it.
    #[error("`{kind}:` is another tool's word, and no module: write `{here}`")]
    KindOfProbe {
        /// The word before the first `:`.
        kind: String,
        /// What to write here.
        here: &'static str,
    },
    /// `uprobe:/bin/sh:main`, `/bin/sh:main`.
    #[error("{0} cannot be probed yet: {NOT_YET_ADVICE}")]
    NotYet(&'static str),
    /// It is in a program.
    #[error("`{0}` is in a program, which only a definition can name: write `p PATH:SYMBOL`")]
    InProgram(String),
    /// `p:opens`, a definition without its place.
    #[error("`{0}` gives a probe its name, and has no place: write `{0} FUNCTION`")]
    NoPlace(String),
    /// `ext4:ext4_*`.
    #[error("`{0}` is a pattern, and a module takes none: name one function of it")]
    ModulePattern(String),
    /// `0x`, `0xfoo`, or more than 64 bits.
    #[error("`{0}` is no address: write 0x and up to 16 hexadecimal digits")]
    BadAddress(String),
    /// `1234`, which could be meant in either base.
    #[error("`{0}` is neither a symbol nor an address: write addresses in hexadecimal, after 0x")]
    BareNumber(String),
    /// `vfs_*+4`.
    #[error("a pattern takes no offset: leave out `{0}`, or name one function")]
    PatternOffset(String),
    /// A pattern that does not end.
    #[error("`{written}` cannot be used as a pattern")]
    Pattern {
        /// The pattern.
        written: String,
        /// What is wrong with it.
        source: GlobError,
    },
    /// `+4`.
    #[error("`{0}` has no symbol: begin with one")]
    NoSymbol(String),
    /// `show#0`, `show#x`.
    #[error("`{0}` does not say which function: write `#2` for the second of that name, by address")]
    BadOrdinal(String),
    /// `vfs_read+`.
    #[error("`{0}` lacks its offset: leave out the `+`, or write bytes behind it")]
    NoOffset(String),
    /// `vfs_read-4`.
    #[error("`{0}` lies before its symbol: name the function that holds the address, and count from there")]
    NegativeOffset(String),
    /// `vfs_read+x`.
    #[error("`{0}` is no offset: write bytes in decimal, or in hexadecimal after 0x")]
    BadOffset(String),
    /// More than 64 bits.
    #[error("the offset `{0}` is larger than any function: write bytes from the start of the symbol")]
    OffsetTooLarge(String),
    /// A character that no module has in its name.
    #[error("`{module}` is no module's name: it has {character:?} in it, use letters, digits and `_`")]
    BadModule {
        /// What was written before the `:`.
        module: String,
        /// The first such character.
        character: char,
    },
    /// A character that no symbol of a kernel has.
    #[error(
        "`{written}` has {character:?} in it, which no kernel symbol has: use letters, digits, `_`, `.` and `$`"
    )]
    BadCharacter {
        /// The text.
        written: String,
        /// The first such character.
        character: char,
    },
}
