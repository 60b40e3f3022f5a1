//! `vmm report`.

use super::{Endpoint, heading};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Show a recording
///
/// A recording is what `vmm run --output FILE` has written. One that was cut short, as by a full disk, is shown as far as it
/// goes, which is said.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm report hits.json
  vmm report hits.json --format html --output hits.html
  vmm report hits.json --filter 'comm == \"init\"' --format folded
  vmm report hits.json --format svg --output flames.svg
  vmm report hits.json --format json | jq 'select(.type == \"hit\").fields'

Exit codes:
  0      the recording was shown
  2      the words are wrong, or the recording cannot be read
  125    not all was delivered to --to")]
pub(crate) struct Report {
    /// The recording; - is standard input
    #[arg(value_name = "FILE")]
    pub(crate) recording: PathBuf,
    /// As what it is shown
    #[arg(long, value_enum, default_value_t = ReportFormat::Text, help_heading = heading::OUTPUT)]
    pub(crate) format: ReportFormat,
    /// Only hits that meet this condition, as in a definition: 'comm == "cat" && count > 4096'
    ///
    /// It compares fields that were recorded, and common_pid, comm, cpu and __probe_ip. Symbols are compared as text.
    /// Histograms, counts, samples and the table stay those of the whole run.
    #[arg(long, value_name = "FILTER", help_heading = heading::OUTPUT)]
    pub(crate) filter: Option<String>,
    /// Write it to this file instead of standard output
    #[arg(long, short = 'o', value_name = "FILE", help_heading = heading::OUTPUT)]
    pub(crate) output: Option<PathBuf>,
    /// Send it to this receiver of OpenTelemetry instead of standard output: with --format otlp
    ///
    /// As in http://127.0.0.1:4318, which gets it at /v1/logs, as JSON. With - as the recording, what is found is sent while the guest runs,
    /// which never waits: what a slow receiver does not take is counted. The first signal ends nothing: the recording's end does. A second one ends
    /// at once.
    #[arg(long, value_name = "URL", conflicts_with = "output", help_heading = heading::OUTPUT)]
    pub(crate) to: Option<Endpoint>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// What `vmm run` has shown
    Text,
    /// The recording's own lines
    Json,
    /// Stacks for flame graphs, `task;frame;frame count`: for speedscope and flamegraph.pl
    Folded,
    /// A flame graph for web browsers
    Svg,
    /// A profile for pprof: stacks with their tasks and CPUs
    Pprof,
    /// A trace for https://ui.perfetto.dev: tasks and CPUs as tracks, calls whose returns were probed as slices
    Perfetto,
    /// Findings of a guard as events of OCSF (Detection Finding, 2004), one a line: for what collects security events
    Ocsf,
    /// The same as logs of OpenTelemetry: a request of OTLP a line, as JSON
    Otlp,
    /// One page for web browsers: timeline, hits, durations, histograms and a flame graph, to be filtered and searched
    Html,
}
