//! What should stand where.

use crate::probe::Active;
use crate::session::text::ProbedFunction;
use probe_engine::addr::Gva;
use probe_engine::probe::table::{Anchor, Attached, Internal, Site, StepMethod};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What is wanted at one address.
pub(in crate::session) struct Wanted {
    pub(in crate::session) probes: Vec<Attached<Arc<Active>>>,
    pub(in crate::session) internal: Option<Internal>,
    pub(in crate::session) function: ProbedFunction,
    /// Whether it stands in text that the guest may still change around it: by a trap, whatever comes later.
    pub(in crate::session) is_early: bool,
}

impl Wanted {
    /// What vCPUs find there at a hit of a trap that is passed by `step`.
    pub(super) fn site(self, step: StepMethod) -> Site<Arc<Active>> {
        Site { probes: self.probes, internal: self.internal, step }
    }
}

/// All that should stand, by address.
#[derive(Default)]
pub(in crate::session) struct WantedSites(BTreeMap<Gva, Wanted>);

impl WantedSites {
    /// What is wanted at `at`, which lies in `function`: nothing at first.
    pub(in crate::session) fn at(&mut self, at: Gva, function: ProbedFunction) -> &mut Wanted {
        self.0.entry(at).or_insert(Wanted { probes: Vec::new(), internal: None, function, is_early: false })
    }

    pub(super) fn contains(&self, at: Gva) -> bool {
        self.0.contains_key(&at)
    }

    /// Whether something is wanted in `range`.
    pub(super) fn is_taken(&self, range: &Range<Gva>) -> bool {
        self.0.range(range.clone()).next().is_some()
    }

    /// Where something is.
    pub(super) fn places(&self) -> impl Iterator<Item = Gva> {
        self.0.keys().copied()
    }

    /// The nops of ftrace's that probes have left, to stand behind them.
    pub(super) fn nops_left(&self) -> impl Iterator<Item = Gva> {
        self.0.values().flat_map(|wanted| &wanted.probes).filter_map(|attached| match attached.anchor {
            Anchor::Behind(nop) => Some(nop),
            Anchor::Firm | Anchor::Nop => None,
        })
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(Gva, &Wanted) -> bool) {
        self.0.retain(|at, wanted| keep(*at, wanted));
    }

    pub(super) fn into_sites(self) -> impl Iterator<Item = (Gva, Wanted)> {
        self.0.into_iter()
    }
}
