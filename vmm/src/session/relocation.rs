//! Where several instructions make room for a jump: what the text says of it, and whether someone is inside.
//!
//! What leads to these instructions is found once, in the kernel's file ([`JumpConstraints`]), and travels with the probe. What they
//! are is read from the live text, in which alternatives have been applied. Once a jump stands, nobody comes to the
//! instructions behind it any more, so that another may take its place in the same stop.

use super::occupancy::Occupancy;
use super::reasons::NoRelocation;
use super::stop::StoppedGuest;
use super::text::{GuestText, ProbedFunction};
use crate::probe::Active;
use probe_engine::addr::Gva;
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::detour::verdict::{self, verdict};
use probe_engine::insn::copy::SLOT;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::thunks::Thunks;
use probe_engine::probe::table::ProbeSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A place for a jump over several instructions.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) relocated: RelocatedCode,
    /// Its bytes when it was looked at.
    pub(super) bytes: Vec<u8>,
}

/// Whether the instructions at one site make room for a jump.
#[derive(Debug, Default)]
pub(super) enum Relocation {
    /// Nobody has asked yet.
    #[default]
    Unknown,
    /// The text says that they never do. The text stays so as long as a probe is wanted there.
    Impossible(NoRelocation),
    /// They do, and no jump may be written for now.
    Closed(Candidate, NoRelocation),
    /// They do.
    Open(Candidate),
}

impl Relocation {
    /// Why no jump is to be written there, where that is known.
    pub(super) fn why_not(&self) -> Option<&NoRelocation> {
        match self {
            Self::Impossible(reason) | Self::Closed(_, reason) => Some(reason),
            Self::Unknown | Self::Open(_) => None,
        }
    }

    /// What makes room for a jump, if one may be written.
    pub(super) fn candidate(&self) -> Option<&Candidate> {
        match self {
            Self::Open(candidate) => Some(candidate),
            Self::Unknown | Self::Impossible(_) | Self::Closed(..) => None,
        }
    }

    /// No jump may be written for now.
    fn close(&mut self, reason: NoRelocation) {
        *self = match std::mem::take(self) {
            Self::Open(candidate) | Self::Closed(candidate, _) => Self::Closed(candidate, reason),
            other @ (Self::Unknown | Self::Impossible(_)) => other,
        };
    }

    /// What was in the way is looked at anew.
    pub(super) fn reopen(&mut self) {
        *self = match std::mem::take(self) {
            Self::Closed(candidate, _) => Self::Open(candidate),
            other => other,
        };
    }
}

/// What is known of all such places together.
#[derive(Default)]
pub(super) struct Relocations {
    thunks: Thunks,
    /// Whether RIP can be put right where a moved instruction faults.
    sees_faults: bool,
    /// Stubs to which nothing leads any more, each with the place that it leads back to.
    left: Vec<(Range<Gva>, Gva)>,
    retry: Option<Retry>,
}

/// When we look again whether someone is still inside.
struct Retry {
    /// Where someone was.
    occupied: BTreeSet<Gva>,
    at: Instant,
    pause: Duration,
}

impl Relocations {
    pub(super) fn new(kernel: &Landmarks) -> Self {
        let (thunks, sees_faults) = (kernel.thunks.clone(), kernel.hooks.sees_faults());
        Self { thunks, sees_faults, ..Self::default() }
    }

    /// Finds out what the text of `function` says of the instruction at `at`, where nobody has asked.
    ///
    /// # Errors
    /// Why it never makes room for a jump.
    pub(super) fn ask<'a>(
        &self,
        relocation: &'a mut Relocation,
        at: Gva,
        function: &ProbedFunction,
        text: &GuestText<'_>,
    ) -> Result<(), &'a NoRelocation> {
        if matches!(relocation, Relocation::Unknown) {
            *relocation = match self.find(at, function, text) {
                Ok(candidate) => Relocation::Open(candidate),
                Err(reason) => Relocation::Impossible(reason),
            };
        }
        match relocation {
            Relocation::Impossible(reason) => Err(reason),
            Relocation::Unknown | Relocation::Closed(..) | Relocation::Open(_) => Ok(()),
        }
    }

    fn find(
        &self,
        at: Gva,
        function: &ProbedFunction,
        text: &GuestText<'_>,
    ) -> Result<Candidate, NoRelocation> {
        if !self.sees_faults {
            return Err(NoRelocation::FaultsUnseen);
        }
        let (thunks, slide) = (&self.thunks, text.running.map.slide());
        let constraints =
            function.constraints.as_ref().filter(|constraints| constraints.start().add(slide) == at);
        let constraints = constraints.ok_or(NoRelocation::TargetsUnknown)?;
        let bytes = &text.function(function, function.range.end)?[..];
        let start = function.range.start;
        let relocated = verdict(&verdict::FunctionText { start, bytes, slide, constraints, thunks })?;
        let mut bytes = vec![0; relocated.end().offset_from(at).unwrap_or(0) as usize];
        text.read(at, &mut bytes)?;
        Ok(Candidate { relocated, bytes })
    }

    /// Whether RIP can be put right where a moved instruction faults.
    pub(super) fn sees_faults(&self) -> bool {
        self.sees_faults
    }

    /// Finds out at which of the `new` places, where no jump stands, one may be written in this stop, and closes the
    /// others. `is_taken` tells whether another probe stands in a range.
    pub(super) fn look(
        &mut self,
        new: BTreeMap<Gva, &mut Relocation>,
        is_taken: impl Fn(&Range<Gva>) -> bool,
        guest: &StoppedGuest<'_>,
    ) {
        self.left.retain(|(stub, _)| guest.reserved().is_ok_and(|pages| pages.is_in_use(stub.start)));
        let mut free = BTreeMap::new();
        for (at, relocation) in new {
            let Some(Candidate { relocated, .. }) = relocation.candidate() else { continue };
            match is_taken(&(at.add(1)..relocated.end())) {
                true => relocation.close(NoRelocation::Shared),
                false => drop(free.insert(at, relocation)),
            }
        }
        if free.is_empty() {
            self.retry = None;
            return;
        }
        let begun = Instant::now();
        // Each change comes by here: those that wait already do not have the guest wait more often than it has to.
        if let Some(retry) = self.retry.as_ref().filter(|retry| begun < retry.at)
            && free.keys().all(|at| retry.occupied.contains(at))
        {
            free.into_values().for_each(|relocation| relocation.close(NoRelocation::Occupied));
            return;
        }
        let code = free.iter().filter_map(|(at, relocation)| Some((*at, &relocation.candidate()?.relocated)));
        let occupancy = to_be_free(&code.collect(), &self.left, guest.table);
        // Without an answer, everyone may be inside.
        let occupied = occupancy.occupied(&guest.stop).unwrap_or_else(|_| free.keys().copied().collect());
        for (_, relocation) in free.into_iter().filter(|(at, _)| occupied.contains(at)) {
            relocation.close(NoRelocation::Occupied);
        }
        self.retry =
            (!occupied.is_empty()).then(|| Retry::after(self.retry.take(), occupied, begun.elapsed()));
    }

    /// Whether it is time to [look](Self::look) again.
    pub(super) fn is_due(&self) -> bool {
        self.retry.as_ref().is_some_and(|retry| Instant::now() >= retry.at)
    }

    /// Nothing leads to the `stub` over `relocated` any more. Whoever is inside goes on behind that.
    pub(super) fn leave(&mut self, stub: Range<Gva>, relocated: &RelocatedCode) {
        self.left.push((stub, relocated.end()));
    }
}

impl Retry {
    /// Someone was `caught`, `before` that as well or not; it took so long to see it.
    fn after(before: Option<Self>, occupied: BTreeSet<Gva>, cost: Duration) -> Self {
        const SHORTEST: Duration = Duration::from_millis(20);
        const LONGEST: Duration = Duration::from_secs(10);
        /// So many times longer the guest runs than it waits for us.
        const SHARE: u32 = 20;
        // A place that was not among them yet is not to wait for what the others have come to.
        let longer =
            before.filter(|before| occupied.is_subset(&before.occupied)).map(|before| 2 * before.pause);
        let pause = longer.unwrap_or(SHORTEST).min(LONGEST).max(SHARE * cost);
        Self { occupied, at: Instant::now() + pause, pause }
    }
}

/// Where nobody may be when jumps are written over the `free` instructions.
fn to_be_free(
    free: &BTreeMap<Gva, &RelocatedCode>,
    left: &[(Range<Gva>, Gva)],
    set: &ProbeSet<Arc<Active>>,
) -> Occupancy {
    let around = |at: Gva| free.range(..=at).next_back().map(|(_, relocated)| *relocated);
    let mut occupancy = Occupancy::default();
    for relocated in free.values() {
        for at in relocated.instructions().skip(1) {
            occupancy.add(at..at.add(1), relocated.at());
        }
    }
    // A copy of one of its instructions leads to the next one.
    for (copy, original) in set.copies() {
        if let Some(relocated) = around(original).filter(|relocated| original.is_in(&relocated.range())) {
            occupancy.add(copy..copy.add(SLOT as u64), relocated.at());
        }
    }
    for (stub, back) in left {
        if let Some(relocated) =
            around(*back).filter(|relocated| back.is_in(&(relocated.at().add(1)..relocated.end())))
        {
            occupancy.add(stub.clone(), relocated.at());
        }
    }
    occupancy
}
