//! What is in the way of detours that take the place of several instructions. It is found out with the kernel's file,
//! before a host is chosen.

use crate::asked::Asked;
use probe_engine::detour::work::Work;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::targets::JumpTargets;
use probe_engine::probe::jump_constraints::JumpConstraints;
use probe_engine::probe::place::{Place, SiteInfo};
use std::cell::OnceCell;

/// What the kernel's tables say of the instructions at probes. All of its text is decoded for the first.
pub(crate) struct KernelConstraints<'a> {
    kernel: &'a Kernel,
    targets: OnceCell<JumpTargets>,
}

impl<'a> KernelConstraints<'a> {
    pub(crate) fn new(kernel: &'a Kernel) -> Self {
        Self { kernel, targets: OnceCell::new() }
    }

    pub(crate) fn of(&self, info: &SiteInfo) -> Option<JumpConstraints> {
        info.constraints_in(self.kernel, self.targets.get_or_init(|| JumpTargets::scan(self.kernel)))
    }

    /// Notes it down where a detour could serve a probe, and is no ftrace site's.
    pub(crate) fn note(&self, probes: &mut [Asked]) {
        for asked in probes {
            let constraints = match &asked.place {
                Place::Kernel { info, .. } if info.ftrace.is_none() && Work::of(0, &asked.plan).is_ok() => {
                    self.of(info)
                }
                _ => continue,
            };
            if let Place::Kernel { info, .. } = &mut asked.place {
                info.constraints = constraints;
            }
        }
    }
}
