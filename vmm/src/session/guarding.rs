//! Sealing the kernel's pages once it has booted and those of modules as long as they are loaded, and handing on what was found since.

use super::control::Control;
use super::report::{Death, Outcome};
use crate::clock;
use crate::guard::{Done, Finding, Found, Guard, Suspicion, Writer};
use crate::memory::GuestRam;
use crate::vcpu::VcpuTables;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::guard::module::SealedModule;
use probe_engine::linux::modules::{Module, ModuleState, modules};
use probe_engine::linux::running::RunningKernel;
use probe_engine::paging::{Access, PageFault};
use probe_engine::probe::table::Internal;
use probe_engine::virt_memory::VirtMemory;
use std::io;

/// The kernel's pages cannot be sealed.
#[derive(Debug, thiserror::Error)]
enum SealError {
    #[error("it has no address space in which it changes its text")]
    NoPoking(#[from] PageFault),
    #[error("the host refused to write-protect its pages")]
    Host(#[from] io::Error),
}

/// What has become of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModuleStep {
    /// It is put together, and nothing of it has run.
    Ready,
    /// Its init has run.
    Initialized,
    /// It is about to be freed.
    Gone,
}

impl Control<'_> {
    /// The kernel has sealed itself, while no vCPU runs.
    pub(super) fn seal(&mut self, tables: &VcpuTables) {
        let Some((guard, running)) = self.guard.as_ref().zip(self.arming.running()) else { return };
        let is_told = |of| tables.sites.iter().any(|site| site.internal == Some(of));
        let follows_modules = is_told(Internal::ModuleReady) && is_told(Internal::ModuleGone);
        match seal(guard, &self.ram, *running, follows_modules) {
            Ok(()) => {
                if self.entry_filter.as_ref().is_some_and(|filter| filter.ask().is_ok()) {
                    guard.guards_entries();
                }
                self.seal_loaded_modules(tables);
                self.begin_scanning();
            }
            Err(error) => self.cannot_guard(&error),
        }
    }

    /// Seals the modules that were loaded before the kernel had sealed itself.
    fn seal_loaded_modules(&mut self, tables: &VcpuTables) {
        let Some((layout, running)) = self.kernel.modules.as_ref().zip(self.arming.running()) else { return };
        let memory = VirtMemory::new(&*self.ram, running.space);
        // What is no list of modules has none that are known.
        let loaded = modules(layout, &memory, running.map.gva(layout.head)).unwrap_or_default();
        for Module { at, state, .. } in loaded {
            if matches!(state, ModuleState::Coming | ModuleState::Live) {
                self.follow_module(at, ModuleStep::Ready, tables);
            }
            if state == ModuleState::Live {
                self.follow_module(at, ModuleStep::Initialized, tables);
            }
        }
    }

    /// Seals the module at `at` (GVA), or opens it, while no vCPU runs.
    pub(super) fn follow_module(&mut self, at: Gva, step: ModuleStep, tables: &VcpuTables) {
        let Some(guard) = self.guard.clone().filter(|guard| guard.is_standing()) else { return };
        // What was found in its pages is told by where they are now.
        self.hand_on_findings();
        let Some((layout, running)) = self.kernel.modules.as_ref().zip(self.arming.running()) else { return };
        let memory = VirtMemory::new(&*self.ram, running.space);
        let done = match step {
            ModuleStep::Ready => {
                let kprobes = (guard.kernel().kprobes.as_ref(), running.map.slide());
                let read = Module::read(layout, &memory, at).and_then(|module| {
                    let symbols = module.symbols(layout, &memory)?;
                    SealedModule::read(&module, layout, &memory, &symbols, kprobes)
                });
                // Nobody would say when it is freed.
                let is_told = tables.sites.iter().any(|site| site.internal == Some(Internal::ModuleGone));
                match read {
                    Ok(module) if is_told => guard.seal_module(at, &module, &memory),
                    // What stands there already stays sealed.
                    _ => {
                        guard.leave_out_module(at);
                        Ok(())
                    }
                }
            }
            ModuleStep::Initialized => guard.module_initialized(at, &memory),
            ModuleStep::Gone => guard.open_module(at, &self.ram),
        };
        if let Err(error) = done {
            self.cannot_guard(&error.into());
        }
    }

    fn cannot_guard(&mut self, error: &SealError) {
        let words = format!("its kernel cannot be guarded: {error}");
        self.outcome = Some(Outcome::Died(Death::Lost(words)));
    }

    /// Hands on what has been written to sealed memory.
    pub(super) fn hand_on_findings(&mut self) {
        let Some(guard) = &self.guard else { return };
        for (at, length) in self.ram.take_refused() {
            let (writer, why, done) = (Writer::Device, Suspicion::Device, Done::Denied);
            guard.tell(Found {
                ticks: clock::ticks(),
                at: Some(guard.place(at)),
                length,
                bytes: Vec::new(),
                writer,
                why,
                done,
            });
        }
        let rate = self.clock.rate();
        let told = |found: Found| Finding {
            nanos: rate.nanos(found.ticks),
            guest_nanos: self.reader.guest_nanos(found.ticks),
            at: found.at,
            length: found.length,
            bytes: found.bytes,
            writer: found.writer,
            why: found.why,
            done: found.done,
        };
        let findings: Vec<Finding> = guard.take().into_iter().map(told).collect();
        if findings.is_empty() {
            return;
        }
        if self.sink_failed || self.sink.findings(&findings).is_err() {
            self.sink_failed = true;
            guard.lose(findings.len() as u64);
        }
    }
}

fn seal(
    guard: &Guard,
    ram: &GuestRam,
    RunningKernel { map, space }: RunningKernel,
    follows_modules: bool,
) -> Result<(), SealError> {
    let kernel = guard.kernel();
    let memory = VirtMemory::new(ram, space);
    // struct mm_struct *poking_mm; pgd_t *pgd
    let poking = memory.read_u64(map.gva(kernel.poking_space))?;
    let top = memory.read_u64(Gva(poking).add(kernel.page_table))?;
    let poking: Gpa = memory.translate(Gva(top), Access::Read)?;
    guard.stands(map, poking, follows_modules);
    for pages in &kernel.pages {
        ram.seal(&(map.gpa(pages.start)..map.gpa(pages.end)))?;
    }
    Ok(())
}
