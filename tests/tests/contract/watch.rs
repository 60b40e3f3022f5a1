//! Debug registers watch memory and instructions, and the guest's own #DB stays the guest's.

use probe_engine::addr::Gva;
use probe_engine::probe::table::ProbeId;
use probe_engine::probe::watch::{Condition, Length};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tests::code::{CODE, COUNT, DATA, LAST_RIP, code, counting_handler, ending, mov, repeat, stack, store};
use tests::host::fit;
use tests::rig::{Left, Rig, Start};
use vmm::events::What;
use vmm::guest::Host;
use vmm::kvm::DebugRegister;
use vmm::probe::{Access, Hit, Probe};
use vmm::selftest::micro::ExceptionStack;
use vmm::trap::Delivery;

const RAX: u8 = 0;
const RBX: u8 = 3;
const RDI: u8 = 7;
const NOP: [u8; 1] = [0x90];

fn register(at: Gva, length: Length, condition: Condition) -> DebugRegister {
    DebugRegister { at, length, condition }
}

fn writes(at: Gva) -> DebugRegister {
    register(at, Length::Eight, Condition::Write)
}

/// `mov [at], bl`
fn store_bl(at: Gva) -> Vec<u8> {
    [&[0x88, 0x1c, 0x25][..], &(at.0 as u32).to_le_bytes()].concat()
}

/// `mov cl, [at]`
fn load_cl(at: Gva) -> Vec<u8> {
    [&[0x8a, 0x0c, 0x25][..], &(at.0 as u32).to_le_bytes()].concat()
}

/// What was recorded of accesses: where the guest was, and the values.
fn accesses(left: &Left) -> Vec<(u64, u64, u64)> {
    let access = |what| match what {
        What::Access { old, new } => (old, new),
        other => panic!("no access: {other:?}"),
    };
    left.hits.iter().map(|hit| (hit.rip.0, access(hit.what).0, access(hit.what).1)).collect()
}

/// A guest that writes to watched memory, reads it, writes its last byte, the byte behind, and all of it again.
fn watches(fit: &'static Host, length: Length, condition: Condition) {
    const FIRST: u64 = 0x1122_3344_5566_7788;
    const BYTE: u64 = 0x99;
    let end = DATA.add(length.bytes());
    let before = code(&[&mov(RAX, FIRST), &mov(RBX, BYTE)]);
    let last = end.offset(-1);
    let steps = [store(DATA, RAX), load_cl(DATA), store_bl(last), store_bl(end), store(DATA, RAX)];
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&before, &steps.concat()]));
    rig.watch(register(DATA, length, condition), 0, Probe::watch("").record());
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();

    let bits = 8 * length.bytes();
    let whole = FIRST & (u64::MAX >> (64 - bits));
    let patched = whole & !(0xff << (bits - 8)) | BYTE << (bits - 8);
    let behind = |n: usize| CODE.0 + (before.len() + steps[..=n].iter().map(Vec::len).sum::<usize>()) as u64;
    let mut expected = vec![(behind(0), 0, whole)];
    if condition == Condition::ReadWrite {
        expected.push((behind(1), whole, whole));
    }
    expected.extend([(behind(2), whole, patched), (behind(4), patched, whole)]);
    assert_eq!(accesses(&left), expected, "{length:?} {condition:?}");
    assert_eq!(left.counts[0], expected.len() as u64);
}

#[test]
fn each_length_is_watched_for_writes_and_for_reads() {
    let Some(fit) = fit() else { return };
    for length in [Length::One, Length::Two, Length::Four, Length::Eight] {
        watches(fit, length, Condition::Write);
        watches(fit, length, Condition::ReadWrite);
    }
}

#[test]
fn writing_the_same_value_is_a_hit() {
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&mov(RAX, 7), &store(DATA, RAX), &store(DATA, RAX)]));
    rig.watch(writes(DATA), 0, Probe::watch("").record());
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    let values: Vec<_> = accesses(&left).into_iter().map(|(_, old, new)| (old, new)).collect();
    assert_eq!(values, [(0, 7), (7, 7)]);
}

#[test]
fn one_instruction_hits_every_watch_that_the_cpu_names() {
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&mov(RAX, 0x1122_3344_5566_7788), &store(DATA, RAX)]));
    let all = [
        register(DATA, Length::One, Condition::Write),
        register(DATA.add(4), Length::Four, Condition::Write),
        register(DATA, Length::Eight, Condition::ReadWrite),
    ];
    for (id, register) in (0..).zip(all) {
        rig.watch(register, id, Probe::watch("").record());
    }
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    let rip = CODE.0 + (mov(RAX, 0).len() + store(DATA, RAX).len()) as u64;
    let all = [(rip, 0, 0x88), (rip, 0, 0x1122_3344), (rip, 0, 0x1122_3344_5566_7788)];
    // QEMU's processor stops at the first of them, and DR6 names no other (`cpu_check_watchpoint`).
    let named = match fit.delivery {
        Delivery::Intercepted => 3,
        Delivery::Reflected => 1,
    };
    assert_eq!(accesses(&left), all[..named]);
    assert_eq!(left.hits.iter().map(|hit| hit.probe.0).collect::<Vec<_>>(), [0, 1, 2][..named]);
    assert_eq!(left.counts[..3].iter().sum::<u64>(), named as u64);
}

#[test]
fn every_vcpu_watches() {
    const PASSES: u64 = 300;
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let body = store(DATA, RDI);
    rig.write(CODE, &ending(&[&mov(RDI, PASSES), &body, &repeat(body.len())]));
    rig.watch(writes(DATA), 0, Probe::watch("").record());
    // A probe in between: both ways to a hit at once.
    rig.arm(CODE.add((mov(RDI, 0).len() + body.len()) as u64), &[1]);
    let mut running = rig.run(&[Start::at(CODE, stack(0)), Start::at(CODE, stack(1))]);
    running.until_off(2, |running| {
        running.stop();
    });
    let left = running.end();
    assert_eq!(left.counts[..2], [2 * PASSES, 2 * PASSES]);
    for vcpu in 0..2 {
        let of =
            |probe| left.hits.iter().filter(|h| h.vcpu == vcpu && h.probe == ProbeId(probe)).count() as u64;
        assert_eq!((of(0), of(1)), (PASSES, PASSES), "cpu {vcpu}");
    }
}

#[test]
fn an_execution_is_a_hit_before_each_pass_also_where_a_probe_stands() {
    const PASSES: u64 = 200;
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let body = code(&[&NOP, &NOP]);
    rig.write(CODE, &ending(&[&mov(RDI, PASSES), &body, &repeat(body.len())]));
    let first = CODE.add(mov(RDI, 0).len() as u64);
    let second = first.add(1);
    rig.watch(DebugRegister::execution(first), 0, Probe::watch("").record());
    rig.watch(DebugRegister::execution(second), 1, Probe::watch("").record());
    rig.arm(second, &[2]);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!(left.counts[..3], [PASSES; 3]);
    for (pass, hits) in (0..PASSES).zip(left.hits.chunks(3)) {
        let seen: Vec<_> = hits.iter().map(|h| (h.probe.0, h.rip, h.argument(0))).collect();
        let rdi = Some(PASSES - pass);
        assert_eq!(seen, [(0, first, rdi), (1, second, rdi), (2, second, rdi)]);
    }
}

#[test]
fn a_handler_sees_the_values_and_changes_registers() {
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&mov(RAX, 5), &store(DATA, RAX), &store(DATA.add(16), RBX)]));
    let seen = Arc::new(AtomicU64::new(0));
    let sees = seen.clone();
    let watch = Probe::watch("").handler(move |hit: &mut Hit| {
        assert_eq!((hit.at, hit.access()), (DATA, Some(Access { old: 0, new: 5 })));
        hit.regs.rbx = 0x77;
        sees.fetch_add(1, Ordering::Relaxed);
    });
    rig.watch(writes(DATA), 0, watch);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!((seen.load(Ordering::Relaxed), left.u64(DATA.add(16))), (1, 0x77));
    assert!(left.hits.is_empty(), "it was not to be recorded");
}

/// A handler for #DB that also collects what DR6 says.
const DEBUG_HANDLER: Gva = Gva(0x1_9000);
const DR6_SEEN: Gva = Gva(0x2_0200);

pub(crate) fn on_debug_exception(rig: &Rig) {
    /// `push rax; mov rax, dr6; or [DR6_SEEN], rax; xor eax, eax; mov dr6, rax; pop rax`
    const COLLECT_DR6: [u8; 18] = [
        0x50, 0x0f, 0x21, 0xf0, 0x48, 0x09, 0x04, 0x25, 0x00, 0x02, 0x02, 0x00, 0x31, 0xc0, 0x0f, 0x23, 0xf0,
        0x58,
    ];
    rig.write(DEBUG_HANDLER, &code(&[&COLLECT_DR6, &counting_handler()]));
    rig.gate(1, DEBUG_HANDLER, ExceptionStack::Current);
}

#[test]
fn the_guests_single_steps_are_the_guests() {
    /// `pushfq; or qword [rsp], 0x100; popfq`
    const SET_TF: [u8; 10] = [0x9c, 0x48, 0x81, 0x0c, 0x24, 0x00, 0x01, 0x00, 0x00, 0x9d];
    /// `pushfq; and qword [rsp], ~0x100; popfq`
    const CLEAR_TF: [u8; 10] = [0x9c, 0x48, 0x81, 0x24, 0x24, 0xff, 0xfe, 0xff, 0xff, 0x9d];
    const DR6_BS: u64 = 1 << 14;
    let Some(fit) = fit() else { return };
    let run = |watched: bool| {
        let mut rig = Rig::new(fit);
        on_debug_exception(&rig);
        let stepped = code(&[&NOP, &store(DATA, RAX), &NOP]);
        let end = store(DATA.add(16), RBX);
        rig.write(CODE, &ending(&[&mov(RAX, 5), &SET_TF, &stepped, &CLEAR_TF, &end]));
        if watched {
            // Where the steps need no exit otherwise: the registers that it changes go with an exception.
            let watch = Probe::watch("").record().handler(|hit: &mut Hit| hit.regs.rbx = 0x77);
            rig.watch(writes(DATA), 0, watch);
        }
        rig.run(&[Start::at(CODE, stack(0))]).to_end()
    };
    let (alone, watched) = (run(false), run(true));
    assert_eq!(alone.u64(COUNT), 6, "each instruction behind the one that sets TF");
    assert_eq!((watched.u64(COUNT), watched.u64(LAST_RIP)), (alone.u64(COUNT), alone.u64(LAST_RIP)));
    for left in [&alone, &watched] {
        assert_eq!(left.u64(DR6_SEEN) & (DR6_BS | 0xf), DR6_BS, "the guest's debug registers are not in use");
    }
    assert_eq!(watched.counts[0], 1);
    assert_eq!(watched.u64(DATA.add(16)), 0x77);
}

#[test]
fn the_guests_icebp_is_the_guests() {
    const ICEBP: [u8; 1] = [0xf1];
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    on_debug_exception(&rig);
    let before = code(&[&mov(RAX, 5), &NOP, &ICEBP]);
    rig.write(CODE, &ending(&[&before, &NOP, &store(DATA, RAX)]));
    rig.watch(writes(DATA), 0, Probe::watch("").record());
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!((left.u64(COUNT), left.u64(LAST_RIP)), (1, CODE.0 + before.len() as u64));
    assert_eq!(left.u64(DR6_SEEN) & 0xf, 0);
    assert_eq!(left.counts[0], 1);
}
