//! The library's promises about probes, on unmodified Debian kernels: each test boots a guest in its own process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests are test code: what goes wrong here is a failed test"
)]

mod branches;
mod changes;
mod commands;
mod control;
mod detoured_returns;
mod detours;
mod errands;
mod faults;
mod fire;
mod groups;
mod guard;
mod handlers;
mod holds;
mod injections;
mod reads;
mod realtime;
mod regions;
mod returned_reads;
mod returns;
mod scale;
mod stacks;
mod storm;
mod text;
mod tracepoints;
mod tracer;
mod uprobes;
mod watches;

use probe_engine::addr::Gva;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tests::kernel::name_of;
use tests::linux_rig::{Console, Ended, Instruction, Subject};
use vmm::probe::Hit;
use vmm::session::{Handle, Missed, ProbeReport, ProbeState};

/// Number, hits and whether it stands, of all probes.
fn listed(handle: &Handle) -> Vec<(u32, u64, bool)> {
    let line = |p: &ProbeReport| {
        (p.id.0, p.hits, matches!(p.state, ProbeState::Armed(_) | ProbeState::Optimized(_)))
    };
    handle.list().unwrap().iter().map(line).collect()
}

/// What is listed when the guest has printed `words` for the `count`th time. It waits at a gate between the times.
fn after(handle: &Handle, console: &Console, words: &str, count: usize) -> Vec<(u32, u64, bool)> {
    if count > 1 {
        console.open_gate();
    }
    console.wait_for(words, count);
    listed(handle)
}

/// A step in which each CPU calls `getppid` until a test opens the gate: for as long as the test takes, however fast either is.
const UNTIL_GATE: &str = "beside:/gate";

/// What a probe that stays has seen of the calls of [`UNTIL_GATE`] while others came and went, which `states` tells of.
fn assert_saw_all_calls(ended: &Ended, states: &impl Debug) {
    let calls = ended.workload("beside", "calls");
    println!("{calls} calls, {states:?}, {:?}", ended.report.unregistered);
    // The shell asks for its parent, too.
    assert_eq!(ended.probe(0).hits, calls + 1, "the one that stayed has seen all");
    assert_eq!(ended.probe(0).missed, Missed::default());
}

/// `exits` says how many there were in all with so many hits of a detour, where this KVM counts them.
fn assert_hits_take_no_exits(what: &str, exits: impl Fn(u64) -> Option<u64>) {
    let Some(more) = exits_of_40_000(what, exits) else { return };
    // Traps would have taken 40,000 more at least. The timer ticks a little longer, and on a machine where others run a
    // boot can take some thousand ticks more than the next. A ring holds them all, so none is dropped however late the
    // host reads.
    assert!(more < 20_000, "{more}");
}

/// How many more exits 40,000 more hits take. What interrupts the guest meanwhile is among them.
fn exits_of_40_000(what: &str, exits: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let (Some(few), Some(many)) = (exits(1000), exits(41_000)) else {
        assert!(std::env::var_os("VMM_CONTRACT_REQUIRED").is_none(), "the emulated host's KVM counts exits");
        println!("skipped: this KVM does not count exits");
        return None;
    };
    println!("1,000 {what}: {few} exits; 41,000 {what}: {many} exits");
    Some(many.saturating_sub(few))
}

/// What handlers note down.
struct Notes<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Notes<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Notes<T> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn add(&self, note: T) {
        self.0.lock().unwrap().push(note);
    }

    fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// The string store of `do_filp_open`, which runs from a copy. Where the compiler has made none, prints why a test of that
/// is skipped.
fn string_store(subject: &Subject) -> Option<Instruction> {
    let function = name_of("do_filp_open");
    let found = subject.instructions(function).into_iter().find(|i| i.is_copied && i.text.contains("stos"));
    if found.is_none() {
        println!("skipped: {function} of this kernel has no string store");
    }
    found
}

/// At the entry of `do_filp_open(dfd, filename, flags)`: the path. `struct filename` begins with its address.
fn path_at_filp_open(hit: &Hit<'_>) -> Vec<u8> {
    let name = hit.memory.read_u64(Gva(hit.regs.rsi)).unwrap();
    hit.string(Gva(name), 256).unwrap()
}

/// At the entry of `do_sys_openat2(dfd, filename, how)`: the path, where it is mapped already.
fn path_at_openat(hit: &Hit<'_>) -> Option<Vec<u8>> {
    hit.string(Gva(hit.regs.rsi), 256).ok()
}
