//! The kernel's tracepoints (include/linux/tracepoint.h): places of its code at which it calls whoever has registered for them.
//!
//! A call of the kernel's own `tracepoint_probe_register` has it call a function at each event. That function is one of the
//! kernel's own that does nothing, at whose entry a probe stands:
//!
//! - `__probestub_NAME(data, arguments..)`, since 6.8. The guest's own users may have registered that one as well. `data` tells
//!   which calls are for us.
//! - before, `ftrace_stub`, which is registered twice. A tracepoint with more than one function calls them all from
//!   `__traceiter_NAME(data, arguments..)` (since 5.10), once for each event. There the probe stands.

use super::btf::Btf;
use super::glob::Glob;
use super::kernel::Kernel;
use super::nearest;
use super::symbols::Symbol;
use crate::addr::Gva;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What comes before the name of a tracepoint in that of its variable.
pub const TRACEPOINT: &str = "__tracepoint_";
/// What stands for the system of a tracepoint that is part of none.
pub const NO_SYSTEM: &str = "tracepoints";
/// What `data` is at a call of `__probestub_NAME` that is for us. Nobody takes it for an address.
pub const TAG: u64 = 0x766d_6d00;
/// What it is at the two calls of `ftrace_stub`.
const PAIR: [u64; 2] = [TAG, TAG + 1];
/// Most events that a kernel has.
const MOST_EVENTS: u64 = 1 << 16;
/// Longest name of a system, in bytes.
const LONGEST_NAME: usize = 128;

/// By which functions a kernel has others called at its tracepoints, at link-time addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracepointCalls {
    /// `tracepoint_probe_register(tracepoint, function, data)`
    pub register: Gva,
    /// `tracepoint_probe_unregister(tracepoint, function, data)`
    pub unregister: Gva,
    /// Whom it calls.
    pub callee: Callee,
    /// `driver_init`: the first function that the kernel calls in a task, once all CPUs are there, and before what may be traced
    /// is started.
    pub drivers: Option<Gva>,
    /// `tracepoint_module_notify(block, state, module)`: a module comes or goes.
    pub module_notify: Option<Gva>,
    /// `msleep(milliseconds)`
    pub sleep: Option<Gva>,
}

/// The function that does nothing, which a tracepoint calls for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Callee {
    /// That of the tracepoint itself, at which the probe stands.
    Own,
    /// This one, twice: the probe stands where both are called from.
    Shared(Gva),
}

impl Callee {
    /// What comes before the name of a tracepoint in that of the function at which its probe stands.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Own => "__probestub_",
            Self::Shared(_) => "__traceiter_",
        }
    }

    /// What `data` is at calls that are for us, each of which is registered.
    #[must_use]
    pub fn data(self) -> &'static [u64] {
        match self {
            Self::Own => PAIR.split_at(1).0,
            Self::Shared(_) => &PAIR,
        }
    }

    /// What `data` is at each call of the probe's function that is an event for us; `None` where all are.
    #[must_use]
    pub fn tag(self) -> Option<u64> {
        match self {
            Self::Own => Some(TAG),
            Self::Shared(_) => None,
        }
    }
}

/// Why there are no probes at the tracepoints of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NoTracepoints {
    /// It has none.
    #[error("the kernel has no tracepoints (CONFIG_TRACEPOINTS)")]
    None,
    /// They call functions from where no probe can stand.
    #[error("the kernel has no function that its tracepoints call events from: kernels since 5.10 do")]
    Old,
    /// There is no function that does nothing, which they could call.
    #[error(
        "the kernel has no function that its tracepoints could call for nothing (CONFIG_FUNCTION_TRACER)"
    )]
    NoStub,
    /// Those of a module would be switched on when the module has gone.
    #[error("the kernel does not tell when a module's tracepoints go (`tracepoint_module_notify`)")]
    ModulesUnseen,
    /// Where they are is not known.
    #[error("the kernel's symbols do not say where its tracepoints are (CONFIG_KALLSYMS_ALL)")]
    NoData,
    /// Each indirect call looks whom it calls.
    #[error("the kernel's indirect calls look at whom they call (CONFIG_CFI_CLANG, CONFIG_CFI)")]
    Cfi,
}

impl TracepointCalls {
    /// Finds them.
    ///
    /// # Errors
    /// [`NoTracepoints`].
    pub fn of(kernel: &Kernel) -> Result<Self, NoTracepoints> {
        let pair =
            kernel.symbol("tracepoint_probe_register").zip(kernel.symbol("tracepoint_probe_unregister"));
        let (register, unregister) = pair.ok_or(NoTracepoints::None)?;
        if kernel.image().section(".kcfi_traps").is_some() {
            return Err(NoTracepoints::Cfi);
        }
        let has =
            |callee: Callee| kernel.symbols().text().any(|symbol| symbol.name.starts_with(callee.prefix()));
        let callee = match kernel.symbol("ftrace_stub").map(Callee::Shared) {
            _ if has(Callee::Own) => Callee::Own,
            Some(shared) if has(shared) => shared,
            None if has(Callee::Shared(Gva(0))) => return Err(NoTracepoints::NoStub),
            _ => return Err(NoTracepoints::Old),
        };
        if !kernel.symbols().have_data() {
            return Err(NoTracepoints::NoData);
        }
        let (drivers, module_notify) =
            (kernel.symbol("driver_init"), kernel.symbol("tracepoint_module_notify"));
        Ok(Self { register, unregister, callee, drivers, module_notify, sleep: kernel.symbol("msleep") })
    }
}

/// A tracepoint of the kernel's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracepoint {
    /// The system that its event is part of, or [`NO_SYSTEM`].
    pub system: String,
    /// Its own name.
    pub name: String,
    /// `struct tracepoint`.
    pub at: Gva,
    /// The function at which a probe stands, as the kernel calls it.
    pub function: String,
    /// What comes behind `trace_event_raw_` in the name of the structure that its event is recorded as, if it has an event.
    pub class: Option<String>,
}

impl Tracepoint {
    /// `SYSTEM:NAME`, as users write it.
    #[must_use]
    pub fn written(&self) -> String {
        format!("{}:{}", self.system, self.name)
    }
}

/// All tracepoints of the kernel's own, by their names.
#[derive(Debug)]
pub struct Tracepoints {
    /// How it calls others there.
    pub calls: TracepointCalls,
    all: Vec<Tracepoint>,
}

impl Tracepoints {
    /// Finds them. Without type information `btf` none is known to be part of a system.
    ///
    /// # Errors
    /// [`NoTracepoints`].
    pub fn of(kernel: &Kernel, btf: Option<&Btf<'_>>) -> Result<Self, NoTracepoints> {
        let calls = TracepointCalls::of(kernel)?;
        let events = btf.and_then(|btf| events(kernel, btf)).unwrap_or_default();
        let tracepoint = |symbol: Symbol<'_>| {
            let name = symbol.name.strip_prefix(calls.callee.prefix())?;
            let at = kernel.symbols().address_of(&format!("{TRACEPOINT}{name}"))?;
            let event = events.get(&at);
            let system = event.map_or(NO_SYSTEM, |event| &event.system).to_owned();
            let class = event.and_then(|event| event.class.clone());
            Some(Tracepoint { system, name: name.to_owned(), at, function: symbol.name.to_owned(), class })
        };
        let mut all: Vec<_> = kernel.symbols().text().filter_map(tracepoint).collect();
        all.sort_by(|a, b| (&a.system, &a.name).cmp(&(&b.system, &b.name)));
        Ok(Self { calls, all })
    }

    /// Those that match both, in their order.
    pub fn matching<'a>(
        &'a self,
        system: Option<&'a Glob>,
        name: &'a Glob,
    ) -> impl Iterator<Item = &'a Tracepoint> {
        self.all.iter().filter(move |own| {
            system.is_none_or(|system| system.matches(&own.system)) && name.matches(&own.name)
        })
    }

    /// Whether it is known which is part of which system.
    #[must_use]
    pub fn know_systems(&self) -> bool {
        self.all.iter().any(|own| own.system != NO_SYSTEM)
    }

    /// Whether any is part of `system`.
    #[must_use]
    pub fn has_system(&self, system: &str) -> bool {
        self.all.iter().any(|own| own.system == system)
    }

    /// At most `count` that are called nearly so.
    #[must_use]
    pub fn nearest(&self, name: &str, count: usize) -> Vec<String> {
        let names = nearest::nearest(self.all.iter().map(|own| own.name.as_str()), name, count);
        let written = |name: &str| self.all.iter().find(|own| own.name == name).map(Tracepoint::written);
        names.into_iter().filter_map(written).collect()
    }
}

/// The event of a tracepoint.
struct Event {
    system: String,
    class: Option<String>,
}

/// The event of each tracepoint that has one, by its address: what the kernel's list of events says
/// (include/linux/trace_events.h, `struct trace_event_call`).
fn events(kernel: &Kernel, btf: &Btf<'_>) -> Option<HashMap<Gva, Event>> {
    let offset = |structure: &str, path: &str| btf.member(structure, path)?.offset();
    let class = offset("trace_event_call", "class")?;
    let tracepoint = offset("trace_event_call", "tp")?;
    let system = offset("trace_event_class", "system")?;
    let image = kernel.image();
    let word = |at: Gva| image.bytes_at(at, 8)?.try_into().ok().map(u64::from_le_bytes).map(Gva);
    let text = |at: Gva| {
        let bytes = image.bytes_from(at)?;
        let bytes = bytes.get(..LONGEST_NAME).unwrap_or(bytes);
        let end = bytes.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(bytes.get(..end)?).ok().map(str::to_owned)
    };
    let symbol = |name| kernel.symbols().address_of(name);
    let (start, stop) = (symbol("__start_ftrace_events")?, symbol("__stop_ftrace_events")?);
    let count = (stop.offset_from(start)? / 8).min(MOST_EVENTS);
    let event = |number: u64| {
        let event = word(start.add(8 * number))?;
        let class = word(event.add(class))?;
        let named = kernel.symbols().symbol_at(class).filter(|found| found.symbol.at == class);
        let named = named.and_then(|found| found.symbol.name.strip_prefix("event_class_").map(str::to_owned));
        let system = text(word(class.add(system))?)?;
        Some((word(event.add(tracepoint))?, Event { system, class: named }))
    };
    Some((0..count).filter_map(event).collect())
}
