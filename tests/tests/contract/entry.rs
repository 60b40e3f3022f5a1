//! Guest states that VMX refuses to enter, and a CPU's own instructions cannot lead to, are not ours either.
//!
//! What these tests guard is only seen where the CPU checks a VM entry: natively, and in Bochs.

use crate::interrupts::{ENABLE_X2APIC, SELF_IPI, SPURIOUS, write_msr};
use crate::watch::on_debug_exception;
use probe_engine::addr::Gva;
use probe_engine::regs::rflags;
use tests::code::{CODE, COUNT, HANDLER, LAST_RIP, code, ending, mov, repeat, stack, store};
use tests::host::fit;
use tests::rig::{Left, Rig, Start};
use vmm::probe::{Hit, InstructionProbe, Probe};
use vmm::selftest::micro::ExceptionStack;

/// The five bytes that ftrace has at the beginning of a function: `nop dword [rax+rax]`
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
const STI: [u8; 1] = [0xfb];
const CLI: [u8; 1] = [0xfa];
const RAX: u8 = 0;
const RDI: u8 = 7;

/// Where a piece begins that follows `pieces`.
fn behind(pieces: &[&[u8]]) -> Gva {
    CODE.add(code(pieces).len() as u64)
}

/// "The CPU refused to enter the guest": a nop of ftrace is passed in an interrupt shadow, which is none with
/// interrupts off.
#[test]
fn a_nop_of_ftrace_is_passed_with_interrupts_off_and_on() {
    const CALLS: u64 = 200;
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let before = mov(RDI, CALLS);
    let off = behind(&[&before, &CLI]);
    let on = behind(&[&before, &CLI, &NOP, &STI, &CLI, &STI]);
    let body = code(&[&CLI, &NOP, &STI, &CLI, &STI, &NOP, &CLI]);
    rig.write(CODE, &ending(&[&before, &body, &repeat(body.len())]));
    rig.arm_nop(off, 0);
    rig.arm_nop(on, 1);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!(left.counts[..2], [CALLS, CALLS]);
}

/// The shadow of a `sti` ends with the instruction behind it, whoever executes that one.
#[test]
fn an_interrupt_finds_no_room_between_a_sti_and_a_probed_cli() {
    const VECTOR: u8 = 0x30;
    let Some(fit) = fit() else { return };
    let run = |probed: bool| {
        let mut rig = Rig::new(fit);
        rig.gate(VECTOR, HANDLER, ExceptionStack::Current);
        let ipi = [ENABLE_X2APIC.to_vec(), write_msr(SPURIOUS, 0x1ff), write_msr(SELF_IPI, VECTOR.into())];
        let before = code(&[&ipi.concat(), &STI]);
        rig.write(CODE, &ending(&[&before, &CLI, &NOP, &NOP]));
        if probed {
            rig.arm(behind(&[&before]), &[0]);
        }
        rig.run(&[Start::at(CODE, stack(0))]).to_end()
    };
    let left = run(false);
    assert_eq!(left.u64(COUNT), 0, "without a probe");
    let left = run(true);
    assert_eq!((left.counts[0], left.u64(COUNT)), (1, 0), "with one");
}

/// The guest's own steps over instructions that the host executes, also where these begin an interrupt shadow.
#[test]
fn the_guest_steps_over_probed_instructions_as_over_others() {
    /// `pushfq; or qword [rsp], 0x100; popfq`
    const SET_TF: [u8; 10] = [0x9c, 0x48, 0x81, 0x0c, 0x24, 0x00, 0x01, 0x00, 0x00, 0x9d];
    /// `pushfq; and qword [rsp], ~0x100; popfq`
    const CLEAR_TF: [u8; 10] = [0x9c, 0x48, 0x81, 0x24, 0x24, 0xff, 0xfe, 0xff, 0xff, 0x9d];
    const PUSH_POP: [&[u8]; 2] = [&[0x50], &[0x58]];
    let Some(fit) = fit() else { return };
    let stepped: [&[u8]; 7] = [&NOP, &STI, &NOP, &CLI, PUSH_POP[0], PUSH_POP[1], &STI];
    let before = code(&[&mov(RAX, 5), &SET_TF]);
    let run = |probed: bool| {
        let mut rig = Rig::new(fit);
        on_debug_exception(&rig);
        rig.write(CODE, &ending(&[&before, &code(&stepped), &CLEAR_TF, &CLI]));
        let mut at = behind(&[&before]);
        for (id, instruction) in (0..).zip(stepped) {
            if probed && instruction == NOP {
                rig.arm_nop(at, id);
            } else if probed {
                rig.arm(at, &[id]);
            }
            at = at.add(instruction.len() as u64);
        }
        rig.run(&[Start::at(CODE, stack(0))]).to_end()
    };
    let (alone, probed) = (run(false), run(true));
    assert_eq!(alone.u64(COUNT), stepped.len() as u64 + 3, "each instruction behind the one that sets TF");
    assert_eq!((probed.u64(COUNT), probed.u64(LAST_RIP)), (alone.u64(COUNT), alone.u64(LAST_RIP)));
    assert_eq!(probed.counts[..stepped.len()], [1; 7]);
}

/// `popf` drops what a CPU does not hold; so do handlers.
#[test]
fn flags_that_a_handler_makes_up_do_no_harm() {
    /// `pushfq; pop rax`
    const LOAD_FLAGS: [u8; 2] = [0x9c, 0x58];
    const SEEN: Gva = Gva(0x2_0300);
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&NOP, &LOAD_FLAGS, &store(SEEN, RAX)]));
    let made_up = !(rflags::TF | rflags::IF | rflags::NT | rflags::AC);
    let probe = Probe::at("").pre(move |hit: &mut Hit| hit.regs.rflags = made_up);
    rig.arm_probes(CODE, vec![probe.into()]);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    let real = rflags::CF | rflags::ZF | rflags::SF | rflags::OF | rflags::IOPL | 2;
    assert_eq!(left.u64(SEEN) & (real | 1 << 15 | 1 << 5 | 1 << 3 | rflags::VM), real);
    assert_eq!(left.u64(SEEN) >> 22, 0);
}

/// A shadow needs interrupts that are on, and a handler may switch them off.
#[test]
fn a_handler_may_switch_interrupts_off_behind_a_sti() {
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&STI, &NOP, &NOP]));
    let off = Probe::at("").pre(|hit: &mut Hit| hit.regs.rflags &= !rflags::IF);
    rig.arm_probes(CODE.add(1), vec![off.into()]);
    rig.run(&[Start::at(CODE, stack(0))]).to_end();
}

/// Runs a guest that is sent to an address where no code can be; it ends in its handler for #GP.
fn sent_astray(before: &[u8], instruction: &[u8], probe: InstructionProbe) -> Option<Left> {
    const GENERAL_PROTECTION: u8 = 13;
    const AT: Gva = Gva(0x1_9000);
    let mut rig = Rig::new(fit()?);
    // pop rax, twice: the error code and RIP
    let handler = code(&[&[0x58], &store(CODE_SEEN, RAX), &[0x58], &store(RIP_SEEN, RAX)]);
    rig.write(AT, &ending(&[&handler]));
    rig.gate(GENERAL_PROTECTION, AT, ExceptionStack::Own);
    rig.write(CODE, &ending(&[before, instruction]));
    rig.arm_probes(behind(&[before]), vec![probe.into()]);
    Some(rig.run(&[Start::at(CODE, stack(0))]).to_end())
}

const CODE_SEEN: Gva = Gva(0x2_0308);
const RIP_SEEN: Gva = Gva(0x2_0310);
/// No address, with 4 levels of page tables or with 5.
const NOWHERE: u64 = 0x8000_0000_0000_0000;

#[test]
fn a_guest_that_is_sent_where_no_code_can_be_gets_its_general_protection_fault() {
    let redirect = || Probe::at("").pre(|hit: &mut Hit| hit.redirect(Gva(NOWHERE)));
    let Some(left) = sent_astray(&[], &NOP, redirect()) else { return };
    assert_eq!((left.u64(CODE_SEEN), left.u64(RIP_SEEN)), (0, CODE.0));
    // The return address is what the guest has on its stack: `mov rax, NOWHERE; push rax`
    let before = code(&[&mov(RAX, NOWHERE), &[0x50]]);
    let skip = Probe::at("").pre(|hit: &mut Hit| hit.skip_function(0).unwrap());
    let left = sent_astray(&before, &NOP, skip).unwrap();
    assert_eq!((left.u64(CODE_SEEN), left.u64(RIP_SEEN)), (0, behind(&[&before]).0));
    let post = Probe::at("").post(|hit: &mut Hit| hit.redirect(Gva(NOWHERE)));
    let left = sent_astray(&[], &NOP, post).unwrap();
    assert_eq!((left.u64(CODE_SEEN), left.u64(RIP_SEEN)), (0, CODE.0));
}
