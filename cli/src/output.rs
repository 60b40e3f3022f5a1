//! How hits and the summary are written.

use crate::args::Format;
use crate::say::say;
use crate::target::Asked;
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use std::time::Duration;
use vmm::events::{Event, Nanos, What};
use vmm::session::{Missed, Outcome, ProbeKind, ProbeReport, Report, Sink, State};

/// Writes hits as they come.
pub(crate) struct Writer<'a> {
    out: BufWriter<Box<dyn Write + 'a>>,
    format: Format,
    names: Vec<String>,
    failure: Option<io::Error>,
    armed_in: Duration,
}

/// An event as JSON.
#[derive(Serialize)]
struct JsonEvent<'a> {
    r#type: &'static str,
    time_ns: u64,
    vcpu: usize,
    probe: &'a str,
    rip: String,
    #[serde(flatten)]
    what: JsonWhat,
}

/// What an event has of its own.
#[derive(Serialize)]
#[serde(untagged)]
enum JsonWhat {
    Hit { args: [String; 6] },
    Return { value: String, duration_ns: u64 },
    Access { old: String, new: String },
}

/// A probe's line of the summary as JSON.
#[derive(Serialize)]
struct JsonProbe<'a> {
    r#type: &'static str,
    probe: &'a str,
    kind: char,
    module: Option<&'a str>,
    address: String,
    hits: u64,
    missed: u64,
    reasons: String,
    outstanding: usize,
    state: String,
}

/// The end of the run as JSON.
#[derive(Serialize)]
struct JsonEnd {
    r#type: &'static str,
    end: String,
    waits: u64,
    /// How long the guest stood still until all was armed.
    armed_us: u128,
    /// And to be disarmed at its end.
    disarmed_us: u128,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: Box<dyn Write + 'a>, format: Format, probes: &[Asked]) -> Self {
        let names = probes.iter().map(Asked::name).collect();
        Self {
            out: BufWriter::with_capacity(64 << 10, out),
            format,
            names,
            failure: None,
            armed_in: Duration::ZERO,
        }
    }

    /// Why hits could not be written, if they could not.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let probe = self.names.get(event.probe.0 as usize).map_or("", String::as_str);
        let Event { nanos, vcpu, rip, what, .. } = *event;
        match self.format {
            Format::Text => {
                let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
                write!(self.out, "[{seconds:5}.{nanos:09}] cpu{vcpu} {probe} rip={rip} ")?;
                match what {
                    What::Hit { args: [a, b, c, d, e, f] } => {
                        let out = &mut self.out;
                        writeln!(out, "rdi={a:#x} rsi={b:#x} rdx={c:#x} rcx={d:#x} r8={e:#x} r9={f:#x}")
                    }
                    What::Return { value, duration: Nanos(nanos) } => {
                        let (micros, nanos) = (nanos / 1000, nanos % 1000);
                        writeln!(self.out, "value={value:#x} took={micros}.{nanos:03}us")
                    }
                    What::Access { old, new } => writeln!(self.out, "old={old:#x} new={new:#x}"),
                }
            }
            Format::Json => {
                let hex = |value: u64| format!("{value:#x}");
                let (r#type, what) = match what {
                    What::Hit { args } => ("hit", JsonWhat::Hit { args: args.map(hex) }),
                    What::Return { value, duration: Nanos(duration_ns) } => {
                        ("return", JsonWhat::Return { value: hex(value), duration_ns })
                    }
                    What::Access { old, new } => {
                        ("access", JsonWhat::Access { old: hex(old), new: hex(new) })
                    }
                };
                let rip = rip.to_string();
                json(&mut self.out, &JsonEvent { r#type, time_ns: nanos, vcpu, probe, rip, what })
            }
        }
    }

    /// Writes the summary: a table on standard error, and as JSON to where the hits went.
    pub(crate) fn summary(&mut self, report: &Report) -> io::Result<()> {
        if self.format == Format::Json {
            for probe in &report.probes {
                json(
                    &mut self.out,
                    &JsonProbe {
                        r#type: "probe",
                        probe: &name(probe),
                        kind: kind(probe),
                        module: probe.module.as_deref(),
                        address: probe.address.to_string(),
                        hits: probe.hits,
                        missed: probe.missed.hits(),
                        reasons: reasons(&probe.missed),
                        outstanding: probe.outstanding,
                        state: state_name(&probe.state),
                    },
                )?;
            }
            let end = JsonEnd {
                r#type: "end",
                end: end_name(&report.end),
                waits: report.waits,
                armed_us: self.armed_in.as_micros(),
                disarmed_us: report.disarmed_in.as_micros(),
            };
            json(&mut self.out, &end)?;
        }
        self.out.flush()?;
        if !report.probes.is_empty() {
            io::stderr().lock().write_all(table(&report.probes).as_bytes())?;
        }
        Ok(())
    }
}

impl Sink for Writer<'_> {
    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        let written = events.iter().try_for_each(|event| self.event(event)).and_then(|()| self.out.flush());
        if let Err(error) = &written {
            self.failure = Some(io::Error::new(error.kind(), error.to_string()));
        }
        written
    }

    fn armed(&mut self, probes: &[ProbeReport], stopped: Duration) {
        self.armed_in = stopped;
        say_armed(probes, stopped);
    }
}

/// Says how many are armed, and how long the guest stood still for it.
pub(crate) fn say_armed(probes: &[ProbeReport], stopped: Duration) {
    let armed = probes.iter().filter(|p| matches!(p.state, State::Armed(_) | State::Spent(_))).count();
    if !probes.is_empty() {
        say(format_args!("{armed} of {} probes armed in {:.3} s", probes.len(), stopped.as_secs_f64()));
    }
}

pub(crate) fn json(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

/// The table that ends a run: probe, address, hits, missed with the reasons, and the state when it is out of the
/// ordinary.
fn table(probes: &[ProbeReport]) -> String {
    let names: Vec<String> = probes.iter().map(name).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0).max("probe".len());
    let mut table = format!("{:width$}  {:18}  {:>10}  {:>6}\n", "probe", "address", "hits", "missed");
    for (name, probe) in names.iter().zip(probes) {
        let (address, missed) = (probe.address.to_string(), probe.missed.hits());
        table.push_str(&format!("{name:width$}  {address:<18}  {:>10}  {missed:>6}", probe.hits));
        let mut notes = Vec::new();
        if !matches!(probe.state, State::Armed(_)) {
            notes.push(state_name(&probe.state));
        }
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

/// As the user wrote it.
fn name(probe: &ProbeReport) -> String {
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
        (missed.instance, "with too many calls under way (--maxactive)"),
        (missed.stack, "with a return address that could not be followed"),
        (missed.yields, "times the guest worked on this text, and hits were lost uncounted"),
    ];
    let present = all.iter().filter(|(count, _)| *count > 0);
    present.map(|(count, reason)| format!("{count} {reason}")).collect::<Vec<_>>().join(", ")
}

fn state_name(state: &State) -> String {
    match state {
        State::Armed(_) => "armed".to_owned(),
        State::Waiting => "[NOT REACHED] the guest ended before it could be armed".to_owned(),
        State::Pending(module) => format!("[PENDING] the module `{module}` was not loaded"),
        State::Disabled => "[DISABLED]".to_owned(),
        State::Yielded(_) => "[YIELDED] the guest works on its text here".to_owned(),
        State::Refused(reason) => format!("[REFUSED] {reason}"),
        State::Gone(_) => "[GONE]".to_owned(),
        State::Spent(_) => "[ONCE]".to_owned(),
        State::Broken(words) => format!("[DISABLED] its handler panicked: {words}"),
        State::Overwritten(_) => {
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
        Outcome::Died(death) => death.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::probe::place::Place;
    use probe_engine::probe::table::ProbeId;

    const HIT: Event = Event {
        nanos: 1_234_567_890,
        vcpu: 1,
        probe: ProbeId(0),
        rip: Gva(0xffff_ffff_8123_4560),
        what: What::Hit { args: [1, 2, 3, 4, 5, u64::MAX] },
    };
    const RETURN: Event =
        Event { what: What::Return { value: u64::MAX - 1, duration: Nanos(12_345) }, ..HIT };

    fn written(format: Format, event: Event) -> String {
        let mut bytes = Vec::new();
        let place = Place::Module { module: "m".to_owned(), symbol: "vfs_read".to_owned(), offset: 0 };
        let probes = [Asked { place, returns: matches!(event.what, What::Return { .. }) }];
        let mut writer = Writer::new(Box::new(&mut bytes), format, &probes);
        writer.events(&[event]).unwrap();
        drop(writer);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_hit_is_one_line_of_text() {
        assert_eq!(
            written(Format::Text, HIT),
            "[    1.234567890] cpu1 m:vfs_read rip=0xffffffff81234560 rdi=0x1 rsi=0x2 rdx=0x3 rcx=0x4 r8=0x5 r9=0xffffffffffffffff\n"
        );
    }

    #[test]
    fn a_hit_is_one_json_object() {
        let line = written(Format::Json, HIT);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["type"], "hit");
        assert_eq!(value["time_ns"], 1_234_567_890);
        assert_eq!(value["vcpu"], 1);
        assert_eq!(value["probe"], "m:vfs_read");
        assert_eq!(value["rip"], "0xffffffff81234560");
        assert_eq!(value["args"][5], "0xffffffffffffffff");
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn a_return_has_its_value_and_duration() {
        assert_eq!(
            written(Format::Text, RETURN),
            "[    1.234567890] cpu1 m:vfs_read%return rip=0xffffffff81234560 value=0xfffffffffffffffe took=12.345us\n"
        );
        let value: serde_json::Value = serde_json::from_str(&written(Format::Json, RETURN)).unwrap();
        assert_eq!(value["type"], "return");
        assert_eq!(
            (value["value"].as_str(), value["duration_ns"].as_u64()),
            (Some("0xfffffffffffffffe"), Some(12_345))
        );
    }

    #[test]
    fn an_access_has_what_was_there_and_what_is() {
        let event = Event { what: What::Access { old: 1, new: 0xff }, ..HIT };
        let text = "[    1.234567890] cpu1 m:vfs_read rip=0xffffffff81234560 old=0x1 new=0xff\n";
        assert_eq!(written(Format::Text, event), text);
        let value: serde_json::Value = serde_json::from_str(&written(Format::Json, event)).unwrap();
        let fields = ["type", "old", "new"].map(|field| value[field].as_str().unwrap());
        assert_eq!(fields, ["access", "0x1", "0xff"]);
        assert!(value.get("args").is_none(), "{value}");
    }

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
            missed: Missed::default(),
            outstanding: 0,
            state,
        };
        let mut returns = report("b", State::Armed(Gva(0)));
        (returns.kind, returns.outstanding, returns.missed.instance) = (ProbeKind::Return, 2, 40);
        let gone = report("start_kernel", State::Gone(Gva(0)));
        let table = table(&[report("a", State::Armed(Gva(0))), gone, returns]);
        assert_eq!(
            table,
            "probe         address                   hits  missed\n\
             a             0xffffffff81000000           7       0\n\
             start_kernel  0xffffffff81000000           7       0  [GONE]\n\
             b%return      0xffffffff81000000           7      40  missed: 40 with too many calls under way (--maxactive); 2 calls have not returned\n"
        );
    }
}
