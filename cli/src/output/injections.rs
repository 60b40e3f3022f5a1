//! Calls that are to fail, as the user writes them.

use crate::record::InjectionEnd;
use probe_engine::probe::inject::InjectionId;
use probe_engine::request::ProbeRequest;
use std::collections::BTreeMap;
use vmm::session::InjectionReport;

/// What the user calls each injection.
pub(super) struct InjectionNames(BTreeMap<InjectionId, String>);

impl InjectionNames {
    /// Those of the injections for which `probes` are.
    pub(super) fn of(probes: &[ProbeRequest]) -> Self {
        let name = |asked: &ProbeRequest| {
            let injected = asked.injected.as_ref()?;
            Some((asked.plan.inject?.injection(), injected.text.clone()))
        };
        Self(probes.iter().filter_map(name).collect())
    }

    /// What an injection came to.
    pub(super) fn end(&self, report: &InjectionReport) -> InjectionEnd {
        let InjectionReport { injection, calls, injected } = *report;
        InjectionEnd { injection: self.0.get(&injection).cloned().unwrap_or_default(), calls, injected }
    }
}
