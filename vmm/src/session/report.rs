//! What a run came to.

use crate::gate::GateReport;
use crate::guard::GuardReport;
use crate::injector::InjectionReport;
use crate::samples::SampledTime;
use crate::stack::Stack;
use probe_engine::addr::Gva;
use probe_engine::capture::tally::Group;
use probe_engine::linux::locks::LockKind;
use probe_engine::linux::names::ModuleNames;
use probe_engine::linux::task::Task;
use probe_engine::probe::pace::{GateId, HoldMode};
use probe_engine::probe::table::ProbeId;
use probe_engine::probe::turns::TurnsReport;
use probe_engine::regs::Regs;
use probe_engine::system_regs::SystemRegs;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

/// Everything there is to say when the guest has ended.
#[derive(Debug)]
pub struct Report {
    /// How it ended.
    pub end: Outcome,
    /// What the probes saw, in order of registration.
    pub probes: Vec<ProbeReport>,
    /// What hits came to that were counted for a [histogram](crate::probe::Probe::histogram) in the guest, in the order of
    /// their first hits.
    pub groups: Vec<(ProbeId, Group)>,
    /// What probes saw that were unregistered before the end, in the order in which they went.
    pub removed: Vec<ProbeReport>,
    /// The same, summed up.
    pub unregistered: Unregistered,
    /// Commands of handlers that could not be carried out.
    pub refused: Refused,
    /// What the time of the guest's CPUs was spent on, where it was [sampled](crate::guest::Guest::sampling).
    pub sampled: Option<SampledTime>,
    /// What the guard has seen, where the guest was [guarded](crate::guest::Guest::guard).
    pub guard: Option<GuardReport>,
    /// What the gates came to at which tasks were [held](probe_engine::probe::pace::Pace::Hold).
    pub gates: Vec<GateReport>,
    /// What the order came to that was [imposed](super::Session::impose).
    pub turns: Option<TurnsReport>,
    /// What the injections came to, by which calls [fail](probe_engine::probe::inject::Inject::Fail).
    pub injections: Vec<InjectionReport>,
    /// Modules whose tables could not be read: stacks through them were guessed.
    pub unread: Vec<Unread>,
    /// How often a vCPU waited because hits were not read fast enough.
    pub waits: u64,
    /// Records of the kernel's log that were gone before anyone had read them, so that reports may be missing.
    pub log_lost: u64,
    /// How often its CPUs have left the guest, for KVM or for us, where KVM counts that.
    pub exits: Option<u64>,
    /// How long the guest ran.
    pub ran: Duration,
    /// How long it took to restore its text at the end.
    pub disarmed_in: Duration,
}

impl Report {
    /// What a probe saw that was registered at the end.
    #[must_use]
    pub fn probe(&self, id: ProbeId) -> Option<&ProbeReport> {
        self.probes.iter().find(|probe| probe.id == id)
    }
}

/// A module whose table cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Its name.
    pub module: String,
    /// Why.
    pub reason: String,
}

/// One probe's line of the summary.
#[derive(Debug, Clone)]
pub struct ProbeReport {
    /// Its number.
    pub id: ProbeId,
    /// `symbol`, `symbol+0x10`, or with its module in front, `dummy:dummy_xmit`.
    pub name: String,
    /// What kind of probe it is.
    pub kind: ProbeKind,
    /// The module that it is in; `None` for the kernel itself.
    pub module: Option<String>,
    /// Guest-virtual address at which it stands or stood. If it never did: the address at which it was linked, and
    /// 0 in a module.
    pub address: Gva,
    /// Its own switch. It stands only if all may stand, too.
    pub enabled: bool,
    /// Hits, or returns, that reached their handlers and the sink.
    pub hits: u64,
    /// Passes and calls that were not in its [scope](crate::probe::Probe::within).
    pub outside: u64,
    /// What was missed, and why.
    pub missed: Missed,
    /// Calls that a return probe follows at this moment.
    pub outstanding: usize,
    /// The places that it stands for, if it [stands for several](probe_engine::linux::program_place::InFile::is_several) and they are
    /// known.
    pub places: Vec<PlaceReport>,
    /// Why it stands on a trap and not on a detour, where detours are wanted.
    pub trapped: Option<String>,
    /// Whether it has stood in the guest at some time.
    pub has_stood: bool,
    /// What became of it.
    pub state: ProbeState,
}

/// One of several places that a probe stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceReport {
    /// What is there in its file: a function, or how many bytes from the start it is.
    pub place: String,
    /// Hits that were there, those included that were not handed on.
    pub hits: u64,
    /// Why it is not probed, where it cannot be.
    pub refused: Option<String>,
}

/// What has become of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeState {
    /// The guest has not come far enough to arm it.
    Waiting,
    /// The guest has not loaded this module.
    Pending(String),
    /// The guest has no such file of a program.
    NoFile(String),
    /// A trap byte stands for it at this guest-virtual address, or a debug register watches it.
    Armed(Gva),
    /// A jump to a detour stands for it at this guest-virtual address: its hits cost no exit.
    Optimized(Gva),
    /// It is disabled, or all are disarmed.
    Disabled,
    /// The guest's ftrace works on the text here, and no probe can stand behind it.
    DisplacedByFtrace(Gva),
    /// The live text did not allow it; why.
    Refused(String),
    /// It stood here until the guest freed the text.
    Gone(Gva),
    /// It stood here until the guest changed the text under it.
    Overwritten(Gva),
    /// Only its first hit counted, and that was here.
    Spent(Gva),
    /// A handler of it panicked, with these words.
    Broken(String),
}

/// The sum of what unregistered probes saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unregistered {
    /// How many they were.
    pub probes: u64,
    /// See [`ProbeReport::hits`].
    pub hits: u64,
    /// See [`Missed::hits`].
    pub missed: u64,
    /// See [`Missed::yields`].
    pub yields: u64,
}

/// Commands for whose answer nobody waits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refused {
    /// How many.
    pub commands: u64,
    /// Why the first one was.
    pub first: Option<String>,
}

/// Kinds of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeKind {
    /// On an instruction.
    Instruction,
    /// On the returns of a function.
    Return,
    /// A watch of memory, or of an instruction.
    Watch,
}

/// Hits that were missed, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Missed {
    /// They could not be written down: the sink failed.
    pub output: u64,
    /// The guest's ring was full.
    pub ring: u64,
    /// Their record was begun in the guest's ring and not finished when it ended, or the guest has spoilt the ring.
    pub unfinished: u64,
    /// So many calls were followed already (maxactive).
    pub instance: u64,
    /// The return address could not be replaced, or its call returned elsewhere.
    pub stack: u64,
    /// Memory had to be read for them while the CPU did so for another hit, or had too little stack; or their filter asked for
    /// more of a string than a detour keeps.
    pub unread: u64,
    /// How often the guest worked on the text with no room for the probe behind it. How many hits that cost,
    /// nobody knows.
    pub yields: u64,
}

impl AddAssign for Missed {
    fn add_assign(&mut self, more: Self) {
        let Self { output, ring, unfinished, instance, stack, unread, yields } = more;
        self.output += output;
        self.ring += ring;
        self.unfinished += unfinished;
        self.instance += instance;
        self.stack += stack;
        self.unread += unread;
        self.yields += yields;
    }
}

impl Missed {
    /// Hits that are known to be missed.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.output + self.ring + self.unfinished + self.instance + self.stack + self.unread
    }
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// ACPI power off.
    PoweredOff,
    /// A reset by the guest.
    Reset,
    /// The user quit at the console.
    Quit,
    /// A command or a handler ended it.
    Stopped,
    /// It wrote to sealed memory, and was [not to go on](crate::guard::OnWrite::Stop).
    Guarded,
    /// We got this signal.
    Signal(i32),
    /// It took [longer](crate::guest::Guest::timeout) than it may. Where all stood then.
    TimedOut(Stands),
    /// The guest died.
    Died(Death),
}

/// What has happened to the guest, as a sentence.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PoweredOff => f.write_str("the guest switched the machine off"),
            Self::Reset => f.write_str("the guest reset the machine"),
            Self::Quit => f.write_str("the guest was ended at its console"),
            Self::Stopped => f.write_str("the guest was stopped"),
            Self::Guarded => f.write_str("the guest was stopped by its guard"),
            Self::Signal(signal) => write!(f, "the guest was ended by signal {signal}"),
            Self::TimedOut(_) => f.write_str("the guest was ended when its time was over"),
            Self::Died(death) => death.fmt(f),
        }
    }
}

/// Where the guest stood.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stands {
    /// Each vCPU.
    pub cpus: Vec<Stood>,
    /// Tasks that slept until what they wait for would have come: a few of them.
    pub sleepers: Vec<Sleeper>,
}

/// A task that slept until what it waits for would have come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sleeper {
    /// The task.
    pub task: Task,
    /// Who had called, where the kernel's stacks can be walked.
    pub stack: Option<Stack>,
    /// The lock that it waited for, if it was one that can be told.
    pub lock: Option<AwaitedLock>,
}

/// A lock that a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedLock {
    /// Where it is (GVA).
    pub at: Gva,
    /// What it is.
    pub kind: LockKind,
    /// Who has it, if that is known: whoever only reads is not.
    pub owner: Option<Task>,
}

/// Where a vCPU stood in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stood {
    /// Where it would have gone on (GVA).
    pub rip: Gva,
    /// Its registers, where it is between two instructions of the guest.
    pub regs: Option<Regs>,
    /// Its other registers, where those are known.
    pub system: Option<SystemRegs>,
    /// Whether it waited for what no interrupt brings.
    pub is_halted: bool,
    /// Who had called, where the kernel's stacks can be walked.
    pub stack: Option<Stack>,
    /// The task on whose stack it was, if that can be told.
    pub task: Option<Task>,
    /// The lock that this task waited for without sleeping, if it was one that can be told.
    pub lock: Option<AwaitedLock>,
}

impl Stood {
    /// One of which nothing else is known than where it would go on.
    pub(super) fn at(rip: Gva) -> Self {
        Self { rip, regs: None, system: None, is_halted: false, stack: None, task: None, lock: None }
    }
}

/// Where the guest's CPUs stand at a moment, and what gives names to addresses then.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Each vCPU.
    pub cpus: Vec<Stood>,
    /// What KASLR added to the kernel's link-time addresses, once that is known.
    pub slide: Option<u64>,
    /// The modules that are loaded, where the session knows [names](crate::guest::Guest::names).
    pub modules: Vec<Arc<ModuleNames>>,
}

/// A task that was held went on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Where it was held.
    pub gate: GateId,
    /// The probe that held it.
    pub probe: ProbeId,
    /// The CPU.
    pub vcpu: usize,
    /// The task that ran, if it can be told.
    pub task: Option<Task>,
    /// Since when: nanoseconds since the guest was started.
    pub nanos: u64,
    /// The same by the guest's own clock, as [`Event::guest_nanos`](crate::events::Event::guest_nanos).
    pub guest_nanos: Option<u64>,
    /// For how long, in nanoseconds.
    pub waited: u64,
    /// What its CPU did meanwhile.
    pub mode: HoldMode,
    /// Why it went on.
    pub end: HoldEnd,
}

/// Why a task that was held went on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldEnd {
    /// This CPU has opened the gate.
    Opened {
        /// Its number.
        by: usize,
    },
    /// Somebody has let it go by a [`Handle`](super::Handle::release).
    Released,
    /// Its time was over. Where all stood then.
    TimedOut(Stands),
}

/// A task that is held at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldNow {
    /// Where.
    pub gate: GateId,
    /// The probe that holds it.
    pub probe: ProbeId,
    /// The CPU on which it came.
    pub vcpu: usize,
    /// The task, if it can be told.
    pub task: Option<Task>,
    /// For how long, in nanoseconds.
    pub waited: u64,
}

/// How a guest dies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Death {
    /// `panic()` was called.
    #[error("the guest panicked: {message}")]
    Panic {
        /// As the guest has formatted it, or its format string, where the guest did not come so far.
        message: String,
        /// At the entry of `panic`.
        regs: Regs,
        /// Who called it, where the kernel's stacks can be walked.
        stack: Option<Box<Stack>>,
    },
    /// All of its CPUs are halted with interrupts off, or were never started: nothing will ever happen.
    #[error("the guest has halted for good without switching the machine off")]
    Halted(Stands),
    /// It reset itself before its boot was over, which kernels do when they panic early.
    #[error("the guest reset itself before its kernel had started; its console may say why")]
    EarlyReset,
    /// A triple fault. KVM on AMD resets the vCPU before it says so: the registers are then those of a reset.
    #[error("the guest's CPU met a triple fault (on AMD, KVM has reset its registers since)")]
    TripleFault(Regs),
    /// KVM could not go on.
    #[error("the guest cannot run on: {words}")]
    Failed {
        /// What KVM reported.
        words: String,
        /// Where.
        regs: Regs,
    },
    /// The way to its kernel was lost, so that its probes cannot be armed.
    #[error("the guest's kernel could not be followed to its start: {0}")]
    Lost(String),
}

impl Death {
    /// Who called where it died, if that is known.
    #[must_use]
    pub fn stack(&self) -> Option<&Stack> {
        match self {
            Self::Panic { stack, .. } => stack.as_deref(),
            _ => None,
        }
    }

    /// The last registers that are known.
    #[must_use]
    pub fn regs(&self) -> Option<&Regs> {
        match self {
            Self::Panic { regs, .. } | Self::TripleFault(regs) | Self::Failed { regs, .. } => Some(regs),
            Self::Halted(_) | Self::EarlyReset | Self::Lost(_) => None,
        }
    }

    /// Where all stood, where the guest has halted.
    #[must_use]
    pub fn stands(&self) -> Option<&Stands> {
        match self {
            Self::Halted(stands) => Some(stands),
            _ => None,
        }
    }
}
