//! How hits and the summary are written.

mod event;
mod findings;
mod graph;
mod hist;
mod holds;
mod injections;
mod names;
mod out;
mod prefixes;
mod reasons;
mod recent;
mod registered;
mod repeats;
mod samples;
mod stack;
mod stands;
mod summary;
mod text;
mod top;
mod writer;

pub(crate) use crate::json::json;
use crate::say::note;
pub(crate) use event::FunctionText;
pub(crate) use hist::{
    LiveHistogram, LiveLine, RunHistograms, begin_text as begin_histogram, end_text as end_histogram,
};
pub(crate) use names::GuestNames;
pub(crate) use out::{Out, is_read_at_leisure};
pub(crate) use prefixes::PrefixTable;
pub(crate) use reasons::{FEW, by_kind};
pub(crate) use stands::{cpu as stood_line, named_lock, sleeper};
use std::time::Duration;
pub(crate) use summary::{counts, end, shown_name, table};
pub(crate) use text::Text;
pub(crate) use top::Top;
use vmm::session::{ProbeReport, ProbeState};
#[cfg(test)]
use writer::testing;
pub(crate) use writer::{AddedProbes, HitWriter};

/// Says how many are armed, and how long the guest stood still for it.
pub(crate) fn say_armed(probes: &[ProbeReport], stopped: Duration) {
    let armed = probes
        .iter()
        .filter(|p| matches!(p.state, ProbeState::Armed(_) | ProbeState::Optimized(_) | ProbeState::Spent(_)))
        .count();
    let waits = |probe: &&ProbeReport| {
        matches!(probe.state, ProbeState::Waiting | ProbeState::Pending(_) | ProbeState::NoFile(_))
    };
    let waiting = match probes.iter().filter(waits).count() {
        0 => String::new(),
        waiting => format!("; {waiting} wait for a program or a module"),
    };
    // Those that are armed later are not spoken of.
    if probes.iter().any(|probe| probe.enabled) {
        let seconds = stopped.as_secs_f64();
        note(format_args!("{armed} of {} probes armed in {seconds:.3} s{waiting}", probes.len()));
    }
}

/// Widest column of a table. A recording may have names of any length.
const WIDEST: usize = 120;

/// The width of a column with these cells, in characters.
pub(crate) fn width<'a>(cells: impl Iterator<Item = &'a str>) -> usize {
    cells.map(|cell| cell.chars().count()).max().unwrap_or(0).min(WIDEST)
}
