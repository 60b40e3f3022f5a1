//! What is told of one order.

use super::forced::{ForcedOrder, ForcedRuns};
use crate::say::harmless;
use std::io::{self, Write};

/// Tells it in lines.
pub(super) fn order(out: &mut dyn Write, order: &ForcedOrder) -> io::Result<()> {
    lines(order).iter().try_for_each(|line| writeln!(out, "{}", harmless(line)))
}

fn lines(order: &ForcedOrder) -> Vec<String> {
    let ForcedRuns { gate, late, codes, splats, end, .. } = &order.runs;
    let name = order.name();
    let mut lines = vec![match gate {
        Some(gate) => format!("{name}: {}", gate.counts()),
        None => format!("{name}: the guest did not come so far"),
    }];
    let runs: usize = codes.values().sum();
    if runs > 0 {
        let ends: Vec<String> = codes.iter().map(|(code, count)| format!("{count} with {code}")).collect();
        lines.push(format!("  {runs} runs of the command have ended: {}", ends.join(", ")));
    }
    for (fingerprint, (title, count)) in splats {
        lines.push(format!("  splat, {count} times: {title} [{fingerprint}]"));
    }
    if let Some(end) = end.as_deref().filter(|end| *end != "stopped") {
        lines.push(format!("  the guest's end: {end}"));
    }
    if let Some(late) = late {
        lines.push("  the first time that the order was not reached:".to_owned());
        lines.extend(late.to_string().lines().map(|line| format!("  {line}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::GateEnd;
    use std::collections::BTreeMap;

    #[test]
    fn an_order_is_told_with_what_came_of_it() {
        let gate = GateEnd {
            hold: "a".to_owned(),
            until: "b".to_owned(),
            reached: 9,
            timed_out: 1,
            released: 0,
            unfinished: 0,
            passed: 0,
        };
        let splats = BTreeMap::from([("oops:f".to_owned(), ("BUG\x1b: f".to_owned(), 3))]);
        let runs = ForcedRuns {
            code: 123,
            gate: Some(gate),
            codes: BTreeMap::from([(0, 9), (1, 1)]),
            splats,
            end: Some("stopped".to_owned()),
            ..ForcedRuns::default()
        };
        let told = |runs: ForcedRuns| {
            let (mut out, first, second) = (Vec::new(), "b".to_owned(), "a".to_owned());
            order(&mut out, &ForcedOrder { first, second, runs }).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            told(runs),
            "b, then a: reached 9 times, not reached in time once\n  \
             10 runs of the command have ended: 9 with 0, 1 with 1\n  \
             splat, 3 times: BUG?: f [oops:f]\n"
        );
        assert_eq!(
            told(ForcedRuns { end: Some("timed out".to_owned()), ..ForcedRuns::default() }),
            "b, then a: the guest did not come so far\n  the guest's end: timed out\n"
        );
    }
}
