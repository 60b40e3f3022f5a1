//! What both orders come to together.

use super::forced::{ForcedOrder, ForcedRuns};
use crate::exit_codes::{DIED, UNARMED};
use std::fmt;

/// A sentence, and the exit code that belongs to it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RaceVerdict {
    text: String,
    pub(super) code: u8,
}

impl fmt::Display for RaceVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl RaceVerdict {
    pub(super) fn of(orders: &[ForcedOrder]) -> Self {
        let splats = orders.iter().any(|order| order.runs.has_splats());
        let failed = orders.iter().map(|order| failure(&order.runs)).find(|code| *code != 0).unwrap_or(0);
        let is_reached = orders.iter().any(|order| order.runs.reached() > 0);
        let (mut text, code) = match (splats, failed) {
            (true, _) => (found(orders, ForcedRuns::has_splats, "the kernel reports a bug, or dies"), DIED),
            (false, 1..) => (found(orders, |runs| failure(runs) != 0, "the run fails"), failed),
            (false, 0) if is_reached => ("in no order the kernel reports a bug".to_owned(), 0),
            (false, 0) => {
                ("neither order was ever reached: what comes of them is not known".to_owned(), UNARMED)
            }
        };
        for order in orders.iter().filter(|order| order.runs.reached() == 0) {
            if order.runs.is_blocked() {
                text.push_str(&format!(
                    "; the order {} is impossible at these places: who is held has the lock for which the other task waits",
                    order.name()
                ));
            } else if code != UNARMED {
                text.push_str(&format!("; the order {} was never reached", order.name()));
            }
        }
        Self { text, code }
    }
}

/// In which orders `what` happens.
fn found(orders: &[ForcedOrder], happens: impl Fn(&ForcedRuns) -> bool, what: &str) -> String {
    let found: Vec<&ForcedOrder> = orders.iter().filter(|order| happens(&order.runs)).collect();
    match found[..] {
        [only] => format!("only in the order {} {what}", only.name()),
        _ => format!("in both orders {what}"),
    }
}

/// The exit code of runs that have failed, or 0. That the order was never reached is none.
fn failure(runs: &ForcedRuns) -> u8 {
    match (runs.code, runs.failed) {
        (UNARMED, None) if runs.gate.is_some() && runs.reached() == 0 => 0,
        (code, _) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::GateEnd;
    use std::collections::BTreeMap;

    fn runs(code: u8, reached: u64) -> ForcedRuns {
        let (hold, until) = ("x".to_owned(), "y".to_owned());
        let gate = GateEnd { hold, until, reached, timed_out: 0, released: 0, unfinished: 0, passed: 0 };
        ForcedRuns { code, gate: Some(gate), ..ForcedRuns::default() }
    }

    fn splat(reached: u64) -> ForcedRuns {
        let splats = BTreeMap::from([("oops:f".to_owned(), ("BUG: f".to_owned(), 1))]);
        ForcedRuns { splats, ..runs(DIED, reached) }
    }

    #[test]
    fn the_order_is_named_in_which_it_goes_wrong() {
        let said = |ab: ForcedRuns, ba: ForcedRuns| {
            let order = |first: &str, second: &str, runs| ForcedOrder {
                first: first.to_owned(),
                second: second.to_owned(),
                runs,
            };
            let verdict = RaceVerdict::of(&[order("a", "b", ab), order("b", "a", ba)]);
            (verdict.to_string(), verdict.code)
        };
        let never = |name: &str| format!("; the order {name} was never reached");
        let table = [
            (runs(0, 9), runs(0, 1), "in no order the kernel reports a bug".to_owned(), 0),
            (
                runs(0, 9),
                splat(2),
                "only in the order b, then a the kernel reports a bug, or dies".to_owned(),
                123,
            ),
            (splat(1), splat(2), "in both orders the kernel reports a bug, or dies".to_owned(), 123),
            (
                runs(UNARMED, 0),
                splat(2),
                format!(
                    "only in the order b, then a the kernel reports a bug, or dies{}",
                    never("a, then b")
                ),
                123,
            ),
            (
                runs(0, 2),
                runs(UNARMED, 0),
                format!("in no order the kernel reports a bug{}", never("b, then a")),
                0,
            ),
            (
                runs(UNARMED, 0),
                runs(UNARMED, 0),
                "neither order was ever reached: what comes of them is not known".to_owned(),
                122,
            ),
            (runs(7, 3), runs(0, 3), "only in the order a, then b the run fails".to_owned(), 7),
            (
                runs(125, 1),
                splat(2),
                "only in the order b, then a the kernel reports a bug, or dies".to_owned(),
                123,
            ),
        ];
        for (ab, ba, text, code) in table {
            assert_eq!(said(ab, ba), (text, code));
        }
        // A command may end with a code that says something else of a guest.
        let own = ForcedRuns { failed: Some(DIED), ..runs(DIED, 3) };
        assert_eq!(said(own, runs(0, 3)), ("only in the order a, then b the run fails".to_owned(), DIED));
    }
}
