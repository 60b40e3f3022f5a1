//! What stands where: each site of the guest's text has one owner and one state.
//!
//! Everything that changes what is wanted (a probe is registered, disabled, moved; the guest frees text, loads a
//! module, or works on its own text) ends in one [`settle`](Sites::settle), in one stop of the world.

mod detour;
mod stale;
mod trap;
mod wanted;

pub(super) use wanted::{Wanted, WantedSites};

use super::detours::Detours;
use super::reasons::refusal;
use super::registry::Registry;
use super::relocation::{Relocation, Relocations};
use super::report::ProbeState;
use super::stop::StoppedGuest;
use crate::probe::Active;
use detour::Detour;
use probe_engine::addr::Gva;
use probe_engine::linux::ftrace_site::FTRACE_SITE;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::probe::table::Attached;
use stale::Stale;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use trap::PlantedTrap;

/// Names a site: an address means something in an address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SiteKey {
    space: SiteSpace,
    at: Gva,
}

/// An address space of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SiteSpace {
    /// The kernel's half, which all tasks share.
    Kernel,
}

impl SiteKey {
    /// The site at `at` in the kernel.
    pub(super) fn kernel(at: Gva) -> Self {
        Self { space: SiteSpace::Kernel, at }
    }
}

/// What we have at one address of the guest's text.
#[derive(Default)]
struct Site {
    state: SiteState,
    /// Whether the instructions here make room for a jump.
    relocation: Relocation,
    /// The instruction here was seen to access a device: the host cannot emulate it.
    accesses_device: bool,
}

/// What stands at a site.
#[derive(Default)]
enum SiteState {
    /// Nothing of ours.
    #[default]
    Free,
    /// A trap byte.
    Trap(PlantedTrap),
    /// A jump to a stub.
    Detour(Box<Detour>),
}

/// All sites where something of ours stands or is wanted.
pub(super) struct Sites {
    sites: BTreeMap<SiteKey, Site>,
    pub(super) detours: Detours,
    relocations: Relocations,
    stale: Stale,
    /// What a task that is held calls to have its CPU run others, where it was linked.
    schedule: Option<Gva>,
}

impl Sites {
    /// None.
    pub(super) fn new(kernel: &Landmarks, detours: Detours) -> Self {
        let (relocations, stale) = (Relocations::new(kernel), Stale::default());
        let schedule = kernel.preemption.map(|preemption| preemption.schedule);
        Self { sites: BTreeMap::new(), detours, relocations, stale, schedule }
    }

    /// The instruction at `at` accesses a device: from now on it runs from a copy.
    pub(super) fn run_from_copy(&mut self, at: Gva) {
        self.sites.entry(SiteKey::kernel(at)).or_default().accesses_device = true;
    }

    /// Whether the instruction at `at` was seen to access a device.
    pub(super) fn accesses_device(&self, at: Gva) -> bool {
        self.sites.get(&SiteKey::kernel(at)).is_some_and(|site| site.accesses_device)
    }

    /// Whether it is time to do what could not be done before, or had not to be.
    pub(super) fn is_due(&self) -> bool {
        self.relocations.is_due() || self.detours.is_due()
    }

    /// Makes what stands in the text what is `wanted`, and tells each probe's state.
    pub(super) fn settle(
        &mut self,
        mut wanted: WantedSites,
        registry: &mut Registry,
        guest: &mut StoppedGuest<'_>,
    ) {
        self.detours.look_at(wanted.places());
        self.take_out(&wanted, registry, guest);
        self.find_relocations(&mut wanted, registry, guest);
        let places: BTreeSet<Gva> = wanted.places().collect();
        for (at, mut wanted) in wanted.into_sites() {
            if places.contains(&at.add(FTRACE_SITE)) {
                wanted.function.next = None;
            }
            if self.divert(at, &wanted, registry, guest) {
                continue;
            }
            match self.put_in(at, &wanted, guest) {
                Ok(step) => guest.table.insert(at, wanted.site(step)),
                Err(reason) => {
                    guest.table.remove(at);
                    refuse(registry, &wanted.probes, &reason.to_string());
                }
            }
        }
        self.stale.forget(guest.table, &guest.stop);
        self.detours.done();
    }

    /// Takes out what is not wanted any more.
    fn take_out(&mut self, wanted: &WantedSites, registry: &mut Registry, guest: &mut StoppedGuest<'_>) {
        let moved: BTreeSet<Gva> = wanted.nops_left().collect();
        let is_wanted = |at: Gva, site: &Site| match &site.state {
            SiteState::Free => true,
            SiteState::Trap(_) => wanted.contains(at),
            SiteState::Detour(detour) => {
                let taken = detour.range(at);
                wanted.contains(at) && !wanted.is_taken(&(at.add(1)..taken.end))
            }
        };
        let gone = self.sites.iter().filter(|(key, site)| !is_wanted(key.at, site));
        for at in gone.map(|(key, _)| key.at).collect::<Vec<_>>() {
            if !self.take_down(at, moved.contains(&at), guest) {
                registry.overwritten(at);
            }
        }
        self.sites.retain(|key, _| wanted.contains(key.at));
    }

    /// Finds out where several instructions can make room for a jump, and refuses what can only stand on one and
    /// cannot.
    fn find_relocations(
        &mut self,
        wanted: &mut WantedSites,
        registry: &mut Registry,
        guest: &StoppedGuest<'_>,
    ) {
        if guest.reserved().is_err() {
            return;
        }
        let (text, is_required) = (guest.text(), self.detours.is_required());
        let mut new = BTreeSet::new();
        wanted.retain(|at, wanted| {
            let site = self.sites.entry(SiteKey::kernel(at)).or_default();
            let stands = matches!(site.state, SiteState::Detour(_));
            if wanted.is_early || stands || !self.detours.wants_relocation(wanted) {
                return true;
            }
            match self.relocations.ask(&mut site.relocation, at, &wanted.function, &text) {
                Err(reason) if is_required => {
                    refuse(registry, &wanted.probes, &refusal(reason));
                    return false;
                }
                Err(_) => {}
                Ok(()) => drop(new.insert(at)),
            }
            true
        });
        let mut asked = BTreeMap::new();
        for (key, Site { relocation, .. }) in &mut self.sites {
            relocation.reopen();
            if new.contains(&key.at) {
                asked.insert(key.at, relocation);
            }
        }
        self.relocations.look(asked, |range| wanted.is_taken(range), guest);
    }

    /// Takes down what stands at `at`. Where the probes of a detour `move` behind the nop, who has not been counted in it
    /// yet is counted there, and who has is not. False when the guest has written there.
    fn take_down(&mut self, at: Gva, moves: bool, guest: &mut StoppedGuest<'_>) -> bool {
        let Some(site) = self.sites.get_mut(&SiteKey::kernel(at)) else { return true };
        match std::mem::take(&mut site.state) {
            SiteState::Free => true,
            SiteState::Trap(trap) => trap.take_down(at, guest),
            SiteState::Detour(detour) => {
                let left = detour.take_down(at, moves, guest);
                if let Some((stub, relocated)) = left.stub {
                    self.relocations.leave(stub, &relocated);
                }
                left.is_lifted
            }
        }
    }

    /// Forgets what stood at `lost`: the text that it was in is no more.
    pub(super) fn forget(&mut self, lost: &[Gva], guest: &mut StoppedGuest<'_>) {
        for at in lost {
            guest.table.remove(*at);
            guest.patches.forget(*at, 1);
            if let Some(Site { state: SiteState::Trap(trap), .. }) = self.sites.remove(&SiteKey::kernel(*at))
            {
                trap.retire(guest);
            }
        }
    }

    /// Takes down what has a byte at one of `bytes`. It is free to be put in anew.
    pub(super) fn lift(&mut self, bytes: &[Gva], registry: &mut Registry, guest: &mut StoppedGuest<'_>) {
        let is_there = |at: Gva, site: &Site| match &site.state {
            SiteState::Free => false,
            SiteState::Trap(_) => bytes.contains(&at),
            SiteState::Detour(detour) => bytes.iter().any(|byte| byte.is_in(&detour.range(at))),
        };
        let there = self.sites.iter().filter(|(key, site)| is_there(key.at, site));
        for at in there.map(|(key, _)| key.at).collect::<Vec<_>>() {
            if !self.take_down(at, false, guest) {
                registry.overwritten(at);
            }
        }
    }

    /// Restores all text at the end. A site that the guest has changed is left as it is, and reported.
    pub(super) fn restore(&mut self, registry: &mut Registry, guest: &mut StoppedGuest<'_>) {
        for at in self.sites.keys().map(|key| key.at).collect::<Vec<_>>() {
            if !self.take_down(at, false, guest) {
                registry.overwritten(at);
            }
        }
    }
}

fn refuse(registry: &mut Registry, probes: &[Attached<Arc<Active>>], reason: &str) {
    for attached in probes {
        registry.set_state(attached.probe.id, ProbeState::Refused(reason.to_owned()));
    }
}
