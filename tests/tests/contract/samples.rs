//! Samples: where a vCPU is when its timer expires, and that all time is accounted for.

use crate::marks::{BEGIN, END, Marker};
use crate::ptrace;
use std::process::Command;
use std::time::{Duration, Instant};
use tests::code::{CODE, code, ending, mov, stack};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::guest::Host;
use vmm::samples::{Sample, SampledTime};

const CLI: [u8; 1] = [0xfa];
const STI: [u8; 1] = [0xfb];
const RCX: u8 = 1;
const RDI: u8 = 7;

/// `dec rcx; jnz` back to it, from `rounds` on.
fn spin(rounds: u64) -> Vec<u8> {
    code(&[&mov(RCX, rounds), &[0x48, 0xff, 0xc9, 0x75, 0xfb]])
}

/// `dec edi; jnz` back over `body` bytes of code, which may be many.
fn again(body: usize) -> Vec<u8> {
    let back = -(body as i32 + 8);
    code(&[&[0xff, 0xcf, 0x0f, 0x85], &back.to_le_bytes()])
}

/// The periods in `time` are those of vCPUs that ran for so long at least, and for so long at most: on a busy machine threads begin
/// and end later than they are told to.
fn assert_all_told(time: SampledTime, (vcpus, frequency): (u32, u32), [least, most]: [Duration; 2]) {
    let [least, most] = [least, most].map(|ran| f64::from(frequency * vcpus) * ran.as_secs_f64());
    let sum = time.sum() as f64;
    // A period has begun for each vCPU, and another one goes on.
    let rounds = f64::from(2 * vcpus);
    assert!((least - rounds..=most + rounds).contains(&sum), "{time:?}: {least} to {most} periods");
}

/// Two loops of as many instructions, one of them with interrupts off, have as many samples.
#[test]
fn code_with_interrupts_off_is_sampled_as_any_other() {
    const FREQUENCY: u32 = 1_000;
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let half = spin(2_000_000);
    let masked = code(&[&CLI, &half, &STI]);
    let body = code(&[&masked, &half]);
    let prologue = mov(RDI, 60);
    rig.write(CODE, &ending(&[&prologue, &body, &again(body.len())]));
    rig.sample(FREQUENCY);
    let begun = Instant::now();
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    let ran = begun.elapsed();
    assert_all_told(left.time, (1, FREQUENCY), [ran / 2, ran]);
    let first = CODE.add(prologue.len() as u64);
    let masked = first..first.add(masked.len() as u64);
    let (mut in_masked, mut all) = (0, 0);
    for sample in &left.samples {
        all += u64::from(sample.periods);
        in_masked += u64::from(sample.periods) * u64::from(sample.rip.is_in(&masked));
    }
    assert_eq!(all, left.time.taken);
    assert!(left.time.idle + left.time.own + left.time.outside == 0, "{:?}", left.time);
    let share = 100.0 * in_masked as f64 / all as f64;
    println!("{share:.1} % of {all} periods, {:?}", left.time);
    // A busy machine takes its time in pieces, each from one of the two: some 1,500 samples are told on it, with a deviation of 1.3 %.
    assert!(all > 100 && (44.0..=56.0).contains(&share), "{share:.1} % of {all} periods");
}

#[test]
fn a_vcpu_that_waits_is_idle_and_one_that_stands_still_is_told_apart() {
    const FREQUENCY: u32 = 500;
    /// `cli; hlt; jmp` back
    const HALT: [u8; 4] = [0xfa, 0xf4, 0xeb, 0xfc];
    const SPIN: [u8; 2] = [0xeb, 0xfe];
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    rig.write(CODE, &HALT);
    rig.write(CODE.add(0x100), &SPIN);
    rig.sample(FREQUENCY);
    let begun = Instant::now();
    let halts = Start::at(CODE, stack(0));
    let spins = Start::at(CODE.add(0x100), stack(1));
    let mut running = rig.run(&[halts, spins, None]);
    // All of them run when they have stood still.
    running.stop();
    let (all, mut stops) = (Instant::now(), 1);
    while all.elapsed() < Duration::from_secs(2) {
        assert_eq!(running.end_within(Duration::from_millis(20)), None);
        running.stop();
        running.drain();
        stops += 1;
    }
    let least = all.elapsed();
    let left = running.end();
    assert_all_told(left.time, (3, FREQUENCY), [least, begun.elapsed()]);
    let SampledTime { taken, idle, outside, own, .. } = left.time;
    println!("{stops} stops, {:?}", left.time);
    assert!(idle > taken && taken > 0 && outside + own == 0, "{:?}", left.time);
    // The other one is in front of its `hlt` for a moment.
    let spins = |sample: &&Sample| sample.vcpu == 1 && sample.rip == CODE.add(0x100);
    let others: Vec<_> = left.samples.iter().filter(|sample| !spins(sample)).collect();
    assert!(others.len() < 5, "{others:?}");
}

/// Names the child's guest.
const CHILD: &str = "VMM_CONTRACT_SAMPLES_CHILD";

/// A sample is the return from KVM_RUN and from the timer's signal, and the question whether the vCPU waits.
#[test]
fn a_sample_makes_one_system_call_of_its_own() {
    const KVM_RUN: u64 = 0xae80;
    const KVM_GET_MP_STATE: u64 = 0x8004_ae98;
    let Some(fit) = fit() else { return };
    if std::env::var_os(CHILD).is_some() {
        return child(fit);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "samples::a_sample_makes_one_system_call_of_its_own"]);
    let traced = ptrace::trace(command.env(CHILD, "1"));
    assert_eq!(traced.code, Some(0), "{}", traced.said);
    let Some(calls) = traced.calls else { panic!("the child left no marks") };
    let count = |request| {
        let is = |call: &&ptrace::Call| call.number == libc::SYS_ioctl && call.request == request;
        calls.iter().filter(is).count()
    };
    let returns = calls.iter().filter(|call| call.number == libc::SYS_rt_sigreturn).count();
    let (runs, questions) = (count(KVM_RUN), count(KVM_GET_MP_STATE));
    assert_eq!(runs + questions + returns, calls.len(), "{calls:?}");
    assert!(questions > 5 && questions <= returns && questions <= runs, "{calls:?}");
}

fn child(fit: &'static Host) {
    const RDX: u8 = 2;
    const COM1: u64 = 0x3f8;
    /// `mov al, byte; out dx, al`
    const fn print(byte: u8) -> [u8; 3] {
        [0xb0, byte, 0xee]
    }
    let mut rig = Rig::new(fit);
    rig.console(Marker);
    rig.write(CODE, &ending(&[&mov(RDX, COM1), &print(BEGIN), &spin(200_000_000), &print(END)]));
    rig.sample(100);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert!(left.time.taken > 5, "{:?}", left.time);
}
