//! Why a probe cannot be registered.

use crate::events::MAX_PROBES;
use crate::reserved::TRAMPOLINES;
use probe_engine::detour::layout::MOST_CONSUMERS;
use probe_engine::probe::resolve::ResolveError;
use probe_engine::probe::spec::SpecError;
use probe_engine::probe::table::TRAMPOLINE_ROW;
use probe_engine::probe::watch::{WatchError, WatchSpecError};
use probe_engine::request::DefinitionError;

/// A probe cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Its place was given as text that means nothing.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Its place is not in the kernel, or cannot be probed.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A pattern, or a line of the source, of which it is not known how many probes it means.
    #[error("`{0}` means several places: resolve it, and register a probe for each")]
    Pattern(String),
    /// Returns, where an instruction is wanted.
    #[error(
        "`{0}` means the returns of a function, and the probe is of an instruction: use Probe::on_return"
    )]
    Return(String),
    /// A definition of another kind of probe than it is given to.
    #[error("`{0}` defines another kind of probe: use Probe::define")]
    Trigger(String),
    /// Its definition does not fit the kernel.
    #[error(transparent)]
    Definition(#[from] Box<DefinitionError>),
    /// The session was started with landmarks only.
    #[error("`{0}` is given as text, and the session has no kernel to look it up in")]
    NoKernel(String),
    /// Its stack cannot be told.
    #[error("`{0}` asks for its stack, and the session does not know how the kernel's stacks lie")]
    NoUnwind(String),
    /// Not at a function's entry.
    #[error("`{0}` is no function's entry: a return probe goes nowhere else")]
    NotAnEntry(String),
    /// As [`RegisterError::Spec`], of a watch.
    #[error(transparent)]
    WatchSpec(#[from] WatchSpecError),
    /// As [`RegisterError::Resolve`], of a watch.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// A place in text, where memory is wanted.
    #[error("`{0}` is a place for a probe: a watch also needs its length and what to watch for")]
    NoWatch(String),
    /// Memory, where a place in text is wanted.
    #[error("`{0}` is a place for a watch: no other probe goes there")]
    OnlyWatch(String),
    /// A one-shot probe with a handler for what follows its instruction.
    #[error(
        "`{0}`: a one-shot probe has no post and no fault handler, as its instruction runs where it stands"
    )]
    OnlyPre(String),
    /// A watch, or a one-shot probe, that is to hold tasks or to let them go on.
    #[error("`{0}`: a watch and a one-shot probe hold no task, and let none go on")]
    Unpaced(String),
    /// No probe by which a call fails, or of returns below which calls are made that do.
    #[error("`{0}`: calls fail where a function is entered, and below a call that a return probe follows")]
    Uninjected(String),
    /// So many places in programs are no more registered at a time.
    #[error("{MOST_CONSUMERS} places in programs can be probed at a time")]
    TooManyInPrograms,
    /// No debug register is free.
    #[error(
        "{0} places can be watched at a time: {reason}",
        reason = if *.0 < 4 {
            "a CPU has four debug registers, and the last one catches this host's breakpoints"
        } else {
            "a CPU has no more debug registers"
        }
    )]
    TooManyWatches(usize),
    /// So many calls cannot be followed: each return probe takes its maxactive, rounded up to whole rows, of
    /// [`TRAMPOLINES`](crate::reserved::TRAMPOLINES).
    #[error(
        "there is no room to follow so many calls: {TRAMPOLINES} at a time, and {TRAMPOLINE_ROW} for each return \
         probe at least; lower maxactive, or register fewer of them"
    )]
    NoTrampolines,
    /// See [`MAX_PROBES`].
    #[error("a session registers {MAX_PROBES} probes at most")]
    TooMany,
    /// The live text does not allow it.
    #[error("`{name}` cannot be probed: {reason}")]
    Refused {
        /// The place.
        name: String,
        /// Why.
        reason: String,
    },
}
