//! The task that a CPU runs, as the kernel's own tools would name it.
//!
//! Where the members of `struct task_struct` and of what it points to lie is told by the kernel's BTF.

use super::btf::Btf;
use super::current::CurrentTask;
use super::per_cpu;
use super::scope::ScopeLayout;
use super::symbols::SymbolTable;
use crate::addr::Gva;
use crate::guest_text::Escaped;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::virt_memory::VirtMemory;
use serde::{Deserialize, Serialize};

/// Bytes of a task's name, its NUL included (TASK_COMM_LEN, include/linux/sched.h).
pub const COMM: usize = 16;
/// Deepest nesting of pid namespaces (MAX_PID_NS_LEVEL, include/linux/pid_namespace.h).
pub(crate) const MOST_LEVELS: u32 = 32;

/// The bits of `preempt_count` that are of soft interrupts, and all that counts of [`TaskLayout::softirq_count`]
/// (SOFTIRQ_MASK, include/linux/preempt.h).
pub(crate) const SOFTIRQS: u32 = 0xff00;

/// Where to read about a task. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskLayout {
    /// The task of a CPU.
    pub current: CurrentTask,
    /// `preempt_count`, from the kernel's GS base, which says whether it serves an interrupt.
    pub(crate) preempt_count: Option<u64>,
    /// Where a task counts its soft interrupts by itself, as under PREEMPT_RT.
    pub(crate) softirq_count: Option<u64>,
    pub(crate) comm: u64,
    pub(crate) pid: u64,
    pub(crate) tgid: u64,
    pub(crate) user: Option<User>,
    pub(crate) namespace: Option<Namespace>,
    pub(crate) scopes: ScopeLayout,
}

/// `task->cred->uid`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) cred: u64,
    pub(crate) uid: u64,
}

/// `task->thread_pid->numbers[thread_pid->level].nr`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespace {
    pub(crate) thread_pid: u64,
    pub(crate) level: u64,
    pub(crate) numbers: u64,
    /// Bytes of `struct upid`.
    pub(crate) stride: u64,
    pub(crate) number: u64,
}

/// What a CPU does for a task, or instead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub enum Context {
    /// It runs the task, in the kernel or in user mode.
    #[default]
    Task,
    /// It serves a soft interrupt, which came while the task ran. Under PREEMPT_RT the task does, which may be a thread
    /// that is there for nothing else.
    SoftIrq,
    /// It serves an interrupt.
    HardIrq,
    /// It serves an interrupt that cannot be masked.
    Nmi,
}

/// A task of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Task {
    /// Its `task_struct` (GVA).
    pub at: Gva,
    /// The thread's number, as `gettid` gives it in the first pid namespace; 0 is the idle task of a CPU.
    pub pid: u32,
    /// The process's, as `getpid` gives it there.
    pub tgid: u32,
    /// The thread's number in its own pid namespace, if that can be told.
    pub ns_pid: Option<u32>,
    /// Its user (`cred->uid`), if that can be told.
    pub uid: Option<u32>,
    /// What the CPU does.
    pub context: Context,
    /// Its name, padded with NULs.
    pub comm: [u8; COMM],
}

impl Task {
    /// Its name, as it may be shown.
    #[must_use]
    pub fn shown(&self) -> Escaped<'_> {
        Escaped(self.comm())
    }

    /// Its name as the guest has it: any bytes.
    #[must_use]
    pub fn comm(&self) -> &[u8] {
        self.comm.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl TaskLayout {
    /// Finds it, for a kernel that was not moved; `None` without type information.
    #[must_use]
    pub fn find(symbols: &SymbolTable, btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        let task = |member: &str| offset("task_struct", member);
        let user = || Some(User { cred: task("cred")?, uid: offset("cred", "uid")? });
        let namespace = || {
            Some(Namespace {
                thread_pid: task("thread_pid")?,
                level: offset("pid", "level")?,
                numbers: offset("pid", "numbers")?,
                stride: btf.size_of("upid")?,
                number: offset("upid", "nr")?,
            })
        };
        Some(Self {
            current: CurrentTask::find(symbols, Some(btf))?,
            preempt_count: per_cpu::hot_offset(symbols, Some(btf), "preempt_count", "__preempt_count"),
            softirq_count: task("softirq_disable_cnt"),
            comm: task("comm")?,
            pid: task("pid")?,
            tgid: task("tgid")?,
            user: user(),
            namespace: namespace(),
            scopes: ScopeLayout::find(symbols, btf),
        })
    }

    /// The same where KASLR has moved the kernel by `slide`.
    #[must_use]
    pub fn slid(self, slide: u64) -> Self {
        let preempt_count = self.preempt_count.map(|offset| per_cpu::slid(offset, slide));
        let (current, scopes) = (self.current.slid(slide), self.scopes.slid(slide));
        Self { current, preempt_count, scopes, ..self }
    }

    /// Reads about the task of the CPU whose kernel GS base is `gs_base`, see [`CurrentTask::read`].
    ///
    /// # Errors
    /// The [`PageFault`] of reading what every task has: before its boot has come so far, a CPU has none.
    pub fn read<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        gs_base: u64,
    ) -> Result<Task, PageFault> {
        let at = self.current.read(memory, gs_base)?;
        let count = |at: Option<Gva>| at.and_then(|at| memory.read_u32(at).ok()).unwrap_or(0);
        let preempted = count(self.preempt_count.map(|offset| Gva(gs_base).add(offset)));
        let softirqs = count(self.softirq_count.map(|offset| at.add(offset)));
        let context = Context::of(preempted | softirqs & SOFTIRQS);
        Ok(Task { context, ..self.read_task(memory, at)? })
    }

    /// Reads about the task whose `task_struct` is at `at`, whatever CPU runs it.
    ///
    /// # Errors
    /// The [`PageFault`] of reading what every task has.
    pub fn read_task<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        at: Gva,
    ) -> Result<Task, PageFault> {
        let mut comm = [0; COMM];
        memory.read(at.add(self.comm), &mut comm)?;
        Ok(Task {
            at,
            pid: memory.read_u32(at.add(self.pid))?,
            tgid: memory.read_u32(at.add(self.tgid))?,
            ns_pid: self.namespace.and_then(|namespace| namespace.read(memory, at)),
            uid: self.user.and_then(|user| {
                let cred = memory.read_u64(at.add(user.cred)).ok()?;
                memory.read_u32(Gva(cred).add(user.uid)).ok()
            }),
            context: Context::Task,
            comm,
        })
    }
}

impl Namespace {
    fn read<M: PhysMemory + ?Sized>(&self, memory: &VirtMemory<'_, M>, task: Gva) -> Option<u32> {
        let pid = memory.read_u64(task.add(self.thread_pid)).ok().filter(|pid| *pid != 0).map(Gva)?;
        let level = memory.read_u32(pid.add(self.level)).ok().filter(|level| *level < MOST_LEVELS)?;
        let entry = pid.add(self.numbers).add(u64::from(level) * self.stride);
        memory.read_u32(entry.add(self.number)).ok()
    }
}

impl Context {
    /// By `preempt_count` (include/linux/preempt.h): bits 20 to 23 count NMIs, 16 to 19 interrupts; bit 8 says that soft
    /// interrupts are served, those above it that they are held off.
    pub(crate) fn of(preempt_count: u32) -> Self {
        match preempt_count {
            count if count & 0x00f0_0000 != 0 => Self::Nmi,
            count if count & 0x000f_0000 != 0 => Self::HardIrq,
            count if count & 0x0000_0100 != 0 => Self::SoftIrq,
            _ => Self::Task,
        }
    }

    /// How it is written; nothing where a task runs.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Task => None,
            Self::SoftIrq => Some("softirq"),
            Self::HardIrq => Some("irq"),
            Self::Nmi => Some("nmi"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::symbols::SymbolTableBuilder;
    use crate::linux::testing::{BtfBuilder, Ram};

    const SOFTIRQ_COUNT: u64 = 24;

    /// That of a kernel with PREEMPT_RT, or without.
    fn layout(is_realtime: bool) -> TaskLayout {
        let mut symbols = SymbolTableBuilder::default();
        for (at, name) in [(0x10, "current_task"), (0x18, "__preempt_count")] {
            symbols.push(Gva(at), b'A', name).unwrap();
        }
        let mut btf = BtfBuilder::default();
        let int = btf.int("int", 4);
        let mut members = vec![("pid", int, 0), ("tgid", int, 4), ("comm", int, 8)];
        members.extend(is_realtime.then_some(("softirq_disable_cnt", int, SOFTIRQ_COUNT as u32)));
        btf.structure("task_struct", 64, &members);
        let section = btf.finish();
        TaskLayout::find(&symbols.finish(), &Btf::parse(&section).unwrap()).unwrap()
    }

    /// What a CPU does with this `preempt_count`, whose task has this count of its own.
    fn context(layout: &TaskLayout, preempt_count: u32, softirq_count: u32) -> Context {
        let ram = Ram::new();
        let (cpu, task) = (Ram::BASE.add(0x1000), Ram::BASE.add(0x2000));
        ram.put(cpu.add(0x10), &task.0.to_le_bytes());
        ram.put(cpu.add(0x18), &preempt_count.to_le_bytes());
        ram.put(task.add(SOFTIRQ_COUNT), &softirq_count.to_le_bytes());
        layout.read(&ram.memory(), cpu.0).unwrap().context
    }

    #[test]
    fn a_realtime_kernel_counts_soft_interrupts_in_the_task() {
        let (usual, realtime) = (layout(false), layout(true));
        assert_eq!((usual.softirq_count, realtime.softirq_count), (None, Some(SOFTIRQ_COUNT)));
        // Served, held off, and both.
        for (count, expected) in
            [(0x100, Context::SoftIrq), (0x200, Context::Task), (0x300, Context::SoftIrq)]
        {
            assert_eq!(context(&realtime, 0, count), expected, "{count:#x}");
            assert_eq!(context(&usual, count, 0), expected, "{count:#x}");
        }
        assert_eq!(context(&usual, 0, 0x100), Context::Task, "that is another member there");
        assert_eq!(
            context(&realtime, 0x1_0000, 0x100),
            Context::HardIrq,
            "it came while a soft one was served"
        );
        assert_eq!(context(&realtime, 0, 0xffff_00ff), Context::Task, "no other bit counts");
    }
}
