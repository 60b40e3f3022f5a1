//! The host that guests run on, and a guest that is to run there.

use crate::devices::virtio::Extras;
use crate::guard::Guarding;
use crate::kvm::{Hypervisor, HypervisorError};
use crate::samples::Sampling;
use crate::selftest::{self, SelftestError, Unfit};
use crate::trap::Delivery;
use probe_engine::linux::kernel::{Kernel, KernelError};
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::orc::OrcError;
use probe_engine::linux::unwind::KernelCode;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A KVM on which guests with probes run, as was tested.
pub struct Host {
    /// The open device.
    pub hypervisor: Hypervisor,
    /// How breakpoints in a guest come to us.
    pub delivery: Delivery,
}

/// Guests with probes do not run on this KVM.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The device cannot be used.
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
    /// It could not be tested.
    #[error(transparent)]
    Selftest(#[from] SelftestError),
    /// It does not do what it has to.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// No breakpoint comes to us.
    #[error("breakpoints cannot be caught")]
    NoBreakpoints,
}

impl Host {
    /// Opens `/dev/kvm` and tests it with guests of a few instructions, which takes some milliseconds.
    ///
    /// # Errors
    /// [`HostError`], a sentence for the user.
    pub fn open() -> Result<Self, HostError> {
        Self::open_at(Path::new("/dev/kvm"))
    }

    /// The same with another device.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_at(device: &Path) -> Result<Self, HostError> {
        let hypervisor = Hypervisor::open(device)?;
        let contract = selftest::run(&hypervisor)?;
        contract.verdict()?;
        let delivery = contract.delivery().ok_or(HostError::NoBreakpoints)?;
        Ok(Self { hypervisor, delivery })
    }
}

/// Whether probes are served by detours, which cost no exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Optimize {
    /// None of them: all stand on traps.
    Off,
    /// Those that can.
    #[default]
    Auto,
    /// All: one that cannot is refused. One that could, and has to wait for its place, stands on a trap meanwhile.
    Require,
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

/// What a guest's kernel command line begins with unless it is [said as a whole](Guest::whole_cmdline): the console is the
/// serial port, and a panic ends the guest.
pub const CMDLINE: &str = "console=ttyS0 quiet panic=-1";

/// A guest to be run: a kernel, and a machine for it. All but the kernel has a default.
///
/// ```no_run
/// use vmm::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (image, initrd) = (std::fs::read("bzImage")?, std::fs::read("initrd.img")?);
/// let guest = Guest::new(&image)?.initrd(&initrd).cpus(2).memory(1 << 30).cmdline("init=/bin/sh");
/// # let _ = guest;
/// # Ok(())
/// # }
/// ```
#[must_use = "a guest runs in a session"]
pub struct Guest<'a> {
    /// The file that the landmarks are about; without one it is the unpacked kernel of `symbols`.
    pub(crate) image: Option<Cow<'a, [u8]>>,
    pub(crate) kernel: Landmarks,
    pub(crate) symbols: Option<Arc<Kernel>>,
    pub(crate) initrd: Option<Cow<'a, [u8]>>,
    pub(crate) cmdline: String,
    pub(crate) cpus: u8,
    pub(crate) memory: u64,
    pub(crate) names: bool,
    pub(crate) unwind: Option<Arc<KernelCode>>,
    pub(crate) optimize: Optimize,
    pub(crate) fall_back: bool,
    pub(crate) splats: bool,
    pub(crate) before_splats: bool,
    pub(crate) stops_at_splats: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) signals: bool,
    pub(crate) terminal: Terminal,
    pub(crate) extras: Extras,
    pub(crate) confine: bool,
    pub(crate) sampling: Option<Sampling>,
    pub(crate) guarding: Option<Guarding>,
    pub(crate) paused: bool,
}

impl<'a> Guest<'a> {
    /// The most CPUs of a guest.
    pub const MOST_CPUS: u8 = 16;

    /// A guest that runs the kernel in `image`, a bzImage or an ELF vmlinux. Probes are looked up by its own symbols and
    /// types.
    ///
    /// # Errors
    /// [`KernelError`] when the kernel cannot be read.
    pub fn new(image: &[u8]) -> Result<Self, KernelError> {
        Ok(Self::of(Arc::new(Kernel::read(image, None)?)))
    }

    /// A guest that runs a kernel that was read already: once for several guests, or with
    /// [symbols](Kernel::read) from another file.
    pub fn of(kernel: Arc<Kernel>) -> Self {
        Self::resolved(None, Landmarks::of(&kernel)).symbols(kernel)
    }

    /// A guest of whose kernel only the landmarks are known, for whoever has resolved all probes before. `image` is the file
    /// that [`Landmarks::boot`] is about: the bzImage, or the [unpacked kernel](Kernel::image), which is also what goes
    /// without saying where the guest gets [`symbols`](Self::symbols).
    pub fn resolved(image: Option<Cow<'a, [u8]>>, kernel: Landmarks) -> Self {
        Self {
            image,
            kernel,
            symbols: None,
            initrd: None,
            cmdline: CMDLINE.to_owned(),
            cpus: 1,
            memory: 512 << 20,
            names: false,
            unwind: None,
            optimize: Optimize::Auto,
            fall_back: false,
            splats: false,
            before_splats: false,
            stops_at_splats: false,
            timeout: None,
            signals: true,
            terminal: Terminal { out: Box::new(io::sink()), input: None, interactive: false },
            extras: Extras::default(),
            confine: false,
            sampling: None,
            guarding: None,
            paused: false,
        }
    }

    /// The kernel by whose symbols and types probes are looked up that are given as text.
    pub fn symbols(mut self, kernel: Arc<Kernel>) -> Self {
        self.symbols = Some(kernel);
        self
    }

    /// The initramfs, a `cpio` archive, packed or not. The default is none: a kernel that has one built in needs no other.
    pub fn initrd(mut self, bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        self.initrd = Some(bytes.into());
        self
    }

    /// More words on the kernel's command line, behind [`CMDLINE`] and those that were given before.
    pub fn cmdline(mut self, words: &str) -> Self {
        self.cmdline = format!("{} {words}", self.cmdline);
        self
    }

    /// The kernel's command line as a whole.
    pub fn whole_cmdline(mut self, words: &str) -> Self {
        words.clone_into(&mut self.cmdline);
        self
    }

    /// Whether it stands still in front of its first instruction, until somebody says [`Resume`](crate::session::Command::Resume).
    pub fn paused(mut self, is_paused: bool) -> Self {
        self.paused = is_paused;
        self
    }

    /// How many vCPUs it has, from 1, which is the default, to [`MOST_CPUS`](Self::MOST_CPUS).
    pub fn cpus(mut self, cpus: u8) -> Self {
        self.cpus = cpus;
        self
    }

    /// Its RAM in bytes, whole pages of it, 1 TiB at most; 512 MiB by default.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// What the guest prints on its console goes to `out`, and by default nowhere. A CPU of the guest waits for each line: a
    /// [`Printer`](crate::printer::Printer) does not make it wait.
    pub fn console(self, out: impl Write + Send + 'static) -> Self {
        self.terminal(Terminal { out: Box::new(out), input: None, interactive: false })
    }

    /// Where its console leads in both directions.
    pub fn terminal(mut self, terminal: Terminal) -> Self {
        self.terminal = terminal;
        self
    }

    /// How long it may take until it is [ended](crate::session::Outcome::TimedOut); by default for ever.
    pub fn timeout(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.timeout = time.into();
        self
    }

    /// Whether SIGINT, SIGTERM, SIGHUP and SIGQUIT end this guest, as they do by default: see
    /// [`Session::run`](crate::session::Session::run).
    pub fn signals(mut self, end: bool) -> Self {
        self.signals = end;
        self
    }

    /// Stacks can be walked, so that [probes](crate::probe::Probe::stack) and [hits](crate::probe::Hit::stack) say who called.
    /// The guest's modules are followed then, for their stacks.
    ///
    /// # Errors
    /// [`OrcError`] when the kernel has no tables of its stacks, or none that are understood.
    pub fn stacks(self) -> Result<Self, OrcError> {
        match self.symbols.as_deref().map(KernelCode::of) {
            Some(code) => Ok(self.unwind(Arc::new(code?))),
            None => Ok(self),
        }
    }

    /// The same by tables that were read already, if there are any.
    pub fn unwind(mut self, code: impl Into<Option<Arc<KernelCode>>>) -> Self {
        self.unwind = code.into();
        self
    }

    /// Whether functions of modules have names too, which they have not by default: see
    /// [`Sink::names`](crate::session::Sink::names) and [`Hit::names`](crate::probe::Hit::names).
    pub fn names(mut self, of_modules: bool) -> Self {
        self.names = of_modules;
        self
    }

    /// Whether probes are served by detours, which cost the guest no exit; by default all are that can be. A probe with a
    /// handler cannot.
    pub fn optimize(mut self, optimize: Optimize) -> Self {
        self.optimize = optimize;
        self
    }

    /// Whether return probes are moved from detours to traps, with all others at their places, when detours can follow
    /// no more calls: one less than [`CALLS`] at a time, of all probes together, in equal shares for the vCPUs on which
    /// they begin. By default they are not. Such a probe then follows as many calls of its own as
    /// [`max_active`](crate::probe::ReturnProbe::max_active) says, ten or twice the vCPUs without it: one that needs
    /// more misses more there. It stays on its trap. What it has missed until then, in a few milliseconds, stays
    /// counted, and calls that detours follow still return. Calls beyond `max_active` move none.
    ///
    /// [`CALLS`]: probe_engine::detour::layout::CALLS
    pub fn fall_back(mut self, moves: bool) -> Self {
        self.fall_back = moves;
        self
    }

    /// Whether the kernel's log is read, or its console where that cannot be, and [`Sink::splat`](crate::session::Sink::splat) told of the reports in it, which by
    /// default is not done.
    pub fn splats(mut self, are_told: bool) -> Self {
        self.splats = are_told;
        self
    }

    /// Whether [`Sink::about_to_report`](crate::session::Sink::about_to_report) is told when the kernel begins to report, which by default
    /// it is not, but for a panic. Traps of the session's own stand for that on functions that only reports call.
    pub fn before_splats(mut self, is_told: bool) -> Self {
        self.before_splats = is_told;
        self
    }

    /// Whether [`Sink::splat`](crate::session::Sink::splat) is told of a report while the CPU that has written it is still in it, so that
    /// the guest can be [stopped](crate::session::AfterSplat::Stop) there; by default it is not. A trap of the session's own stands for
    /// that where the kernel marks itself as tainted. Reports that do not taint it (lockdep's, stalls) are told a moment later.
    pub fn stops_at_splats(mut self, stops: bool) -> Self {
        self.stops_at_splats = stops;
        self
    }

    /// Whether it is looked where its CPUs are, so many times a second, and [`Sink::samples`](crate::session::Sink::samples) told;
    /// by default it is not.
    pub fn sampling(mut self, sampling: impl Into<Option<Sampling>>) -> Self {
        self.sampling = sampling.into();
        self
    }

    /// Whether its kernel's code and read-only data are sealed once it has booted, and [`Sink::findings`](crate::session::Sink::findings)
    /// told of what is written there; by default they are not. Who writes is told by the kernel's [stacks](Self::stacks): without
    /// these, all changes that the kernel makes itself are findings.
    pub fn guard(mut self, guarding: impl Into<Option<Guarding>>) -> Self {
        self.guarding = guarding.into();
        self
    }

    /// What it has beside RAM and a console.
    pub fn extras(mut self, extras: Extras) -> Self {
        self.extras = extras;
        self
    }

    /// Whether the session's threads may make no other [system calls](crate::confine) than they need: vCPUs', on which
    /// handlers of probes run, and devices'. By default they may. A process that makes another one ends with a sentence and exit code 125. The thread that
    /// calls [`Session::run`](crate::session::Session::run) is the caller's: it opens what it needs.
    pub fn confine(mut self, threads: bool) -> Self {
        self.confine = threads;
        self
    }
}
