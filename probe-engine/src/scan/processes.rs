//! The processes of a guest, and whose rights they have.

use super::finding::{Finding, What};
use crate::addr::Gva;
use crate::linux::btf::Btf;
use crate::linux::kernel::Kernel;
use crate::linux::running::RunningKernel;
use crate::linux::sleepers::TaskListLayout;
use crate::linux::task::TaskLayout;
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;

/// A process: the first thread of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its `task_struct` (GVA).
    pub at: Gva,
    /// Its number, in the first namespace.
    pub pid: u32,
    /// Who has started it, or takes care of it since that one is gone.
    pub parent: Option<u32>,
    /// Its user, if that can be told.
    pub uid: Option<u32>,
    /// Its name as the guest has it: any bytes.
    pub comm: Vec<u8>,
    /// Its `mm_struct` (GVA); `None` for the kernel's own threads.
    pub memory: Option<Gva>,
    /// Its credentials (GVA).
    credentials: Option<Gva>,
}

/// The processes that the kernel's list has, and whether it has more.
pub(super) fn read<M: PhysMemory + ?Sized>(
    kernel: &Kernel,
    btf: &Btf<'_>,
    running: &RunningKernel,
    memory: &VirtMemory<'_, M>,
) -> (Vec<Process>, bool) {
    let offset = |structure: &str, path: &str| btf.member(structure, path)?.offset();
    let layouts = TaskListLayout::find(kernel.symbols(), btf).zip(TaskLayout::find(kernel.symbols(), btf));
    let Some((list, layout)) = layouts else { return (Vec::new(), false) };
    let [mm, parent, tgid, cred] =
        ["mm", "real_parent", "tgid", "cred"].map(|member| offset("task_struct", member));
    let pointer = |at: Gva, offset: Option<u64>| {
        let to = memory.read_u64(at.add(offset?)).ok()?;
        (to != 0).then_some(Gva(to))
    };
    let process = |at: Gva| {
        let task = layout.read_task(memory, at).ok()?;
        let parent = pointer(at, parent).and_then(|parent| memory.read_u32(parent.add(tgid?)).ok());
        (task.pid == task.tgid).then(|| Process {
            at,
            pid: task.tgid,
            parent,
            uid: task.uid,
            comm: task.comm().to_vec(),
            memory: pointer(at, mm),
            credentials: pointer(at, cred),
        })
    };
    let listed = list.slid(running.map.slide()).read(memory);
    let mut found: Vec<Process> = listed.tasks().filter_map(process).collect();
    found.sort_by_key(|process| process.pid);
    (found, listed.is_full())
}

/// Those that have the credentials of the kernel's own threads, without being one.
pub(super) fn check(
    kernel: &Kernel,
    running: &RunningKernel,
    processes: &[Process],
    tell: &mut dyn FnMut(Finding),
) {
    let Some(own) = kernel.symbol("init_cred").map(|at| running.map.gva(at)) else { return };
    for Process { at, pid, comm, memory, credentials, .. } in processes {
        if memory.is_some() && *credentials == Some(own) {
            tell(Finding { at: *at, what: What::KernelsRights { pid: *pid, comm: comm.clone() } });
        }
    }
}
