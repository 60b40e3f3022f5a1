//! Hits that are counted instead of being shown one by one.

use super::json;
use probe_engine::capture::Values;
use probe_engine::capture::filter::Circumstances;
use probe_engine::capture::names::Names;
use probe_engine::capture::tally::{Group, Line, Tally};
use probe_engine::probe::table::ProbeId;
use probe_engine::request::{Counted, ProbeRequest};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use vmm::events::Event;

/// The histograms of a run, by their numbers.
pub(super) struct Histograms {
    all: BTreeMap<usize, Histogram>,
}

struct Histogram {
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
}

/// A whole histogram as JSON.
#[derive(Serialize)]
struct JsonHistogram<'a> {
    r#type: &'static str,
    histogram: &'a str,
    definition: &'a str,
    hits: u64,
    entries: usize,
    dropped: u64,
}

impl Histograms {
    pub(super) fn of(probes: &[ProbeRequest]) -> Self {
        let mut all = BTreeMap::new();
        for asked in probes {
            if let (Some(Counted { number, name }), Some(plan)) = (&asked.counted, asked.plan.histogram()) {
                let new = || Histogram { name: name.clone(), tally: Tally::new(plan.clone()) };
                all.entry(*number).or_insert_with(new);
            }
        }
        Self { all }
    }

    /// Counts a hit.
    pub(super) fn add(&mut self, event: &Event, probe: &ProbeRequest, counted: &Counted) {
        let histogram = self.all.get_mut(&counted.number);
        let Some((Histogram { tally, .. }, plan)) = histogram.zip(probe.plan.histogram()) else { return };
        let at = Circumstances { cpu: event.vcpu, task: event.task.as_ref(), ip: event.rip.0 };
        tally.add(plan, &probe.plan.capture.fields, Values::of(&event.captured), &at);
    }

    /// Counts hits of `probes` that have been counted in the guest.
    pub(super) fn add_groups(&mut self, probes: &[ProbeRequest], groups: &[(ProbeId, Group)]) {
        for (probe, group) in groups {
            let counted = probes.get(probe.0 as usize).and_then(|asked| asked.counted.as_ref());
            let histogram = counted.and_then(|counted| self.all.get_mut(&counted.number));
            if let Some(Histogram { tally, .. }) = histogram {
                tally.add_group(group.clone());
            }
        }
    }

    pub(super) fn write_text(&self, out: &mut impl Write, names: Names<'_>) -> io::Result<()> {
        self.all
            .values()
            .try_for_each(|Histogram { name, tally }| writeln!(out, "# {name}\n{}", tally.text(names)))
    }

    pub(super) fn write_json(&self, out: &mut impl Write, names: Names<'_>) -> io::Result<()> {
        for Histogram { name, tally } in self.all.values() {
            for line in tally.lines(names) {
                json(out, &JsonEntry { r#type: "entry", histogram: name, line })?;
            }
            let whole = JsonHistogram {
                r#type: "histogram",
                histogram: name,
                definition: &tally.plan().said,
                hits: tally.hits(),
                entries: tally.len(),
                dropped: tally.dropped(),
            };
            json(out, &whole)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GuestNames, Writer};
    use super::*;
    use crate::args::Format;
    use probe_engine::addr::Gva;
    use probe_engine::capture::filter::Operand;
    use probe_engine::capture::hist::{self, Form, Key};
    use probe_engine::capture::shape::Shape;
    use probe_engine::probe::place::Place;
    use probe_engine::probe::plan::{Action, ProbePlan, Trigger};
    use probe_engine::probe::table::ProbeId;
    use std::time::Duration;
    use vmm::events::What;
    use vmm::session::{Outcome, Report, Sink};

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

    fn report() -> Report {
        Report {
            exits: None,
            end: Outcome::PoweredOff,
            probes: Vec::new(),
            groups: Vec::new(),
            unregistered: Default::default(),
            refused: Default::default(),
            unread: Vec::new(),
            waits: 0,
            ran: Duration::ZERO,
            disarmed_in: Duration::ZERO,
        }
    }

    fn written(format: Format) -> String {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(
            super::super::Out { to: Box::new(&mut bytes), printer: None },
            format,
            probes(),
            GuestNames::default(),
        );
        let event = |probe, vcpu| Event {
            stack: None,
            nanos: 0,
            guest_nanos: None,
            vcpu,
            probe: ProbeId(probe),
            rip: Gva(0x10),
            what: What::Hit { args: [0; 6] },
            task: None,
            captured: Vec::new(),
        };
        writer.events(&[event(0, 1), event(1, 1), event(1, 0), event(2, 0)]).unwrap();
        writer.summary(&report()).unwrap();
        drop(writer);
        String::from_utf8(bytes).unwrap()
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
                "type": "entry", "histogram": "reads", "keys": { "cpu": cpu }, "hitcount": hits, "values": {}
            })
        };
        assert_eq!(objects[1..3], [entry(0, 1), entry(1, 2)]);
        let whole = serde_json::json!({
            "type": "histogram", "histogram": "reads", "definition": "hist:keys=cpu", "hits": 3, "entries": 2,
            "dropped": 0
        });
        assert_eq!(objects[3], whole);
        assert_eq!(objects[4]["type"], "end");
    }
}
