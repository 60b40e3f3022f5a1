//! The probes of a session: what was asked for, and what has become of each. Nothing here touches the guest.

mod beginnings;
mod consumers;
mod entry;
mod parts;
mod rows;

use super::reasons::OnTrap;
use super::report::{ProbeReport, ProbeState};
use super::resolver::{RegisterError, ResolvedProbe, Resolver};
use crate::events::{MAX_PROBES, ReadProbe, Reader};
use crate::gate::{Gate, GateReport, Gates, LONGEST_WAIT};
use crate::imposed::ImposedOrder;
use crate::injector::{InjectionReport, Injector, Injectors};
use crate::probe::{Active, Handlers, Kin, Kind, Pacing, Probe, Watching};
use crate::trap::Delivery;
use consumers::ConsumerNumbers;
use probe_engine::addr::Gva;
use probe_engine::probe::inject::{Inject, InjectionId};
use probe_engine::probe::pace::{Delay, Pace};
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::Trigger;
use probe_engine::probe::returns::Pool;
use probe_engine::probe::table::ProbeId;
use probe_engine::probe::turns::{ObservedTurns, TurnsReport};
use rows::Rows;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub(super) use entry::RegisteredProbe;

/// All probes, in order of registration.
pub(super) struct Registry {
    entries: BTreeMap<ProbeId, RegisteredProbe>,
    resolver: Arc<Resolver>,
    cpus: u8,
    /// How many places can be watched at a time.
    watches: usize,
    /// Whether anything may be armed at all.
    armed: bool,
    /// Each probe that there was, by its number, as whoever reads its hits knows it.
    read: Vec<ReadProbe>,
    rows: Rows,
    /// Where tasks are held.
    gates: Gates,
    /// The order that is imposed, if one is.
    order: Option<Arc<ImposedOrder>>,
    /// By which calls fail.
    injectors: Injectors,
    /// Return probes that were unregistered while they followed calls.
    leaving: Vec<Arc<Active>>,
    consumers: ConsumerNumbers,
}

impl Registry {
    /// None. `cpus`: of the guest; `trampolines`: how many traps have.
    pub(super) fn new(resolver: Arc<Resolver>, cpus: u8, delivery: Delivery, trampolines: u32) -> Self {
        Self {
            entries: BTreeMap::new(),
            resolver,
            cpus,
            watches: delivery.watches(),
            armed: true,
            read: Vec::new(),
            rows: Rows::new(trampolines),
            gates: Gates::default(),
            order: None,
            injectors: Injectors::default(),
            leaving: Vec::new(),
            consumers: ConsumerNumbers::default(),
        }
    }

    /// The gates, by their numbers.
    pub(super) fn known_gates(&self) -> Gates {
        self.gates.clone()
    }

    /// What the gates came to, by their numbers, but for those of turns.
    pub(super) fn gates(&self) -> Vec<GateReport> {
        let gates = self.gates.0.values().filter(|gate| !gate.id().is_of_turns());
        gates.map(|gate| gate.report()).collect()
    }

    /// From now on probes have their [turns](Pace::Turn) in this order.
    pub(super) fn impose(&mut self, order: ObservedTurns) {
        let order = ImposedOrder::new(order);
        Arc::make_mut(&mut self.gates.0).extend(order.gates().iter().map(|gate| (gate.id(), gate.clone())));
        self.order = Some(Arc::new(order));
    }

    /// What the order came to that was imposed.
    pub(super) fn turns(&self) -> Option<TurnsReport> {
        Some(self.order.as_ref()?.report())
    }

    /// What the injections came to, by their numbers.
    pub(super) fn injections(&self) -> Vec<InjectionReport> {
        self.injectors.iter().map(|(id, injector)| injector.report(*id)).collect()
    }

    /// That of this number.
    pub(super) fn injector(&mut self, id: InjectionId) -> Arc<Injector> {
        self.injectors.entry(id).or_default().clone()
    }

    /// Registers all of `probes` or none.
    pub(super) fn register(&mut self, probes: Vec<Probe>) -> Result<Vec<ProbeId>, RegisterError> {
        self.release_trampolines();
        let mut ids = Vec::with_capacity(probes.len());
        for probe in probes {
            match self.register_one(probe) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    self.unregister(&ids);
                    return Err(error);
                }
            }
        }
        // They are behind all that was asked for: whoever asked knows those by their numbers.
        if let Err(error) = self.know_beginnings(&ids) {
            self.unregister(&ids);
            return Err(error);
        }
        Ok(ids)
    }

    fn register_one(&mut self, probe: Probe) -> Result<ProbeId, RegisterError> {
        let resolved = self.resolver.resolve(probe)?;
        self.insert(resolved, Kin::Nobody)
    }

    /// Registers one, which may be there for another one.
    fn insert(&mut self, probe: ResolvedProbe, kin: Kin<'_>) -> Result<ProbeId, RegisterError> {
        let ResolvedProbe { place, plan, handlers, enabled } = probe;
        let is_watch = matches!(place, Place::Watch(_));
        let stops = plan.pace == Some(Pace::Stop);
        if plan.pace.is_some() && (plan.once || is_watch && !stops) || stops && plan.is_return() {
            return Err(RegisterError::Unpaced(place.name()));
        }
        let has_place = match plan.inject {
            None => true,
            Some(Inject::Fail { .. }) => plan.trigger == Trigger::Pass && !plan.once && place.is_entry(),
            Some(Inject::Under { .. }) => plan.is_return(),
        };
        if !has_place {
            return Err(RegisterError::Uninjected(place.name()));
        }
        let number = self.read.len();
        let id = ProbeId(
            u32::try_from(number).ok().filter(|_| number < MAX_PROBES).ok_or(RegisterError::TooMany)?,
        );
        let kind = match handlers {
            Handlers::Watch(handler) if matches!(place, Place::Watch(_)) => {
                if self.watched().count() >= self.watches {
                    return Err(RegisterError::TooManyWatches(self.watches));
                }
                Kind::Watch(Watching::new(handler))
            }
            Handlers::Watch(_) => return Err(RegisterError::NoWatch(place.name())),
            _ if matches!(place, Place::Watch(_)) => return Err(RegisterError::OnlyWatch(place.name())),
            Handlers::Instruction(handlers)
                if plan.once && (handlers.post.is_some() || handlers.fault.is_some()) =>
            {
                return Err(RegisterError::OnlyPre(place.name()));
            }
            Handlers::Instruction(handlers) => Kind::Instruction(handlers),
            Handlers::Return(_) if !place.is_entry() => {
                return Err(RegisterError::NotAnEntry(place.name()));
            }
            Handlers::Return(handlers) => {
                let calls = plan.trigger.max_active().unwrap_or(10.max(2 * u32::from(self.cpus))).max(1);
                let rows = self.rows.take(calls).ok_or(RegisterError::NoTrampolines)?;
                let pool = Pool::new(rows.start, calls, self.cpus.into());
                Kind::Return(handlers, pool)
            }
        };
        let plan = Arc::new(plan);
        self.read.push(ReadProbe { plan: plan.clone(), begins: None });
        let pacing = plan.pace.and_then(|pace| self.pacing(pace));
        let inject = plan.inject;
        let injector = inject.map(|inject| self.injector(inject.injection()));
        let consumer = match plan.program {
            Some(_) => Some(self.consumers.take().ok_or(RegisterError::TooManyInPrograms)?),
            None => None,
        };
        let active = Active::new(id, plan, kind).paced(pacing).injecting(injector.clone());
        let active = Arc::new(active.called_for(consumer).of(kin));
        match (inject, injector) {
            (Some(Inject::Fail { turns, .. }), Some(injector)) => injector.set_turns(turns),
            (Some(Inject::Under { .. }), Some(injector)) => {
                let active = active.clone();
                injector.set_under(move |task| active.pool().is_some_and(|pool| pool.follows(task)));
            }
            _ => {}
        }
        let info = match &place {
            Place::Kernel { info, .. } => Some(info.clone()),
            Place::Module { .. } | Place::Watch(_) => None,
        };
        let state = ProbeState::Waiting;
        self.entries.insert(
            id,
            RegisteredProbe {
                active,
                part_of: kin.other(),
                parts: Vec::new(),
                beginnings: None,
                place,
                info,
                enabled,
                state,
                trapped: None,
                stood: None,
                has_stood: false,
                moved_for_ftrace: false,
                tracepoint: None,
                is_switched_on: false,
                was_missing: false,
                yields: 0,
            },
        );
        Ok(id)
    }

    /// The same as `pace`, with the gate that it names. Without an order nobody has a turn.
    fn pacing(&mut self, pace: Pace) -> Option<Pacing> {
        let gates = Arc::make_mut(&mut self.gates.0);
        let mut gate = |id| gates.entry(id).or_insert_with(|| Arc::new(Gate::new(id))).clone();
        Some(match pace {
            Pace::Turn { within } => Pacing::Turn(self.order.clone()?, within.min(LONGEST_WAIT)),
            Pace::Hold { gate: id, within, mode } => Pacing::Hold(gate(id), within.min(LONGEST_WAIT), mode),
            Pace::Open { gate: id } => Pacing::Open(gate(id)),
            Pace::Stop => Pacing::Stop,
            Pace::Delay(delay) => {
                let most = delay.most.min(LONGEST_WAIT);
                Pacing::Delay(Delay { most, ..delay }, AtomicU64::new(0))
            }
        })
    }

    /// All probes that there were, by their numbers.
    pub(super) fn read_probes(&self) -> &[ReadProbe] {
        &self.read
    }

    /// Unregisters those of `ids` that there are.
    pub(super) fn unregister(&mut self, ids: &[ProbeId]) {
        for entry in self.with_parts(ids).iter().filter_map(|id| self.entries.remove(id)) {
            entry.active.retire();
            self.consumers.left.extend(entry.active.consumer());
            if entry.active.pool().is_some() {
                self.leaving.push(entry.active);
            }
        }
    }

    /// Frees the trampolines of return probes that have gone and follow nothing any more.
    pub(super) fn release_trampolines(&mut self) {
        let rows = &mut self.rows;
        self.leaving.retain(|active| match active.pool() {
            Some(pool) if pool.outstanding() == 0 => {
                rows.give_back(pool.numbers());
                false
            }
            pool => pool.is_some(),
        });
    }

    /// Return probes with what they follow, those that have gone included.
    pub(super) fn returns(&self) -> impl Iterator<Item = &Arc<Active>> {
        let present = self.entries.values().map(|entry| &entry.active).filter(|a| a.pool().is_some());
        present.chain(&self.leaving)
    }

    /// The watches. Each has its debug register, enabled or not.
    pub(super) fn watched(&self) -> impl Iterator<Item = &RegisteredProbe> {
        self.entries.values().filter(|entry| matches!(entry.place, Place::Watch(_)))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is nothing that stands in the text.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() == self.watched().count()
    }

    /// Numbers of consumers are for others of whom nobody is left, unless the guest still uses them.
    pub(super) fn free_consumers(&mut self, is_used: impl Fn(u32) -> bool) {
        let (used, free) = std::mem::take(&mut self.consumers.left).into_iter().partition(|n| is_used(*n));
        self.consumers.left = used;
        self.consumers.free.extend::<Vec<u32>>(free);
    }

    /// Whether any probe is in a program.
    pub(super) fn has_programs(&self) -> bool {
        self.consumers.are_used()
    }

    /// Whether any probe is at a tracepoint.
    pub(super) fn has_tracepoints(&self) -> bool {
        self.entries.values().any(|entry| entry.active.plan.tracepoint.is_some())
    }

    /// Whether any probe is in a module, loaded or not.
    pub(super) fn has_modules(&self) -> bool {
        self.entries.values().any(|entry| matches!(entry.place, Place::Module { .. }))
    }

    pub(super) fn contains(&self, id: ProbeId) -> bool {
        self.entries.contains_key(&id)
    }

    pub(super) fn get(&self, id: ProbeId) -> Option<&RegisteredProbe> {
        self.entries.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RegisteredProbe> {
        self.entries.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RegisteredProbe> {
        self.entries.values_mut()
    }

    pub(super) fn enable(&mut self, ids: &[ProbeId], enabled: bool) {
        for id in self.with_parts(ids) {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.enabled = enabled;
            }
        }
    }

    /// The switch for all.
    pub(super) fn arm(&mut self, armed: bool) {
        self.armed = armed;
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    pub(super) fn set_state(&mut self, id: ProbeId, state: ProbeState) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.state = state;
        }
    }

    /// Why a probe stands on a trap.
    pub(super) fn stays_trapped(&mut self, id: ProbeId, reason: OnTrap) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.trapped = Some(reason);
        }
    }

    /// All probes stand where they have to: those that stand have stood from now on.
    pub(super) fn note_standing(&mut self) {
        let stands = |entry: &&mut RegisteredProbe| {
            matches!(entry.state, ProbeState::Armed(_) | ProbeState::Optimized(_))
        };
        self.entries.values_mut().filter(stands).for_each(|entry| entry.has_stood = true);
    }

    /// The guest has changed the text at `at`. A probe that has moved from there stands where it is now.
    pub(super) fn overwritten(&mut self, at: Gva) {
        let stood = |entry: &&mut RegisteredProbe| {
            entry.stood == Some(at)
                && matches!(
                    entry.state,
                    ProbeState::Armed(_) | ProbeState::Optimized(_) | ProbeState::Disabled
                )
        };
        self.entries.values_mut().filter(stood).for_each(|entry| entry.state = ProbeState::Overwritten(at));
    }

    /// All probes with what they have seen. Of their hits, `lost` were not handed on.
    pub(super) fn report(&self, reader: &Reader, lost: impl Fn(ProbeId) -> u64) -> Vec<ProbeReport> {
        let wholes = self.entries.iter().filter(|(_, entry)| entry.part_of.is_none());
        self.report_of(&wholes.map(|(id, _)| *id).collect::<Vec<_>>(), reader, lost)
    }

    /// Those of `ids` that are registered.
    pub(super) fn report_of(
        &self,
        ids: &[ProbeId],
        reader: &Reader,
        lost: impl Fn(ProbeId) -> u64,
    ) -> Vec<ProbeReport> {
        let detoured = reader.outstanding();
        ids.iter().filter_map(|id| self.report_with_parts(*id, reader, lost(*id), &detoured)).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use probe_engine::probe::place::SiteInfo;
    use probe_engine::probe::table::TRAMPOLINE_ROW;
    use probe_engine::probe::watch::{Condition, Length, Watch};

    /// Of a guest with so many vCPUs, whose breakpoints come so.
    pub(crate) fn registry(cpus: u8, delivery: Delivery) -> Registry {
        Registry::new(Arc::new(Resolver::default()), cpus, delivery, 64 * TRAMPOLINE_ROW)
    }

    fn watch(at: u64) -> Probe {
        let (length, condition) = (Length::Eight, Condition::Write);
        Probe::watch(Place::Watch(Watch { name: format!("{at:#x}"), at: Gva(at), length, condition })).into()
    }

    #[test]
    fn one_watch_more_than_there_are_debug_registers_is_refused() {
        for (delivery, most) in [(Delivery::Intercepted, 4), (Delivery::Reflected, 3)] {
            let mut registry = registry(1, delivery);
            let watches = (0..most).map(|n| watch(0x1000 + 8 * n)).collect();
            let ids = registry.register(watches).unwrap();
            let refused = registry.register(vec![watch(0x2000)]).unwrap_err();
            assert!(matches!(refused, RegisterError::TooManyWatches(n) if n as u64 == most), "{refused}");
            assert!(refused.to_string().starts_with(&format!("{most} places can be watched")), "{refused}");
            assert_eq!(registry.watched().count() as u64, most);
            registry.unregister(&ids[..1]);
            registry.register(vec![watch(0x2000)]).unwrap();
        }
    }

    #[test]
    fn a_return_probe_follows_ten_calls_or_two_a_vcpu_if_nothing_else_is_said() {
        let entry = |max_active: Option<u32>| {
            let function = Gva(0x1000)..Gva(0x1100);
            let info = SiteInfo::entry_of(function);
            let probe = Probe::on_return(Place::Kernel { name: "function".to_owned(), info });
            Probe::from(match max_active {
                Some(calls) => probe.max_active(calls),
                None => probe,
            })
        };
        for (cpus, asked, calls) in
            [(1, None, 10), (5, None, 10), (6, None, 12), (16, None, 32), (16, Some(3), 3)]
        {
            let mut registry = registry(cpus, Delivery::Intercepted);
            registry.register(vec![entry(asked)]).unwrap();
            let pools: Vec<_> = registry.returns().filter_map(|active| active.pool()).collect();
            assert_eq!(
                pools.iter().map(|pool| pool.numbers().len()).collect::<Vec<_>>(),
                [calls],
                "{cpus} vCPUs"
            );
        }
    }
}
