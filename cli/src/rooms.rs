//! What is in the way of detours that take the place of several instructions. It is found out with the kernel's file,
//! before a host is chosen.

use crate::args::{Optimize, Run};
use crate::run::probe;
use crate::target::Asked;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::targets::JumpTargets;
use probe_engine::probe::place::{Place, Spot};
use probe_engine::probe::room::Room;
use probe_engine::probe::table::ProbeId;
use std::cell::OnceCell;
use vmm::probe::Active;

/// Whether what was asked for can be done by a detour, or why not.
pub(crate) fn served(asked: &Asked, args: &Run) -> Result<(), String> {
    Active::on_its_own(ProbeId(0), probe(asked.clone(), args)).detour().map(drop)
}

/// What the kernel's tables say of the instructions at probes. All of its text is decoded for the first.
pub(crate) struct Rooms<'a> {
    kernel: &'a Kernel,
    targets: OnceCell<JumpTargets>,
}

impl<'a> Rooms<'a> {
    pub(crate) fn new(kernel: &'a Kernel) -> Self {
        Self { kernel, targets: OnceCell::new() }
    }

    pub(crate) fn of(&self, spot: &Spot) -> Option<Room> {
        Room::of(spot, self.kernel, self.targets.get_or_init(|| JumpTargets::scan(self.kernel)))
    }

    /// Notes it down where a detour could serve a probe, and is no ftrace site's.
    pub(crate) fn note(&self, probes: &mut [Asked], args: &Run) {
        if args.optimize == Optimize::Off {
            return;
        }
        for asked in probes {
            let room = match &asked.place {
                Place::Kernel { spot, .. } if spot.ftrace.is_none() && served(asked, args).is_ok() => {
                    self.of(spot)
                }
                _ => continue,
            };
            if let Place::Kernel { spot, .. } = &mut asked.place {
                spot.room = room;
            }
        }
    }
}
