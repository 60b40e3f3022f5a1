//! What can be read at a hit.

use crate::linux::task::Task;
use crate::regs::Regs;
use crate::virt_memory::ReadVirt;

/// Most bytes of one record. What does not fit is left out, and shown as such.
pub const LONGEST_RECORD: usize = 16 << 10;

/// The guest at a hit.
pub struct Scene<'a, M: ReadVirt + ?Sized> {
    /// The registers.
    pub regs: &'a Regs,
    /// At a return: the registers of the arguments at the function's entry.
    pub entered_with: Option<[u64; 6]>,
    /// The memory, by the page tables of the moment.
    pub memory: &'a M,
    /// What KASLR added to the kernel's link-time addresses.
    pub slide: u64,
    /// The task that runs, if it can be told.
    pub task: Option<&'a Task>,
    /// The vCPU.
    pub cpu: usize,
    /// What lies between the address of a per-CPU variable and that CPU's own one, if it can be told.
    pub per_cpu: Option<u64>,
}

#[cfg(test)]
impl<'a, M: ReadVirt + ?Sized> Scene<'a, M> {
    /// CPU 0 with these registers, of which nothing else is known.
    pub(crate) fn of_registers(regs: &'a Regs, memory: &'a M) -> Self {
        Self { regs, entered_with: None, memory, slide: 0, task: None, cpu: 0, per_cpu: None }
    }
}
