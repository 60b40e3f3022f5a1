//! A probed instruction that faults gives the guest the exception that it would have had.

use probe_engine::addr::Gva;
use tests::code::{CODE, ending, mov, stack, store};
use tests::host::fit;
use tests::rig::{Left, Rig, Start};
use vmm::guest::Host;
use vmm::selftest::micro::{ExceptionStack, SIZE};

/// Behind what is mapped.
const UNMAPPED: Gva = Gva(4 * SIZE);
const HANDLER: Gva = Gva(0x1_9000);
/// Error code, RIP, CS, RFLAGS, RSP, and CR2 of the exception.
const FRAME: Gva = Gva(0x2_3000);
const CR2: Gva = Gva(0x2_3100);

/// Runs `instruction` with RSP and RDI as given; the guest ends in its handler for `vector`.
fn fault(fit: &'static Host, vector: u8, instruction: &[u8], rsp: Gva, rdi: u64, probed: bool) -> Left {
    const RAX: u8 = 0;
    const RDI: u8 = 7;
    let prologue = mov(RDI, rdi);
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&prologue, instruction]));
    let mut handler = Vec::new();
    for n in 0..5 {
        // pop rax
        handler.push(0x58);
        handler.extend(store(FRAME.add(8 * n), RAX));
    }
    // mov rax, cr2
    handler.extend([0x0f, 0x20, 0xd0]);
    handler.extend(store(CR2, RAX));
    rig.write(HANDLER, &ending(&[&handler]));
    // The guest's stack may be what faults.
    rig.gate(vector, HANDLER, ExceptionStack::Own);
    rig.gate(3, tests::code::HANDLER, ExceptionStack::Own);
    if probed {
        rig.arm(CODE.add(prologue.len() as u64), &[0]);
    }
    rig.run(&[Start::at(CODE, rsp)]).to_end()
}

/// The same frame with and without a probe. Returns error code, RIP as an offset from the instruction, and CR2.
fn same_fault(vector: u8, instruction: &[u8], rsp: Gva, rdi: u64) -> Option<(u64, u64, u64)> {
    const FRAME_BYTES: usize = 5 * 8;
    let fit = fit()?;
    let unprobed = fault(fit, vector, instruction, rsp, rdi, false);
    let probed = fault(fit, vector, instruction, rsp, rdi, true);
    assert_eq!(probed.bytes(FRAME, FRAME_BYTES), unprobed.bytes(FRAME, FRAME_BYTES));
    assert_eq!(probed.counts[0], 1);
    let at = CODE.add(mov(0, 0).len() as u64);
    Some((probed.u64(FRAME), probed.u64(FRAME.add(8)).wrapping_sub(at.0), probed.u64(CR2)))
}

const PUSH_RBP: [u8; 1] = [0x55];
const LOAD_RDI: [u8; 3] = [0x48, 0x8b, 0x07];

#[test]
fn a_push_to_an_unmapped_stack_is_the_guests_page_fault() {
    const WRITE: u64 = 2;
    if let Some(fault) = same_fault(14, &PUSH_RBP, UNMAPPED, 0) {
        assert_eq!(fault, (WRITE, 0, UNMAPPED.0 - 8));
    }
}

#[test]
fn a_load_from_an_unmapped_page_is_the_guests_page_fault() {
    if let Some(fault) = same_fault(14, &LOAD_RDI, stack(0), UNMAPPED.0) {
        assert_eq!(fault, (0, 0, UNMAPPED.0));
    }
}

#[test]
fn a_load_from_no_address_is_the_guests_general_protection_fault() {
    const NOT_CANONICAL: u64 = 0x8000_0000_0000_0000;
    if let Some(fault) = same_fault(13, &LOAD_RDI, stack(0), NOT_CANONICAL) {
        assert_eq!(fault, (0, 0, 0));
    }
}
