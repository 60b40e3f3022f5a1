//! Numbers in bytes, which are sent as they lie.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::linux::read::u32_at;

/// Bytes that are sent and received at once, and not one by one.
#[derive(Clone, Default)]
pub(super) struct Bytes(Vec<u8>);

impl Bytes {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, range: std::ops::RangeFrom<usize>) -> Option<&[u8]> {
        self.0.get(range)
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Whole)
    }
}

/// Numbers of 32 bits, several a row.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Words(Bytes);

impl Words {
    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push<const N: usize>(&mut self, row: [u32; N]) {
        row.iter().for_each(|word| self.0.0.extend(word.to_le_bytes()));
    }

    /// The row of that number, of `N` words each.
    pub(super) fn get<const N: usize>(&self, row: usize) -> Option<[u32; N]> {
        let start = row.checked_mul(4 * N)?;
        let mut words = [0; N];
        for (word, n) in words.iter_mut().zip(0..) {
            *word = u32_at(&self.0.0, start.checked_add(4 * n)?)?;
        }
        Some(words)
    }

    /// How many rows there are up to the first that `is_before` does not hold for.
    pub(super) fn partition_point<const N: usize>(&self, is_before: impl Fn([u32; N]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.0.len() / (4 * N));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle).is_some_and(&is_before) { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// Appends a number, 7 bits a byte (LEB128).
pub(super) fn put(bytes: &mut Vec<u8>, number: u32) {
    let mut rest = number;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

/// Takes a number off the front; `None` where there is none.
pub(super) fn take(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in [0, 7, 14, 21, 28] {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// A number with a sign as one that is small where that is near 0.
pub(super) fn unsigned(number: i32) -> u32 {
    (number << 1 ^ number >> 31).cast_unsigned()
}

/// The number that [`unsigned`] was given.
pub(super) fn signed(number: u32) -> i32 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}
