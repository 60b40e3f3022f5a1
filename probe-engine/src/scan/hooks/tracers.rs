//! Tracers of ftrace's: whoever is called where functions begin, and where they return.

use super::super::subject::{Subject, around};
use super::super::walk::{Unreadable, chain, chained};
use crate::addr::Gva;
use crate::memory::PhysMemory;
use std::collections::BTreeSet;

/// The kernel's own tracer that calls somebody else at once (arch/x86/kernel/ftrace.c).
const DIRECT: &str = "call_direct_funcs";
/// The kernel's own tracer of fprobes in 6.1 and 6.12 (kernel/trace/fprobe.c).
const FPROBE: [&str; 2] = ["fprobe_handler", "fprobe_kprobe_handler"];
/// Whom an fprobe calls.
const HANDLERS: [&str; 2] = ["entry_handler", "exit_handler"];
/// In 7.2 there is a table of them (the same file).
const FPROBES: &str = "fprobe_table";
/// No kernel has more lists in that table.
const MOST_LISTS: u64 = 1 << 12;
/// So many fprobes are read.
const MOST: usize = 1 << 16;
/// In 6.1 there is one tracer of calls and returns, whom these lead to (kernel/trace/fgraph.c).
const ONE_GRAPH: [&str; 2] = ["ftrace_graph_entry", "ftrace_graph_return"];
/// In 6.12 and 7.2 there is a table of them.
const GRAPHS: &str = "fgraph_array";
/// No kernel has more in that table.
const MOST_GRAPHS: u64 = 64;
/// Who stands there for nobody.
const NOBODY: [&str; 4] =
    ["ftrace_stub", "ftrace_stub_graph", "ftrace_graph_entry_stub", "ftrace_graph_ret_stub"];

/// Calls `called` with each tracer, and whom that calls.
pub(super) fn read<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    called: &mut dyn FnMut(Gva, Gva),
) -> Result<(), Unreadable> {
    const UNKNOWN: Unreadable = Unreadable::Unknown("tracers");
    let (symbol, offset) = (|name| subject.symbol(name), |member| subject.offset("ftrace_ops", member));
    if symbol("register_ftrace_function").is_none() {
        return Ok(());
    }
    let (first, end) = symbol("ftrace_ops_list").zip(symbol("ftrace_list_end")).ok_or(UNKNOWN)?;
    let (function, next) = offset("func").zip(offset("next")).ok_or(UNKNOWN)?;
    let mut tracers: BTreeSet<Gva> =
        chain(&subject.memory, first, |at| at == end || at.0 == 0, next)?.into_iter().collect();
    // Whoever takes a tracer out of the one list leaves the tracer's code, which the kernel has in another one.
    if let Some((list, node)) = symbol("ftrace_ops_trampoline_list").zip(offset("list")) {
        tracers.extend(subject.listed(list, node)?);
    }
    let fprobe = |member| subject.offset("fprobe", member);
    for tracer in tracers {
        let handler = subject.pointer(tracer.add(function))?;
        called(tracer, handler);
        let is = |names: &[&'static str]| names.iter().any(|name| symbol(name) == Some(handler));
        if is(&[DIRECT])
            && let Some(direct) = offset("direct_call")
        {
            called(tracer, subject.pointer(tracer.add(direct))?);
        }
        if is(&FPROBE)
            && let Some(inside) = fprobe("ops")
        {
            for member in HANDLERS {
                let member = fprobe(member).ok_or(UNKNOWN)?;
                called(tracer, subject.pointer(around(tracer, inside).add(member))?);
            }
        }
    }
    fprobes(subject, called)?;
    graphs(subject, called)
}

/// The same with fprobes of the table.
fn fprobes<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    called: &mut dyn FnMut(Gva, Gva),
) -> Result<(), Unreadable> {
    const UNKNOWN: Unreadable = Unreadable::Unknown("fprobes");
    let Some(table) = subject.symbol(FPROBES) else { return Ok(()) };
    // struct fprobe_hlist
    let listed = |member| subject.offset("fprobe_hlist", member).ok_or(UNKNOWN);
    let (node, probe) = (listed("hlist")?, listed("fp")?);
    let mut looked_at = 0;
    for number in 0..subject.pointers_at(table).min(MOST_LISTS) {
        for found in chained(&subject.memory, table.add(8 * number))? {
            looked_at += 1;
            if looked_at > MOST {
                return Err(Unreadable::Endless);
            }
            let fprobe = subject.pointer(around(found, node).add(probe))?;
            // One that goes has none any more.
            for member in HANDLERS.into_iter().filter(|_| fprobe.0 != 0) {
                let member = subject.offset("fprobe", member).ok_or(UNKNOWN)?;
                called(fprobe, subject.pointer(fprobe.add(member))?);
            }
        }
    }
    Ok(())
}

/// The same with those that are called where functions return as well.
fn graphs<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    called: &mut dyn FnMut(Gva, Gva),
) -> Result<(), Unreadable> {
    let symbol = |name| subject.symbol(name);
    let nobody = NOBODY.map(symbol);
    let mut called = |at, handler| {
        if !nobody.contains(&Some(handler)) {
            called(at, handler);
        }
    };
    for at in ONE_GRAPH.into_iter().filter_map(symbol) {
        called(at, subject.pointer(at)?);
    }
    let Some(table) = symbol(GRAPHS) else { return Ok(()) };
    let members = ["entryfunc", "retfunc"].map(|member| subject.offset("fgraph_ops", member));
    for number in 0..subject.pointers_at(table).min(MOST_GRAPHS) {
        let tracer = subject.pointer(table.add(8 * number))?;
        for member in members.into_iter().filter(|_| tracer.0 != 0) {
            let member = member.ok_or(Unreadable::Unknown("tracers of calls"))?;
            called(tracer, subject.pointer(tracer.add(member))?);
        }
    }
    Ok(())
}
