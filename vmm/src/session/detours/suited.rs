//! Which probes detours can serve, and why not the others.

use super::Detours;
use crate::guest::Optimize;
use crate::probe::Active;
use crate::session::reasons::{OnTrap, refusal};
use crate::session::registry::Registry;
use crate::session::relocation::Relocation;
use crate::session::sites::Wanted;
use probe_engine::addr::Gva;
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::detour::work::Work;
use probe_engine::insn::copy::JUMP;
use probe_engine::linux::branches::LONGEST;
use probe_engine::probe::table::{Anchor, Attached, ProbeId};
use std::sync::Arc;

impl Detours {
    /// Why a probe has to be refused: no detour can serve it, and nothing else will do.
    pub(in crate::session) fn refuses(&self, probe: &Active) -> Option<String> {
        self.is_required().then(|| probe.detour().err()).flatten().map(refusal)
    }

    /// Whether a probe is refused that no detour can serve.
    pub(in crate::session) fn is_required(&self) -> bool {
        self.optimize == Optimize::Require
    }

    /// Whether several instructions have to make room for a detour that serves what is `wanted`, as far as it can be served.
    pub(in crate::session) fn wants_relocation(&self, wanted: &Wanted) -> bool {
        let Wanted { probes, internal, .. } = wanted;
        let is_served = |p: &Attached<Arc<Active>>| p.anchor == Anchor::Firm && self.work(&p.probe).is_ok();
        let is_possible = self.optimize != Optimize::Off && self.is_on && self.guest.is_some();
        is_possible && internal.is_none() && !probes.is_empty() && probes.iter().all(is_served)
    }

    /// What is to be done for all probes that are `wanted` at `at`; `None` if any of them needs a trap, and each is told why.
    pub(in crate::session) fn works(
        &self,
        at: Gva,
        wanted: &Wanted,
        relocation: &Relocation,
        registry: &mut Registry,
    ) -> Option<Vec<Work>> {
        let Wanted { probes, internal, .. } = wanted;
        if self.optimize == Optimize::Off || probes.is_empty() {
            return None;
        }
        let mut works = Vec::new();
        let at_site = match internal {
            _ if !self.is_on => Err(OnTrap::SwitchedOff),
            _ if self.guest.is_none() => Err(OnTrap::CpuUnknown),
            Some(_) => Err(OnTrap::Internal),
            None if self.returns_by(at) => Err(OnTrap::Thunk),
            None => Ok(()),
        };
        for attached in probes {
            let anchor = match attached.anchor {
                Anchor::Nop | Anchor::Firm => Ok(()),
                Anchor::Behind(_) => Err(OnTrap::MovedForFtrace),
            };
            let work = at_site.clone().and(anchor).and_then(|()| self.work(&attached.probe));
            let work = work.and_then(|work| self.may_read(work)).and_then(|work| self.may_follow(work));
            let relocatable = |work| match attached.anchor {
                Anchor::Firm if let Some(reason) = relocation.why_not() => Err(reason.clone().into()),
                Anchor::Firm if let Some(candidate) = relocation.candidate() => {
                    self.may_run(&candidate.relocated).map(|()| work)
                }
                Anchor::Firm | Anchor::Nop | Anchor::Behind(_) => Ok(work),
            };
            match work.and_then(relocatable) {
                Ok(work) => works.push(work),
                Err(reason) => registry.stays_trapped(attached.probe.id, reason),
            }
        }
        if works.len() == probes.len() {
            return Some(works);
        }
        for work in works {
            registry.stays_trapped(ProbeId(work.probe), OnTrap::Neighbour);
        }
        None
    }

    /// What a detour has to do for a probe, as long as one can.
    fn work(&self, probe: &Active) -> Result<Work, OnTrap> {
        match self.exhausted.has_fallen(probe.id.0) {
            true => Err(OnTrap::InstancesExhausted),
            false => Ok(probe.detour()?),
        }
    }

    /// What stands in the way of what `work` reads of memory.
    fn may_read(&self, work: Work) -> Result<Work, OnTrap> {
        match work.reads.is_empty() {
            false if self.nofault.is_none() => Err(OnTrap::NoFaultFree),
            false if self.is_watched => Err(OnTrap::ReadersProbed),
            true | false => Ok(work),
        }
    }

    /// What stands in the way of following the calls that `work` follows.
    fn may_follow(&self, work: Work) -> Result<Work, OnTrap> {
        match (&work.calls, &self.returns) {
            (Some(_), Err(reason)) => Err(OnTrap::CallsUnfollowed(reason.clone())),
            (None, _) | (_, Ok(())) => Ok(work),
        }
    }

    /// What stands in the way of running `relocated` in a stub.
    pub(in crate::session) fn may_run(&self, relocated: &RelocatedCode) -> Result<(), OnTrap> {
        let reason = self.returns.as_ref().err().filter(|_| relocated.returns());
        reason.map_or(Ok(()), |reason| Err(OnTrap::ReturnUnmoved(reason.clone())))
    }

    /// Whether detours read memory by what stands at `at`.
    fn reads_by(&self, at: Gva) -> bool {
        let link = self.guest.map(|guest| Gva(at.0.wrapping_sub(guest.slide)));
        link.zip(self.nofault.as_ref()).is_some_and(|(link, nofault)| nofault.run(link))
    }

    /// Whether our code runs through what a jump at `at` takes the place of, when it returns or jumps as the guest does.
    fn returns_by(&self, at: Gva) -> bool {
        // A region ends with the instruction that the jump's last byte is in.
        let taken = at..at.add((JUMP - 1 + LONGEST) as u64);
        self.thunks.range(taken).next().is_some()
    }

    /// Probes are wanted at these places.
    pub(in crate::session) fn look_at(&mut self, mut wanted: impl Iterator<Item = Gva>) {
        self.is_watched = wanted.any(|at| self.reads_by(at) || self.returns_by(at));
    }
}
