//! What a file of rules says, as data: the part of Tetragon's `TracingPolicy` that is taken, each value with its place.

use probe_engine::lang::ast::{Span, Spanned};
use probe_engine::request::Repeats;

/// One document: a rule.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    pub(super) name: Spanned<String>,
    /// What it is for.
    pub(super) description: Option<String>,
    /// What it does not see.
    pub(super) unseen: Option<String>,
    pub(super) hooks: Vec<Hook>,
}

/// Where a policy looks, and at what.
#[derive(Debug, Clone)]
pub(super) struct Hook {
    pub(super) at: Spanned<HookPlace>,
    /// Whether its hits are returns.
    pub(super) returns: bool,
    pub(super) arguments: Vec<Argument>,
    /// What is read that is no argument.
    pub(super) data: Vec<Argument>,
    pub(super) return_argument: Option<Argument>,
    pub(super) message: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) selectors: Vec<Selector>,
    /// Whether a kernel may lack the function.
    pub(super) may_be_missing: bool,
}

/// Where a hook is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HookPlace {
    Function(String),
    /// By the name that programs know.
    SystemCall(String),
    Tracepoint {
        system: String,
        event: String,
    },
    /// A function of a program.
    Program {
        path: String,
        symbol: String,
    },
}

/// A value that is read.
#[derive(Debug, Clone)]
pub(super) struct Argument {
    pub(super) of: ValueSource,
    pub(super) ty: Spanned<String>,
    pub(super) label: Option<Spanned<String>>,
    /// Members on the way from there.
    pub(super) resolve: Option<Spanned<String>>,
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueSource {
    /// An argument, from 0 on.
    Argument(u32),
    /// The task that runs.
    Task,
    /// What the function returns.
    Returned,
}

/// Which hits count, and what is made of them. All filters of a selector have to match.
#[derive(Debug, Clone)]
pub(super) struct Selector {
    pub(super) span: Span,
    pub(super) arguments: Vec<Comparison>,
    pub(super) data: Vec<Comparison>,
    pub(super) returned: Vec<Comparison>,
    pub(super) pids: Vec<Comparison>,
    pub(super) binaries: Vec<Comparison>,
    pub(super) actions: Actions,
}

/// A filter. One of its values has to match.
#[derive(Debug, Clone)]
pub(super) struct Comparison {
    /// Of which argument; of what a function returns, and of a process, there is one.
    pub(super) of: Spanned<u32>,
    pub(super) operator: Spanned<String>,
    pub(super) values: Vec<Spanned<String>>,
}

/// What is made of a hit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Actions {
    /// Whether it is counted and not told.
    pub(super) is_silent: bool,
    /// Which repeated ones are.
    pub(super) repeats: Option<Repeats>,
    /// What the caller gets instead of a call.
    pub(super) denied: Option<Spanned<i32>>,
    /// Whether it ends the guest.
    pub(super) stops: Option<Span>,
}

impl Actions {
    /// Whether the same is made of hits.
    pub(super) fn do_as(&self, other: &Self) -> bool {
        let of = |own: &Self| {
            (own.is_silent, own.repeats, own.denied.as_ref().map(|said| said.value), own.stops.is_some())
        };
        of(self) == of(other)
    }
}
