//! A hit is one KVM_RUN and no other system call.
//!
//! A child process runs the guest, which prints a byte before its hits and one behind them: the console's writer runs
//! on the vCPU's thread, and marks where its system calls are seen.

use crate::ptrace::{self, Call};
use std::io::{self, Write};
use std::process::Command;
use tests::code::{CODE, code, ending, mov, repeat, stack};
use tests::host::{Fit, fit};
use tests::rig::{Rig, Start};

/// How many hits the child's guest makes.
const CHILD: &str = "VMM_CONTRACT_ONE_CALL_HITS";
const BEGIN: u8 = b'b';
const END: u8 = b'e';

#[test]
fn a_hit_is_one_kvm_run_and_no_other_system_call() {
    let Some(fit) = fit() else { return };
    if let Ok(hits) = std::env::var(CHILD) {
        return child(fit, hits.parse().unwrap());
    }
    for hits in [1_000, 2_000] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "one_call::a_hit_is_one_kvm_run_and_no_other_system_call"]);
        let traced = ptrace::trace(command.env(CHILD, hits.to_string()));
        assert_eq!(traced.code, Some(0), "{}", traced.said);
        let calls = traced.calls.expect("marks of the child");
        let other = calls.iter().find(|call| **call != KVM_RUN);
        assert_eq!(other, None);
        // One ends in each hit, and the last one at the second mark.
        assert_eq!(calls.len(), hits + 1);
    }
}

const KVM_RUN: Call = Call { number: libc::SYS_ioctl, request: 0xae80 };

fn child(fit: &'static Fit, hits: u64) {
    const RDX: u8 = 2;
    const RDI: u8 = 7;
    const COM1: u64 = 0x3f8;
    const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    /// `mov al, byte; out dx, al`
    const fn print(byte: u8) -> [u8; 3] {
        [0xb0, byte, 0xee]
    }
    let mut rig = Rig::new(fit);
    rig.console(Marker);
    let prologue = code(&[&mov(RDX, COM1), &mov(RDI, hits), &print(BEGIN)]);
    rig.write(CODE, &ending(&[&prologue, &FTRACE_NOP, &repeat(FTRACE_NOP.len()), &print(END)]));
    rig.arm(CODE.add(prologue.len() as u64), &[0]);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!(left.counts[0], hits);
}

/// Runs on the vCPU's thread.
struct Marker;

impl Write for Marker {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            match *byte {
                BEGIN => ptrace::begin(),
                END => ptrace::end(),
                other => return Err(io::Error::other(format!("the guest prints {other:#x}"))),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
