//! What has happened between two looks at a guest.

use crate::control::{CountedProbe, LiveCounters, LiveDurations};
use crate::say::harmless;
use std::cmp::Reverse;
use std::collections::HashMap;

/// A look at a guest, beside the one before.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// Seconds since the guest was started.
    pub(super) ran: f64,
    pub(super) vcpus: usize,
    pub(super) is_paused: bool,
    pub(super) exits: Option<f64>,
    pub(super) waits: u64,
    pub(super) log_lost: u64,
    pub(super) rows: Vec<Row>,
}

/// A probe. What has an end in `_rate` is for each second between the two looks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Row {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) state: String,
    pub(super) is_enabled: bool,
    pub(super) hits: u64,
    pub(super) hit_rate: f64,
    pub(super) missed: u64,
    pub(super) miss_rate: f64,
    /// How long the calls took that returned between the looks, in nanoseconds.
    pub(super) mean: Option<f64>,
    /// Less than this took 99 of 100 of them, in nanoseconds.
    pub(super) p99: Option<u64>,
}

/// By what rows are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Order {
    #[default]
    HitRate,
    Hits,
    Missed,
    Mean,
    Number,
}

impl Order {
    pub(super) fn next(self) -> Self {
        match self {
            Self::HitRate => Self::Hits,
            Self::Hits => Self::Missed,
            Self::Missed => Self::Mean,
            Self::Mean => Self::Number,
            Self::Number => Self::HitRate,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::HitRate => "HITS/S",
            Self::Hits => "HITS",
            Self::Missed => "MISSED",
            Self::Mean => "MEAN",
            Self::Number => "#",
        }
    }
}

impl Rates {
    /// What `now` says that `before` has not said. Without a look before, all has happened since the start.
    pub(super) fn between(before: Option<&LiveCounters>, now: &LiveCounters, order: Order) -> Self {
        let begun = before.map_or(0, |before| before.ran_ns);
        let seconds = (now.ran_ns.saturating_sub(begun) as f64 / 1e9).max(1e-9);
        let known = before.iter().flat_map(|before| &before.probes);
        let known: HashMap<u32, &CountedProbe> = known.map(|probe| (probe.probe.id, probe)).collect();
        let exits = |look: &LiveCounters| look.exits;
        let mut rows: Vec<Row> =
            now.probes.iter().map(|probe| row(known.get(&probe.probe.id).copied(), probe, seconds)).collect();
        sort(&mut rows, order);
        Self {
            ran: now.ran_ns as f64 / 1e9,
            vcpus: now.vcpus,
            is_paused: now.paused,
            exits: exits(now)
                .map(|count| count.saturating_sub(before.and_then(exits).unwrap_or(0)) as f64 / seconds),
            waits: now.waits,
            log_lost: now.log_lost,
            rows,
        }
    }
}

impl Rates {
    /// Sorts the rows, the greatest first, but for numbers.
    pub(super) fn sort(&mut self, order: Order) {
        sort(&mut self.rows, order);
    }
}

fn row(before: Option<&CountedProbe>, now: &CountedProbe, seconds: f64) -> Row {
    let CountedProbe { probe, durations } = now;
    let since = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0));
    let rate = |count: u64| count as f64 / seconds;
    let earlier = before.and_then(|before| before.durations.as_ref());
    let durations = durations.as_ref().map(|now| since_then(earlier, now)).filter(|new| new.calls > 0);
    Row {
        id: probe.id,
        name: harmless(probe.name()),
        state: probe.state.clone(),
        is_enabled: probe.enabled,
        hits: probe.hits,
        hit_rate: rate(since(probe.hits, before.map(|before| before.probe.hits))),
        missed: probe.missed,
        miss_rate: rate(since(probe.missed, before.map(|before| before.probe.missed))),
        mean: durations.as_ref().map(|new| new.sum_ns as f64 / new.calls as f64),
        p99: durations.as_ref().and_then(p99),
    }
}

/// Those of the calls that were not there before.
fn since_then(before: Option<&LiveDurations>, now: &LiveDurations) -> LiveDurations {
    let none = LiveDurations::default();
    let before = before.unwrap_or(&none);
    let earlier = before.below_powers_of_two.iter().copied().chain(std::iter::repeat(0));
    LiveDurations {
        calls: now.calls.saturating_sub(before.calls),
        sum_ns: now.sum_ns.saturating_sub(before.sum_ns),
        below_powers_of_two: now
            .below_powers_of_two
            .iter()
            .zip(earlier)
            .map(|(now, before)| now.saturating_sub(before))
            .collect(),
    }
}

/// The power of two that at least 99 of 100 calls were below.
fn p99(durations: &LiveDurations) -> Option<u64> {
    let mut below = 0;
    let wanted = durations.calls.checked_mul(99)?.div_ceil(100);
    (0..).zip(&durations.below_powers_of_two).find_map(|(power, calls)| {
        below += calls;
        (below >= wanted).then(|| 1u64.checked_shl(power)).flatten()
    })
}

/// The greatest first, but for numbers.
fn sort(rows: &mut [Row], order: Order) {
    let greatest = |value: f64| Reverse((value * 1e3) as u64);
    match order {
        Order::HitRate => rows.sort_by_key(|row| (greatest(row.hit_rate), Reverse(row.hits), row.id)),
        Order::Hits => rows.sort_by_key(|row| (Reverse(row.hits), row.id)),
        Order::Missed => rows.sort_by_key(|row| (Reverse(row.missed), row.id)),
        Order::Mean => rows.sort_by_key(|row| (greatest(row.mean.unwrap_or(0.0)), row.id)),
        Order::Number => rows.sort_by_key(|row| row.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(ran_ns: u64, hits: [u64; 2], calls: u64, sum_ns: u64, below: &[u64]) -> LiveCounters {
        let probe = |id: usize, durations| {
            json!({
                "id": id, "probe": format!("f{id}\u{1b}"), "event": null, "pattern": null, "kind": "k", "module": null,
                "address": "0x0", "enabled": true, "hits": hits[id], "outside": 0, "missed": 0, "state": "armed",
                "reason": null, "durations": durations
            })
        };
        let durations = json!({ "calls": calls, "sum_ns": sum_ns, "below_powers_of_two": below });
        serde_json::from_value(json!({
            "ran_ns": ran_ns, "vcpus": 1, "armed": true, "paused": false, "exits": 10 * hits[0], "waits": 0, "log_lost": 0,
            "probes": [probe(0, json!(null)), probe(1, durations)], "guard": null
        }))
        .unwrap()
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let before = look(1_000_000_000, [100, 5], 2, 100, &[0, 2]);
        let now = look(3_000_000_000, [300, 1005], 102, 1100, &[0, 2, 99, 1]);
        let rates = Rates::between(Some(&before), &now, Order::HitRate);
        assert_eq!((rates.ran, rates.exits), (3.0, Some(1000.0)));
        let [first, second] = &rates.rows[..] else { panic!("{rates:?}") };
        assert_eq!((first.id, first.hit_rate, first.mean, first.p99), (1, 500.0, Some(10.0), Some(4)));
        assert_eq!((second.id, second.hit_rate, second.mean, second.name.as_str()), (0, 100.0, None, "f0?"));
        let rows =
            |order| Rates::between(None, &now, order).rows.iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(rows(Order::Number), [0, 1]);
        assert_eq!(rows(Order::Mean), [1, 0]);
    }

    /// Whoever serves may be older, or wrong.
    #[test]
    fn a_look_that_goes_back_is_none() {
        let before = look(3_000_000_000, [300, 1005], 102, 1100, &[0, 2, 99, 1]);
        let now = look(1_000_000_000, [100, 5], 2, 100, &[0, 2]);
        let rates = Rates::between(Some(&before), &now, Order::Hits);
        assert!(rates.rows.iter().all(|row| row.hit_rate == 0.0 && row.mean.is_none()), "{rates:?}");
        let greatest = LiveDurations { calls: u64::MAX, sum_ns: u64::MAX, below_powers_of_two: vec![0; 70] };
        assert_eq!(p99(&greatest), None);
    }
}
