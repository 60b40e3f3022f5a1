//! Locks that tasks wait for, and who has them.
//!
//! Where a lock is, no register says for sure. A task that waits for one has its address in a register or on its stack: what is
//! there is taken for a lock if its list of those who wait is whole, and if it has an owner, or the task on that list.

use super::btf::Btf;
use super::symbols::SymbolTable;
use super::unwind::{Frame, FrameKind};
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::regs::Regs;
use crate::virt_memory::VirtMemory;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How many words of a stack are looked at: a task that waits has gone a few calls further.
const WORDS: u64 = 160;
/// How many are on a list at most, of those that are looked at.
const MOST_WAITING: usize = 64;
/// What the kernel keeps in the low bits of an owner.
const FLAGS: u64 = 7;
/// RWSEM_READER_OWNED (kernel/locking/rwsem.c): tasks read, and the word may name one that has gone.
const IS_READ: u64 = 1;

/// What a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// A `struct mutex`.
    Mutex,
    /// A `struct rw_semaphore`.
    RwSemaphore,
}

/// A lock that a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WantedLock {
    /// Where it is (GVA).
    pub at: Gva,
    /// What it is.
    pub kind: LockKind,
    /// The `task_struct` of the one that has it, if it is known.
    pub owner: Option<Gva>,
}

/// Where locks keep what, and what waits for them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LockLayouts {
    mutex: Option<LockLayout>,
    rw_semaphore: Option<LockLayout>,
    /// Functions that wait for a lock (GVA).
    waits: Vec<Range<Gva>>,
}

/// Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct LockLayout {
    owner: u64,
    waiting: Waiting,
    /// In what stands for one that waits: its place on the list, and its task.
    node: u64,
    task: u64,
}

/// Where those are who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Waiting {
    /// On a list whose head is here.
    List(u64),
    /// The first one is named here, or nobody.
    First(u64),
}

/// Functions that wait for a lock, by how their names begin.
const WAITING_FUNCTIONS: [&str; 6] =
    ["__mutex_lock", "mutex_lock", "mutex_spin_on_owner", "rwsem_", "down_", "osq_lock"];

impl LockKind {
    /// As the kernel's sources call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::RwSemaphore => "rw_semaphore",
        }
    }
}

impl LockLayouts {
    /// Finds them. PREEMPT_RT has others, which are not told.
    pub(super) fn find(symbols: &SymbolTable, btf: &Btf<'_>) -> Self {
        let does_wait = |name: &str| WAITING_FUNCTIONS.iter().any(|begin| name.starts_with(begin));
        let waits = symbols.text().filter(|symbol| does_wait(symbol.name));
        Self {
            mutex: LockLayout::find(btf, "mutex", "mutex_waiter"),
            rw_semaphore: LockLayout::find(btf, "rw_semaphore", "rwsem_waiter"),
            waits: waits.filter_map(|symbol| Some(symbol.at..symbols.end_of(symbol.at)?)).collect(),
        }
    }

    /// The same where KASLR has moved the kernel by `slide`.
    pub(super) fn slid(&self, slide: u64) -> Self {
        let waits = self.waits.iter().map(|function| function.start.add(slide)..function.end.add(slide));
        Self { waits: waits.collect(), ..*self }
    }

    /// Whether a frame of a stack waits for a lock.
    #[must_use]
    pub fn waits(&self, frame: &Frame) -> bool {
        let inside = if frame.kind == FrameKind::Return { frame.at.offset(-1) } else { frame.at };
        self.waits.iter().any(|function| inside.is_in(function))
    }

    /// The lock that `task` waits for with these registers, where `is_task` tells what is one. What it has on its stack is not all its own doing: a lock with the
    /// task on its list comes before others.
    pub fn wanted<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        regs: &Regs,
        task: Gva,
        is_task: impl Fn(Gva) -> bool,
    ) -> Option<WantedLock> {
        let Regs { rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, .. } = *regs;
        let held = [rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15];
        let on_stack = (0..WORDS).map_while(|n| memory.read_u64(Gva(regs.rsp.wrapping_add(n * 8))).ok());
        let kinds = [(LockKind::RwSemaphore, self.rw_semaphore), (LockKind::Mutex, self.mutex)];
        let mut found = None;
        // A task is no lock, and is linked with others as locks are with those who wait.
        let can_be = |at: &Gva| at.is_kernels() && at.0.is_multiple_of(8) && !is_task(*at);
        for at in held.into_iter().chain(on_stack).map(Gva).filter(can_be) {
            for (kind, layout) in kinds {
                let Some(layout) = layout else { continue };
                let Some(waiting) = layout.waiting(memory, at, task) else { continue };
                let owner = memory.read_u64(at.add(layout.owner)).ok().unwrap_or_default();
                let is_read = kind == LockKind::RwSemaphore && owner & IS_READ != 0;
                let owner =
                    Some(Gva(owner & !FLAGS)).filter(|owner| !is_read && *owner != task && is_task(*owner));
                let lock = WantedLock { at, kind, owner };
                match (waiting, owner) {
                    (true, _) => return Some(lock),
                    (false, Some(_)) if found.is_none() => found = Some(lock),
                    (false, _) => {}
                }
            }
        }
        found
    }
}

impl LockLayout {
    fn find(btf: &Btf<'_>, lock: &str, waiter: &str) -> Option<Self> {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        let waiting = offset(lock, "wait_list").map(Waiting::List);
        Some(Self {
            owner: offset(lock, "owner")?,
            waiting: waiting.or_else(|| offset(lock, "first_waiter").map(Waiting::First))?,
            node: offset(waiter, "list")?,
            task: offset(waiter, "task")?,
        })
    }

    /// Whether `task` is among those who wait for what is taken for a lock at `at`; `None` where that is no lock.
    fn waiting<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        at: Gva,
        task: Gva,
    ) -> Option<bool> {
        let word = |at: Gva| memory.read_u64(at).ok().map(Gva);
        let (end, mut node) = match self.waiting {
            Waiting::List(head) => {
                let head = at.add(head);
                (head, word(head)?)
            }
            Waiting::First(first) => match word(at.add(first))? {
                Gva(0) => return Some(false),
                first => (first.add(self.node), first.add(self.node)),
            },
        };
        let has_head = matches!(self.waiting, Waiting::List(_));
        let mut before = if has_head { end } else { word(node.add(8))? };
        for _ in 0..MOST_WAITING {
            // A list leads back to where one came from.
            if !node.is_kernels() || word(node.add(8))? != before {
                return None;
            }
            if has_head && node == end {
                return Some(false);
            }
            if word(Gva(node.0.wrapping_sub(self.node)).add(self.task))? == task {
                return Some(true);
            }
            (before, node) = (node, word(node)?);
            if node == end && !has_head {
                return Some(false);
            }
        }
        Some(false)
    }
}
