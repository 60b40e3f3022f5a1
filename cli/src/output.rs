//! How hits and the summary are written.

use crate::args::Format;
use crate::say::say;
use probe_engine::probe::resolve::Probe;
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use vmm::events::Hit;
use vmm::session::{Outcome, ProbeReport, Report, Sink, State};

/// Writes hits as they come.
pub(crate) struct Writer<'a> {
    out: BufWriter<Box<dyn Write + 'a>>,
    format: Format,
    names: Vec<String>,
    failure: Option<io::Error>,
}

/// A hit as JSON.
#[derive(Serialize)]
struct JsonHit<'a> {
    r#type: &'static str,
    time_ns: u64,
    vcpu: usize,
    probe: &'a str,
    rip: String,
    args: [String; 6],
}

/// A probe's line of the summary as JSON.
#[derive(Serialize)]
struct JsonProbe<'a> {
    r#type: &'static str,
    probe: &'a str,
    address: String,
    hits: u64,
    missed: u64,
    state: String,
}

/// The end of the run as JSON.
#[derive(Serialize)]
struct JsonEnd {
    r#type: &'static str,
    end: String,
    waits: u64,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: Box<dyn Write + 'a>, format: Format, probes: &[Probe]) -> Self {
        let names = probes.iter().map(|probe| probe.name.clone()).collect();
        Self { out: BufWriter::with_capacity(64 << 10, out), format, names, failure: None }
    }

    /// Why hits could not be written, if they could not.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    fn hit(&mut self, hit: &Hit) -> io::Result<()> {
        let probe = self.names.get(hit.probe.0 as usize).map_or("", String::as_str);
        match self.format {
            Format::Text => {
                let (seconds, nanos) = (hit.nanos / 1_000_000_000, hit.nanos % 1_000_000_000);
                let [a, b, c, d, e, f] = hit.args;
                writeln!(
                    self.out,
                    "[{seconds:5}.{nanos:09}] cpu{} {probe} rip={} rdi={a:#x} rsi={b:#x} rdx={c:#x} rcx={d:#x} r8={e:#x} r9={f:#x}",
                    hit.vcpu, hit.rip
                )
            }
            Format::Json => {
                let line = JsonHit {
                    r#type: "hit",
                    time_ns: hit.nanos,
                    vcpu: hit.vcpu,
                    probe,
                    rip: hit.rip.to_string(),
                    args: hit.args.map(|arg| format!("{arg:#x}")),
                };
                json(&mut self.out, &line)
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
                        probe: &probe.name,
                        address: probe.address.to_string(),
                        hits: probe.hits,
                        missed: probe.missed,
                        state: state_name(&probe.state),
                    },
                )?;
            }
            json(&mut self.out, &JsonEnd { r#type: "end", end: end_name(&report.end), waits: report.waits })?;
        }
        self.out.flush()?;
        if !report.probes.is_empty() {
            io::stderr().lock().write_all(table(&report.probes).as_bytes())?;
        }
        Ok(())
    }
}

impl Sink for Writer<'_> {
    fn hits(&mut self, hits: &[Hit]) -> io::Result<()> {
        let written = hits.iter().try_for_each(|hit| self.hit(hit)).and_then(|()| self.out.flush());
        if let Err(error) = &written {
            self.failure = Some(io::Error::new(error.kind(), error.to_string()));
        }
        written
    }

    fn armed(&mut self, states: &[State]) {
        let armed = states.iter().filter(|state| matches!(state, State::Armed(_))).count();
        if !states.is_empty() {
            say(format_args!("{armed} of {} probes armed", states.len()));
        }
    }
}

fn json(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

/// The table that ends a run: probe, address, hits, missed, and the state when it is out of the ordinary.
fn table(probes: &[ProbeReport]) -> String {
    let width = probes.iter().map(|p| p.name.len()).max().unwrap_or(0).max("probe".len());
    let mut table = format!("{:width$}  {:18}  {:>10}  {:>6}\n", "probe", "address", "hits", "missed");
    for probe in probes {
        let line = format!(
            "{:width$}  {:<18}  {:>10}  {:>6}",
            probe.name,
            probe.address.to_string(),
            probe.hits,
            probe.missed
        );
        table.push_str(&line);
        if !matches!(probe.state, State::Armed(_)) {
            table.push_str("  ");
            table.push_str(&state_name(&probe.state));
        }
        table.push('\n');
    }
    table
}

fn state_name(state: &State) -> String {
    match state {
        State::Armed(_) => "armed".to_owned(),
        State::Waiting => "[NOT REACHED] the guest ended before it could be armed".to_owned(),
        State::Refused(reason) => format!("[REFUSED] {reason}"),
        State::Gone(_) => "[GONE]".to_owned(),
        State::Overwritten(_) => {
            "[OVERWRITTEN] the guest changed its text here; later hits are lost".to_owned()
        }
    }
}

fn end_name(end: &Outcome) -> String {
    match end {
        Outcome::PoweredOff => "powered off".to_owned(),
        Outcome::Reset => "reset".to_owned(),
        Outcome::Quit => "quit".to_owned(),
        Outcome::Signal(signal) => format!("signal {signal}"),
        Outcome::Died(death) => death.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::probe::table::ProbeId;

    const HIT: Hit = Hit {
        nanos: 1_234_567_890,
        vcpu: 1,
        probe: ProbeId(0),
        rip: Gva(0xffff_ffff_8123_4560),
        args: [1, 2, 3, 4, 5, u64::MAX],
    };

    fn written(format: Format) -> String {
        let mut bytes = Vec::new();
        let function = Gva(0)..Gva(1);
        let probes = [Probe { name: "vfs_read".to_owned(), link: Gva(0), function }];
        let mut writer = Writer::new(Box::new(&mut bytes), format, &probes);
        writer.hits(&[HIT]).unwrap();
        drop(writer);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_hit_is_one_line_of_text() {
        assert_eq!(
            written(Format::Text),
            "[    1.234567890] cpu1 vfs_read rip=0xffffffff81234560 rdi=0x1 rsi=0x2 rdx=0x3 rcx=0x4 r8=0x5 r9=0xffffffffffffffff\n"
        );
    }

    #[test]
    fn a_hit_is_one_json_object() {
        let line = written(Format::Json);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["type"], "hit");
        assert_eq!(value["time_ns"], 1_234_567_890);
        assert_eq!(value["vcpu"], 1);
        assert_eq!(value["probe"], "vfs_read");
        assert_eq!(value["rip"], "0xffffffff81234560");
        assert_eq!(value["args"][5], "0xffffffffffffffff");
        assert_eq!(line.matches('\n').count(), 1);
    }

    #[test]
    fn the_table_says_what_is_out_of_the_ordinary() {
        let report = |name: &str, state| ProbeReport {
            name: name.to_owned(),
            address: Gva(0xffff_ffff_8100_0000),
            hits: 7,
            missed: 0,
            state,
        };
        let table = table(&[report("a", State::Armed(Gva(0))), report("start_kernel", State::Gone(Gva(0)))]);
        assert_eq!(
            table,
            "probe         address                   hits  missed\n\
             a             0xffffffff81000000           7       0\n\
             start_kernel  0xffffffff81000000           7       0  [GONE]\n"
        );
    }
}
