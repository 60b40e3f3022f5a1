//! Where the guest stands: its CPUs, and its tasks that sleep until what they wait for has come.

use super::control::Control;
use super::report::{AwaitedLock, Sleeper, Standing, Stands, Stood};
use crate::memory::GuestRam;
use crate::stack::Stack;
use crate::vcpu::VcpuTables;
use crate::world::VcpuPosition;
use probe_engine::addr::Gva;
use probe_engine::linux::sleepers::{TaskList, TaskListLayout};
use probe_engine::linux::task::{Task, TaskLayout};
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;

/// So many tasks that sleep are told.
const MOST_SLEEPERS: usize = 32;
/// A task that waits for a lock has gone no further than so many calls.
const DEEPEST: usize = 16;

/// What is known of all tasks.
struct KnownTasks<'a> {
    memory: VirtMemory<'a, GuestRam>,
    layout: TaskListLayout,
    task: TaskLayout,
    list: TaskList,
}

impl Control<'_> {
    /// Where the vCPUs stood at `positions`. What is in the guest's memory changes no more than a stack that is walked allows
    /// for.
    pub(super) fn stands(&self, positions: &[VcpuPosition], tables: &VcpuTables) -> Stands {
        let tasks = self.known_tasks();
        let cpus = self.cpus(positions, tables, tasks.as_ref());
        let sleepers = tasks.iter().flat_map(|tasks| tasks.sleepers(tables)).take(MOST_SLEEPERS).collect();
        Stands { cpus, sleepers }
    }

    /// The same of the vCPUs alone, with what gives names to addresses.
    pub(super) fn standing(&self, positions: &[VcpuPosition], tables: &VcpuTables) -> Standing {
        let kernel = &tables.kernel;
        Standing {
            cpus: self.cpus(positions, tables, self.known_tasks().as_ref()),
            slide: kernel.is_found.then_some(kernel.slide),
            modules: kernel.names.to_vec(),
        }
    }

    fn cpus(
        &self,
        positions: &[VcpuPosition],
        tables: &VcpuTables,
        tasks: Option<&KnownTasks<'_>>,
    ) -> Vec<Stood> {
        let cpu = |position: &VcpuPosition| match position.at {
            None => Stood { is_halted: position.is_halted, ..Stood::at(position.rip) },
            Some((regs, system)) => {
                let memory = VirtMemory::new(&*self.ram, system.space());
                let regs = tables.behind_detours(tables.behind_gates(regs, &memory), &memory);
                let task = tasks.and_then(|tasks| tasks.list.of_stack(Gva(regs.rsp)));
                let stack = tables.stack(&memory, &regs, task);
                let rip = tables.shown(Gva(regs.rip));
                Stood {
                    rip,
                    regs: Some(Regs { rip: rip.0, ..regs }),
                    system: Some(system),
                    is_halted: position.is_halted,
                    lock: tasks.zip(task).and_then(|(tasks, task)| tasks.lock(task, &regs, stack.as_ref())),
                    task: tasks.zip(task).and_then(|(tasks, task)| tasks.named(task)),
                    stack,
                }
            }
        };
        positions.iter().map(cpu).collect()
    }

    fn known_tasks(&self) -> Option<KnownTasks<'_>> {
        let (layout, running) = self.kernel.tasks.as_ref().zip(self.arming.running())?;
        let slide = running.map.slide();
        let (layout, memory) = (layout.slid(slide), VirtMemory::new(&*self.ram, running.space));
        let list = layout.read(&memory);
        Some(KnownTasks { memory, layout, task: self.kernel.task?.slid(slide), list })
    }
}

impl KnownTasks<'_> {
    fn named(&self, at: Gva) -> Option<Task> {
        self.task.read_task(&self.memory, at).ok()
    }

    fn sleepers(&self, tables: &VcpuTables) -> impl Iterator<Item = Sleeper> {
        self.list.sleepers().filter_map(|sleeper| {
            let regs = sleeper.registers(&self.memory)?;
            let stack = tables.stack(&self.memory, &regs, None);
            let lock = self.lock(sleeper.at, &regs, stack.as_ref());
            // The kernel's page tables have nothing of a process.
            let stack = stack.map(|stack| Stack { user: None, ..stack });
            Some(Sleeper { task: self.named(sleeper.at)?, stack, lock })
        })
    }

    /// The lock that a task waits for, if its stack says that it waits for one.
    fn lock(&self, task: Gva, regs: &Regs, stack: Option<&Stack>) -> Option<AwaitedLock> {
        let locks = &self.layout.locks;
        stack?.frames.iter().take(DEEPEST).find(|frame| locks.waits(frame))?;
        let lock = locks.wanted(&self.memory, regs, task, |at| self.list.has(at))?;
        let owner = lock.owner.and_then(|owner| self.named(owner));
        Some(AwaitedLock { at: lock.at, kind: lock.kind, owner })
    }
}
