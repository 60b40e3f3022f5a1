//! What became of calls that were to fail.

use super::bounded::name;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What an injection came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "injection")]
pub(crate) struct InjectionEnd {
    /// As the user writes it.
    #[serde(deserialize_with = "name")]
    pub(crate) injection: String,
    /// How many calls there were that could have failed.
    pub(crate) calls: u64,
    /// How many have.
    pub(crate) injected: u64,
}

impl InjectionEnd {
    /// Says that none has failed, if so.
    pub(crate) fn untried(&self) -> Option<String> {
        let Self { injection, calls, injected } = self;
        (*injected == 0).then(|| match calls {
            0 => format!("{injection}: nothing was injected, as there was no such call in the scope"),
            1 => format!("{injection}: nothing was injected, as it was not the turn of the only call"),
            _ => format!("{injection}: nothing was injected, as it was the turn of none of {calls} calls"),
        })
    }
}

/// As a sentence.
impl fmt::Display for InjectionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { injection, calls, injected } = self;
        let times = if *injected == 1 { "once".to_owned() } else { format!("{injected} times") };
        let calls = if *calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") };
        write!(f, "{injection}: injected {times}, in {calls}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_tried_is_said() {
        let end = |calls, injected| InjectionEnd { injection: "f=NULL".to_owned(), calls, injected };
        assert_eq!((end(3, 1).untried(), end(3, 2).untried()), (None, None));
        assert!(end(0, 0).untried().unwrap().contains("no such call"));
        assert!(end(3, 0).untried().unwrap().contains("none of 3 calls"));
        assert_eq!(end(9, 1).to_string(), "f=NULL: injected once, in 9 calls");
        assert!(end(1, 0).untried().unwrap().contains("the only call"));
        assert_eq!(end(1, 1).to_string(), "f=NULL: injected once, in 1 call");
        assert_eq!(end(9, 2).to_string(), "f=NULL: injected 2 times, in 9 calls");
    }
}
