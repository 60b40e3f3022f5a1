//! What is read at a hit, and how it is shown.
//!
//! All that needs the kernel's types and symbols is settled before the guest runs: a [`Capture`] is plain data that says
//! which registers to take, which pointers to follow, and how many bytes to keep. At a hit it only reads. What it gives is
//! a record of bytes, which a reader turns into text by the same `Capture`, later and elsewhere.

pub mod argument_place;
mod display;
mod fetch;
mod field;
pub mod filter;
mod flags;
pub mod hist;
pub mod names;
pub mod program;
mod scene;
pub mod shape;
pub mod shown;
pub mod tally;
pub mod typed;
pub mod usdt;
mod value;

pub use crate::regs::Register;
pub use fetch::{Base, Fetch, Hop, Read, What};
pub use field::Field;
pub use scene::{LONGEST_RECORD, Scene};
pub use value::{Plain, Value, Values};

use crate::virt_memory::ReadVirt;
use filter::{Circumstances, Filter, Operand};
use serde::{Deserialize, Serialize};

/// What is read at each hit of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capture {
    /// The values, in the order in which they are shown.
    pub fields: Vec<Field>,
    /// What is read behind them for the filter alone, and not kept.
    pub hidden: Vec<Field>,
    /// What is kept behind them for whoever reads the record, and not shown.
    pub unshown: Vec<Field>,
    /// Which hits count; all without one.
    pub filter: Option<Filter>,
}

impl Capture {
    /// Whether there is nothing to read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.filter.is_none()
    }

    /// Whether it follows pointers, which may lead to memory of a process.
    #[must_use]
    pub fn follows_pointers(&self) -> bool {
        self.fields.iter().chain(&self.hidden).any(|field| field.fetch.follows_pointers())
    }

    /// Has only those hits count at which `field`, which is read besides, is also as `condition` says of it.
    pub fn count_only(&mut self, field: Field, condition: impl FnOnce(Operand) -> Filter) {
        let number = self.fields.len() + self.hidden.len();
        self.hidden.push(field);
        // No text of a definition is as long as that many fields.
        let condition = condition(Operand::Field(u16::try_from(number).unwrap_or(u16::MAX)));
        self.filter = Some(match self.filter.take() {
            None => condition,
            Some(filter) => Filter::All(vec![filter, condition]),
        });
    }

    /// Field `n`, where those that are hidden come behind the others.
    #[must_use]
    pub fn field(&self, n: u16) -> Option<&Field> {
        self.fields.iter().chain(&self.hidden).nth(n.into())
    }

    /// Reads all values behind what is in `record`, which never gets longer than [`LONGEST_RECORD`] by it and needs no
    /// allocation when it has that capacity. Says whether the hit counts; `record` is as before when it does not.
    pub fn take<M: ReadVirt + ?Sized>(&self, scene: &Scene<'_, M>, record: &mut Vec<u8>) -> bool {
        let start = record.len();
        for field in &self.fields {
            field.fetch.take(scene, record);
        }
        if let Some(filter) = &self.filter {
            let kept = record.len();
            for field in &self.hidden {
                field.fetch.take(scene, record);
            }
            let circumstances = Circumstances { cpu: scene.cpu, task: scene.task, ip: scene.regs.rip };
            let values = Values::of(record.get(start..).unwrap_or_default());
            let passes = filter.passes(self, values, &circumstances);
            record.truncate(if passes { kept } else { start });
            if !passes {
                return false;
            }
        }
        for field in &self.unshown {
            field.fetch.take(scene, record);
        }
        true
    }

    /// The values of a record that this has [taken](Self::take), each with its field.
    pub fn values<'a>(&'a self, record: &'a [u8]) -> impl Iterator<Item = (&'a Field, Value<'a>)> + Clone {
        self.fields.iter().zip(Values::of(record))
    }

    /// What is [kept and not shown](Self::unshown) of a record that this has taken.
    pub fn unshown_values<'a>(&self, record: &'a [u8]) -> impl Iterator<Item = Value<'a>> + Clone {
        Values::of(record).skip(self.fields.len())
    }
}

#[cfg(test)]
mod tests;
