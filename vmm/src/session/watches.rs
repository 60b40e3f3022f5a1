//! Which debug register watches what. The boot has them first: nothing is watched before it is over.

use super::reasons::NotMapped;
use super::registry::{RegisteredProbe, Registry};
use super::report::ProbeState;
use super::stage;
use crate::kvm::DebugRegister;
use crate::memory::GuestRam;
use crate::vcpu::{VcpuTables, value};
use probe_engine::addr::Gva;
use probe_engine::linux::running::{KernelMap, RunningKernel};
use probe_engine::probe::place::Place;
use probe_engine::probe::watch::Condition;
use probe_engine::virt_memory::VirtMemory;

/// Gives the registers that the guest's `int3` handler does not need to the watches that are wanted, in order of
/// registration, and tells each one's state.
pub(super) fn set(registry: &mut Registry, running: &RunningKernel, ram: &GuestRam, tables: &mut VcpuTables) {
    tables.breakpoints = stage::breakpoints(&[], tables.int3_handlers);
    tables.watches = Default::default();
    let armed = registry.is_armed();
    let mut free = tables.breakpoints.0.iter_mut().zip(&mut tables.watches).filter(|(r, _)| r.is_none());
    for entry in registry.iter_mut() {
        let Some(register) = wanted(entry, &running.map, armed) else { continue };
        // The registry takes no more watches than there are registers.
        let Some((free, watch)) = free.next() else { break };
        entry.state = match start(entry, &register, running, ram) {
            Ok(()) => {
                entry.stood = Some(register.at);
                (*free, *watch) = (Some(register), Some(entry.active.clone()));
                ProbeState::Armed(register.at)
            }
            Err(reason) => ProbeState::Refused(reason.to_string()),
        };
    }
}

/// Gives registers that the boot, which is followed by `stage`, does not need to watches of instructions. The others wait: what is
/// watched may not be mapped yet.
pub(super) fn set_early(registry: &mut Registry, map: &KernelMap, stage: &[Gva], tables: &mut VcpuTables) {
    tables.breakpoints = stage::breakpoints(stage, tables.int3_handlers);
    tables.watches = Default::default();
    let armed = registry.is_armed();
    let mut free = tables.breakpoints.0.iter_mut().zip(&mut tables.watches).filter(|(r, _)| r.is_none());
    for entry in registry.iter_mut() {
        let Some(register) = wanted(entry, map, armed) else { continue };
        entry.state = ProbeState::Waiting;
        if register.condition == Condition::Execute
            && let Some((free, watch)) = free.next()
        {
            entry.stood = Some(register.at);
            (*free, *watch) = (Some(register), Some(entry.active.clone()));
            entry.state = ProbeState::Armed(register.at);
        }
    }
}

/// The register for `entry`, if that is a watch that is to be set.
fn wanted(entry: &mut RegisteredProbe, map: &KernelMap, armed: bool) -> Option<DebugRegister> {
    let Place::Watch(watch) = &entry.place else { return None };
    if entry.active.is_broken() || matches!(entry.state, ProbeState::Refused(_)) {
        return None;
    }
    if !entry.enabled || !armed {
        entry.state = ProbeState::Disabled;
        return None;
    }
    let at = map.gva(watch.at);
    Some(DebugRegister { at, length: watch.length, condition: watch.condition })
}

/// Sees to it that the first access has a value before it.
fn start(
    entry: &RegisteredProbe,
    register: &DebugRegister,
    running: &RunningKernel,
    ram: &GuestRam,
) -> Result<(), NotMapped> {
    let is_new = entry.state != ProbeState::Armed(register.at);
    if is_new && register.condition != Condition::Execute {
        let memory = VirtMemory::new(ram, running.space);
        let held = value(&memory, register.at, register.length);
        let held = held.ok_or(NotMapped(register.at))?;
        if let Some(watching) = entry.active.watching() {
            watching.replace(held);
        }
    }
    Ok(())
}
