//! How hits and the summary are written.

mod event;
mod graph;
mod hist;
mod json;
mod names;
mod stack;
mod summary;

use crate::args::Format;
use crate::say::{self, finish, note, standard_error};
pub(crate) use event::Moment;
use event::{EventJson, EventText};
use graph::Graph;
use hist::Histograms;
pub(crate) use json::json;
pub(crate) use names::GuestNames;
use probe_engine::linux::names::ModuleNames;
use probe_engine::request::{ProbeRequest, Style};
pub(crate) use stack::NamedStack;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::time::Duration;
pub(crate) use summary::{end_name, shown_name};
use vmm::events::Event;
use vmm::printer::Printer;
use vmm::session::{ProbeReport, ProbeState, Report, Sink};

/// Where hits go.
pub(crate) struct Out<'a> {
    to: Box<dyn Write + 'a>,
    /// Writes them, where a reader could make this process wait.
    printer: Option<Printer>,
}

impl Out<'_> {
    /// The file that the user named, which may be a pipe or a terminal: someone reads there, at leisure.
    pub(crate) fn file(file: File) -> io::Result<Self> {
        if file.metadata()?.file_type().is_fifo() || file.is_terminal() {
            let printer = Printer::of_all(file)?;
            return Ok(Self { to: Box::new(printer.clone()), printer: Some(printer) });
        }
        Ok(Self { to: Box::new(file), printer: None })
    }

    pub(crate) fn standard_error() -> Self {
        Self { to: standard_error(), printer: say::printer().cloned() }
    }
}

/// Writes hits as they come.
pub(crate) struct Writer<'a> {
    out: BufWriter<Box<dyn Write + 'a>>,
    printer: Option<Printer>,
    format: Format,
    probes: Vec<ProbeRequest>,
    histograms: Histograms,
    graph: Graph,
    names: GuestNames,
    failure: Option<io::Error>,
    armed_in: Duration,
}

impl<'a> Writer<'a> {
    /// Hits of `probes` are written to `out`. What they show as symbols is called by `names`.
    pub(crate) fn new(out: Out<'a>, format: Format, probes: Vec<ProbeRequest>, names: GuestNames) -> Self {
        Self {
            out: BufWriter::with_capacity(64 << 10, out.to),
            printer: out.printer,
            format,
            histograms: Histograms::of(&probes),
            graph: Graph::default(),
            probes,
            names,
            failure: None,
            armed_in: Duration::ZERO,
        }
    }

    /// Why hits could not be written, if they could not.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// Where things are in the guest.
    pub(crate) fn names(&self) -> &GuestNames {
        &self.names
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let Some(probe) = self.probes.get(event.probe.0 as usize) else { return Ok(()) };
        if let Some(counted) = &probe.counted {
            self.histograms.add(event, probe, counted);
            return Ok(());
        }
        if self.format == Format::Text && probe.style == Style::Graph {
            return self.graph.add(&mut self.out, event, probe);
        }
        let names = &|at| self.names.symbol(at);
        let stack = event.stack.as_ref().and_then(|stack| self.names.stack(stack));
        match self.format {
            Format::Text => {
                writeln!(self.out, "{}", EventText { event, probe, names })?;
                stack.map_or(Ok(()), |stack| write!(self.out, "{stack}"))
            }
            Format::Json => json(&mut self.out, &EventJson { event, probe, names, stack }),
        }
    }

    /// Writes what was counted to where the hits went, and the summary: a table on standard error, and as JSON to where
    /// the hits went.
    pub(crate) fn summary(&mut self, report: &Report) -> io::Result<()> {
        self.histograms.add_groups(&self.probes, &report.groups);
        let names = &|at| self.names.symbol(at);
        match self.format {
            Format::Text => {
                self.graph.finish(&mut self.out)?;
                self.histograms.write_text(&mut self.out, names)?;
                self.out.write_all(summary::counts(&self.counts(report)).as_bytes())?;
            }
            Format::Json => {
                self.histograms.write_json(&mut self.out, names)?;
                summary::write_json(&mut self.out, report, self.armed_in)?;
            }
        }
        self.out.flush()?;
        if let Some(printer) = &self.printer {
            finish(printer);
            // It fails if that did.
            printer.clone().write_all(&[])?;
        }
        let shown: Vec<&ProbeReport> = report.probes.iter().filter(|probe| !self.is_count(probe)).collect();
        if !shown.is_empty() && !say::is_quiet() {
            standard_error().write_all(summary::table(&shown).as_bytes())?;
        }
        Ok(())
    }

    /// Whether hits of this probe are only counted.
    fn is_count(&self, probe: &ProbeReport) -> bool {
        self.probes.get(probe.id.0 as usize).is_some_and(ProbeRequest::is_only_counted)
    }

    fn counts<'r>(&self, report: &'r Report) -> Vec<&'r ProbeReport> {
        report.probes.iter().filter(|probe| self.is_count(probe)).collect()
    }
}

impl Sink for Writer<'_> {
    fn is_ready(&self) -> bool {
        self.printer.as_ref().is_none_or(Printer::is_ready)
    }

    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        let written = events.iter().try_for_each(|event| self.event(event)).and_then(|()| self.out.flush());
        if let Err(error) = &written {
            self.failure = Some(io::Error::new(error.kind(), error.to_string()));
        }
        written
    }

    fn names(&mut self, slide: u64, modules: &[Arc<ModuleNames>]) {
        self.names.change(slide, modules);
    }

    fn armed(&mut self, probes: &[ProbeReport], stopped: Duration) {
        self.armed_in = stopped;
        say_armed(probes, stopped);
    }
}

/// Says how many are armed, and how long the guest stood still for it.
pub(crate) fn say_armed(probes: &[ProbeReport], stopped: Duration) {
    let armed = probes
        .iter()
        .filter(|p| matches!(p.state, ProbeState::Armed(_) | ProbeState::Optimized(_) | ProbeState::Spent(_)))
        .count();
    // Those that are armed later are not spoken of.
    if probes.iter().any(|probe| probe.enabled) {
        note(format_args!("{armed} of {} probes armed in {:.3} s", probes.len(), stopped.as_secs_f64()));
    }
}
