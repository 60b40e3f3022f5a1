//! `vmm run`: one guest, from its files to its exit code.

use crate::args::{Format, Guest, Run, word};
use crate::assisted;
use crate::choice::{Choosing, Chosen};
use crate::control::{Additions, Attendant, Server};
use crate::dropped::{DroppedFiles, Keeping};
use crate::dry_run;
use crate::exit_codes;
use crate::fail_nth::{self, NthSteps};
use crate::file;
use crate::guest_files::{Files, cmdline};
use crate::host::{self, Inside};
use crate::kept_console::KeptConsole;
use crate::output::{GuestNames, HitWriter, Out};
use crate::post_mortem::{say_death, say_stands};
use crate::record::{self, Clocks, GateEnd, Header, HostKind, InjectionEnd, NthLine, RunsLine};
use crate::requests::FAIL_NTH;
use crate::rules::RuleFile;
use crate::say::{self, finish, hurry, is_standard_output_reserved, note, say};
use crate::scan::{GuardedScans, LateKernel};
use crate::served::Sockets;
use crate::shared_terminal::{self, Tame, is_shared};
use crate::splats::{SplatMode, SplatVerdicts};
use crate::target::{self, Serving, Target};
use crate::time_limits::{BOOT, RUN, timeout};
use crate::unarmed;
use crate::wall_clock;
use crate::work::{self, Work};
use anyhow::{Context, Result};
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::scope::Scope;
use probe_engine::linux::unwind::KernelCode;
use probe_engine::probe::table::ProbeId;
use probe_engine::probe::turns::ObservedTurns;
use probe_engine::request::ProbeRequest;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use vmm::command::{GuestCommand, GuestCommandError};
use vmm::confine::{self, Role};
use vmm::devices::virtio::Extras;
use vmm::guard::Guarding;
use vmm::guest::{Host, Terminal};
use vmm::host::agent::{PortEnds, commands_port};
use vmm::host::{CommandExit, Escape, Outlet, RawMode, Streams};
use vmm::printer::Printer;
use vmm::probe::Probe;
use vmm::session::{Command, CommandError, Handle, Outcome, RegisterError, Report, Sink, Unread};
use vmm::trap::Delivery;

pub(crate) fn main(args: &Run) -> Result<ExitCode> {
    if args.arming.dry_run {
        return dry_run::main(args);
    }
    if let (Some(definition), None) = (&args.injections.fail_nth, args.injections.fail_from) {
        return fail_nth::main(args, definition);
    }
    if let Some(folder) = &args.write_target {
        return write_target(args, folder);
    }
    let choosing = Choosing::begin(&args.guest);
    let code = with_files(args, Files::read(&args.guest)?, choosing)?;
    note_recording(&args.guest, args.records.output.as_deref());
    Ok(code)
}

/// Runs the guest that has these files.
pub(crate) fn with_files(args: &Run, mut files: Files, choosing: Choosing) -> Result<ExitCode> {
    if let (Some(work), Some(from)) = (&mut files.work, args.injections.fail_from) {
        work.fail_from = Some(from);
    }
    let probes = args.probes.files.iter().map(PathBuf::as_path);
    let named: Vec<&Path> = probes.chain(RuleFile::paths(&args.guarded.rules)).collect();
    for output in [&args.records.output, &args.guest.console, &args.splats.vmcore] {
        let inputs = files.read_from(&args.guest).chain(named.iter().copied());
        file::refuse_an_input(output.as_deref(), inputs)?;
    }
    let sockets = Sockets::open(args)?;
    let target = target::target(args, &mut files)?;
    assisted::Asked::of(&args.assisted, &target.kernel, target.symbols.as_ref())?;
    let served = sockets.serve(|| Additions::new(args, &files, &target).definer())?;
    let control = served.control();
    // Without probes nothing of ours is shown while a command has the terminal.
    let is_silent = target.probes.is_empty() && target.guard.is_none() && control.is_none();
    let is_all_the_commands = files.work.is_some() && is_silent && !args.guest.verbose;
    if !is_all_the_commands || args.guest.marked {
        share_terminal(&args.guest, args.records.shown().is_some());
    }
    let kept = args.dropped.keep_files.as_deref().zip(files.work.as_ref());
    let keeping = kept.map(|(folder, work)| Keeping::begin(folder, work)).transpose()?;
    let code = match choosing.chosen()? {
        Chosen::Kvm(here) => run_here(args, files, target, &here, (keeping.as_ref(), control)),
        Chosen::Emulated(begun) => {
            // What the host could not watch is not worth a host.
            let most = Delivery::Reflected.watches();
            if target.watches() > most {
                return Err(RegisterError::TooManyWatches(most).into());
            }
            let inside = Inside {
                verb: "run",
                format: args.records.format.map(|format| word(&format)),
                output: args.records.output.as_deref(),
                assisted: Some(&args.assisted),
                keeping: keeping.as_ref(),
                control,
            };
            host::run_emulated(begun, &args.guest, &files, &target, inside)
        }
    }?;
    Ok(keeping.map_or(code, |keeping| keeping.finish(code)))
}

/// Where commands to the guest come from while it runs, and where what comes of them goes, if there may be any.
fn commands(args: &Run, control: Option<&Server>) -> Result<Option<PortEnds>> {
    if args.controlled.control_port {
        return Ok(Some(commands_port().context("cannot reach the commands outside")?));
    }
    let Some(control) = control else { return Ok(None) };
    let (ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
    control.link(theirs);
    let answers = ours.try_clone().context("cannot share a socket")?;
    Ok(Some((Box::new(answers), Box::new(ours))))
}

/// Enables the probes, but for those that somebody has removed since.
fn enable(handle: &Handle, mut ids: Vec<ProbeId>) {
    while let Err(CommandError::Unknown(removed)) = handle.command(Command::Enable(ids.clone())) {
        ids.retain(|id| *id != removed);
    }
}

/// Has others command the guest, if anybody may.
fn attend(control: Option<Attendant>, handle: &Handle) -> Result<()> {
    control.map_or(Ok(()), |control| control.attend(handle.clone())).context("the host has no thread left")
}

/// Where the files go that the command leaves, if anybody wants them.
fn dropped(args: &Run, keeping: Option<&Keeping>) -> Result<Option<DroppedFiles>> {
    let to = match (keeping, &args.dropped.dropped_to) {
        (Some(keeping), _) => keeping.stream()?,
        (None, Some(path)) => file::create(path)?,
        (None, None) => return Ok(None),
    };
    Ok(Some(DroppedFiles::going_to(to)))
}

/// Says where the recording of a run that is over is.
pub(crate) fn note_recording(guest: &Guest, output: Option<&Path>) {
    // Who runs the emulated host says that.
    if let (Some(path), None) = (output, guest.emulated_at) {
        file::note_written("the recording", path);
    }
}

/// QEMU delivers an interrupt a second time now and then.
const INTERRUPTED_TWICE: &str = "the emulated host has interrupted the guest where no processor does that, by a fault of QEMU: \
     the run says nothing about the guest, and should be repeated";

/// Writes what was resolved to `folder`.
fn write_target(args: &Run, folder: &Path) -> Result<ExitCode> {
    let mut files = Files::read(&args.guest)?;
    let target = target::target(args, &mut files)?;
    for (name, bytes) in [("target", &target.bytes()?), ("kernel", &files.image)] {
        let path = folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_here(
    args: &Run,
    mut files: Files,
    target: Target,
    host: &Host,
    (keeping, control): (Option<&Keeping>, Option<&Server>),
) -> Result<ExitCode> {
    let dropped = dropped(args, keeping)?;
    let places = places(args.records.output.as_deref(), args.records.shown())?;
    let header = header(&args.guest, &files, &target);
    let late = target.is_late();
    let is_controlled = control.is_some() || args.controlled.control_port;
    let names = target.has_stacks()
        || target.has_orders()
        || target.serving.sampling.is_some()
        || target.guard.is_some()
        || files.work.is_some()
        || is_controlled
        || target.probes.iter().any(ProbeRequest::has_symbols);
    let work = files.work.as_ref().filter(|_| target.has_user_frames());
    let programs = work.map(|work| work.names(&args.guest)).transpose()?;
    let Target { kernel, probes, symbols, lines, unwind, serving, splats, order, guard, scans, .. } = target;
    let image = std::mem::take(&mut files.image);
    let scanned = LateKernel::new(if guard.is_some() { image.clone() } else { Vec::new() });
    if guard.as_ref().is_some_and(|guard| guard.scanned_every.is_some()) {
        scanned.get().context("the memory cannot be scanned")?;
    }
    let scans = scans.is_wanted.then(|| GuardedScans::new(&scanned, scans.on_failure));
    let asked = assisted::Asked::of(&args.assisted, &kernel, symbols.as_ref())?;
    let is_looking = splats.mode != SplatMode::Ignore;
    if is_looking && kernel.printk.is_none() {
        note(
            "reports of the kernel are read from its console, which shows what its loglevel lets through, and where processes write as well: its log is not understood (it is from before 5.10, or lacks type information)",
        );
    }
    let kernel = SessionKernel {
        image,
        landmarks: kernel,
        names,
        unwind,
        serving,
        late,
        splats: is_looking,
        before_splats: is_looking && splats.recent.is_some(),
        stops_at_splats: splats.mode.stops(),
        order,
        guard,
    };
    let (recent, verdicts) = (splats.recent, SplatVerdicts::new(splats));
    let named = if is_controlled { symbols.clone() } else { None };
    let guest_names = GuestNames::new(symbols, lines).with_programs(programs);
    let (tell, added) = mpsc::channel();
    let commands = commands(args, control)?;
    let mut writer = HitWriter::new(places, header, probes.clone(), guest_names)
        .judging(verdicts)
        .keeping(recent)
        .scanning(scans)
        .following(commands.is_some().then_some(added));
    let histograms = writer.histograms();
    let control = commands.map(|ends| Attendant::new(ends, named, &probes, (histograms, tell)));
    let probes = probes.into_iter().map(|asked| Probe::of_plan(asked.place, asked.plan)).collect();
    let has_splatted = writer.has_splatted();
    let guest = &args.guest;
    let dropped_to = dropped.clone();
    let machine =
        Machine { guest, files: &files, kernel, host, has_splatted, asked, dropped: dropped_to, control };
    let ran = session(machine, probes, &mut writer)?;
    let code = ran.exit_code();
    let summary = writer
        .runs(&ran.runs)
        .and_then(|()| writer.nth(&ran.nth))
        .and_then(|()| dropped.as_ref().map_or(Ok(true), |dropped| writer.dropped(dropped)))
        .and_then(|all_came| writer.summary(&ran.report, code).map(|()| all_came));
    let loss = writer.failure().or(summary.as_ref().err());
    if let Some(error) = loss {
        say(format_args!("hits could not be written and are counted as missed: {error}"));
    }
    writer.say_repeats();
    let asked = Asked {
        patterns: writer.patterns(),
        allow_pending: serving.allow_pending,
        gates: &writer.gates(&ran.report.gates),
        injections: &writer.asked_injections(&ran.report.injections),
        have_splats_failed: writer.say_splats(),
        ending_rules: writer.ending_rules(&ran.report),
        scanned: writer.scans().map_or(0, GuardedScans::found),
        is_blind: writer.scans().is_some_and(GuardedScans::is_blind),
    };
    let code = exit_code(&ran, &asked, writer.names());
    if args.guest.emulated_at.is_some()
        && code == ExitCode::from(exit_codes::DIED)
        && writer.has_machine_failed()
    {
        say(INTERRUPTED_TWICE);
        return Ok(ExitCode::from(exit_codes::INFRASTRUCTURE));
    }
    // Whoever took the run for a success would take the files that are there for all.
    match summary {
        Ok(false) if code == ExitCode::SUCCESS => Ok(exit_codes::INFRASTRUCTURE.into()),
        _ => Ok(exit_codes::with_loss(code, loss)),
    }
}

/// Keeps our lines and those of the guest's console apart where both are on one terminal. Lines of JSON are marked there,
/// too: it is a person that reads them.
pub(crate) fn share_terminal(guest: &Guest, is_shown: bool) {
    if guest.marked || (is_shown && shared_terminal::is_one()) {
        shared_terminal::share();
    }
}

/// Where hits are written, and how: recorded in a file, and shown.
pub(crate) fn places(recorded: Option<&Path>, shown: Option<Format>) -> Result<Vec<(Out<'static>, Format)>> {
    let mut places = Vec::new();
    if let Some(path) = recorded {
        places.push((Out::file(file::create(path)?)?, Format::Json));
    }
    match shown {
        Some(Format::Text) => places.push((Out::standard_error(), Format::Text)),
        Some(Format::Json) => places.push((reserved_standard_output()?, Format::Json)),
        None => {}
    }
    Ok(places)
}

/// Standard output, where nothing else is from now on.
pub(crate) fn reserved_standard_output() -> Result<Out<'static>> {
    say::reserve_standard_output();
    Out::standard_output().context("the host has no thread left")
}

/// What a recording of `guest` begins with.
pub(crate) fn header(guest: &Guest, files: &Files, target: &Target) -> Header {
    if let Some(outside) = guest.emulated_at {
        wall_clock::set(outside);
    }
    let of_probes = target.probes.first().map(|asked| asked.plan.scope);
    let sampling = target.serving.sampling;
    let scope = of_probes.or(sampling.map(|sampling| sampling.scope)).unwrap_or(Scope::Boot);
    let words = |work: &Work| {
        let words = std::iter::once(&work.words.program).chain(&work.words.args);
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    };
    Header {
        format: record::FORMAT,
        vmm: env!("CARGO_PKG_VERSION").to_owned(),
        wall_ns: wall_clock::now_outside(),
        kernel: target.identity.clone(),
        slide: None,
        cmdline: cmdline(guest),
        host: if guest.emulated_at.is_some() { HostKind::Emulated } else { HostKind::Kvm },
        cpus: guest.cpus.into(),
        scope: match scope {
            Scope::Boot => "boot",
            Scope::Init => "init",
            Scope::Command => "cmd",
        }
        .to_owned(),
        command: files.work.as_ref().map(words),
        period_ns: sampling.map(|sampling| u64::try_from(sampling.period().as_nanos()).unwrap_or(u64::MAX)),
        clocks: Clocks::default(),
    }
}

/// What came of a guest.
pub(crate) struct Ran {
    pub(crate) report: Report,
    /// How its command ended, if it had one that did.
    pub(crate) command: Option<Option<CommandExit>>,
    /// The exit codes of its runs, where it was to be run several times.
    pub(crate) runs: Vec<u8>,
    /// Those in which a call was to fail.
    pub(crate) nth: Vec<NthLine>,
    /// What its command was waiting for, if it had one that was not begun.
    pub(crate) waited_for: Option<&'static str>,
    /// Whether the server of its files ended before it did: what the guest did then says nothing.
    pub(crate) are_files_lost: bool,
    /// What the guest has done for us.
    pub(crate) assisted: assisted::Done,
}

impl Ran {
    /// That of its command, where it is known.
    pub(crate) fn exit_code(&self) -> Option<u8> {
        Some(self.command.as_ref()?.as_ref()?.code())
    }
}

/// What a session knows of its kernel.
pub(crate) struct SessionKernel {
    /// What goes to the guest's memory.
    pub(crate) image: Vec<u8>,
    pub(crate) landmarks: Landmarks,
    /// Whether what it loads has names.
    pub(crate) names: bool,
    /// How its stacks are walked.
    pub(crate) unwind: Option<KernelCode>,
    /// How its probes are served.
    pub(crate) serving: Serving,
    /// Whether its probes are armed no sooner than its command begins.
    pub(crate) late: bool,
    /// Whether its log is read for reports.
    pub(crate) splats: bool,
    /// Whether it is noticed when it begins to report.
    pub(crate) before_splats: bool,
    /// Whether it may stand still at the end of a report.
    pub(crate) stops_at_splats: bool,
    /// The order that is imposed on its tasks.
    pub(crate) order: Option<ObservedTurns>,
    /// How it is guarded.
    pub(crate) guard: Option<Guarding>,
}

/// A machine that is to run, and where.
pub(crate) struct Machine<'a> {
    pub(crate) guest: &'a Guest,
    pub(crate) files: &'a Files,
    pub(crate) kernel: SessionKernel,
    pub(crate) host: &'a Host,
    /// Becomes true with the first report of the kernel that is not allowed.
    pub(crate) has_splatted: Arc<AtomicBool>,
    /// What the guest does for us, where it has no command.
    pub(crate) asked: Option<assisted::Asked>,
    /// Where the files go that its command leaves, if anybody wants them.
    pub(crate) dropped: Option<DroppedFiles>,
    /// Carries out what others want while the guest runs, if anybody may.
    pub(crate) control: Option<Attendant>,
}

/// Runs the guest with `probes` to its end, with this process's terminal.
pub(crate) fn session(machine: Machine<'_>, probes: Vec<Probe>, sink: &mut dyn Sink) -> Result<Ran> {
    if let Some(work) = &machine.files.work {
        return with_command(machine, work, probes, sink);
    }
    let Machine { guest, files, mut kernel, host, asked, control, .. } = machine;
    let kept = KeptConsole::create(guest.console.as_deref())?;
    let interactive = io::stdin().is_terminal();
    let input = io::stdin().as_fd().try_clone_to_owned().ok().map(File::from);
    let raw = if interactive { RawMode::enter(io::stdin().as_fd()).ok() } else { None };
    let console = match say::printer().filter(|_| is_shared() || is_standard_output_reserved()) {
        Some(printer) => printer.for_what_fits(),
        None => Printer::of_what_fits(io::stdout()).context("the host has no thread left")?,
    };
    let outlet = || -> Box<dyn Write + Send> {
        match (is_shared(), is_standard_output_reserved()) {
            (true, _) => Box::new(Tame::new(console.clone())),
            // Its lines say whose they are, unless someone types there.
            (false, true) if !interactive => Box::new(work::Console::new(true)),
            (false, _) => Box::new(console.clone()),
        }
    };
    let (mut shown, out) = (outlet(), kept.beside(outlet()));
    let order = kernel.order.take();
    let machine = built(guest, files, kernel).terminal(Terminal { out, input, interactive });
    let machine = machine.timeout(timeout(guest.timeout, if interactive { None } else { RUN }));
    confine::whole_process()?;
    let mut session = host.session(machine)?;
    order.into_iter().for_each(|order| session.impose(order));
    session.register_all(probes)?;
    let handle = session.handle();
    attend(control, &handle)?;
    let (report, done) = thread::scope(|scope| {
        let asking = asked.map(|asked| {
            scope.spawn(move || {
                confine::this_thread_if(true, Role::Control);
                asked.carry_out(&handle, &mut *shown)
            })
        });
        let report = session.run(sink);
        (report, asking.and_then(|asking| asking.join().ok()).unwrap_or_default())
    });
    drop(raw);
    let report = report?;
    if matches!(report.end, Outcome::Signal(_) | Outcome::Quit) {
        hurry();
    }
    // What nobody reads, nobody misses.
    finish(&console);
    kept.finish();
    Ok(Ran {
        report,
        command: None,
        runs: Vec::new(),
        nth: Vec::new(),
        waited_for: None,
        are_files_lost: false,
        assisted: done,
    })
}

/// The machine that `guest` asks for, without a console.
fn built<'a>(guest: &Guest, files: &'a Files, kernel: SessionKernel) -> vmm::guest::Guest<'a> {
    vmm::guest::Guest::resolved(Some(kernel.image.into()), kernel.landmarks)
        .initrd(&files.initramfs)
        .whole_cmdline(&cmdline(guest))
        .cpus(guest.cpus)
        .memory(guest.memory.0)
        .names(kernel.names)
        .optimize(kernel.serving.optimize)
        .fall_back(kernel.serving.fall_back)
        .sampling(kernel.serving.sampling)
        .guard(kernel.guard)
        .paused(kernel.serving.paused)
        .splats(kernel.splats)
        .before_splats(kernel.before_splats)
        .stops_at_splats(kernel.stops_at_splats)
        .unwind(kernel.unwind.map(Arc::new))
        .confine(true)
}

/// Runs the guest until its command has ended, with this process's terminal.
fn with_command(machine: Machine<'_>, work: &Work, probes: Vec<Probe>, sink: &mut dyn Sink) -> Result<Ran> {
    let Machine { guest, files, mut kernel, host, has_splatted, dropped, control, .. } = machine;
    let (command, port) = GuestCommand::new().context("the host has no descriptor left")?;
    let are_files_lost = Arc::new(AtomicBool::new(false));
    let lost = {
        let (are_lost, end) = (are_files_lost.clone(), command.end()?);
        Box::new(move || {
            are_lost.store(true, Ordering::Relaxed);
            // The command's thread sees the end of its stream, and stops the guest.
            let _ = end.shutdown(Shutdown::Both);
        })
    };
    let extras = Extras { ports: vec![port], folders: Some(work.folders(guest, lost)?), rng: true };
    let console = work::Console::new(guest.verbose);
    let kept = KeptConsole::create(guest.console.as_deref())?;
    let (late, limit) = (kernel.late, timeout(guest.timeout, BOOT));
    let order = kernel.order.take();
    let is_terminal = io::stdin().is_terminal();
    let console_only = Terminal { out: kept.beside(console.clone()), input: None, interactive: false };
    let machine = built(guest, files, kernel).signals(false).terminal(console_only).extras(extras);
    let machine = machine.timeout(timeout(guest.timeout, if is_terminal { None } else { RUN }));
    confine::whole_process()?;
    let mut session = host.session(machine)?;
    order.into_iter().for_each(|order| session.impose(order));
    let probes = if late { probes.into_iter().map(Probe::disabled).collect() } else { probes };
    let ids = session.register_all(probes)?;
    attend(control, &session.handle())?;
    let repeat = work.repeat;
    let steps = work.fail_from.map(|from| NthSteps::new(session.injector(FAIL_NTH), from, has_splatted));
    let stepper = steps.clone();
    let (handle, words, end) = (session.handle(), work.words()?, command.end()?);
    let stderr = say::printer().context("the host has no thread left")?.clone();
    let stdout = match is_shared() || is_standard_output_reserved() {
        true => stderr.clone(),
        false => Printer::of_all(io::stdout()).context("the host has no thread left")?,
    };
    let outlet = |printer: &Printer| match is_shared() {
        true => Outlet::through(printer.clone(), Tame::new(printer.clone())),
        false => printer.clone().into(),
    };
    let streams = Streams::of_this_process(outlet(&stdout), outlet(&stderr));
    let streams = Streams { escape: Escape::Obeyed, left: dropped.map(Outlet::plain), ..streams };
    let is_up = AtomicBool::new(false);
    let (report, ended) = thread::scope(|scope| {
        let is_up = &is_up;
        let running = scope.spawn(move || {
            // The guest's words are read here.
            confine::this_thread_if(true, Role::Control);
            let ready = command.wait(limit);
            is_up.store(ready.is_ok(), Ordering::Relaxed);
            // The guest may have ended by itself, now and below.
            if late {
                enable(&handle, ids);
            }
            let ended = ready.and_then(|()| match (repeat, stepper) {
                (_, Some(steps)) => {
                    let next = move |code| steps.next(code);
                    command.run_in_steps(words, streams, next).map(|ended| (ended, Vec::new()))
                }
                (None, None) => command.run(words, streams).map(|ended| (ended, Vec::new())),
                (Some(times), None) => command.run_repeatedly(words, times, streams),
            });
            let is_silent = matches!(ended, Err(GuestCommandError::Silent(_)));
            let _ = handle.command(if is_silent { Command::GiveUp } else { Command::Stop });
            ended
        });
        let report = session.run(sink);
        // The guest is gone, whatever became of the command.
        let _ = end.shutdown(Shutdown::Both);
        (report, running.join())
    });
    let report = report?;
    finish(&stdout);
    kept.finish();
    let are_files_lost = are_files_lost.load(Ordering::Relaxed);
    let mut runs = Vec::new();
    let command = match ended {
        _ if are_files_lost => {
            say("the run was ended because the guest had lost its files");
            None
        }
        Ok(Ok((ended, codes))) => {
            runs = codes;
            Some(ended.exit)
        }
        Ok(Err(error)) => {
            console.show();
            // What is ended for its time is spoken of by that.
            if !matches!(report.end, Outcome::TimedOut(_)) {
                say(format_args!("{error}"));
            }
            None
        }
        Err(_) => None,
    };
    let waited_for = (!is_up.into_inner()).then_some("its kernel to boot and to reach this machine's files");
    let nth = steps.map(|steps| steps.finish()).unwrap_or_default();
    let assisted = assisted::Done::default();
    Ok(Ran { report, command: Some(command), runs, nth, waited_for, are_files_lost, assisted })
}

/// What was asked for, that a run may not have come to.
#[derive(Default)]
pub(crate) struct Asked<'a> {
    /// The pattern of each probe, where one has found it.
    pub(crate) patterns: BTreeMap<ProbeId, String>,
    pub(crate) allow_pending: bool,
    /// The orders that were to be forced.
    pub(crate) gates: &'a [GateEnd],
    /// What was to be injected.
    pub(crate) injections: &'a [InjectionEnd],
    /// Whether the guest's kernel reported what is not allowed.
    pub(crate) have_splats_failed: bool,
    /// How much scans of its memory have found.
    pub(crate) scanned: u64,
    /// The rules that have ended it.
    pub(crate) ending_rules: Vec<String>,
    /// Whether its guard was to end it because a scan failed.
    pub(crate) is_blind: bool,
}

/// Says that an order was never reached.
fn unreached(gate: &GateEnd) -> Option<String> {
    let GateEnd { hold, until, reached, timed_out, released, unfinished, .. } = gate;
    let held = timed_out + released + unfinished;
    (*reached == 0).then(|| match held {
        0 => format!("the order was never tried: no task came to {hold} in the scope"),
        _ => format!(
            "the order was never reached: while a task was held at {hold}, no other one came to {until}"
        ),
    })
}

/// Says how the guest ended when that was not in order, and which probes were overwritten or never armed, and gives the
/// exit code.
pub(crate) fn exit_code(
    Ran { report, command, runs, nth, waited_for, are_files_lost, assisted }: &Ran,
    asked: &Asked<'_>,
    names: &GuestNames,
) -> ExitCode {
    if report.waits > 0 {
        let times = if report.waits == 1 { "once".to_owned() } else { format!("{} times", report.waits) };
        note(format_args!("a CPU waited {times} because hits were not read fast enough"));
    }
    if report.log_lost > 0 {
        say(format_args!(
            "{} records of the kernel's log were gone before they were read: reports may be missing",
            report.log_lost
        ));
    }
    for Unread { module, reason } in &report.unread {
        note(format_args!("stacks through the module `{module}` are guessed: {reason}"));
    }
    if let Some(failed) = (RunsLine { codes: runs.clone() }).failed() {
        say(failed);
    }
    let writes = report.guard.as_ref().map_or(0, |guard| guard.findings);
    if writes > 0 {
        say(match writes {
            1 => "the guard has found a write that is none of the kernel's own changes".to_owned(),
            _ => format!("the guard has found {writes} writes that are none of the kernel's own changes"),
        });
    }
    if asked.scanned > 0 {
        say(match asked.scanned {
            1 => "scans of the memory have found a thing that an attacker may have changed".to_owned(),
            count => {
                format!("scans of the memory have found {count} things that an attacker may have changed")
            }
        });
    }
    let findings = writes + asked.scanned;
    match &report.end {
        Outcome::Guarded => {
            match asked.ending_rules.join(", ") {
                rules if rules.is_empty() => say(&report.end),
                rules => say(format_args!("{} (rule {rules})", report.end)),
            }
            let is_blind = asked.is_blind && findings == 0;
            ExitCode::from(if is_blind { exit_codes::INFRASTRUCTURE } else { exit_codes::DIED })
        }
        Outcome::PoweredOff | Outcome::Reset | Outcome::Quit | Outcome::Stopped => {
            let mut complaints = unarmed::complaints(&report.probes, &asked.patterns, asked.allow_pending);
            complaints.extend(asked.gates.iter().filter_map(unreached));
            // Who began with a later call knows what the others came to.
            let injections = asked.injections.iter().filter(|_| nth.is_empty());
            complaints.extend(injections.filter_map(InjectionEnd::untried));
            complaints.extend(assisted.complaints.iter().cloned());
            if report.guard.as_ref().is_some_and(|guard| guard.pages.is_none()) {
                complaints
                    .push("the kernel was not guarded: it did not come to its first program".to_owned());
            }
            complaints.iter().for_each(say);
            match (command, complaints.is_empty()) {
                _ if asked.have_splats_failed || findings > 0 => ExitCode::from(exit_codes::DIED),
                _ if asked.is_blind => ExitCode::from(exit_codes::INFRASTRUCTURE),
                (Some(Some(exit)), _) if exit.code() != 0 => ExitCode::from(exit.code()),
                // It was not begun, or its end is not known.
                (Some(None), _) => ExitCode::from(exit_codes::INFRASTRUCTURE),
                (None, true) => ExitCode::from(assisted.exit.unwrap_or(0)),
                (_, true) => ExitCode::SUCCESS,
                (_, false) => ExitCode::from(exit_codes::UNARMED),
            }
        }
        Outcome::Signal(signal) => {
            say(format_args!("ended by signal {signal}"));
            ExitCode::from(128u8.wrapping_add(*signal as u8))
        }
        Outcome::TimedOut(stands) => {
            let seconds = report.ran.as_secs_f64();
            say(format_args!(
                "the guest was ended after {seconds:.0} s (--timeout){}",
                at_the_end(command, *waited_for)
            ));
            say_stands(stands, names);
            ExitCode::from(exit_codes::TIMEOUT)
        }
        Outcome::Died(_) if *are_files_lost => ExitCode::from(exit_codes::INFRASTRUCTURE),
        Outcome::Died(death) => {
            say_death(death, names);
            ExitCode::from(exit_codes::DIED)
        }
    }
}

/// What a guest was doing when its time was over.
fn at_the_end(command: &Option<Option<CommandExit>>, waited_for: Option<&str>) -> String {
    match (command, waited_for) {
        (None, _) => String::new(),
        (Some(_), Some(what)) => format!(": its command had not begun, and was waiting for {what}"),
        (Some(_), None) => ": its command had not ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_out_says_whether_the_command_had_begun() {
        assert_eq!(at_the_end(&None, None), "");
        assert_eq!(at_the_end(&Some(None), None), ": its command had not ended");
        let waited = at_the_end(&Some(None), Some("its kernel"));
        assert_eq!(waited, ": its command had not begun, and was waiting for its kernel");
    }
}
