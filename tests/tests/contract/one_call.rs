//! A hit is one KVM_RUN and no other system call.
//!
//! Shown by a filter on the vCPU's thread that kills the process at any other system call. The guest prints a
//! byte to have it installed: the console's writer runs on that thread. So that the filter is known to be there,
//! the guest prints another byte at the end, and then one system call is made, which has to be deadly. All this
//! happens in a child process.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};
use std::io::{self, Write};
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tests::code::{CODE, code, mov, repeat, stack};
use tests::host::{Fit, fit};
use tests::rig::{Rig, Start};

const HITS: u64 = 10_000;
const CHILD: &str = "VMM_CONTRACT_ONE_CALL_CHILD";
const BEGIN: u8 = b'b';
const END: u8 = b'e';

#[test]
fn a_hit_is_one_kvm_run_and_no_other_system_call() {
    let Some(fit) = fit() else { return };
    if std::env::var_os(CHILD).is_some() {
        return child(fit);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "one_call::a_hit_is_one_kvm_run_and_no_other_system_call", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("taken under the filter: 10000 hits"), "{}\n{said}\n{errors}", output.status);
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "the filter was not there: {said}");
}

fn child(fit: &'static Fit) {
    const RDX: u8 = 2;
    const RDI: u8 = 7;
    const COM1: u64 = 0x3f8;
    const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    const SPIN: [u8; 2] = [0xeb, 0xfe];
    /// `mov al, byte; out dx, al`
    const fn print(byte: u8) -> [u8; 3] {
        [0xb0, byte, 0xee]
    }
    let flags = Arc::new(Flags::default());
    let mut rig = Rig::new(fit);
    rig.console(Console { filter: filter(), flags: flags.clone() });
    let prologue = code(&[&mov(RDX, COM1), &mov(RDI, HITS), &print(BEGIN)]);
    rig.write(CODE, &code(&[&prologue, &FTRACE_NOP, &repeat(FTRACE_NOP.len()), &print(END), &SPIN]));
    rig.arm(CODE.add(prologue.len() as u64), &[0]);
    let running = rig.run(&[Start::at(CODE, stack(0))]);
    let deadline = Instant::now() + Duration::from_secs(120);
    while !flags.ended.load(Ordering::Acquire) {
        assert!(Instant::now() < deadline, "the guest hangs");
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("taken under the filter: {} hits", running.count(0));
    flags.told.store(true, Ordering::Release);
    std::thread::sleep(Duration::from_secs(10));
    println!("nothing was killed");
    std::process::exit(0);
}

/// Allows KVM_RUN and nothing else.
fn filter() -> BpfProgram {
    const KVM_RUN: u64 = 0xae80;
    let request = SeccompCondition::new(1, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, KVM_RUN).unwrap();
    let rules = [(libc::SYS_ioctl, vec![SeccompRule::new(vec![request]).unwrap()])].into();
    let filter =
        SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, TargetArch::x86_64);
    filter.unwrap().try_into().unwrap()
}

#[derive(Default)]
struct Flags {
    ended: AtomicBool,
    told: AtomicBool,
}

/// Runs on the vCPU's thread.
struct Console {
    filter: BpfProgram,
    flags: Arc<Flags>,
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.contains(&BEGIN) {
            apply_filter(&self.filter).unwrap();
        }
        if bytes.contains(&END) {
            self.flags.ended.store(true, Ordering::Release);
            while !self.flags.told.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let _ = parent_id();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
