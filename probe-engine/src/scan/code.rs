//! Whose the code is that a kernel can run: its own, its modules', and what it generates.

use super::subject::Subject;
use super::walk::Unreadable;
use crate::addr::Gva;
use crate::linux::modules::Module;
use crate::memory::PhysMemory;
use crate::paging::Access;
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
    /// The code of this `kernel` and these `modules`, and what the kernel lists of what it has generated. Modules and what is generated lie
    /// in `generated`: whoever links code elsewhere into one of these lists owns none.
    ///
    /// # Errors
    /// [`Unreadable`] where one of its lists is.
    pub(super) fn of<M: PhysMemory + ?Sized>(
        subject: &Subject<'_, M>,
        modules: &[Module],
        generated: &Range<Gva>,
    ) -> Result<Self, Unreadable> {
        let symbol = |name| subject.symbol(name);
        let offset = |structure, member| subject.offset(structure, member);
        let read = |at: Gva| subject.pointer(at);
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
            let nodes = symbol("nr_node_ids").and_then(|at| subject.memory.read_u32(at).ok());
            let size = PACK * u64::from(nodes.unwrap_or(1).clamp(1, MOST_NODES));
            for pack in subject.listed(head, node)? {
                let start = read(pack.add(at))?;
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
            for named in subject.listed(head, node)? {
                let (start, end) = (read(named.add(start))?, read(named.add(end))?);
                // None is larger than a pack.
                if end.0.wrapping_sub(start.0) <= PACK {
                    owned.push((start..end, Owner::Bpf));
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
            for ops in subject.listed(head, node)? {
                let (start, size) = (read(ops.add(at))?, read(ops.add(size))?.0.min(PAGE));
                owned.push((start..start.add(size), Owner::Ftrace));
            }
        }
        // struct kprobe_insn_page, kernel/kprobes.c
        for slots in ["kprobe_insn_slots", "kprobe_optinsn_slots"] {
            if let (Some(slots), Some(pages), Some(node), Some(at)) = (
                symbol(slots),
                offset("kprobe_insn_cache", "pages"),
                offset("kprobe_insn_page", "list"),
                offset("kprobe_insn_page", "insns"),
            ) {
                for page in subject.listed(slots.add(pages), node)? {
                    let start = read(page.add(at))?;
                    owned.push((start..start.add(PAGE), Owner::Kprobes));
                }
            }
        }
        // struct real_mode_header, arch/x86/include/asm/realmode.h: places in it are physical addresses
        if let (Some(header), Some(text), Some(end)) = (
            symbol("real_mode_header"),
            offset("real_mode_header", "text_start"),
            offset("real_mode_header", "ro_end"),
        ) {
            let (memory, header) = (&subject.memory, read(header)?);
            let own = memory.translate(header, Access::Read)?;
            let [text, end] = [memory.read_u32(header.add(text))?, memory.read_u32(header.add(end))?];
            let start = header.add(u64::from(text).wrapping_sub(own.0));
            let size = u64::from(end.saturating_sub(text)).min(LARGEST_REAL_MODE);
            owned.push((start..start.add(size), Owner::RealMode));
        }
        owned.retain(|(range, owner)| {
            let is_inside = generated.start <= range.start && range.end <= generated.end;
            let is_placed = matches!(owner, Owner::Kernel | Owner::RealMode | Owner::Vsyscall);
            range.start < range.end && range.start.is_kernels() && (is_placed || is_inside)
        });
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
