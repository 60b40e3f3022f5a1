//! Who is called at ftrace's places and at kprobes, and where kprobes have overwritten code.

use super::code::{Code, Owner};
use super::finding::{Finding, HookKind, What};
use super::subject::{Subject, around};
use super::walk::{Unreadable, chain, chained};
use crate::addr::Gva;
use crate::guard::judge::{JUMP, JUMP_NEAR, leads};
use crate::insn::INT3;
use crate::memory::PhysMemory;
use std::collections::BTreeMap;
use std::ops::Range;

/// KPROBE_TABLE_SIZE, kernel/kprobes.c
const BUCKETS: u64 = 64;
/// KPROBE_FLAG_OPTIMIZED, include/linux/kprobes.h
const OPTIMIZED: u32 = 4;
/// FTRACE_OPS_FL_IPMODIFY, include/linux/ftrace.h
const REDIRECTS: u64 = 1 << 13;
/// So many hooks are read.
const MOST_HOOKS: usize = 1 << 16;

/// What is called somewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// What sort of hook.
    pub kind: HookKind,
    /// Where a kprobe stands, or the tracer's `struct ftrace_ops` (run-time GVA).
    pub at: Gva,
    /// Whom it calls (run-time GVA).
    pub handler: Gva,
    /// Whose that is; nobody's if `None`.
    pub owner: Option<Owner>,
    /// Whether it changes where functions go.
    redirects: bool,
}

/// Where kprobes stand, and the jumps of those that are optimised.
#[derive(Debug, Default)]
pub(super) struct Overwritten(BTreeMap<Gva, Option<Gva>>);

impl Overwritten {
    /// The bytes that a kprobe has overwritten around `at`.
    pub(super) fn around(&self, at: Gva) -> Option<Range<Gva>> {
        let (start, jump) = self.0.range(..=at).next_back()?;
        let range = *start..start.add(if jump.is_some() { JUMP as u64 } else { 1 });
        at.is_in(&range).then_some(range)
    }

    /// Whether the kprobe at `at` may have this there.
    pub(super) fn fits(&self, at: Gva, now: &[u8]) -> bool {
        match (self.0.get(&at), now) {
            (Some(_), [INT3]) => true,
            (Some(Some(slot)), jump) => leads(jump, at, &[JUMP_NEAR], |to| to == *slot),
            _ => false,
        }
    }
}

/// All hooks, and where kprobes have overwritten code.
pub(super) fn read<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    code: &Code,
) -> Result<(Vec<Hook>, Overwritten), Unreadable> {
    let mut hooks = Vec::new();
    let symbol = |name| subject.symbol(name);
    let offset = |structure, path| subject.offset(structure, path);
    let hook = |kind, at, handler, redirects| {
        let owner = code.owner(handler).cloned();
        Hook { kind, at, handler, owner, redirects }
    };
    let layout = || {
        let [node, at, siblings, before, after, flags] =
            ["hlist", "addr", "list", "pre_handler", "post_handler", "flags"]
                .map(|member| offset("kprobe", member));
        Some((symbol("kprobe_table")?, node?, at?, siblings?, [before?, after?], flags?))
    };
    if symbol("register_kprobe").is_some() && layout().is_none() {
        return Err(Unreadable::Unknown("kprobes"));
    }
    let mut overwritten = Overwritten::default();
    let mut looked_at = 0;
    if let Some((table, node, at, siblings, handlers, flags)) = layout() {
        let several = symbol("aggr_pre_handler");
        let of_returns = symbol("pre_handler_kretprobe");
        let slot = offset("optimized_kprobe", "optinsn.insn");
        let returned = offset("kretprobe", "kp").zip(offset("kretprobe", "handler"));
        for bucket in 0..BUCKETS {
            for found in chained(&subject.memory, table.add(8 * bucket))? {
                let probe = around(found, node);
                let place = subject.pointer(probe.add(at))?;
                let is_optimized = subject.memory.read_u32(probe.add(flags))? & OPTIMIZED != 0;
                let jump = slot.filter(|_| is_optimized);
                let jump = jump.map(|slot| subject.pointer(probe.add(slot))).transpose()?;
                // A slot of anybody else's is no reason for a jump.
                let slot = jump.filter(|slot| code.owner(*slot) == Some(&Owner::Kprobes));
                overwritten.0.insert(place, slot);
                let is_several = several == Some(subject.pointer(probe.add(handlers[0]))?);
                let probes = match is_several {
                    true => subject.listed(probe.add(siblings), siblings)?,
                    false => vec![probe],
                };
                looked_at += probes.len();
                if looked_at > MOST_HOOKS {
                    return Err(Unreadable::Endless);
                }
                for probe in probes {
                    for handler in handlers {
                        let mut handler = subject.pointer(probe.add(handler))?;
                        if Some(handler) == of_returns
                            && let Some((inside, own)) = returned
                        {
                            handler = subject.pointer(around(probe, inside).add(own))?;
                        }
                        if handler.0 != 0 {
                            hooks.push(hook(HookKind::Kprobe, place, handler, false));
                        }
                    }
                }
            }
        }
    }
    let tracers = || {
        let [function, next, flags] = ["func", "next", "flags"].map(|member| offset("ftrace_ops", member));
        Some((symbol("ftrace_ops_list")?, symbol("ftrace_list_end")?, function?, next?, flags?))
    };
    if symbol("register_ftrace_function").is_some() && tracers().is_none() {
        return Err(Unreadable::Unknown("tracers"));
    }
    if let Some((first, end, function, next, flags)) = tracers() {
        for tracer in chain(&subject.memory, first, |at| at == end || at.0 == 0, next)? {
            let redirects = subject.pointer(tracer.add(flags))?.0 & REDIRECTS != 0;
            let handler = subject.pointer(tracer.add(function))?;
            hooks.push(hook(HookKind::Ftrace, tracer, handler, redirects));
        }
    }
    Ok((hooks, overwritten))
}

/// What is wrong with a hook.
pub(super) fn finding(hook: &Hook) -> Option<Finding> {
    let what = match &hook.owner {
        None => What::Handler { kind: hook.kind, to: hook.handler },
        Some(Owner::Module(module)) if hook.redirects => {
            What::Redirects { by: hook.handler, module: module.clone() }
        }
        Some(_) => return None,
    };
    Some(Finding { at: hook.at, what })
}
