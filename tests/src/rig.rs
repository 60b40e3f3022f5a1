//! A micro guest on the real trap path: vCPU threads, world, ring, text patches.

use crate::code::{ENTRY, HANDLER, REPORT, UNEXPECTED, VECTORS, counting_handler, unexpected};
use probe_engine::addr::{Gpa, Gva};
use probe_engine::errand::Code;
use probe_engine::insn::INT3;
use probe_engine::insn::copy::Ending;
use probe_engine::insn::plan::{StepPlan, plan};
use probe_engine::linux::scope::Scope;
use probe_engine::linux::unwind::KernelCode;
use probe_engine::memory::PhysMemory;
use probe_engine::probe::once::OneShot;
use probe_engine::probe::table::{Anchor, Attached, CopyEnd, ProbeId, ProbeSet, Site, StepMethod};
use probe_engine::regs::Regs;
use std::collections::HashMap;
use std::io::{self, Write};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmm::clock::Clock;
use vmm::confine::{self, Role};
use vmm::devices::virtio::{Extras, Plugged};
use vmm::devices::{Devices, PowerEvent, console::SerialConsole};
use vmm::errands::Errands;
use vmm::events::{self, Event, Reader};
use vmm::guest::Host;
use vmm::kernel_view::KernelView;
use vmm::kvm::{Breakpoints, DebugRegister};
use vmm::memory::GuestRam;
use vmm::probe::{Active, Probe};
use vmm::reserved::Reserved;
use vmm::samples::{self, Sample, SampleReader, SampledTime, Sampling};
use vmm::selftest::BreakpointDelivery;
use vmm::selftest::micro::{self, ExceptionStack, MicroGuest, Privilege};
use vmm::signals;
use vmm::text::{Patch, patch};
use vmm::vcpu::{Cause, End, Mailbox, Vcpu, VcpuTables, World};
use vmm::world::{self, Parked};
use vmm_sys_util::eventfd::EventFd;

/// How long a guest may take. Only a guest that hangs takes it.
const PATIENCE: Duration = Duration::from_secs(120);

/// A guest that does not run yet.
pub struct Rig {
    fit: &'static Host,
    guest: MicroGuest,
    sites: Sites,
    watches: Vec<(DebugRegister, Arc<Active>)>,
    console: Box<dyn Write + Send>,
    extras: Extras,
    sampling: Option<Sampling>,
    errands: Arc<Errands>,
    unwind: Option<Arc<KernelCode>>,
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
    set: ProbeSet<Arc<Active>>,
    originals: HashMap<Gva, u8>,
}

/// Where the memory at `at` is, in either half.
fn gpa(at: Gva) -> Gpa {
    Gpa(at.0 & !micro::UPPER_HALF.0)
}

impl Sites {
    /// Arms probes that record.
    fn arm(&mut self, parked: &Parked<'_>, ram: &GuestRam, at: Gva, probes: &[u32]) {
        let probe = |id: &u32| Active::on_its_own(ProbeId(*id), Probe::at("").record());
        self.hang(parked, ram, at, probes.iter().map(probe).map(Arc::new).collect(), Anchor::Firm);
    }

    fn hang(
        &mut self,
        parked: &Parked<'_>,
        ram: &GuestRam,
        at: Gva,
        probes: Vec<Arc<Active>>,
        anchor: Anchor,
    ) {
        let mut bytes = [0; 15];
        ram.read(gpa(at), &mut bytes).unwrap();
        let StepPlan::Emulate(emulation) = plan(&bytes, at, None, false).unwrap() else {
            panic!("the rig has no pages for copies")
        };
        self.put(parked, ram, at, bytes[0], attached(probes, anchor), StepMethod::Emulate(emulation));
    }

    /// The rig has no reserved pages: the copy goes to the guest's own memory.
    fn hang_on_copy(
        &mut self,
        parked: &Parked<'_>,
        ram: &GuestRam,
        at: Gva,
        probes: Vec<Arc<Active>>,
        (slot, ending): (Gva, Ending),
    ) {
        let mut bytes = [0; 15];
        ram.read(gpa(at), &mut bytes).unwrap();
        let StepPlan::OutOfLine(copy) = plan(&bytes, at, None, false).unwrap() else {
            panic!("the instruction is emulated")
        };
        ram.write(Gpa(slot.0), &copy.place(slot, ending).unwrap()).unwrap();
        let end = CopyEnd { site: at, next: copy.next() };
        let end = (ending == Ending::Trap).then(|| (copy.trap(slot), end));
        self.set.add_copy(slot, at, end);
        self.put(parked, ram, at, bytes[0], attached(probes, Anchor::Firm), StepMethod::Copy(slot));
    }

    fn put(
        &mut self,
        parked: &Parked<'_>,
        ram: &GuestRam,
        at: Gva,
        original: u8,
        probes: Vec<Attached<Arc<Active>>>,
        step: StepMethod,
    ) {
        patch(parked, ram, &Patch { at: gpa(at), expect: original, write: INT3 }).unwrap();
        self.set.insert(at, Site { probes, internal: None, step });
        self.originals.insert(at, original);
    }

    fn disarm(&mut self, parked: &Parked<'_>, ram: &GuestRam, at: Gva) {
        let original = self.originals.remove(&at).expect("an armed site");
        self.set.remove(at).expect("an armed site");
        patch(parked, ram, &Patch { at: gpa(at), expect: INT3, write: original }).unwrap();
    }
}

impl Rig {
    /// An empty guest whose handler for vector 3 counts. Any other exception is unexpected, and a failure.
    pub fn new(fit: &'static Host) -> Self {
        let guest = MicroGuest::new(&fit.hypervisor).unwrap();
        let rig = Self {
            fit,
            guest,
            sites: Sites::default(),
            watches: Vec::new(),
            console: Box::new(io::sink()),
            extras: Extras::default(),
            sampling: None,
            errands: Arc::default(),
            unwind: None,
        };
        rig.write(UNEXPECTED, &unexpected());
        for vector in 0..VECTORS {
            rig.gate(vector, UNEXPECTED.add(u64::from(vector) * ENTRY), ExceptionStack::Own);
        }
        rig.write(HANDLER, &counting_handler());
        rig.gate(3, HANDLER, ExceptionStack::Current);
        rig
    }

    /// Sends what the guest prints to `console`.
    pub fn console(&mut self, console: impl Write + Send + 'static) {
        self.console = Box::new(console);
    }

    /// Samples the guest so many times a second.
    pub fn sample(&mut self, frequency: u32) {
        let frequency = NonZeroU32::new(frequency).unwrap();
        self.sampling = Some(Sampling { frequency, scope: Scope::Boot });
    }

    /// Walks stacks as those of this kernel.
    pub fn unwind(&mut self, code: KernelCode) {
        self.unwind = Some(Arc::new(code));
    }

    /// Plugs devices in.
    pub fn plug(&mut self, extras: Extras) {
        self.extras = extras;
    }

    /// Has the guest do `errands` that comes to the gate at `code`, which is written there already.
    pub fn send(&mut self, code: Code, errands: Errands) {
        self.sites.set.add_call_gate(code.trap());
        self.errands = Arc::new(errands);
    }

    /// Puts `bytes` into the guest's memory.
    pub fn write(&self, at: Gva, bytes: &[u8]) {
        self.guest.write(at, bytes).unwrap();
    }

    /// Lets exception or interrupt `vector` call `handler`; user mode may come through by instruction.
    pub fn gate(&self, vector: u8, handler: Gva, stack: ExceptionStack) {
        self.guest.gate(vector, handler, Privilege::User, stack).unwrap();
    }

    /// Arms `probes` at `at`, behind the instruction that is written there already.
    pub fn arm(&mut self, at: Gva, probes: &[u32]) {
        // There is no vCPU yet.
        let world = stopped();
        let parked = world.park(|_| {});
        self.sites.arm(&parked, self.guest.ram(), at, probes);
    }

    /// Arms `probes`, numbered from 0 on, at `at`.
    pub fn arm_probes(&mut self, at: Gva, probes: Vec<Probe>) {
        let world = stopped();
        self.sites.hang(&world.park(|_| {}), self.guest.ram(), at, numbered(probes), Anchor::Firm);
    }

    /// Arms `probe`, which records, at `at`, where one of ftrace's nops is.
    pub fn arm_nop(&mut self, at: Gva, probe: u32) {
        let world = stopped();
        let active = Arc::new(Active::on_its_own(ProbeId(probe), Probe::at("").record()));
        self.sites.hang(&world.park(|_| {}), self.guest.ram(), at, vec![active], Anchor::Nop);
    }

    /// Arms `probe` as number 0 at `at`, where an instruction is that runs from a copy: that goes to `slot`, and ends
    /// in a trap if there is a post handler.
    pub fn arm_copied(&mut self, at: Gva, probe: impl Into<Probe>, slot: Gva, ending: Ending) {
        let world = stopped();
        let probes = numbered(vec![probe.into()]);
        self.sites.hang_on_copy(&world.park(|_| {}), self.guest.ram(), at, probes, (slot, ending));
    }

    /// Arms a one-shot probe at `at`: whoever takes its hit restores the text.
    pub fn arm_once(&mut self, at: Gva, probe: u32) {
        let world = stopped();
        let (parked, ram) = (world.park(|_| {}), self.guest.ram());
        let mut original = [0];
        ram.read(Gpa(at.0), &mut original).unwrap();
        let step = StepMethod::PutBack(Arc::new(OneShot::new(Gpa(at.0), original[0])));
        let probes = attached(vec![once(probe)], Anchor::Firm);
        self.sites.put(&parked, ram, at, original[0], probes, step);
    }

    /// Arms a one-shot probe and one that stays at `at`.
    pub fn arm_once_and_always(&mut self, at: Gva, first: u32, stays: u32) {
        let world = stopped();
        let stays = Active::on_its_own(ProbeId(stays), Probe::at("").record());
        let probes = vec![once(first), Arc::new(stays)];
        self.sites.hang(&world.park(|_| {}), self.guest.ram(), at, probes, Anchor::Firm);
    }

    /// Lets the next debug register do this for `probe`.
    pub fn watch(&mut self, register: DebugRegister, id: u32, probe: impl Into<Probe>) {
        let active = Active::on_its_own(ProbeId(id), probe.into());
        self.watches.push((register, Arc::new(active)));
    }

    /// Starts one vCPU for each of `starts`, or leaves it to wait for ever.
    pub fn run(self, starts: &[Option<Start>]) -> Running {
        let cpus = u8::try_from(starts.len()).unwrap();
        let eventfd = || EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let mut devices = Devices::new(SerialConsole::new(eventfd(), self.console, true));
        let plugged = Plugged::plug(self.extras, self.guest.machine(), &mut devices.bus, true).unwrap();
        let devices = Arc::new(devices);
        let int3_handler = match self.fit.delivery {
            BreakpointDelivery::Intercepted => None,
            BreakpointDelivery::Reflected => Some(HANDLER),
        };
        let mut breakpoints = Breakpoints::default();
        breakpoints.0[3] = int3_handler.map(DebugRegister::execution);
        let int3_handlers = [int3_handler, None];
        let mut watches = [const { None }; 4];
        assert!(self.watches.len() <= self.fit.delivery.watches(), "no debug register is left");
        for (n, (register, active)) in self.watches.iter().enumerate() {
            (breakpoints.0[n], watches[n]) = (Some(*register), Some(active.clone()));
        }
        let sites = self.sites.set.clone();
        // It is all the kernel that there is.
        let kernel = KernelView { is_found: true, unwind: self.unwind.clone(), ..KernelView::default() };
        let tables = VcpuTables { kernel, sites, breakpoints, watches, ..VcpuTables::default() };
        let mut tables = VcpuTables { int3_handlers, errands: self.errands, ..tables };
        // Where a guest has its code as a kernel has. Elsewhere a hit may be of user mode, and asks for the privilege level.
        if starts.iter().flatten().any(|start| start.rip.is_kernels()) {
            tables.settle(self.guest.address_space());
        }
        let world = Arc::new(World::new(starts.len(), tables, Arc::new(eventfd())));
        let (recorders, reader) = events::rings(starts.len());
        let sampling = self.sampling.map(|sampling| samples::rings(starts.len(), sampling));
        let (samplers, samples) = sampling.unwrap_or_default();
        let mut samplers = samplers.into_iter();
        let (ends, ended) = mpsc::channel();
        signals::make_kick_harmless().unwrap();
        let kvms: Vec<_> = (0..)
            .zip(starts)
            .map(|(id, start)| {
                let kvm = self.guest.add_vcpu(&self.fit.hypervisor, id, cpus).unwrap();
                if let Some(start) = start {
                    micro::start(&kvm, start.rip, start.rsp, start.mode).unwrap();
                }
                kvm
            })
            .collect();
        let clock = Arc::new(Clock::start(kvms[0].tsc_khz()));
        let mut vcpus = Vec::new();
        for ((id, kvm), recorder) in (0..).zip(kvms).zip(recorders) {
            vcpus.push(Vcpu {
                id,
                kvm,
                clock: clock.clone(),
                mailbox: Mailbox::unattended().unwrap(),
                passed: None,
                step: None,
                was_moved: false,
                area: None,
                devices: devices.clone(),
                ram: self.guest.ram().clone(),
                world: world.clone(),
                recorder,
                sampler: samplers.next(),
                guard: None,
                ends: ends.clone(),
            });
        }
        let run = |vcpu: Vcpu| {
            std::thread::spawn(move || {
                assert!(confine::this_thread(Role::Vcpu).unwrap(), "the kernel has no seccomp");
                vcpu.main();
            })
        };
        let threads = vcpus.into_iter().map(run).collect();
        let Self { guest, sites, .. } = self;
        Running {
            guest,
            sites,
            world,
            threads,
            reader,
            samples,
            clock,
            ended,
            hits: Vec::new(),
            sampled: Vec::new(),
            _plugged: plugged,
        }
    }
}

impl Rig {
    /// Maps the reserved memory near `text`, and calls `fill` with it. Returns the guest's memory.
    pub fn reserve(&self, text: &Range<Gva>, fill: impl FnOnce(&mut Reserved, &GuestRam)) -> Arc<GuestRam> {
        let world = stopped();
        let ram = self.guest.ram();
        let space = self.guest.address_space();
        let mut reserved = Reserved::map(&world.park(|_| ()), ram, space, text).unwrap();
        fill(&mut reserved, ram);
        ram.clone()
    }
}

/// A world without vCPUs, in which nobody runs.
fn stopped() -> world::World<(), ()> {
    world::World::new(0, (), Arc::new(EventFd::new(0).unwrap()))
}

fn attached(probes: Vec<Arc<Active>>, anchor: Anchor) -> Vec<Attached<Arc<Active>>> {
    probes.into_iter().map(|probe| Attached { probe, anchor }).collect()
}

fn numbered(probes: Vec<Probe>) -> Vec<Arc<Active>> {
    let active = |(id, probe)| Arc::new(Active::on_its_own(ProbeId(id), probe));
    (0..).zip(probes).map(active).collect()
}

fn once(probe: u32) -> Arc<Active> {
    Arc::new(Active::on_its_own(ProbeId(probe), Probe::at("").record().once()))
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
    samples: SampleReader,
    clock: Arc<Clock>,
    ended: Receiver<End>,
    hits: Vec<Event>,
    sampled: Vec<Sample>,
    _plugged: Plugged,
}

impl Running {
    /// Stops all vCPUs and lets them go on, with a change of sites in between.
    fn change(&mut self, change: impl FnOnce(&mut Sites, &Parked<'_>, &GuestRam)) {
        let parked = self.world.park(|id| signals::kick(&self.threads[id]));
        change(&mut self.sites, &parked, self.guest.ram());
        let mut tables =
            VcpuTables { sites: self.sites.set.clone(), ..VcpuTables::clone(&self.world.tables()) };
        if let Some(kernel) = tables.kernel_space {
            tables.settle(kernel);
        }
        self.world.set_tables(&parked, tables);
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

    /// Has all vCPUs stand still until they [go on](Self::thaw).
    pub fn freeze(&self) {
        self.world.freeze(|id| signals::kick(&self.threads[id]));
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        self.world.thaw();
    }

    /// Writes to the guest's memory.
    pub fn write(&self, at: Gva, bytes: &[u8]) {
        self.guest.write(at, bytes).unwrap();
    }

    /// The u64 at `at`.
    pub fn u64(&self, at: Gva) -> u64 {
        self.guest.read_u64(at).unwrap()
    }

    /// Has `vcpu` execute one instruction while all stand still, and gives the registers behind it.
    pub fn step(&self, vcpu: usize) -> Regs {
        let park = || self.world.park(|id| signals::kick(&self.threads[id]));
        let set = |parked: &Parked<'_>, stepping| {
            let tables = VcpuTables { stepping, ..VcpuTables::clone(&self.world.tables()) };
            self.world.set_tables(parked, tables);
        };
        let parked = park();
        set(&parked, Some(vcpu));
        parked.let_alone(vcpu);
        drop(parked);
        let deadline = Instant::now() + PATIENCE;
        let request = loop {
            match self.world.take_requests().pop() {
                Some(request) => break request,
                None => assert!(Instant::now() < deadline, "the vCPU does not come back from its step"),
            }
            std::thread::sleep(Duration::from_micros(100));
        };
        assert!(matches!(request.cause, Cause::Stepped) && request.vcpu == vcpu);
        let parked = park();
        set(&parked, None);
        parked.freeze();
        parked.release(vcpu);
        request.regs
    }

    /// Stops all vCPUs, maps the reserved memory near `text`, and lets them go on behind `fill`.
    pub fn reserve(&self, text: &Range<Gva>, fill: impl FnOnce(&mut Reserved, &GuestRam)) -> Reserved {
        let parked = self.world.park(|id| signals::kick(&self.threads[id]));
        let ram = self.guest.ram();
        let mut reserved = Reserved::map(&parked, ram, self.guest.address_space(), text).unwrap();
        fill(&mut reserved, ram);
        reserved
    }

    /// Takes what the vCPUs have recorded.
    pub fn drain(&mut self) {
        while let Some(hits) = self.reader.drain(self.clock.rate(), &HashMap::new(), &[]) {
            self.hits.extend(hits);
        }
        self.sampled.extend(self.samples.drain(self.clock.rate(), |_| None));
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
        let (samples, time) = (self.sampled, self.samples.time(self.clock.rate()));
        Left { ram: self.guest.ram().clone(), hits: self.hits, counts, samples, time }
    }

    /// Runs until the one vCPU has switched the machine off.
    pub fn to_end(mut self) -> Left {
        self.until_off(1, |_| {});
        self.end()
    }
}

/// What is left of a guest.
pub struct Left {
    /// Its memory.
    pub ram: Arc<GuestRam>,
    /// All recorded hits in order of time.
    pub hits: Vec<Event>,
    /// Counted hits by probe.
    pub counts: Vec<u64>,
    /// All samples in order of time.
    pub samples: Vec<Sample>,
    /// What the time was spent on.
    pub time: SampledTime,
}

impl Left {
    /// `n` bytes of memory.
    pub fn bytes(&self, at: Gva, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.ram.read(gpa(at), &mut bytes).unwrap();
        bytes
    }

    /// The u64 at `at`.
    pub fn u64(&self, at: Gva) -> u64 {
        u64::from_le_bytes(self.bytes(at, 8).try_into().unwrap())
    }
}
