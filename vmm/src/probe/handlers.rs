//! The user's handlers: a probe takes those that its trigger calls, and no others.

use super::{Fault, Hit, Probe, ReturnProbe};
use probe_engine::probe::plan::Trigger;
use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

pub(crate) type Handler = Arc<dyn Fn(&mut Hit<'_>) + Send + Sync>;
type FaultHandler = Arc<dyn Fn(&Hit<'_>, &Fault) + Send + Sync>;
/// What an entry handler keeps for the return; `None` when the call is not to be followed.
type EntryHandler = Box<dyn Fn(&mut Hit<'_>) -> Option<Data> + Send + Sync>;
type ReturnHandler = Box<dyn Fn(&mut Hit<'_>, Option<Data>) + Send + Sync>;
/// A user's data for one call.
pub(crate) type Data = Box<dyn Any + Send>;

/// The handlers of a probe with any trigger.
pub enum Handlers {
    /// Of an instruction.
    Instruction(InstructionHandlers),
    /// Of a function's returns.
    Return(ReturnHandlers),
    /// Of watched memory.
    Watch(WatchHandler),
}

impl Handlers {
    /// None yet.
    pub(super) fn of(trigger: Trigger) -> Self {
        match trigger {
            Trigger::Pass => Self::Instruction(InstructionHandlers::default()),
            Trigger::Return { .. } => Self::Return(ReturnHandlers::default()),
            Trigger::Access => Self::Watch(WatchHandler::default()),
        }
    }

    /// Whether nobody is called at a hit, so that a detour may serve the probe.
    pub(crate) fn are_none(&self) -> bool {
        match self {
            Self::Instruction(InstructionHandlers { pre, post, fault }) => {
                pre.is_none() && post.is_none() && fault.is_none()
            }
            Self::Return(ReturnHandlers { entry, handler, .. }) => entry.is_none() && handler.is_none(),
            Self::Watch(_) => false,
        }
    }
}

impl Probe {
    /// Calls `handler` at each hit that counts: before the instruction, when the function has returned, or when memory was
    /// accessed. What was read is [there](Hit::get) by its name. Such a probe stands on a trap. Where handlers were given
    /// before, it is called behind them.
    pub fn handler(mut self, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        match &mut self.handlers {
            Handlers::Instruction(handlers) => handlers.pre = Some(behind(handlers.pre.take(), handler)),
            Handlers::Return(handlers) => {
                handlers.handler = Some(match handlers.handler.take() {
                    None => Box::new(move |hit, _| handler(hit)),
                    Some(first) => Box::new(move |hit, data| {
                        first(hit, data);
                        handler(hit);
                    }),
                });
            }
            Handlers::Watch(watch) => watch.0 = Some(behind(watch.0.take(), handler)),
        }
        self
    }
}

/// The handlers at an instruction.
#[derive(Default, Clone)]
pub struct InstructionHandlers {
    pub(crate) pre: Option<Handler>,
    pub(crate) post: Option<Handler>,
    pub(crate) fault: Option<FaultHandler>,
}

impl Probe<InstructionHandlers> {
    /// Calls `handler` before the instruction, on the thread of the vCPU that hits it: several may call it at the
    /// same time, and the guest's CPU waits for it. One that panics disables its probe. It may change registers and memory, redirect RIP, or skip the
    /// function; if it changes RIP, the instruction is not executed and no post handler runs. Where handlers were given
    /// before, it is called behind them.
    pub fn pre(mut self, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        self.handlers.pre = Some(behind(self.handlers.pre.take(), handler));
        self
    }

    /// Calls `handler` after the instruction, with the registers that it left, behind handlers that were given before.
    pub fn post(mut self, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        self.handlers.post = Some(behind(self.handlers.post.take(), handler));
        self
    }

    /// Calls `handler` when the instruction faults, behind handlers that were given before. The fault is the guest's: it
    /// handles it as it always does.
    pub fn fault(mut self, handler: impl Fn(&Hit<'_>, &Fault) + Send + Sync + 'static) -> Self {
        self.handlers.fault = Some(match self.handlers.fault.take() {
            None => Arc::new(handler),
            Some(first) => Arc::new(move |hit, fault| {
                first(hit, fault);
                handler(hit, fault);
            }),
        });
        self
    }

    /// Only the first hit counts: the text is then restored, and the function costs nothing more. Such a probe has a
    /// pre handler at most.
    pub fn once(mut self) -> Self {
        self.plan.once = true;
        self
    }
}

impl From<Probe<InstructionHandlers>> for Probe {
    fn from(probe: Probe<InstructionHandlers>) -> Self {
        let Probe { at, plan, handlers, enabled } = probe;
        Self { at, plan, handlers: Handlers::Instruction(handlers), enabled }
    }
}

/// The handlers of a call. `G` is what was given of them: [`Entered`], then [`Handled`].
pub struct ReturnHandlers<G = Handled> {
    pub(crate) entry: Option<EntryHandler>,
    pub(crate) handler: Option<ReturnHandler>,
    given: PhantomData<fn() -> G>,
}

/// An entry handler that keeps a `T` for each call, or none, which keeps `()`.
pub struct Entered<T>(PhantomData<T>);

/// All handlers.
pub struct Handled;

impl<G> Default for ReturnHandlers<G> {
    fn default() -> Self {
        Self { entry: None, handler: None, given: PhantomData }
    }
}

impl<G> ReturnProbe<G> {
    /// Says that the handlers given so far are `H`.
    fn given<H>(self) -> ReturnProbe<H> {
        let Probe { at, plan, handlers: ReturnHandlers { entry, handler, .. }, enabled } = self;
        Probe { at, plan, handlers: ReturnHandlers { entry, handler, given: PhantomData }, enabled }
    }

    /// How many calls are followed at the same time; the others are counted as missed. The default is ten, or
    /// twice the number of vCPUs if that is more.
    pub fn max_active(mut self, calls: u32) -> Self {
        self.plan.trigger = Trigger::Return { max_active: Some(calls.max(1)) };
        self
    }
}

impl ReturnProbe<Entered<()>> {
    /// Calls `entry` when the function is entered: what it gives is kept until the return, `None` refuses to
    /// follow this call.
    pub fn entry<T: Send + 'static>(
        mut self,
        entry: impl Fn(&mut Hit<'_>) -> Option<T> + Send + Sync + 'static,
    ) -> ReturnProbe<Entered<T>> {
        self.handlers.entry = Some(Box::new(move |hit| entry(hit).map(|data| Box::new(data) as Data)));
        self.given()
    }
}

impl<T: Send + 'static> ReturnProbe<Entered<T>> {
    /// Calls `handler` when the function has returned to its caller: RAX is its value, RIP the return address.
    pub fn handler(
        mut self,
        handler: impl Fn(&mut Hit<'_>, T) + Send + Sync + 'static,
    ) -> ReturnProbe<Handled> {
        self.handlers.handler = Some(Box::new(move |hit, data: Option<Data>| {
            // Without an entry handler T is (), of which there is always one.
            let data = data.unwrap_or_else(|| Box::new(()));
            if let Ok(data) = data.downcast::<T>() {
                handler(hit, *data);
            }
        }));
        self.given()
    }
}

impl<G> From<ReturnProbe<G>> for Probe {
    fn from(probe: ReturnProbe<G>) -> Self {
        let Probe { at, plan, handlers, enabled } = probe.given();
        Self { at, plan, handlers: Handlers::Return(handlers), enabled }
    }
}

/// The handler of a watch.
#[derive(Default)]
pub struct WatchHandler(pub(crate) Option<Handler>);

impl Probe<WatchHandler> {
    /// Calls `handler` after an access, or before an execution: [`Hit::access`] tells the values, RIP who it was. Where
    /// handlers were given before, it is called behind them.
    pub fn handler(mut self, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Self {
        self.handlers.0 = Some(behind(self.handlers.0.take(), handler));
        self
    }
}

impl From<Probe<WatchHandler>> for Probe {
    fn from(probe: Probe<WatchHandler>) -> Self {
        let Probe { at, plan, handlers, enabled } = probe;
        Self { at, plan, handlers: Handlers::Watch(handlers), enabled }
    }
}

/// `first`, if there is one, and then `handler`.
fn behind(first: Option<Handler>, handler: impl Fn(&mut Hit<'_>) + Send + Sync + 'static) -> Handler {
    match first {
        None => Arc::new(handler),
        Some(first) => Arc::new(move |hit| {
            first(hit);
            handler(hit);
        }),
    }
}
