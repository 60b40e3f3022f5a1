//! Judges the order of hits, which is that of their times.

use super::judgement::Findings;
use super::observed::RecordedRun;
use super::seen_probe::SeenProbe;
use super::suite::TestCase;

pub(super) fn judge(case: &TestCase, probes: &[SeenProbe<'_>], run: &RecordedRun, found: &mut Findings) {
    let find = |id: &str| {
        let number = case.probes.iter().position(|probe| probe.id.get_ref() == id)?;
        probes.get(number)
    };
    let sequence = case.order.sequence.iter().filter_map(|id| Some((id.get_ref(), find(id.get_ref())?)));
    let sequence: Vec<(&String, &SeenProbe<'_>)> = sequence.collect();
    let mut left = sequence.iter();
    let mut next = left.next();
    for hit in &run.hits {
        if next.is_some_and(|(_, probe)| probe.has(hit)) {
            next = left.next();
        }
    }
    if let Some((id, _)) = next {
        let names: Vec<&str> = sequence.iter().map(|(id, _)| id.as_str()).collect();
        let said = format!("order {}: no hit of {id} in its place", names.join(", "));
        let is_open = run.is_cut || sequence.iter().any(|(_, probe)| probe.has_missed());
        if is_open {
            found.doubts.push(format!("{said}, and hits were missed"))
        } else {
            found.failures.push(said)
        }
    }
    for (later, first) in &case.order.never_before {
        let (later, first) = (later.get_ref(), first.get_ref());
        let (Some(of_later), Some(of_first)) = (find(later), find(first)) else { continue };
        let earliest = run.hits.iter().find(|hit| of_later.has(hit) || of_first.has(hit));
        if earliest.is_some_and(|hit| of_later.has(hit)) && !of_first.has_missed() {
            found.failures.push(format!("order: a hit of {later} came before any of {first}"));
        } else if of_later.has_missed() || of_first.has_missed() {
            found
                .doubts
                .push(format!("order: whether {later} came before {first} is open: hits were missed"));
        }
    }
}
