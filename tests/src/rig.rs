//! A micro guest on the real trap path: vCPU threads, world, ring, text patches.

use crate::code::{ENTRY, HANDLER, REPORT, UNEXPECTED, VECTORS, counting_handler, unexpected};
use crate::host::Fit;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::insn::plan::plan;
use probe_engine::memory::PhysMemory;
use probe_engine::probe::hit::INT3;
use probe_engine::probe::table::{ProbeId, ProbeSet, UserProbes};
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmm::clock::Clock;
use vmm::devices::{Devices, PowerEvent, console::Console};
use vmm::events::{self, Hit, Reader};
use vmm::kvm::Breakpoints;
use vmm::memory::GuestRam;
use vmm::selftest::BreakpointDelivery;
use vmm::selftest::micro::{self, MicroGuest, Privilege, Stack};
use vmm::signals;
use vmm::text::{Patch, patch};
use vmm::vcpu::{End, Vcpu};
use vmm::world::{Orders, Parked, World};
use vmm_sys_util::eventfd::EventFd;

/// How long a guest may take. Only a guest that hangs takes it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A guest that does not run yet.
pub struct Rig {
    fit: &'static Fit,
    guest: MicroGuest,
    sites: Sites,
    console: Box<dyn Write + Send>,
}

/// Where a vCPU starts.
#[derive(Clone, Copy)]
pub struct Start {
    /// Its first instruction.
    pub rip: Gva,
    /// Its stack pointer.
    pub rsp: Gva,
    /// Kernel or user mode.
    pub mode: Privilege,
}

impl Start {
    /// In kernel mode.
    pub fn at(rip: Gva, rsp: Gva) -> Option<Self> {
        Some(Self { rip, rsp, mode: Privilege::Kernel })
    }
}

#[derive(Default)]
struct Sites {
    set: ProbeSet,
    originals: HashMap<Gva, u8>,
}

impl Sites {
    fn arm(&mut self, parked: &Parked<'_>, ram: &GuestRam, at: Gva, probes: &[u32]) {
        let mut bytes = [0; 15];
        ram.read(Gpa(at.0), &mut bytes).unwrap();
        let plan = plan(&bytes, at, None).unwrap();
        let probes = probes.iter().map(|id| ProbeId(*id)).collect();
        patch(parked, ram, &Patch { at: Gpa(at.0), expect: bytes[0], write: INT3 }).unwrap();
        self.set.site_mut(at).user = Some(UserProbes { probes, plan });
        self.originals.insert(at, bytes[0]);
    }

    fn disarm(&mut self, parked: &Parked<'_>, ram: &GuestRam, at: Gva) {
        let original = self.originals.remove(&at).expect("an armed site");
        self.set.remove(at).expect("an armed site");
        patch(parked, ram, &Patch { at: Gpa(at.0), expect: INT3, write: original }).unwrap();
    }
}

impl Rig {
    /// An empty guest whose handler for vector 3 counts. Any other exception is unexpected, and a failure.
    pub fn new(fit: &'static Fit) -> Self {
        let guest = MicroGuest::new(&fit.hypervisor).unwrap();
        let rig = Self { fit, guest, sites: Sites::default(), console: Box::new(io::sink()) };
        rig.write(UNEXPECTED, &unexpected());
        for vector in 0..VECTORS {
            rig.gate(vector, UNEXPECTED.add(u64::from(vector) * ENTRY), Stack::Own);
        }
        rig.write(HANDLER, &counting_handler());
        rig.gate(3, HANDLER, Stack::Current);
        rig
    }

    /// Sends what the guest prints to `console`.
    pub fn console(&mut self, console: impl Write + Send + 'static) {
        self.console = Box::new(console);
    }

    /// Puts `bytes` into the guest's memory.
    pub fn write(&self, at: Gva, bytes: &[u8]) {
        self.guest.write(at, bytes).unwrap();
    }

    /// Lets exception or interrupt `vector` call `handler`; user mode may come through by instruction.
    pub fn gate(&self, vector: u8, handler: Gva, stack: Stack) {
        self.guest.gate(vector, handler, Privilege::User, stack).unwrap();
    }

    /// Arms `probes` at `at`, behind the instruction that is written there already.
    pub fn arm(&mut self, at: Gva, probes: &[u32]) {
        // There is no vCPU yet.
        let world = World::new(0, Orders::default(), EventFd::new(0).unwrap());
        let parked = world.park(|_| {});
        self.sites.arm(&parked, self.guest.ram(), at, probes);
    }

    /// Starts one vCPU for each of `starts`, or leaves it to wait for ever.
    pub fn run(self, starts: &[Option<Start>]) -> Running {
        let cpus = u8::try_from(starts.len()).unwrap();
        let eventfd = || EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let devices = Arc::new(Devices::new(Console::new(eventfd(), self.console, true)));
        let (breakpoints, int3_handler) = match self.fit.delivery {
            BreakpointDelivery::Intercepted => (Breakpoints::default(), None),
            BreakpointDelivery::Reflected => (Breakpoints::at(&[HANDLER]), Some(HANDLER)),
        };
        let orders = Orders { sites: self.sites.set.clone(), breakpoints, int3_handler };
        let world = Arc::new(World::new(starts.len(), orders, eventfd()));
        let (recorders, reader) = events::rings(starts.len(), PROBES);
        let (ends, ended) = mpsc::channel();
        signals::make_kick_harmless().unwrap();
        let mut vcpus = Vec::new();
        for ((id, start), recorder) in (0..).zip(starts).zip(recorders) {
            let kvm = self.guest.add_vcpu(&self.fit.hypervisor, id, cpus).unwrap();
            if let Some(start) = start {
                micro::start(&kvm, start.rip, start.rsp, start.mode).unwrap();
            }
            vcpus.push(Vcpu {
                id: usize::from(id),
                kvm,
                devices: devices.clone(),
                ram: self.guest.ram().clone(),
                world: world.clone(),
                recorder,
                ends: ends.clone(),
            });
        }
        let clock = Clock::start(vcpus[0].kvm.tsc_khz());
        let threads = vcpus.into_iter().map(|vcpu| std::thread::spawn(move || vcpu.main())).collect();
        let Self { guest, sites, .. } = self;
        Running { guest, sites, world, threads, reader, clock, ended, hits: Vec::new() }
    }
}

/// How many probes a rig has at most.
const PROBES: usize = 256;

/// A guest that runs.
pub struct Running {
    guest: MicroGuest,
    sites: Sites,
    world: Arc<World>,
    threads: Vec<JoinHandle<()>>,
    reader: Reader,
    clock: Clock,
    ended: Receiver<End>,
    hits: Vec<Hit>,
}

impl Running {
    /// Stops all vCPUs and lets them go on, with a change of sites in between.
    fn change(&mut self, change: impl FnOnce(&mut Sites, &Parked<'_>, &GuestRam)) {
        let parked = self.world.park(|id| signals::kick(&self.threads[id]));
        change(&mut self.sites, &parked, self.guest.ram());
        let orders = Orders { sites: self.sites.set.clone(), ..Orders::clone(&self.world.orders()) };
        parked.set_orders(orders);
    }

    /// See [`Rig::arm`].
    pub fn arm(&mut self, at: Gva, probes: &[u32]) {
        self.change(|sites, parked, ram| sites.arm(parked, ram, at, probes));
    }

    /// Takes the site at `at` out.
    pub fn disarm(&mut self, at: Gva) {
        self.change(|sites, parked, ram| sites.disarm(parked, ram, at));
    }

    /// Stops all vCPUs and lets them go on. Returns how long the stop took.
    pub fn stop(&self) -> Duration {
        let before = Instant::now();
        drop(self.world.park(|id| signals::kick(&self.threads[id])));
        before.elapsed()
    }

    /// Takes what the vCPUs have recorded.
    pub fn drain(&mut self) {
        self.hits.extend_from_slice(self.reader.drain(self.clock.rate()));
    }

    /// How often a vCPU has waited for the reader.
    pub fn waits(&self) -> u64 {
        self.reader.waits()
    }

    /// Hits of `probe` so far, recorded or not.
    pub fn count(&self, probe: u32) -> u64 {
        self.reader.hits(ProbeId(probe))
    }

    /// The next end of a vCPU, if there is one within `time`.
    pub fn end_within(&mut self, time: Duration) -> Option<End> {
        match self.ended.recv_timeout(time) {
            Ok(end) => Some(end),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("all vCPU threads are gone"),
        }
    }

    /// Runs until `vcpus` of them have switched the machine off, while `meanwhile` is done again and again.
    pub fn until_off(&mut self, vcpus: usize, mut meanwhile: impl FnMut(&mut Self)) {
        let deadline = Instant::now() + PATIENCE;
        let mut off = 0;
        while off < vcpus {
            match self.end_within(Duration::from_millis(1)) {
                Some(End::Power(PowerEvent::Off)) => off += 1,
                Some(End::Power(PowerEvent::Reset)) => self.unexpected(),
                Some(other) => panic!("the guest ended with {other:?}"),
                None => assert!(Instant::now() < deadline, "the guest hangs"),
            }
            meanwhile(self);
            self.drain();
        }
    }

    /// The guest has met an exception that it did not ask for.
    fn unexpected(&self) -> ! {
        let word = |n: u64| self.guest.read_u64(REPORT.add(n * 8)).unwrap();
        let frame: Vec<String> = (1..7).map(|n| format!("{:#x}", word(n))).collect();
        panic!("exception {} in the guest, frame {}", word(0), frame.join(" "));
    }

    /// Ends the guest. What it leaves: its memory, and the hits.
    pub fn end(mut self) -> Left {
        self.world.end(|id| signals::kick(&self.threads[id]));
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        self.drain();
        let counts = (0..PROBES as u32).map(|id| self.count(id)).collect();
        Left { ram: self.guest.ram().clone(), hits: self.hits, counts }
    }

    /// Runs until the one vCPU has switched the machine off.
    pub fn to_end(mut self) -> Left {
        self.until_off(1, |_| {});
        self.end()
    }
}

/// What is left of a guest.
pub struct Left {
    ram: Arc<GuestRam>,
    /// All recorded hits in order of time.
    pub hits: Vec<Hit>,
    /// Counted hits by probe.
    pub counts: Vec<u64>,
}

impl Left {
    /// `n` bytes of memory.
    pub fn bytes(&self, at: Gva, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.ram.read(Gpa(at.0), &mut bytes).unwrap();
        bytes
    }

    /// The u64 at `at`.
    pub fn u64(&self, at: Gva) -> u64 {
        u64::from_le_bytes(self.bytes(at, 8).try_into().unwrap())
    }
}
