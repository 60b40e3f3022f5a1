//! Probes in modules: their places are found when the guest has put the module together, and lost with it.

use super::registry::{RegisteredProbe, Registry};
use super::report::ProbeState;
use super::text::RunningKernel;
use crate::kernel_view::{KernelView, Unread};
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::insn::INT3;
use probe_engine::linux::modules::{Module, ModuleLayout, ModuleState, modules};
use probe_engine::probe::place::Place;
use probe_engine::probe::resolve::LoadedModule;
use probe_engine::virt_memory::VirtMemory;
use std::collections::HashSet;
use std::ops::Range;

/// The modules of a running guest.
pub(super) struct Modules<'a> {
    pub(super) layout: &'a ModuleLayout,
    pub(super) running: &'a RunningKernel,
    pub(super) ram: &'a GuestRam,
}

impl Modules<'_> {
    /// The module at `at` is ready: its text is final, and none of it has run. Returns where traps stood (GVA) that
    /// went with an earlier load of it: one that failed ends without a word.
    pub(super) fn ready(
        &self,
        at: Gva,
        registry: &mut Registry,
        code: &mut KernelView,
        unread: &mut Vec<Unread>,
    ) -> Vec<Gva> {
        // What is no module to us has no probes either.
        let Ok(module) = Module::read(self.layout, &self.memory(), at) else { return Vec::new() };
        code.add(&module, self.layout, &self.memory(), unread);
        let lost = self.lost(&module, registry);
        self.find_places(&module, registry);
        lost
    }

    /// The module at `at` is about to be freed.
    pub(super) fn gone(&self, at: Gva, registry: &mut Registry, code: &mut KernelView) {
        if let Ok(module) = Module::read(self.layout, &self.memory(), at) {
            code.remove(&module);
            retire(&module.text, registry);
            retire(&module.init_text, registry);
        }
    }

    /// Looks for places in modules that were loaded before anyone asked.
    pub(super) fn look_around(&self, registry: &mut Registry) {
        let head = self.running.map.gva(self.layout.head);
        let mut seen = HashSet::new();
        for module in modules(self.layout, &self.memory(), head).unwrap_or_default() {
            let is_loaded = matches!(module.state, ModuleState::Live | ModuleState::Coming);
            // There is one of each name, unless the guest makes fun of us.
            if is_loaded && seen.insert(module.name.clone()) {
                self.find_places(&module, registry);
            }
        }
    }

    /// Forgets places of `module` that are not in it, or where our trap is not.
    fn lost(&self, module: &Module, registry: &mut Registry) -> Vec<Gva> {
        let memory = self.memory();
        let stands = |at: Gva| {
            let mut byte = [0];
            module.is_text(at) && memory.read(at, &mut byte).is_ok() && byte == [INT3]
        };
        let mut lost = Vec::new();
        for entry in of_module(registry, &module.name) {
            match entry.state {
                ProbeState::Armed(at) if stands(at) => continue,
                ProbeState::Armed(at) => lost.push(at),
                _ => {}
            }
            entry.info = None;
        }
        lost
    }

    fn find_places(&self, module: &Module, registry: &mut Registry) {
        let memory = self.memory();
        let mut loaded = None;
        for entry in of_module(registry, &module.name) {
            let Place::Module { symbol, offset, .. } = &entry.place else { continue };
            if entry.info.is_some() || entry.is_over() {
                continue;
            }
            let loaded = loaded.get_or_insert_with(|| LoadedModule::read(module, self.layout, &memory));
            let place = match loaded {
                Ok(loaded) => loaded.place(&memory, symbol, *offset).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match place {
                Ok(info) => {
                    entry.info = Some(info);
                    entry.moved_for_ftrace = false;
                    entry.state = ProbeState::Waiting;
                }
                Err(reason) => entry.state = ProbeState::Refused(reason),
            }
        }
    }

    pub(super) fn memory(&self) -> VirtMemory<'_, GuestRam> {
        VirtMemory::new(self.ram, self.running.space)
    }
}

/// The probes in the module `name`.
fn of_module<'a>(registry: &'a mut Registry, name: &'a str) -> impl Iterator<Item = &'a mut RegisteredProbe> {
    let is_in = move |entry: &&mut RegisteredProbe| matches!(&entry.place, Place::Module { module, .. } if module == name);
    registry.iter_mut().filter(is_in)
}

/// The module text in `range` is about to be freed.
pub(super) fn retire(range: &Range<Gva>, registry: &mut Registry) {
    for entry in registry.iter_mut() {
        let is_module = matches!(entry.place, Place::Module { .. });
        if let Some(info) = entry.info.take_if(|info| is_module && info.at.is_in(range))
            && !entry.is_over()
        {
            entry.state = ProbeState::Gone(info.at);
        }
    }
}
