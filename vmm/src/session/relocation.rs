//! Where several instructions make room for a jump: what the text says of it, and whether someone is inside.
//!
//! What leads to these instructions is found once, in the kernel's file ([`JumpConstraints`]), and travels with the probe. What they
//! are is read from the live text, in which alternatives have been applied. Once a jump stands, nobody comes to the
//! instructions behind it any more, so that another may take its place in the same stop.

use super::occupancy::Occupancy;
use super::reasons::NoRelocation;
use super::stop::Stop;
use super::text::{ProbedFunction, RunningKernel, Traps};
use crate::probe::Active;
use crate::reserved::Reserved;
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

/// All such places.
#[derive(Default)]
pub(super) struct Relocations {
    thunks: Thunks,
    /// Whether RIP can be put right where a moved instruction faults.
    sees_faults: bool,
    /// What the text says, by place. It stays so as long as a probe is wanted there.
    verdicts: BTreeMap<Gva, Result<Candidate, NoRelocation>>,
    /// Where no jump may be written for now, and why.
    closed: BTreeMap<Gva, NoRelocation>,
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

    /// What is known of the instruction at `at`, read in the text of `function`.
    pub(super) fn verdict(
        &mut self,
        at: Gva,
        function: &ProbedFunction,
        text: &Traps,
        running: &RunningKernel,
        stop: &Stop<'_>,
    ) -> Result<(), &NoRelocation> {
        let (thunks, sees_faults) = (&self.thunks, self.sees_faults);
        let verdict = self.verdicts.entry(at).or_insert_with(|| {
            if !sees_faults {
                return Err(NoRelocation::FaultsUnseen);
            }
            let slide = running.map.slide();
            let constraints =
                function.constraints.as_ref().filter(|constraints| constraints.start().add(slide) == at);
            let end = function.range.end;
            let constraints = constraints.ok_or(NoRelocation::TargetsUnknown)?;
            let bytes = &text.function(stop.ram, running, function, end)?[..];
            let function =
                verdict::FunctionText { start: function.range.start, bytes, slide, constraints, thunks };
            let relocated = verdict(&function)?;
            let mut bytes = vec![0; relocated.end().offset_from(at).unwrap_or(0) as usize];
            text.read(stop.ram, running, at, &mut bytes)?;
            Ok(Candidate { relocated, bytes })
        });
        verdict.as_ref().map(|_| ())
    }

    /// Whether RIP can be put right where a moved instruction faults.
    pub(super) fn sees_faults(&self) -> bool {
        self.sees_faults
    }

    /// Forgets the places that are not `wanted`.
    pub(super) fn retain(&mut self, wanted: impl Fn(Gva) -> bool) {
        self.verdicts.retain(|at, _| wanted(*at));
    }

    /// Why no jump is to be written at `at`, where that is known.
    pub(super) fn why_not(&self, at: Gva) -> Option<&NoRelocation> {
        match self.verdicts.get(&at)? {
            Ok(_) => self.closed.get(&at),
            Err(reason) => Some(reason),
        }
    }

    /// What makes room for a jump at `at`, if one may be written.
    pub(super) fn open(&self, at: Gva) -> Option<&Candidate> {
        let is_open = !self.closed.contains_key(&at);
        self.verdicts.get(&at)?.as_ref().ok().filter(|_| is_open)
    }

    /// Finds out at which of the `new` places, where no jump stands, one may be written in this stop. `is_taken` tells
    /// whether another probe stands in a range.
    pub(super) fn look(
        &mut self,
        new: &[Gva],
        is_taken: impl Fn(&Range<Gva>) -> bool,
        reserved: &Reserved,
        set: &ProbeSet<Arc<Active>>,
        stop: &Stop<'_>,
    ) {
        self.closed.clear();
        self.left.retain(|(stub, _)| reserved.is_in_use(stub.start));
        let mut free = BTreeMap::new();
        for at in new {
            let Some(Ok(Candidate { relocated, .. })) = self.verdicts.get(at) else { continue };
            match is_taken(&(at.add(1)..relocated.end())) {
                true => drop(self.closed.insert(*at, NoRelocation::Shared)),
                false => drop(free.insert(*at, relocated)),
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
            self.closed.extend(free.keys().map(|at| (*at, NoRelocation::Occupied)));
            return;
        }
        let occupancy = to_be_free(&free, &self.left, set);
        // Without an answer, everyone may be inside.
        let occupied = occupancy.occupied(stop).unwrap_or_else(|_| free.keys().copied().collect());
        self.closed.extend(occupied.iter().map(|at| (*at, NoRelocation::Occupied)));
        self.retry =
            (!occupied.is_empty()).then(|| Retry::after(self.retry.take(), occupied, begun.elapsed()));
    }

    /// Whether it is time to [look](Self::look) again.
    pub(super) fn is_due(&self) -> bool {
        self.retry.as_ref().is_some_and(|retry| Instant::now() >= retry.at)
    }

    /// Nothing leads to the `stub` over `region` any more. Whoever is inside goes on behind that.
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
