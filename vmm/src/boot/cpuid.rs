//! What each vCPU's CPUID instruction answers: the host's features, and the guest's own topology.

use kvm_bindings::{CpuId, kvm_cpuid_entry2};

/// CPUID.1:ECX bit 31: without it a guest on an emulated host never looks for kvmclock.
const HYPERVISOR: u32 = 1 << 31;
const TSC_DEADLINE: u32 = 1 << 24;
const HTT: u32 = 1 << 28;

/// Virtualization of Intel (leaf 1, ECX) and AMD (leaf 0x80000001, ECX). A guest of the guest would run where our probes
/// have other text below them, and its breakpoints would come to us as the guest's own.
const VMX: u32 = 1 << 5;
const SVM: u32 = 1 << 2;
/// The features of SVM.
const SVM_FEATURES: u32 = 0x8000_000a;

/// Performance counters: how they are reported (leaf 1, ECX), AMD's (leaf 0x80000001, ECX), and the leaves that are about
/// nothing else. A counter that overflows raises an NMI, in a detour as well as anywhere.
const PDCM: u32 = 1 << 15;
const AMD_COUNTERS: u32 = 1 << 23 | 1 << 24 | 1 << 28;
const COUNTERS: [u32; 3] = [0xa, 0x1c, 0x8000_0022];

/// Event delivery by FRED (leaf 7.1, EAX): an exception that we give back or raise would need FRED's event data, and an
/// IDT is where the trap path looks for the guest's handler.
const FRED: u32 = 1 << 17;

/// KVM's paravirtual features (Documentation/virt/kvm/x86/cpuid.rst).
const KVM_FEATURES: u32 = 0x4000_0001;
/// A guest ends an interrupt without an exit.
const KVM_FEATURE_PV_EOI: u32 = 1 << 6;
/// A guest does not wait for a vCPU that is not in KVM_RUN when it flushes translations: that vCPU is ours then, and may
/// be about to access a page on the guest's behalf that the guest believes unreachable.
const KVM_FEATURE_PV_TLB_FLUSH: u32 = 1 << 9;

/// Whether the CPU under this program is QEMU's TCG.
///
/// TCG can deliver an interrupt a second time that KVM has injected, with interrupts disabled, which no kernel
/// survives. By all that the guests' oopses show, VMRUN leaves the vector behind as a pending exception until the
/// next exit or exception, and a request to leave the execution loop that comes meanwhile delivers it. A guest that
/// ends its interrupts with an exit closes that window soon, so there it must not have the paravirtual way.
#[must_use]
pub fn on_emulated_cpu() -> bool {
    const HYPERVISOR_LEAF: u32 = 0x4000_0000;
    let leaf = std::arch::x86_64::__cpuid(HYPERVISOR_LEAF);
    [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).concat() == b"TCGTCGTCGTCG"
}

/// The host's `supported` leaves as vCPU `id` of `cpus` sees them: one socket of single-threaded cores
/// (Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E).
pub(crate) fn for_vcpu(supported: &CpuId, id: u8, cpus: u8, on_emulated_cpu: bool) -> CpuId {
    let mut cpuid = supported.clone();
    let cores = u32::from(cpus);
    let shift = cores.next_power_of_two().trailing_zeros();
    for leaf in cpuid.as_mut_slice() {
        match leaf.function {
            0x1 => {
                leaf.ecx = (leaf.ecx | HYPERVISOR | TSC_DEADLINE) & !(VMX | PDCM);
                leaf.ebx = (leaf.ebx & 0xffff) | cores << 16 | u32::from(id) << 24;
                leaf.edx = if cpus > 1 { leaf.edx | HTT } else { leaf.edx & !HTT };
            }
            // Cache topology: cores of the package in bits 31:26; each cache is one core's own.
            0x4 if leaf.eax & 0x1f != 0 => {
                leaf.eax = (leaf.eax & 0x3fff) | ((1 << shift) - 1) << 26;
            }
            0x7 if leaf.index == 1 => leaf.eax &= !FRED,
            0x8000_0001 => leaf.ecx &= !(SVM | AMD_COUNTERS),
            SVM_FEATURES => clear(leaf),
            counters if COUNTERS.contains(&counters) => clear(leaf),
            0xb | 0x1f => extended_topology(leaf, shift, cores, id),
            KVM_FEATURES => {
                leaf.eax &= !KVM_FEATURE_PV_TLB_FLUSH;
                if on_emulated_cpu {
                    leaf.eax &= !KVM_FEATURE_PV_EOI;
                }
            }
            0x8000_0008 => leaf.ecx = shift << 12 | (cores - 1),
            0x8000_001e => {
                leaf.eax = u32::from(id);
                leaf.ebx = u32::from(id);
                leaf.ecx = 0;
            }
            _ => {}
        }
    }
    cpuid
}

fn clear(leaf: &mut kvm_cpuid_entry2) {
    (leaf.eax, leaf.ebx, leaf.ecx, leaf.edx) = (0, 0, 0, 0);
}

/// Leaf 0xb: level 0 is the thread of a core, level 1 the core of the package.
fn extended_topology(leaf: &mut kvm_cpuid_entry2, shift: u32, cores: u32, id: u8) {
    const THREAD: u32 = 1 << 8;
    const CORE: u32 = 2 << 8;
    (leaf.eax, leaf.ebx, leaf.ecx) = match leaf.index {
        0 => (0, 1, THREAD),
        1 => (shift, cores, CORE | 1),
        n => (0, 0, n),
    };
    leaf.edx = u32::from(id);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_vcpus_are_three_cores_of_one_package() {
        let leaf = |function, index| kvm_cpuid_entry2 { function, index, eax: 0x21, ..Default::default() };
        let supported =
            CpuId::from_entries(&[leaf(1, 0), leaf(4, 0), leaf(0xb, 0), leaf(0xb, 1), leaf(0x8000_0008, 0)])
                .unwrap();
        let guest = for_vcpu(&supported, 2, 3, false);
        let get = |i: usize| guest.as_slice()[i];
        assert_eq!(get(0).ebx >> 16, 0x0203);
        assert_ne!(get(0).ecx & HYPERVISOR, 0);
        assert_eq!(get(1).eax >> 26, 3);
        assert_eq!((get(2).eax, get(2).ebx, get(2).edx), (0, 1, 2));
        assert_eq!((get(3).eax, get(3).ebx, get(3).edx), (2, 3, 2));
        assert_eq!(get(4).ecx, 0x2002);
    }

    #[test]
    fn a_guest_has_no_guests_no_counters_and_no_fred() {
        let all = |function, index| kvm_cpuid_entry2 {
            function,
            index,
            eax: u32::MAX,
            ebx: u32::MAX,
            ecx: u32::MAX,
            edx: u32::MAX,
            ..Default::default()
        };
        let leaves = [(0x1, 0), (0x7, 0), (0x7, 1), (0xa, 0), (0x8000_0001, 0), (0x8000_000a, 0)];
        let supported = CpuId::from_entries(&leaves.map(|(function, index)| all(function, index))).unwrap();
        let guest = for_vcpu(&supported, 0, 1, false);
        let get = |i: usize| guest.as_slice()[i];
        assert_eq!(!get(0).ecx, VMX | PDCM);
        assert_eq!(get(1).eax, u32::MAX);
        assert_eq!(!get(2).eax, FRED);
        assert_eq!(!get(4).ecx, SVM | AMD_COUNTERS);
        for i in [3, 5] {
            assert_eq!((get(i).eax, get(i).ebx, get(i).ecx, get(i).edx), (0, 0, 0, 0));
        }
    }

    #[test]
    fn flushes_wait_and_an_interrupt_ends_with_an_exit_on_an_emulated_cpu() {
        let features = kvm_cpuid_entry2 { function: KVM_FEATURES, eax: u32::MAX, ..Default::default() };
        let supported = CpuId::from_entries(&[features]).unwrap();
        let eax = |emulated| for_vcpu(&supported, 0, 1, emulated).as_slice()[0].eax;
        assert_eq!(eax(false), !KVM_FEATURE_PV_TLB_FLUSH);
        assert_eq!(eax(true), !(KVM_FEATURE_PV_EOI | KVM_FEATURE_PV_TLB_FLUSH));
    }
}
