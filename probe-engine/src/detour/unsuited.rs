//! Why a probe cannot be served by a detour, because of what it does.

/// Why a probe cannot be served by a detour.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsuited {
    /// Stacks are walked by the host.
    #[error("its hits are shown with their stacks")]
    Stack,
    /// A detour holds no task, and lets none go on.
    #[error("a hit makes a task wait, or lets one go on")]
    Pace,
    /// A detour executes the function.
    #[error("calls of the function may be failed there")]
    Inject,
    /// The guest can reach what a detour notes down.
    #[error("it guards the guest, which could change what a detour notes down")]
    Guard,
    /// A detour stays where it is.
    #[error("only its first hit counts")]
    Once,
    /// More than there are [counters](super::layout::COUNTERS).
    #[error("there are too many probes")]
    TooManyProbes,
    /// A watch.
    #[error("it is a debug register")]
    Watch,
    /// More than a detour keeps, or an array of strings, or half in memory.
    #[error("`{0}` reads memory, and {1}")]
    Memory(String, &'static str),
    /// The path of a control group, or a command line.
    #[error("`{0}` reads what only the host follows to its end")]
    OfTask(String),
    /// More than a record holds.
    #[error("it reads too many registers")]
    TooManyRegisters,
    /// With a text, or a pattern, of more bytes.
    #[error("its filter compares a string with more than a detour keeps of it")]
    LongText,
    /// A comparison of what is neither a string in memory nor the task's name, or with what no string can be.
    #[error("its filter compares strings as no detour does")]
    Text,
    /// A comparison of what is no number.
    #[error("its filter compares `{0}`, which is no number")]
    NoNumber(String),
}
