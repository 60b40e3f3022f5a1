//! What a memory has, a line each.

use crate::record::Address;
use probe_engine::guest_text::Escaped;
use probe_engine::linux::modules::{Module, ModuleState};
use probe_engine::linux::names::Names;
use probe_engine::linux::running::{KernelMap, RunningKernel};
use probe_engine::linux::symbols::Symbol;
use probe_engine::scan::hooks::Hook;
use probe_engine::scan::processes::Process;
use serde::Serialize;
use std::fmt;

/// A line.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ScanRow {
    /// Which kernel is looked at.
    Kernel {
        release: Option<String>,
        /// Where its text is.
        text: Address,
        /// The same, guest-physical.
        physical: Address,
        slide: Address,
    },
    Process {
        pid: u32,
        ppid: Option<u32>,
        uid: Option<u32>,
        comm: String,
        is_kernel: bool,
        task: Address,
    },
    Module {
        name: String,
        state: &'static str,
        text: Address,
        size: u64,
        at: Address,
    },
    Hook {
        kind: &'static str,
        at: Address,
        symbol: Option<String>,
        handler: String,
        owner: Option<String>,
    },
    Symbol {
        address: Address,
        kind: char,
        name: String,
    },
}

impl ScanRow {
    pub(crate) fn kernel(release: Option<&str>, running: &RunningKernel) -> Self {
        let (text, physical) = running.map.text();
        Self::Kernel {
            release: release.map(str::to_owned),
            text: Address(running.map.gva(text).0),
            physical: Address(physical.0),
            slide: Address(running.map.slide()),
        }
    }

    pub(crate) fn process(process: &Process) -> Self {
        Self::Process {
            pid: process.pid,
            ppid: process.parent,
            uid: process.uid,
            comm: Escaped(&process.comm).to_string(),
            is_kernel: process.memory.is_none(),
            task: Address(process.at.0),
        }
    }

    pub(crate) fn module(module: &Module) -> Self {
        Self::Module {
            name: module.name.clone(),
            state: match module.state {
                ModuleState::Live => "live",
                ModuleState::Coming => "coming",
                ModuleState::Going => "going",
                ModuleState::Unformed => "unformed",
            },
            text: Address(module.text.start.0),
            size: module.text.end.offset_from(module.text.start).unwrap_or(0),
            at: Address(module.at.0),
        }
    }

    pub(crate) fn hook(hook: &Hook, names: &Names<'_>) -> Self {
        let name = |at| names.symbol(at).map(|name| name.to_string());
        Self::Hook {
            kind: hook.kind.name(),
            at: Address(hook.at.0),
            symbol: name(hook.at),
            handler: name(hook.handler).unwrap_or_else(|| hook.handler.to_string()),
            owner: hook.owner.as_ref().map(ToString::to_string),
        }
    }

    pub(crate) fn symbol(symbol: &Symbol<'_>, map: KernelMap) -> Self {
        Self::Symbol {
            address: Address(if symbol.is_placed() { map.gva(symbol.at).0 } else { symbol.at.0 }),
            kind: symbol.kind,
            name: symbol.name.to_owned(),
        }
    }
}

/// As a line of text, without its end.
impl fmt::Display for ScanRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_dash =
            |number: &Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        match self {
            Self::Kernel { release, text, physical, slide } => write!(
                f,
                "kernel {} at {text}, physically {physical}, moved by {slide}",
                release.as_deref().unwrap_or("without a name")
            ),
            Self::Process { pid, ppid, uid, comm, is_kernel, .. } => {
                let (ppid, uid) = (or_dash(ppid), or_dash(uid));
                let (open, close) = if *is_kernel { ("[", "]") } else { ("", "") };
                write!(f, "{pid:>8} {ppid:>8} {uid:>8} {open}{comm}{close}")
            }
            Self::Module { name, state, text, size, .. } => write!(f, "{text} {size:>9} {state} {name}"),
            Self::Hook { kind, at, symbol, handler, owner } => {
                write!(f, "{kind} {at}")?;
                symbol.iter().try_for_each(|symbol| write!(f, " {symbol}"))?;
                write!(f, " calls {handler}, {}", owner.as_deref().unwrap_or("which belongs to nobody"))
            }
            Self::Symbol { address, kind, name } => write!(f, "{address} {kind} {name}"),
        }
    }
}
