//! What is known of the guest's kernel: the tables by which its stacks are walked, the names of its functions, and how
//! its tasks are found.

use probe_engine::linux::current::{CurrentTask, Preemption};
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::mappings::MappingsLayout;
use probe_engine::linux::names::{ModuleNames, Names};
use probe_engine::linux::task::TaskLayout;
use probe_engine::linux::unwind::{KernelCode, ModuleCode};
use probe_engine::linux::uretprobes::ReturnInstances;
use std::sync::Arc;

/// The guest's kernel, as vCPUs know it. All tables are shared by its clones.
#[derive(Clone, Default)]
pub struct KernelView {
    /// How the kernel's stacks are walked, if they are.
    pub unwind: Option<Arc<KernelCode>>,
    /// How those of its modules are, as far as it could be read.
    pub modules: Arc<[ModuleCode]>,
    /// The kernel's symbols, where the session has them.
    pub symbols: Option<Arc<Kernel>>,
    /// Its modules', where the session has them.
    pub names: Arc<[Arc<ModuleNames>]>,
    /// Whether it runs at its own addresses, so that it is known where it is.
    pub is_found: bool,
    /// What KASLR added to its link-time addresses.
    pub slide: u64,
    /// How the task of a vCPU is found.
    pub current: Option<CurrentTask>,
    /// How it is preempted from outside.
    pub preemption: Option<Preemption>,
    /// How to read about it.
    pub task: Option<TaskLayout>,
    /// How to read what its process has mapped.
    pub mappings: Option<MappingsLayout>,
    /// How to read where its calls return to at whose returns the kernel has probes.
    pub uretprobes: Option<ReturnInstances>,
}

impl KernelView {
    /// Names for run-time addresses, where the session has the kernel's symbols.
    #[must_use]
    pub fn names(&self) -> Option<Names<'_>> {
        let kernel = self.symbols.as_ref()?.symbols();
        Some(Names { kernel, slide: self.slide, modules: &self.names })
    }
}
