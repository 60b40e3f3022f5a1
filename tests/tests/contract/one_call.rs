//! A hit is one KVM_RUN and no other system call; a second KVM_RUN where a post handler waits for a copy.
//!
//! A child process runs the guest, which prints a byte before its hits and one behind them: the console's writer runs
//! on the vCPU's thread, and marks where its system calls are seen.

use crate::marks::{BEGIN, END, Marker};
use crate::ptrace::{self, Call};
use probe_engine::addr::Gva;
use probe_engine::insn::copy::Ending;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tests::code::{CODE, code, ending, mov, repeat, stack};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::guest::Host;
use vmm::probe::{Hit, InstructionProbe, Probe};

/// How many hits the child's guest makes.
const CHILD: &str = "VMM_CONTRACT_ONE_CALL_HITS";

/// How the probes are armed at a place, which their pre handlers count.
type Arm = fn(&mut Rig, Gva, &Arc<AtomicU64>);

#[test]
fn a_hit_is_one_kvm_run_and_no_other_system_call() {
    check("a_hit_is_one_kvm_run_and_no_other_system_call", 1, &FTRACE_NOP, |rig, at, _| rig.arm(at, &[0]));
}

#[test]
fn a_pre_handler_costs_no_system_call() {
    check("a_pre_handler_costs_no_system_call", 1, &FTRACE_NOP, |rig, at, handled| {
        rig.arm_probes(at, vec![counting(handled).into()]);
    });
}

#[test]
fn a_further_probe_at_the_same_place_costs_no_system_call() {
    check("a_further_probe_at_the_same_place_costs_no_system_call", 1, &FTRACE_NOP, |rig, at, handled| {
        rig.arm_probes(at, vec![counting(handled).into(), Probe::at("").record().into()]);
    });
}

#[test]
fn a_hit_that_a_copy_passes_is_one_kvm_run() {
    check("a_hit_that_a_copy_passes_is_one_kvm_run", 1, &LOAD_DS, |rig, at, handled| {
        rig.arm_copied(at, counting(handled), COPY, Ending::Jump);
    });
}

#[test]
fn a_copy_that_a_post_handler_waits_for_is_one_kvm_run_more() {
    check("a_copy_that_a_post_handler_waits_for_is_one_kvm_run_more", 2, &LOAD_DS, |rig, at, handled| {
        rig.arm_copied(at, counting(handled).post(|_| ()), COPY, Ending::Trap);
    });
}

/// A probe that records, and counts in its handler.
fn counting(handled: &Arc<AtomicU64>) -> InstructionProbe {
    let handled = handled.clone();
    let count = move |_: &mut Hit<'_>| {
        handled.fetch_add(1, Ordering::Relaxed);
    };
    Probe::at("").record().pre(count)
}

const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// `mov eax, ds`, which is not emulated.
const LOAD_DS: [u8; 2] = [0x8c, 0xd8];
/// Room for a copy.
const COPY: Gva = Gva(0x1_c000);
const KVM_RUN: Call = Call { number: libc::SYS_ioctl, request: 0xae80 };

/// Each hit of a probe that is armed in this way on `instruction` takes `runs` KVM_RUN, and nothing else. `test` is the
/// caller's name: the child runs it again.
fn check(test: &str, runs: usize, instruction: &[u8], arm: Arm) {
    let Some(fit) = fit() else { return };
    if let Ok(hits) = std::env::var(CHILD) {
        return child(fit, hits.parse().unwrap(), instruction, arm);
    }
    for hits in [1_000, 2_000] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("one_call::{test}")]);
        let traced = ptrace::trace(command.env(CHILD, hits.to_string()));
        assert_eq!(traced.code, Some(0), "{}", traced.said);
        let Some(calls) = traced.calls else { panic!("the child left no marks") };
        let other = calls.iter().find(|call| **call != KVM_RUN);
        assert_eq!(other, None);
        // The last one ends at the second mark.
        assert_eq!(calls.len(), hits * runs + 1);
    }
}

fn child(fit: &'static Host, hits: u64, instruction: &[u8], arm: Arm) {
    const RDX: u8 = 2;
    const RDI: u8 = 7;
    const COM1: u64 = 0x3f8;
    /// `mov al, byte; out dx, al`
    const fn print(byte: u8) -> [u8; 3] {
        [0xb0, byte, 0xee]
    }
    let mut rig = Rig::new(fit);
    rig.console(Marker);
    let prologue = code(&[&mov(RDX, COM1), &mov(RDI, hits), &print(BEGIN)]);
    rig.write(CODE, &ending(&[&prologue, instruction, &repeat(instruction.len()), &print(END)]));
    let handled = Arc::new(AtomicU64::new(0));
    arm(&mut rig, CODE.add(prologue.len() as u64), &handled);
    let has_handler = Arc::strong_count(&handled) > 1;
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!(left.counts[0], hits);
    assert_eq!(handled.load(Ordering::Relaxed), if has_handler { hits } else { 0 });
}
