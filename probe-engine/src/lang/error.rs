//! What can be wrong with a definition, and where.

use super::ast::Span;
use crate::capture::program::NotOfProgram;
use crate::linux::dwarf::Hidden;
use crate::linux::event_fields::NoSource;
use crate::linux::glob::GlobError;
use crate::linux::nearest;
use crate::linux::symbols::named::NotOne;

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

/// What is wanted at some place, and is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the sentences say it")]
pub enum Wanted {
    Calls,
    Symbol,
    Tracepoint,
    Usdt,
    Ordinal,
    Line,
    PlaceOffset,
    FileOffset,
    Offset,
    Address,
    Number,
    Fetch,
    Member,
    Structure,
    Type,
    BitField,
    Field,
    Value,
    Cpus,
    HistPart,
    Buckets,
    Returned,
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Calls => "a number of calls",
            Self::Symbol => "a symbol",
            Self::Tracepoint => "the name of a tracepoint",
            Self::Usdt => "a tracepoint that a program has of its own",
            Self::Ordinal => "the number of one of several symbols",
            Self::Line => "a line of the source",
            Self::PlaceOffset => "an offset into a function",
            Self::FileOffset => "an offset into a file",
            Self::Offset => "an offset",
            Self::Address => "an address",
            Self::Number => "a number of 64 bits",
            Self::Fetch => "something that can be fetched",
            Self::Member => "the name of a member",
            Self::Structure => "the name of a structure",
            Self::Type => "a type",
            Self::BitField => "a bit field",
            Self::Field => "the name of a field",
            Self::Value => "a value to compare with",
            Self::Cpus => "a list of CPUs",
            Self::HistPart => "a part of the histogram",
            Self::Buckets => "the width of a bucket",
            Self::Returned => "a value that a function returns (-ENOMEM, NULL, true, false or a number)",
        })
    }
}

/// Names that may have been meant.
pub type Nearest = Vec<String>;

/// Those of `names` that are most like `name`.
pub(super) fn nearest<'a>(names: impl IntoIterator<Item = &'a str>, name: &str) -> Nearest {
    nearest::nearest(names.into_iter(), name, 2).into_iter().map(str::to_owned).collect()
}

/// The names that there are instead.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KnownNames(Box<[String]>);

impl<'a> FromIterator<&'a str> for KnownNames {
    fn from_iter<T: IntoIterator<Item = &'a str>>(names: T) -> Self {
        // A parameter may be a field as well.
        let mut known = Vec::<String>::new();
        for name in names.into_iter().filter(|name| !name.is_empty()) {
            if !known.iter().any(|other| other == name) {
                known.push(name.to_owned());
            }
        }
        Self(known.into())
    }
}

impl KnownNames {
    /// A sentence that begins with `are`, or with `is` for a single name.
    pub(super) fn say(&self, is: &str, are: &str) -> Option<String> {
        /// Names in a sentence.
        const SHOWN: usize = 10;
        let Self(names) = self;
        let quoted: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
        match (quoted.as_slice(), names.len() - quoted.len()) {
            ([], _) => None,
            ([one], 0) => Some(format!("{is} {one}")),
            ([first @ .., last], 0) => Some(format!("{are} {} and {last}", first.join(", "))),
            (all, more) => Some(format!("{are} {} and {more} more", all.join(", "))),
        }
    }
}

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
    #[error("{0} is missing")]
    Missing(Wanted),
    #[error("`{written}` is not {wanted}")]
    Not { wanted: Wanted, written: String },

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
    #[error("at most {0} calls can be followed at once")]
    MaxActiveTooBig(u32),

    // The place.
    #[error("{0:?} is in no name of a function")]
    BadSymbol(char),
    #[error("a word that begins with `usdt` is followed by a place")]
    UsdtAlone,
    #[error("{0:?} is in no name of a tracepoint")]
    BadTracepoint(char),
    #[error("{0} cannot be probed yet")]
    NotYet(&'static str),
    #[error("`{kind}:` is a word of other tools")]
    KindOfProbe { kind: String, here: &'static str },
    #[error("there is no module before the `:`")]
    NoModule,
    #[error("{0:?} is in no name of a module")]
    BadModule(char),
    #[error("a probe cannot lie before its symbol")]
    NegativeOffset,
    #[error("an address takes no offset")]
    AddressOffset,
    #[error("a function returns as a whole: there is no offset but 0")]
    ReturnOffset,
    #[error("this is a part of a function, which the function jumps to: no call returns from there")]
    ReturnOfFragment,
    #[error("an `f` probe is at a function's entry: there is no offset but 0")]
    EntryOffset,
    #[error("a function's name alone is needed here, no address and no line")]
    NeedsFunction,
    #[error("a program is named by its whole path, which begins with `/`")]
    RelativeProgram,
    #[error("lines of a program's source are not probed")]
    ProgramLine,
    #[error("a function is called here as its file has it, and `::` is in none of those names")]
    QualifiedName,
    #[error("an `f` probe is at a function of the kernel")]
    ProgramEntry,
    #[error("`{field}` cannot be read in a program: {why}")]
    OfProgram { field: String, why: NotOfProgram },
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
    #[error("there is no register `%{name}`")]
    UnknownRegister { name: String, nearest: Nearest },
    #[error("there is no variable `{name}`")]
    UnknownVariable { name: String, nearest: Nearest, parameters: KnownNames },
    #[error("the event's own `{name}` cannot be read: {why}")]
    NoEventField { name: String, why: NoSource },
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
    #[error("memory is read by its offset in a file where the probe is in a program, and not in the kernel")]
    FileOffset,
    #[error("memory is read by its offset in a file where it is known at which offset the probe is")]
    UnknownFileOffset,
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
    #[error("a cast leads to a member, and there is no `->`")]
    CastWithoutMember,
    #[error("an offset from a symbol needs parentheses in a cast")]
    CastOfOffset,
    #[error("the member in a cast lies in the structure itself, and `->` leads out of it")]
    ArrowInCast,
    #[error("this is the address of the CPU's own variable already")]
    PerCpuTwice,

    // What the kernel's debugging information says of variables.
    #[error("no variable `{name}` is in scope here")]
    NotInScope { name: String, nearest: Nearest, variables: KnownNames },
    #[error("`{name}` {why}")]
    HiddenVariable { name: String, why: Hidden },
    #[error(
        "the type of `{0}` is described in another unit of the debugging information, and not read from there"
    )]
    ForeignVariable(String),
    #[error("`{0}` is a structure or an array, and no single value")]
    LargeVariable(String),
    #[error("`{0}` is a structure in a register, and its members are not taken apart")]
    StructureInRegister(String),
    #[error("{0}")]
    NoVariables(String),

    // What the kernel's symbols and types say.
    #[error("the kernel has no symbol `{name}`")]
    UnknownSymbol { name: String, nearest: Nearest },
    #[error("{0}")]
    NotOneSymbol(NotOne),
    #[error(
        "the kernel has no type information (CONFIG_DEBUG_INFO_BTF), so that parameters and members have no names"
    )]
    NoTypes,
    #[error("{0}")]
    NoParameters(String),
    #[error("there is no parameter {number}: `{function}` has {count}")]
    NoSuchParameter { number: u32, function: String, count: usize },
    #[error("this is no `char *` and no array of `char`, and so no string")]
    StringOfOther,
    #[error("this is no `struct path`, and leads to none")]
    PathOfOther,
    #[error("the function returns nothing")]
    ReturnsNothing,
    #[error("an argument on the stack is not known any more when the function returns")]
    StackArgumentOfReturn,
    #[error("this is no single word in a register or on the stack")]
    NotAWord,
    #[error("this is a structure in registers, whose members have no names there")]
    StructureInRegisters,
    #[error("this is no number and no pointer")]
    NotANumber,
    #[error("the kernel has no structure `{name}`")]
    UnknownStructure { name: String, nearest: Nearest },
    #[error("`{0}` begins inside a byte, and has no address")]
    InsideByte(String),
    #[error("there is no structure that could have a member `{0}`")]
    NoStructure(String),
    #[error("there is no member `{name}`")]
    UnknownMember { name: String, nearest: Nearest, members: KnownNames },
    #[error("what is before the `.` is a pointer")]
    DotOnPointer,
    #[error("what is before the `->` is a structure")]
    ArrowOnStructure,

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
    #[error("a bit field is part of 8, 16, 32 or 64 bits")]
    BadContainer,
    #[error("{width} bits above the lowest {offset} are more than the {container} that there are")]
    BitFieldTooWide { width: u64, offset: u64, container: u8 },

    // The filter.
    #[error("there is a filter already")]
    FilterTwice,
    #[error("the filter has ended before this")]
    BehindFilter,
    #[error("`{0}` cannot follow the name of a field")]
    BadFieldSuffix(String),
    #[error("the comparison lacks its operator")]
    NoOperator,
    #[error("a single `=` compares nothing")]
    SingleEqual,
    #[error("the quotation does not end")]
    OpenQuote,
    #[error("texts are equal, different or like a pattern; they have no order and no bits")]
    TextOperator,
    #[error("a pattern is a text, and `{0}` is a number")]
    NumberPattern(String),
    #[error("`.ustring` makes a text of the field, and `{0}` is none")]
    UserStringOfNumber(String),
    #[error("sets of CPUs are compared with `&`, `==` and `!=`")]
    CpusOperator,
    #[error("parentheses are nested more than {0} deep")]
    FilterTooDeep(usize),
    #[error("a filter has at most {0} comparisons")]
    TooManyComparisons(usize),
    #[error("there is no field `{name}`")]
    UnknownField { name: String, nearest: Nearest, fields: KnownNames },

    #[error("`{0}` cannot be compared with anything here")]
    NotFilterable(String),
    #[error("`{0}` is a number, and is not compared with text")]
    TextForNumber(String),
    #[error("`{name}` is none of the names that `{field}` has{}", nearest::suggestion(.nearest))]
    UnknownValue { name: String, field: String, nearest: Vec<String> },
    #[error("`{0}` is text, and is not compared with a number")]
    NumberForText(String),
    #[error("`{0}` has no sign, and is never negative")]
    NeverNegative(String),
    #[error("`{0}` is no address that a string could lie at")]
    NotAnAddress(String),

    // Calls that are to fail.
    #[error("it lacks what its caller gets: SYM=VALUE, as in vfs_read=-EIO")]
    NoReturned,
    #[error("`{0}` is none of `if`, `under`, `every`, `after`, `times` and `seed`")]
    NoClause(String),

    // The histogram.
    #[error("there is a histogram already")]
    HistTwice,
    #[error("the definition has ended before this")]
    BehindHist,
    #[error("a histogram has no `{name}`")]
    UnknownPart { name: String, nearest: Nearest },
    #[error("`{0}` is something that histograms can do in the kernel, but not here")]
    NotHere(String),
    #[error("`{0}` was said already")]
    SaidTwice(String),
    #[error("nothing is behind `{0}=`")]
    NothingBehind(String),
    #[error("a histogram needs a key")]
    NoKeys,
    #[error("there are at most {most} {what}")]
    TooMany { what: &'static str, most: usize },
    #[error("there is no modifier `.{name}` here")]
    UnknownModifier { name: String, nearest: Nearest },
    #[error("only a process ID has a process's name")]
    NotAProcess,
    #[error("a histogram has room for {least} to {most} keys")]
    BadSize { least: u64, most: u64 },
    #[error("hits cannot be counted by `{0}` here")]
    NotCountable(String),
    #[error("`{0}` is text, and stands for itself as a key")]
    ModifierOfText(String),
    #[error("`{0}` is text, and cannot be summed up")]
    SumOfText(String),
    #[error("lines can be sorted by keys, values and `hitcount`, not by `{0}`")]
    NotSortable(String),
}
