//! What was found in a recording: findings of a guard and of scans, hits of rules, and faults of the kernel.

use super::ReportError;
use crate::detection::{Detection, Found, Numbering, Source};
use crate::record::{Line, Reader};
use std::io::{self, BufRead};

/// Tells each detection of `recording`, and one for those that have no line, as soon as its line is read.
pub(super) fn each(
    recording: &mut Reader<impl BufRead>,
    mut tell: impl FnMut(&Found) -> io::Result<()>,
) -> Result<(), ReportError> {
    let mut numbering = Numbering::of(&Source::from(recording.header()));
    while let Some(line) = recording.next()? {
        let (nanos, detection) = match &line {
            Line::Hit(hit) => {
                let nanos = hit.event.nanos;
                numbering.passed(nanos);
                let probe = recording.probe(hit.event.probe.0);
                let of_rule = probe.and_then(|probe| Some((probe.rule.as_ref()?, probe)));
                let told =
                    of_rule.map(|(rule, probe)| Detection::of_rule(rule, probe, hit, recording.text()));
                (Some(nanos), told)
            }
            Line::Finding(finding) => (Some(finding.nanos()), Some(Detection::of_write(finding))),
            Line::ScanFinding(finding) => (finding.nanos(), Some(Detection::of_scan(finding))),
            Line::Guard(guard) => (None, Detection::of_guard(guard)),
            Line::ScanCheck(check) => (None, Detection::of_scan_check(check)),
            Line::Splat(splat) if splat.is_fault() => (Some(splat.time_ns), Some(Detection::of_splat(splat))),
            Line::End => {
                let death = recording.end().filter(|end| end.has_died());
                (death.map(|end| end.ran_ns), death.map(Detection::of_death))
            }
            _ => (None, None),
        };
        if let Some(detection) = detection {
            tell(&numbering.found(detection, nanos))?;
        }
    }
    Ok(())
}
