//! The processes of a guest, and whose rights they have.

use super::finding::{Finding, What};
use super::walk::{Unreadable, list};
use crate::addr::Gva;
use crate::linux::btf::Btf;
use crate::linux::kernel::Kernel;
use crate::linux::running::RunningKernel;
use crate::linux::task::TaskLayout;
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;

/// So many tasks are looked at.
const MOST_TASKS: usize = 1 << 16;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// The `task_struct` of its first thread (GVA).
    pub at: Gva,
    /// Its number, in the first namespace.
    pub pid: u32,
    /// Who has started it, or takes care of it since that one is gone.
    pub parent: Option<u32>,
    /// Its user, if that can be told.
    pub uid: Option<u32>,
    /// Its name as the guest has it: any bytes.
    pub comm: Vec<u8>,
    /// Its `mm_struct` (GVA), of the first thread that has one; `None` for the kernel's own threads.
    pub memory: Option<Gva>,
    /// The credentials of all its threads (GVA).
    credentials: Vec<Gva>,
}

/// Where a task's members are, in bytes.
struct Layout {
    tasks: u64,
    thread_node: u64,
    signal: u64,
    thread_head: u64,
    mm: u64,
    parent: u64,
    tgid: u64,
    credentials: [u64; 2],
}

impl Layout {
    fn find(btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure: &str, path: &str| btf.member(structure, path)?.offset();
        let task = |member: &str| offset("task_struct", member);
        Some(Self {
            tasks: task("tasks")?,
            thread_node: task("thread_node")?,
            signal: task("signal")?,
            thread_head: offset("signal_struct", "thread_head")?,
            mm: task("mm")?,
            parent: task("real_parent")?,
            tgid: task("tgid")?,
            credentials: [task("cred")?, task("real_cred")?],
        })
    }
}

/// The processes that the kernel's list has, by their numbers.
pub(super) fn read<M: PhysMemory + ?Sized>(
    kernel: &Kernel,
    btf: &Btf<'_>,
    running: &RunningKernel,
    memory: &VirtMemory<'_, M>,
) -> Result<Vec<Process>, Unreadable> {
    const UNKNOWN: Unreadable = Unreadable::Unknown("processes");
    let first = kernel.symbol("init_task").map(|at| running.map.gva(at)).ok_or(UNKNOWN)?;
    let layout = Layout::find(btf).ok_or(UNKNOWN)?;
    let task = TaskLayout::find(kernel.symbols(), btf).ok_or(UNKNOWN)?;
    let pointer = |at: Gva| memory.read_u64(at).map(Gva);
    let behind = |node: Gva, offset: u64| Gva(node.0.wrapping_sub(offset));
    let others = list(memory, first.add(layout.tasks))?;
    let leaders = std::iter::once(first).chain(others.into_iter().map(|node| behind(node, layout.tasks)));
    let (mut found, mut looked_at) = (Vec::new(), 0);
    for leader in leaders {
        let told = task.read_task(memory, leader)?;
        let head = pointer(leader.add(layout.signal))?.add(layout.thread_head);
        let mut threads: Vec<Gva> =
            list(memory, head)?.into_iter().map(|node| behind(node, layout.thread_node)).collect();
        // One that ends is on no list of threads any more.
        if !threads.contains(&leader) {
            threads.push(leader);
        }
        looked_at += threads.len();
        if looked_at > MOST_TASKS {
            return Err(Unreadable::Endless);
        }
        let mut credentials = Vec::new();
        let mut mm = Gva(0);
        for thread in threads {
            for offset in layout.credentials {
                credentials.push(pointer(thread.add(offset))?);
            }
            mm = if mm == Gva(0) { pointer(thread.add(layout.mm))? } else { mm };
        }
        let parent = pointer(leader.add(layout.parent))?;
        found.push(Process {
            at: leader,
            pid: told.tgid,
            parent: memory.read_u32(parent.add(layout.tgid)).ok(),
            uid: told.uid,
            comm: told.comm().to_vec(),
            memory: (mm != Gva(0)).then_some(mm),
            credentials,
        });
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
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
        if memory.is_some() && credentials.contains(&own) {
            tell(Finding { at: *at, what: What::KernelsRights { pid: *pid, comm: comm.clone() } });
        }
    }
}
