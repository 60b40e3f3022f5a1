//! The guest's own breakpoints are the guest's, whatever is probed around them.

use probe_engine::addr::Gva;
use tests::code::{CODE, COUNT, LAST_RIP, ending, stack};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::selftest::micro::{ExceptionStack, Privilege, power_off};

const NOP: [u8; 1] = [0x90];
const INT3: [u8; 1] = [0xcc];

#[test]
fn the_guests_own_int3_reaches_its_handler_once() {
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    // nop; int3; nop; int3; int3; nop
    rig.write(CODE, &ending(&[&NOP, &INT3, &NOP, &INT3, &INT3, &NOP]));
    for (probe, offset) in [(0, 0), (1, 2), (2, 5)] {
        rig.arm(CODE.add(offset), &[probe]);
    }
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!(left.u64(COUNT), 3);
    assert_eq!(left.u64(LAST_RIP), CODE.0 + 5, "behind the last one");
    assert_eq!(left.counts[..3], [1, 1, 1]);
}

#[test]
fn an_int3_of_two_bytes_is_the_guests() {
    const INT_3: [u8; 2] = [0xcd, 0x03];
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&NOP, &INT_3, &NOP]));
    rig.arm(CODE, &[0]);
    rig.arm(CODE.add(3), &[1]);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!(left.u64(COUNT), 1);
    assert_eq!(left.u64(LAST_RIP), CODE.0 + 3);
    assert_eq!(left.counts[..2], [1, 1]);
}

#[test]
fn an_int3_in_user_mode_is_the_guests() {
    /// `int 0x40`
    const SYSTEM_CALL: [u8; 2] = [0xcd, 0x40];
    const KERNEL: Gva = Gva(0x1_4000);
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    rig.write(CODE, &[&NOP[..], &INT3, &NOP, &INT3, &SYSTEM_CALL].concat());
    rig.write(KERNEL, &ending(&[&NOP]));
    rig.gate(0x40, KERNEL, ExceptionStack::Current);
    rig.arm(KERNEL, &[0]);
    let start = Start { rip: CODE, rsp: stack(0), mode: Privilege::User };
    let left = rig.run(&[Some(start)]).to_end();
    assert_eq!(left.u64(COUNT), 2);
    assert_eq!(left.u64(LAST_RIP), CODE.0 + 4);
    assert_eq!(left.counts[0], 1, "back in the kernel, probes work");
}

#[test]
fn a_breakpoint_without_probes_is_the_guests() {
    let Some(fit) = fit() else { return };
    let rig = Rig::new(fit);
    rig.write(CODE, &[&INT3[..], &power_off()].concat());
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!((left.u64(COUNT), left.hits.len()), (1, 0));
}
