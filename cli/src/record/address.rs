//! Addresses and registers: hexadecimal strings, because many readers of JSON have no 64-bit numbers.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;

/// An address or a register, written as `"0xffffffff81000280"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    /// The address that `0x1f` is.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        parse(text).map(Self)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom("no hexadecimal number"))
    }
}

/// The number that `0x1f` is.
pub(super) fn parse(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x")?;
    // The parser would take a sign.
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_hexadecimal_string() {
        let text = serde_json::to_string(&Address(0xffff_ffff_8100_0280)).unwrap();
        assert_eq!(text, "\"0xffffffff81000280\"");
        assert_eq!(serde_json::from_str::<Address>(&text).unwrap(), Address(0xffff_ffff_8100_0280));
        for wrong in ["12", "0x", "0x+1", "0xg", "0x10000000000000000"] {
            assert!(serde_json::from_str::<Address>(&format!("\"{wrong}\"")).is_err(), "{wrong}");
        }
    }
}
