//! The guest's tasks, and those of them that sleep until what they wait for has come.
//!
//! The list of tasks begins at `init_task` and has each process once; its threads are on a list of the process. A task that
//! sleeps has left its registers on its own stack, where `thread.sp` points (`struct inactive_task_frame`,
//! arch/x86/include/asm/switch_to.h).

use super::btf::Btf;
use super::locks::LockLayouts;
use super::symbols::SymbolTable;
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::regs::Regs;
use crate::virt_memory::VirtMemory;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// So many tasks are looked at.
const MOST_TASKS: usize = 4096;
/// Most bytes of a task's stack, see [`unwind`](super::unwind).
const LARGEST_STACK: u64 = 32 << 10;
/// TASK_UNINTERRUPTIBLE, also where a signal that kills wakes it, and TASK_RTLOCK_WAIT (include/linux/sched.h).
const WAITS: u32 = 0x2 | 0x1000;
/// TASK_NOLOAD: it has nothing to do.
const IDLE: u32 = 0x400;

/// Where to read about all tasks. Offsets in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskListLayout {
    /// The first task (GVA).
    init_task: Gva,
    /// `task->tasks`, which links processes.
    tasks: u64,
    /// `task->signal->thread_head`, and `task->thread_node`, which link a process's threads.
    signal: u64,
    thread_head: u64,
    thread_node: u64,
    /// `task->__state`, or `state` before 5.14.
    state: u64,
    on_cpu: Option<u64>,
    /// `task->stack`, its lowest byte.
    stack: u64,
    /// `task->thread.sp`
    sp: u64,
    /// How locks are told.
    pub locks: LockLayouts,
}

/// All tasks that were found, by their `task_struct`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskList(BTreeMap<Gva, ListedTask>);

/// A task of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedTask {
    /// Its `task_struct` (GVA).
    pub at: Gva,
    /// The lowest byte of its stack.
    stack: Gva,
    /// Where its registers are, if it sleeps and only what it waits for wakes it.
    asleep: Option<Gva>,
}

impl TaskListLayout {
    /// Finds it, for a kernel that was not moved; `None` without type information.
    #[must_use]
    pub fn find(symbols: &SymbolTable, btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        let task = |member: &str| offset("task_struct", member);
        Some(Self {
            init_task: symbols.address_of("init_task")?,
            tasks: task("tasks")?,
            signal: task("signal")?,
            thread_head: offset("signal_struct", "thread_head")?,
            thread_node: task("thread_node")?,
            state: task("__state").or_else(|| task("state"))?,
            on_cpu: task("on_cpu"),
            stack: task("stack")?,
            sp: task("thread")?.checked_add(offset("thread_struct", "sp")?)?,
            locks: LockLayouts::find(symbols, btf),
        })
    }

    /// The same where KASLR has moved the kernel by `slide`.
    #[must_use]
    pub fn slid(&self, slide: u64) -> Self {
        Self { init_task: self.init_task.add(slide), locks: self.locks.slid(slide), ..*self }
    }

    /// Reads the list. It ends where it cannot be read, and after thousands of tasks.
    pub fn read<M: PhysMemory + ?Sized>(&self, memory: &VirtMemory<'_, M>) -> TaskList {
        let mut list = TaskList::default();
        let mut process = self.init_task;
        while list.0.len() < MOST_TASKS && self.add_threads(&mut list, process, memory).is_ok() {
            match memory.read_u64(process.add(self.tasks)) {
                Ok(next) => process = Gva(next.wrapping_sub(self.tasks)),
                Err(_) => break,
            }
            if list.has(process) {
                break;
            }
        }
        list
    }

    /// Adds the threads of the process that `first` is of.
    fn add_threads<M: PhysMemory + ?Sized>(
        &self,
        list: &mut TaskList,
        first: Gva,
        memory: &VirtMemory<'_, M>,
    ) -> Result<(), PageFault> {
        self.add(list, first, memory)?;
        let head = Gva(memory.read_u64(first.add(self.signal))?).add(self.thread_head);
        let mut node = Gva(memory.read_u64(head)?);
        // A node that leads back to itself adds nobody.
        for _ in 0..MOST_TASKS {
            let task = Gva(node.0.wrapping_sub(self.thread_node));
            if node == head || list.0.len() >= MOST_TASKS || task != first && list.has(task) {
                break;
            }
            self.add(list, task, memory)?;
            node = Gva(memory.read_u64(node)?);
        }
        Ok(())
    }

    fn add<M: PhysMemory + ?Sized>(
        &self,
        list: &mut TaskList,
        at: Gva,
        memory: &VirtMemory<'_, M>,
    ) -> Result<(), PageFault> {
        let state = memory.read_u32(at.add(self.state))?;
        let is_on_cpu =
            self.on_cpu.map_or(Ok(0), |on_cpu| memory.read_u32(at.add(on_cpu))).is_ok_and(|is_on| is_on != 0);
        let stack = Gva(memory.read_u64(at.add(self.stack))?);
        let sp = Gva(memory.read_u64(at.add(self.sp))?);
        let is_asleep = state & WAITS != 0 && state & IDLE == 0 && !is_on_cpu;
        list.0.insert(at, ListedTask { at, stack, asleep: is_asleep.then_some(sp) });
        Ok(())
    }
}

impl TaskList {
    /// Whether there is a task at `at`.
    #[must_use]
    pub fn has(&self, at: Gva) -> bool {
        self.0.contains_key(&at)
    }

    /// The task on whose stack `sp` is.
    #[must_use]
    pub fn of_stack(&self, sp: Gva) -> Option<Gva> {
        let is_its = |task: &&ListedTask| sp.offset_from(task.stack).is_some_and(|at| at < LARGEST_STACK);
        self.0.values().filter(is_its).max_by_key(|task| task.stack).map(|task| task.at)
    }

    /// Those that sleep until what they wait for has come.
    pub fn sleepers(&self) -> impl Iterator<Item = &ListedTask> {
        self.0.values().filter(|task| task.asleep.is_some())
    }
}

impl ListedTask {
    /// The registers with which it sleeps, as far as its stack has them: behind its call of `__switch_to_asm`.
    pub fn registers<M: PhysMemory + ?Sized>(&self, memory: &VirtMemory<'_, M>) -> Option<Regs> {
        /// R15, R14, R13, R12, RBX, RBP and the return address.
        const FRAME: u64 = 7 * 8;
        let sp = self.asleep.filter(|sp| sp.is_kernels())?;
        let word = |n: u64| memory.read_u64(sp.add(n * 8)).ok();
        Some(Regs {
            r15: word(0)?,
            r14: word(1)?,
            r13: word(2)?,
            r12: word(3)?,
            rbx: word(4)?,
            rbp: word(5)?,
            rip: word(6)?,
            rsp: sp.add(FRAME).0,
            ..Regs::default()
        })
    }
}

#[cfg(test)]
mod tests;
