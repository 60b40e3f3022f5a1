//! Who is called at ftrace's places, at kprobes and at tracepoints.

mod kprobes;
mod tracepoints;
mod tracers;

use super::code::{Code, Owner};
use super::finding::{Finding, HookKind, What};
use super::subject::Subject;
use super::walk::Unreadable;
use crate::addr::Gva;
use crate::memory::PhysMemory;
pub(super) use kprobes::Overwritten;

/// What is called somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// What sort of hook.
    pub kind: HookKind,
    /// Where a kprobe stands, or the structure of a tracer or a tracepoint (run-time GVA).
    pub at: Gva,
    /// Whom it calls (run-time GVA).
    pub handler: Gva,
    /// Whose that is; nobody's if `None`.
    pub owner: Option<Owner>,
}

/// All hooks, and where kprobes have overwritten code.
pub(super) fn read<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    code: &Code,
) -> Result<(Vec<Hook>, Overwritten), Unreadable> {
    let mut hooks = Vec::new();
    let mut called = |kind, at, handler: Gva| {
        if handler.0 != 0 {
            hooks.push(Hook { kind, at, handler, owner: code.owner(handler).cloned() });
        }
    };
    let overwritten = kprobes::read(subject, code, &mut |at, handler| called(HookKind::Kprobe, at, handler))?;
    tracers::read(subject, &mut |at, handler| called(HookKind::Ftrace, at, handler))?;
    tracepoints::read(subject, &mut |at, handler| called(HookKind::Tracepoint, at, handler))?;
    Ok((hooks, overwritten))
}

/// What is wrong with a hook. Whoever is called there may change where the kernel goes on: that is for the kernel's own code, and for programs of BPF,
/// which the kernel has looked at.
pub(super) fn finding(hook: &Hook) -> Option<Finding> {
    if let Some(Owner::Kernel | Owner::Bpf) = hook.owner {
        return None;
    }
    let Hook { kind, at, handler: to, owner } = hook.clone();
    Some(Finding { at, what: What::Handler { kind, to, owner } })
}
