//! What is sealed of a kernel and its modules: where that lies, and what of it the kernel may change.

use super::modules::{SealedModules, read};
use crate::memory::GuestRam;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::guard::attempt::Write;
use probe_engine::guard::judge::{Judge, Objection, Patch};
use probe_engine::guard::module::SealedModule;
use probe_engine::guard::sealed::SealedKernel;
use probe_engine::linux::running::KernelMap;
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::scan::seals::Seals;
use probe_engine::virt_memory::VirtMemory;
use std::io;
use std::sync::Arc;

/// The sealed pages of a running kernel.
pub(super) struct SealedPages {
    kernel: Arc<SealedKernel>,
    /// Where that is.
    map: KernelMap,
    judge: Judge,
    modules: SealedModules,
}

/// What is about to be stored to sealed memory, in one piece as the kernel has that.
pub(crate) struct SealedWrite {
    /// Where, in the kernel's own mapping (run-time GVA).
    pub(crate) at: Gva,
    pub(crate) bytes: Vec<u8>,
    /// The same, page by page.
    parts: Vec<Write>,
}

impl SealedPages {
    /// Those of a kernel that is where `map` says.
    pub(super) fn new(kernel: Arc<SealedKernel>, map: KernelMap) -> Self {
        let judge = Judge::new(kernel.clone(), map.slide());
        let modules = SealedModules::new(kernel.generated.clone());
        Self { kernel, map, judge, modules }
    }

    /// What lies at `at` (run-time GVA): a page of a module's, or else of the kernel's image, which is in one piece.
    pub(super) fn gva(&self, at: Gpa) -> Gva {
        let (linked, lies) = self.map.text();
        self.modules.at(at).unwrap_or_else(|| self.map.gva(linked.add(at.0.wrapping_sub(lies.0))))
    }

    /// Seals `module`, whose `struct module` is at `at` (GVA). Returns how many pages are sealed; `None` where it cannot be sealed.
    ///
    /// # Errors
    /// The host refuses.
    pub(super) fn seal_module(
        &mut self,
        at: Gva,
        module: &SealedModule,
        memory: &VirtMemory<'_, GuestRam>,
    ) -> io::Result<Option<u64>> {
        let pages = self.modules.seal(at, module, memory)?;
        if pages.is_some() {
            self.judge.enter(module);
        }
        Ok(pages)
    }

    /// Seals what is left of the module at `at` (GVA), whose init has run. Returns as [`seal_module`](Self::seal_module) does.
    ///
    /// # Errors
    /// The host refuses.
    pub(super) fn module_initialized(
        &mut self,
        at: Gva,
        memory: &VirtMemory<'_, GuestRam>,
    ) -> io::Result<Option<u64>> {
        self.modules.init_done(at, memory)
    }

    /// The module at `at` (GVA) is not sealed: it cannot be read.
    pub(super) fn leave_out(&mut self, at: Gva) {
        self.modules.leave_out(at);
    }

    /// What is known of modules, to be compared with what the kernel says of them.
    pub(super) fn seals(&self) -> Seals {
        self.modules.seals()
    }

    /// Opens the module at `at` (GVA), which is about to be freed.
    ///
    /// # Errors
    /// The host refuses.
    pub(super) fn open_module(&mut self, at: Gva, ram: &GuestRam) -> io::Result<()> {
        if let Some(text) = self.modules.open(at, ram)? {
            self.judge.leave(&text);
        }
        Ok(())
    }

    /// These writes, of which those are one that follow one another as the kernel has it: pages that do for the kernel lie anywhere.
    pub(super) fn pieces(&self, writes: Vec<Write>) -> Vec<SealedWrite> {
        let mut all: Vec<SealedWrite> = Vec::new();
        for write in writes {
            let at = self.gva(write.at);
            match all.last_mut() {
                Some(last) if last.at.add(last.bytes.len() as u64) == at => {
                    last.bytes.extend(&write.bytes);
                    last.parts.push(write);
                }
                _ => all.push(SealedWrite { at, bytes: write.bytes.clone(), parts: vec![write] }),
            }
        }
        all
    }

    /// Makes this write, if the kernel may make it itself, which `is_poking` or not.
    ///
    /// # Errors
    /// Why it is not made.
    pub(super) fn carry_out(
        &mut self,
        write: &SealedWrite,
        is_poking: bool,
        ram: &GuestRam,
    ) -> Result<Patch, Objection> {
        let Self { kernel, map, judge, modules } = self;
        let place = |link: Gva| match kernel.pages.iter().any(|pages| link.is_in(pages)) {
            true => Some(map.gpa(link)),
            false => modules.place(map.gva(link)),
        };
        let now = |link: Gva, buf: &mut [u8]| read(ram, link, buf, place);
        let patch = judge.judge(map.link(write.at), &write.bytes, is_poking, now)?;
        write.make(ram).map(|()| patch).map_err(|_| Objection::Place)
    }
}

impl SealedWrite {
    /// Makes it.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn make(&self, ram: &GuestRam) -> Result<(), NoMemory> {
        self.parts.iter().try_for_each(|part| ram.unsealed().write(part.at, &part.bytes))
    }
}
