//! What is to be probed, resolved: everything that a run needs to know about its kernel, as plain data.

use crate::args::{self, Guest, Run};
use crate::dry_run::kinds;
use crate::file::read;
use crate::guest_files::Files;
use crate::imposed;
use crate::limits::say_limits;
use crate::module_files;
use crate::record::KernelIdentity;
use crate::requests::requests;
use crate::requirements;
use crate::say::note;
use crate::scan_policy::ScanPolicy;
use crate::splats::{SplatPolicy, policy};
use anyhow::{Context, Result, bail, ensure};
use probe_engine::guard::sealed::SealedKernel;
use probe_engine::linux::dwarf::SourceMap;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::lines::LineTable;
use probe_engine::linux::scope::Scope;
use probe_engine::linux::symbols::SymbolTable;
use probe_engine::linux::unwind::KernelCode;
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::ProbePlan;
use probe_engine::probe::resolve::Refused;
use probe_engine::probe::turns::ObservedTurns;
use probe_engine::request::{Found, KernelConstraints, ProbeRequest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;
use vmm::guard::{Guarding, OnWrite};
use vmm::guest::Optimize;
use vmm::samples::Sampling;

/// What a resolved target begins with: each version of this program has a format of its own.
const FORMAT: &[u8] = concat!("vmm target ", env!("CARGO_PKG_VERSION"), "\n").as_bytes();

/// A kernel's landmarks and the probes in it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) kernel: Landmarks,
    /// Which kernel it is.
    pub(crate) identity: KernelIdentity,
    pub(crate) probes: Vec<ProbeRequest>,
    /// Whose hits count, of probes that do not say it.
    pub(crate) scope: Scope,
    /// The kernel's symbols, where addresses may be shown by their names.
    pub(crate) symbols: Option<SymbolTable>,
    /// From which line of the source its text is, where that is known and shown.
    pub(crate) lines: Option<LineTable>,
    /// How its stacks are walked, where they can be.
    pub(crate) unwind: Option<KernelCode>,
    pub(crate) serving: Serving,
    /// What follows from reports of the kernel.
    pub(crate) splats: SplatPolicy,
    /// The order that is imposed on its tasks, if one is.
    pub(crate) order: Option<ObservedTurns>,
    /// How its kernel is guarded, if it is.
    pub(crate) guard: Option<Guarding>,
    /// When its memory is scanned, and what follows.
    pub(crate) scans: ScanPolicy,
}

/// How all probes of a run are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Serving {
    /// By detours or by traps.
    pub(crate) optimize: Optimize,
    /// Whether return probes leave detours for traps when detours can follow no more calls.
    pub(crate) fall_back: bool,
    /// Whether the modules may be missing that are probed.
    pub(crate) allow_pending: bool,
    /// How often, and when, its CPUs are sampled, if they are.
    pub(crate) sampling: Option<Sampling>,
    /// Whether probes are armed no sooner than the command begins, whatever they do: rules are about that, and not about the boot.
    pub(crate) from_command: bool,
    /// Whether the guest begins by standing still.
    pub(crate) paused: bool,
}

impl Target {
    /// How many places it watches.
    pub(crate) fn watches(&self) -> usize {
        self.probes.iter().filter(|asked| matches!(asked.place, Place::Watch(_))).count()
    }

    /// Whether probes are armed no sooner than the command begins. Those whose first hit alone counts, and those of calls that fail,
    /// would cost the boot an exit for each other one.
    pub(crate) fn is_late(&self) -> bool {
        let costs = |plan: &ProbePlan| plan.once || plan.inject.is_some();
        self.serving.from_command
            || self.probes.iter().any(|ProbeRequest { plan, .. }| costs(plan) && plan.scope == Scope::Command)
    }

    /// Whether tasks are held. Where they stood is shown.
    pub(crate) fn has_orders(&self) -> bool {
        self.probes.iter().any(|asked| asked.plan.pace.is_some())
    }

    /// Whether any probe shows who called.
    pub(crate) fn has_stacks(&self) -> bool {
        self.probes.iter().any(|asked| asked.plan.stack().is_some())
    }

    /// Whether frames of processes are shown.
    pub(crate) fn has_user_frames(&self) -> bool {
        self.has_stacks() || self.serving.sampling.is_some()
    }

    /// What [`resolved`] reads again.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>> {
        postcard::to_extend(self, FORMAT.to_vec()).context("the resolved target cannot be written down")
    }
}

/// What was resolved and [written](Target::bytes) elsewhere.
pub(crate) fn resolved(guest: &Guest) -> Result<Option<Target>> {
    let Some(path) = &guest.target else { return Ok(None) };
    let bytes = read(path)?;
    let target = bytes
        .strip_prefix(FORMAT)
        .context("the resolved target is of another version of vmm: write it again, by this one")?;
    Ok(Some(postcard::from_bytes(target).context("the resolved target is damaged")?))
}

/// Resolves all probes before anything runs: a typo costs no boot.
pub(crate) fn target(run: &Run, files: &mut Files) -> Result<Target> {
    if let Some(target) = resolved(&run.guest)? {
        return Ok(target);
    }
    let splats = policy(&run.splats)?;
    let source = files.source(&run.guest.symbols);
    let kernel = source.kernel(&files.image)?;
    can_work(files, &kernel)?;
    say_limits(&kernel, run.guest.cpus.into());
    let debug = source.debug_info(&kernel);
    let Found { mut probes, refused, .. } = requests(run, &kernel, &debug)?;
    check_modules(&kernel, &probes)?;
    if !run.allow_pending && !files.were_checked {
        module_files::check(files, &kernel, &probes)?;
    }
    if run.arming.optimize != args::Optimize::Off {
        KernelConstraints::new(&kernel).note_all(&mut probes);
    }
    refused.iter().for_each(|(pattern, refused)| report_refused(pattern, refused));
    let in_programs = probes.iter().filter(|asked| asked.plan.program.is_some());
    let doubts: BTreeSet<_> = in_programs.filter_map(|asked| asked.remark.as_deref()).collect();
    doubts.into_iter().for_each(|doubt| note(format_args!("{doubt}")));
    // A guest that dies is spoken of by name, and with its stack.
    let symbols = Some(kernel.symbols().clone());
    let lines = match run.probes.stack.is_some() || run.sampled.profile.is_some() || source.is_named() {
        true => debug.lines()?.map(SourceMap::line_table),
        false => None,
    };
    drop(debug);
    let unwind = match run.probes.stack {
        Some(_) => Some(KernelCode::of(&kernel).context("--stack: the kernel's stacks cannot be walked")?),
        None => KernelCode::of(&kernel).ok(),
    };
    let guard = run
        .guarded
        .guard
        .map(|choice| guarding(choice.to_session(), run.guarded.scan.every(), &kernel, unwind.is_some()))
        .transpose()?;
    let identity = KernelIdentity::of(&kernel);
    let landmarks = booted(&run.guest, kernel, files)?;
    let scope = scope(&run.guest, &landmarks, run.probes.once)?;
    // What a sample has others do is its doing as well.
    let of_rules = if run.guest.scope.is_some() { scope } else { Scope::Boot };
    let has_rules = probes.iter().any(|asked| asked.rule.is_some());
    for asked in &mut probes {
        asked.plan.scope = if asked.rule.is_some() { of_rules } else { scope };
    }
    let order = imposed::order(run.orders.imposed.as_ref(), &mut probes);
    let serving = Serving {
        optimize: run.arming.optimize.to_session(),
        fall_back: run.arming.fall_back,
        allow_pending: run.allow_pending,
        sampling: run.sampled.profile.map(|frequency| Sampling { frequency, scope }),
        from_command: has_rules && run.guest.has_command() && run.guest.scope.is_none(),
        paused: run.controlled.gdb_wait,
    };
    let scans = guard.as_ref().map(|_| run.guarded.scans()).unwrap_or_default();
    Ok(Target {
        kernel: landmarks,
        identity,
        probes,
        scope,
        symbols,
        lines,
        unwind,
        serving,
        splats,
        order,
        guard,
        scans,
    })
}

/// How `kernel` is guarded.
fn guarding(
    on_write: OnWrite,
    scanned_every: Option<Duration>,
    kernel: &Kernel,
    has_stacks: bool,
) -> Result<Guarding> {
    const CANNOT: &str = "this kernel cannot be guarded";
    ensure!(
        has_stacks,
        "{CANNOT}: its stacks cannot be walked, by which its own changes are told (CONFIG_UNWINDER_ORC)"
    );
    Ok(Guarding { kernel: SealedKernel::of(kernel).context(CANNOT)?, on_write, scanned_every })
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
            note(format_args!(
                "this kernel has no overlay (CONFIG_OVERLAY_FS): the command can write to /tmp, /run, /var/tmp and --rwdir alone"
            ));
        }
    }
    Ok(())
}

/// Checks that `kernel` can have what is probed in modules.
pub(crate) fn check_modules(kernel: &Kernel, probes: &[ProbeRequest]) -> Result<()> {
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
            note(format_args!(
                "hits of all processes are shown: this kernel does not tell which are the command's (it lacks CONFIG_UTS_NS, or type information)"
            ));
            Ok(Scope::Boot)
        }
        None => Ok(Scope::Boot),
    }
}

/// Says which matches of a pattern are left out.
fn report_refused(spec: &str, refused: &[Refused]) {
    const SHOWN: usize = 5;
    if refused.is_empty() {
        return;
    }
    note(format_args!("{spec}: {} matching functions cannot be probed", refused.len()));
    let lines = kinds(refused);
    lines.iter().take(SHOWN).for_each(note);
    if refused.len() > SHOWN {
        let pattern = spec.trim_end_matches("%return");
        note(format_args!("`vmm list --kind refused '{pattern}'` lists them all"));
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
    use probe_engine::capture::{Base, Capture, Fetch, Field};
    use probe_engine::linux::boot::Boot;
    use probe_engine::linux::branches::BranchSites;
    use probe_engine::linux::current::CurrentTask;
    use probe_engine::linux::errands::NoErrands;
    use probe_engine::linux::glob::Glob;
    use probe_engine::linux::landmarks::HookAddresses;
    use probe_engine::linux::symbols::SymbolTableBuilder;
    use probe_engine::linux::thunks::Thunks;
    use probe_engine::linux::tracepoints::NoTracepoints;
    use probe_engine::linux::uprobes::NoUprobes;
    use probe_engine::probe::place::SiteInfo;
    use probe_engine::probe::plan::Trigger;
    use probe_engine::probe::watch::{Condition, Length, Watch};
    use probe_engine::request::Style;
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
            hooks: HookAddresses {
                module_init: Some(Gva(0xffff_ffff_8110_0000)),
                ..HookAddresses::default()
            },
            modules: None,
            current: Some(CurrentTask { offset: 0x35000 }),
            preemption: None,
            task: None,
            mappings: None,
            uretprobes: None,
            tasks: None,
            clock: None,
            printk: None,
            cpu_number: None,
            this_cpu_off: None,
            thunks: Thunks::default(),
            branches: BranchSites::default(),
            nofault: None,
            errands: Err(NoErrands::NoTypes),
            tracepoints: Err(NoTracepoints::None),
            uprobes: Err(NoUprobes::None),
        };
        let function = Gva(0xffff_ffff_8100_2000)..Gva(0xffff_ffff_8100_2040);
        let info = SiteInfo::entry_of(function);
        let place = Place::Kernel { name: "rest_init".to_owned(), info };
        let probe = ProbeRequest {
            style: Style::Call,
            ..ProbeRequest::plain(place, Trigger::Return { max_active: None })
        };
        let (at, length, condition) = (Gva(0xffff_ffff_8200_0008), Length::Eight, Condition::Write);
        let watch = Watch { name: "jiffies:8:w".to_owned(), at, length, condition };
        let watch = ProbeRequest::plain(Place::Watch(watch), Trigger::Access);
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
            hidden: vec![Field {
                name: "slot".to_owned(),
                fetch: Fetch::word(Base::Stack(1), 8),
                shape: Shape::Hex,
            }],
            filter: Some(Filter::All(vec![limit, file_name])),
            ..Capture::default()
        };
        let filtered = ProbeRequest { plan: probe.plan.clone().reading(capture), ..probe.clone() };
        assert!(filtered.has_symbols() && !probe.has_symbols());
        let mut symbols = SymbolTableBuilder::default();
        symbols.push(Gva(0xffff_ffff_8100_2000), b'T', "rest_init").unwrap();
        let symbols = Some(symbols.finish());
        let serving = Serving {
            optimize: Optimize::Auto,
            fall_back: true,
            allow_pending: false,
            sampling: None,
            from_command: true,
            paused: false,
        };
        let release = Some("6.12.48+deb13-amd64".to_owned());
        let written = Target {
            kernel,
            identity: KernelIdentity { release, build_id: None },
            probes: vec![probe, watch, filtered],
            scope: Scope::Command,
            symbols,
            lines: None,
            unwind: None,
            serving,
            splats: SplatPolicy::default(),
            order: None,
            guard: None,
            scans: ScanPolicy::default(),
        };
        assert_eq!(written.watches(), 1);
        fs::write(&file, written.bytes().unwrap()).unwrap();
        let words = ["vmm", "run", "--target", file.to_str().unwrap()];
        let Command::Run(run) = Cli::parse_from(words).command else { panic!("another command") };
        let read = resolved(&run.guest).unwrap().unwrap();
        assert_eq!((read.kernel, read.identity), (written.kernel, written.identity));
        assert_eq!(read.scope, written.scope);
        assert_eq!(read.probes, written.probes);
        assert_eq!(read.serving, written.serving);
        assert!(read.symbols.unwrap().iter().eq(written.symbols.unwrap().iter()));
        let said = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            resolved(&run.guest).err().map(|error| error.to_string())
        };
        let damaged = [FORMAT, b"\xff damaged"].concat();
        assert_eq!(said(&damaged).as_deref(), Some("the resolved target is damaged"));
        assert!(said(b"vmm target 0.0\n").is_some_and(|said| said.contains("another version of vmm")));
    }
}
