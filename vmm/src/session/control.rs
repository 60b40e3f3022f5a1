//! The control thread: one event loop for requests of vCPUs, signals, what the user types, and the drain timer.

use super::arming::Arming;
use super::counters::{AllDurations, Counters};
use super::handle::Message;
use super::holds::Holds;
use super::kernel_log::KernelLog;
use super::keys::{Keys, Typed};
use super::modules::Ledger;
use super::patience::Patience;
use super::postponed::Postponed;
use super::programs::Programs;
use super::registry::Registry;
use super::removed::{self, RemovedProbe};
use super::report::{Death, Outcome, ProbeReport, Refused, Report};
use super::scanning::Scanning;
use super::sending::Sending;
use super::spent::Sweep;
use super::stage::Stage;
use super::standstill::Standstill;
use super::stop::Stop;
use super::stopped::Debugging;
use super::tracepoints::Tracepoints;
use super::{AfterSplat, SessionError, Sink};
use crate::clock::{self, Clock};
use crate::confine::{self, Role};
use crate::devices::{Devices, PowerEvent};
use crate::errands::Closed;
use crate::events::{Event, Reader};
use crate::guard::Guard;
use crate::kvm::{EntryFilter, Statistics};
use crate::memory::GuestRam;
use crate::probe::HandlerRequest;
use crate::samples::SampleReader;
use crate::signals::Signals;
use crate::stack::Stack;
use crate::trap::Delivery;
use crate::vcpu::{End, Vcpu, World};
use crate::world::Parked;
use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use probe_engine::capture::tally::Group;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::splat::Splat;
use probe_engine::probe::table::ProbeId;
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::EventFd;

/// The vCPU threads, and how they are interrupted.
pub(super) struct Threads {
    handles: Vec<JoinHandle<()>>,
    world: Arc<World>,
}

impl Threads {
    pub(super) fn start(vcpus: Vec<Vcpu>, world: Arc<World>, confine: bool) -> Result<Self, SessionError> {
        crate::signals::make_kick_harmless()?;
        let mut threads = Self { handles: Vec::new(), world };
        let ids: Vec<usize> = vcpus.iter().map(|vcpu| vcpu.id).collect();
        for vcpu in vcpus {
            let thread = std::thread::Builder::new().name(format!("vcpu{}", vcpu.id));
            let run = move || {
                confine::this_thread_if(confine, Role::Vcpu);
                vcpu.main();
            };
            match thread.spawn(run) {
                Ok(handle) => threads.handles.push(handle),
                Err(error) => {
                    // Nobody may wait for those that never began.
                    ids.iter().skip(threads.handles.len()).for_each(|id| threads.world.ended(*id));
                    return Err(SessionError::Host("a thread", error));
                }
            }
        }
        Ok(threads)
    }

    pub(super) fn kick(&self, id: usize) {
        if let Some(handle) = self.handles.get(id) {
            crate::signals::kick(handle);
        }
    }

    fn end(&mut self) {
        self.world.end(|id| self.kick(id));
        for handle in self.handles.drain(..) {
            // A vCPU thread that panicked has printed why; the run is over all the same.
            let _ = handle.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if !self.handles.is_empty() {
            self.end();
        }
    }
}

/// Everything the control thread works with.
pub(super) struct Control<'a> {
    pub(super) kernel: Landmarks,
    pub(super) delivery: Delivery,
    pub(super) stage: Stage,
    pub(super) arming: Arming,
    pub(super) registry: Registry,
    /// The modules that are loaded.
    pub(super) ledger: Ledger,
    /// What would change their names, and waits for the sink.
    pub(super) postponed: Postponed,
    /// With the sink.
    pub(super) patience: Patience,
    /// Of traps that are for nothing.
    pub(super) sweep: Sweep,
    pub(super) ram: Arc<GuestRam>,
    pub(super) world: Arc<World>,
    pub(super) threads: Threads,
    pub(super) devices: Arc<Devices>,
    pub(super) log: KernelLog,
    pub(super) reader: Reader,
    /// Of the samples, if there are any.
    pub(super) samples: Option<SampleReader>,
    /// Who is asked about writes to the kernel's sealed pages, if these are guarded.
    pub(super) guard: Option<Arc<Guard>>,
    /// By what the registers are guarded by which programs enter its kernel, where they can be.
    pub(super) entry_filter: Option<EntryFilter>,
    /// When the guarded guest's memory is looked at while the guest runs, if it is.
    pub(super) scanning: Option<Scanning>,
    /// Of each vCPU; `None` where its KVM has none.
    pub(super) statistics: Option<Vec<Statistics>>,
    pub(super) clock: Arc<Clock>,
    pub(super) sink: &'a mut dyn Sink,
    pub(super) sink_failed: bool,
    /// Whether the sink knows that all is armed.
    pub(super) announced: bool,
    /// How long the guest has been stopped until then.
    pub(super) stopped: Duration,
    /// Hits that the sink did not take, by probe.
    pub(super) lost: HashMap<ProbeId, u64>,
    /// How long calls took.
    pub(super) durations: AllDurations,
    /// When the guest was started.
    pub(super) started: Instant,
    pub(super) removed: Vec<RemovedProbe>,
    pub(super) refused: Refused,
    pub(super) holds: Holds,
    /// Who is told where the guest stands.
    pub(super) debugging: Debugging,
    /// What the guest is to call for us.
    pub(super) sending: Sending,
    /// Which tracepoints are switched on.
    pub(super) tracepoints: Tracepoints,
    /// Which places in programs are registered.
    pub(super) programs: Programs,
    pub(super) wake: Arc<EventFd>,
    pub(super) messages: Receiver<Message>,
    /// What handlers want.
    pub(super) requests: Receiver<HandlerRequest>,
    pub(super) ended: Receiver<End>,
    pub(super) input: Option<File>,
    pub(super) interactive: bool,
    /// Whether signals end the guest.
    pub(super) signals: bool,
    pub(super) keys: Keys,
    pub(super) panic: Option<GuestPanic>,
    pub(super) outcome: Option<Outcome>,
    /// Since when all CPUs stand still because somebody wants that, in ticks.
    pub(super) paused: Option<u64>,
    /// Why they do.
    pub(super) pause_cause: PauseCause,
    pub(super) standstill: Standstill,
}

/// Why all CPUs of a guest stand still. It is let go where nobody wants that any more, or by a command alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PauseCause {
    /// Somebody has commanded it, and is there.
    Commands,
    /// The guest has not begun.
    Start,
    /// The guest's kernel has reported something.
    Report,
}

/// A panic that the guest is still busy with.
pub(super) struct GuestPanic {
    pub(super) message: String,
    pub(super) regs: Regs,
    pub(super) stack: Option<Stack>,
    /// When we wait for its reset no longer.
    pub(super) deadline: Instant,
}

/// What woke the event loop.
mod source {
    pub(super) const REQUEST: u32 = 0;
    pub(super) const SIGNAL: u32 = 1;
    pub(super) const INPUT: u32 = 2;
}

/// How often hits are drained and the console's unfinished lines shown.
const TICK: Duration = Duration::from_millis(5);
/// How long a guest that panicked may take to print and reset.
pub(super) const PANIC_GRACE: Duration = Duration::from_secs(10);

impl Control<'_> {
    /// Runs the guest to its end.
    pub(super) fn run(mut self) -> Result<Report, SessionError> {
        let signals = self.signals.then(Signals::catch).transpose();
        let signals = signals.map_err(|e| SessionError::Host("signal handlers", e))?;
        let failed = |_| SessionError::Host("an event loop", io::ErrorKind::Other.into());
        self.type_in_file();
        let mut manager = EventManager::new().map_err(failed)?;
        let id = manager.add_subscriber(Loop { control: self, signals });
        loop {
            manager.run_with_timeout(TICK.as_millis() as i32).map_err(failed)?;
            let control = &mut manager.subscriber_mut(id).map_err(failed)?.control;
            control.tick();
            if control.outcome.is_some() {
                break;
            }
        }
        let Loop { control, .. } = manager.remove_subscriber(id).map_err(failed)?;
        Ok(control.finish())
    }

    /// Ends the threads, drains what is left, restores the text.
    fn finish(mut self) -> Report {
        let ran = self.started.elapsed();
        self.threads.end();
        self.sending.errands.close(Closed::Ended);
        self.drain();
        self.hand_on_samples();
        self.hand_on_findings();
        self.hand_on_held();
        // What the console shows without an end is shown.
        self.devices.console.flush();
        let splats = self.log.finish(self.arming.running(), &self.ram);
        let _ = self.tell_splats(&splats);
        let groups = self.reader.close(self.arming.sites.detours.known());
        let groups = self.told_as(groups);
        let begun = Instant::now();
        let parked = self.world.park(|_| {});
        self.arming.disarm(&mut self.registry, &Stop { parked: &parked, ram: &self.ram });
        drop(parked);
        let disarmed_in = begun.elapsed();
        self.scan_at_end();
        let probes = self.observed();
        let end = self.outcome.take().unwrap_or(Outcome::Quit);
        let finished = |probe: &RemovedProbe| probe.finish(&self.reader, self.lost(probe.report().id));
        let removed: Vec<_> = self.removed.iter().map(finished).collect();
        let refused = std::mem::take(&mut self.refused);
        let exits = exits(self.statistics.as_deref());
        Report {
            end,
            exits,
            probes,
            groups,
            sampled: self.samples.as_ref().map(|samples| samples.time(self.clock.rate())),
            unregistered: removed::sum(&removed),
            removed,
            refused,
            unread: self.ledger.unread().to_vec(),
            guard: self.guard.as_ref().map(|guard| guard.report()),
            gates: self.registry.gates(),
            turns: self.registry.turns(),
            injections: self.registry.injections(),
            waits: self.reader.waits(),
            log_lost: self.log.lost(),
            ran,
            disarmed_in,
        }
    }

    /// Everything that is counted, so far, while no vCPU runs.
    pub(super) fn counters(&self, vcpus: usize) -> Counters {
        let probes = self.list();
        let mut durations = self.durations.all().clone();
        durations.retain(|id, _| probes.iter().any(|probe| probe.id == *id));
        Counters {
            ran: self.started.elapsed(),
            vcpus,
            is_armed: self.announced,
            is_paused: self.paused.is_some(),
            exits: exits(self.statistics.as_deref()),
            waits: self.reader.waits(),
            log_lost: self.log.lost(),
            probes,
            durations,
            groups: self.told_as(self.reader.groups(self.arming.sites.detours.known())),
            guard: self.guard.as_ref().map(|guard| guard.report()),
        }
    }

    /// The same groups, under the numbers of the probes that the sink is told.
    fn told_as(&self, groups: Vec<(ProbeId, Group)>) -> Vec<(ProbeId, Group)> {
        groups.into_iter().map(|(id, group)| (self.registry.told_as(id), group)).collect()
    }

    /// All probes with what they have seen so far.
    pub(super) fn list(&self) -> Vec<ProbeReport> {
        self.registry.report(&self.reader, |id| self.lost(id))
    }

    /// The same, but for those at which the guest stands still: whoever has them looks at the guest himself.
    pub(super) fn observed(&self) -> Vec<ProbeReport> {
        let mut probes = self.list();
        probes.retain(|probe| !self.registry.get(probe.id).is_some_and(|entry| entry.active.stops_guest()));
        probes
    }

    /// Hits of `id` that the sink did not take.
    pub(super) fn lost(&self, id: ProbeId) -> u64 {
        self.lost.get(&id).copied().unwrap_or(0)
    }

    /// What is done regularly, and after every event.
    fn tick(&mut self) {
        // It hands on more than the sink waits for: it comes first, or it might never come.
        if !self.postponed.is_empty() && self.takes_events() {
            self.attend();
        }
        self.scan_if_due();
        self.keep_up();
        self.end_holds();
        self.arming.sites.detours.look(&self.ram);
        let now = Instant::now();
        if self.has_due(now) {
            self.attend();
        }
        if let Ok(end) = self.ended.try_recv() {
            self.vcpu_ended(end);
        }
        let now = Instant::now();
        self.devices.console.look(now);
        if self.log.is_due(now) && self.takes_events() {
            self.look_at_log(now);
        }
        if self.panic.as_ref().is_some_and(|panic| now >= panic.deadline) {
            self.end_by_panic();
        }
        if self.outcome.is_none() {
            self.look_after(now);
        }
    }

    /// Whether something is to be done in a stop of the world that nobody has asked for.
    pub(super) fn has_due(&mut self, now: Instant) -> bool {
        self.arming.sites.is_due()
            || self.sweep.is_due(now)
            || self.sending.is_due(now)
            || self.tracepoints.has_results()
            || self.programs.has_results()
    }

    /// Ends a guest whose time is over, and one that will do nothing any more.
    fn look_after(&mut self, now: Instant) {
        let is_over = self.standstill.is_over(now);
        if !is_over
            && (self.paused.is_some()
                || !self.standstill.is_silent(now, || exits(self.statistics.as_deref())))
        {
            return;
        }
        let parked = self.world.park(|id| self.threads.kick(id));
        let (stands, tables) = (parked.positions(), self.world.tables());
        drop(parked);
        let is_halted = stands.iter().all(|stand| stand.is_halted);
        if !is_over && !is_halted {
            return;
        }
        let stands = self.stands(&stands, &tables);
        if is_over {
            self.outcome = Some(Outcome::TimedOut(stands));
        } else {
            self.outcome = Some(Outcome::Died(Death::Halted(stands)));
        }
    }

    fn vcpu_ended(&mut self, end: End) {
        if self.panic.is_some() {
            return self.end_by_panic();
        }
        let died = |death| Some(Outcome::Died(death));
        self.outcome = match end {
            End::Power(PowerEvent::Off) => Some(Outcome::PoweredOff),
            End::Power(PowerEvent::Reset) if !self.stage.is_over() => died(Death::EarlyReset),
            End::Power(PowerEvent::Reset) => Some(Outcome::Reset),
            End::Guarded => Some(Outcome::Guarded),
            End::TripleFault(regs) => died(Death::TripleFault(regs)),
            End::Failed(words, regs) => died(Death::Failed { words, regs }),
        };
    }

    fn end_by_panic(&mut self) {
        if let Some(GuestPanic { message, regs, stack, .. }) = self.panic.take() {
            let stack = stack.map(Box::new);
            self.outcome = Some(Outcome::Died(Death::Panic { message, regs, stack }));
        }
    }

    /// Hands the events on that have come in. A vCPU waits when there is no room for another one, and the others wait
    /// with it where that takes long.
    fn keep_up(&mut self) {
        let now = Instant::now();
        // A guest that stands still does not get on with its panic.
        let stands_still = self.paused.is_some() || self.patience.has_ended();
        if let Some(panic) = self.panic.as_mut().filter(|_| stands_still) {
            panic.deadline = panic.deadline.max(now + PANIC_GRACE);
        }
        if !self.takes_events() {
            if self.patience.is_over(now, || self.world.has_waiting() || !self.postponed.is_empty()) {
                self.world.freeze(|id| self.threads.kick(id));
            }
            return;
        }
        self.look_at_clock();
        if let Some(events) = self.reader.drain(
            self.clock.rate(),
            self.arming.sites.detours.known(),
            self.registry.read_probes(),
        ) {
            self.hand_on(&events);
        }
        self.hand_on_samples();
        self.hand_on_findings();
        self.hand_on_held();
        if self.patience.begin_anew() && self.paused.is_none() {
            self.world.thaw();
        }
    }

    /// Finds out what the guest's clock is, as far as it can be told.
    fn look_at_clock(&mut self) {
        let Some((layout, running)) = self.kernel.clock.zip(self.arming.running()) else { return };
        let memory = VirtMemory::new(&*self.ram, running.space);
        if let Some(clock) = layout.slid(running.map.slide()).read(&memory) {
            self.reader.know_clock(clock);
        }
    }

    /// Hands on what the kernel has reported, behind the events from before.
    fn look_at_log(&mut self, now: Instant) {
        let splats = self.log.look(self.arming.running(), &self.ram, now);
        if self.tell_splats(&splats) == AfterSplat::Stop && self.outcome.is_none() {
            let world = self.world.clone();
            self.stop_for_splat(&world.park(|id| self.threads.kick(id)));
        }
    }

    /// The kernel is about to report something, while no vCPU runs. Where nobody takes events, it goes on without being noticed in
    /// time: the log says it all the same.
    pub(super) fn about_to_report(&mut self) {
        if self.takes_events() {
            self.drain();
            self.look_at_log(Instant::now());
            self.sink.about_to_report();
        }
    }

    /// The kernel has written a report, if it was one, while no vCPU runs: one of them is still in it.
    pub(super) fn reported(&mut self, parked: &Parked<'_>) {
        if self.takes_events() {
            self.drain();
            let splats = self.log.told(self.arming.running(), &self.ram, Instant::now());
            if self.tell_splats(&splats) == AfterSplat::Stop {
                self.stop_for_splat(parked);
            }
        }
    }

    /// Says what is to follow.
    fn tell_splats(&mut self, splats: &[Splat]) -> AfterSplat {
        let mut after = AfterSplat::GoOn;
        for splat in splats {
            let nanos = self.reader.since_start(splat.nanos, self.clock.rate());
            if self.sink.splat(splat, nanos) == AfterSplat::Stop {
                after = AfterSplat::Stop;
            }
        }
        after
    }

    /// All CPUs stand still until somebody lets them go on.
    fn stop_for_splat(&mut self, parked: &Parked<'_>) {
        self.paused.get_or_insert_with(clock::ticks);
        self.pause_cause = PauseCause::Report;
        parked.freeze();
    }

    /// Whether events can be handed on without filling memory. One that has failed is not asked.
    pub(super) fn takes_events(&self) -> bool {
        self.sink_failed || self.sink.is_ready()
    }

    /// Hands all events on, while no vCPU runs: what is in the rings, and no more.
    pub(super) fn drain(&mut self) {
        while let Some(events) = self.reader.drain(
            self.clock.rate(),
            self.arming.sites.detours.known(),
            self.registry.read_probes(),
        ) {
            self.hand_on(&events);
        }
    }

    fn hand_on(&mut self, events: &[Event]) {
        if events.is_empty() {
            return;
        }
        self.durations.add(events);
        if self.sink_failed || self.sink.events(events).is_err() {
            self.sink_failed = true;
            for event in events {
                *self.lost.entry(event.probe).or_default() += 1;
            }
        }
    }

    /// Hands the samples on that have come in.
    fn hand_on_samples(&mut self) {
        let Some(reader) = &mut self.samples else { return };
        let samples = reader.drain(self.clock.rate(), |ticks| self.reader.guest_nanos(ticks));
        if samples.is_empty() {
            return;
        }
        if self.sink_failed || self.sink.samples(&samples).is_err() {
            self.sink_failed = true;
            reader.lose(&samples);
        }
    }

    fn typed(&mut self, bytes: &[u8]) {
        if !self.interactive {
            return self.devices.console.type_in(bytes);
        }
        match self.keys.filter(bytes) {
            Typed::Bytes(bytes) => self.devices.console.type_in(&bytes),
            Typed::Quit => self.outcome = Some(Outcome::Quit),
        }
    }

    /// A regular file cannot be waited for: it is typed in at once.
    fn type_in_file(&mut self) {
        /// What of a file is typed in.
        const MOST: u64 = 64 << 10;
        if self.input.as_ref().is_some_and(|f| f.metadata().is_ok_and(|m| m.is_file()))
            && let Some(file) = self.input.take()
        {
            let mut text = Vec::new();
            if file.take(MOST).read_to_end(&mut text).is_ok() {
                self.typed(&text);
            }
        }
    }
}

/// How often CPUs have left the guest, where KVM counts that.
fn exits(statistics: Option<&[Statistics]>) -> Option<u64> {
    Some(statistics?.iter().map(Statistics::exits).sum())
}

/// The control thread's one subscriber.
struct Loop<'a> {
    control: Control<'a>,
    signals: Option<Signals>,
}

impl MutEventSubscriber for Loop<'_> {
    fn init(&mut self, ops: &mut EventOps) {
        let input = EventSet::IN;
        // A descriptor that cannot be waited for is one whose events never come.
        let _ = ops.add(Events::with_data(&*self.control.wake, source::REQUEST, input));
        if let Some(signals) = &self.signals {
            let _ = ops.add(Events::with_data(signals, source::SIGNAL, input));
        }
        if let Some(file) = &self.control.input {
            let _ = ops.add(Events::with_data(file, source::INPUT, input));
        }
    }

    fn process(&mut self, events: Events, ops: &mut EventOps) {
        let control = &mut self.control;
        match events.data() {
            source::REQUEST => {
                let _ = control.wake.read();
                control.attend();
            }
            source::SIGNAL => {
                if let Some(signal) = self.signals.as_ref().and_then(Signals::take) {
                    control.outcome = Some(Outcome::Signal(signal));
                }
            }
            source::INPUT => {
                let mut bytes = [0; 4096];
                let count = control.input.as_mut().and_then(|f| f.read(&mut bytes).ok()).unwrap_or(0);
                match bytes.get(..count) {
                    Some(typed) if count > 0 => control.typed(typed),
                    _ => {
                        let _ = ops.remove(events);
                    }
                }
            }
            _ => {}
        }
    }
}
