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
mod handlers;
mod hit;
mod member;
mod program;

pub use active::{Active, NoDetour};
pub(crate) use active::{Kin, Kind, Miss, Pacing, Watching};
pub use command::Command;
pub(crate) use command::{HandlerRequest, Waiting};
pub(crate) use handlers::{Data, Handler};
pub use handlers::{Entered, Handled, Handlers, InstructionHandlers, ReturnHandlers, WatchHandler};
pub(crate) use hit::HitContext;
pub use hit::{Access, Fault, Hit};
pub use member::{Member, MemberError};
pub use program::ProgramRegs;

use probe_engine::capture::Capture;
use probe_engine::capture::hist::Histogram;
use probe_engine::linux::scope::Scope;
use probe_engine::probe::inject::Inject;
use probe_engine::probe::pace::Pace;
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::{Action, ProbePlan, Trigger};
use probe_engine::request::{DefinitionError, trigger_of};

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

/// A probe to be registered. `H` is which handlers it can be given: only those that its trigger calls. All kinds are turned
/// into a plain `Probe` when they are registered.
///
/// ```compile_fail
/// # use vmm::probe::Probe;
/// Probe::on_return("vfs_read").pre(|_| {});
/// ```
#[must_use = "a probe does nothing until it is registered"]
pub struct Probe<H = Handlers> {
    pub(crate) at: Where,
    pub(crate) plan: ProbePlan,
    pub(crate) handlers: H,
    pub(crate) enabled: bool,
}

/// A probe on an instruction.
pub type InstructionProbe = Probe<InstructionHandlers>;

/// A probe on the returns of a function. `G` is what was given of its handlers: the one for the entry comes first, for it
/// says what the one for the return gets.
///
/// ```compile_fail
/// # use vmm::probe::{Hit, Probe};
/// Probe::on_return("vfs_read").handler(|_: &mut Hit, ()| {}).entry(|hit: &mut Hit| Some(hit.regs.rdx));
/// ```
pub type ReturnProbe<G> = Probe<ReturnHandlers<G>>;

/// A watch of memory, or of an instruction.
pub type WatchProbe = Probe<WatchHandler>;

impl Probe {
    /// A probe on an instruction: `vfs_read`, `vfs_read+0x10`, `dummy:dummy_xmit`, an address as linked.
    pub fn at(at: impl Into<Where>) -> InstructionProbe {
        Probe::new(at, ProbePlan::new(Trigger::Pass), InstructionHandlers::default())
    }

    /// A probe as `definition` says, a line in the language of the kernel's `kprobe_events`: `p:opens do_sys_openat2
    /// name=filename:ustring if name ~ "/etc/*"`, or a place alone. It is looked up in the session's kernel when the probe is
    /// registered. Each hit is recorded, with what was read, which the event [gives](crate::events::Event::get) by its name.
    ///
    /// # Errors
    /// [`DefinitionError`] when it is not understood, with the place of the mistake in the text.
    pub fn define(definition: &str) -> Result<Self, DefinitionError> {
        let plan = ProbePlan::new(trigger_of(definition)?).recorded();
        Ok(Self::of_plan(Where::Definition(definition.to_owned()), plan))
    }

    /// A probe that does what `plan` says, without handlers.
    pub fn of_plan(at: impl Into<Where>, plan: ProbePlan) -> Self {
        let handlers = Handlers::of(plan.trigger);
        Self::new(at, plan, handlers)
    }

    /// A probe on the returns of a function.
    pub fn on_return(at: impl Into<Where>) -> ReturnProbe<Entered<()>> {
        let plan = ProbePlan::new(Trigger::Return { max_active: None });
        Probe::new(at, plan, ReturnHandlers::default())
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
        Probe::new(at, ProbePlan::new(Trigger::Access), WatchHandler::default())
    }
}

impl<H> Probe<H> {
    fn new(at: impl Into<Where>, plan: ProbePlan, handlers: H) -> Self {
        Self { at: at.into(), plan, handlers, enabled: true }
    }

    /// Also writes every hit down for the session's [`Sink`](crate::session::Sink).
    pub fn record(mut self) -> Self {
        if self.plan.action == Action::Count {
            self.plan.action = Action::Record { stack: None };
        }
        self
    }

    /// Reads what `capture` says at every hit, for its [event](crate::events::Event::captured). Hits that its filter does not
    /// let pass are not hits of this probe: they are not counted, and reach no handler. A return probe reads when the function
    /// has returned; arguments are those that the function was entered with.
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
    /// [how](crate::guest::Guest::stacks). At a return, the first frame is the caller.
    pub fn stack(mut self, most: usize) -> Self {
        self.plan.action = Action::Record { stack: Some(most) };
        self
    }

    /// Is registered, but armed only when it gets enabled. A watch needs its debug register all the same.
    pub fn disabled(mut self) -> Self {
        self.enabled = false;
        self
    }

    /// Each hit that counts makes its CPU wait, or lets one go on that waits: see [`Pace`]. A watch and a one-shot probe do
    /// neither.
    pub fn paced(mut self, pace: Pace) -> Self {
        self.plan.pace = Some(pace);
        self
    }

    /// Calls of the function fail, or those below it: see [`Inject`]. A hit is a call that fails, and no other one. The return
    /// probes of the function see its return.
    pub fn injecting(mut self, inject: Inject) -> Self {
        self.plan.inject = Some(inject);
        self
    }

    /// Only what is in `scope` is a hit of it, or a call that it follows. The others reach no handler; they are
    /// [counted](crate::session::ProbeReport::outside) apart. Where the guest does not tell, none is.
    pub fn within(mut self, scope: Scope) -> Self {
        self.plan.scope = scope;
        self
    }
}
