//! One guest from start to end, with its probes.
//!
//! A guest whose kernel cannot open one file, and a count of how often it tried to:
//!
//! ```no_run
//! use probe_engine::addr::Gva;
//! use probe_engine::linux::{kernel::Kernel, landmarks::Landmarks};
//! use std::sync::Arc;
//! use std::time::Duration;
//! use vmm::devices::virtio::Extras;
//! use vmm::kvm::Hypervisor;
//! use vmm::printer::Printer;
//! use vmm::probe::Probe;
//! use vmm::session::{Config, Optimize, Session, Terminal};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let hypervisor = Hypervisor::open("/dev/kvm".as_ref())?;
//! let contract = vmm::selftest::run(&hypervisor)?;
//! contract.verdict()?;
//! let (image, initrd) = (std::fs::read("bzImage")?, std::fs::read("initrd.img")?);
//! let kernel = Arc::new(Kernel::read(&image, None)?);
//! let out = Printer::of_what_fits(std::io::stdout())?;
//! let terminal = Terminal { out: Box::new(out), input: None, interactive: false };
//! let config = Config {
//!     image: kernel.image().file().into(),
//!     kernel: Landmarks::of(&kernel),
//!     initrd: Some(&initrd),
//!     cmdline: "console=ttyS0",
//!     cpus: 2,
//!     memory: 512 << 20,
//!     delivery: contract.delivery().ok_or("no breakpoints")?,
//!     symbols: Some(kernel.clone()),
//!     names: false,
//!     unwind: None,
//!     optimize: Optimize::Auto,
//!     fall_back: false,
//!     timeout: Some(Duration::from_secs(600)),
//!     signals: true,
//!     terminal,
//!     extras: Extras::default(),
//!     confine: false,
//! };
//! let mut session = Session::new(&hypervisor, config)?;
//! let deny = session.register(Probe::at("do_filp_open").pre(|hit| {
//!     // `struct filename` begins with a pointer to the path.
//!     let path = hit.memory.read_u64(Gva(hit.regs.rsi)).and_then(|name| hit.string(Gva(name), 256));
//!     if path.as_deref() == Ok(b"/etc/shadow") {
//!         let _ = hit.skip_function(-libc::EIO as u64);
//!     }
//! }))?;
//! let report = session.run(&mut ())?;
//! for probe in report.probes.iter().filter(|probe| probe.id == deny) {
//!     println!("{}: {} hits, {} missed", probe.name, probe.hits, probe.missed.hits());
//! }
//! # Ok(())
//! # }
//! ```

mod arming;
mod attend;
mod control;
mod detours;
mod handle;
mod hooks;
mod instance_exhaustion;
mod keys;
mod modules;
mod names;
mod occupancy;
mod patience;
mod postponed;
mod registry;
mod relocation;
mod report;
mod spent;
mod stage;
mod standstill;
mod text;
mod watches;

pub use detours::Optimize;
pub(crate) use handle::Inside;
pub use handle::{Answer, Command, CommandError, Handle, Mailbox};
pub(crate) use keys::{Keys, Typed};
pub use registry::{ProbeState, RegisterError};
pub use report::{Death, Missed, Outcome, ProbeKind, ProbeReport, Refused, Report, Stood, Unregistered};
pub use stage::StageError;

use crate::boot::{self, BootError, Payload};
use crate::clock::Clock;
use crate::code::GuestCode;
use crate::devices::virtio::{Extras, Plugged};
use crate::devices::{Devices, console::Console};
use crate::events::{self, Event};
use crate::kvm::{Hypervisor, KvmVcpu, Machine, MachineError};
use crate::memory::{GuestRam, OutOfMemory};
use crate::probe::Probe;
use crate::reserved::TRAMPOLINES;
use crate::trap::Delivery;
use crate::vcpu::Vcpu;
use crate::world::{VcpuTables, World};
use arming::Arming;
use control::{Control, Threads};
use detours::Detours;
use handle::Message;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::names::ModuleNames;
use probe_engine::linux::unwind::KernelCode;
use probe_engine::probe::table::ProbeId;
use registry::Registry;
use stage::Stage;
use standstill::Standstill;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use vmm_sys_util::errno;
use vmm_sys_util::eventfd::EventFd;

/// What to run.
pub struct Config<'a> {
    /// The file that [`Landmarks::boot`] is about: the bzImage, or the [unpacked kernel](Kernel::image).
    pub image: Cow<'a, [u8]>,
    /// What is known about the kernel.
    pub kernel: Landmarks,
    /// The initramfs.
    pub initrd: Option<&'a [u8]>,
    /// The complete kernel command line.
    pub cmdline: &'a str,
    /// Number of vCPUs.
    pub cpus: u8,
    /// RAM, in bytes.
    pub memory: u64,
    /// How breakpoints come to us on this host.
    pub delivery: Delivery,
    /// The kernel to look places up in that are given as text, where there are any.
    pub symbols: Option<Arc<Kernel>>,
    /// Whether the names of all modules' functions are wanted: see [`Sink::names`] and
    /// [`Hit::names`](crate::probe::Hit::names).
    pub names: bool,
    /// How its stacks are walked, if they are. Modules are followed then, for theirs.
    pub unwind: Option<Arc<KernelCode>>,
    /// Whether probes are served by detours where they can be.
    pub optimize: Optimize,
    /// Whether return probes are moved from detours to traps, with all others at their places, when detours can follow
    /// no more calls: one less than [`CALLS`] at a time, of all probes together, in equal shares for the vCPUs on which
    /// they begin. Such a probe then follows as many calls of its own as
    /// [`max_active`](crate::probe::ReturnProbe::max_active) says, ten or twice the vCPUs without it: one that needs
    /// more misses more there. It stays on its trap. What it has missed until then, in a few milliseconds, stays
    /// counted, and calls that detours follow still return. Calls beyond `max_active` move none.
    ///
    /// [`CALLS`]: probe_engine::detour::layout::CALLS
    pub fall_back: bool,
    /// How long the guest may take until it is [ended](Outcome::TimedOut), if it may not take for ever.
    pub timeout: Option<Duration>,
    /// Whether SIGINT, SIGTERM, SIGHUP and SIGQUIT end the guest.
    pub signals: bool,
    /// The guest's console.
    pub terminal: Terminal,
    /// What it has beside that.
    pub extras: Extras,
    /// Whether the session's threads may make no other [system calls](crate::confine) than they need: vCPUs', on which
    /// handlers of probes run, and devices'. A process that makes another one ends with a sentence and exit code 125. That
    /// which calls [`Session::run`] is the caller's: it opens what it needs.
    pub confine: bool,
}

/// Where the guest's console leads.
pub struct Terminal {
    /// What the guest prints goes here. A CPU of the guest waits for each line: a [`Printer`](crate::printer::Printer) does
    /// not make it wait.
    pub out: Box<dyn Write + Send>,
    /// What the user types comes from here.
    pub input: Option<File>,
    /// Pass single bytes on at once, and look for the escape key. Otherwise lines are passed on whole, and one that does
    /// not end after a moment without its end.
    pub interactive: bool,
}

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

    /// From now on, and in the events that follow, addresses mean this: the kernel runs `slide` bytes behind where it
    /// was linked, and has these modules. That is said when the kernel has started; where the session is to know
    /// [names](Config::names), also whenever a module was loaded or is about to be freed. Without them there are no
    /// modules here.
    fn names(&mut self, slide: u64, modules: &[Arc<ModuleNames>]) {
        let _ = (slide, modules);
    }

    /// The guest has booted so far that all probes are armed that can be. For that it was `stopped` so long.
    fn armed(&mut self, probes: &[ProbeReport], stopped: Duration) {
        let _ = (probes, stopped);
    }
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

/// A guest with its probes, which has not started.
pub struct Session<'a> {
    hypervisor: &'a Hypervisor,
    config: Config<'a>,
    registry: Registry,
    mailbox: Mailbox,
    messages: Receiver<Message>,
    wake: Arc<EventFd>,
}

impl<'a> Session<'a> {
    /// A session without probes.
    ///
    /// # Errors
    /// [`SessionError::Host`] when the host is out of descriptors.
    pub fn new(hypervisor: &'a Hypervisor, config: Config<'a>) -> Result<Self, SessionError> {
        let wake = Arc::new(eventfd()?);
        let (mailbox, messages) = Mailbox::open(wake.clone());
        let registry = Registry::new(&config, TRAMPOLINES);
        Ok(Self { hypervisor, config, registry, mailbox, messages, wake })
    }

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

    /// Changes the probes while the guest runs, from other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(self.mailbox.clone())
    }

    /// Runs the guest to its end.
    ///
    /// # Errors
    /// [`SessionError`] when it could not be started. How it ended is in the [`Report`].
    pub fn run(self, sink: &mut dyn Sink) -> Result<Report, SessionError> {
        let Self { hypervisor, mut config, registry, mailbox, messages, wake } = self;
        let ram = Arc::new(GuestRam::new(config.memory)?);
        let pci = !config.extras.is_none();
        let (kernel, initrd, cmdline) = (std::mem::take(&mut config.image), config.initrd, config.cmdline);
        let payload = Payload { kernel, boot: &config.kernel.boot, initrd, cmdline, pci };
        let boot = boot::load(&ram, payload, config.cpus, hypervisor.has_five_levels())?;
        let machine = Machine::new(hypervisor, ram.clone())?;

        let serial_interrupt = eventfd()?;
        machine.connect_interrupt(&serial_interrupt, boot::layout::COM1_IRQ)?;
        let console = Console::new(serial_interrupt, config.terminal.out, config.terminal.interactive);
        let mut devices = Devices::new(console);
        let plugged = Plugged::plug(config.extras, &machine, &mut devices.bus, config.confine);
        let _plugged = plugged.map_err(|error| SessionError::Host("the guest's devices", error))?;
        let devices = Arc::new(devices);

        let stage = Stage::first(&config.kernel, &boot)?;
        let breakpoints = stage::breakpoints(&stage.breakpoints(&config.kernel)?, [None; 2]);
        let (unwind, symbols) = (config.unwind.clone(), config.symbols.clone());
        let code = GuestCode { unwind, symbols, ..GuestCode::default() };
        let tables = VcpuTables { breakpoints, code, ..VcpuTables::default() };
        let world = Arc::new(World::new(usize::from(config.cpus), tables, wake.clone()));
        let (recorders, mut reader) = events::rings(usize::from(config.cpus));
        let (ends, ended) = mpsc::channel();

        let kvms = (0..config.cpus).map(|id| machine.add_vcpu(hypervisor, id, config.cpus, &boot));
        let kvms = kvms.collect::<Result<Vec<_>, _>>()?;
        reader.follow_detours(ram.clone(), config.cpus, kvms.first().map_or(0, KvmVcpu::tsc_offset));
        let statistics = kvms.iter().map(KvmVcpu::statistics).collect();
        let clock = Arc::new(Clock::start(kvms.first().and_then(|kvm| kvm.tsc_khz())));
        sink.started();
        let vcpu = |((id, kvm), recorder)| Vcpu {
            id,
            kvm,
            devices: devices.clone(),
            ram: ram.clone(),
            world: world.clone(),
            recorder,
            clock: clock.clone(),
            mailbox: mailbox.clone(),
            passed: None,
            area: None,
            ends: ends.clone(),
        };
        let vcpus = (0..).zip(kvms).zip(recorders).map(vcpu).collect();
        let threads = Threads::start(vcpus, world.clone(), config.confine)?;
        let control = Control {
            arming: Arming::new(
                config.kernel.clone(),
                config.names || config.unwind.is_some(),
                Detours::new(config.optimize, config.fall_back, config.cpus, &config.kernel),
            ),
            names: config.names.then(names::Names::default),
            postponed: postponed::Postponed::default(),
            patience: patience::Patience::default(),
            sweep: spent::Sweep::new(mailbox.spent.clone(), Instant::now()),
            registry,
            kernel: config.kernel,
            delivery: config.delivery,
            stage,
            ram,
            world,
            threads,
            devices,
            reader,
            statistics,
            clock,
            sink,
            sink_failed: false,
            announced: false,
            stopped: Duration::ZERO,
            lost: HashMap::new(),
            unregistered: Unregistered::default(),
            refused: Refused::default(),
            unread: Vec::new(),
            wake,
            messages,
            ended,
            input: config.terminal.input,
            interactive: config.terminal.interactive,
            signals: config.signals,
            keys: keys::Keys::default(),
            panic: None,
            outcome: None,
            standstill: Standstill::new(Instant::now(), config.timeout),
        };
        let _inside = Inside::enter();
        mailbox.attended();
        control.run()
    }
}

fn eventfd() -> Result<EventFd, SessionError> {
    EventFd::new(libc::EFD_NONBLOCK).map_err(|e| SessionError::Host("an eventfd", e))
}
