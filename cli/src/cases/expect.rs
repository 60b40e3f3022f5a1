//! What can be expected of a probe: numbers of hits, values, and durations beside those of another probe.

use super::pattern::Pattern;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// How many there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CountRange {
    pub(crate) least: u64,
    /// `None`: any number above.
    pub(crate) most: Option<u64>,
}

/// How a duration is to be beside another one: `<= 3 x open`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DurationRatio {
    pub(crate) comparison: Comparison,
    pub(crate) factor: f64,
    /// The other probe.
    pub(crate) of: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// What a hit has read, by the names of fields.
pub(crate) type HitMatch = BTreeMap<toml::Spanned<String>, ExpectedValue>;

/// What a field has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExpectedValue {
    Number(i128),
    Bool(bool),
    Text(Pattern),
}

/// A text that is none of these.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExpectError {
    #[error("`{0}` is no number of hits: write 2, \"1..=5\", \">= 1\" or \"<= 5\"")]
    Count(String),
    #[error("`{0}` can be no number")]
    Empty(String),
    #[error("`{0}` compares no durations: write \"<= 3 x ID\", with the id of another probe of returns")]
    Ratio(String),
}

impl CountRange {
    pub(crate) fn exactly(count: u64) -> Self {
        Self { least: count, most: Some(count) }
    }

    /// Whether `count` is in it.
    pub(crate) fn has(&self, count: u64) -> bool {
        count >= self.least && self.most.is_none_or(|most| count <= most)
    }
}

impl fmt::Display for CountRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { least: 0, most: Some(0) } => f.write_str("none"),
            Self { least, most: None } => write!(f, "at least {least}"),
            Self { least, most: Some(most) } if least == most => write!(f, "{least}"),
            Self { least: 0, most: Some(most) } => write!(f, "at most {most}"),
            Self { least, most: Some(most) } => write!(f, "{least} to {most}"),
        }
    }
}

impl FromStr for CountRange {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let wrong = || ExpectError::Count(text.to_owned());
        let number = |digits: &str| digits.trim().parse::<u64>().map_err(|_| wrong());
        let at_most = |most| Self { least: 0, most: Some(most) };
        let at_least = |least| Self { least, most: None };
        let empty = || ExpectError::Empty(text.to_owned());
        let range = if let Some((least, most)) = text.split_once("..") {
            let least = if least.trim().is_empty() { 0 } else { number(least)? };
            let most = match most.strip_prefix('=') {
                Some(most) => Some(number(most)?),
                None if most.trim().is_empty() => None,
                None => Some(number(most)?.checked_sub(1).ok_or_else(empty)?),
            };
            Self { least, most }
        } else if let Some(least) = text.strip_prefix(">=") {
            at_least(number(least)?)
        } else if let Some(least) = text.strip_prefix('>') {
            at_least(number(least)?.checked_add(1).ok_or_else(empty)?)
        } else if let Some(most) = text.strip_prefix("<=") {
            at_most(number(most)?)
        } else if let Some(most) = text.strip_prefix('<') {
            at_most(number(most)?.checked_sub(1).ok_or_else(empty)?)
        } else {
            Self::exactly(number(text.strip_prefix('=').unwrap_or(text))?)
        };
        if range.most.is_some_and(|most| most < range.least) { Err(empty()) } else { Ok(range) }
    }
}

impl<'de> Deserialize<'de> for CountRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

struct CountVisitor;

impl Visitor<'_> for CountVisitor {
    type Value = CountRange;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of hits: 2, \"1..=5\", \">= 1\" or \"<= 5\"")
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<CountRange, E> {
        let count = u64::try_from(count).map_err(|_| E::custom(ExpectError::Empty(count.to_string())))?;
        Ok(CountRange::exactly(count))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<CountRange, E> {
        text.parse().map_err(E::custom)
    }
}

impl Comparison {
    const ALL: [(&'static str, Self); 4] =
        [("<=", Self::AtMost), (">=", Self::AtLeast), ("<", Self::Less), (">", Self::Greater)];

    pub(crate) fn holds(self, left: f64, right: f64) -> bool {
        match self {
            Self::Less => left < right,
            Self::AtMost => left <= right,
            Self::Greater => left > right,
            Self::AtLeast => left >= right,
        }
    }
}

impl fmt::Display for DurationRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = Comparison::ALL.iter().find(|(_, comparison)| *comparison == self.comparison);
        write!(f, "{} {} x {}", sign.map_or("", |(sign, _)| sign), self.factor, self.of)
    }
}

impl FromStr for DurationRatio {
    type Err = ExpectError;

    fn from_str(text: &str) -> Result<Self, ExpectError> {
        let parse = || {
            let (comparison, rest) = Comparison::ALL
                .into_iter()
                .find_map(|(sign, comparison)| Some((comparison, text.trim().strip_prefix(sign)?)))?;
            let (factor, of) = rest.split_once(" x ").unwrap_or(("1", rest));
            let factor =
                factor.trim().parse::<f64>().ok().filter(|factor| factor.is_finite() && *factor > 0.0)?;
            let of = of.trim();
            (!of.is_empty() && !of.contains(char::is_whitespace)).then(|| Self {
                comparison,
                factor,
                of: of.to_owned(),
            })
        };
        parse().ok_or_else(|| ExpectError::Ratio(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for DurationRatio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for ExpectedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Text(pattern) => write!(f, "\"{pattern}\""),
        }
    }
}

impl<'de> Deserialize<'de> for ExpectedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = ExpectedValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, true or false, or a text in which * stands for any text")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<ExpectedValue, E> {
        Ok(ExpectedValue::Number(number.into()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<ExpectedValue, E> {
        Ok(ExpectedValue::Bool(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ExpectedValue, E> {
        Ok(ExpectedValue::Text(Pattern::new(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_hits_are_ranges() {
        for (text, shown) in [
            ("2", "2"),
            ("=2", "2"),
            ("0", "none"),
            ("1..=5", "1 to 5"),
            ("1..5", "1 to 4"),
            ("..=5", "at most 5"),
            ("3..", "at least 3"),
            (">= 1", "at least 1"),
            ("> 1", "at least 2"),
            ("<= 5", "at most 5"),
            ("< 1", "none"),
        ] {
            assert_eq!(text.parse::<CountRange>().unwrap().to_string(), shown, "{text}");
        }
        for wrong in ["", "a", "5..=1", "-1", "< 0", "1.5", "..0", "1..=", "> 18446744073709551615"] {
            assert!(wrong.parse::<CountRange>().is_err(), "{wrong}");
        }
        let range: CountRange = "1..=2".parse().unwrap();
        assert_eq!([0, 1, 2, 3].map(|count| range.has(count)), [false, true, true, false]);
    }

    #[test]
    fn durations_are_compared_with_those_of_another_probe() {
        let ratio: DurationRatio = "<= 3 x open".parse().unwrap();
        assert_eq!(
            ratio,
            DurationRatio { comparison: Comparison::AtMost, factor: 3.0, of: "open".to_owned() }
        );
        assert_eq!(ratio.to_string(), "<= 3 x open");
        assert_eq!("> open".parse::<DurationRatio>().unwrap().to_string(), "> 1 x open");
        assert_eq!("<1.5 x a".parse::<DurationRatio>().unwrap().factor, 1.5);
        for wrong in ["", "3 x open", "<= 3", "<= 3ms", "<= 0 x a", "<= nan x a", "<= 3 x", "<= 3 x a b"] {
            // A word alone is the id of a probe, which is looked for later.
            let is_id = wrong == "<= 3" || wrong == "<= 3ms";
            assert_eq!(wrong.parse::<DurationRatio>().is_ok(), is_id, "{wrong}");
        }
        assert!(Comparison::AtMost.holds(1.0, 1.0) && !Comparison::Less.holds(1.0, 1.0));
        assert!(Comparison::AtLeast.holds(1.0, 1.0) && Comparison::Greater.holds(2.0, 1.0));
    }
}
