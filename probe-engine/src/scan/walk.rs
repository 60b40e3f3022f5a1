//! Lists and trees in the memory of a guest, which may lead anywhere.

use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::virt_memory::VirtMemory;
use std::collections::HashSet;

/// So many entries are read of one.
const MOST: usize = 1 << 16;

/// What cannot be read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    /// No memory is there.
    #[error("a list leads to where no memory is")]
    Memory(#[from] PageFault),
    /// The kernel's file does not say where it is.
    #[error("it is not known where the kernel has its {0}")]
    Unknown(&'static str),
    /// It has more entries than any guest's.
    #[error("a list does not end")]
    Endless,
}

/// The nodes of a list, a `struct list_head` each, whose head is at `head`.
pub(super) fn list<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    head: Gva,
) -> Result<Vec<Gva>, Unreadable> {
    chain(memory, head, |next| next == head, 0)
}

/// Those of a list with the pointer to its first at `head`, and none behind the last (`struct hlist_head`).
pub(super) fn chained<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    head: Gva,
) -> Result<Vec<Gva>, Unreadable> {
    chain(memory, head, |next| next == Gva(0), 0)
}

/// Those that have a pointer to the next one `offset` bytes behind their start. At `head` is the pointer to the first.
pub(super) fn chain<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    head: Gva,
    is_end: impl Fn(Gva) -> bool,
    offset: u64,
) -> Result<Vec<Gva>, Unreadable> {
    let mut found = Vec::new();
    let mut next = Gva(memory.read_u64(head)?);
    while !is_end(next) {
        if found.len() == MOST {
            return Err(Unreadable::Endless);
        }
        found.push(next);
        next = Gva(memory.read_u64(next.add(offset))?);
    }
    Ok(found)
}

/// The nodes of a red-black tree, a `struct rb_node` each; the pointer to the first is at `root`. In no order.
pub(super) fn tree<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    root: Gva,
) -> Result<Vec<Gva>, Unreadable> {
    /// `rb_right` and `rb_left`, behind `__rb_parent_color` (include/linux/rbtree_types.h).
    const CHILDREN: [u64; 2] = [8, 16];
    let mut found = HashSet::new();
    let mut rest = vec![memory.read_u64(root)?];
    while let Some(node) = rest.pop() {
        if node == 0 {
            continue;
        }
        if found.len() == MOST || !found.insert(Gva(node)) {
            return Err(Unreadable::Endless);
        }
        for child in CHILDREN {
            rest.push(memory.read_u64(Gva(node).add(child))?);
        }
    }
    Ok(found.into_iter().collect())
}
