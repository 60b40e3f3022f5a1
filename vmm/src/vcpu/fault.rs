//! A copied instruction faulted: the guest is about to look for the reason where it knows no code.

use super::Vcpu;
use super::tables::VcpuTables;
use crate::clock;
use crate::probe::Fault;
use probe_engine::addr::Gva;
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;

/// Offsets in `struct pt_regs` (arch/x86/include/asm/ptrace.h): words from R15 on.
const RIP: u64 = 16 * 8;
/// Words up to SS.
const WORDS: usize = 21;

impl Vcpu {
    /// At the entry of a function that every fault in kernel mode passes before it is reported, with its registers
    /// at `saved`: RIP goes back from the copy to the original, and fault handlers are told.
    pub(super) fn fault_reported(&mut self, saved: Gva, fault: &Fault, tables: &VcpuTables) {
        let area = self.area_at_site(tables);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let mut frame = [0; 8 * WORDS];
        if memory.read(saved, &mut frame).is_err() {
            return;
        }
        let mut regs = from_frame(&frame);
        let Some(at) = tables.sites.copied_from(Gva(regs.rip)) else { return };
        if memory.write(saved.add(RIP), &at.0.to_le_bytes()).is_err() {
            return;
        }
        regs.rip = at.0;
        let mut requests = Vec::new();
        let (ticks, clock) = (clock::ticks(), &*self.clock);
        let context = tables.context(&memory, self.id, (ticks, clock), area);
        for attached in tables.sites.get(at).into_iter().flat_map(|site| &site.probes) {
            let mut hit = context.hit(attached.probe.told_as, at, regs, &mut requests);
            attached.probe.fault(&mut hit, fault);
        }
        requests.into_iter().for_each(|request| self.mailbox.deliver(request));
    }
}

fn from_frame(frame: &[u8; 8 * WORDS]) -> Regs {
    let (words, _) = frame.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    let mut next = || words.next().unwrap_or(0);
    let (r15, r14, r13, r12, rbp, rbx) = (next(), next(), next(), next(), next(), next());
    let (r11, r10, r9, r8, rax, rcx) = (next(), next(), next(), next(), next(), next());
    let (rdx, rsi, rdi, _orig_rax, rip, _cs) = (next(), next(), next(), next(), next(), next());
    let (rflags, rsp) = (next(), next());
    Regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags }
}
