//! Hits that are counted by keys in the guest: what a [`Histogram`] comes to there, and reading it.
//!
//! All probes share one table, laid out by [`layout`](super::layout). A hit looks for its group in a few places from one on
//! that its key says, takes the first free one if there is none, and is noted down like any other if there is no room. So
//! nothing is lost for a small table. Who comes by while a group is being made looks further, and may make another one with
//! the same key: they are put together by whoever reads them. A group is never given back.

use super::condition::{Fields, Number};
use super::layout::{COUNTERS, GROUP, GROUPS, SUMS, TABLE_OF_GROUPS, TAKEN, group};
use crate::addr::Gpa;
use crate::capture::filter::Operand;
use crate::capture::hist::{Form, Histogram, KeyValue};
use crate::capture::shape::up_to_nul;
use crate::capture::tally::Group;
use crate::linux::read::{array, u64_at};
use crate::linux::task::COMM;
use crate::memory::PhysMemory;
use std::collections::HashMap;

/// By what a detour counts hits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    pub(super) keys: Vec<GroupKey>,
    pub(super) sums: Vec<Number>,
}

/// A key of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupKey {
    /// The task's name, in two words.
    Comm,
    /// A number, in one.
    Number(Number, GroupStep),
}

/// Which numbers are the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupStep {
    /// None but itself.
    One,
    /// Those up to the same power of two.
    Log2,
    /// So many side by side: the key is how many times they fit below.
    Buckets(u64),
}

impl Groups {
    /// By what `plan` says; `None` when that is beyond a detour, by strings in memory or by many sums: hits have to be noted
    /// down one by one.
    pub(super) fn of(plan: &Histogram, fields: &Fields<'_>) -> Option<Self> {
        let key = |operand: Operand, form: &Form| {
            if fields.is_comm(operand) {
                return Some(GroupKey::Comm);
            }
            let number = Number::of(operand, fields).ok()?;
            let step = match form {
                Form::Log2 => GroupStep::Log2,
                Form::Buckets(width) if number.is_signed && i64::try_from(*width).is_err() => return None,
                Form::Buckets(width) => GroupStep::Buckets((*width).max(1)),
                Form::Text
                | Form::Number(_)
                | Form::Hex
                | Form::Symbol
                | Form::SymbolOffset
                | Form::SystemCall
                | Form::Process => GroupStep::One,
            };
            Some(GroupKey::Number(number, step))
        };
        let keys: Option<Vec<GroupKey>> = plan.keys.iter().map(|by| key(by.operand, &by.form)).collect();
        let sums: Option<Vec<Number>> =
            plan.values.iter().map(|sum| Number::of(sum.operand, fields).ok()).collect();
        let groups = Self { keys: keys?, sums: sums? };
        let fits = groups.words() <= group::KEYS_WORDS && groups.sums.len() <= SUMS;
        fits.then_some(groups)
    }

    /// How many words its keys take.
    pub(super) fn words(&self) -> usize {
        self.keys.iter().map(|key| key.words()).sum()
    }

    /// A group that the guest has made.
    #[must_use]
    pub fn read(&self, raw: &RawGroup) -> Group {
        let mut words = (group::KEYS..).step_by(8).map(|at| raw.word(at));
        let key = (0..).zip(&self.keys).map(|(n, key)| {
            let (low, high) = (words.next().unwrap_or_default(), key.words() > 1);
            let high = if high { words.next().unwrap_or_default() } else { 0 };
            match key {
                _ if raw.word(group::MISSING) >> n & 1 != 0 => KeyValue::Missing,
                GroupKey::Comm => {
                    KeyValue::Text(up_to_nul(&[low, high].map(u64::to_le_bytes).concat()).into())
                }
                GroupKey::Number(_, GroupStep::Log2) => KeyValue::Number(low.into()),
                GroupKey::Number(number, GroupStep::One) => KeyValue::Number(number.value(low)),
                // No product of two numbers of 64 bits is too large.
                GroupKey::Number(number, GroupStep::Buckets(width)) => {
                    KeyValue::Number(number.value(low).saturating_mul(i128::from(*width)))
                }
            }
        });
        let sum = |n: u64| {
            let [low, high] = [0, 8].map(|half| raw.word(group::SUMS + 16 * n + half));
            (u128::from(high) << 64 | u128::from(low)).cast_signed()
        };
        Group {
            key: key.collect(),
            hits: raw.hits(),
            sums: (0..).zip(&self.sums).map(|(n, _)| sum(n)).collect(),
            comm: raw.comm(),
            first: raw.word(group::FIRST),
        }
    }
}

impl GroupKey {
    pub(super) fn words(self) -> usize {
        match self {
            Self::Comm => COMM / 8,
            Self::Number(..) => 1,
        }
    }
}

impl Number {
    /// What a word of the guest's says that is one.
    fn value(&self, word: u64) -> i128 {
        if self.is_signed { word.cast_signed().into() } else { word.into() }
    }
}

/// A group as the guest has written it, which may be anything.
#[derive(Debug, Clone)]
pub struct RawGroup([u8; GROUP as usize]);

impl RawGroup {
    fn word(&self, at: u64) -> u64 {
        u64_at(&self.0, at as usize).unwrap_or_default()
    }

    fn comm(&self) -> [u8; COMM] {
        array(&self.0, group::COMM as usize).unwrap_or_default()
    }

    /// How many hits it counts.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.word(group::HITS)
    }
}

/// All groups in the data window at `window`, by the probe's number, as they are at this moment.
pub fn groups<M: PhysMemory + ?Sized>(memory: &M, window: Gpa) -> HashMap<u32, Vec<RawGroup>> {
    let mut found: HashMap<u32, Vec<RawGroup>> = HashMap::new();
    for n in 0..GROUPS {
        let at = window.add(TABLE_OF_GROUPS + n * GROUP);
        let (mut first, mut all) = ([0; 8], [0; GROUP as usize]);
        if memory.read(at, &mut first).is_err() {
            break;
        }
        let tag = u64::from_le_bytes(first);
        let probe = u32::try_from(tag).ok().and_then(|tag| tag.checked_sub(TAKEN + 1));
        let Some(probe) = probe.filter(|probe| *probe < COUNTERS) else { continue };
        // An atomic access: what was written before the tag is there when that is.
        let is_there = memory.compare_exchange(at, tag, tag).is_ok_and(|is_there| is_there);
        if is_there && memory.read(at, &mut all).is_ok() {
            found.entry(probe).or_default().push(RawGroup(all));
        }
    }
    found
}

#[cfg(test)]
mod tests;
