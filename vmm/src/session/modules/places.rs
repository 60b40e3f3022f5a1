//! Places of probes in modules: found when the guest has put a module together, and lost with it.

use crate::session::registry::{RegisteredProbe, Registry};
use crate::session::report::ProbeState;
use probe_engine::addr::Gva;
use probe_engine::insn::INT3;
use probe_engine::linux::modules::{Module, ModuleLayout};
use probe_engine::memory::PhysMemory;
use probe_engine::probe::place::Place;
use probe_engine::probe::resolve::LoadedModule;
use probe_engine::virt_memory::VirtMemory;
use std::ops::Range;

/// Finds places in `module`, which is loaded.
pub(super) fn find<M: PhysMemory + ?Sized>(
    module: &Module,
    layout: &ModuleLayout,
    memory: &VirtMemory<'_, M>,
    registry: &mut Registry,
) {
    let mut loaded = None;
    for entry in in_modules(registry).filter(|entry| is_of(entry, module)) {
        let Place::Module { symbol, offset, .. } = &entry.place else { continue };
        if entry.info.is_some() || entry.is_over() {
            continue;
        }
        let loaded = loaded.get_or_insert_with(|| LoadedModule::read(module, layout, memory));
        let place = match loaded {
            Ok(loaded) => loaded.place(memory, symbol, *offset).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let tracepoint = entry.active.plan.tracepoint.as_ref();
        let tracepoint = tracepoint.map(|own| match module.tracepoint(layout, memory, &own.name) {
            Ok(Some(at)) => Ok(at),
            Ok(None) => Err(format!("the module has no tracepoint `{}`", own.name)),
            Err(error) => Err(error.to_string()),
        });
        match tracepoint.transpose().and_then(|tracepoint| Ok((place?, tracepoint))) {
            Ok((info, tracepoint)) => {
                entry.info = Some(info);
                entry.tracepoint = tracepoint;
                entry.moved_for_ftrace = false;
                entry.state = ProbeState::Waiting;
            }
            Err(reason) => entry.state = ProbeState::Refused(reason),
        }
    }
}

/// Forgets places that went without a word before `module` came: those of an earlier load of it, and those of others where
/// it is now. Returns where traps stood (GVA) that went with them.
pub(super) fn lost<M: PhysMemory + ?Sized>(
    module: &Module,
    memory: &VirtMemory<'_, M>,
    registry: &mut Registry,
) -> Vec<Gva> {
    let stands = |at: Gva| {
        let mut byte = [0];
        module.is_text(at) && memory.read(at, &mut byte).is_ok() && byte == [INT3]
    };
    let mut lost = Vec::new();
    for entry in in_modules(registry) {
        let is_of = is_of(entry, module);
        let is_there = entry.info.as_ref().is_some_and(|info| module.is_text(info.at));
        match entry.state {
            _ if !is_of && !is_there => continue,
            ProbeState::Armed(at) if is_of && stands(at) => continue,
            ProbeState::Armed(at) => lost.push(at),
            _ => {}
        }
        match is_of {
            true => entry.info = None,
            false => retire_one(entry),
        }
    }
    lost
}

/// The tracepoints of `module` are about to go, before its text does. Returns those that probes are at (GVA).
pub(super) fn retire_tracepoints(module: &Module, registry: &mut Registry) -> Vec<Gva> {
    let mut going = Vec::new();
    for entry in in_modules(registry) {
        let is_there = entry.info.as_ref().is_some_and(|info| module.is_text(info.at));
        if let Some(tracepoint) = entry.tracepoint.filter(|_| is_there) {
            going.push(tracepoint);
            retire_one(entry);
        }
    }
    going
}

/// The text in `range` is about to be freed.
pub(super) fn retire(range: &Range<Gva>, registry: &mut Registry) {
    let is_there =
        |entry: &&mut RegisteredProbe| entry.info.as_ref().is_some_and(|info| info.at.is_in(range));
    in_modules(registry).filter(is_there).for_each(retire_one);
}

fn retire_one(entry: &mut RegisteredProbe) {
    (entry.tracepoint, entry.is_switched_on) = (None, false);
    if let Some(info) = entry.info.take()
        && !entry.is_over()
    {
        entry.state = ProbeState::Gone(info.at);
    }
}

/// The probes in modules.
fn in_modules(registry: &mut Registry) -> impl Iterator<Item = &mut RegisteredProbe> {
    registry.iter_mut().filter(|entry| matches!(entry.place, Place::Module { .. }))
}

/// Whether `entry` is a probe in a module of that name.
fn is_of(entry: &RegisteredProbe, module: &Module) -> bool {
    matches!(&entry.place, Place::Module { module: name, .. } if *name == module.name)
}
