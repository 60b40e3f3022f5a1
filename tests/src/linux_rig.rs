//! A Debian guest in the test's own process, through the library as its users have it.

mod console;

pub use console::Console;

use crate::host::fit;
use crate::kernel::under_test;
use guest_kernels::Cache;
use guest_kernels::console::{EMULATOR_AT_FAULT, complaint, number};
use guest_kernels::initramfs::{ExtraFile, overlay};
use probe_engine::addr::Gva;
use probe_engine::guard::sealed::SealedKernel;
use probe_engine::insn::decode::{instructions, text};
use probe_engine::insn::plan::{StepPlan, plan, skip_endbr};
use probe_engine::linux::ftrace_site::FTRACE_SITE;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::splat::impossible_interrupt;
use probe_engine::linux::unwind::KernelCode;
use probe_engine::probe::place::{SiteInfo, in_kernel};
use probe_engine::probe::table::ProbeId;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use vmm::events::Event;
use vmm::guard::{Finding, Guarding, OnWrite};
use vmm::guest::{Host, Optimize, Terminal};
use vmm::probe::Probe;
use vmm::session::{Command, ErrandError, Handle, Held, Next, Outcome, ProbeReport, Report, Sink};

/// How long a guest may take. Only one that hangs takes it.
const PATIENCE: Duration = Duration::from_secs(300);

/// A script that a guest's shell runs as the step `sh:/gate`: it waits until [`Console::open_gate`].
const GATE: &str = "read line\n";

/// A kernel that guests run.
pub struct Subject {
    /// All that is known about it.
    pub kernel: Arc<Kernel>,
    landmarks: Landmarks,
}

/// An instruction of a kernel.
pub struct Instruction {
    /// `function+0x10`.
    pub place: String,
    /// In Intel syntax.
    pub text: String,
    /// What is known about it, at link-time addresses.
    pub info: SiteInfo,
    /// Whether a copy of it runs instead; it is emulated otherwise.
    pub is_copied: bool,
}

/// The kernel under test. A variable such as `VMM_GUEST_KERNEL_6_12` may say where its file is, otherwise it is in the
/// cache.
pub fn subject() -> &'static Subject {
    static SUBJECT: OnceLock<Subject> = OnceLock::new();
    SUBJECT.get_or_init(|| {
        let wanted = under_test();
        let image = read(&wanted.variable(), || Cache::open().unwrap().kernel(wanted).unwrap().image);
        let kernel = Arc::new(Kernel::read(&image, None).unwrap());
        Subject { landmarks: Landmarks::of(&kernel), kernel }
    })
}

/// The guest's initramfs: the file that `VMM_GUEST_INITRD` names, or that of the cache.
fn initrd() -> Vec<u8> {
    read("VMM_GUEST_INITRD", || Cache::open().unwrap().initramfs().unwrap())
}

/// The module `name` of the kernel under test. A variable such as `VMM_GUEST_MODULE_DUMMY` may say where its file is, otherwise it is in
/// the cache.
pub fn module(name: &str) -> Vec<u8> {
    let cached = || {
        let kernel = Cache::open().unwrap().kernel(under_test()).unwrap();
        kernel.guest_module(name).unwrap().to_owned()
    };
    read(&format!("VMM_GUEST_MODULE_{}", name.to_uppercase()), cached)
}

fn read(variable: &str, cached: impl FnOnce() -> PathBuf) -> Vec<u8> {
    fs::read(std::env::var_os(variable).map_or_else(cached, PathBuf::from)).unwrap()
}

impl Subject {
    /// The instructions of `function` that can be probed, as far as the kernel's file tells.
    pub fn instructions(&self, function: &str) -> Vec<Instruction> {
        let (start, bytes) = self.text(function);
        let all = instructions(bytes, start).filter_map(|instruction| {
            let offset = instruction.ip() - start.0;
            let info = in_kernel(start.add(offset), &self.kernel).ok()?;
            let plan = plan(&bytes[offset as usize..], info.at, None, info.fixup).ok()?;
            Some(Instruction {
                place: format!("{function}+{offset:#x}"),
                text: text(&instruction),
                info,
                is_copied: matches!(plan, StepPlan::OutOfLine(_)),
            })
        });
        all.collect()
    }

    /// The place behind ftrace's site at the entry of `function`.
    pub fn behind_site(&self, function: &str) -> String {
        let (start, bytes) = self.text(function);
        let site = skip_endbr(bytes, start).add(FTRACE_SITE);
        format!("{function}+{:#x}", site.offset_from(start).unwrap())
    }

    /// The place where the first call of `callee` in `function` returns to.
    pub fn behind_call(&self, function: &str, callee: &str) -> String {
        let (start, bytes) = self.text(function);
        let callee = self.kernel.symbol(callee).unwrap();
        let mut calls = instructions(bytes, start).filter(|instruction| instruction.is_call_near());
        let call = calls.find(|call| call.near_branch_target() == callee.0).unwrap();
        format!("{function}+{:#x}", call.next_ip() - start.0)
    }

    /// Where a function is, and its text.
    fn text(&self, function: &str) -> (Gva, &[u8]) {
        let range = self.kernel.function(self.kernel.symbol(function).unwrap()).unwrap();
        (range.start, self.kernel.image().bytes(&range).unwrap())
    }

    /// The first instruction of `function` that `is` the one looked for.
    #[track_caller]
    pub fn find(&self, function: &str, is: impl Fn(&Instruction) -> bool) -> Instruction {
        let found = self.instructions(function).into_iter().find(is);
        found.unwrap_or_else(|| panic!("{function} has no such instruction"))
    }
}

/// A guest that has not started.
pub struct Guest {
    fit: &'static Host,
    /// What it runs.
    pub subject: &'static Subject,
    cpus: u8,
    cmdline: &'static str,
    patience: Duration,
    files: Vec<ExtraFile>,
    unwind: Option<Arc<KernelCode>>,
    optimize: Optimize,
    fall_back: bool,
    asleep: Duration,
    stuck: Duration,
    keeps_events: bool,
    guard: Option<OnWrite>,
    probes: Vec<Probe>,
}

impl Guest {
    /// A guest with one vCPU. `None`, and a line that says why, where no guest can run.
    pub fn new() -> Option<Self> {
        let fit = fit()?;
        Some(Self {
            fit,
            subject: subject(),
            cpus: 1,
            cmdline: "",
            patience: PATIENCE,
            files: Vec::new(),
            unwind: None,
            optimize: Optimize::Off,
            fall_back: false,
            asleep: Duration::ZERO,
            stuck: Duration::ZERO,
            keeps_events: true,
            guard: None,
            probes: Vec::new(),
        })
    }

    /// With so many vCPUs.
    pub fn cpus(mut self, cpus: u8) -> Self {
        self.cpus = cpus;
        self
    }

    /// With more words on its kernel's command line.
    pub fn cmdline(mut self, words: &'static str) -> Self {
        self.cmdline = words;
        self
    }

    /// May take so long.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// With a script for the step `sh:/script`.
    pub fn script(mut self, text: &'static str) -> Self {
        self.files.push(file("script", text));
        self
    }

    /// With this program as the file `/NAME`.
    pub fn program(mut self, name: &str, bytes: &[u8]) -> Self {
        self.files.push(ExtraFile { path: name.to_owned(), mode: 0o755, bytes: bytes.to_owned() });
        self
    }

    /// With the module `name` of its kernel as the file `/NAME.ko`.
    pub fn module(self, name: &str) -> Self {
        let module = module(name);
        self.module_file(name, module)
    }

    /// With this module as the file `/NAME.ko`.
    pub fn module_file(mut self, name: &str, module: Vec<u8>) -> Self {
        self.files.push(file(&format!("{name}.ko"), module));
        self
    }

    /// Whose stacks can be told.
    pub fn unwind(mut self) -> Self {
        self.unwind = Some(Arc::new(KernelCode::of(&self.subject.kernel).unwrap()));
        self
    }

    /// Whose kernel is guarded.
    pub fn guard(self, on_write: OnWrite) -> Self {
        Self { guard: Some(on_write), ..self.unwind() }
    }

    /// Whose probes are served by detours where they can be.
    pub fn optimize(mut self) -> Self {
        self.optimize = Optimize::Auto;
        self
    }

    /// Whose return probes go on by traps where detours can follow no more calls.
    pub fn fall_back(mut self) -> Self {
        self.fall_back = true;
        self
    }

    /// Whose events nobody reads for so long after the first.
    pub fn asleep(mut self, time: Duration) -> Self {
        self.asleep = time;
        self
    }

    /// Whose reader takes no events for so long after the first.
    pub fn stuck(mut self, time: Duration) -> Self {
        self.stuck = time;
        self
    }

    /// Whose events are counted and not kept.
    pub fn counting(mut self) -> Self {
        self.keeps_events = false;
        self
    }

    /// With a probe. They are numbered in the order in which they are given.
    pub fn probe(mut self, probe: impl Into<Probe>) -> Self {
        self.probes.push(probe.into());
        self
    }

    /// Runs the workload `steps` to the end.
    #[track_caller]
    pub fn run(self, steps: &str) -> Ended {
        self.run_with(steps, |_, _| ())
    }

    /// The same, while `act` uses the session's handle on a thread of its own.
    #[track_caller]
    pub fn run_with(self, steps: &str, act: impl FnOnce(&Handle, &Console) + Send) -> Ended {
        let Self { fit, subject, cpus, cmdline, patience, files, unwind, .. } = self;
        let Self { optimize, fall_back, asleep, stuck, keeps_events, guard, probes, .. } = self;
        let (typed, typing) = io::pipe().unwrap();
        let console = Console::new(typing);
        let initrd = [initrd(), overlay(files.into_iter().chain([file("gate", GATE)])).unwrap()].concat();
        // On a busy machine one driver alone computes for half a minute: a lock-up is twice that.
        let fixed = "console=ttyS0 quiet loglevel=5 panic=-1 watchdog_thresh=30";
        let guest = vmm::guest::Guest::resolved(None, subject.landmarks.clone())
            .symbols(subject.kernel.clone())
            .initrd(&initrd)
            .whole_cmdline(&format!("{fixed} {cmdline} workload={steps}"))
            .cpus(cpus)
            .memory(256 << 20)
            .names(unwind.is_some())
            .unwind(unwind)
            .optimize(optimize)
            .fall_back(fall_back)
            .guard(guard.map(|on_write| {
                let kernel = SealedKernel::of(&subject.kernel).unwrap();
                Guarding { kernel, on_write, scanned_every: None }
            }))
            .terminal(Terminal {
                out: Box::new(console.clone()),
                input: Some(std::os::fd::OwnedFd::from(typed).into()),
                interactive: false,
            });
        let mut session = fit.session(guest).unwrap();
        session.register_all(probes).unwrap();
        let handle = session.handle();
        let mut events = Events {
            kept: Vec::new(),
            holds: Vec::new(),
            findings: Vec::new(),
            read: 0,
            keeps: keeps_events,
            asleep,
            stuck,
            until: None,
        };
        let report = thread::scope(|scope| {
            let watchdog = scope.spawn({
                let (console, handle) = (&console, handle.clone());
                move || console.watch(&handle, patience)
            });
            let acting = scope.spawn(|| {
                let stop_on_panic = StopOnPanic(handle.clone());
                act(&handle, &console);
                drop(stop_on_panic);
            });
            let report = session.run(&mut events);
            console.close();
            let acted = acting.join();
            let hung = watchdog.join().unwrap();
            let text = console.text();
            if let Some(entry) = impossible_interrupt(&text) {
                println!(
                    "{entry} has interrupted the guest where no processor does that, {EMULATOR_AT_FAULT}"
                );
            }
            assert!(!hung, "the guest hung:\n{text}");
            let report = report.unwrap();
            assert!(acted.is_ok(), "see above; the guest {:?}; the console:\n{text}", report.end);
            report
        });
        let Events { kept, holds, findings, read, .. } = events;
        Ended { console: console.text(), report, events: kept, holds, findings, read }
    }
}

fn file(path: &str, bytes: impl Into<Vec<u8>>) -> ExtraFile {
    ExtraFile { path: path.to_owned(), mode: 0o644, bytes: bytes.into() }
}

/// A test that has failed does not wait for its guest.
struct StopOnPanic(Handle);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        /// Whoever asks such a guest for an errand is told so at once.
        const SOON: Duration = Duration::from_millis(1);
        if !thread::panicking() {
            return;
        }
        // A kernel that panics says why, and its guest ends by itself.
        if !matches!(self.0.errand(SOON, |_| Next::Done(())), Err(ErrandError::Panicked)) {
            let _ = self.0.command(Command::Stop);
        }
    }
}

/// Keeps all events or counts them, and sleeps so long over the first.
struct Events {
    kept: Vec<Event>,
    holds: Vec<Held>,
    findings: Vec<Finding>,
    read: u64,
    keeps: bool,
    asleep: Duration,
    /// How long it takes none after the first, and until when.
    stuck: Duration,
    until: Option<Instant>,
}

impl Sink for Events {
    fn is_ready(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        thread::sleep(std::mem::take(&mut self.asleep));
        self.until.get_or_insert(Instant::now() + self.stuck);
        self.read += events.len() as u64;
        if self.keeps {
            self.kept.extend_from_slice(events);
        }
        Ok(())
    }

    fn held(&mut self, held: &Held) {
        self.holds.push(held.clone());
    }

    fn findings(&mut self, findings: &[Finding]) -> io::Result<()> {
        self.findings.extend_from_slice(findings);
        Ok(())
    }
}

/// A guest that has ended.
#[derive(Debug)]
pub struct Ended {
    /// What it printed.
    pub console: String,
    /// What the session said.
    pub report: Report,
    /// What was written down, where it is kept.
    pub events: Vec<Event>,
    /// What became of CPUs that were held.
    pub holds: Vec<Held>,
    /// What its guard has found.
    pub findings: Vec<Finding>,
    /// How much was written down.
    pub read: u64,
}

impl Ended {
    /// Fails unless the guest came to its end in order and its kernel did not complain.
    #[track_caller]
    pub fn assert_in_order(&self) {
        assert_eq!(self.report.end, Outcome::PoweredOff, "{}", self.console);
        assert_eq!(complaint(&self.console), None, "{}", self.console);
    }

    /// The number behind `key=` in the workload's line that begins with `line`.
    #[track_caller]
    pub fn workload(&self, line: &str, key: &str) -> u64 {
        let number = number(&self.console, line, key);
        number.unwrap_or_else(|| panic!("no `{line}` with {key} in:\n{}", self.console))
    }

    /// What was seen of the probe that was given as number `n`, from 0 on.
    #[track_caller]
    pub fn probe(&self, n: u32) -> &ProbeReport {
        self.report.probes.iter().find(|probe| probe.id.0 == n).unwrap()
    }

    /// The events of a probe, those of each task together and in their order. In which order two places see the tasks is the
    /// scheduler's business: a kernel may switch between the two.
    pub fn by_task(&self, probe: ProbeId) -> Vec<&Event> {
        let mut events: Vec<_> = self.events.iter().filter(|event| event.probe == probe).collect();
        events.sort_by_key(|event| event.task.as_ref().map(|task| task.at));
        events
    }

    /// Its hits.
    #[track_caller]
    pub fn hits(&self, n: u32) -> u64 {
        self.probe(n).hits
    }
}
