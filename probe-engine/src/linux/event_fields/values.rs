//! Values with names in place of numbers, and what was stored of them.

use super::{NoSource, Origin, Source};
use std::collections::BTreeMap;

/// A value, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Unknown,
    /// So many bytes into the event.
    Event(i64),
    /// So many bytes from where the stack pointer was at the start.
    Stack(i64),
    Known(Known),
}

/// `bytes` of what is at the end of a way, plus a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) origin: Origin,
    pub(super) hops: Vec<i64>,
    pub(super) add: i64,
    pub(super) bytes: u8,
    pub(super) is_signed: bool,
}

impl Value {
    pub(super) fn whole(origin: Origin) -> Self {
        Self::Known(Known { origin, hops: Vec::new(), add: 0, bytes: 8, is_signed: false })
    }

    pub(super) fn plus(&self, number: i64) -> Self {
        match self {
            Self::Event(at) => Self::Event(at.wrapping_add(number)),
            Self::Stack(at) => Self::Stack(at.wrapping_add(number)),
            Self::Known(known) if known.bytes == 8 => {
                let origin = match known.origin {
                    Origin::Number(own) if known.hops.is_empty() => {
                        return Self::whole(Origin::Number(own.wrapping_add_signed(number)));
                    }
                    origin => origin,
                };
                Self::Known(Known { origin, add: known.add.wrapping_add(number), ..known.clone() })
            }
            Self::Known(_) | Self::Unknown => Self::Unknown,
        }
    }

    /// Its lowest `bytes`, of which the highest may be a sign.
    pub(super) fn cut(&self, bytes: u8, is_signed: bool) -> Self {
        match self {
            value if bytes == 8 => value.clone(),
            Self::Known(Known { origin: Origin::Number(number), hops, .. }) if hops.is_empty() => {
                let shift = 64 - 8 * u32::from(bytes);
                let cut = match is_signed {
                    true => ((number << shift).cast_signed() >> shift).cast_unsigned(),
                    false => number << shift >> shift,
                };
                Self::whole(Origin::Number(cut))
            }
            Self::Known(known) if known.add == 0 && bytes <= known.bytes => {
                Self::Known(Known { bytes, is_signed, ..known.clone() })
            }
            Self::Known(known) if known.add == 0 && !is_signed && !known.is_signed => {
                Self::Known(known.clone())
            }
            _ => Self::Unknown,
        }
    }
}

/// What was stored into memory that begins somewhere, by offset: so many bytes each.
#[derive(Debug, Clone, Default)]
pub(super) struct Stores(BTreeMap<i64, (u8, Value)>);

impl Stores {
    pub(super) fn store(&mut self, at: i64, bytes: u8, value: Value) {
        let end = at + i64::from(bytes);
        self.0.retain(|own, (length, _)| *own >= end || own + i64::from(*length) <= at);
        self.0.insert(at, (bytes, value));
    }

    pub(super) fn load(&self, at: i64, bytes: u8) -> Value {
        match self.0.get(&at) {
            Some((stored, value)) if *stored >= bytes => value.cut(bytes, false),
            _ => Value::Unknown,
        }
    }

    /// Whatever lies from there on is not known any more.
    pub(super) fn forget_from(&mut self, at: i64) {
        self.0.retain(|own, (length, _)| own + i64::from(*length) <= at);
    }

    /// Where the bytes come from that were stored from `offset` on: one store, or several that follow each other in both places.
    pub(super) fn source(&self, offset: i64, size: u64) -> Result<Source, NoSource> {
        let mut first: Option<&Known> = None;
        let mut done = 0;
        while done < size {
            let (bytes, value) = self.0.get(&(offset + done as i64)).ok_or(NoSource::Computed)?;
            let Value::Known(known) = value else { return Err(NoSource::Computed) };
            match first {
                // What is stored may be a part of a value, and the field the whole of the store.
                None if u64::from(*bytes) == size => return known.source(*bytes),
                None if known.bytes == *bytes && !known.hops.is_empty() && known.add == 0 => {
                    first = Some(known)
                }
                Some(first) if known.bytes == *bytes && known.follows(first, done) => {}
                _ => return Err(NoSource::Computed),
            }
            done += u64::from(*bytes);
        }
        match first {
            Some(first) if done == size => first.source(first.bytes),
            _ => Err(NoSource::Computed),
        }
    }
}

impl Known {
    fn source(&self, stored: u8) -> Result<Source, NoSource> {
        if self.add != 0 {
            return Err(NoSource::Computed);
        }
        let widened = (self.bytes < stored).then_some((self.bytes, self.is_signed));
        Ok(Source { origin: self.origin, hops: self.hops.clone(), widened })
    }

    /// Whether it was read so many bytes behind `first`.
    fn follows(&self, first: &Self, behind: u64) -> bool {
        let (Some((last, way)), Some((first_last, first_way))) =
            (self.hops.split_last(), first.hops.split_last())
        else {
            return false;
        };
        self.add == 0
            && self.origin == first.origin
            && way == first_way
            && *last == first_last.wrapping_add(behind as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument() -> Value {
        Value::whole(Origin::Argument(1))
    }

    /// What memory holds so many bytes behind where the argument leads to.
    fn loaded(offset: i64, bytes: u8) -> Value {
        let origin = Origin::Argument(1);
        Value::Known(Known { origin, hops: vec![offset], add: 0, bytes, is_signed: false })
    }

    fn stored(stores: &[(i64, u8, Value)], size: u64) -> Result<Source, NoSource> {
        let mut all = Stores::default();
        stores.iter().for_each(|(at, bytes, value)| all.store(*at, *bytes, value.clone()));
        all.source(8, size)
    }

    #[test]
    fn a_field_is_one_store_or_several_that_follow_each_other() {
        let source =
            |hops: &[i64], widened| Ok(Source { origin: Origin::Argument(1), hops: hops.to_vec(), widened });
        assert_eq!(stored(&[(8, 8, argument())], 8), source(&[], None));
        assert_eq!(stored(&[(8, 4, argument())], 4), source(&[], None), "the lowest bytes");
        assert_eq!(stored(&[(8, 8, argument().cut(4, true))], 8), source(&[], Some((4, true))));
        assert_eq!(stored(&[(8, 8, loaded(16, 8)), (16, 8, loaded(24, 8))], 16), source(&[16], None));
        for (stores, size) in [
            (vec![(8, 8, loaded(16, 8)), (16, 8, loaded(32, 8))], 16),
            (vec![(8, 8, loaded(16, 8))], 16),
            (vec![(8, 8, argument()), (12, 2, Value::Unknown)], 8),
            (vec![(8, 8, argument().plus(1))], 8),
            (vec![(8, 8, Value::Stack(0))], 8),
            (vec![], 8),
        ] {
            assert_eq!(stored(&stores, size), Err(NoSource::Computed), "{stores:?}");
        }
    }

    #[test]
    fn numbers_are_cut_as_registers_are() {
        let number = |number: u64| Value::whole(Origin::Number(number));
        assert_eq!(number(0xffff_fff0).cut(4, true), number(0xffff_ffff_ffff_fff0));
        assert_eq!(number(0x1_0000_0001).cut(4, false), number(1));
        assert_eq!(number(7).plus(-8), number(u64::MAX));
        assert_eq!(argument().cut(4, false).plus(1), Value::Unknown);
        assert_eq!(argument().plus(1).cut(4, false), Value::Unknown);
        assert_eq!(argument().cut(2, false).cut(4, false), argument().cut(2, false));
        assert_eq!(argument().cut(2, true).cut(4, false), Value::Unknown, "its sign is in the upper bytes");
        assert_eq!(Value::Event(8).plus(8), Value::Event(16));
    }

    #[test]
    fn what_is_forgotten_is_not_read() {
        let mut stores = Stores::default();
        stores.store(0, 8, argument());
        stores.store(8, 8, argument());
        stores.forget_from(8);
        assert_eq!((stores.load(0, 8), stores.load(8, 8)), (argument(), Value::Unknown));
        assert_eq!((stores.load(0, 4), stores.load(4, 4)), (argument().cut(4, false), Value::Unknown));
    }
}
