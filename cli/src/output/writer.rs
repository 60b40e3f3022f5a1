//! Writes hits as they come, to all places where they are wanted.

use super::findings;
use super::hist::RunHistograms;
use super::holds::GateNames;
use super::injections::InjectionNames;
use super::recent::FlightRecorder;
use super::registered::registered;
use super::repeats::RuleRepeats;
use super::samples::RunSamples;
use super::summary;
use super::{GuestNames, Out, Text, say_armed};
use crate::args::Format;
use crate::dropped::DroppedFiles;
use crate::json::json;
use crate::record::{
    self, Address, GateEnd, GuardLine, Header, HitLine, InjectionEnd, NamedFrame, NthLine, OrderLine,
    ProbeEnd, RunsLine, SampledLine, SplatLine,
};
use crate::say::{finish, is_quiet, note, say, standard_error};
use crate::scan::{GuardedScans, ScanLines};
use crate::splats::SplatVerdicts;
use crate::wall_clock;
use probe_engine::capture::names::Names;
use probe_engine::capture::shown::Shown;
use probe_engine::linux::names::ModuleNames;
use probe_engine::linux::splat::Splat;
use probe_engine::probe::plan::GuardAction;
use probe_engine::probe::table::ProbeId;
use probe_engine::request::ProbeRequest;
use serde::{Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use vmm::events::Event;
use vmm::guard::Finding;
use vmm::printer::Printer;
use vmm::samples::Sample;
use vmm::session::{
    AfterScan, AfterSplat, Death, GateReport, Held, InjectionReport, Outcome, ProbeReport, Report, Sink,
    StoodStill,
};

/// Writes hits as they come.
pub(crate) struct HitWriter<'a> {
    destinations: Vec<Destination<'a>>,
    header: Header,
    has_begun: bool,
    probes: BTreeMap<ProbeId, WrittenProbe>,
    histograms: RunHistograms,
    gates: GateNames,
    injections: InjectionNames,
    names: GuestNames,
    failure: Option<io::Error>,
    armed_in: Duration,
    verdicts: SplatVerdicts,
    /// Becomes true with the first report that is not allowed.
    has_splatted: Arc<AtomicBool>,
    samples: RunSamples,
    /// Keeps hits that are not written as they come.
    recorder: Option<FlightRecorder>,
    /// Hits of rules that are not told once more.
    repeats: RuleRepeats,
    /// Looks at the guest's memory, if anybody does.
    scans: Option<GuardedScans<'a>>,
    /// Who tells of probes that are added, if anybody does.
    added: Option<Receiver<AddedProbes>>,
}

/// Probes that are registered while the guest runs, with their numbers. Their hits come after this.
pub(crate) type AddedProbes = Vec<(ProbeId, ProbeRequest)>;

/// A probe whose hits are written.
struct WrittenProbe {
    asked: ProbeRequest,
    told: record::Probe,
}

/// One place where hits are wanted.
struct Destination<'a> {
    out: BufWriter<Box<dyn Write + 'a>>,
    printer: Option<Printer>,
    form: Form,
}

/// How they are written there.
enum Form {
    Text(Text),
    Json,
}

impl<'a> HitWriter<'a> {
    /// Hits of `probes`, which are registered in this order, are written to all `destinations`. What they show as symbols is
    /// called by `names`.
    pub(crate) fn new(
        destinations: Vec<(Out<'a>, Format)>,
        header: Header,
        probes: Vec<ProbeRequest>,
        names: GuestNames,
    ) -> Self {
        let place = |(Out { to, printer }, format)| Destination {
            out: BufWriter::with_capacity(64 << 10, to),
            printer,
            form: match format {
                Format::Text => Form::Text(Text::default()),
                Format::Json => Form::Json,
            },
        };
        let histograms = RunHistograms::of(&probes);
        let gates = GateNames::of(&probes);
        let injections = InjectionNames::of(&probes);
        let known = |(id, asked)| (ProbeId(id), WrittenProbe { told: registered(id, &asked), asked });
        Self {
            destinations: destinations.into_iter().map(place).collect(),
            header,
            has_begun: false,
            probes: (0..).zip(probes).map(known).collect(),
            histograms,
            gates,
            injections,
            names,
            failure: None,
            armed_in: Duration::ZERO,
            verdicts: SplatVerdicts::default(),
            has_splatted: Arc::default(),
            samples: RunSamples::default(),
            recorder: None,
            repeats: RuleRepeats::default(),
            scans: None,
            added: None,
        }
    }

    /// The same, where probes are added while the guest runs.
    pub(crate) fn following(self, added: Option<Receiver<AddedProbes>>) -> Self {
        Self { added, ..self }
    }

    /// The same, where the guest's memory is scanned.
    pub(crate) fn scanning(self, scans: Option<GuardedScans<'a>>) -> Self {
        Self { scans, ..self }
    }

    /// The scans of the guest's memory, if there are any.
    pub(crate) fn scans(&self) -> Option<&GuardedScans<'a>> {
        self.scans.as_ref()
    }

    /// The same, where reports of the kernel are judged so.
    pub(crate) fn judging(self, verdicts: SplatVerdicts) -> Self {
        Self { verdicts, ..self }
    }

    /// The same, where of each CPU so many hits are kept until a report, or an end that needs an explanation, and no others are
    /// written.
    pub(crate) fn keeping(self, recent: Option<u16>) -> Self {
        Self { recorder: recent.map(FlightRecorder::new), ..self }
    }

    /// Becomes true with the first report of the kernel that is not allowed.
    pub(crate) fn has_splatted(&self) -> Arc<AtomicBool> {
        self.has_splatted.clone()
    }

    /// Why hits could not be written, if they could not.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// In which hits are counted. Those of probes that are added are made by whoever adds them.
    pub(crate) fn histograms(&self) -> RunHistograms {
        self.histograms.clone()
    }

    /// Where things are in the guest.
    pub(crate) fn names(&self) -> &GuestNames {
        &self.names
    }

    /// Writes what comes before the next hit, if that was not done yet: the header, and the probes that there are.
    fn begin(&mut self) -> io::Result<()> {
        let mut told = self.take_added();
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if is_first {
            told = self.probes.keys().copied().collect();
        }
        for Destination { out, .. } in
            self.destinations.iter_mut().filter(|place| matches!(place.form, Form::Json))
        {
            if is_first {
                json(out, &self.header)?;
            }
            let told = told.iter().filter_map(|id| self.probes.get(id));
            told.into_iter().try_for_each(|probe| json(out, &probe.told))?;
        }
        Ok(())
    }

    /// Knows the probes that were added since, and gives their numbers.
    fn take_added(&mut self) -> Vec<ProbeId> {
        let mut told = Vec::new();
        for added in self.added.iter().flat_map(Receiver::try_iter) {
            for (id, asked) in added {
                self.probes.insert(id, WrittenProbe { told: registered(id.0, &asked), asked });
                told.push(id);
            }
        }
        told
    }

    /// The pattern of each probe that one has found, by its number.
    pub(crate) fn patterns(&self) -> BTreeMap<ProbeId, String> {
        let pattern = |(id, probe): (&ProbeId, &WrittenProbe)| Some((*id, probe.asked.pattern.clone()?));
        self.probes.iter().filter_map(pattern).collect()
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        let Some(WrittenProbe { asked, .. }) = self.probes.get(&event.probe) else { return Ok(()) };
        if asked.counted.is_some() {
            self.histograms.add(event, asked);
            return Ok(());
        }
        if asked.rule.as_ref().is_some_and(|rule| !self.repeats.tells(event, rule)) {
            return Ok(());
        }
        match &mut self.recorder {
            Some(recorder) => {
                recorder.push(event);
                Ok(())
            }
            None => self.write_hit(event, None),
        }
    }

    fn write_samples(&mut self, samples: &[Sample]) -> io::Result<()> {
        self.begin()?;
        let lines = self.samples.lines(samples, &self.names);
        for Destination { out, form, .. } in &mut self.destinations {
            if let Form::Json = form {
                lines.iter().try_for_each(|line| json(out, line))?;
                out.flush()?;
            }
        }
        Ok(())
    }

    /// What was written, of which a failure is told at the end as well.
    fn remembered(&mut self, written: io::Result<()>) -> io::Result<()> {
        if let Err(error) = &written {
            self.failure = Some(io::Error::new(error.kind(), error.to_string()));
        }
        written
    }

    fn write_findings(&mut self, findings: &[Finding]) -> io::Result<()> {
        self.begin()?;
        for finding in findings {
            let line = findings::line(finding, &self.names);
            for Destination { out, form, .. } in &mut self.destinations {
                match form {
                    Form::Text(text) => {
                        text.finish(out)?;
                        write!(out, "{line}")?;
                    }
                    Form::Json => json(out, &line)?,
                }
                out.flush()?;
            }
        }
        Ok(())
    }

    fn write_scan(&mut self, lines: &ScanLines) -> io::Result<()> {
        self.begin()?;
        for Destination { out, form, .. } in &mut self.destinations {
            match form {
                Form::Text(text) => {
                    text.finish(out)?;
                    lines.findings.iter().try_for_each(|line| writeln!(out, "{line}"))?;
                    let spoken = lines.checks.iter().filter(|check| !check.is_silent());
                    spoken.into_iter().try_for_each(|line| writeln!(out, "{line}"))?;
                }
                Form::Json => {
                    lines.findings.iter().try_for_each(|line| json(out, line))?;
                    lines.checks.iter().try_for_each(|line| json(out, line))?;
                }
            }
            out.flush()?;
        }
        Ok(())
    }

    /// Writes a hit; one that was kept until a report with the number of that.
    fn write_hit(&mut self, event: &Event, splat: Option<u64>) -> io::Result<()> {
        let Some(WrittenProbe { asked, told }) = self.probes.get(&event.probe) else { return Ok(()) };
        let names = &|at| self.names.symbol(at);
        let fields = Fields { event, asked, names };
        let stack = event.stack.as_ref().and_then(|stack| self.names.stack(stack));
        for Destination { out, form, .. } in &mut self.destinations {
            match form {
                Form::Text(text) => text.hit(out, (event, told), fields.shown(), stack.as_ref())?,
                Form::Json => {
                    let fields = (!told.fields.is_empty()).then_some(fields);
                    json(out, &HitLine::of(event, told, fields, stack.as_ref()).recent(splat))?;
                }
            }
        }
        Ok(())
    }

    /// A report, which came so many nanoseconds after the start, with what is thought of it.
    fn judged(&mut self, splat: &Splat, nanos: u64) -> SplatLine {
        let frames =
            splat.frames.iter().map(|frame| NamedFrame::of(frame, self.names.source(frame))).collect();
        let at = splat.own_frames().next().and_then(|frame| self.names.source(frame));
        let at = at.map(|(file, line)| format!("{file}:{line}"));
        let line = SplatLine::of(splat, nanos, frames).or_at(at);
        let line = self.verdicts.judge(line);
        if line.allowed.is_none() {
            self.has_splatted.store(true, Ordering::Relaxed);
        }
        line
    }

    /// Writes a report to where the hits go. It began at `nanos` of the guest's clock.
    fn write_splat(&mut self, line: &SplatLine, nanos: u64) -> io::Result<()> {
        self.begin()?;
        // What leads to one leads to all with its fingerprint.
        if line.repeats == 0 {
            self.write_recent(line.number, nanos, "the splat")?;
        }
        for Destination { out, form, .. } in &mut self.destinations {
            match form {
                Form::Text(text) => text.finish(out)?,
                Form::Json => json(out, line)?,
            }
            out.flush()?;
        }
        match (line.repeats, &line.allowed) {
            (0, None) => say(line),
            (0, Some(_)) => note(line),
            _ => {}
        }
        Ok(())
    }

    /// Writes the hits that were kept until now and came up to `until`, by the guest's clock: before `what`, the splat with this
    /// number.
    fn write_recent(&mut self, splat: u64, until: u64, what: &str) -> io::Result<()> {
        let Some(recorder) = &mut self.recorder else { return Ok(()) };
        let hits = recorder.take(until);
        if hits.is_empty() {
            return Ok(());
        }
        if self.destinations.iter().any(|place| matches!(place.form, Form::Text(_))) {
            say(format_args!("the last hits before {what}:"));
        }
        hits.iter().try_for_each(|event| self.write_hit(event, Some(splat)))?;
        for Destination { out, form, .. } in &mut self.destinations {
            if let Form::Text(text) = form {
                text.finish(out)?;
            }
            out.flush()?;
        }
        Ok(())
    }

    /// What the gates came to.
    pub(crate) fn gates(&self, gates: &[GateReport]) -> Vec<GateEnd> {
        gates.iter().map(|gate| self.gates.end(gate)).collect()
    }

    /// What the injections came to.
    pub(crate) fn injections(&self, injections: &[InjectionReport]) -> Vec<InjectionEnd> {
        injections.iter().map(|injection| self.injections.end(injection)).collect()
    }

    /// The same of those that the user has asked for: that a rule denies nothing is no failure.
    pub(crate) fn asked_injections(&self, injections: &[InjectionReport]) -> Vec<InjectionEnd> {
        let of_rule = |injection: &InjectionReport| {
            let mut probes = self.probes.values().map(|probe| &probe.asked);
            let is_it = |asked: &ProbeRequest| {
                asked.plan.inject.is_some_and(|own| own.injection() == injection.injection)
            };
            probes.any(|asked| asked.rule.is_some() && is_it(asked))
        };
        injections.iter().filter(|own| !of_rule(own)).map(|own| self.injections.end(own)).collect()
    }

    /// The rules of which a hit has ended the guest.
    pub(crate) fn ending_rules(&self, report: &Report) -> Vec<String> {
        let ends = |asked: &ProbeRequest| asked.plan.guard == Some(GuardAction::Stop);
        let hit = report.probes.iter().filter(|probe| probe.hits > 0);
        let known = hit.filter_map(|probe| self.probes.get(&probe.id)).filter(|probe| ends(&probe.asked));
        let rules: BTreeSet<String> = known.filter_map(|probe| probe.told.rule.clone()).collect();
        rules.into_iter().collect()
    }

    /// Writes how the runs of the command have ended, where there were several.
    pub(crate) fn runs(&mut self, codes: &[u8]) -> io::Result<()> {
        if codes.is_empty() {
            return Ok(());
        }
        self.begin()?;
        let line = RunsLine { codes: codes.to_vec() };
        for Destination { out, form, .. } in &mut self.destinations {
            if let Form::Json = form {
                json(out, &line)?;
            }
        }
        Ok(())
    }

    /// Writes the runs in which calls were to fail, where there were such.
    pub(crate) fn nth(&mut self, runs: &[NthLine]) -> io::Result<()> {
        self.begin()?;
        for Destination { out, form, .. } in &mut self.destinations {
            if let Form::Json = form {
                runs.iter().try_for_each(|run| json(out, run))?;
            }
        }
        Ok(())
    }

    /// Writes which files the command has left. Whether the guest has sent all that it was to send.
    pub(crate) fn dropped(&mut self, dropped: &DroppedFiles) -> io::Result<bool> {
        self.begin()?;
        let (lines, end) = dropped.take_lines(self.header.wall_ns);
        for Destination { out, form, .. } in &mut self.destinations {
            match form {
                Form::Text(text) => {
                    text.finish(out)?;
                    lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
                    writeln!(out, "{end}")?;
                }
                Form::Json => {
                    lines.iter().try_for_each(|line| json(out, line))?;
                    json(out, &end)?;
                }
            }
        }
        let is_shown = self.destinations.iter().any(|place| matches!(place.form, Form::Text(_)));
        if !end.is_whole() && !is_shown {
            say(&end);
        }
        Ok(end.is_whole())
    }

    /// Says how many hits of rules were not told because they repeat others.
    pub(crate) fn say_repeats(&self) {
        for (id, count) in self.repeats.untold() {
            if let Some(rule) = self.probes.get(&id).and_then(|probe| probe.told.rule.as_ref()) {
                note(format_args!("rule {rule}: {count} hits repeat others, and were not told (rateLimit)"));
            }
        }
    }

    /// Whether the guest has run into a fault of what emulates its processor.
    pub(crate) fn has_machine_failed(&self) -> bool {
        self.verdicts.are_of_the_machine()
    }

    /// Says how often reports came that came more than once, and whether the run fails because of any.
    pub(crate) fn say_splats(&self) -> bool {
        for (fingerprint, count) in self.verdicts.repeated() {
            note(format_args!("splats with the fingerprint {fingerprint} came {count} times"));
        }
        self.verdicts.have_failed()
    }

    /// Writes what was counted to where the hits went, and what all came to: as JSON to where the hits went, and as a table
    /// on standard error. `exit_code` is that of the guest's command.
    pub(crate) fn summary(&mut self, report: &Report, exit_code: Option<u8>) -> io::Result<()> {
        self.begin()?;
        if needs_explanation(&report.end) {
            self.write_recent(0, u64::MAX, "the end")?;
        }
        self.histograms.add_groups(&report.groups);
        let names = &|at| self.names.symbol(at);
        let probes = summary::probes(report, |id| self.probes.get(&id).map(|probe| &probe.told));
        let guard = report
            .guard
            .as_ref()
            .map(|guard| GuardLine::of(guard, self.scans.as_ref().and_then(GuardedScans::at_end)));
        let (gates, injections) = (self.gates(&report.gates), self.injections(&report.injections));
        let order = report.turns.map(OrderLine::from);
        let is_count = |probe: &&ProbeEnd| {
            let known = self.probes.get(&ProbeId(probe.id));
            known.is_some_and(|probe| probe.told.is_only_counted() && probe.asked.plan.inject.is_none())
        };
        let (counts, mut shown): (Vec<_>, Vec<_>) = probes.iter().partition(is_count);
        // Of a rule that nothing has met there is nothing to say.
        let is_of_rule = |id| self.probes.get(&ProbeId(id)).is_some_and(|probe| probe.told.rule.is_some());
        shown.retain(|probe| !probe.is_quiet() || !is_of_rule(probe.id));
        for Destination { out, printer, form } in &mut self.destinations {
            match form {
                Form::Text(text) => {
                    text.finish(out)?;
                    gates.iter().try_for_each(|gate| writeln!(out, "{gate}"))?;
                    injections.iter().try_for_each(|injection| writeln!(out, "{injection}"))?;
                    self.histograms.write_text(out, names)?;
                    out.write_all(summary::counts(&counts).as_bytes())?;
                    if let Some(time) = report.sampled {
                        self.samples.write_text(out, time)?;
                    }
                    guard.iter().try_for_each(|guard| writeln!(out, "{guard}"))?;
                }
                Form::Json => {
                    gates.iter().try_for_each(|gate| json(out, gate))?;
                    order.iter().try_for_each(|order| json(out, order))?;
                    injections.iter().try_for_each(|injection| json(out, injection))?;
                    self.histograms.write_json(out, names)?;
                    if let Some(time) = report.sampled {
                        json(out, &SampledLine::from(time))?;
                    }
                    guard.iter().try_for_each(|guard| json(out, guard))?;
                    probes.iter().try_for_each(|probe| json(out, probe))?;
                    json(out, &summary::end(report, exit_code, self.armed_in))?;
                }
            }
            out.flush()?;
            if let Some(printer) = printer {
                finish(printer);
                // It fails if that did.
                printer.clone().write_all(&[])?;
            }
        }
        if !shown.is_empty() && !is_quiet() {
            standard_error().write_all(summary::table(&shown).as_bytes())?;
        }
        Ok(())
    }
}

impl Sink for HitWriter<'_> {
    fn is_ready(&self) -> bool {
        self.destinations.iter().all(|place| place.printer.as_ref().is_none_or(Printer::is_ready))
    }

    fn started(&mut self) {
        self.header.wall_ns = wall_clock::now_outside();
    }

    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        let written = self
            .begin()
            .and_then(|()| events.iter().try_for_each(|event| self.event(event)))
            .and_then(|()| self.destinations.iter_mut().try_for_each(|place| place.out.flush()));
        self.remembered(written)
    }

    fn samples(&mut self, samples: &[Sample]) -> io::Result<()> {
        let written = self.write_samples(samples);
        self.remembered(written)
    }

    fn findings(&mut self, findings: &[Finding]) -> io::Result<()> {
        let written = self.write_findings(findings);
        self.remembered(written)
    }

    fn held(&mut self, held: &Held) {
        let line = self.gates.line(held, &self.names);
        let written = self.begin().and_then(|()| {
            self.destinations.iter_mut().try_for_each(|Destination { out, form, .. }| {
                match form {
                    Form::Text(_) => write!(out, "{line}")?,
                    Form::Json => json(out, &line)?,
                }
                out.flush()
            })
        });
        if let Err(error) = written {
            self.failure = Some(error);
        }
    }

    fn names(&mut self, slide: u64, modules: &[Arc<ModuleNames>]) {
        self.header.slide = Some(Address(slide));
        self.names.change(slide, modules);
    }

    fn splat(&mut self, splat: &Splat, nanos: u64) -> AfterSplat {
        let line = self.judged(splat, nanos);
        if let Err(error) = self.write_splat(&line, splat.nanos) {
            self.failure.get_or_insert(error);
        }
        let after = self.verdicts.after(&line);
        if after == AfterSplat::Stop && self.verdicts.hold() {
            say("the guest stands still: `vmm ctl SOCKET resume` lets it go on, and `quit` ends it");
        }
        after
    }

    fn about_to_report(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.hold(Instant::now());
        }
    }

    fn scan(&mut self, stood: &StoodStill<'_>) -> AfterScan {
        let Some(scans) = &mut self.scans else { return AfterScan::GoOn };
        match scans.look(stood) {
            Ok((lines, after)) => {
                let written = self.write_scan(&lines);
                let _ = self.remembered(written);
                after
            }
            Err(error) => {
                // The same is so each time.
                if scans.is_new_failure() {
                    say(format_args!("the memory cannot be scanned: {error:#}"));
                }
                scans.failed()
            }
        }
    }

    fn left(&mut self, stood: &StoodStill<'_>) {
        let Some(scans) = &mut self.scans else { return };
        match scans.last(stood) {
            Ok(lines) => {
                let written = self.write_scan(&lines);
                let _ = self.remembered(written);
            }
            Err(error) => {
                say(format_args!("the memory was not scanned: {error:#}"));
                scans.failed();
            }
        }
    }

    fn armed(&mut self, probes: &[ProbeReport], stopped: Duration) {
        self.armed_in = stopped;
        say_armed(probes, stopped);
    }
}

/// Whether the last hits may explain how the guest ended. A panic is a report: what came after it explains nothing.
fn needs_explanation(end: &Outcome) -> bool {
    match end {
        Outcome::Died(Death::Panic { .. }) => false,
        Outcome::Died(_) | Outcome::TimedOut(_) | Outcome::Guarded => true,
        Outcome::PoweredOff | Outcome::Reset | Outcome::Quit | Outcome::Stopped | Outcome::Signal(_) => false,
    }
}

/// What a probe has read: an object by the names of its fields.
#[derive(Clone, Copy)]
struct Fields<'a> {
    event: &'a Event,
    asked: &'a ProbeRequest,
    names: Names<'a>,
}

impl<'a> Fields<'a> {
    fn shown(self) -> impl Iterator<Item = (&'a str, Shown<'a>)> + Clone {
        let names = self.names;
        self.asked
            .plan
            .capture
            .values(&self.event.captured)
            .map(move |(field, value)| (field.name.as_str(), Shown { shape: &field.shape, value, names }))
    }
}

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.shown())
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::record::{Clocks, HostKind, KernelIdentity};

    pub(crate) fn header() -> Header {
        Header {
            format: record::FORMAT,
            vmm: "0.1.0".to_owned(),
            wall_ns: 1,
            kernel: KernelIdentity::default(),
            slide: None,
            cmdline: String::new(),
            host: HostKind::Kvm,
            cpus: 1,
            scope: "boot".to_owned(),
            command: None,
            period_ns: None,
            clocks: Clocks::default(),
        }
    }

    pub(crate) fn report() -> Report {
        Report {
            exits: None,
            end: Outcome::PoweredOff,
            probes: Vec::new(),
            groups: Vec::new(),
            sampled: None,
            removed: Vec::new(),
            unregistered: Default::default(),
            refused: Default::default(),
            unread: Vec::new(),
            guard: None,
            gates: Vec::new(),
            turns: None,
            injections: Vec::new(),
            waits: 0,
            log_lost: 0,
            ran: Duration::ZERO,
            disarmed_in: Duration::ZERO,
        }
    }

    /// All that is written of `events`.
    pub(crate) fn recording(format: Format, probes: Vec<ProbeRequest>, events: &[Event]) -> String {
        let mut bytes = Vec::new();
        let out = Out { to: Box::new(&mut bytes), printer: None };
        let mut writer = HitWriter::new(vec![(out, format)], header(), probes, GuestNames::default());
        writer.events(events).unwrap();
        writer.summary(&report(), None).unwrap();
        drop(writer);
        String::from_utf8(bytes).unwrap()
    }

    /// The same without the header and the probes, and without the end.
    pub(crate) fn written_as(format: Format, probes: Vec<ProbeRequest>, events: &[Event]) -> String {
        let is_other = |line: &str| {
            ["header", "registered", "end"]
                .iter()
                .any(|kind| line.starts_with(&format!("{{\"type\":\"{kind}\"")))
        };
        let text = recording(format, probes, events);
        text.split_inclusive('\n').filter(|line| !is_other(line)).collect()
    }
}
