//! What is to be probed, resolved: everything that a run needs to know about its kernel, as plain data.

use crate::args::{self, Guest, Run};
use crate::definition::{Reader, Source};
use crate::file::read;
use crate::functions::functions;
use crate::limits::say_limits;
use crate::requirements;
use crate::rooms::Rooms;
use crate::run::Files;
use crate::say::say;
use crate::symbol_file::KernelLines;
use anyhow::{Context, Result, bail};
use guest_kernels::Cache;
use probe_engine::capture::Capture;
use probe_engine::capture::hist::{Form, Histogram};
use probe_engine::capture::typed::Expand;
use probe_engine::lang;
use probe_engine::linux::dwarf::SourceMap;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::lines::LineTable;
use probe_engine::linux::scope::Scope;
use probe_engine::linux::symbols::SymbolTable;
use probe_engine::linux::unwind::KernelCode;
use probe_engine::probe::place::Place;
use probe_engine::probe::resolve::Refused;
use probe_engine::probe::spec::{Location, ProbeSpec};
use probe_engine::probe::watch;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A kernel's landmarks and the probes in it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) kernel: Landmarks,
    pub(crate) probes: Vec<Asked>,
    /// The kernel's symbols, where addresses may be shown by their names.
    pub(crate) symbols: Option<SymbolTable>,
    /// From which line of the source its text is, where that is known and shown.
    pub(crate) lines: Option<LineTable>,
    /// How its stacks are walked, where they can be.
    pub(crate) unwind: Option<KernelCode>,
    /// Which hits count.
    pub(crate) scope: Scope,
}

/// A probe that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) place: Place,
    /// Where the function returns, and not where it is entered.
    pub(crate) returns: bool,
    /// How many calls a return probe follows at once.
    pub(crate) max_active: Option<u32>,
    /// What is read there.
    pub(crate) capture: Capture,
    /// How it is shown.
    pub(crate) style: Style,
    /// By what its hits are counted, instead of being shown one by one.
    pub(crate) counted: Option<Counted>,
    /// The pattern that has found it, as it was written; `None` for a probe that was asked for by its own name.
    pub(crate) pattern: Option<String>,
    /// Its filter and its histogram as they were written, for whoever asks what will be done.
    #[serde(skip)]
    pub(crate) written: Vec<String>,
}

/// How the hits of a probe are counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// By what.
    pub(crate) plan: Histogram,
    /// In which histogram: those that a pattern has found are counted together.
    pub(crate) number: usize,
    /// What that is called.
    pub(crate) name: String,
}

/// How a hit is shown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Style {
    /// By the registers of arguments.
    #[default]
    Registers,
    /// As the call of a function, or as its return.
    Call,
    /// As an event of this name with its fields.
    Event(String),
    /// Not one by one: hits are only counted.
    Count,
    /// As part of the graph of calls.
    Graph,
}

impl Asked {
    /// One that is shown by its registers.
    pub(crate) fn plain(place: Place, returns: bool) -> Self {
        Self {
            place,
            returns,
            max_active: None,
            capture: Capture::default(),
            style: Style::Registers,
            counted: None,
            pattern: None,
            written: Vec::new(),
        }
    }

    /// The same, found by `spec`.
    pub(crate) fn found_by(self, spec: &ProbeSpec) -> Self {
        let pattern = matches!(spec.location(), Location::Glob(_)).then(|| spec.to_string());
        Self { pattern, ..self }
    }

    /// Whether addresses are shown by their names.
    pub(crate) fn has_symbols(&self) -> bool {
        let by_name = |form: &Form| match form {
            Form::Symbol | Form::SymbolOffset => true,
            Form::Number(shape) => shape.has_symbol(),
            _ => false,
        };
        self.capture.fields.iter().any(|field| field.shape.has_symbol())
            || self.counted.iter().flat_map(|counted| &counted.plan.keys).any(|key| by_name(&key.form))
    }

    /// As the user writes it.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.place.name(), if self.returns { "%return" } else { "" })
    }
}

impl Target {
    /// How many places it watches.
    pub(crate) fn watches(&self) -> usize {
        self.probes.iter().filter(|asked| matches!(asked.place, Place::Watch(_))).count()
    }

    /// What [`target`] reads again.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        postcard::to_stdvec(self).context("the resolved target cannot be written down")
    }
}

/// The initramfs that was asked for, or the default.
pub(crate) fn initrd_path(asked: Option<&Path>) -> Result<PathBuf> {
    match asked {
        Some(path) => Ok(path.to_owned()),
        None => Cache::open()?.initramfs().ok().context(
            "there is nothing for the guest to run: give a command behind --, or an initramfs with --initrd",
        ),
    }
}

/// What was resolved and [written](Target::write) elsewhere.
pub(crate) fn resolved(guest: &Guest) -> Result<Option<Target>> {
    let Some(path) = &guest.target else { return Ok(None) };
    let target = postcard::from_bytes(&read(path)?).context("the resolved target is damaged")?;
    Ok(Some(target))
}

/// Resolves all probes before anything runs: a typo costs no boot.
pub(crate) fn target(run: &Run, files: &mut Files) -> Result<Target> {
    if let Some(target) = resolved(&run.guest)? {
        return Ok(target);
    }
    let source = files.source(&run.guest.symbols);
    let kernel = source.kernel(&files.image)?;
    can_work(files, &kernel)?;
    say_limits(&kernel, run.guest.cpus.into());
    let lines = KernelLines::of(&source, &kernel);
    let Found { mut probes, refused } = find(run, &kernel, &lines)?;
    check_modules(&kernel, &probes)?;
    Rooms::new(&kernel).note(&mut probes, run);
    refused.iter().for_each(|(pattern, refused)| report_refused(pattern, refused));
    // A guest that dies is spoken of by name, and with its stack.
    let symbols = Some(kernel.symbols().clone());
    let lines = match run.stack.is_some() || source.is_named() {
        true => lines.map()?.map(SourceMap::line_table),
        false => None,
    };
    let unwind = match run.stack {
        Some(_) => Some(KernelCode::of(&kernel).context("--stack: the kernel's stacks cannot be walked")?),
        None => KernelCode::of(&kernel).ok(),
    };
    let landmarks = booted(&run.guest, kernel, files)?;
    let scope = scope(&run.guest, &landmarks, run.once)?;
    Ok(Target { kernel: landmarks, probes, symbols, lines, unwind, scope })
}

/// The landmarks of `kernel`, which is booted as `guest` says. The unpacked image takes the place of the file where that is
/// what goes to memory.
pub(crate) fn booted(guest: &Guest, kernel: Kernel, files: &mut Files) -> Result<Landmarks> {
    let landmarks = Landmarks::of(&kernel);
    Ok(match guest.boot {
        args::Boot::Direct => {
            files.image = kernel.into_file();
            landmarks
        }
        args::Boot::Bzimage => {
            let boot = kernel
                .decompressor()
                .with_context(|| format!("--boot bzimage: {} is not a bzImage", files.kernel.display()))?;
            Landmarks { boot, ..landmarks }
        }
    })
}

/// Checks that `kernel` can run the command, if there is one.
pub(crate) fn can_work(files: &Files, kernel: &Kernel) -> Result<()> {
    if files.work.is_some() {
        requirements::check(kernel.symbols(), &files.drivers)?;
        if !requirements::has_overlay(kernel.symbols(), &files.drivers) {
            say(format_args!(
                "this kernel has no overlay (CONFIG_OVERLAY_FS): the command can write to /tmp, /run, /var/tmp and --rwdir alone"
            ));
        }
    }
    Ok(())
}

/// Checks that `kernel` can have what is probed in modules.
fn check_modules(kernel: &Kernel, probes: &[Asked]) -> Result<()> {
    let in_module = probes.iter().find(|asked| matches!(asked.place, Place::Module { .. }));
    let has_modules = kernel.symbols().lookup("do_init_module").next().is_some();
    match in_module.filter(|_| !has_modules) {
        Some(asked) => bail!(
            "`{}` is in a module, and this kernel is built without CONFIG_MODULES: what it has is built in, and probed without the module's name",
            asked.name()
        ),
        None => Ok(()),
    }
}

/// Which hits count in `guest`, as far as its `kernel` tells. `once`: of each probe only the first does.
pub(crate) fn scope(guest: &Guest, kernel: &Landmarks, once: bool) -> Result<Scope> {
    let has_command = guest.has_command();
    let tells = |scope| kernel.task.is_some_and(|task| task.tells(scope));
    match guest.scope {
        Some(args::Scope::Cmd) if !has_command => {
            bail!("--scope cmd is for a command in the guest: say which, behind --")
        }
        Some(args::Scope::Cmd) if !tells(Scope::Command) => bail!(
            "--scope cmd: this kernel does not tell a command's processes (it lacks CONFIG_UTS_NS, or type information)"
        ),
        Some(args::Scope::Init) if once => {
            bail!(
                "--scope init is not for first hits (--once, coverage): they would cost the boot an exit for each one before"
            )
        }
        Some(args::Scope::Init) if !tells(Scope::Init) => {
            bail!(
                "--scope init: this kernel does not tell when process 1 is started (it lacks type information)"
            )
        }
        Some(args::Scope::Boot) => Ok(Scope::Boot),
        Some(args::Scope::Init) => Ok(Scope::Init),
        Some(args::Scope::Cmd) => Ok(Scope::Command),
        None if has_command && tells(Scope::Command) => Ok(Scope::Command),
        None if has_command => {
            say(format_args!(
                "hits of all processes are shown: this kernel does not tell which are the command's (it lacks CONFIG_UTS_NS, or type information)"
            ));
            Ok(Scope::Boot)
        }
        None => Ok(Scope::Boot),
    }
}

/// What was asked for came to this.
pub(crate) struct Found {
    pub(crate) probes: Vec<Asked>,
    /// Patterns, and which of their matches are left out.
    pub(crate) refused: Vec<(String, Vec<Refused>)>,
}

/// Finds all that was asked for in `kernel`, places of lines by its `lines`.
pub(crate) fn find(run: &Run, kernel: &Kernel, lines: &KernelLines<'_>) -> Result<Found> {
    let btf = kernel.btf().ok();
    let expand = if run.deep { Expand::All } else { Expand::Small };
    let mut reader = Reader::new(kernel, btf.as_ref(), lines, expand);
    if let Some(filter) = &run.filter {
        reader.filter(filter)?;
    }
    for definition in &run.probes {
        reader.read(definition, Source { name: "--probe", line: 1 })?;
    }
    for path in &run.files {
        let text =
            String::from_utf8(read(path)?).with_context(|| format!("{} is not text", path.display()))?;
        for (line, definition) in lang::lines(&text) {
            reader.read(&definition, Source { name: &path.display().to_string(), line })?;
        }
    }
    let Found { mut probes, refused } = reader.finish();
    let counted = functions(&run.counts, kernel).context("--count")?;
    probes.extend(counted.into_iter().map(|asked| Asked { style: Style::Count, ..asked }));
    for asked in functions(&run.graphs, kernel).context("--graph")? {
        let entry = Asked { style: Style::Graph, ..asked };
        probes.extend([entry.clone(), Asked { returns: true, ..entry }]);
    }
    for spec in &run.watches {
        let watch = watch::resolve(spec, kernel).with_context(|| format!("--watch {spec}"))?;
        probes.push(Asked::plain(Place::Watch(watch), false));
    }
    if u32::try_from(probes.len()).is_err() {
        bail!("too many probes");
    }
    Ok(Found { probes, refused })
}

/// Says which matches of a pattern are left out.
fn report_refused(spec: &str, refused: &[Refused]) {
    const SHOWN: usize = 3;
    if refused.is_empty() {
        return;
    }
    say(format_args!("{spec}: {} matching functions cannot be probed", refused.len()));
    for Refused { name, reason } in refused.iter().take(SHOWN) {
        say(format_args!("  {name}: {reason}"));
    }
    if refused.len() > SHOWN {
        let pattern = spec.trim_end_matches("%return");
        say(format_args!("  ... `vmm symbols --all '{pattern}'` lists them all"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use probe_engine::addr::{Gpa, Gva};
    use probe_engine::capture::filter::{Filter, Operand, Order, Test};
    use probe_engine::capture::shape::Shape;
    use probe_engine::capture::{Base, Fetch, Field};
    use probe_engine::linux::branches::BranchSites;
    use probe_engine::linux::current::CurrentTask;
    use probe_engine::linux::glob::Glob;
    use probe_engine::linux::landmarks::{Boot, Hooks};
    use probe_engine::linux::symbols::SymbolTableBuilder;
    use probe_engine::linux::thunks::Thunks;
    use probe_engine::probe::place::Spot;
    use probe_engine::probe::watch::{Condition, Length, Watch};
    use std::fs;

    #[test]
    fn what_was_written_is_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("target");
        let kernel = Landmarks {
            text: Gva(0xffff_ffff_8100_0000),
            text_end: Gva(0xffff_ffff_8200_0000),
            text_load: Gpa(0x100_0000),
            entry: Gpa(0x100_0070),
            relocated: None,
            boot: Boot::Unknown,
            start: None,
            int3_entry: None,
            early: None,
            late: Some(Gva(0xffff_ffff_8100_2000)),
            panic: None,
            free_init: None,
            init_text: vec![Gva(0xffff_ffff_8300_0000)..Gva(0xffff_ffff_8310_0000)],
            hooks: Hooks { module_init: Some(Gva(0xffff_ffff_8110_0000)), ..Hooks::default() },
            modules: None,
            current: Some(CurrentTask { offset: 0x35000 }),
            task: None,
            clock: None,
            cpu_number: None,
            this_cpu_off: None,
            thunks: Thunks::default(),
            branches: BranchSites::default(),
            nofault: None,
        };
        let function = Gva(0xffff_ffff_8100_2000)..Gva(0xffff_ffff_8100_2040);
        let spot = Spot::entry_of(function);
        let place = Place::Kernel { name: "rest_init".to_owned(), spot };
        let probe = Asked { style: Style::Call, ..Asked::plain(place, true) };
        let (at, length, condition) = (Gva(0xffff_ffff_8200_0008), Length::Eight, Condition::Write);
        let watch = Watch { name: "jiffies:8:w".to_owned(), at, length, condition };
        let watch = Asked::plain(Place::Watch(watch), false);
        let limit = Filter::Not(Box::new(Filter::Test(
            Operand::Field(0),
            Test::Number(Order::Less, i128::from(u64::MAX)),
        )));
        let file_name = Filter::Test(Operand::Comm, Test::Glob(Glob::new("ca[t-z]*").unwrap()));
        let capture = Capture {
            fields: vec![Field {
                name: "next".to_owned(),
                fetch: Fetch::word(Base::Argument(1), 8),
                shape: Shape::Array { count: 2, of: Box::new(Shape::Symbol) },
            }],
            hidden: vec![Fetch::word(Base::Stack(1), 8)],
            filter: Some(Filter::All(vec![limit, file_name])),
        };
        let filtered = Asked { capture, ..probe.clone() };
        assert!(filtered.has_symbols() && !probe.has_symbols());
        let mut symbols = SymbolTableBuilder::default();
        symbols.push(Gva(0xffff_ffff_8100_2000), b'T', "rest_init").unwrap();
        let symbols = Some(symbols.finish());
        let scope = Scope::Init;
        let written = Target {
            kernel,
            probes: vec![probe, watch, filtered],
            symbols,
            lines: None,
            unwind: None,
            scope,
        };
        assert_eq!(written.watches(), 1);
        fs::write(&file, written.bytes().unwrap()).unwrap();
        let words = ["vmm", "run", "--target", file.to_str().unwrap()];
        let Command::Run(run) = Cli::parse_from(words).command else { panic!("another command") };
        let read = resolved(&run.guest).unwrap().unwrap();
        assert_eq!(read.kernel, written.kernel);
        assert_eq!(read.probes, written.probes);
        assert_eq!(read.scope, written.scope);
        assert!(read.symbols.unwrap().iter().eq(written.symbols.unwrap().iter()));
        fs::write(&file, b"\xff damaged").unwrap();
        assert!(resolved(&run.guest).is_err());
    }
}
