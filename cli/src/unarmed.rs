//! Probes that have not seen what they were asked to see: silence of theirs does not mean that nothing was called.
//!
//! A run that would end with success ends with [`UNARMED`](crate::exit_codes::UNARMED) because of
//! - a probe that the guest has overwritten, also one of a pattern: later hits of it are lost;
//! - a probe that was asked for by its own name and is refused by the live text, even if it has stood before;
//! - one that was asked for by its own name and never stood, for whatever reason: the guest ended or freed its text
//!   first, its ftrace worked on it all the time, or its module was not loaded, unless that was allowed;
//! - a pattern of which no function ever stood.
//!
//! It does not because of
//! - a probe that stood, and went with its text (init text, a module), or is spent (`--once`), or was disabled;
//! - a probe that was disabled from the start: nobody expects hits of it;
//! - a probe whose handler panicked, which is said elsewhere: it stood;
//! - single functions of a pattern that were refused or never reached, when others of it stood: the user named none.
//!
//! A guest that died, and a signal, have their own exit codes, which win.

use crate::output::shown_name;
use probe_engine::probe::table::ProbeId;
use probe_engine::request::ProbeRequest;
use std::collections::BTreeMap;
use vmm::session::{ProbeReport, ProbeState};

/// The pattern of each probe that one has found. They are registered in this order.
pub(crate) fn patterns(probes: &[ProbeRequest]) -> BTreeMap<ProbeId, String> {
    let pattern = |(id, asked): (u32, &ProbeRequest)| Some((ProbeId(id), asked.pattern.clone()?));
    (0..).zip(probes).filter_map(pattern).collect()
}

/// A sentence for each reason why probes were overwritten or never armed: which, and what to do. `patterns` are those
/// by which probes were found.
pub(crate) fn complaints(
    probes: &[ProbeReport],
    patterns: &BTreeMap<ProbeId, String>,
    allow_pending: bool,
) -> Vec<String> {
    let mut reasons = BTreeMap::<Reason, Vec<String>>::new();
    let mut found = BTreeMap::<&str, Vec<&ProbeReport>>::new();
    for probe in probes {
        let reason = match (patterns.get(&probe.id), &probe.state) {
            (Some(pattern), state) => {
                found.entry(pattern).or_default().push(probe);
                matches!(state, ProbeState::Overwritten(_)).then_some(Reason::Overwritten)
            }
            (None, ProbeState::Pending(_) | ProbeState::NoFile(_)) if allow_pending => None,
            (None, _) => Reason::of(probe),
        };
        if let Some(reason) = reason {
            reasons.entry(reason).or_default().push(shown_name(probe));
        }
    }
    let mut complaints: Vec<String> = reasons.iter().map(|(reason, names)| reason.say(names)).collect();
    for (pattern, probes) in found {
        // What was overwritten is said already.
        let silence = |probe: &&ProbeReport| {
            let is_allowed = match probe.state {
                ProbeState::Pending(_) | ProbeState::NoFile(_) => allow_pending,
                _ => probe.has_stood,
            };
            Reason::of(probe).filter(|reason| !is_allowed && *reason != Reason::Overwritten)
        };
        if probes.iter().all(|probe| silence(probe).is_some())
            && let Some((first, reason)) = probes.first().and_then(|first| Some((first, silence(first)?)))
        {
            complaints.push(format!(
                "none of the {} functions that match {pattern} was armed; of the first, {}",
                probes.len(),
                reason.say(&[shown_name(first)])
            ));
        }
    }
    complaints
}

/// Why a probe has not seen what it was asked to see.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Overwritten,
    Refused(String),
    Pending(String),
    NoFile(String),
    Freed,
    Yielded,
    NotReached,
}

impl Reason {
    /// The reason of a probe that was asked for by its own name, if it has one.
    fn of(probe: &ProbeReport) -> Option<Self> {
        match &probe.state {
            ProbeState::Overwritten(_) => Some(Self::Overwritten),
            ProbeState::Refused(reason) => Some(Self::Refused(reason.clone())),
            _ if probe.has_stood => None,
            ProbeState::Pending(module) => Some(Self::Pending(module.clone())),
            ProbeState::NoFile(path) => Some(Self::NoFile(path.clone())),
            ProbeState::Gone(_) => Some(Self::Freed),
            ProbeState::DisplacedByFtrace(_) => Some(Self::Yielded),
            ProbeState::Waiting => Some(Self::NotReached),
            ProbeState::Armed(_)
            | ProbeState::Optimized(_)
            | ProbeState::Spent(_)
            | ProbeState::Disabled
            | ProbeState::Broken(_) => None,
        }
    }

    /// The sentence about the probes with these names.
    fn say(&self, names: &[String]) -> String {
        /// Names in a sentence.
        const SHOWN: usize = 5;
        let (shown, rest) = names.split_at(names.len().min(SHOWN));
        let mut list = shown.join(", ");
        if !rest.is_empty() {
            list.push_str(&format!(" and {} more", rest.len()));
        }
        match self {
            Self::Overwritten => format!(
                "the guest changed its text under {list}, and later hits are lost: probe another place in the function, or \
                 keep the guest from patching it"
            ),
            Self::Refused(reason) => {
                format!("{list} could not be armed: {reason}; probe another place")
            }
            Self::Pending(module) => format!(
                "{list}: never armed, as the module `{module}` was not loaded: load it in the guest, or allow that \
                 with --allow-pending"
            ),
            Self::NoFile(path) => format!(
                "{list}: never armed, as the guest has no file `{path}`: write the path that its first process sees, or allow \
                 that with --allow-pending"
            ),
            Self::Freed => format!(
                "{list}: never armed, as the guest had freed its text before: it has run, if it has, earlier in the \
                 boot than probes can be armed"
            ),
            Self::Yielded => format!(
                "{list}: never armed, as the guest's ftrace worked on its text: turn the guest's tracer off, or \
                 probe another place in the function"
            ),
            Self::NotReached => {
                format!("{list}: never armed, as the guest ended before: let it boot further")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::probe::table::ProbeId;
    use vmm::session::{Missed, ProbeKind};

    const AT: Gva = Gva(0x1000);

    fn probe(name: &str, has_stood: bool, state: ProbeState) -> ProbeReport {
        ProbeReport {
            id: ProbeId(0),
            name: name.to_owned(),
            kind: ProbeKind::Instruction,
            module: None,
            enabled: true,
            address: AT,
            hits: 0,
            outside: 0,
            missed: Missed::default(),
            outstanding: 0,
            trapped: None,
            places: Vec::new(),
            has_stood,
            state,
        }
    }

    fn refused() -> ProbeState {
        ProbeState::Refused("no".to_owned())
    }

    fn pending() -> ProbeState {
        ProbeState::Pending("dummy".to_owned())
    }

    /// What is said of probes that were asked for as `pattern` says.
    fn said(probes: &[ProbeReport], pattern: Option<&str>) -> Vec<String> {
        complaints(probes, &found_by(&vec![pattern; probes.len()]), false)
    }

    /// The probes with these numbers were found by these patterns.
    fn found_by(patterns: &[Option<&str>]) -> BTreeMap<ProbeId, String> {
        let found = |(id, pattern): (u32, &Option<&str>)| Some((ProbeId(id), (*pattern)?.to_owned()));
        (0..).zip(patterns).filter_map(found).collect()
    }

    /// With the numbers that probes get.
    fn numbered(probes: impl IntoIterator<Item = ProbeReport>) -> Vec<ProbeReport> {
        (0..).zip(probes).map(|(id, probe)| ProbeReport { id: ProbeId(id), ..probe }).collect()
    }

    #[test]
    fn a_probe_that_was_named_has_to_have_stood() {
        let table = [
            (true, ProbeState::Armed(AT), None),
            (true, ProbeState::Optimized(AT), None),
            (true, ProbeState::Spent(AT), None),
            (true, ProbeState::Gone(AT), None),
            (true, ProbeState::DisplacedByFtrace(AT), None),
            (true, ProbeState::Waiting, None),
            (true, pending(), None),
            (true, ProbeState::Disabled, None),
            (false, ProbeState::Disabled, None),
            (true, ProbeState::Broken("panic".to_owned()), None),
            (true, ProbeState::Overwritten(AT), Some("later hits are lost")),
            (false, ProbeState::Overwritten(AT), Some("later hits are lost")),
            (true, refused(), Some("could not be armed: no;")),
            (false, refused(), Some("could not be armed: no;")),
            (false, pending(), Some("the module `dummy` was not loaded")),
            (false, ProbeState::Gone(AT), Some("had freed its text")),
            (false, ProbeState::DisplacedByFtrace(AT), Some("ftrace worked on its text")),
            (false, ProbeState::Waiting, Some("the guest ended before")),
        ];
        for (has_stood, state, expected) in table {
            let said = said(&[probe("f", has_stood, state.clone())], None);
            assert_eq!(said.len(), usize::from(expected.is_some()), "{has_stood} {state:?}: {said:?}");
            let is_said = |words| said.iter().all(|said| said.contains(words) && said.contains('f'));
            assert!(expected.is_none_or(is_said), "{has_stood} {state:?}: {said:?}");
        }
    }

    #[test]
    fn of_a_pattern_one_has_to_have_stood_and_none_may_be_overwritten() {
        let stands = || probe("a", true, ProbeState::Armed(AT));
        let table = [
            (vec![stands(), probe("b", false, refused())], None),
            (vec![stands(), probe("b", false, ProbeState::Waiting)], None),
            (vec![probe("a", true, ProbeState::Gone(AT)), probe("b", false, refused())], None),
            (vec![probe("a", false, ProbeState::Disabled)], None),
            (vec![stands(), probe("b", true, ProbeState::Overwritten(AT))], Some("under b, and later hits")),
            (
                vec![probe("a", false, refused()), probe("b", false, refused())],
                Some("none of the 2 functions"),
            ),
            (vec![probe("a", false, ProbeState::Waiting)], Some("none of the 1 functions")),
        ];
        for (probes, expected) in table {
            let said = said(&numbered(probes.clone()), Some("vfs_*"));
            assert_eq!(said.len(), usize::from(expected.is_some()), "{probes:?}: {said:?}");
            assert!(expected.is_none_or(|words| said[0].contains(words)), "{said:?}");
        }
        let patterns = found_by(&[Some("x_*"), Some("y_*")]);
        let both = complaints(&numbered([stands(), probe("y_a", false, refused())]), &patterns, false);
        assert_eq!(both.len(), 1, "each pattern is judged by itself: {both:?}");
    }

    #[test]
    fn a_module_may_be_missing_where_that_is_allowed() {
        let probes = numbered([probe("dummy:f", false, pending()), probe("g", false, refused())]);
        assert_eq!(complaints(&probes, &BTreeMap::new(), false).len(), 2);
        let said = complaints(&probes, &BTreeMap::new(), true);
        assert!(matches!(&said[..], [said] if said.starts_with("g could not be armed")), "{said:?}");
    }

    #[test]
    fn one_sentence_is_said_for_each_reason() {
        let many = numbered((0..7).map(|n| probe(&format!("m:f{n}"), false, pending())));
        let said = said(&many, None);
        assert!(
            matches!(&said[..], [said] if said.starts_with("m:f0, m:f1, m:f2, m:f3, m:f4 and 2 more: never armed")),
            "{said:?}"
        );
    }
}
