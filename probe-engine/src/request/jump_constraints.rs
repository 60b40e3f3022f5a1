//! What is in the way of detours that take the place of several instructions. It is found out with the kernel's file,
//! before a host is chosen.

use super::ProbeRequest;
use crate::detour::work::Work;
use crate::linux::kernel::Kernel;
use crate::linux::targets::JumpTargets;
use crate::probe::jump_constraints::JumpConstraints;
use crate::probe::place::{Place, SiteInfo};
use std::cell::OnceCell;

/// What the kernel's tables say of the instructions at probes. All of its text is decoded for the first.
pub struct KernelConstraints<'a> {
    kernel: &'a Kernel,
    targets: OnceCell<JumpTargets>,
}

impl<'a> KernelConstraints<'a> {
    /// Those of `kernel`.
    #[must_use]
    pub fn new(kernel: &'a Kernel) -> Self {
        Self { kernel, targets: OnceCell::new() }
    }

    /// What is in the way at `info`; `None` outside the kernel's file.
    #[must_use]
    pub fn of(&self, info: &SiteInfo) -> Option<JumpConstraints> {
        info.constraints_in(self.kernel, self.targets.get_or_init(|| JumpTargets::scan(self.kernel)))
    }

    /// Notes it down where a detour could serve a probe, and is no ftrace site's.
    pub fn note(&self, probes: &mut [ProbeRequest]) {
        for probe in probes {
            let constraints = match &probe.place {
                Place::Kernel { info, .. } if info.ftrace.is_none() && Work::of(0, &probe.plan).is_ok() => {
                    self.of(info)
                }
                _ => continue,
            };
            if let Place::Kernel { info, .. } = &mut probe.place {
                info.constraints = constraints;
            }
        }
    }
}
