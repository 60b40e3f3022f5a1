//! From the options about probes to probes with plans: the one place where options become plain data.

use crate::advice;
use crate::args::{Assist, Followed, HoldModeChoice, Orders, Run, Shaken};
use crate::assisted;
use crate::file::read;
use crate::mistake::{self, Written};
use crate::program_files::ProgramFiles;
use crate::rules::{self, ResolvedRules, RuleFile};
use crate::say::note;
use anyhow::{Context, Error, Result, anyhow, bail};
use probe_engine::capture::Capture;
use probe_engine::capture::typed::Expand;
use probe_engine::lang;
use probe_engine::linux::btf::Btf;
use probe_engine::linux::current::Preemption;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::task::TaskLayout;
use probe_engine::linux::unwind::KernelCode;
use probe_engine::probe::inject::{Inject, InjectionId, Turns};
use probe_engine::probe::pace::{GateId, HoldMode, Pace};
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::{Action, ProbePlan, Trigger};
use probe_engine::probe::spec::ProbeSpec;
use probe_engine::probe::watch;
use probe_engine::request::{
    DefinitionError, Definitions, Found, ProbeRequest, Style, Traced, TracedError, traced_functions,
};
use std::path::Path;

/// The calls of which one fails in each run.
pub(crate) const FAIL_NTH: InjectionId = InjectionId(0);

/// What definitions are looked up in. The types are read once for all of them.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a, 'd> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) btf: Option<&'a Btf<'a>>,
    pub(crate) debug: &'a DebugInfo<'d>,
    /// The files of the guest, where they are known.
    pub(crate) files: Option<&'a ProgramFiles>,
}

impl<'a, 'd> Known<'a, 'd> {
    fn definitions(self, expand: Expand) -> Definitions<'a, 'd> {
        let definitions = Definitions::of(self.kernel, self.btf, self.debug, expand);
        match self.files {
            Some(files) => definitions.with_programs(Box::new(|path| files.find(path))),
            None => definitions,
        }
    }
}

/// Finds all that was asked for in `kernel`, lines and variables by `debug`.
pub(crate) fn requests(run: &Run, kernel: &Kernel, debug: &DebugInfo<'_>) -> Result<Found> {
    let btf = kernel.btf().ok();
    let root = run.guest.root.as_deref().unwrap_or(Path::new("/"));
    let files = run.guest.has_command().then(|| ProgramFiles::below(root));
    let known = Known { kernel, btf: btf.as_ref(), debug, files: files.as_ref() };
    let mut found = defined(run, known)?;
    if found.changed > 0 {
        note(format_args!(
            "the compiler has changed the parameters of {} of these functions (.isra, .constprop or .part in \
             their names): their registers are shown",
            found.changed
        ));
    }
    let (counts, in_programs) = split(&run.probes.counts);
    for probe in traced(&counts, kernel)? {
        found.probes.push(ProbeRequest { plan: ProbePlan::new(Trigger::Pass), ..probe });
    }
    for text in in_programs {
        found.probes.extend(counted(text, known)?);
    }
    let (graphs, in_programs) = split(&run.probes.graphs);
    for text in in_programs {
        found.probes.extend(followed(text, known)?);
    }
    for probe in traced(&graphs, kernel)? {
        let entry = ProbeRequest { style: Style::Graph, ..probe };
        let plan = ProbePlan::new(Trigger::Return { max_active: None }).recorded();
        found.probes.extend([entry.clone(), ProbeRequest { plan, ..entry }]);
    }
    for spec in &run.probes.watches {
        let watch = watch::resolve(spec, kernel).with_context(|| format!("--watch {spec}"))?;
        found.probes.push(ProbeRequest::plain(Place::Watch(watch), Trigger::Access));
    }
    for gate in 0..run.orders.holds.len().max(run.orders.untils.len()) {
        found.probes.extend(ordered(run, gate, known)?);
    }
    for (number, text) in (0..).zip(&run.injections.injects) {
        let injection = InjectionId(number);
        found.probes.extend(injected(("--inject", text), injection, run.injections.force, known)?);
    }
    if let Some(text) = &run.injections.fail_nth {
        found.probes.extend(nth_failing(text, run.injections.force, known)?);
    }
    if let Some(places) = &run.orders.shaken {
        found.probes.extend(shaken(places, run.bundled.bundle.is_some(), known)?);
    }
    let rules = ruled(run, known)?;
    if found.probes.is_empty() && rules.is_empty() {
        let options = [("--stack", run.probes.stack.is_some()), ("--once", run.probes.once)];
        if let Some((option, _)) = options.iter().find(|(_, is_said)| *is_said) {
            bail!("{option} is for probes, and there is none: say which with --probe");
        }
    }
    if u32::try_from(found.probes.len()).is_err() {
        bail!("too many probes");
    }
    assisted::check_probes(run.assisted.assist, &found.probes)?;
    found.probes.iter_mut().for_each(|probe| ForAll::of(run).apply(&mut probe.plan));
    found.probes.extend(rules);
    Ok(found)
}

/// The functions of the kernel's, and those of programs.
fn split(all: &[Followed]) -> (Vec<ProbeSpec>, Vec<&str>) {
    let (mut own, mut in_programs) = (Vec::new(), Vec::new());
    for followed in all {
        match followed {
            Followed::Kernel(spec) => own.push(spec.clone()),
            Followed::Program(text) => in_programs.push(text.as_str()),
        }
    }
    (own, in_programs)
}

/// The probes that count the calls of functions of a program. Where nobody knows which functions a pattern stands for, they are
/// counted together.
fn counted(text: &str, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    let mut probes = in_program('p', text, known)?;
    for probe in &mut probes {
        (probe.plan.capture, probe.plan.action) = (Capture::default(), Action::Count);
    }
    Ok(probes)
}

/// The probes that follow the calls of functions of a program: of each function an entry, and its returns behind that.
fn followed(text: &str, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    let (entries, returns) = (in_program('p', text, known)?, in_program('r', text, known)?);
    let mut probes: Vec<_> =
        entries.into_iter().zip(returns).flat_map(|(entry, returns)| [entry, returns]).collect();
    for probe in &mut probes {
        if probe.plan.program.as_ref().is_some_and(|program| program.at.is_several()) {
            let why = probe.remark.as_deref().unwrap_or("its file is not known on this machine");
            bail!("{text}: which functions these are is not known: {why}; name them");
        }
        probe.plan.capture.fields.clear();
        probe.style = Style::Graph;
    }
    Ok(probes)
}

/// The probes at functions of a program. What reads a register needs no types.
fn in_program(kind: char, place: &str, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    plain(&format!("{kind} {place} %sp"), known)
}

/// The probes of a definition that we have written for a place of the user's.
fn plain(text: &str, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    let mut definitions = known.definitions(Expand::Small);
    let written = Written { text, name: "the function", line: 1 };
    definitions.read(text).map_err(|error| said(error, &written, &written))?;
    Ok(definitions.finish().probes)
}

/// The probes of gate number `gate`, which a --hold and its --until make.
fn ordered(run: &Run, gate: usize, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    let Orders { holds, untils, within, .. } = &run.orders;
    let id = GateId(u32::try_from(gate).context("too many orders")?);
    let (Some(hold), Some(until)) = (holds.get(gate), untils.get(gate)) else {
        bail!(
            "each --hold has an --until, in the same order: there are {} and {}",
            holds.len(),
            untils.len()
        );
    };
    let mode = hold_mode(run, known)?;
    let held = paced(("--hold", hold), Pace::Hold { gate: id, within: *within, mode }, known)?;
    let open = paced(("--until", until), Pace::Open { gate: id }, known)?;
    Ok(held.into_iter().chain(open).collect())
}

/// What the CPU of a task does that is held in this kernel.
fn hold_mode(run: &Run, known: Known<'_, '_>) -> Result<HoldMode> {
    let yields = || -> Result<HoldMode> {
        let symbols = known.kernel.symbols();
        Preemption::find(symbols, known.btf)?;
        // Two tasks on one CPU are told apart.
        known
            .btf
            .and_then(|btf| TaskLayout::find(symbols, btf))
            .context("tasks are not known without the kernel's type information")?;
        Ok(HoldMode::Task)
    };
    match run.orders.hold_mode {
        HoldModeChoice::Cpu => Ok(HoldMode::Cpu),
        HoldModeChoice::Task => yields().context(
            "--hold-mode=task cannot be had: leave it out, and let the other task run on another CPU",
        ),
        HoldModeChoice::Auto if run.assisted.assist == Assist::On => Ok(yields().unwrap_or(HoldMode::Cpu)),
        HoldModeChoice::Auto => Ok(HoldMode::Cpu),
    }
}

/// The probes that `text` means, which the option `name` has, with hits that do `pace`.
fn paced((name, text): (&str, &str), pace: Pace, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    let mut definitions = known.definitions(Expand::Small);
    let written = Written { text, name, line: 1 };
    definitions.read(text).map_err(|error| said(error, &written, &written))?;
    let Found { probes, .. } = definitions.finish();
    if probes.is_empty() {
        bail!("{name} {text}: none of these functions can be probed: `vmm list --kind refused` says why");
    }
    let paced = |probe: ProbeRequest| ProbeRequest { plan: probe.plan.paced(pace), ..probe };
    Ok(probes.into_iter().map(paced).collect())
}

/// The probes of calls that are to fail.
fn injected(
    (name, text): (&str, &str),
    injection: InjectionId,
    force: bool,
    known: Known<'_, '_>,
) -> Result<Vec<ProbeRequest>> {
    let mut definitions = known.definitions(Expand::Small);
    let written = Written { text, name, line: 1 };
    definitions.inject(text, injection, force).map_err(|error| said(error, &written, &written))?;
    let Found { probes, spared, .. } = definitions.finish();
    for (pattern, reasons) in spared {
        let first = reasons.first().map(ToString::to_string).unwrap_or_default();
        note(format_args!("{pattern}: {} functions that match do not fail: {first}", reasons.len()));
    }
    Ok(probes)
}

/// The probes of calls of which one fails in each run, with their stacks where they can be told.
fn nth_failing(text: &str, force: bool, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    let mut probes = injected(("--fail-nth", text), FAIL_NTH, force, known)?;
    let stack = KernelCode::of(known.kernel).ok().map(|_| vmm::stack::FRAMES);
    for plan in probes.iter_mut().map(|probe| &mut probe.plan) {
        match plan.inject {
            Some(Inject::Fail { turns, .. }) if turns != Turns::default() => {
                bail!(
                    "--fail-nth {text}: `every`, `after`, `times` and `seed` are for --inject: each call fails here, one in each run"
                );
            }
            Some(Inject::Fail { .. }) => plan.action = Action::Record { stack },
            _ => {}
        }
    }
    Ok(probes)
}

/// Places where CPUs are delayed. Their hits are recorded where the order is kept.
fn shaken(shaken: &Shaken, is_kept: bool, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    let mut probes = Vec::new();
    for text in &shaken.places {
        for mut probe in paced(("the pattern", text), Pace::Delay(shaken.delay), known)? {
            if probe.counted.is_none() && !is_kept {
                probe.plan.action = Action::Count;
            }
            probes.push(probe);
        }
    }
    if shaken.is_random {
        note(format_args!("the seed is {0}: --seed {0} begins with the same one", shaken.delay.seed));
    }
    Ok(probes)
}

/// The probes of the rules of a guard. Says which functions the kernel lacks.
fn ruled(run: &Run, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    let files = RuleFile::read_all(&run.guarded.rules)?;
    let first = u32::try_from(run.injections.injects.len()).context("too many injections")?;
    let mut definitions = known.definitions(Expand::Small);
    let ResolvedRules { mut probes, missing, empty } = rules::resolved(&files, &mut definitions, first)?;
    for (rule, functions) in &missing {
        let what =
            if empty.contains(rule) { "it sees nothing" } else { "it sees what its other functions see" };
        note(format_args!("rule {rule}: this kernel has no {}: {what}", functions.join(", ")));
    }
    for plan in probes.iter_mut().map(|probe| &mut probe.plan) {
        if let Action::Record { stack } = &mut plan.action {
            *stack = run.probes.stack.map(usize::from);
        }
    }
    assisted::check_probes(run.assisted.assist, &probes)?;
    Ok(probes)
}

/// What --probe and --probes say.
fn defined(run: &Run, known: Known<'_, '_>) -> Result<Found> {
    let mut definitions = known.definitions(ForAll::of(run).expand());
    let filter =
        Written { text: run.probes.filter.as_deref().unwrap_or_default(), name: "--filter", line: 1 };
    if run.probes.filter.is_some() && run.probes.probes.is_empty() && run.probes.files.is_empty() {
        bail!("--filter is for probes, and there is none: say which with --probe");
    }
    if let Some(text) = &run.probes.filter {
        definitions.filter(text).map_err(|error| mistake::in_text(&filter, &error))?;
    }
    for text in &run.probes.probes {
        let written = Written { text, name: "--probe", line: 1 };
        definitions.read(text).map_err(|error| said(error, &written, &filter))?;
    }
    for path in &run.probes.files {
        let text =
            String::from_utf8(read(path)?).with_context(|| format!("{} is not text", path.display()))?;
        for (line, text) in lang::lines(&text) {
            let written = Written { text: &text, name: &path.display().to_string(), line };
            definitions.read(&text).map_err(|error| said(error, &written, &filter))?;
        }
    }
    Ok(definitions.finish())
}

/// What is wrong with a definition, in its line.
fn said(error: DefinitionError, written: &Written<'_>, filter: &Written<'_>) -> Error {
    let Written { text, name, line } = written;
    match error {
        DefinitionError::Plain(error) => Error::from(*error).context(format!("{name} {}", text.trim())),
        DefinitionError::Text(error) => mistake::in_text(written, &error),
        DefinitionError::Misplaced { span, hint, error } => {
            let error = Error::from(*error);
            let hint = hint.or_else(|| advice::of(&error));
            mistake::at(written, span, format!("{error:#}"), hint)
        }
        DefinitionError::Filter { at, error } => {
            mistake::in_text(filter, &error).context(format!("{name} {}: at {at}", text.trim()))
        }
        DefinitionError::Undefined(_) => anyhow!("{name}, line {line}: {error}"),
        DefinitionError::Histogram { .. } => error.into(),
    }
}

/// The functions that match and that ftrace could trace. Says how many it could not.
pub(crate) fn traced(patterns: &[ProbeSpec], kernel: &Kernel) -> Result<Vec<ProbeRequest>> {
    let Traced { probes, left_out } = traced_functions(patterns, kernel).map_err(|error| match error {
        TracedError::NoFtrace { matches, .. } => {
            anyhow!("{error}: --probe takes {matches} that match, and traps stand there")
        }
        _ => error.into(),
    })?;
    for (pattern, left_out, matches) in left_out {
        note(format_args!(
            "{pattern}: {left_out} of {matches} functions are left out: this command probes those that the kernel's own \
             tracer (ftrace) can follow, and `vmm run --probe` takes others too"
        ));
    }
    Ok(probes)
}

/// The probes of definitions that come while the guest runs, all or none.
pub(crate) fn added(texts: &[String], for_all: ForAll, known: Known<'_, '_>) -> Result<Vec<ProbeRequest>> {
    let mut definitions = known.definitions(for_all.expand());
    for text in texts {
        let written = Written { text, name: "add", line: 1 };
        definitions.read(text).map_err(|error| said(error, &written, &written))?;
    }
    let Found { mut probes, .. } = definitions.finish();
    if probes.is_empty() {
        bail!("add: none of these functions can be probed: `vmm list --kind refused` says why");
    }
    assisted::check_probes(for_all.assist, &probes)?;
    probes.iter_mut().for_each(|probe| for_all.apply(&mut probe.plan));
    Ok(probes)
}

/// What options say of all probes.
#[derive(Clone, Copy)]
pub(crate) struct ForAll {
    once: bool,
    maxactive: Option<u32>,
    stack: Option<u16>,
    deep: bool,
    assist: Assist,
}

impl ForAll {
    /// What those of `run` say.
    pub(crate) fn of(run: &Run) -> Self {
        Self {
            once: run.probes.once,
            maxactive: run.arming.maxactive,
            stack: run.probes.stack,
            deep: run.deep,
            assist: run.assisted.assist,
        }
    }

    /// What is shown of structures.
    fn expand(self) -> Expand {
        if self.deep { Expand::All } else { Expand::Small }
    }

    /// Has a plan do that.
    fn apply(self, plan: &mut ProbePlan) {
        match &mut plan.trigger {
            Trigger::Pass => plan.once = self.once,
            Trigger::Return { max_active } => *max_active = max_active.or(self.maxactive),
            Trigger::Access => {}
        }
        if let Action::Record { stack } = &mut plan.action {
            *stack = self.stack.map(usize::from).or(*stack);
        }
    }
}
