//! What runs before the guest's text is final: `start_kernel` and what it calls.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use probe_engine::addr::Gva;
use probe_engine::insn::decode::instructions;
use probe_engine::insn::plan::StepPlan;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::{Behind, SiteInfo, in_kernel, plan_of};
use std::collections::BTreeSet;
use std::fs;
use tests::product::{binary, kernel, run};

/// Functions that `start_kernel` calls once in every kernel, in this order.
const IN_ORDER: [&str; 7] = [
    "start_kernel",
    "setup_arch",
    "trap_init",
    "sched_init",
    "arch_cpu_finalize_init",
    "vfs_caches_init",
    "rest_init",
];

/// The functions that `start_kernel` calls, and that a probe can stand in so early.
fn callees(kernel: &Kernel) -> BTreeSet<String> {
    let range = kernel.function(kernel.symbol("start_kernel").unwrap()).unwrap();
    let calls =
        instructions(kernel.image().bytes(&range).unwrap(), range.start).filter(|insn| insn.is_call_near());
    let names = calls.filter_map(|call| {
        let at = Gva(call.near_branch_target());
        let info = in_kernel(at, kernel).ok().filter(|info| stands_early(info, kernel))?;
        let name = kernel.symbols().place(info.at).to_string();
        (kernel.symbol(&name) == Some(at)).then_some(name)
    });
    names.collect()
}

/// Whether a probe at `info` is passed by emulation, in text that the guest leaves alone.
fn stands_early(info: &SiteInfo, kernel: &Kernel) -> bool {
    match &info.ftrace {
        None => info.settled && matches!(plan_of(info, kernel), Ok(StepPlan::Emulate(_))),
        Some(Behind::Free { settled, fixup }) => *settled && !fixup,
        Some(Behind::Guarded(_)) => false,
    }
}

/// Boots a kernel with probes on all of them, with these words more.
fn what_runs_first_is_seen(words: &[&str]) {
    let Some(binary) = binary() else { return };
    let kernel = Kernel::read(&fs::read(kernel()).unwrap(), None).unwrap();
    let callees = callees(&kernel);
    let names: BTreeSet<&str> = callees.iter().map(String::as_str).chain(IN_ORDER).collect();
    let probes: Vec<String> = names.iter().map(|name| format!("--probe={name}")).collect();
    let probes = probes.iter().map(String::as_str).chain(["--cmdline=workload=open:5 loglevel=5"]);
    let run = run(&binary, &[words, &probes.collect::<Vec<_>>()].concat());
    run.assert_success();
    run.assert_clean_log();
    let hits = run.output.iter().filter(|line| line["type"] == "hit");
    let seen: Vec<&str> = hits.map(|hit| hit["probe"].as_str().unwrap()).collect();
    let in_order: Vec<_> = seen.iter().filter(|name| IN_ORDER.contains(name)).copied().collect();
    assert_eq!(in_order, IN_ORDER, "each once");
    let never: Vec<_> = names.iter().filter(|name| !seen.contains(name)).collect();
    println!("{} of {} callees of start_kernel ran; not {never:?}", names.len() - never.len(), names.len());
    assert!(names.len() > 60 && never.len() * 4 < names.len(), "{never:?}");
}

#[test]
fn what_start_kernel_calls_is_seen() {
    what_runs_first_is_seen(&[]);
}

#[test]
fn what_start_kernel_calls_is_seen_behind_the_kernels_own_decompressor() {
    what_runs_first_is_seen(&["--boot=bzimage", "--optimize=off"]);
}
