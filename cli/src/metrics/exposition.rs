//! What is counted, as Prometheus reads it.

use crate::control::{CountedProbe, LiveCounters, LiveDurations};
use crate::record::{GuardLine, Kind};
use crate::say::harmless;
use anyhow::Result;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge, Histogram};
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};
use std::collections::HashMap;
use std::fmt;
use vmm::session::Durations;

/// Labels of one metric of several with a name.
type Labels<'a> = Vec<(&'static str, String)>;

/// The text of `counters`.
pub(super) fn text(counters: LiveCounters) -> Result<String> {
    let mut registry = Registry::with_prefix("vmm");
    registry.register_collector(Box::new(Metrics(counters)));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Metrics(LiveCounters);

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(counters) = self;
        let mut families = Families(encoder);
        families.one("vcpus", "CPUs of the guest", Gauge, counters.vcpus as u64)?;
        families.one("armed", "Whether all probes stand that can", Gauge, counters.armed.into())?;
        families.one("paused", "Whether somebody has all CPUs stand still", Gauge, counters.paused.into())?;
        families.seconds("run", "How long ago the guest was started", counters.ran_ns)?;
        if let Some(exits) = counters.exits {
            families.one("exits", "How often CPUs have left the guest", Counter, exits)?;
        }
        families.one(
            "waits",
            "How often a CPU has waited because hits were not read fast enough",
            Counter,
            counters.waits,
        )?;
        let lost = "Records of the kernel's log that were gone before anyone had read them";
        families.one("log_lost", lost, Counter, counters.log_lost)?;
        families.probes(&counters.probes)?;
        counters.guard.as_ref().map_or(Ok(()), |guard| families.guard(guard))
    }
}

/// All metrics with a name, one name after the other.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    /// The only metric of a name.
    fn one(&mut self, name: &str, help: &str, kind: MetricType, value: u64) -> fmt::Result {
        let Self(encoder) = self;
        number(&mut encoder.encode_descriptor(name, help, None, kind)?, kind, value)
    }

    fn seconds(&mut self, name: &str, help: &str, nanos: u64) -> fmt::Result {
        let Self(encoder) = self;
        encoder.encode_descriptor(name, help, Some(&Unit::Seconds), Gauge)?.encode_gauge(&seconds(nanos))
    }

    /// Metrics of a name, which their labels tell from each other.
    fn all(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        values: impl Iterator<Item = (Labels<'static>, u64)>,
    ) -> fmt::Result {
        let Self(encoder) = self;
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in values {
            number(&mut family.encode_family(&labels)?, kind, value)?;
        }
        Ok(())
    }

    fn probes(&mut self, probes: &[CountedProbe]) -> fmt::Result {
        let each =
            |value: fn(&CountedProbe) -> u64| probes.iter().map(move |probe| (labels(probe), value(probe)));
        self.all(
            "probe_hits",
            "Hits that were handed on, or counted",
            Counter,
            each(|probe| probe.probe.hits),
        )?;
        let outside = "Passes and calls that were not in the probe's scope";
        self.all("probe_outside", outside, Counter, each(|probe| probe.probe.outside))?;
        self.all("probe_missed", "Hits that were missed", Counter, each(|probe| probe.probe.missed))?;
        let standing =
            |probe: &CountedProbe| matches!(probe.probe.state.as_str(), "armed" | "optimized").into();
        self.all("probe_standing", "Whether the probe stands in the guest", Gauge, each(standing))?;
        let Self(encoder) = self;
        let help = "How long calls took whose returns were handed on";
        let mut family =
            encoder.encode_descriptor("probe_duration", help, Some(&Unit::Seconds), Histogram)?;
        for probe in probes {
            let Some(durations) = &probe.durations else { continue };
            let sum = seconds(durations.sum_ns);
            let buckets = buckets(durations);
            family.encode_family(&labels(probe))?.encode_histogram(
                sum,
                durations.calls,
                &buckets,
                NO_EXEMPLARS,
            )?;
        }
        Ok(())
    }

    fn guard(&mut self, guard: &GuardLine) -> fmt::Result {
        self.one("guard_pages", "Pages of the kernel that are sealed", Gauge, guard.pages.unwrap_or(0))?;
        let modules = "Pages of modules that were sealed, one after the other";
        self.one("guard_module_pages", modules, Counter, guard.module_pages)?;
        let unsealed = "Modules that could not be sealed, or not as a whole";
        self.one("guard_unsealed_modules", unsealed, Counter, guard.unsealed_modules)?;
        let patches = [
            ("jump_label", guard.jump_labels),
            ("static_call", guard.static_calls),
            ("ftrace", guard.ftrace),
            ("kprobe", guard.kprobes),
            ("lock", guard.locks),
        ];
        let patches = patches.into_iter().map(|(kind, count)| (vec![("kind", kind.to_owned())], count));
        self.all("guard_patches", "The kernel's own changes of its text, in steps", Counter, patches)?;
        self.one("guard_findings", "Writes that were none of the kernel's own", Counter, guard.findings)?;
        self.one("guard_scans", "How often the memory was scanned", Counter, guard.scans)?;
        self.seconds(
            "guard_longest_scan",
            "How long the guest stood still for the longest scan",
            guard.longest_scan_ns,
        )
    }
}

/// Calls that stand for others: there are none.
const NO_EXEMPLARS: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;

fn number(encoder: &mut MetricEncoder<'_>, kind: MetricType, value: u64) -> fmt::Result {
    match kind {
        Counter => encoder.encode_counter::<NoLabelSet, u64, f64>(&value, None),
        _ => encoder.encode_gauge(&value),
    }
}

/// What tells a probe from others. The guest has a say in names.
fn labels(CountedProbe { probe, .. }: &CountedProbe) -> Labels<'static> {
    let kind = match probe.kind {
        Kind::Instruction => "instruction",
        Kind::Return => "return",
        Kind::Watch => "watch",
    };
    vec![
        ("id", probe.id.to_string()),
        ("probe", harmless(&probe.probe)),
        ("event", harmless(probe.event.as_deref().unwrap_or_default())),
        ("kind", kind.to_owned()),
    ]
}

/// Upper bounds in seconds, and how many calls were below each and in none before.
fn buckets(durations: &LiveDurations) -> Vec<(f64, u64)> {
    // The last one may have taken longer.
    let below = durations.below_powers_of_two.iter().take(Durations::POWERS - 1);
    let mut buckets: Vec<_> =
        (0..63).zip(below).map(|(power, calls)| (seconds(1 << power), *calls)).collect();
    let counted: u64 = buckets.iter().map(|(_, calls)| calls).sum();
    buckets.push((f64::INFINITY, durations.calls.saturating_sub(counted)));
    buckets
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn counters() -> LiveCounters {
        serde_json::from_value(json!({
            "ran_ns": 1_500_000_000u64, "vcpus": 2, "armed": true, "paused": false, "exits": null, "waits": 3, "log_lost": 0,
            "probes": [{
                "id": 1, "probe": "vfs_read%return", "event": "a\"b\u{1b}", "pattern": null, "kind": "r", "module": null,
                "address": "0xffffffff81000000", "enabled": true, "hits": 4, "outside": 1, "missed": 0, "state": "armed",
                "reason": null, "durations": { "calls": 4, "sum_ns": 5000, "below_powers_of_two": [0, 1, 2] }
            }],
            "guard": null
        }))
        .unwrap()
    }

    #[test]
    fn a_probe_is_told_by_its_labels() {
        let text = text(counters()).unwrap();
        let labels = r#"id="1",probe="vfs_read%return",event="a\"b?",kind="return""#;
        for line in [
            "# TYPE vmm_vcpus gauge".to_owned(),
            "vmm_vcpus 2".to_owned(),
            "vmm_run_seconds 1.5".to_owned(),
            "vmm_waits_total 3".to_owned(),
            format!("vmm_probe_hits_total{{{labels}}} 4"),
            format!("vmm_probe_standing{{{labels}}} 1"),
            "# TYPE vmm_probe_duration_seconds histogram".to_owned(),
            format!("vmm_probe_duration_seconds_count{{{labels}}} 4"),
            format!("vmm_probe_duration_seconds_bucket{{{labels},le=\"2e-09\"}} 1"),
            format!("vmm_probe_duration_seconds_bucket{{{labels},le=\"4e-09\"}} 3"),
            format!("vmm_probe_duration_seconds_bucket{{{labels},le=\"+Inf\"}} 4"),
        ] {
            assert!(text.lines().any(|own| own == line), "no `{line}` in\n{text}");
        }
        assert!(!text.contains("vmm_exits") && !text.contains("guard"), "{text}");
    }
}
