//! The control thread: one event loop for requests of vCPUs, signals, what the user types, and the drain timer.

use super::arming::{Arming, StoppedText};
use super::keys::{Keys, Typed};
use super::report::{Death, Outcome, ProbeReport, Report};
use super::stage::{self, Reached, Stage};
use super::{SessionError, Sink, State};
use crate::clock::Clock;
use crate::devices::{Devices, PowerEvent};
use crate::events::Reader;
use crate::memory::GuestRam;
use crate::signals::Signals;
use crate::trap::Delivery;
use crate::vcpu::{End, Vcpu};
use crate::world::{Cause, Orders, Parked, Request, World};
use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use probe_engine::addr::Gva;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::memory::VirtMemory;
use probe_engine::probe::table::Internal;
use probe_engine::regs::Regs;
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
    pub(super) fn start(vcpus: Vec<Vcpu>, world: Arc<World>) -> Result<Self, SessionError> {
        crate::signals::make_kick_harmless()?;
        let mut threads = Self { handles: Vec::new(), world };
        for vcpu in vcpus {
            let handle = std::thread::Builder::new()
                .name(format!("vcpu{}", vcpu.id))
                .spawn(move || vcpu.main())
                .map_err(|e| SessionError::Host("a thread", e))?;
            threads.handles.push(handle);
        }
        Ok(threads)
    }

    fn kick(&self, id: usize) {
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
    pub(super) ram: Arc<GuestRam>,
    pub(super) world: Arc<World>,
    pub(super) threads: Threads,
    pub(super) devices: Arc<Devices>,
    pub(super) reader: Reader,
    pub(super) clock: Clock,
    pub(super) sink: &'a mut dyn Sink,
    pub(super) sink_failed: bool,
    /// Hits handed to the sink, by probe.
    pub(super) delivered: Vec<u64>,
    pub(super) wake: EventFd,
    pub(super) ended: Receiver<End>,
    pub(super) input: Option<File>,
    pub(super) interactive: bool,
    pub(super) keys: Keys,
    pub(super) panic: Option<GuestPanic>,
    pub(super) outcome: Option<Outcome>,
}

/// A panic that the guest is still busy with.
pub(super) struct GuestPanic {
    message: String,
    regs: Regs,
    /// When we wait for its reset no longer.
    deadline: Instant,
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
const PANIC_GRACE: Duration = Duration::from_secs(10);

impl Control<'_> {
    /// Runs the guest to its end.
    pub(super) fn run(mut self) -> Result<Report, SessionError> {
        let started = Instant::now();
        let signals = Signals::catch().map_err(|e| SessionError::Host("signal handlers", e))?;
        let failed = |_| SessionError::Host("an event loop", io::ErrorKind::Other.into());
        self.delivered = vec![0; self.arming.states().len()];
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
        Ok(control.finish(started.elapsed()))
    }

    /// Ends the threads, drains what is left, restores the text.
    fn finish(mut self, ran: Duration) -> Report {
        self.threads.end();
        self.drain();
        self.devices.console.flush();
        let parked = self.world.park(|_| {});
        self.arming.disarm(&parked, &self.ram);
        drop(parked);
        let (reader, delivered) = (&self.reader, &self.delivered);
        let probes = self
            .arming
            .into_states()
            .map(|(id, probe, state)| {
                let hits = delivered.get(id.0 as usize).copied().unwrap_or(0);
                let address = match state {
                    State::Armed(at) | State::Gone(at) | State::Overwritten(at) => at,
                    State::Waiting | State::Refused(_) => probe.link,
                };
                let missed = reader.hits(id).saturating_sub(hits);
                ProbeReport { name: probe.name, address, hits, missed, state }
            })
            .collect();
        let end = self.outcome.unwrap_or(Outcome::Quit);
        Report { end, probes, waits: self.reader.waits(), ran }
    }

    /// What is done regularly, and after every event.
    fn tick(&mut self) {
        self.drain();
        if let Ok(end) = self.ended.try_recv() {
            self.vcpu_ended(end);
        }
        if self.panic.as_ref().is_some_and(|panic| Instant::now() >= panic.deadline) {
            self.end_by_panic();
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
            End::TripleFault(regs) => died(Death::TripleFault(regs)),
            End::Failed(words, regs) => died(Death::Failed { words, regs }),
        };
    }

    fn end_by_panic(&mut self) {
        if let Some(GuestPanic { message, regs, .. }) = self.panic.take() {
            self.outcome = Some(Outcome::Died(Death::Panic { message, regs }));
        }
    }

    /// Hands the hits on that have come in.
    fn drain(&mut self) {
        let hits = self.reader.drain(self.clock.rate());
        if hits.is_empty() || self.sink_failed {
            return;
        }
        match self.sink.hits(hits) {
            Ok(()) => {
                for hit in hits {
                    if let Some(count) = self.delivered.get_mut(hit.probe.0 as usize) {
                        *count += 1;
                    }
                }
            }
            Err(_) => self.sink_failed = true,
        }
    }

    /// Answers the vCPUs that stopped by themselves, all in one stop of the world.
    fn answer_requests(&mut self) {
        let requests = self.world.take_requests();
        if requests.is_empty() || self.outcome.is_some() {
            return;
        }
        let world = self.world.clone();
        let parked = world.park(|id| self.threads.kick(id));
        let mut orders = Orders::clone(&world.orders());
        for request in requests {
            match request.cause {
                Cause::Breakpoint => self.stage_reached(&request, &parked, &mut orders),
                Cause::Internal(internal) => self.internal_reached(&request, internal, &parked, &mut orders),
            }
            parked.release(request.vcpu);
        }
        parked.set_orders(orders);
    }

    fn stage_reached(&mut self, request: &Request, parked: &Parked<'_>, orders: &mut Orders) {
        let reached = self.stage.reach(request, &self.kernel, &self.ram);
        let lost = match reached {
            Ok(None) => return,
            Ok(Some(reached)) => {
                match reached {
                    Reached::Decompressor | Reached::Kernel => {}
                    Reached::Early(map) => {
                        orders.int3_handler = self.watched_handler(request);
                        let text = StoppedText { parked, ram: &self.ram, map: &map };
                        self.arming.arm_early(&text, &mut orders.sites);
                    }
                    Reached::Late(map) => {
                        orders.int3_handler = self.watched_handler(request);
                        let text = StoppedText { parked, ram: &self.ram, map: &map };
                        self.arming.arm_late(&text, &mut orders.sites);
                        self.sink.armed(self.arming.states());
                    }
                }
                self.stage.breakpoints(&self.kernel)
            }
            Err(error) => Err(error),
        };
        match lost {
            Ok(stage) => orders.breakpoints = stage::breakpoints(&stage, orders.int3_handler),
            Err(error) => self.outcome = Some(Outcome::Died(Death::Lost(error.to_string()))),
        }
    }

    /// The guest's handler for vector 3, where a breakpoint has to stand on it: its IDT is the truth.
    fn watched_handler(&self, request: &Request) -> Option<Gva> {
        match self.delivery {
            Delivery::Intercepted => None,
            Delivery::Reflected => {
                let memory = VirtMemory { phys: &*self.ram, space: request.space };
                crate::trap::int3_handler(request.idt, &memory).ok()
            }
        }
    }

    fn internal_reached(
        &mut self,
        request: &Request,
        internal: Internal,
        parked: &Parked<'_>,
        orders: &mut Orders,
    ) {
        match internal {
            Internal::FreeInitText => {
                self.arming.retire_init_text(parked, &self.ram, &mut orders.sites);
            }
            Internal::Panic => {
                let memory = VirtMemory { phys: &*self.ram, space: request.space };
                let message = read_text(Gva(request.regs.rdi), &memory);
                let deadline = Instant::now() + PANIC_GRACE;
                self.panic = Some(GuestPanic { message, regs: request.regs, deadline });
            }
        }
        self.arming.reached(Gva(request.regs.rip), parked, &self.ram, &mut orders.sites);
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

/// The format string of a panic: printable text of at most a line.
fn read_text(at: Gva, memory: &VirtMemory<'_, GuestRam>) -> String {
    const LONGEST: u64 = 200;
    let mut text = String::new();
    for offset in 0..LONGEST {
        let mut byte = [0];
        match memory.read(at.add(offset), &mut byte) {
            Ok(()) if byte != [0] && byte != *b"\n" => text.extend(byte.escape_ascii().map(char::from)),
            _ => break,
        }
    }
    text
}

/// The control thread's one subscriber.
struct Loop<'a> {
    control: Control<'a>,
    signals: Signals,
}

impl MutEventSubscriber for Loop<'_> {
    fn init(&mut self, ops: &mut EventOps) {
        let input = EventSet::IN;
        // A descriptor that cannot be waited for is one whose events never come.
        let _ = ops.add(Events::with_data(&self.control.wake, source::REQUEST, input));
        let _ = ops.add(Events::with_data(&self.signals, source::SIGNAL, input));
        if let Some(file) = &self.control.input {
            let _ = ops.add(Events::with_data(file, source::INPUT, input));
        }
    }

    fn process(&mut self, events: Events, ops: &mut EventOps) {
        let control = &mut self.control;
        match events.data() {
            source::REQUEST => {
                let _ = control.wake.read();
                control.answer_requests();
            }
            source::SIGNAL => {
                if let Some(signal) = self.signals.take() {
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
