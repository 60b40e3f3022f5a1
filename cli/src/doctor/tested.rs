//! What was found out about one host.

use crate::args::HostArgs;
use anyhow::Error;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Display;
use vmm::boot::on_emulated_cpu;
use vmm::confine;
use vmm::files::{self, Confined};
use vmm::kvm::Hypervisor;
use vmm::selftest::{self, Contract};

/// A host, as `--json` prints it, and as the emulated one reports itself.
#[derive(Serialize, Deserialize)]
pub(super) struct Tested {
    /// Which one.
    pub(super) host: TestedHost,
    /// What it is.
    pub(super) name: String,
    /// Whether guests with probes run there.
    pub(super) fit: bool,
    /// Why not.
    pub(super) reason: Option<String>,
    /// How breakpoints come to us there.
    pub(super) delivery: Value,
    /// What each check found, if there was a KVM to check.
    pub(super) contract: Value,
    /// The same for people, and what confines this program there.
    pub(super) rows: Vec<CheckRow>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TestedHost {
    Kvm,
    Emulated,
}

/// A check and what came of it.
#[derive(Serialize, Deserialize)]
pub(super) struct CheckRow {
    name: String,
    /// What it is good for.
    meaning: String,
    result: String,
    ok: bool,
    /// No guest with probes runs without it.
    needed: bool,
}

impl Tested {
    /// Tests the KVM of the machine that this program runs on.
    pub(super) fn here(place: &HostArgs) -> Self {
        let device = place.kvm_device.display();
        let (host, name) = match on_emulated_cpu() {
            true => (TestedHost::Emulated, "The emulated host".to_owned()),
            false => (TestedHost::Kvm, format!("This machine's KVM, {device}")),
        };
        let tested = Hypervisor::open(&place.kvm_device)
            .map_err(Error::from)
            .and_then(|hypervisor| Ok(selftest::run(&hypervisor)?));
        let verdict = match &tested {
            Ok(contract) => contract.verdict().map_err(|unfit| unfit.to_string()),
            Err(error) => Err(format!("{error:#}")),
        };
        let contract = tested.ok();
        let checks = contract.iter().flat_map(Contract::rows).map(|row| CheckRow {
            name: row.name.to_owned(),
            meaning: row.meaning.to_owned(),
            result: row.result,
            ok: row.ok,
            needed: row.needed,
        });
        Self {
            host,
            name,
            fit: verdict.is_ok(),
            reason: verdict.err(),
            delivery: as_json(&contract.as_ref().and_then(Contract::delivery)),
            rows: checks.chain(confinement()).collect(),
            contract: as_json(&contract),
        }
    }

    /// An emulated host that could not be tested.
    pub(super) fn no_emulated(reason: impl Display) -> Self {
        Self {
            host: TestedHost::Emulated,
            name: "The emulated host".to_owned(),
            fit: false,
            reason: Some(reason.to_string()),
            delivery: Value::Null,
            contract: Value::Null,
            rows: vec![],
        }
    }

    /// Lines for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{}:", self.name)];
        for CheckRow { name, meaning, result, ok, needed } in &self.rows {
            let mark = match (ok, needed) {
                (true, _) => "ok",
                (false, true) => "NO",
                (false, false) => "no",
            };
            lines.push(format!("  {mark:3} {name:24} {result}"));
            lines.push(format!("      {:24} {meaning}", ""));
        }
        lines.push(match &self.reason {
            None => "  Guests run there.".to_owned(),
            Some(reason) => format!("  Guests do not run there: {reason}."),
        });
        lines
    }
}

/// What cannot be written has no number in it that JSON lacks, and no key that is none.
fn as_json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// What keeps a guest that has got into this program from the machine: tried, not asked for.
fn confinement() -> [CheckRow; 2] {
    const NOT_THERE: &str = "not in this kernel";
    let (landlock, has_landlock) = match files::confined_here() {
        Ok(Confined::Fully) => ("in force".to_owned(), true),
        Ok(Confined::Partly) => ("in force, without what newer kernels add".to_owned(), true),
        Ok(Confined::Not) => (NOT_THERE.to_owned(), false),
        Err(error) => (error.to_string(), false),
    };
    let (seccomp, has_seccomp) = match confine::is_in_force() {
        Ok(true) => ("in force".to_owned(), true),
        Ok(false) => (NOT_THERE.to_owned(), false),
        Err(error) => (error.to_string(), false),
    };
    let row = |name: &str, meaning: &str, result, ok| CheckRow {
        name: name.to_owned(),
        meaning: meaning.to_owned(),
        result,
        ok,
        needed: false,
    };
    [
        row(
            "Landlock",
            "the server of a guest's files opens nothing outside of its folders",
            landlock,
            has_landlock,
        ),
        row(
            "seccomp",
            "once a guest runs, vmm starts no program and reaches no network",
            seccomp,
            has_seccomp,
        ),
    ]
}
