//! What a run came to: a table for people, or JSON.

use super::json;
use serde::Serialize;
use std::cmp::Reverse;
use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;
use vmm::session::{Missed, Outcome, ProbeKind, ProbeReport, ProbeState, Report};

/// A probe's line of the summary as JSON.
#[derive(Serialize)]
struct JsonProbe<'a> {
    r#type: &'static str,
    probe: &'a str,
    kind: char,
    module: Option<&'a str>,
    address: String,
    hits: u64,
    /// Passes that were not in the scope.
    outside: u64,
    missed: u64,
    reasons: String,
    outstanding: usize,
    state: String,
    /// Why it was not served by a detour.
    #[serde(skip_serializing_if = "Option::is_none")]
    trapped: Option<&'a str>,
}

/// The end of the run as JSON.
#[derive(Serialize)]
struct JsonEnd {
    r#type: &'static str,
    end: String,
    waits: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exits: Option<u64>,
    /// How long the guest stood still until all was armed.
    armed_us: u128,
    /// And to be disarmed at its end.
    disarmed_us: u128,
}

/// Writes an object a probe, and one for the end.
pub(super) fn write_json(out: &mut impl Write, report: &Report, armed_in: Duration) -> io::Result<()> {
    for probe in &report.probes {
        let line = JsonProbe {
            r#type: "probe",
            probe: &shown_name(probe),
            kind: kind(probe),
            module: probe.module.as_deref(),
            address: probe.address.to_string(),
            hits: probe.hits,
            outside: probe.outside,
            missed: probe.missed.hits(),
            reasons: reasons(&probe.missed),
            outstanding: probe.outstanding,
            state: state_name(&probe.state),
            trapped: probe.trapped.as_deref(),
        };
        json(out, &line)?;
    }
    let end = JsonEnd {
        r#type: "end",
        end: end_name(&report.end),
        waits: report.waits,
        exits: report.exits,
        armed_us: armed_in.as_micros(),
        disarmed_us: report.disarmed_in.as_micros(),
    };
    json(out, &end)
}

/// The table that ends a run: probe, address, hits, passes outside of the scope where there were any, missed with the
/// reasons, and the state when it is out of the ordinary.
pub(super) fn table(probes: &[&ProbeReport]) -> String {
    let names: Vec<String> = probes.iter().map(|probe| shown_name(probe)).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0).max("probe".len());
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
    for (name, probe) in names.iter().zip(probes) {
        let (address, missed) = (probe.address.to_string(), probe.missed.hits());
        let (hits, outside) = (probe.hits, outside(&probe.outside));
        table.push_str(&format!("{name:width$}  {address:<18}  {hits:>10}{outside}  {missed:>6}"));
        let mut notes = Vec::new();
        if !matches!(probe.state, ProbeState::Armed(_)) {
            notes.push(state_name(&probe.state));
        }
        notes.extend(probe.trapped.as_ref().map(|reason| format!("on a trap: {reason}")));
        let reasons = reasons(&probe.missed);
        if !reasons.is_empty() {
            notes.push(format!("missed: {reasons}"));
        }
        if probe.outstanding > 0 {
            notes.push(format!("{} calls have not returned", probe.outstanding));
        }
        if !notes.is_empty() {
            table.push_str("  ");
            table.push_str(&notes.join("; "));
        }
        table.push('\n');
    }
    table
}

/// How often each function was called that was, the most frequent first.
pub(super) fn counts(probes: &[&ProbeReport]) -> String {
    if probes.is_empty() {
        return String::new();
    }
    let mut called: Vec<&ProbeReport> = probes.iter().copied().filter(|probe| probe.hits > 0).collect();
    called.sort_by_key(|probe| (Reverse(probe.hits), probe.id));
    let mut text = format!("{:>12}  function: {} of {} were called\n", "calls", called.len(), probes.len());
    for probe in called {
        text.push_str(&format!("{:>12}  {}\n", probe.hits, probe.name));
    }
    let outside: u64 = probes.iter().map(|probe| probe.outside).sum();
    if outside > 0 {
        text.push_str(&format!("{outside:>12}  outside of the scope, of all functions together\n"));
    }
    text
}

/// As the user wrote it.
pub(crate) fn shown_name(probe: &ProbeReport) -> String {
    format!("{}{}", probe.name, if probe.kind == ProbeKind::Return { "%return" } else { "" })
}

/// As the kernel's list of its own probes has it, which has no watches.
fn kind(probe: &ProbeReport) -> char {
    match probe.kind {
        ProbeKind::Instruction => 'k',
        ProbeKind::Return => 'r',
        ProbeKind::Watch => 'w',
    }
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
        ProbeState::Armed(_) => "armed".to_owned(),
        ProbeState::Optimized(_) => "[OPTIMIZED]".to_owned(),
        ProbeState::Waiting => "[NOT REACHED] the guest ended before it could be armed".to_owned(),
        ProbeState::Pending(module) => format!("[PENDING] the module `{module}` was not loaded"),
        ProbeState::Disabled => "[DISABLED]".to_owned(),
        ProbeState::DisplacedByFtrace(_) => "[YIELDED] the guest works on its text here".to_owned(),
        ProbeState::Refused(reason) => format!("[REFUSED] {reason}"),
        ProbeState::Gone(_) => "[GONE]".to_owned(),
        ProbeState::Spent(_) => "[ONCE]".to_owned(),
        ProbeState::Broken(words) => format!("[DISABLED] its handler panicked: {words}"),
        ProbeState::Overwritten(_) => {
            "[OVERWRITTEN] the guest changed its text here; later hits are lost".to_owned()
        }
    }
}

pub(crate) fn end_name(end: &Outcome) -> String {
    match end {
        Outcome::PoweredOff => "powered off".to_owned(),
        Outcome::Reset => "reset".to_owned(),
        Outcome::Quit => "quit".to_owned(),
        Outcome::Stopped => "stopped".to_owned(),
        Outcome::Signal(signal) => format!("signal {signal}"),
        Outcome::TimedOut(_) => "timed out".to_owned(),
        Outcome::Died(death) => death.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::probe::table::ProbeId;

    #[test]
    fn the_table_says_what_is_out_of_the_ordinary() {
        let report = |name: &str, state| ProbeReport {
            id: ProbeId(0),
            name: name.to_owned(),
            kind: ProbeKind::Instruction,
            module: None,
            enabled: true,
            address: Gva(0xffff_ffff_8100_0000),
            hits: 7,
            outside: 0,
            missed: Missed::default(),
            outstanding: 0,
            trapped: None,
            has_stood: true,
            state,
        };
        let mut returns = report("b", ProbeState::Armed(Gva(0)));
        (returns.kind, returns.outstanding, returns.missed.instance) = (ProbeKind::Return, 2, 40);
        let gone = report("start_kernel", ProbeState::Gone(Gva(0)));
        let armed = report("a", ProbeState::Armed(Gva(0)));
        assert_eq!(
            table(&[&armed, &gone, &returns]),
            "probe         address                   hits  missed\n\
             a             0xffffffff81000000           7       0\n\
             start_kernel  0xffffffff81000000           7       0  [GONE]\n\
             b%return      0xffffffff81000000           7      40  missed: 40 with too many calls under way (--maxactive); 2 calls have not returned\n"
        );
        let scoped = ProbeReport { outside: 12, ..armed.clone() };
        assert_eq!(
            table(&[&scoped, &armed]),
            "probe  address                   hits     outside  missed\n\
             a      0xffffffff81000000           7          12       0\n\
             a      0xffffffff81000000           7           0       0\n"
        );
    }

    #[test]
    fn what_was_called_most_comes_first() {
        let report = |id, name: &str, hits| ProbeReport {
            id: ProbeId(id),
            name: name.to_owned(),
            kind: ProbeKind::Instruction,
            module: None,
            enabled: true,
            address: Gva(0),
            hits,
            outside: 0,
            missed: Missed::default(),
            outstanding: 0,
            trapped: None,
            has_stood: true,
            state: ProbeState::Optimized(Gva(0)),
        };
        let all =
            [report(0, "rare", 1), report(1, "never", 0), report(2, "often", 1000), report(3, "too", 1)];
        assert_eq!(
            counts(&all.each_ref()),
            "       calls  function: 3 of 4 were called\n        1000  often\n           1  rare\n           1  too\n"
        );
        assert_eq!(counts(&[]), "");
        let outside = ProbeReport { outside: 5, ..report(0, "rare", 1) };
        assert_eq!(
            counts(&[&outside]),
            "       calls  function: 1 of 1 were called\n           1  rare\n           5  outside of the scope, of all functions together\n"
        );
    }
}
