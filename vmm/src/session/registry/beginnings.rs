//! When the calls of programs began: the guest's kernel says of a return only where it is. A probe at the function's entry tells the
//! rest, of which nobody else is told.

use super::{RegisteredProbe, Registry};
use crate::probe::{Handlers, InstructionHandlers, Kin};
use crate::session::resolver::{RegisterError, ResolvedProbe};
use probe_engine::capture::Capture;
use probe_engine::linux::program_place::ProgramPlace;
use probe_engine::probe::plan::{Action, ProbePlan, Trigger};
use probe_engine::probe::table::ProbeId;

impl Registry {
    /// Registers what sees the beginnings of calls for those of `ids` that have to know them.
    ///
    /// # Errors
    /// [`RegisterError`], why one cannot be.
    pub(super) fn know_beginnings(&mut self, ids: &[ProbeId]) -> Result<(), RegisterError> {
        for id in ids {
            let Some((active, probe)) =
                self.entries.get(id).and_then(|entry| Some((entry.active.clone(), beginnings(entry)?)))
            else {
                continue;
            };
            let own = self.insert(probe, Kin::BeginningOf(&active))?;
            if let Some(entry) = self.entries.get_mut(id) {
                entry.beginnings = Some(own);
            }
            if let Some(read) = self.read.get_mut(own.0 as usize) {
                read.begins = Some(active.told_as);
            }
        }
        Ok(())
    }
}

/// The probe that sees when the calls begin whose returns are recorded by `entry`; `None` where nobody has to.
fn beginnings(entry: &RegisteredProbe) -> Option<ResolvedProbe> {
    let ProbePlan { capture, action, scope, program, .. } = &*entry.active.plan;
    let place = program.as_ref().filter(|place| place.returns && !place.at.is_several())?;
    if !matches!(action, Action::Record { .. }) || capture.unshown.is_empty() {
        return None;
    }
    let place = ProgramPlace { returns: false, ..place.clone() };
    let plan = ProbePlan::new(Trigger::Pass).reading(Capture::default().keeping_state(&place)).recorded();
    Some(ResolvedProbe {
        place: entry.place.clone(),
        plan: ProbePlan { scope: *scope, program: Some(place), ..plan },
        handlers: Handlers::Instruction(InstructionHandlers::default()),
        enabled: entry.enabled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Probe;
    use crate::session::registry::tests::registry;
    use crate::trap::Delivery;
    use probe_engine::addr::Gva;
    use probe_engine::linux::program_place::InFile;
    use probe_engine::probe::place::{Place, SiteInfo};

    fn returns(plan: ProbePlan) -> Probe {
        let at = InFile::Offset(0x10);
        let program =
            ProgramPlace { path: "/bin/sh".to_owned(), at, counter: None, returns: true, known: None };
        let plan =
            ProbePlan { capture: plan.capture.keeping_state(&program), program: Some(program), ..plan };
        let info = SiteInfo::entry_of(Gva(0x1000)..Gva(0x1100));
        Probe::of_plan(Place::Kernel { name: "noop".to_owned(), info }, plan)
    }

    #[test]
    fn a_return_that_is_recorded_has_a_probe_that_nobody_has_asked_for() {
        let mut registry = registry(1, Delivery::Intercepted);
        let recorded = || returns(ProbePlan { once: true, ..ProbePlan::default().recorded() });
        let ids = registry.register(vec![recorded(), returns(ProbePlan::default()), recorded()]).unwrap();
        assert_eq!(ids, [ProbeId(0), ProbeId(1), ProbeId(2)]);
        let begins: Vec<_> = registry.read_probes().iter().map(|read| read.begins).collect();
        assert_eq!(begins, [None, None, None, Some(ids[0]), Some(ids[2])]);
        let asked: Vec<_> = registry.iter().map(|entry| entry.part_of).collect();
        assert_eq!(asked, begins, "no other is reported");
        let entry = registry.get(ProbeId(3)).unwrap();
        assert!(!entry.active.plan.program.as_ref().unwrap().returns && !entry.active.plan.once);
        assert_ne!(entry.active.consumer(), registry.get(ids[0]).unwrap().active.consumer());
        // It is over when its return has had its hit, and goes with that.
        assert!(!entry.is_over() && registry.get(ids[0]).unwrap().active.takes_hit());
        assert!(registry.get(ProbeId(3)).unwrap().is_over() && !registry.get(ProbeId(4)).unwrap().is_over());
        registry.enable(&ids[2..], false);
        assert!(!registry.get(ProbeId(4)).unwrap().enabled);
        registry.unregister(&ids);
        assert_eq!(registry.len(), 0);
    }
}
