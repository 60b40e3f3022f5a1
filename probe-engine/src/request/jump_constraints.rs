//! What is in the way of detours that take the place of several instructions. It is found out with the kernel's file,
//! before a host is chosen.

use super::ProbeRequest;
use crate::detour::work::Work;
use crate::linux::kernel::Kernel;
use crate::linux::targets::JumpTargets;
use crate::probe::jump_constraints::JumpConstraints;
use crate::probe::place::{Place, SiteInfo};
use crate::probe::plan::ProbePlan;
use std::ops::Deref;
use std::sync::OnceLock;

/// What the kernel's tables say of the instructions at probes. All of its text is decoded for the first.
pub struct KernelConstraints<K> {
    kernel: K,
    targets: OnceLock<JumpTargets>,
}

impl<K: Deref<Target = Kernel>> KernelConstraints<K> {
    /// Those of `kernel`.
    #[must_use]
    pub fn new(kernel: K) -> Self {
        Self { kernel, targets: OnceLock::new() }
    }

    /// What is in the way at `info`; `None` outside the kernel's file.
    #[must_use]
    pub fn of(&self, info: &SiteInfo) -> Option<JumpConstraints> {
        info.constraints_in(&self.kernel, self.targets.get_or_init(|| JumpTargets::scan(&self.kernel)))
    }

    /// Notes it down at `place`, where a detour could serve `plan`, which is no ftrace site's, and nobody has.
    pub fn note(&self, place: &mut Place, plan: &ProbePlan) {
        if let Place::Kernel { info, .. } = place
            && info.ftrace.is_none()
            && info.constraints.is_none()
            && Work::of(0, plan).is_ok()
        {
            info.constraints = self.of(info);
        }
    }

    /// Notes it down for each of `probes`.
    pub fn note_all(&self, probes: &mut [ProbeRequest]) {
        probes.iter_mut().for_each(|probe| self.note(&mut probe.place, &probe.plan));
    }
}
