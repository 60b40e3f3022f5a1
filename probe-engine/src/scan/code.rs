//! Whose the code is that a kernel can run: its own, its modules', and what it generates.

use super::walk::{Unreadable, list};
use crate::addr::Gva;
use crate::linux::btf::Btf;
use crate::linux::kernel::Kernel;
use crate::linux::modules::Module;
use crate::linux::running::RunningKernel;
use crate::memory::PhysMemory;
use crate::paging::Access;
use crate::virt_memory::VirtMemory;
use std::ops::Range;

const PAGE: u64 = 4096;
/// What BPF takes at a time for each node of memory (BPF_PROG_PACK_SIZE, kernel/bpf/core.c).
const PACK: u64 = 2 << 20;
/// More nodes than a machine has.
const MOST_NODES: u32 = 1 << 6;
/// More than what a CPU runs that starts takes, in bytes.
const LARGEST_REAL_MODE: u64 = 64 << 10;
/// The page of system calls by address (arch/x86/include/uapi/asm/vsyscall.h).
const VSYSCALL: Gva = Gva(0xffff_ffff_ff60_0000);

/// Whose code is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The kernel's own.
    Kernel,
    /// A module's, of this name.
    Module(String),
    /// A BPF program's, or a trampoline of such.
    Bpf,
    /// A trampoline of ftrace's.
    Ftrace,
    /// What kprobes run in place of what they have overwritten.
    Kprobes,
    /// What a CPU runs that starts or wakes.
    RealMode,
    /// The page that user mode calls by its address.
    Vsyscall,
}

/// All that is known, at run-time addresses.
#[derive(Debug, Clone, Default)]
pub struct Code {
    /// Rising, and apart from each other.
    owned: Vec<(Range<Gva>, Owner)>,
    /// Whether all that the kernel generates is known.
    pub is_complete: bool,
}

impl Code {
    /// The code of this `kernel` and these `modules`, and what the kernel lists of what it has generated.
    ///
    /// # Errors
    /// [`Unreadable`] where one of its lists is.
    pub fn of<M: PhysMemory + ?Sized>(
        kernel: &Kernel,
        btf: &Btf<'_>,
        running: &RunningKernel,
        memory: &VirtMemory<'_, M>,
        modules: &[Module],
    ) -> Result<Self, Unreadable> {
        let symbol = |name: &str| kernel.symbol(name).map(|at| running.map.gva(at));
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        let mut owned = vec![(VSYSCALL..VSYSCALL.add(PAGE), Owner::Vsyscall)];
        if let (Some(start), Some(end)) = (symbol("_text"), symbol("_etext")) {
            owned.push((start..end, Owner::Kernel));
        }
        for module in modules {
            for text in [&module.text, &module.init_text] {
                owned.push((text.clone(), Owner::Module(module.name.clone())));
            }
        }
        // struct bpf_prog_pack, kernel/bpf/core.c
        let packs = symbol("pack_list");
        if let (Some(head), Some(node), Some(at)) =
            (packs, offset("bpf_prog_pack", "list"), offset("bpf_prog_pack", "ptr"))
        {
            let nodes = symbol("nr_node_ids").and_then(|at| memory.read_u32(at).ok());
            let size = PACK * u64::from(nodes.unwrap_or(1).clamp(1, MOST_NODES));
            for pack in list(memory, head)? {
                let start = Gva(memory.read_u64(Gva(pack.0.wrapping_sub(node)).add(at))?);
                owned.push((start..start.add(size), Owner::Bpf));
            }
        }
        // struct bpf_ksym, kernel/bpf/core.c
        if let (Some(head), Some(node), Some(start), Some(end)) = (
            symbol("bpf_kallsyms"),
            offset("bpf_ksym", "lnode"),
            offset("bpf_ksym", "start"),
            offset("bpf_ksym", "end"),
        ) {
            for named in list(memory, head)? {
                let named = Gva(named.0.wrapping_sub(node));
                let [start, end] = [memory.read_u64(named.add(start))?, memory.read_u64(named.add(end))?];
                // None is larger than a pack.
                if end.wrapping_sub(start) <= PACK {
                    owned.push((Gva(start)..Gva(end), Owner::Bpf));
                }
            }
        }
        // struct ftrace_ops, kernel/trace/ftrace.c
        if let (Some(head), Some(node), Some(at), Some(size)) = (
            symbol("ftrace_ops_trampoline_list"),
            offset("ftrace_ops", "list"),
            offset("ftrace_ops", "trampoline"),
            offset("ftrace_ops", "trampoline_size"),
        ) {
            for ops in list(memory, head)? {
                let ops = Gva(ops.0.wrapping_sub(node));
                let [start, size] = [memory.read_u64(ops.add(at))?, memory.read_u64(ops.add(size))?];
                owned.push((Gva(start)..Gva(start).add(size.min(PAGE)), Owner::Ftrace));
            }
        }
        // struct kprobe_insn_page, kernel/kprobes.c
        for slots in ["kprobe_insn_slots", "kprobe_optinsn_slots"] {
            if let (Some(head), Some(pages), Some(node), Some(at)) = (
                symbol(slots),
                offset("kprobe_insn_cache", "pages"),
                offset("kprobe_insn_page", "list"),
                offset("kprobe_insn_page", "insns"),
            ) {
                for page in list(memory, head.add(pages))? {
                    let start = Gva(memory.read_u64(Gva(page.0.wrapping_sub(node)).add(at))?);
                    owned.push((start..start.add(PAGE), Owner::Kprobes));
                }
            }
        }
        // struct real_mode_header, arch/x86/include/asm/realmode.h: places in it are physical addresses
        if let (Some(pointer), Some(text), Some(end)) = (
            symbol("real_mode_header"),
            offset("real_mode_header", "text_start"),
            offset("real_mode_header", "ro_end"),
        ) {
            let header = Gva(memory.read_u64(pointer)?);
            let own = memory.translate(header, Access::Read)?;
            let [text, end] = [memory.read_u32(header.add(text))?, memory.read_u32(header.add(end))?];
            let at = |phys: u32| header.add(u64::from(phys).wrapping_sub(own.0));
            let size = u64::from(end.saturating_sub(text)).min(LARGEST_REAL_MODE);
            owned.push((at(text)..at(text).add(size), Owner::RealMode));
        }
        owned.retain(|(range, _)| range.start < range.end && range.start.is_kernels());
        owned.sort_by_key(|(range, _)| (range.start, range.end));
        // Programs lie in packs: who begins first has it.
        let mut reach = Gva(0);
        owned.retain_mut(|(range, _)| {
            range.start = range.start.max(reach);
            reach = reach.max(range.end);
            range.start < range.end
        });
        Ok(Self { owned, is_complete: packs.is_some() })
    }

    /// Whose the code at `at` is.
    #[must_use]
    pub fn owner(&self, at: Gva) -> Option<&Owner> {
        let next = self.owned.partition_point(|(range, _)| range.end <= at);
        self.owned.get(next).filter(|(range, _)| range.start <= at).map(|(_, owner)| owner)
    }

    /// Whether any of the bytes in `range` is somebody's.
    #[must_use]
    pub fn has_any(&self, range: &Range<Gva>) -> bool {
        let next = self.owned.partition_point(|(owned, _)| owned.end <= range.start);
        self.owned.get(next).is_some_and(|(owned, _)| owned.start < range.end)
    }
}
