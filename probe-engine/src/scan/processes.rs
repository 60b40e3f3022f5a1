//! The processes of a guest, and whose rights they have.

use super::finding::{Finding, What};
use super::subject::Subject;
use super::walk::Unreadable;
use crate::addr::Gva;
use crate::linux::task::TaskLayout;
use crate::memory::PhysMemory;

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
    fn find<M: PhysMemory + ?Sized>(subject: &Subject<'_, M>) -> Option<Self> {
        let task = |member| subject.offset("task_struct", member);
        Some(Self {
            tasks: task("tasks")?,
            thread_node: task("thread_node")?,
            signal: task("signal")?,
            thread_head: subject.offset("signal_struct", "thread_head")?,
            mm: task("mm")?,
            parent: task("real_parent")?,
            tgid: task("tgid")?,
            credentials: [task("cred")?, task("real_cred")?],
        })
    }
}

/// The processes that the kernel's list has, by their numbers.
pub(super) fn read<M: PhysMemory + ?Sized>(subject: &Subject<'_, M>) -> Result<Vec<Process>, Unreadable> {
    const UNKNOWN: Unreadable = Unreadable::Unknown("processes");
    let memory = &subject.memory;
    let first = subject.symbol("init_task").ok_or(UNKNOWN)?;
    let layout = Layout::find(subject).ok_or(UNKNOWN)?;
    let task = TaskLayout::find(subject.kernel.symbols(), subject.btf).ok_or(UNKNOWN)?;
    let others = subject.listed(first.add(layout.tasks), layout.tasks)?;
    let leaders = std::iter::once(first).chain(others);
    let (mut found, mut looked_at) = (Vec::new(), 0);
    for leader in leaders {
        let told = task.read_task(memory, leader)?;
        let head = subject.pointer(leader.add(layout.signal))?.add(layout.thread_head);
        let mut threads = subject.listed(head, layout.thread_node)?;
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
                credentials.push(subject.pointer(thread.add(offset))?);
            }
            mm = if mm == Gva(0) { subject.pointer(thread.add(layout.mm))? } else { mm };
        }
        let parent = subject.pointer(leader.add(layout.parent))?;
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

/// Calls `tell` with those that have the credentials of the kernel's own threads, without being one.
pub(super) fn check<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    processes: &[Process],
    tell: &mut dyn FnMut(Finding),
) -> Result<(), Unreadable> {
    let own = subject.symbol("init_cred").ok_or(Unreadable::Unknown("own credentials"))?;
    for Process { at, pid, comm, memory, credentials, .. } in processes {
        if memory.is_some() && credentials.contains(&own) {
            tell(Finding { at: *at, what: What::KernelsRights { pid: *pid, comm: comm.clone() } });
        }
    }
    Ok(())
}
