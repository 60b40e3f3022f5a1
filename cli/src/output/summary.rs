//! What a run came to: its last records, and a table of them for people.

use super::reasons::{FEW, by_kind};
use super::{WIDEST, width};
use crate::record::{ARMED, Address, End, Kind, PlaceEnd, Probe, ProbeEnd};
use probe_engine::probe::table::ProbeId;
use std::cmp::Reverse;
use std::fmt::Display;
use std::time::Duration;
use vmm::session::{Missed, Outcome, PlaceReport, ProbeKind, ProbeReport, ProbeState, Report};

/// What each probe came to, those that were removed before the end included, in order of their numbers. `injected` is what
/// callers get, of a probe whose hits are calls that fail.
pub(super) fn probes<'a>(report: &Report, told: impl Fn(ProbeId) -> Option<&'a Probe>) -> Vec<ProbeEnd> {
    let of = |probe: &ProbeReport, state: String| ProbeEnd {
        id: probe.id.0,
        probe: shown_name(probe),
        kind: match probe.kind {
            ProbeKind::Instruction => Kind::Instruction,
            ProbeKind::Return => Kind::Return,
            ProbeKind::Watch => Kind::Watch,
        },
        module: probe.module.clone(),
        address: Address(probe.address.0),
        hits: probe.hits,
        outside: probe.outside,
        missed: probe.missed.hits(),
        reasons: reasons(&probe.missed),
        outstanding: probe.outstanding,
        state,
        injected: told(probe.id).and_then(|told| told.injected.clone()),
        rule: told(probe.id).and_then(|told| told.rule.clone()),
        trapped: probe.trapped.clone(),
        places: probe.places.iter().map(place_end).collect(),
    };
    let removed = report.removed.iter().map(|probe| of(probe, REMOVED.to_owned()));
    let mut ends: Vec<_> = report.probes.iter().map(|probe| of(probe, state_name(&probe.state))).collect();
    ends.extend(removed);
    ends.sort_by_key(|end| end.id);
    ends
}

/// The state of a probe that somebody has removed.
const REMOVED: &str = "[REMOVED]";

fn place_end(place: &PlaceReport) -> PlaceEnd {
    PlaceEnd { place: place.place.clone(), hits: place.hits, refused: place.refused.clone() }
}

/// How the run ended, and its command with it.
pub(crate) fn end(report: &Report, exit_code: Option<u8>, armed_in: Duration) -> End {
    End {
        end: end_name(&report.end),
        exit_code,
        waits: report.waits,
        exits: report.exits,
        ran_ns: nanos(report.ran),
        armed_us: nanos(armed_in) / 1000,
        disarmed_us: nanos(report.disarmed_in) / 1000,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The table that ends a run: probe, address, hits, passes outside of the scope where there were any, missed with the
/// reasons, and the state when it is out of the ordinary.
pub(crate) fn table(probes: &[&ProbeEnd]) -> String {
    let names = probes.iter().map(|probe| probe.probe.as_str()).chain(["probe"]);
    let places = probes.iter().flat_map(|probe| &probe.places).map(|place| place.place.chars().count() + 2);
    let width = width(names).max(places.max().unwrap_or(0).min(WIDEST));
    let has_outside = probes.iter().any(|probe| probe.outside > 0);
    let outside =
        |cell: &dyn Display| if has_outside { format!("  {:>10}", cell.to_string()) } else { String::new() };
    let mut table = format!(
        "{:width$}  {:18}  {:>10}{}  {:>6}\n",
        "probe",
        "address",
        "hits",
        outside(&"outside"),
        "missed"
    );
    let (on_traps, refused): (Vec<_>, Vec<_>) = (trapped(probes).collect(), refused(probes).collect());
    for probe in probes {
        let (name, address, missed) = (&probe.probe, probe.address.to_string(), probe.missed);
        let (hits, outside) = (probe.hits, outside(&probe.outside));
        table.push_str(&format!("{name:width$}  {address:<18}  {hits:>10}{outside}  {missed:>6}"));
        let mut notes = Vec::new();
        match probe.state.as_str() {
            ARMED => {}
            state if state.starts_with(REFUSED) && refused.len() > FEW => {
                notes.push(REFUSED.trim_end().to_owned());
            }
            state => notes.push(state.to_owned()),
        }
        notes.extend(probe.rule.as_ref().map(|rule| format!("rule {rule}")));
        notes.extend(probe.injected.as_ref().map(|value| match probe.hits {
            1 => format!("injected {value} once"),
            hits => format!("injected {value} {hits} times"),
        }));
        notes.extend(probe.trapped.as_ref().filter(|_| probe.injected.is_none()).map(|reason| {
            match on_traps.len() > FEW {
                true => "on a trap".to_owned(),
                false => format!("on a trap: {reason}"),
            }
        }));
        if !probe.reasons.is_empty() {
            notes.push(format!("missed: {}", probe.reasons));
        }
        if probe.outstanding > 0 {
            notes.push(format!("{} calls have not returned", probe.outstanding));
        }
        if !notes.is_empty() {
            table.push_str("  ");
            table.push_str(&notes.join("; "));
        }
        table.push('\n');
        for PlaceEnd { place, hits, refused } in &probe.places {
            let refused = refused.as_ref().map(|reason| format!("          {REFUSED}{reason}"));
            let name = format!("  {place}");
            table.push_str(&format!("{name:width$}  {:18}  {hits:>10}{}\n", "", refused.unwrap_or_default()));
        }
    }
    if on_traps.len() > FEW {
        table.push_str(&told("stand on traps", &on_traps, probes.len()));
    }
    if refused.len() > FEW {
        table.push_str(&told("were refused", &refused, probes.len()));
    }
    table
}

/// What begins the state of a probe that the live text has refused.
const REFUSED: &str = "[REFUSED] ";

/// Why probes stand on traps that were to be served by detours, with their names.
fn trapped<'a>(probes: &'a [&ProbeEnd]) -> impl Iterator<Item = (&'a str, &'a str)> {
    probes.iter().filter_map(|probe| Some((probe.trapped.as_deref()?, probe.probe.as_str())))
}

/// Why the live text has refused probes, with their names.
fn refused<'a>(probes: &'a [&ProbeEnd]) -> impl Iterator<Item = (&'a str, &'a str)> {
    probes.iter().filter_map(|probe| Some((probe.state.strip_prefix(REFUSED)?, probe.probe.as_str())))
}

/// What became of many probes, by kinds of reasons.
fn told(what: &str, reasons: &[(&str, &str)], of: usize) -> String {
    let lines = by_kind(reasons.iter().copied()).join("\n");
    format!("{} of {of} probes {what}:\n{lines}\n", reasons.len())
}

/// How often each function was called that was, the most frequent first.
pub(crate) fn counts(probes: &[&ProbeEnd]) -> String {
    if probes.is_empty() {
        return String::new();
    }
    let mut called: Vec<&ProbeEnd> = probes.iter().copied().filter(|probe| probe.hits > 0).collect();
    called.sort_by_key(|probe| (Reverse(probe.hits), probe.id));
    let mut text = format!("{:>12}  function: {} of {} were called\n", "calls", called.len(), probes.len());
    for probe in called {
        text.push_str(&format!("{:>12}  {}\n", probe.hits, probe.probe));
    }
    let outside = probes.iter().fold(0, |all: u64, probe| all.saturating_add(probe.outside));
    if outside > 0 {
        text.push_str(&format!("{outside:>12}  outside of the scope, of all functions together\n"));
    }
    for (what, reasons) in
        [("stand on traps", trapped(probes).collect::<Vec<_>>()), ("were refused", refused(probes).collect())]
    {
        if !reasons.is_empty() {
            text.push_str(&told(what, &reasons, probes.len()));
        }
    }
    text
}

/// As the user wrote it.
pub(crate) fn shown_name(probe: &ProbeReport) -> String {
    format!("{}{}", probe.name, if probe.kind == ProbeKind::Return { "%return" } else { "" })
}

/// Where misses come from.
fn reasons(missed: &Missed) -> String {
    let all = [
        (missed.output, "could not be written"),
        (missed.ring, "found no room in the guest's ring"),
        (missed.unfinished, "begun in the guest's ring and not finished"),
        (missed.instance, "with too many calls under way (--maxactive)"),
        (missed.stack, "with a return address that could not be followed"),
        (missed.unread, "while memory, or enough of it, could not be read for them"),
        (missed.yields, "times the guest worked on this text, and hits were lost uncounted"),
    ];
    let present = all.iter().filter(|(count, _)| *count > 0);
    present.map(|(count, reason)| format!("{count} {reason}")).collect::<Vec<_>>().join(", ")
}

fn state_name(state: &ProbeState) -> String {
    match state {
        ProbeState::Armed(_) => ARMED.to_owned(),
        ProbeState::Optimized(_) => "[OPTIMIZED]".to_owned(),
        ProbeState::Waiting => "[NOT REACHED] the guest ended before it could be armed".to_owned(),
        ProbeState::Pending(module) => format!("[PENDING] the module `{module}` was not loaded"),
        ProbeState::NoFile(path) => format!("[PENDING] the guest has no file `{path}`"),
        ProbeState::Disabled => "[DISABLED]".to_owned(),
        ProbeState::DisplacedByFtrace(_) => "[YIELDED] the guest works on its text here".to_owned(),
        ProbeState::Refused(reason) => format!("{REFUSED}{reason}"),
        ProbeState::Gone(_) => "[GONE]".to_owned(),
        ProbeState::Spent(_) => "[ONCE]".to_owned(),
        ProbeState::Broken(words) => format!("[DISABLED] its handler panicked: {words}"),
        ProbeState::Overwritten(_) => {
            "[OVERWRITTEN] the guest changed its text here; later hits are lost".to_owned()
        }
    }
}

fn end_name(end: &Outcome) -> String {
    match end {
        Outcome::PoweredOff => "powered off".to_owned(),
        Outcome::Reset => "reset".to_owned(),
        Outcome::Quit => "quit".to_owned(),
        Outcome::Stopped => "stopped".to_owned(),
        Outcome::Guarded => "stopped by its guard".to_owned(),
        Outcome::Signal(signal) => format!("signal {signal}"),
        Outcome::TimedOut(_) => "timed out".to_owned(),
        Outcome::Died(death) => death.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(id: u32, name: &str, hits: u64, state: &str) -> ProbeEnd {
        ProbeEnd {
            id,
            probe: name.to_owned(),
            kind: Kind::Instruction,
            module: None,
            address: Address(0xffff_ffff_8100_0000),
            hits,
            outside: 0,
            missed: 0,
            reasons: String::new(),
            outstanding: 0,
            state: state.to_owned(),
            injected: None,
            rule: None,
            trapped: None,
            places: Vec::new(),
        }
    }

    #[test]
    fn the_table_says_what_is_out_of_the_ordinary() {
        let missed = Missed { instance: 40, ..Missed::default() };
        let (reasons, missed) = (reasons(&missed), missed.hits());
        let returns = ProbeEnd { outstanding: 2, missed, reasons, ..probe(0, "b%return", 7, ARMED) };
        let gone = probe(0, "start_kernel", 7, &state_name(&ProbeState::Gone(probe_engine::addr::Gva(0))));
        let armed = probe(0, "a", 7, ARMED);
        assert_eq!(
            table(&[&armed, &gone, &returns]),
            "probe         address                   hits  missed\n\
             a             0xffffffff81000000           7       0\n\
             start_kernel  0xffffffff81000000           7       0  [GONE]\n\
             b%return      0xffffffff81000000           7      40  missed: 40 with too many calls under way (--maxactive); 2 calls have not returned\n"
        );
        let scoped = ProbeEnd { outside: 12, ..armed.clone() };
        assert_eq!(
            table(&[&scoped, &armed]),
            "probe  address                   hits     outside  missed\n\
             a      0xffffffff81000000           7          12       0\n\
             a      0xffffffff81000000           7           0       0\n"
        );
    }

    #[test]
    fn reasons_of_many_probes_follow_by_kind() {
        let trapped = |id, name: &str| {
            let trapped = Some(format!("something leads to 0x{id}"));
            ProbeEnd { trapped, ..probe(id, name, 0, ARMED) }
        };
        let few = [trapped(1, "a"), trapped(2, "b"), trapped(3, "c")];
        let table_of_few = table(&few.each_ref());
        assert!(table_of_few.contains("  on a trap: something leads to 0x2\n"), "{table_of_few}");
        assert!(!table_of_few.contains("probes stand"), "{table_of_few}");
        let many = [trapped(1, "a"), trapped(2, "b"), trapped(3, "c"), trapped(4, "d")];
        let table_of_many = table(&many.each_ref());
        assert!(!table_of_many.contains("0x2"), "{table_of_many}");
        let told = "4 of 4 probes stand on traps:\n      4  something leads to ..: a, b, c and 1 more\n";
        assert!(table_of_many.ends_with(told), "{table_of_many}");
        let refused: Vec<ProbeEnd> =
            (0..5).map(|id| probe(id, "r", 0, &format!("{REFUSED}a task {id}"))).collect();
        let refused = table(&refused.iter().collect::<Vec<_>>());
        assert!(refused.contains("  [REFUSED]\n"), "{refused}");
        assert!(
            refused.contains("5 of 5 probes were refused:\n      5  a task ..: r, r, r and 2 more\n"),
            "{refused}"
        );
        assert!(
            counts(&few.each_ref()).contains("3 of 3 probes stand on traps:\n"),
            "a count has no rows for them"
        );
    }

    #[test]
    fn what_was_called_most_comes_first() {
        let counted = |id, name: &str, hits| probe(id, name, hits, "[OPTIMIZED]");
        let all =
            [counted(0, "rare", 1), counted(1, "never", 0), counted(2, "often", 1000), counted(3, "too", 1)];
        assert_eq!(
            counts(&all.each_ref()),
            "       calls  function: 3 of 4 were called\n        1000  often\n           1  rare\n           1  too\n"
        );
        assert_eq!(counts(&[]), "");
        let outside = ProbeEnd { outside: 5, ..counted(0, "rare", 1) };
        assert_eq!(
            counts(&[&outside]),
            "       calls  function: 1 of 1 were called\n           1  rare\n           5  outside of the scope, of all functions together\n"
        );
    }
}
