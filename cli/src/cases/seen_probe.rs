//! What was seen of a probe of a case, which is one definition and may be many probes of a recording.

use super::observed::{RecordedRun, SeenHit};
use crate::record::{ARMED, ProbeEnd};
use std::fmt;
use std::ops::Range;

/// A probe of a case.
#[derive(Debug, Default)]
pub(crate) struct SeenProbe<'a> {
    /// The numbers that its probes have in the recording.
    ids: Range<u32>,
    pub(crate) hits: u64,
    missed: u64,
    /// Where hits were missed, also where nobody knows how many.
    reasons: Vec<&'a str>,
    /// Why no hits are no sign that nothing was called, if that is so.
    pub(crate) silence: Option<String>,
    /// In ascending order.
    durations: Vec<u64>,
}

/// What is told of many durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Statistic {
    P99,
    Max,
    Mean,
}

impl fmt::Display for Statistic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::P99 => "p99",
            Self::Max => "max",
            Self::Mean => "mean",
        })
    }
}

impl<'a> SeenProbe<'a> {
    /// What was seen of all definitions, which came to so many probes each as `counts` has.
    pub(crate) fn all(counts: &[u32], run: &'a RecordedRun) -> Vec<Self> {
        let mut next = 0u32;
        let mut range = |count: &u32| {
            let begin = next;
            next = next.saturating_add(*count);
            begin..next
        };
        counts.iter().map(|count| Self::of(range(count), run)).collect()
    }

    fn of(ids: Range<u32>, run: &'a RecordedRun) -> Self {
        let ends: Vec<&ProbeEnd> = run.probes.range(ids.clone()).map(|(_, end)| end).collect();
        let sum = |of: fn(&ProbeEnd) -> u64| ends.iter().fold(0u64, |sum, end| sum.saturating_add(of(end)));
        let mut durations: Vec<u64> = run
            .hits
            .iter()
            .filter(|hit| ids.contains(&hit.probe))
            .filter_map(|hit| hit.duration_ns)
            .collect();
        durations.sort_unstable();
        Self {
            hits: sum(|end| end.hits),
            missed: sum(|end| end.missed),
            reasons: ends
                .iter()
                .map(|end| end.reasons.as_str())
                .filter(|reason| !reason.is_empty())
                .collect(),
            silence: silence(&ends),
            durations,
            ids,
        }
    }

    /// Whether this is a hit of it.
    pub(crate) fn has(&self, hit: &SeenHit) -> bool {
        self.ids.contains(&hit.probe)
    }

    /// Whether there may have been more hits than were counted.
    pub(crate) fn has_missed(&self) -> bool {
        self.missed > 0 || !self.reasons.is_empty()
    }

    /// How many were missed, and why.
    pub(crate) fn missed_words(&self) -> String {
        match self.reasons.as_slice() {
            [] => format!("{} were missed", self.missed),
            reasons => format!("{} were missed ({})", self.missed, reasons.join("; ")),
        }
    }

    /// What is told of the durations of its calls, in nanoseconds.
    pub(crate) fn duration(&self, statistic: Statistic) -> Option<f64> {
        let count = self.durations.len();
        let last = count.checked_sub(1)?;
        let nanos = match statistic {
            // The smallest one that 99 of 100 do not exceed.
            Statistic::P99 => {
                *self.durations.get((count * 99).div_ceil(100).saturating_sub(1).min(last))? as f64
            }
            Statistic::Max => *self.durations.get(last)? as f64,
            Statistic::Mean => self.durations.iter().map(|nanos| *nanos as f64).sum::<f64>() / count as f64,
        };
        Some(nanos)
    }
}

/// Why these probes have not seen what they were asked to see. Of a pattern, single ones may not have stood.
fn silence(ends: &[&ProbeEnd]) -> Option<String> {
    /// What probes have that stood to the end, or went with their text.
    const SOUND: [&str; 4] = [ARMED, "[OPTIMIZED]", "[GONE]", "[ONCE]"];
    let is_sound = |end: &&&ProbeEnd| SOUND.contains(&end.state.as_str());
    let overwritten = ends.iter().find(|end| end.state.starts_with("[OVERWRITTEN]"));
    let silent = match overwritten {
        Some(end) => end,
        None if ends.iter().any(|end| is_sound(&end)) => return None,
        None => match ends.first() {
            Some(end) => end,
            None => return Some("nothing was recorded of it".to_owned()),
        },
    };
    Some(format!("{}: {}", silent.probe, silent.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_by_rank() {
        let probe = |durations: Vec<u64>| SeenProbe { durations, ..SeenProbe::default() };
        let hundred = probe((1..=100).collect());
        assert_eq!(hundred.duration(Statistic::P99), Some(99.0));
        assert_eq!(hundred.duration(Statistic::Max), Some(100.0));
        assert_eq!(hundred.duration(Statistic::Mean), Some(50.5));
        assert_eq!(probe(vec![7]).duration(Statistic::P99), Some(7.0));
        assert_eq!(probe(vec![1, 9]).duration(Statistic::P99), Some(9.0));
        assert_eq!(probe(vec![]).duration(Statistic::Mean), None);
    }
}
