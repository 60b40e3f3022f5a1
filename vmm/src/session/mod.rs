//! One guest from start to end, with its probes.

mod arming;
mod control;
mod keys;
mod report;
mod stage;

pub use arming::State;
pub use report::{Death, Outcome, ProbeReport, Report};
pub use stage::StageError;

use crate::boot::{self, BootError, Payload};
use crate::clock::Clock;
use crate::devices::{Devices, console::Console};
use crate::events::{self, Hit};
use crate::kvm::{Hypervisor, Machine, MachineError};
use crate::memory::{GuestRam, OutOfMemory};
use crate::trap::Delivery;
use crate::vcpu::Vcpu;
use crate::world::{Orders, World};
use arming::Arming;
use control::{Control, Threads};
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::probe::resolve::Probe;
use stage::Stage;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc;
use vmm_sys_util::errno;
use vmm_sys_util::eventfd::EventFd;

/// What to run.
pub struct Config<'a> {
    /// The kernel's file, as it goes to memory.
    pub image: &'a [u8],
    /// What is known about it.
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
    /// What to probe. A probe's place is its [`ProbeId`](probe_engine::probe::table::ProbeId).
    pub probes: Vec<Probe>,
    /// The guest's console.
    pub terminal: Terminal,
}

/// Where the guest's console leads.
pub struct Terminal {
    /// What the guest prints goes here.
    pub out: Box<dyn Write + Send>,
    /// What the user types comes from here.
    pub input: Option<File>,
    /// Pass single bytes on at once, and look for the escape key.
    pub interactive: bool,
}

/// Who is told about hits, on the control thread.
pub trait Sink {
    /// Hits in order of time.
    ///
    /// # Errors
    /// When they cannot be kept; they are then counted as missed, and the sink is not called again.
    fn hits(&mut self, hits: &[Hit]) -> io::Result<()>;

    /// All probes that can be armed are; `states` has one entry a probe.
    fn armed(&mut self, states: &[State]);
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

/// Runs a guest to its end.
///
/// # Errors
/// [`SessionError`] when it could not be started. How it ended is in the [`Report`].
pub fn run(hypervisor: &Hypervisor, config: Config<'_>, sink: &mut dyn Sink) -> Result<Report, SessionError> {
    let ram = Arc::new(GuestRam::new(config.memory)?);
    let payload = Payload { kernel: config.image, initrd: config.initrd, cmdline: config.cmdline };
    let boot = boot::load(&ram, &payload, config.cpus)?;
    let machine = Machine::new(hypervisor, ram.clone())?;

    let eventfd = || EventFd::new(libc::EFD_NONBLOCK).map_err(|e| SessionError::Host("an eventfd", e));
    let serial_interrupt = eventfd()?;
    machine.connect_interrupt(&serial_interrupt, boot::layout::COM1_IRQ)?;
    let console = Console::new(serial_interrupt, config.terminal.out, config.terminal.interactive);
    let devices = Arc::new(Devices::new(console));

    let stage = Stage::first(&config.kernel, boot.load)?;
    let breakpoints = stage::breakpoints(&stage.breakpoints(&config.kernel)?, None);
    let wake = eventfd()?;
    let wake_control = wake.try_clone().map_err(|e| SessionError::Host("an eventfd", e))?;
    let orders = Orders { breakpoints, ..Orders::default() };
    let world = Arc::new(World::new(usize::from(config.cpus), orders, wake_control));
    let (recorders, reader) = events::rings(usize::from(config.cpus), config.probes.len());
    let (ends, ended) = mpsc::channel();

    let mut vcpus = Vec::new();
    for (id, recorder) in (0..config.cpus).zip(recorders) {
        vcpus.push(Vcpu {
            id: usize::from(id),
            kvm: machine.add_vcpu(hypervisor, id, config.cpus, &boot)?,
            devices: devices.clone(),
            ram: ram.clone(),
            world: world.clone(),
            recorder,
            ends: ends.clone(),
        });
    }
    let clock = Clock::start(vcpus.first().and_then(|vcpu| vcpu.kvm.tsc_khz()));
    let threads = Threads::start(vcpus, world.clone())?;
    let control = Control {
        arming: Arming::new(config.kernel.clone(), config.probes),
        kernel: config.kernel,
        delivery: config.delivery,
        stage,
        ram,
        world,
        threads,
        devices,
        reader,
        clock,
        sink,
        sink_failed: false,
        delivered: Vec::new(),
        wake,
        ended,
        input: config.terminal.input,
        interactive: config.terminal.interactive,
        keys: keys::Keys::default(),
        panic: None,
        outcome: None,
    };
    control.run()
}
