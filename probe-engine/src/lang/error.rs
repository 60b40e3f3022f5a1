//! What can be wrong with a definition, where, and what to write instead.

use super::ast::Span;
use crate::linux::glob::GlobError;

/// A mistake in a definition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{mistake}")]
pub struct Error {
    /// Where it is, in bytes of the text: between two characters, and never behind the end.
    pub span: Span,
    /// What is wrong there.
    pub mistake: Mistake,
}

impl Error {
    /// What to write instead, where that can be said.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        self.mistake.hint()
    }
}

/// What has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// `GRP`
    Group,
    /// `EVENT`
    Event,
    /// `NAME=`
    Argument,
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Group => "group",
            Self::Event => "event",
            Self::Argument => "argument",
        })
    }
}

/// A list of names that may have been meant.
pub type Nearest = Vec<String>;

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each has its sentence")]
pub enum Mistake {
    // The whole.
    #[error("nothing is defined")]
    Empty,
    #[error("a definition has at most {0} bytes")]
    TooLong(usize),
    #[error("`{0}` was not expected here")]
    Unexpected(String),

    // The head.
    #[error("the {0} has no name")]
    NoName(Named),
    #[error("the name of the {what} is longer than {most} bytes")]
    NameTooLong { what: Named, most: usize },
    #[error("`{name}` cannot be the name of the {what}")]
    BadName { what: Named, name: String },
    #[error("nothing else may be said when an event is removed")]
    MoreThanRemoval,
    #[error("only return probes have a number of calls that are followed at once")]
    MaxActiveNotForEntry,
    #[error("`{0}` is not a number of calls")]
    BadMaxActive(String),
    #[error("at most {0} calls can be followed at once")]
    MaxActiveTooBig(u32),

    // The place.
    #[error("`{0}` names no function")]
    NoSymbol(String),
    #[error("{0:?} is in no name of a function")]
    BadSymbol(char),
    #[error("there is no module before the `:`")]
    NoModule,
    #[error("{0:?} is in no name of a module")]
    BadModule(char),
    #[error("`{0}` does not say which of several functions of that name is meant")]
    BadOrdinal(String),
    #[error("`{0}` is not an offset")]
    BadOffset(String),
    #[error("a probe cannot lie before its symbol")]
    NegativeOffset,
    #[error("an address takes no offset")]
    AddressOffset,
    #[error("a function returns as a whole: there is no offset but 0")]
    ReturnOffset,
    #[error("an `f` probe is at a function's entry: there is no offset but 0")]
    EntryOffset,
    #[error("a function's name is needed here, not an address")]
    NeedsFunction,
    #[error("`{0}` cannot follow a place")]
    BadSuffix(String),
    #[error("a pattern takes no module")]
    PatternModule,
    #[error("a pattern takes no offset")]
    PatternOffset,
    #[error("{0}")]
    Pattern(GlobError),

    // Arguments.
    #[error("a probe has at most {0} arguments")]
    TooManyArguments(usize),
    #[error("`{0}` is a name that every event has already")]
    ReservedName(String),
    #[error("`{0}` is the name of another argument already")]
    UsedName(String),
    #[error("there is nothing to fetch")]
    NothingToFetch,
    #[error("`{0}` is nothing that can be fetched")]
    UnknownFetch(String),
    #[error("there is no register `%{name}`")]
    UnknownRegister { name: String, nearest: Nearest },
    #[error("there is no variable `{name}`")]
    UnknownVariable { name: String, nearest: Nearest },
    #[error("`$retval` is known only where a function returns")]
    NotAReturn,
    #[error("a function's parameters are known only at its entry and its returns")]
    NotAnEntry,
    #[error("the stack has entries from 0 to {0}")]
    BadStackSlot(u32),
    #[error("arguments are counted from 1 to {0}")]
    BadArgumentNumber(u32),
    #[error("`$arg*` stands for itself")]
    DressedAllArguments,
    #[error("`$arg*` is there already")]
    AllArgumentsTwice,
    #[error("`{0}` is not an address")]
    BadAddress(String),
    #[error("offsets into a file are for programs, not for the kernel")]
    FileOffset,
    #[error("`{0}` is not a number")]
    BadNumber(String),
    #[error("the text does not end")]
    OpenText,
    #[error("an offset reads memory only together with an address in parentheses")]
    NoParenthesis,
    #[error("the parenthesis is not closed")]
    OpenParenthesis,
    #[error("a text is not an address that could be read from")]
    DereferencedText,
    #[error("memory is read more than {0} times, one behind the other")]
    TooDeep(usize),
    #[error("a member comes after `->`")]
    BadHyphen,
    #[error("a parameter is no structure: the first member comes after `->`")]
    DotOnParameter,
    #[error("the name of a member is missing")]
    NoMember,

    // Types.
    #[error("there is no type `{name}`")]
    UnknownType { name: String, nearest: Nearest },
    #[error("a text has the type `string`, and is no array")]
    NeedsString,
    #[error("a string is read from memory, and this is a value")]
    StringOfValue,
    #[error("a value is needed for a symbol's name")]
    SymbolOfNoValue,
    #[error("an array is read from memory, and this is a value")]
    ArrayOfValue,
    #[error("this type has no arrays")]
    NoArray,
    #[error("the array lacks its `]`")]
    OpenArray,
    #[error("an array has 1 to {0} elements")]
    BadArrayLength(u32),
    #[error("`{0}` is not a bit field")]
    BadBitField(String),
    #[error("a bit field is part of 8, 16, 32 or 64 bits")]
    BadContainer,
    #[error("{width} bits above the lowest {offset} are more than the {container} that there are")]
    BitFieldTooWide { width: u64, offset: u64, container: u8 },
}

impl Mistake {
    /// What to write instead, where that can be said.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let fixed = match self {
            Self::UnknownRegister { nearest, .. }
            | Self::UnknownVariable { nearest, .. }
            | Self::UnknownType { nearest, .. } => return did_you_mean(nearest),
            Self::StringOfValue => "write `+0(...)` around it to read what it points to",
            Self::ArrayOfValue => "write `+0(...)` around it to read what it points to",
            _ => return None,
        };
        Some(fixed.to_owned())
    }
}

fn did_you_mean(nearest: &[String]) -> Option<String> {
    let quoted: Vec<String> = nearest.iter().map(|name| format!("`{name}`")).collect();
    (!quoted.is_empty()).then(|| format!("did you mean {}?", quoted.join(" or ")))
}
