//! Hits that are counted instead of being shown one by one.

use crate::json::json;
use crate::record::HistogramEnd;
use probe_engine::capture::Values;
use probe_engine::capture::filter::Circumstances;
use probe_engine::capture::names::Names;
use probe_engine::capture::tally::{Group, Line, Tally};
use probe_engine::request::{Counted, ProbeRequest};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use vmm::events::Event;

/// The histograms of a run, by their numbers.
#[derive(Default)]
pub(super) struct RunHistograms {
    all: BTreeMap<usize, NamedTally>,
}

struct NamedTally {
    name: String,
    tally: Tally,
}

/// One line of a histogram as JSON.
#[derive(Serialize)]
struct JsonEntry<'a> {
    r#type: &'static str,
    histogram: &'a str,
    #[serde(flatten)]
    line: Line<'a>,
    text: String,
}

impl RunHistograms {
    /// Hits of `probe` are counted, if they are to be.
    pub(super) fn register(&mut self, probe: &ProbeRequest) {
        if let (Some(Counted { number, name }), Some(plan)) = (&probe.counted, probe.plan.histogram()) {
            let new = || NamedTally { name: name.clone(), tally: Tally::new(plan.clone()) };
            self.all.entry(*number).or_insert_with(new);
        }
    }

    /// Counts a hit.
    pub(super) fn add(&mut self, event: &Event, probe: &ProbeRequest, counted: &Counted) {
        let histogram = self.all.get_mut(&counted.number);
        let Some((NamedTally { tally, .. }, plan)) = histogram.zip(probe.plan.histogram()) else { return };
        let at = Circumstances { cpu: event.vcpu, task: event.task.as_ref(), ip: event.rip.0 };
        tally.add(plan, &probe.plan.capture.fields, Values::of(&event.captured), &at);
    }

    /// Counts hits of a probe that have been counted in the guest.
    pub(super) fn add_group(&mut self, counted: &Counted, group: &Group) {
        if let Some(NamedTally { tally, .. }) = self.all.get_mut(&counted.number) {
            tally.add_group(group.clone());
        }
    }

    pub(super) fn write_text(&self, out: &mut impl Write, names: Names<'_>) -> io::Result<()> {
        for NamedTally { name, tally } in self.all.values() {
            begin_text(out, name, &tally.plan().said)?;
            tally.lines(names).try_for_each(|line| writeln!(out, "{line}"))?;
            end_text(out, tally.hits(), tally.len(), tally.dropped())?;
        }
        Ok(())
    }

    pub(super) fn write_json(&self, out: &mut impl Write, names: Names<'_>) -> io::Result<()> {
        for NamedTally { name, tally } in self.all.values() {
            for line in tally.lines(names) {
                let text = line.to_string();
                json(out, &JsonEntry { r#type: "entry", histogram: name, line, text })?;
            }
            let whole = HistogramEnd {
                histogram: name.clone(),
                definition: tally.plan().said.clone(),
                hits: tally.hits(),
                entries: tally.len(),
                dropped: tally.dropped(),
            };
            json(out, &whole)?;
        }
        Ok(())
    }
}

/// What comes before a histogram's entries: as the kernel's `hist` file has it, below its name.
pub(crate) fn begin_text(out: &mut impl Write, name: &str, definition: &str) -> io::Result<()> {
    write!(out, "# {name}\n# event histogram\n#\n# trigger info: {definition} [active]\n#\n\n")
}

/// What comes behind them.
pub(crate) fn end_text(out: &mut impl Write, hits: u64, entries: usize, dropped: u64) -> io::Result<()> {
    write!(out, "\nTotals:\n    Hits: {hits}\n    Entries: {entries}\n    Dropped: {dropped}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::testing::written_as;
    use probe_engine::addr::Gva;
    use probe_engine::capture::filter::Operand;
    use probe_engine::capture::hist::{self, Form, Key};
    use probe_engine::capture::shape::Shape;
    use probe_engine::probe::place::Place;
    use probe_engine::probe::plan::{Action, ProbePlan, Trigger};
    use probe_engine::probe::table::ProbeId;
    use vmm::events::Captured;
    use vmm::events::What;

    /// Two probes that are counted together, by the CPU, and one that is not counted.
    fn probes() -> Vec<ProbeRequest> {
        let key = Key { name: "cpu".to_owned(), operand: Operand::Cpu, form: Form::Number(Shape::Unsigned) };
        let plan = hist::Histogram {
            said: "hist:keys=cpu".to_owned(),
            keys: vec![key],
            values: Vec::new(),
            sort: Vec::new(),
            size: 128,
        };
        let counted = Counted { number: 3, name: "reads".to_owned() };
        let place =
            |symbol: &str| Place::Module { module: "m".to_owned(), symbol: symbol.to_owned(), offset: 0 };
        let asked = |symbol, counted: Option<Counted>| {
            let plain = ProbeRequest::plain(place(symbol), Trigger::Pass);
            match counted {
                None => plain,
                Some(_) => {
                    let action = Action::Histogram(plan.clone());
                    ProbeRequest { counted, plan: ProbePlan { action, ..plain.plan }, ..plain }
                }
            }
        };
        vec![asked("a", Some(counted.clone())), asked("b", Some(counted)), asked("c", None)]
    }

    fn written(format: Format) -> String {
        let event = |probe, vcpu| Event {
            stack: None,
            nanos: 0,
            guest_nanos: None,
            vcpu,
            probe: ProbeId(probe),
            rip: Gva(0x10),
            what: What::Hit { args: [0; 6] },
            task: None,
            captured: Captured::NONE,
        };
        written_as(format, probes(), &[event(0, 1), event(1, 1), event(1, 0), event(2, 0)])
    }

    #[test]
    fn hits_of_one_histogram_are_counted_together_and_not_shown() {
        let text = written(Format::Text);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("m:c rip=0x10"), "{text}");
        assert_eq!(
            lines[1..6],
            ["# reads", "# event histogram", "#", "# trigger info: hist:keys=cpu [active]", "#"]
        );
        assert_eq!(
            lines[7..9],
            ["{ cpu:          0 } hitcount:          1", "{ cpu:          1 } hitcount:          2"]
        );
        assert_eq!(lines[10..], ["Totals:", "    Hits: 3", "    Entries: 2", "    Dropped: 0", ""]);
    }

    #[test]
    fn histograms_are_json_objects() {
        let text = written(Format::Json);
        let objects: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let entry = |cpu, hits| {
            serde_json::json!({
                "type": "entry", "histogram": "reads", "keys": { "cpu": cpu }, "hitcount": hits, "values": {},
                "text": format!("{{ cpu: {cpu:>10} }} hitcount: {hits:>10}")
            })
        };
        assert_eq!(objects[1..3], [entry(0, 1), entry(1, 2)]);
        let whole = serde_json::json!({
            "type": "histogram", "histogram": "reads", "definition": "hist:keys=cpu", "hits": 3, "entries": 2,
            "dropped": 0
        });
        assert_eq!(objects[3], whole);
        assert_eq!(objects.len(), 4);
    }
}
