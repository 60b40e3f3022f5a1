//! Probes in modules: their places are found when the guest has put the module together, and lost with it.

use super::registry::{Registry, State};
use super::text::Ground;
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::linux::modules::{Module, ModuleLayout, ModuleState, modules};
use probe_engine::memory::VirtMemory;
use probe_engine::probe::place::Place;
use probe_engine::probe::resolve::in_module;
use std::ops::Range;

/// The modules of a running guest.
pub(super) struct Modules<'a> {
    pub(super) layout: &'a ModuleLayout,
    pub(super) ground: &'a Ground,
    pub(super) ram: &'a GuestRam,
}

impl Modules<'_> {
    /// The module at `at` is ready: its text is final, and none of it has run.
    pub(super) fn ready(&self, at: Gva, registry: &mut Registry) {
        // What is no module to us has no probes either.
        if let Ok(module) = Module::read(self.layout, &self.memory(), at) {
            self.find_places(&module, registry);
        }
    }

    /// The module at `at` is about to be freed.
    pub(super) fn gone(&self, at: Gva, registry: &mut Registry) {
        if let Ok(module) = Module::read(self.layout, &self.memory(), at) {
            retire(&module.text, registry);
            retire(&module.init_text, registry);
        }
    }

    /// Looks for places in modules that were loaded before anyone asked.
    pub(super) fn look_around(&self, registry: &mut Registry) {
        let head = self.ground.map.gva(self.layout.head);
        for module in modules(self.layout, &self.memory(), head).unwrap_or_default() {
            if matches!(module.state, ModuleState::Live | ModuleState::Coming) {
                self.find_places(&module, registry);
            }
        }
    }

    fn find_places(&self, module: &Module, registry: &mut Registry) {
        let memory = self.memory();
        for entry in registry.iter_mut() {
            let Place::Module { module: name, symbol, offset } = &entry.place else { continue };
            if *name != module.name || entry.spot.is_some() || entry.is_over() {
                continue;
            }
            match in_module(module, self.layout, &memory, symbol, *offset) {
                Ok(spot) => {
                    entry.spot = Some(spot);
                    entry.made_room = false;
                    entry.state = State::Waiting;
                }
                Err(error) => entry.state = State::Refused(error.to_string()),
            }
        }
    }

    fn memory(&self) -> VirtMemory<'_, GuestRam> {
        VirtMemory { phys: self.ram, space: self.ground.space }
    }
}

/// The module text in `range` is about to be freed.
pub(super) fn retire(range: &Range<Gva>, registry: &mut Registry) {
    for entry in registry.iter_mut() {
        let is_module = matches!(entry.place, Place::Module { .. });
        if let Some(spot) = entry.spot.take_if(|spot| is_module && spot.at.is_in(range))
            && !entry.is_over()
        {
            entry.state = State::Gone(spot.at);
        }
    }
}
