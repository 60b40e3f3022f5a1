//! Requests of vCPUs that wait until somebody takes the events from before.
//!
//! What the guest loads or frees changes names, and the events from before are shown by the names of before: they have
//! to be handed on first. While nobody takes them, the vCPU that asks is held, or a guest that loads modules without end
//! would fill memory with what nobody reads.

use crate::vcpu::{Cause, VcpuRequest};
use probe_engine::probe::table::Internal;

/// The requests that wait, in the order in which they came.
#[derive(Default)]
pub(super) struct Postponed(Vec<VcpuRequest>);

impl Postponed {
    /// Those of the waiting and the `new` requests that can be answered now. `may_change_names` says whether names may
    /// change.
    pub(super) fn due(&mut self, new: Vec<VcpuRequest>, may_change_names: bool) -> Vec<VcpuRequest> {
        let mut due = std::mem::take(&mut self.0);
        due.extend(new);
        if !may_change_names {
            (self.0, due) = due.into_iter().partition(|request| changes_names(&request.cause));
        }
        due
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Whether the names of what is loaded are others when this has been answered.
fn changes_names(cause: &Cause) -> bool {
    use Internal::{ModuleGone, ModuleInitDone, ModuleReady};
    matches!(cause, Cause::Internal(ModuleReady | ModuleInitDone | ModuleGone))
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::regs::Regs;
    use probe_engine::system_regs::SystemRegs;

    fn request(vcpu: usize, cause: Cause) -> VcpuRequest {
        VcpuRequest { vcpu, cause, regs: Regs::default(), system: SystemRegs::default() }
    }

    #[test]
    fn names_change_in_their_order_once_the_events_from_before_are_taken() {
        let mut postponed = Postponed::default();
        let mut due = |new, may| {
            let due: Vec<usize> = postponed.due(new, may).iter().map(|request| request.vcpu).collect();
            (due, postponed.is_empty())
        };
        let hook = |vcpu, internal| request(vcpu, Cause::Internal(internal));
        let new =
            vec![hook(3, Internal::ModuleReady), request(1, Cause::Breakpoint), hook(2, Internal::Panic)];
        assert_eq!(due(new, false), (vec![1, 2], false));
        assert_eq!(due(vec![hook(0, Internal::ModuleGone)], false), (vec![], false));
        assert_eq!(due(vec![hook(4, Internal::ModuleInitDone)], true), (vec![3, 0, 4], true));
        assert_eq!(due(vec![], true), (vec![], true));
    }
}
