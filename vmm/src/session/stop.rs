//! A stop of the world, as those see it who change the guest's text in it.

use super::reasons::NoSpace;
use crate::memory::GuestRam;
use crate::probe::Active;
use crate::reserved::{Reserved, Slots};
use crate::world::Parked;
use probe_engine::detour::instances::Instances;
use probe_engine::probe::returns::Pool;
use probe_engine::probe::table::ProbeSet;
use std::sync::Arc;

/// A stop of the world.
pub(super) struct Stop<'a> {
    pub(super) parked: &'a Parked<'a>,
    pub(super) ram: &'a GuestRam,
}

/// Takes room for `length` bytes of code. Frees what nobody needs when there is none, of which calls that are followed,
/// by detours (`calls`) and by the traps of `set`, tell more than the guest's memory: they keep return addresses.
pub(super) fn allocate(
    reserved: &mut Reserved,
    length: usize,
    calls: &Instances,
    stop: &Stop<'_>,
    set: &mut ProbeSet<Arc<Active>>,
) -> Result<Slots, NoSpace> {
    if let Some(slots) = reserved.allocate(length) {
        return Ok(slots);
    }
    let by_traps = || {
        let mut owners: Vec<_> = set.owners().collect();
        owners.dedup_by(|a, b| Arc::ptr_eq(a, b));
        owners.into_iter().filter_map(|owner| owner.pool()).flat_map(Pool::backs)
    };
    let known = || stop.parked.rips().into_iter().chain(calls.returns(stop.ram)).chain(by_traps()).collect();
    let reclaimed = reserved.reclaim(stop.parked, stop.ram, known);
    if reclaimed.map_err(|error| NoSpace::Untold(Arc::new(error)))? > 0 {
        set.retain_copies(|at| reserved.is_in_use(at));
    }
    reserved.allocate(length).ok_or(NoSpace::Full)
}
