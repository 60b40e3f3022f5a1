//! One part of all cases, of which each machine runs another.

use std::str::FromStr;

/// Which part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shard {
    Part(ShardRule, Part),
    /// What the engine's variables say.
    Auto,
}

/// By what a case belongs to a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardRule {
    /// In turns: no part has more than one case more than another.
    Turns,
    /// By its name: it stays where it is when others are added.
    Hash,
}

/// The part of this number, counted from 1, of so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    number: u64,
    of: u64,
}

/// Why there is no part.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShardError {
    #[error("write a part and how many there are, as 1/3 or hash:1/3, or auto")]
    Form,
    #[error("there is no part {0} of {1}: they are counted from 1")]
    Range(u64, u64),
    #[error("{0} is no number of a part")]
    Number(&'static str),
    #[error("{0} says which part this is, and nothing says how many there are: say it with --shards")]
    NoTotal(&'static str),
    #[error(
        "no engine says which part this is: JOB_COMPLETION_INDEX with --shards, CI_NODE_INDEX and CI_NODE_TOTAL, or \
         VMM_SHARD_INDEX and VMM_SHARD_TOTAL would"
    )]
    NoEngine,
}

impl Part {
    fn new(number: u64, of: u64) -> Result<Self, ShardError> {
        match (1..=of).contains(&number) {
            true => Ok(Self { number, of }),
            false => Err(ShardError::Range(number, of)),
        }
    }
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let (rule, part) = match text.strip_prefix("hash:") {
            Some(part) => (ShardRule::Hash, part),
            None => (ShardRule::Turns, text),
        };
        let (number, of) = part.split_once('/').ok_or(ShardError::Form)?;
        let parse = |digits: &str| digits.parse::<u64>().map_err(|_| ShardError::Form);
        Ok(Self::Part(rule, Part::new(parse(number)?, parse(of)?)?))
    }
}

impl Shard {
    /// The part that is meant. `variable` gives the engine's variables, `total` is how many parts the user has said.
    pub(crate) fn part(
        self,
        total: Option<u64>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<(ShardRule, Part), ShardError> {
        /// The variables of an engine, and from which number it counts.
        const ENGINES: [(&str, Option<&str>, u64); 3] = [
            ("VMM_SHARD_INDEX", Some("VMM_SHARD_TOTAL"), 1),
            ("CI_NODE_INDEX", Some("CI_NODE_TOTAL"), 1),
            ("JOB_COMPLETION_INDEX", None, 0),
        ];
        if let Self::Part(rule, part) = self {
            return Ok((rule, part));
        }
        let number = |name: &'static str| {
            variable(name)
                .map(|text| text.trim().parse::<u64>().map_err(|_| ShardError::Number(name)))
                .transpose()
        };
        for (index, of, first) in ENGINES {
            let Some(own) = number(index)? else { continue };
            let said = match of {
                Some(of) => number(of)?,
                None => None,
            };
            let of = total.or(said).ok_or(ShardError::NoTotal(index))?;
            return Ok((ShardRule::Turns, Part::new(own.saturating_add(1 - first), of)?));
        }
        Err(ShardError::NoEngine)
    }
}

impl Part {
    /// Whether the case at `place` among all, which is called so, belongs to it.
    pub(crate) fn has(self, rule: ShardRule, place: usize, kernel: &str, name: &str) -> bool {
        let turn = match rule {
            ShardRule::Turns => place as u64,
            ShardRule::Hash => hash(kernel, name),
        };
        turn % self.of == self.number - 1
    }
}

/// The same in every version of this program (FNV-1a).
fn hash(kernel: &str, name: &str) -> u64 {
    let bytes = kernel.bytes().chain([0]).chain(name.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_from_1() {
        let part = |number, of| Part { number, of };
        assert_eq!("2/3".parse(), Ok(Shard::Part(ShardRule::Turns, part(2, 3))));
        assert_eq!("hash:1/1".parse(), Ok(Shard::Part(ShardRule::Hash, part(1, 1))));
        assert_eq!("auto".parse(), Ok(Shard::Auto));
        for wrong in ["", "1", "a/b", "1/", "hash:", "hash:auto", "-1/2"] {
            assert_eq!(wrong.parse::<Shard>(), Err(ShardError::Form), "{wrong}");
        }
        for wrong in ["0/2", "3/2", "1/0"] {
            assert!(matches!(wrong.parse::<Shard>(), Err(ShardError::Range(..))), "{wrong}");
        }
    }

    #[test]
    fn an_engine_says_which_part_it_is() {
        let auto = |total, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            Shard::Auto.part(total, variable).map(|(_, part)| (part.number, part.of))
        };
        assert_eq!(auto(Some(4), &[("JOB_COMPLETION_INDEX", "0")]), Ok((1, 4)));
        assert_eq!(auto(Some(4), &[("JOB_COMPLETION_INDEX", "3")]), Ok((4, 4)));
        assert_eq!(auto(None, &[("CI_NODE_INDEX", "2"), ("CI_NODE_TOTAL", "3")]), Ok((2, 3)));
        assert_eq!(auto(None, &[("VMM_SHARD_INDEX", "1"), ("VMM_SHARD_TOTAL", "3")]), Ok((1, 3)));
        assert_eq!(
            auto(None, &[("JOB_COMPLETION_INDEX", "0")]),
            Err(ShardError::NoTotal("JOB_COMPLETION_INDEX"))
        );
        assert_eq!(auto(Some(4), &[("JOB_COMPLETION_INDEX", "4")]), Err(ShardError::Range(5, 4)));
        assert_eq!(auto(None, &[("CI_NODE_INDEX", "x")]), Err(ShardError::Number("CI_NODE_INDEX")));
        assert_eq!(auto(Some(2), &[]), Err(ShardError::NoEngine));
    }

    #[test]
    fn parts_unite_to_the_whole() {
        let names: Vec<String> = (0..50).map(|n| format!("case {n}")).collect();
        for rule in [ShardRule::Turns, ShardRule::Hash] {
            for of in 1..=7 {
                for (place, name) in names.iter().enumerate() {
                    let parts =
                        (1..=of).filter(|number| Part { number: *number, of }.has(rule, place, "k", name));
                    assert_eq!(parts.count(), 1, "{name} {of}");
                }
            }
        }
        let part = Part { number: 1, of: 3 };
        assert_eq!(part.has(ShardRule::Hash, 0, "k", "a"), part.has(ShardRule::Hash, 7, "k", "a"));
    }
}
