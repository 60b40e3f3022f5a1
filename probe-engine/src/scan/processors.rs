//! What processors are set to: whether the kernel's protection is on, and where interrupts and system calls lead.

use super::finding::{Finding, What};
use super::interrupts::entries;
use super::subject::Subject;
use super::walk::Unreadable;
use crate::addr::{Gpa, Gva};
use crate::memory::PhysMemory;
use crate::paging::Access;
use std::ops::Range;

/// Read-only pages are that for the kernel as well (Intel SDM volume 3, 2.5).
const CR0_WP: u64 = 1 << 16;
/// Without paging a processor has not been started, or was reset.
const CR0_PG: u64 = 1 << 31;
/// Events are delivered without an interrupt table (Intel FRED, 4.2).
const CR4_FRED: u64 = 1 << 32;
/// The bits of CR4 that the kernel keeps set (arch/x86/kernel/cpu/common.c, `cr4_pinned_mask`), as far as they have names here.
const PINNED: [(u64, &str); 6] = [
    (1 << 11, "CR4.UMIP"),
    (1 << 16, "CR4.FSGSBASE"),
    (1 << 20, "CR4.SMEP"),
    (1 << 21, "CR4.SMAP"),
    (1 << 23, "CR4.CET"),
    (1 << 27, "CR4.LASS"),
];
/// What a processor is set to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessorState {
    /// RIP (GVA).
    pub rip: u64,
    /// CR0.
    pub cr0: u64,
    /// CR4.
    pub cr4: u64,
    /// Where the interrupt table is (GVA), and the offset of its last byte.
    pub interrupts: (u64, u32),
    /// Where `syscall` leads in 64-bit mode (IA32_LSTAR), in compatibility mode (IA32_CSTAR), and `sysenter` (IA32_SYSENTER_EIP), if
    /// that is known.
    pub calls: Option<[u64; 3]>,
}

impl ProcessorState {
    /// Whether it was started.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.cr0 & CR0_PG != 0
    }
}

/// What the kernel has set processors to.
struct Kernels<'a> {
    /// Its interrupt table.
    interrupts: Gpa,
    /// Where addresses lead.
    translate: &'a dyn Fn(Gva) -> Option<Gpa>,
    /// Whether it can do without that (FRED).
    has_fred: bool,
    /// The bits of CR4 that it keeps set.
    pinned: u64,
    /// Where 64-bit programs enter it.
    entry: Gva,
    /// Where others do.
    entries: &'a [Range<Gva>],
}

/// Calls `tell` with what processors are set to and the kernel does not set, and says how many are set to anything.
pub(super) fn check<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    processors: &[ProcessorState],
    tell: &mut dyn FnMut(Finding),
) -> Result<u64, Unreadable> {
    const UNKNOWN: Unreadable = Unreadable::Unknown("entries and what it sets processors to");
    let Subject { kernel, running, memory, .. } = subject;
    let map = running.map;
    let entries: Vec<_> =
        entries(kernel).into_iter().map(|own| map.gva(own.start)..map.gva(own.end)).collect();
    let pinned = subject.symbol("cr4_pinned_bits").and_then(|at| memory.read_u64(at).ok()).ok_or(UNKNOWN)?;
    let kernels = Kernels {
        interrupts: kernel.symbol("idt_table").map(|at| map.gpa(at)).ok_or(UNKNOWN)?,
        translate: &|at| memory.translate(at, Access::Read).ok(),
        has_fred: kernel.symbol("asm_fred_entrypoint_user").is_some(),
        pinned,
        entry: subject.symbol("entry_SYSCALL_64").ok_or(UNKNOWN)?,
        entries: &entries,
    };
    let mut looked_at = 0;
    for (number, state) in (0..).zip(processors) {
        if state.is_used() {
            looked_at += 1;
            kernels.faults(number, state).into_iter().for_each(&mut *tell);
        }
    }
    Ok(looked_at)
}

impl Kernels<'_> {
    fn faults(&self, processor: u32, state: &ProcessorState) -> Vec<Finding> {
        let mut found = Vec::new();
        let cleared = |bit| Finding { at: Gva(state.rip), what: What::Unprotected { processor, bit } };
        if state.cr0 & CR0_WP == 0 {
            found.push(cleared("CR0.WP"));
        }
        let lost = PINNED.iter().filter(|(bit, _)| self.pinned & bit & !state.cr4 != 0);
        found.extend(lost.map(|(_, name)| cleared(name)));
        let (table, last) = state.interrupts;
        // One without any gates is what a kernel has that resets the machine.
        let is_used = last != 0 && !(self.has_fred && state.cr4 & CR4_FRED != 0);
        if is_used && (self.translate)(Gva(table)) != Some(self.interrupts) {
            found.push(Finding { at: Gva(table), what: What::InterruptTable { processor } });
        }
        if let Some([long, compatible, fast]) = state.calls.map(|calls| calls.map(Gva)) {
            // An AMD processor has no `sysenter` in 64-bit mode, and keeps half of where it would lead.
            let is_half =
                |own: &Range<Gva>| (own.start.0 as u32..own.end.0 as u32).contains(&(fast.0 as u32));
            let is_entry = |to: Gva| self.entries.iter().any(|own| to.is_in(own));
            let is_fast = if fast.0 >> 32 == 0 { self.entries.iter().any(is_half) } else { is_entry(fast) };
            for (register, to, is_own) in [
                ("LSTAR", long, long == self.entry),
                ("CSTAR", compatible, is_entry(compatible)),
                ("SYSENTER_EIP", fast, is_fast),
            ] {
                if to != Gva(0) && !is_own {
                    found.push(Finding { at: to, what: What::Entry { processor, register } });
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: ProcessorState = ProcessorState {
        rip: 0xffff_ffff_8100_0000,
        cr0: CR0_PG | CR0_WP,
        cr4: 1 << 20 | 1 << 21 | 1 << 5,
        interrupts: (0xffff_fe00_0000_0000, 0xfff),
        calls: Some([0xffff_ffff_8200_0000, 0, 0xffff_ffff_8200_0100]),
    };

    #[test]
    fn what_the_kernel_does_not_set_is_found() {
        let kernels = Kernels {
            interrupts: Gpa(0x5000),
            translate: &|at| (at == Gva(0xffff_fe00_0000_0000)).then_some(Gpa(0x5000)),
            has_fred: true,
            pinned: 1 << 20 | 1 << 21,
            entry: Gva(0xffff_ffff_8200_0000),
            entries: &[Gva(0xffff_ffff_8200_0000)..Gva(0xffff_ffff_8200_1000)],
        };
        let calls = |at| Some([GOOD.calls.unwrap()[0], at, 0]);
        let elsewhere = 0xffff_c900_0000_0000;
        for (state, expected) in [
            (GOOD, None),
            (ProcessorState { calls: None, ..GOOD }, None),
            (ProcessorState { interrupts: (0, 0), ..GOOD }, None),
            (ProcessorState { interrupts: (elsewhere, 0xfff), cr4: GOOD.cr4 | CR4_FRED, ..GOOD }, None),
            (ProcessorState { cr0: CR0_PG, ..GOOD }, Some(What::Unprotected { processor: 3, bit: "CR0.WP" })),
            (
                ProcessorState { cr4: 1 << 20, ..GOOD },
                Some(What::Unprotected { processor: 3, bit: "CR4.SMAP" }),
            ),
            (
                ProcessorState { interrupts: (elsewhere, 0xfff), ..GOOD },
                Some(What::InterruptTable { processor: 3 }),
            ),
            // So an Intel processor leaves it that has run a guest.
            (ProcessorState { interrupts: (GOOD.interrupts.0, 0xffff), ..GOOD }, None),
            (
                ProcessorState { calls: Some([0xffff_ffff_8200_0010, 0, 0]), ..GOOD },
                Some(What::Entry { processor: 3, register: "LSTAR" }),
            ),
            (ProcessorState { calls: calls(0xffff_ffff_8200_0010), ..GOOD }, None),
            (ProcessorState { calls: Some([GOOD.calls.unwrap()[0], 0, 0x8200_0100]), ..GOOD }, None),
            (
                ProcessorState { calls: Some([GOOD.calls.unwrap()[0], 0, 0x8100_0100]), ..GOOD },
                Some(What::Entry { processor: 3, register: "SYSENTER_EIP" }),
            ),
            (
                ProcessorState { calls: calls(elsewhere), ..GOOD },
                Some(What::Entry { processor: 3, register: "CSTAR" }),
            ),
        ] {
            let found: Vec<_> = kernels.faults(3, &state).into_iter().map(|finding| finding.what).collect();
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{state:?}");
        }
        // What the kernel does not know is no way around its table.
        let older = Kernels { has_fred: false, ..kernels };
        let state = ProcessorState { interrupts: (elsewhere, 0xfff), cr4: GOOD.cr4 | CR4_FRED, ..GOOD };
        assert_eq!(older.faults(0, &state).len(), 1);
    }
}
