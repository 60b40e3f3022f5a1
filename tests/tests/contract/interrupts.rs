//! What a probe must not do to the guest's interrupts.

use tests::code::{CODE, COUNT, HANDLER, code, ending, stack};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::selftest::micro::ExceptionStack;

pub(crate) const SPURIOUS: u32 = 0x80f;
pub(crate) const SELF_IPI: u32 = 0x83f;
/// `mov ecx, IA32_APIC_BASE; rdmsr; or eax, x2APIC and global enable; wrmsr`
pub(crate) const ENABLE_X2APIC: [u8; 14] =
    [0xb9, 0x1b, 0, 0, 0, 0x0f, 0x32, 0x0d, 0x00, 0x0c, 0x00, 0x00, 0x0f, 0x30];

/// `mov ecx, msr; mov eax, value; xor edx, edx; wrmsr`
pub(crate) fn write_msr(msr: u32, value: u32) -> Vec<u8> {
    let mut code = vec![0xb9];
    code.extend(msr.to_le_bytes());
    code.push(0xb8);
    code.extend(value.to_le_bytes());
    code.extend([0x31, 0xd2, 0x0f, 0x30]);
    code
}

/// "An emulated `sti` leaves the interrupt shadow set, or `sti; hlt` loses a wake-up": an interrupt waits already,
/// and must come to the `hlt`, not before it. A guest that lost it sleeps for ever.
#[test]
fn an_interrupt_that_waits_comes_behind_the_hlt_that_follows_a_probed_sti() {
    const VECTOR: u8 = 0x30;
    const STI: [u8; 1] = [0xfb];
    const HLT: [u8; 1] = [0xf4];
    let Some(fit) = fit() else { return };
    for probed in [false, true] {
        let mut rig = Rig::new(fit);
        rig.gate(VECTOR, HANDLER, ExceptionStack::Current);
        let prologue =
            code(&[&ENABLE_X2APIC, &write_msr(SPURIOUS, 0x1ff), &write_msr(SELF_IPI, VECTOR.into())]);
        rig.write(CODE, &ending(&[&prologue, &STI, &HLT]));
        if probed {
            rig.arm(CODE.add(prologue.len() as u64), &[0]);
        }
        let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
        assert_eq!(left.counts[0], u64::from(probed));
        assert_eq!(left.u64(COUNT), 1, "the interrupt came once");
    }
}
