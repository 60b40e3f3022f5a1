//! What can be wrong with a definition as a whole.

use crate::lang;
use crate::lang::ast::Span;
use crate::linux::debug_info::DebugInfoError;
use crate::linux::injectable::NotInjectable;
use crate::linux::nearest::suggestion;
use crate::linux::tracepoints::NoTracepoints;
use crate::linux::uprobes::NoUprobes;
use crate::probe::resolve::ResolveError;
use crate::probe::spec::SpecError;
use std::error::Error;

/// The system of events that the kernel makes of system calls.
pub(super) const SYSTEM_CALL_EVENTS: &str = "syscalls";

/// A place at which there can be no such probe.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It is no place.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The kernel has no such place, or none that can be probed.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// It is a line, and the kernel's debugging information cannot be read.
    #[error(transparent)]
    DebugInfo(#[from] DebugInfoError),
    /// Returns are wanted of what is no function's entry.
    #[error("`{0}` is no function's entry: only functions return")]
    NotAnEntry(String),
    /// Its calls are to fail, and cannot, or not so.
    #[error(transparent)]
    Injection(#[from] NotInjectable),
    /// It is a tracepoint, and none of this kernel can be probed.
    #[error(transparent)]
    NoTracepoints(#[from] NoTracepoints),
    /// It is in a program, and this kernel has no probes there.
    #[error(transparent)]
    NoUprobes(#[from] NoUprobes),
    /// No such tracepoint.
    #[error("the kernel has no tracepoint `{written}`{}", suggestion(.nearest))]
    UnknownTracepoint {
        /// What was asked for.
        written: String,
        /// Those that are called nearly so.
        nearest: Vec<String>,
    },
    /// It is an event that the guest makes of system calls, and no tracepoint.
    #[error(
        "`{SYSTEM_CALL_EVENTS}:{0}` is an event that the kernel makes of raw_{SYSTEM_CALL_EVENTS}:{1}: write `{2}`"
    )]
    SystemCallEvent(String, &'static str, String),
    /// No tracepoint is called so.
    #[error("no tracepoint matches `{0}`; those of modules have no patterns")]
    NoTracepointMatches(String),
    /// Calls are to fail below those of other than one function.
    #[error("calls fail below those of one function, and these are {0}")]
    SeveralAbove(usize),
}

/// A definition that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionError {
    /// The text of a plain place is wrong: it has no parts that could be marked.
    #[error(transparent)]
    Plain(Box<PlaceError>),
    /// The text is not understood, or does not fit the kernel.
    #[error(transparent)]
    Text(#[from] lang::Error),
    /// There can be no probe at the place that a definition has.
    #[error("{}", chain(.error))]
    Misplaced {
        /// The place in the text, in bytes.
        span: Span,
        /// What to write instead, where that can be said.
        hint: Option<String>,
        /// Why.
        error: Box<PlaceError>,
    },
    /// The [filter of all](super::Definitions::filter) does not fit what is read at this place.
    #[error("at {at}: the filter of all is not understood: {error}")]
    Filter {
        /// The place.
        at: String,
        /// What is wrong with the filter, in its own text.
        error: lang::Error,
    },
    /// Two histograms have one name.
    #[error("the histogram `{name}` is `{first}` already, and not `{second}`")]
    Histogram {
        /// The name.
        name: String,
        /// What the first one counts.
        first: String,
        /// What the second one counts.
        second: String,
    },
    /// `-:NAME` of what is not there.
    #[error("no event of that name was defined before: `{0}`")]
    Undefined(String),
}

/// An error with all of its causes, in one sentence.
pub(super) fn chain(error: &dyn Error) -> String {
    let (mut sentence, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        sentence = format!("{sentence}: {error}");
        cause = error.source();
    }
    sentence
}
