//! One guest from start to end, with its probes.
//!
//! A guest whose kernel cannot open one file, and a count of how often it tried to:
//!
//! ```no_run
//! use vmm::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::open()?;
//! let (image, initrd) = (std::fs::read("bzImage")?, std::fs::read("initrd.img")?);
//! let mut session = host.session(Guest::new(&image)?.initrd(&initrd).cpus(2))?;
//! let deny = session.register(Probe::at("do_filp_open").pre(|hit| {
//!     // `struct filename` begins with a pointer to the path.
//!     let path = hit.memory.read_u64(Gva(hit.regs.rsi)).and_then(|name| hit.string(Gva(name), 256));
//!     if path.as_deref() == Ok(b"/etc/shadow") {
//!         let _ = hit.fail(Errno::IO);
//!     }
//! }))?;
//! let report = session.run(&mut ())?;
//! if let Some(probe) = report.probe(deny) {
//!     println!("{}: {} hits, {} missed; {}", probe.name, probe.hits, probe.missed.hits(), report.end);
//! }
//! # Ok(())
//! # }
//! ```

mod arming;
mod attend;
mod control;
mod counters;
mod debugging;
mod detours;
mod errands;
mod guarding;
mod guests_own;
mod handle;
mod held;
mod holds;
mod hooks;
mod instance_exhaustion;
mod kept_console;
mod kernel_log;
mod keys;
mod looks;
mod modules;
mod occupancy;
mod patches;
mod patience;
mod placing;
mod postponed;
mod programs;
mod reasons;
mod registry;
mod relocation;
mod removed;
mod report;
mod resolver;
mod scanning;
mod sending;
mod sites;
mod spent;
mod stage;
mod standing;
mod stands;
mod standstill;
mod stop;
mod stopped;
mod switching;
mod text;
mod tracepoints;
mod unstopped;
mod watches;

pub use crate::errands::{Next, Worker};
pub use crate::gate::{GateReport, Gates, LONGEST_WAIT};
pub use crate::injector::{InjectionReport, Injector};
pub use crate::probe::Command;
pub use counters::{Counters, Durations};
pub use handle::{
    Answer, CommandError, DebugError, ErrandError, Handle, PhysicalError, ReadError, StandsFor,
};
pub(crate) use keys::{Keys, Typed};
pub use probe_engine::errand::Call;
pub use report::{
    AwaitedLock, Death, Held, HeldNow, HoldEnd, Missed, Outcome, PlaceReport, ProbeKind, ProbeReport,
    ProbeState, Refused, Report, Sleeper, Standing, Stands, Stood, Unread, Unregistered,
};
pub use resolver::RegisterError;
pub use scanning::{AfterScan, StoodStill};
pub use stage::StageError;
pub use stopped::{KernelPlace, StopCause, Stopped};

use crate::boot::{self, BootError, Payload};
use crate::clock::{self, Clock};
use crate::devices::virtio::Plugged;
use crate::devices::{Devices, console::SerialConsole};
use crate::errands::Errands;
use crate::events::{self, Event};
use crate::guard::{Finding, Guard};
use crate::guest::{Guest, Host};
use crate::kernel_view::KernelView;
use crate::kvm::{KvmVcpu, Machine, MachineError};
use crate::layout;
use crate::memory::{GuestRam, OutOfMemory};
use crate::own_thread::OwnThread;
use crate::probe::{Member, MemberError, Probe};
use crate::reserved::TRAMPOLINES;
use crate::samples::{self, Sample};
use crate::vcpu::{Mailbox, Spent, Vcpu, VcpuTables, World};
use arming::Arming;
use control::{Control, PauseCause, Threads};
use detours::Detours;
use handle::Message;
use hooks::GuestHooks;
use kept_console::{ConsoleBytes, KeptConsole};
use kernel_log::KernelLog;
use modules::Ledger;
use probe_engine::linux::names::ModuleNames;
use probe_engine::linux::splat::Splat;
use probe_engine::probe::inject::InjectionId;
use probe_engine::probe::table::ProbeId;
use probe_engine::probe::turns::ObservedTurns;
use programs::Programs;
use registry::Registry;
use resolver::Resolver;
use scanning::Scanning;
use sending::Sending;
use stage::Stage;
use standstill::Standstill;
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use tracepoints::Tracepoints;
use vmm_sys_util::errno;
use vmm_sys_util::eventfd::EventFd;

/// Who is told about events, on the control thread.
pub trait Sink {
    /// Whether it takes events without waiting. While it does not, they are kept where they are, and a CPU of the guest
    /// waits that has no room for more; signals, commands and keys are served. At the end of the run it is not asked.
    fn is_ready(&self) -> bool {
        true
    }

    /// The guest is started: the times of events count from now.
    fn started(&mut self) {}

    /// Events of probes that [record](Probe::record), in order of time.
    ///
    /// # Errors
    /// When they cannot be kept; they are then counted as missed, and the sink is not called again.
    fn events(&mut self, events: &[Event]) -> io::Result<()>;

    /// Samples, where the guest is [sampled](Guest::sampling), in order of time. Hits from before may come later.
    ///
    /// # Errors
    /// As [`events`](Self::events).
    fn samples(&mut self, samples: &[Sample]) -> io::Result<()> {
        let _ = samples;
        Ok(())
    }

    /// Somebody has written to sealed memory, or has tried to, where the guest is [guarded](Guest::guard). Hits from before may come
    /// later.
    ///
    /// # Errors
    /// As [`events`](Self::events).
    fn findings(&mut self, findings: &[Finding]) -> io::Result<()> {
        let _ = findings;
        Ok(())
    }

    /// From now on, and in the events that follow, addresses mean this: the kernel runs `slide` bytes behind where it
    /// was linked, and has these modules. That is said when the kernel has started; where the session is to know
    /// [names](Guest::names), also whenever a module was loaded or is about to be freed. Without them there are no
    /// modules here.
    fn names(&mut self, slide: u64, modules: &[Arc<ModuleNames>]) {
        let _ = (slide, modules);
    }

    /// The guest's kernel has reported that something is wrong with it, where [that](Guest::splats) is wanted: so many
    /// nanoseconds after the guest's start, as far as the guest's clock can be related to that. Says what is to follow.
    fn splat(&mut self, splat: &Splat, nanos: u64) -> AfterSplat {
        let _ = (splat, nanos);
        AfterSplat::GoOn
    }

    /// The guest's kernel panics, or where [that](Guest::before_splats) is wanted, is about to report something, or says
    /// more of what it reports. All events from before were handed on, and no CPU of the guest runs at this moment.
    fn about_to_report(&mut self) {}

    /// A CPU that was [held](probe_engine::probe::pace::Pace::Hold) goes on. The events of the hits before have been handed on.
    fn held(&mut self, held: &Held) {
        let _ = held;
    }

    /// The memory of a [guarded](Guest::guard) guest is to be looked at, while no CPU of the guest runs: first when the kernel has sealed
    /// itself. Says what is to follow.
    fn scan(&mut self, stood: &StoodStill<'_>) -> AfterScan {
        let _ = stood;
        AfterScan::GoOn
    }

    /// The guest has ended, where its kernel came to run.
    fn left(&mut self, stood: &StoodStill<'_>) {
        let _ = stood;
    }

    /// The guest has booted so far that all probes are armed that can be. For that it was `stopped` so long.
    fn armed(&mut self, probes: &[ProbeReport], stopped: Duration) {
        let _ = (probes, stopped);
    }
}

/// What follows from a report of the guest's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterSplat {
    /// The guest goes on.
    GoOn,
    /// All its CPUs stand still until [somebody](Command::Resume) lets them go on. Where that was [wanted](Guest::stops_at_splats)
    /// beforehand, the CPU that has reported is still in the report, for most kinds of these.
    Stop,
}

/// A sink for nothing.
impl Sink for () {
    fn events(&mut self, _: &[Event]) -> io::Result<()> {
        Ok(())
    }
}

/// The guest could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No guest has so many CPUs.
    #[error("a guest has 1 to {most} CPUs, and not {0}", most = Guest::MOST_CPUS)]
    Cpus(u8),
    /// No guest has so much memory, or not whole pages of it.
    #[error("a guest has whole pages of RAM, 1 TiB at most, and not {0} bytes")]
    MemorySize(u64),
    /// What is behind it would be lost without a word.
    #[error("the kernel's command line has a NUL in it")]
    Cmdline,
    /// No memory for it.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// It cannot be put together.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// KVM refused the machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Its boot cannot be followed.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The host is out of descriptors or threads.
    #[error("the host refused {0}")]
    Host(&'static str, #[source] io::Error),
}

impl From<errno::Error> for SessionError {
    fn from(error: errno::Error) -> Self {
        Self::Host("a signal handler", io::Error::from_raw_os_error(error.errno()))
    }
}

/// A guest with its probes, which has not started. It stays on the thread that has opened it, of which its [`Handle`] knows
/// that nobody else starts the guest.
///
/// ```compile_fail,E0277
/// fn sent<T: Send>() {}
/// sent::<vmm::session::Session<'static>>();
/// ```
pub struct Session<'a> {
    host: &'a Host,
    guest: Guest<'a>,
    registry: Registry,
    handle: Handle,
    messages: Receiver<Message>,
    errands: Arc<Errands>,
    wake: Arc<EventFd>,
    /// It is not sent to another thread.
    stays: PhantomData<*const ()>,
}

impl Host {
    /// A session of `guest` on this host, without probes. The guest has not started.
    ///
    /// # Errors
    /// [`SessionError`] when it has a number of CPUs that no guest has, or the host is out of descriptors.
    pub fn session<'a>(&'a self, guest: Guest<'a>) -> Result<Session<'a>, SessionError> {
        if !(1..=Guest::MOST_CPUS).contains(&guest.cpus) {
            return Err(SessionError::Cpus(guest.cpus));
        }
        if !is_ram(guest.memory) {
            return Err(SessionError::MemorySize(guest.memory));
        }
        if guest.cmdline.contains('\0') {
            return Err(SessionError::Cmdline);
        }
        let wake = Arc::new(eventfd()?);
        let resolver = Arc::new(Resolver::new(&guest));
        let errands = Arc::new(Errands::default());
        let (handle, messages) = Handle::open(wake.clone(), resolver.clone());
        let handle = handle.with_errands(errands.clone(), guest.kernel.errands.as_ref().err().cloned());
        let registry = Registry::new(resolver, guest.cpus, self.delivery, TRAMPOLINES);
        Ok(Session { host: self, guest, registry, handle, messages, errands, wake, stays: PhantomData })
    }
}

/// Whether a guest may have so many bytes of RAM.
fn is_ram(bytes: u64) -> bool {
    const PAGE: u64 = 4096;
    (PAGE..=1 << 40).contains(&bytes) && bytes.is_multiple_of(PAGE)
}

impl Session<'_> {
    /// Registers a probe. It is armed as soon as the guest's text is final.
    ///
    /// # Errors
    /// [`RegisterError`], a sentence for the user.
    pub fn register(&mut self, probe: impl Into<Probe>) -> Result<ProbeId, RegisterError> {
        let ids = self.registry.register(vec![probe.into()])?;
        ids.first().copied().ok_or(RegisterError::TooMany)
    }

    /// Registers all of `probes` or none. Their numbers are in their order.
    ///
    /// # Errors
    /// [`RegisterError`] of the first that cannot be registered.
    pub fn register_all(&mut self, probes: Vec<Probe>) -> Result<Vec<ProbeId>, RegisterError> {
        self.registry.register(probes)
    }

    /// Has probes that are registered from now on have their [turns](probe_engine::probe::pace::Pace::Turn) in this order.
    pub fn impose(&mut self, order: ObservedTurns) {
        self.registry.impose(order);
    }

    /// Says which calls of an injection fail, while the guest runs.
    pub fn injector(&mut self, id: InjectionId) -> Arc<Injector> {
        self.registry.injector(id)
    }

    /// Where a member lies in a structure of the guest's kernel, for [`Hit::member`](crate::probe::Hit::member).
    ///
    /// # Errors
    /// [`MemberError`], a sentence for the user.
    pub fn member(&self, structure: &str, path: &str) -> Result<Member, MemberError> {
        Member::find(self.guest.symbols.as_deref().ok_or(MemberError::NoKernel)?, structure, path)
    }

    /// Changes the probes while the guest runs, from other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs the guest to its end, on this thread, which tells `sink` of events.
    ///
    /// Meanwhile SIGINT, SIGTERM, SIGHUP and SIGQUIT do not end this process: they end the guest, with
    /// [`Outcome::Signal`]. One that this process ignores is ignored, and a handler that this process has is called as well: it
    /// is to be installed before the first session runs. Before and afterwards the signals do what they did, and where the guest
    /// [does not end by them](Guest::signals) they do so all the time. SIGRTMIN, the first real-time signal, is the library's own:
    /// it interrupts vCPUs.
    ///
    /// # Errors
    /// [`SessionError`] when it could not be started. How it ended is in the [`Report`].
    pub fn run(self, sink: &mut dyn Sink) -> Result<Report, SessionError> {
        let Self {
            host: Host { hypervisor, delivery },
            guest,
            registry,
            handle,
            messages,
            errands,
            wake,
            stays: _,
        } = self;
        let ram = match &guest.guarding {
            Some(_) => GuestRam::sealable(guest.memory),
            None => GuestRam::new(guest.memory),
        };
        let ram = Arc::new(ram?);
        let scanning =
            guest.guarding.as_ref().and_then(|guarding| guarding.scanned_every).map(Scanning::every);
        let guard = guest.guarding.map(|guarding| Arc::new(Guard::new(guarding, wake.clone())));
        let pci = !guest.extras.is_none();
        let (unwind, symbols) = (guest.unwind.clone(), guest.symbols);
        let unpacked = || symbols.as_ref().map(|kernel| Cow::Borrowed(kernel.image().file()));
        let kernel = guest.image.or_else(unpacked).unwrap_or_default();
        let (initrd, cmdline) = (guest.initrd.as_deref(), &*guest.cmdline);
        let payload = Payload { kernel, boot: &guest.kernel.boot, initrd, cmdline, pci };
        let boot = boot::load(&ram, payload, guest.cpus, hypervisor.has_five_levels())?;
        let machine = Machine::new(hypervisor, ram.clone())?;

        let serial_interrupt = eventfd()?;
        machine.connect_interrupt(&serial_interrupt, layout::COM1_IRQ)?;
        let kept = ConsoleBytes::default();
        let out: Box<dyn Write + Send> = match guest.splats && guest.kernel.printk.is_none() {
            true => Box::new(KeptConsole { out: guest.terminal.out, kept: kept.clone() }),
            false => guest.terminal.out,
        };
        let console = SerialConsole::new(serial_interrupt, out, guest.terminal.interactive);
        let mut devices = Devices::new(console);
        let plugged = Plugged::plug(guest.extras, &machine, &mut devices.bus, guest.confine);
        let _plugged = plugged.map_err(|error| SessionError::Host("the guest's devices", error))?;
        let devices = Arc::new(devices);

        let stage = Stage::first(&guest.kernel, &boot)?;
        let breakpoints = stage::breakpoints(&stage.breakpoints(&guest.kernel)?, [None; 2]);
        let kernel = KernelView { unwind, symbols, ..KernelView::default() };
        let fault_in = guest.kernel.uprobes.as_ref().ok().and_then(|calls| calls.fault_in);
        let errands_of_all = errands.clone();
        let tables =
            VcpuTables { breakpoints, kernel, fault_in, errands: errands_of_all, ..VcpuTables::default() };
        let world = Arc::new(World::new(usize::from(guest.cpus), tables, wake.clone()));
        let (recorders, mut reader) = events::rings(usize::from(guest.cpus));
        let (ends, ended) = mpsc::channel();

        let spent = Spent::default();
        let (mailbox, requests) = Mailbox::open(wake.clone(), spent.clone());
        let kvms = (0..guest.cpus).map(|id| machine.add_vcpu(hypervisor, id, guest.cpus, &boot));
        let kvms = kvms.collect::<Result<Vec<_>, _>>()?;
        reader.follow_detours(ram.clone(), guest.cpus, kvms.first().map_or(0, KvmVcpu::tsc_offset));
        let statistics = kvms.iter().map(KvmVcpu::statistics).collect();
        let clock = Arc::new(Clock::start(kvms.first().and_then(|kvm| kvm.tsc_khz())));
        sink.started();
        let sampling = guest.sampling.map(|sampling| samples::rings(kvms.len(), sampling));
        let (mut samplers, samples) = sampling
            .map_or((Vec::new().into_iter(), None), |(samplers, reader)| {
                (samplers.into_iter(), Some(reader))
            });
        let vcpu = |((id, kvm), recorder)| Vcpu {
            id,
            kvm,
            devices: devices.clone(),
            ram: ram.clone(),
            world: world.clone(),
            recorder,
            sampler: samplers.next(),
            guard: guard.clone(),
            clock: clock.clone(),
            mailbox: mailbox.clone(),
            passed: None,
            step: None,
            was_moved: false,
            area: None,
            ends: ends.clone(),
        };
        let vcpus = (0..).zip(kvms).zip(recorders).map(vcpu).collect();
        if guest.paused {
            world.begin_frozen();
        }
        let threads = Threads::start(vcpus, world.clone(), guest.confine)?;
        let control = Control {
            arming: Arming::new(
                guest.kernel.clone(),
                GuestHooks::new(
                    &guest.kernel,
                    guard.as_ref().map(|guard| guard.kernel().sealed_at),
                    guest.names || guest.unwind.is_some() || guard.is_some(),
                    (guest.before_splats, guest.stops_at_splats),
                ),
                Detours::new(guest.optimize, guest.fall_back, guest.cpus, &guest.kernel),
            ),
            ledger: Ledger::new(guest.unwind.as_ref().map(|kernel| kernel.orc().layout()), guest.names),
            postponed: postponed::Postponed::default(),
            patience: patience::Patience::default(),
            sweep: spent::Sweep::new(spent, Instant::now()),
            registry,
            delivery: *delivery,
            stage,
            ram,
            world,
            threads,
            devices,
            log: KernelLog::new(&guest.kernel, guest.splats, kept, Instant::now()),
            kernel: guest.kernel,
            reader,
            samples,
            entry_filter: guard.as_ref().and_then(|_| machine.entry_filter()),
            guard,
            scanning,
            statistics,
            clock,
            sink,
            sink_failed: false,
            announced: false,
            stopped: Duration::ZERO,
            lost: HashMap::new(),
            durations: Default::default(),
            started: Instant::now(),
            removed: Vec::new(),
            refused: Refused::default(),
            holds: Default::default(),
            debugging: Default::default(),
            sending: Sending::new(errands, machine.messages()),
            tracepoints: Tracepoints::default(),
            programs: Programs::default(),
            wake,
            messages,
            requests,
            ended,
            input: guest.terminal.input,
            interactive: guest.terminal.interactive,
            signals: guest.signals,
            keys: keys::Keys::default(),
            panic: None,
            outcome: None,
            paused: guest.paused.then(clock::ticks),
            pause_cause: if guest.paused { PauseCause::Start } else { PauseCause::Commands },
            standstill: Standstill::new(Instant::now(), guest.timeout),
        };
        let _own = OwnThread::enter();
        handle.attended();
        control.run()
    }
}

fn eventfd() -> Result<EventFd, SessionError> {
    EventFd::new(libc::EFD_NONBLOCK).map_err(|e| SessionError::Host("an eventfd", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_is_whole_pages_that_there_are() {
        for (bytes, expected) in
            [(0, false), (5, false), (4096, true), (4097, false), (1 << 40, true), (u64::MAX, false)]
        {
            assert_eq!(is_ram(bytes), expected, "{bytes}");
        }
    }
}
