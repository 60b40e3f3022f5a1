//! What a user registers: a place, and what is done there.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use vmm::probe::{Hit, Probe};
//!
//! let bytes = Arc::new(AtomicU64::new(0));
//! let asked = bytes.clone();
//! // Handlers run on the thread of the vCPU that took the hit, on several at once.
//! let reads = Probe::at("vfs_read").pre(move |hit: &mut Hit| {
//!     asked.fetch_add(hit.argument(2).unwrap_or(0), Ordering::Relaxed);
//! });
//! // What the entry handler gives, the return handler gets: one for each call.
//! let slow = Probe::on_return("vfs_read")
//!     .entry(|hit: &mut Hit| (hit.regs.rdx > 4096).then_some(hit.regs.rdx))
//!     .handler(|hit: &mut Hit, asked: u64| println!("{} of {asked} bytes", hit.regs.rax as i64))
//!     .max_active(64);
//! // Who writes to a variable? RIP is behind the instruction that did.
//! let writes = Probe::watch("panic_on_oops:4:w")
//!     .handler(|hit: &mut Hit| println!("{:#x} made it {:?}", hit.regs.rip, hit.access()));
//! # let _ = (reads, slow, writes, bytes);
//! ```

mod active;
mod command;
mod hit;
mod member;

pub use active::{Active, NoDetour};
pub(crate) use active::{Kind, Miss, Watching};
pub use command::Command;
pub(crate) use command::HandlerRequest;
pub(crate) use hit::HitContext;
pub use hit::{Access, Fault, Hit};
pub use member::{Member, MemberError};

use probe_engine::capture::Capture;
use probe_engine::capture::hist::Histogram;
use probe_engine::linux::scope::Scope;
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::{Action, ProbePlan, Trigger};
use probe_engine::request::{DefinitionError, trigger_of};
use std::any::Any;
use std::marker::PhantomData;

/// Where a probe goes.
#[derive(Debug, Clone)]
pub enum Where {
    /// As text, resolved with the session's kernel: see
    /// [`ProbeSpec`](probe_engine::probe::spec::ProbeSpec), and for a watch
    /// [`WatchSpec`](probe_engine::probe::watch::WatchSpec).
    Spec(String),
    /// As a definition, which also says what is read there and which hits count.
    Definition(String),
    /// Resolved already.
    Place(Place),
}

impl From<&str> for Where {
    fn from(spec: &str) -> Self {
        Self::Spec(spec.to_owned())
    }
}

impl From<String> for Where {
    fn from(spec: String) -> Self {
        Self::Spec(spec)
    }
}

impl From<Place> for Where {
    fn from(place: Place) -> Self {
        Self::Place(place)
    }
}

type Handler = Box<dyn Fn(&mut Hit<'_>) + Send + Sync>;
type FaultHandler = Box<dyn Fn(&Hit<'_>, &Fault) + Send + Sync>;
/// What an entry handler keeps for the return; `None` when the call is not to be followed.
type EntryHandler = Box<dyn Fn(&mut Hit<'_>) -> Option<Data> + Send + Sync>;
type ReturnHandler = Box<dyn Fn(&mut Hit<'_>, Option<Data>) + Send + Sync>;
/// A user's data for one call.
pub(crate) type Data = Box<dyn Any + Send>;

/// The user's handlers at an instruction.
#[derive(Default)]
pub(crate) struct InstructionHandlers {
    pub(crate) pre: Option<Handler>,
    pub(crate) post: Option<Handler>,
    pub(crate) fault: Option<FaultHandler>,
}

/// The user's handlers of a call.
#[derive(Default)]
pub(crate) struct ReturnHandlers {
    pub(crate) entry: Option<EntryHandler>,
    pub(crate) handler: Option<ReturnHandler>,
}

/// The user's handlers, as the probe's trigger calls them.
pub(crate) enum Handlers {
    Instruction(InstructionHandlers),
    Return(ReturnHandlers),
    Watch(Option<Handler>),
}

/// A probe to be registered.
#[must_use = "a probe does nothing until it is registered"]
pub struct Probe {
    pub(crate) at: Where,
    pub(crate) plan: ProbePlan,
    pub(crate) handlers: Handlers,
    pub(crate) enabled: bool,
}

impl Probe {
    /// A probe on an instruction: `vfs_read`, `vfs_read+0x10`, `dummy:dummy_xmit`, an address as linked.
    pub fn at(at: impl Into<Where>) -> Self {
        Self::of_plan(at, ProbePlan::new(Trigger::Pass))
    }

    /// A probe as `definition` says, a line in the language of the kernel's `kprobe_events`: `p:opens do_sys_openat2
    /// name=filename:ustring if name ~ "/etc/*"`, or a place alone. It is looked up in the session's kernel when the probe is
    /// registered. Each hit is recorded, with what was read, which the event [gives](crate::events::Event::get) by its name.
    ///
    /// # Errors
    /// [`DefinitionError`] when it is not understood, with the place of the mistake in the text.
    pub fn define(definition: &str) -> Result<DefinedProbe, DefinitionError> {
        let plan = ProbePlan::new(trigger_of(definition)?).recorded();
        Ok(DefinedProbe(Self::of_plan(Where::Definition(definition.to_owned()), plan)))
    }

    /// A probe that does what `plan` says, without handlers.
    pub fn of_plan(at: impl Into<Where>, plan: ProbePlan) -> Self {
        let handlers = match plan.trigger {
            Trigger::Pass => Handlers::Instruction(InstructionHandlers::default()),
            Trigger::Return { .. } => Handlers::Return(ReturnHandlers::default()),
            Trigger::Access => Handlers::Watch(None),
        };
        Self { at: at.into(), plan, handlers, enabled: true }
    }

    /// A probe on the returns of a function.
    pub fn on_return(at: impl Into<Where>) -> ReturnProbe<Entered<()>> {
        let plan = ProbePlan::new(Trigger::Return { max_active: None });
        ReturnProbe { probe: Self::of_plan(at, plan), given: PhantomData }
    }

    /// A watch of the kernel's memory: `jiffies:8:w` (writes), `panic_on_oops:4:rw` (reads and writes), or of an
    /// instruction without touching the text: `schedule:1:x`. See
    /// [`WatchSpec`](probe_engine::probe::watch::WatchSpec).
    ///
    /// It is set on every vCPU when the kernel's boot has come to `rest_init`. How many places can be watched at a
    /// time depends on the host: [`Delivery::watches`](crate::trap::Delivery::watches). What the host accesses for
    /// the guest (a device, a probed instruction that is emulated) is not seen, and while anything is watched, the
    /// guest's own debug registers have no effect.
    pub fn watch(at: impl Into<Where>) -> WatchProbe {
        WatchProbe(Self::of_plan(at, ProbePlan::new(Trigger::Access)))
    }

    /// Calls `handler` before the instruction, on the thread of the vCPU that hits it: several may call it at the
    /// same time, and the guest's CPU waits for it. One that panics disables its probe. It may change registers and memory, redirect RIP, or skip the
    /// function; if it changes RIP, the instruction is not executed and no post handler runs. Where handlers were given
    /// before, it is called behind them.
    pub fn pre(mut self, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        if let Handlers::Instruction(handlers) = &mut self.handlers {
            handlers.pre = Some(behind(handlers.pre.take(), handler));
        }
        self
    }

    /// Calls `handler` after the instruction, with the registers that it left, behind handlers that were given before.
    pub fn post(mut self, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        if let Handlers::Instruction(handlers) = &mut self.handlers {
            handlers.post = Some(behind(handlers.post.take(), handler));
        }
        self
    }

    /// Calls `handler` when the instruction faults, behind handlers that were given before. The fault is the guest's: it
    /// handles it as it always does.
    pub fn fault(mut self, handler: impl Fn(&Hit<'_>, &Fault) + Send + Sync + 'static) -> Self {
        if let Handlers::Instruction(handlers) = &mut self.handlers {
            handlers.fault = Some(match handlers.fault.take() {
                None => Box::new(handler),
                Some(first) => Box::new(move |hit, fault| {
                    first(hit, fault);
                    handler(hit, fault);
                }),
            });
        }
        self
    }

    /// Also writes every hit down for the session's [`Sink`](crate::session::Sink).
    pub fn record(mut self) -> Self {
        if self.plan.action == Action::Count {
            self.plan.action = Action::Record { stack: None };
        }
        self
    }

    /// Reads what `capture` says at every hit, for its [event](crate::events::Event::captured). Hits that its filter does not
    /// let pass are not hits of this probe: they are not counted, and reach no handler.
    pub fn capture(mut self, capture: Capture) -> Self {
        self.plan.capture = capture;
        self
    }

    /// Hits are only wanted for a histogram of what is [captured](Self::capture). Where a detour can count them by its keys
    /// in the guest, they come as [groups](crate::session::Report::groups) in the end; all others are written down as by
    /// [`Probe::record`].
    pub fn histogram(mut self, histogram: Histogram) -> Self {
        self.plan.action = Action::Histogram(histogram);
        self
    }

    /// Writes every hit down as [`Probe::record`] does, with who called, in at most `most` frames of the kernel:
    /// [`FRAMES`](crate::stack::FRAMES) are enough for most, and there are never more than
    /// [`MOST_FRAMES`](crate::stack::MOST_FRAMES). The session needs to know
    /// [how](crate::guest::Guest::stacks).
    pub fn stack(mut self, most: usize) -> Self {
        self.plan.action = Action::Record { stack: Some(most) };
        self
    }

    /// Only the first hit counts: the text is then restored, and the function costs nothing more. Such a probe has a
    /// pre handler at most.
    pub fn once(mut self) -> Self {
        self.plan.once = true;
        self
    }

    /// Is registered, but armed only when it gets enabled.
    pub fn disabled(mut self) -> Self {
        self.enabled = false;
        self
    }

    /// Only what is in `scope` is a hit of it, or a call that it follows. The others reach no handler; they are
    /// [counted](crate::session::ProbeReport::outside) apart. Where the guest does not tell, none is.
    pub fn within(mut self, scope: Scope) -> Self {
        self.plan.scope = scope;
        self
    }
}

/// `first`, if there is one, and then `handler`.
fn behind(first: Option<Handler>, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Handler {
    match first {
        None => Box::new(handler),
        Some(first) => Box::new(move |hit| {
            first(hit);
            handler(hit);
        }),
    }
}

/// A probe on the returns of a function. `G` is what was given of its handlers: the one for the entry comes first, for it
/// says what the one for the return gets.
///
/// ```compile_fail
/// # use vmm::probe::{Hit, Probe};
/// Probe::on_return("vfs_read").handler(|_: &mut Hit, ()| {}).entry(|hit: &mut Hit| Some(hit.regs.rdx));
/// ```
#[must_use = "a probe does nothing until it is registered"]
pub struct ReturnProbe<G> {
    probe: Probe,
    given: PhantomData<fn() -> G>,
}

/// An entry handler that keeps a `T` for each call, or none, which keeps `()`.
pub struct Entered<T>(PhantomData<T>);

/// All handlers.
pub struct Handled;

impl ReturnProbe<Entered<()>> {
    /// Calls `entry` when the function is entered: what it gives is kept until the return, `None` refuses to
    /// follow this call.
    pub fn entry<T: Send + 'static>(
        mut self,
        entry: impl Fn(&mut Hit<'_>) -> Option<T> + Send + Sync + 'static,
    ) -> ReturnProbe<Entered<T>> {
        if let Handlers::Return(handlers) = &mut self.probe.handlers {
            handlers.entry = Some(Box::new(move |hit| entry(hit).map(|data| Box::new(data) as Data)));
        }
        ReturnProbe { probe: self.probe, given: PhantomData }
    }
}

impl<T: Send + 'static> ReturnProbe<Entered<T>> {
    /// Calls `handler` when the function has returned to its caller: RAX is its value, RIP the return address.
    pub fn handler(
        mut self,
        handler: impl Fn(&mut Hit<'_>, T) + Send + Sync + 'static,
    ) -> ReturnProbe<Handled> {
        if let Handlers::Return(handlers) = &mut self.probe.handlers {
            handlers.handler = Some(Box::new(move |hit, data: Option<Data>| {
                // Without an entry handler T is (), of which there is always one.
                let data = data.unwrap_or_else(|| Box::new(()));
                if let Ok(data) = data.downcast::<T>() {
                    handler(hit, *data);
                }
            }));
        }
        ReturnProbe { probe: self.probe, given: PhantomData }
    }
}

impl<G> ReturnProbe<G> {
    /// How many calls are followed at the same time; the others are counted as missed. The default is ten, or
    /// twice the number of vCPUs if that is more.
    pub fn max_active(mut self, calls: u32) -> Self {
        if let Trigger::Return { max_active } = &mut self.probe.plan.trigger {
            *max_active = Some(calls.max(1));
        }
        self
    }

    /// See [`Probe::record`].
    pub fn record(mut self) -> Self {
        self.probe = self.probe.record();
        self
    }

    /// See [`Probe::capture`]. It reads when the function has returned; arguments are those that it was entered with.
    pub fn capture(mut self, capture: Capture) -> Self {
        self.probe = self.probe.capture(capture);
        self
    }

    /// See [`Probe::histogram`].
    pub fn histogram(mut self, histogram: Histogram) -> Self {
        self.probe = self.probe.histogram(histogram);
        self
    }

    /// See [`Probe::stack`]. The first frame is the caller.
    pub fn stack(mut self, most: usize) -> Self {
        self.probe = self.probe.stack(most);
        self
    }

    /// See [`Probe::disabled`].
    pub fn disabled(mut self) -> Self {
        self.probe.enabled = false;
        self
    }
}

/// A probe by a [definition](Probe::define).
#[must_use = "a probe does nothing until it is registered"]
pub struct DefinedProbe(Probe);

impl DefinedProbe {
    /// Calls `handler` at each hit that counts: before the instruction, or when the function has returned. What was read is
    /// [there](Hit::get) by its name. Such a probe stands on a trap.
    pub fn handler(mut self, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        match &mut self.0.handlers {
            Handlers::Instruction(handlers) => handlers.pre = Some(Box::new(handler)),
            Handlers::Return(handlers) => handlers.handler = Some(Box::new(move |hit, _| handler(hit))),
            Handlers::Watch(first) => *first = Some(Box::new(handler)),
        }
        self
    }

    /// See [`Probe::stack`].
    pub fn stack(mut self, most: usize) -> Self {
        self.0 = self.0.stack(most);
        self
    }

    /// See [`Probe::disabled`].
    pub fn disabled(mut self) -> Self {
        self.0.enabled = false;
        self
    }

    /// See [`Probe::within`].
    pub fn within(mut self, scope: Scope) -> Self {
        self.0 = self.0.within(scope);
        self
    }
}

impl From<DefinedProbe> for Probe {
    fn from(probe: DefinedProbe) -> Self {
        probe.0
    }
}

/// A watch of memory, or of an instruction.
#[must_use = "a probe does nothing until it is registered"]
pub struct WatchProbe(Probe);

impl WatchProbe {
    /// Calls `handler` after an access, or before an execution: [`Hit::access`] tells the values, RIP who it was. Where
    /// handlers were given before, it is called behind them.
    pub fn handler(mut self, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        if let Handlers::Watch(first) = &mut self.0.handlers {
            *first = Some(behind(first.take(), handler));
        }
        self
    }

    /// See [`Probe::record`].
    pub fn record(mut self) -> Self {
        self.0 = self.0.record();
        self
    }

    /// See [`Probe::stack`].
    pub fn stack(mut self, most: usize) -> Self {
        self.0 = self.0.stack(most);
        self
    }

    /// See [`Probe::disabled`]. It needs its debug register all the same.
    pub fn disabled(mut self) -> Self {
        self.0.enabled = false;
        self
    }
}

impl From<WatchProbe> for Probe {
    fn from(probe: WatchProbe) -> Self {
        probe.0
    }
}

impl<G> From<ReturnProbe<G>> for Probe {
    fn from(probe: ReturnProbe<G>) -> Self {
        probe.probe
    }
}
