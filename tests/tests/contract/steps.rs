//! One instruction of one vCPU while all others stand still.

use probe_engine::addr::Gva;
use probe_engine::regs::{Regs, rflags};
use tests::code::{CODE, DATA, ending, mov, stack, store};
use tests::host::fit;
use tests::rig::{Rig, Running, Start};

const RAX: u8 = 0;
const RBX: u8 = 3;
const VALUE: u64 = 0x1122_3344_5566_7788;
/// `mov al, [DATA]; test al, al; jz` back
const WAIT: [u8; 11] = [0x8a, 0x04, 0x25, 0x00, 0x10, 0x02, 0x00, 0x84, 0xc0, 0x74, 0xf5];

/// A vCPU that stands still in front of this code.
fn standing(rig: Rig, others: &[Option<Start>]) -> Running {
    let starts = [&[Start::at(CODE, stack(0))], others].concat();
    let running = rig.run(&starts);
    running.freeze();
    running.write(DATA, &[1]);
    for _ in 0..2 * WAIT.len() {
        if running.step(0).rip == CODE.0 + WAIT.len() as u64 {
            return running;
        }
    }
    panic!("the vCPU does not leave its loop");
}

/// Steps over `pieces`, each of them one instruction that goes on behind itself. Gives the registers behind each.
fn step_over(running: &Running, mut at: Gva, pieces: &[&[u8]]) -> Vec<Regs> {
    let mut all = Vec::new();
    for piece in pieces {
        at = at.add(piece.len() as u64);
        let regs = running.step(0);
        assert_eq!(Gva(regs.rip), at, "behind {piece:x?}");
        assert_eq!(regs.rflags & rflags::TF, 0, "behind {piece:x?}");
        all.push(regs);
    }
    all
}

#[test]
fn each_step_is_one_instruction_and_leaves_no_flag_of_its_own() {
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let value = mov(RAX, VALUE);
    let saved = store(DATA.add(8), RBX);
    // push rax; pushfq; pop rbx; pop rcx; sti; nop; cli; (store); lea rsi, [rsi+1]
    let pieces: [&[u8]; 10] = [
        &value,
        &[0x50],
        &[0x9c],
        &[0x5b],
        &[0x59],
        &[0xfb],
        &[0x90],
        &[0xfa],
        &saved,
        &[0x48, 0x8d, 0x76, 0x01],
    ];
    rig.write(CODE, &ending(&[&WAIT, &pieces.concat()]));
    let first = CODE.add(WAIT.len() as u64);
    let probed = first.add(pieces[..9].concat().len() as u64);
    rig.arm(probed, &[7]);
    // Another one counts as long as it runs: `inc rbx; mov [DATA + 64], rbx; out 0x80, al; jmp` back. Bochs has one processor, of which
    // nobody else gets much beside a loop that does not come to the host.
    let other = CODE.add(0x800);
    let counting = [&[0x48, 0xff, 0xc3][..], &store(DATA.add(64), RBX), &[0xe6, 0x80, 0xeb, 0xf1]].concat();
    rig.write(other, &counting);
    let running = standing(rig, &[Start::at(other, stack(1))]);
    let before = running.u64(DATA.add(64));
    let regs = step_over(&running, first, &pieces);
    assert_eq!(running.u64(DATA.add(64)), before, "the other one stood still");
    assert_eq!((regs[0].rax, regs[4].rcx), (VALUE, VALUE));
    assert_eq!(regs[3].rbx & rflags::TF, 0, "what `pushf` has stored");
    assert_eq!(regs[3].rbx, regs[1].rflags);
    assert_eq!((regs[5].rflags & rflags::IF, regs[7].rflags & rflags::IF), (rflags::IF, 0));
    assert_eq!(regs[9].rsi, regs[8].rsi + 1, "the probed instruction");
    running.thaw();
    let mut running = running;
    running.until_off(1, |_| {});
    let left = running.end();
    assert_eq!(left.counts[7], 1, "the step has met the probe, and nobody else");
    assert_eq!(left.u64(DATA.add(8)), regs[3].rbx);
}

/// The device is the host's: the CPU leaves the guest in the middle of the step.
#[test]
fn a_step_over_a_port_access_is_one_as_well() {
    let Some(fit) = fit() else { return };
    let rig = Rig::new(fit);
    // out 0x80, al; nop
    let pieces: [&[u8]; 2] = [&[0xe6, 0x80], &[0x90]];
    rig.write(CODE, &ending(&[&WAIT, &pieces.concat()]));
    let running = standing(rig, &[]);
    step_over(&running, CODE.add(WAIT.len() as u64), &pieces[..1]);
    running.thaw();
    running.to_end();
}

#[test]
fn a_step_goes_where_a_branch_goes_and_past_a_stack_segment() {
    let Some(fit) = fit() else { return };
    let rig = Rig::new(fit);
    // call +2; jmp +1; ret
    let call: [u8; 8] = [0xe8, 0x02, 0x00, 0x00, 0x00, 0xeb, 0x01, 0xc3];
    // mov eax, ss; mov ss, eax; nop
    let segment: [u8; 5] = [0x8c, 0xd0, 0x8e, 0xd0, 0x90];
    rig.write(CODE, &ending(&[&WAIT, &segment, &call]));
    let first = CODE.add(WAIT.len() as u64);
    let running = standing(rig, &[]);
    step_over(&running, first, &[&segment[..2]]);
    // No trap comes between the two.
    let mut regs = running.step(0);
    if Gva(regs.rip) == first.add(4) {
        regs = running.step(0);
    }
    assert_eq!(Gva(regs.rip), first.add(5));
    let inside = running.step(0);
    assert_eq!(Gva(inside.rip), first.add(5 + 7), "the callee");
    assert_eq!(inside.rsp, regs.rsp - 8);
    let back = running.step(0);
    assert_eq!((Gva(back.rip), back.rsp), (first.add(5 + 5), regs.rsp));
    running.thaw();
    running.to_end();
}
