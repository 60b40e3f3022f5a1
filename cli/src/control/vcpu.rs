//! Where a CPU of the guest stands, as clients of a control socket see it.

use crate::output::{GuestNames, stood_line};
use crate::record::{Address, StoodLine, StoodStack};
use probe_engine::regs::{Register, Regs};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vmm::session::Stood;

/// Where a CPU stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VcpuLine {
    pub(crate) vcpu: usize,
    #[serde(flatten)]
    pub(crate) stood: StoodLine,
    /// Its registers by their names, where these are asked for, and it is between two instructions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) regs: BTreeMap<String, Address>,
    /// Its segments and control registers, likewise.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) system: BTreeMap<String, Address>,
}

impl VcpuLine {
    /// CPU number `vcpu` with its registers.
    pub(super) fn with_regs(vcpu: usize, stood: &Stood, names: &GuestNames) -> Self {
        let line = StoodLine { stack: StoodStack::default(), ..stood_line(stood, names) };
        let regs = stood.regs.as_ref().map(by_name).unwrap_or_default();
        let named = |(name, value)| (name, Address(value));
        let system = stood.system.map(|system| system.by_name().into_iter().map(named).collect());
        Self { vcpu, stood: line, regs, system: system.unwrap_or_default() }
    }

    /// CPU number `vcpu` with its stack.
    pub(super) fn with_stack(vcpu: usize, stood: &Stood, names: &GuestNames) -> Self {
        Self { vcpu, stood: stood_line(stood, names), regs: BTreeMap::new(), system: BTreeMap::new() }
    }
}

pub(super) fn by_name(regs: &Regs) -> BTreeMap<String, Address> {
    let value = |register: Register| (register.processor_name().to_owned(), Address(register.of(regs)));
    Register::ALL.into_iter().map(value).collect()
}
