//! A guest's state as the CPU will enter it.
//!
//! VMX checks the guest's state at every entry and refuses one that no instruction could have led to, with reason
//! 0x80000021, which ends the run (Intel SDM volume 3, VM entries, checks on the guest-state area). SVM checks less (AMD
//! APM volume 2, VMRUN, canonicalization and consistency checks), and QEMU's SVM less than that. KVM hands on most of
//! what it is given. So all that we write is here, with the check that it has to pass:
//!
//! | State | VMX | SVM | Who writes it | Why it passes |
//! |---|---|---|---|---|
//! | RFLAGS | bits 63:22, 15, 5 and 3 are 0, bit 1 is 1, VM is 0 | none | handlers, emulation, frames on the guest's stack | [`rflags`] drops what no CPU holds |
//! | RIP | canonical | none | handlers, return addresses and frames on the guest's stack | `Vcpu::go_on` raises #GP instead, as a branch does |
//! | shadow of `sti` | only with IF; none with an injected interrupt | none | emulated `sti`, nops of ftrace | [`shadow`]; we inject no interrupt |
//! | shadow of `mov ss` | not beside that of `sti` | none | nobody | [`shadow`] ends it |
//! | pending debug exceptions | BS is TF in a shadow | no such state | nobody: KVM leaves 0 at an exit | [`shadow`] leaves none with TF |
//! | activity state | active with a shadow or a #DB injected | none | `restart` | it sets active, and no event |
//! | injected exception | an error code where the vector has one, 15 bits of it; a length for #BP | vector and type fit | `raise`, `inject` | `Exception` has three vectors with codes below 0x20; KVM keeps the length of the `int3` |
//! | DR6, DR7 | DR7 bits 63:32 are 0 | the same, DR6 too | `Breakpoints`, `inject` | both are made of bits below 32 |
//! | CR0, CR3, CR4, EFER, segments, tables | many | some | `restart`; `raise` puts back what it has read, with another CR2 | the tests in Bochs start by them |
//! | MSRs, local APIC | those that hold addresses are canonical | none | the start of a machine | none of those that are checked |

use kvm_bindings::KVM_X86_SHADOW_INT_STI;
use probe_engine::regs::rflags::{AC, AF, CF, DF, ID, IF, IOPL, NT, OF, PF, RF, SF, TF, ZF};

/// What becomes of the time after `sti` or `mov ss` in which no interrupt comes (Intel SDM volume 3, 6.8.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shadow {
    /// It is as it was at the exit: the instruction there has not been executed.
    Kept,
    /// It is over: the instruction there has been passed, or the guest goes on elsewhere.
    Over,
    /// It begins: no interrupt comes before the guest has executed one more instruction.
    Begins,
}

/// `flags` without the bits that no CPU in 64-bit mode holds, as `popf` drops them. KVM sets bit 1.
pub(crate) fn rflags(flags: u64) -> u64 {
    /// Virtual interrupts, which the guest may have on if the host's CPU has them.
    const VIF_VIP: u64 = 3 << 19;
    flags & (CF | PF | AF | ZF | SF | TF | IF | DF | OF | IOPL | NT | RF | AC | VIF_VIP | ID)
}

/// The shadow as KVM takes it with which a guest with `flags` goes on, where it was `before` at the exit.
///
/// Where the guest steps through its own code, there is none: a step out of a shadow needs state that KVM does not let us
/// write, and an interrupt that comes early is nothing that code which is stepped through can rely on.
pub(super) fn shadow(wanted: Shadow, before: u8, flags: u64) -> u8 {
    const STI: u8 = KVM_X86_SHADOW_INT_STI as u8;
    match wanted {
        _ if flags & TF != 0 => 0,
        Shadow::Over => 0,
        Shadow::Kept if flags & IF == 0 => before & !STI,
        Shadow::Kept => before,
        Shadow::Begins if flags & IF == 0 => 0,
        Shadow::Begins => STI,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvm_bindings::KVM_X86_SHADOW_INT_MOV_SS;

    const STI: u8 = KVM_X86_SHADOW_INT_STI as u8;
    const MOV_SS: u8 = KVM_X86_SHADOW_INT_MOV_SS as u8;

    #[test]
    fn flags_that_no_cpu_holds_are_dropped() {
        const RESERVED: u64 = !0 << 22 | 1 << 15 | 1 << 5 | 1 << 3;
        const VM: u64 = 1 << 17;
        let flags = rflags(u64::MAX);
        assert_eq!(flags & (RESERVED | VM), 0);
        assert_eq!(flags | RESERVED | VM | 2, u64::MAX);
    }

    /// Blocking by STI needs IF, and with TF a shadow needs a pending step.
    #[test]
    fn no_shadow_is_one_that_vmx_refuses() {
        for wanted in [Shadow::Kept, Shadow::Over, Shadow::Begins] {
            for before in [0, STI, MOV_SS] {
                for flags in [0, IF, TF, IF | TF] {
                    let left = shadow(wanted, before, flags);
                    assert_ne!(left, STI | MOV_SS);
                    assert!(left & STI == 0 || flags & IF != 0, "{wanted:?} {before} {flags:#x}");
                    assert!(left == 0 || flags & TF == 0, "{wanted:?} {before} {flags:#x}");
                }
            }
        }
    }

    #[test]
    fn a_shadow_is_kept_for_what_has_not_run_and_begins_where_interrupts_are_on() {
        assert_eq!(shadow(Shadow::Kept, STI, IF), STI);
        assert_eq!(shadow(Shadow::Kept, MOV_SS, 0), MOV_SS);
        assert_eq!(shadow(Shadow::Over, STI, IF), 0);
        assert_eq!(shadow(Shadow::Begins, 0, IF), STI);
        assert_eq!(shadow(Shadow::Begins, MOV_SS, IF), STI);
    }
}
