//! What is told of a probe before its first hit: how its hits are read and shown.

use super::Address;
use super::bounded::{name, some_name};
use probe_engine::capture::shape::Shape;
use serde::{Deserialize, Serialize};

/// A probe that was registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "registered")]
pub(crate) struct Probe {
    /// What its hits call it by.
    pub(crate) id: u32,
    /// As the user writes it: `vfs_read%return`.
    #[serde(deserialize_with = "name")]
    pub(crate) probe: String,
    /// Where it stands: `vfs_read`, `vfs_read+0x10`, `dummy:dummy_xmit`, `jiffies:8:w`.
    #[serde(deserialize_with = "name")]
    pub(crate) place: String,
    pub(crate) kind: Kind,
    /// The name that a definition gives its hits.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) event: Option<String>,
    pub(crate) style: Style,
    /// The module that it is in.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) module: Option<String>,
    /// The pattern that has found it.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) pattern: Option<String>,
    /// As the kernel was linked; unknown in a module.
    pub(crate) address: Option<Address>,
    /// Whether its hits have lines of their own.
    pub(crate) shown: bool,
    /// The histogram that counts its hits.
    pub(crate) histogram: Option<Histogram>,
    /// What callers get, where its hits are calls that fail.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) injected: Option<String>,
    /// The rule of a guard for which it is there.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<String>,
    /// What its hits mean, in the rule's words.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// What the rule belongs to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<String>,
    /// What each hit reads, in the order in which it is shown.
    pub(crate) fields: Vec<Field>,
}

impl Probe {
    /// Whether its hits are counted, and nothing else is made of them. Those of a rule are findings, also where they are not told.
    pub(crate) fn is_only_counted(&self) -> bool {
        !self.shown && self.histogram.is_none() && self.rule.is_none()
    }
}

/// What the hits of a probe are, as the kernel's list of its own probes has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Passes of an instruction.
    #[serde(rename = "k")]
    Instruction,
    /// Returns of a function.
    #[serde(rename = "r")]
    Return,
    /// Accesses to memory, which the kernel's list does not have.
    #[serde(rename = "w")]
    Watch,
}

/// How a hit is shown as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Style {
    /// By the registers of arguments.
    Registers,
    /// As the call of a function, or as its return.
    Call,
    /// As an event with its fields.
    Event,
    /// As part of the graph of calls.
    Graph,
}

/// A histogram: several probes may share one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Histogram {
    #[serde(deserialize_with = "name")]
    pub(crate) name: String,
    /// In the language of definitions.
    #[serde(deserialize_with = "name")]
    pub(crate) definition: String,
}

/// A value that each hit has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Field {
    #[serde(deserialize_with = "name")]
    pub(crate) name: String,
    /// Its type, as definitions have it.
    #[serde(deserialize_with = "name")]
    pub(crate) r#type: String,
    /// By what its JSON is shown as text.
    pub(crate) shape: Shape,
}
