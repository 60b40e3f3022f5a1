//! The methods of a control socket: what each takes, and what that asks of the session.

use super::frame::{Change, Chosen, Request};
use super::hex;
use super::physical::PhysicalRequest;
use super::rpc::{Call, Code, Failure};
use crate::record::Address;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::probe::watch::{Condition, Length};
use probe_engine::regs::Register;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The version of the protocol. Another one has methods that do something else, or less.
pub(crate) const PROTOCOL: u32 = 1;

/// What a call wants.
#[derive(Debug, PartialEq)]
pub(super) enum Wanted {
    /// Which protocol this is.
    Version,
    /// These definitions are to be probes, at which the guest may have to stand still.
    Define(Definitions),
    /// What the session does.
    Ask(Request),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Probes that a client wants.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Definitions {
    pub(super) definitions: Vec<String>,
    /// Whether the guest is to stand still at each hit.
    #[serde(default)]
    pub(super) stop: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Probes {
    probes: Vec<Selector>,
}

/// A probe, as JSON names it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Selector {
    Number(u32),
    Name(String),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Cpu {
    vcpu: Option<usize>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Hold {
    gate: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Histograms {
    name: Option<String>,
    lines: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    address: Address,
    length: usize,
    vcpu: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PhysicalMemory {
    address: Address,
    length: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    address: Address,
    bytes: String,
    vcpu: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stepping {
    vcpu: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Registers {
    vcpu: usize,
    regs: BTreeMap<String, Address>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Watched {
    address: Address,
    length: u64,
    access: Access,
}

#[derive(Deserialize)]
enum Access {
    #[serde(rename = "x")]
    Execute,
    #[serde(rename = "w")]
    Write,
    #[serde(rename = "rw")]
    ReadWrite,
}

/// What `call` wants.
///
/// # Errors
/// Where there is no such method, or it has other parameters.
pub(super) fn wanted(call: &Call) -> Result<Wanted, Failure> {
    let ask = |request| Ok(Wanted::Ask(request));
    let change = |change| ask(Request::Change(change));
    let chosen = || -> Result<Vec<Chosen>, Failure> {
        let Probes { probes } = params(call)?;
        let chosen = |selector| match selector {
            Selector::Number(number) => Chosen::Number(number),
            Selector::Name(name) => Chosen::Name(name),
        };
        Ok(probes.into_iter().map(chosen).collect())
    };
    let bare = |request| optional(call).and_then(|Nothing {}| ask(request));
    match call.method.as_str() {
        "version" => optional(call).map(|Nothing {}| Wanted::Version),
        "list" => bare(Request::List),
        "counters" => bare(Request::Counters),
        "histograms" => optional(call).and_then(|Histograms { name, lines }| {
            ask(Request::Histograms { name, most: lines.unwrap_or(usize::MAX) })
        }),
        "add" => params(call).map(Wanted::Define),
        "watch" => watch(params(call)?).and_then(change),
        "remove" => change(Change::Remove(chosen()?)),
        "enable" => change(Change::Enable(chosen()?, true)),
        "disable" => change(Change::Enable(chosen()?, false)),
        "arm" => bare(Request::Change(Change::Arm(true))),
        "disarm" => bare(Request::Change(Change::Arm(false))),
        "pause" => bare(Request::Pause(true)),
        "resume" => bare(Request::Pause(false)),
        "regs" => optional(call).and_then(|Cpu { vcpu }| ask(Request::Regs(vcpu))),
        "stack" => optional(call).and_then(|Cpu { vcpu }| ask(Request::Stack(vcpu))),
        "read" => {
            let Memory { address, length, vcpu } = params(call)?;
            ask(Request::Read { at: Gva(address.0), length, vcpu })
        }
        "status" => bare(Request::Status),
        "ram" => bare(Request::Physical(PhysicalRequest::Ram)),
        "read_physical" => {
            let PhysicalMemory { address, length } = params(call)?;
            ask(Request::Physical(PhysicalRequest::Read { at: Gpa(address.0), length }))
        }
        "vmcoreinfo" => bare(Request::Physical(PhysicalRequest::Vmcoreinfo)),
        "held" => bare(Request::Held),
        "release" => optional(call).and_then(|Hold { gate }| ask(Request::Release(gate))),
        "quit" => bare(Request::Quit),
        "kernel" => bare(Request::Kernel),
        "step" => params(call).and_then(|Stepping { vcpu }| ask(Request::Step(vcpu))),
        "set_regs" => {
            let Registers { vcpu, regs } = params(call)?;
            ask(Request::SetRegs { vcpu, regs: registers(regs)? })
        }
        "write" => {
            let Written { address, bytes, vcpu } = params(call)?;
            let bytes = hex::bytes(&bytes).ok_or_else(|| wrong("bytes are two hexadecimal digits each"))?;
            ask(Request::Write { at: Gva(address.0), bytes, vcpu })
        }
        other => Err(Failure::new(Code::Method, format!("there is no method `{other}`"))),
    }
}

fn wrong(what: impl Into<String>) -> Failure {
    Failure::new(Code::Params, what)
}

/// Registers by the names that [`regs`](super::vcpu) has for them.
fn registers(regs: BTreeMap<String, Address>) -> Result<Vec<(Register, u64)>, Failure> {
    let named = |(name, Address(value)): (String, Address)| match Register::named(&name) {
        Some(register) => Ok((register, value)),
        None => Err(wrong(format!("`{name}` is no register that can be set"))),
    };
    regs.into_iter().map(named).collect()
}

fn watch(Watched { address, length, access }: Watched) -> Result<Change, Failure> {
    let condition = match access {
        Access::Execute => Condition::Execute,
        Access::Write => Condition::Write,
        Access::ReadWrite => Condition::ReadWrite,
    };
    let lengths = [Length::One, Length::Two, Length::Four, Length::Eight].into_iter();
    let known = lengths.filter(|known| condition != Condition::Execute || *known == Length::One);
    let length = known
        .into_iter()
        .find(|known| known.bytes() == length && address.0.is_multiple_of(length))
        .ok_or_else(|| {
            wrong("a CPU watches 1, 2, 4 or 8 bytes that are aligned to that, and execution at 1")
        })?;
    Ok(Change::Watch { at: Gva(address.0), length, condition })
}

/// What `version` gives.
pub(super) fn version() -> Value {
    json!({ "protocol": PROTOCOL, "vmm": env!("CARGO_PKG_VERSION") })
}

/// The parameters of `call`.
fn params<T: DeserializeOwned>(call: &Call) -> Result<T, Failure> {
    T::deserialize(&call.params)
        .map_err(|error| Failure::new(Code::Params, format!("the parameters of `{}`: {error}", call.method)))
}

/// The same, where there may be none.
fn optional<T: DeserializeOwned + Default>(call: &Call) -> Result<T, Failure> {
    if call.params.is_null() { Ok(T::default()) } else { params(call) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, params: Value) -> Result<Wanted, Failure> {
        wanted(&Call { id: None, method: method.to_owned(), params })
    }

    #[test]
    fn each_method_asks_for_what_it_says() {
        let chosen = vec![Chosen::Number(3), Chosen::Name("vfs_read%return".to_owned())];
        let probes = json!({ "probes": [3, "vfs_read%return"] });
        let read = Request::Read { at: Gva(0xffff_ffff_8100_0000), length: 16, vcpu: Some(1) };
        for (method, params, request) in [
            ("list", Value::Null, Request::List),
            ("list", json!({}), Request::List),
            ("counters", Value::Null, Request::Counters),
            ("histograms", Value::Null, Request::Histograms { name: None, most: usize::MAX }),
            (
                "histograms",
                json!({ "name": "sizes", "lines": 3 }),
                Request::Histograms { name: Some("sizes".to_owned()), most: 3 },
            ),
            ("remove", probes.clone(), Request::Change(Change::Remove(chosen.clone()))),
            ("enable", probes.clone(), Request::Change(Change::Enable(chosen.clone(), true))),
            ("disable", probes, Request::Change(Change::Enable(chosen, false))),
            ("arm", Value::Null, Request::Change(Change::Arm(true))),
            ("disarm", Value::Null, Request::Change(Change::Arm(false))),
            ("pause", Value::Null, Request::Pause(true)),
            ("resume", Value::Null, Request::Pause(false)),
            ("regs", Value::Null, Request::Regs(None)),
            ("stack", json!({ "vcpu": 1 }), Request::Stack(Some(1))),
            ("read", json!({ "address": "0xffffffff81000000", "length": 16, "vcpu": 1 }), read),
            ("status", Value::Null, Request::Status),
            ("ram", Value::Null, Request::Physical(PhysicalRequest::Ram)),
            (
                "read_physical",
                json!({ "address": "0x1000", "length": 16 }),
                Request::Physical(PhysicalRequest::Read { at: Gpa(0x1000), length: 16 }),
            ),
            ("vmcoreinfo", Value::Null, Request::Physical(PhysicalRequest::Vmcoreinfo)),
            ("held", Value::Null, Request::Held),
            ("release", json!({ "gate": 1 }), Request::Release(Some(1))),
            ("release", Value::Null, Request::Release(None)),
            ("quit", Value::Null, Request::Quit),
        ] {
            assert_eq!(asked(method, params), Ok(Wanted::Ask(request)), "{method}");
        }
        let definitions = json!({ "definitions": ["vfs_read"] });
        assert_eq!(
            asked("add", definitions),
            Ok(Wanted::Define(Definitions { definitions: vec!["vfs_read".to_owned()], stop: false }))
        );
        assert_eq!(asked("version", Value::Null), Ok(Wanted::Version));
    }

    #[test]
    fn wrong_parameters_are_refused() {
        for (method, params) in [
            ("list", json!({ "all": true })),
            ("list", json!([1])),
            ("add", Value::Null),
            ("add", json!({ "definitions": "vfs_read" })),
            ("remove", json!({ "probes": [-1] })),
            ("remove", json!({ "probes": [4294967296u64] })),
            ("regs", json!({ "vcpu": -1 })),
            ("histograms", json!({ "lines": -1 })),
            ("read", json!({ "address": "ffffffff81000000", "length": 1 })),
            ("read", json!({ "address": "0x1" })),
        ] {
            let refused = asked(method, params.clone()).unwrap_err();
            assert!(matches!(refused, Failure { .. }), "{method} {params}");
        }
        assert!(asked("reboot", Value::Null).is_err());
    }
}
