//! `vmm test`.

use super::{HostArgs, heading};
use crate::kernel_choice::Choice;
use crate::shard::Shard;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Run cases: boot a guest for each, and hold what it did to what its case expects
///
/// A file of cases says which kernels are booted, what runs in each guest, and what is expected of it: its exit code, hits of
/// probes, their numbers, values and order, and words of its output. docs/testing.md has the format. Every case is checked
/// before anything boots; each then runs in a process of its own.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm test cases.toml
  vmm test cases.toml --list
  vmm test cases.toml --shard 1/2 -o first --junit first.xml
  vmm test cases.toml --shard 2/2 -o second --retries 1
  vmm test --merge first second --junit all.xml --html all.html

Exit codes:
  0    all cases have passed, but for those that were skipped
  1    a case has failed
  2    there is a mistake in the file or in the words, and nothing was run
  77   all cases were skipped
  125  none has failed, and one was inconclusive, or could not be run for reasons of this machine")]
pub(crate) struct Cases {
    /// The file of cases
    #[arg(value_name = "FILE", required_unless_present = "merge")]
    pub(crate) file: Option<PathBuf>,
    /// Only cases whose names have one of these texts in them
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Boot these kernels instead of those of the file; may be repeated
    #[arg(
        long = "kernel",
        short = 'k',
        value_name = "KERNEL",
        value_parser = Choice::parser(),
        help_heading = heading::MACHINE,
    )]
    pub(crate) kernels: Vec<Choice>,
    #[command(flatten)]
    pub(crate) place: HostArgs,
    /// How many guests run side by side [default: as many as cores and free memory allow]
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = heading::MACHINE)]
    pub(crate) jobs: Option<u16>,
    /// Run what failed for reasons of this machine so many times more
    ///
    /// Failures and inconclusive cases are never run again. How often a case was run is told.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = heading::MACHINE)]
    pub(crate) retries: u32,
    /// List the cases that would run, as lines of JSON with --format json, and run none
    #[arg(long)]
    pub(crate) list: bool,
    /// Run one part of all cases: I/N, hash:I/N or auto
    ///
    /// I/N: in turns, parts are as large as each other. hash:I/N: a case stays in its part when others are added. auto: what the
    /// engine says in JOB_COMPLETION_INDEX (Kubernetes, with --shards), CI_NODE_INDEX and CI_NODE_TOTAL (GitLab), or
    /// VMM_SHARD_INDEX and VMM_SHARD_TOTAL, both from 1, which a matrix of GitHub can set. Parts are those of the cases that NAME
    /// and --kernel choose. With --output, --merge unites them.
    #[arg(long, value_name = "PART")]
    pub(crate) shard: Option<Shard>,
    /// How many parts there are, for --shard auto
    #[arg(long, value_name = "N", requires = "shard")]
    pub(crate) shards: Option<u64>,
    /// Begin with what took longest, by this file, and write to it how long each case took
    #[arg(long, value_name = "FILE")]
    pub(crate) times: Option<PathBuf>,
    /// Unite the results of parts, from the folders of their --output, and run none
    ///
    /// All cases must be there, each once: one that is missing counts as not run, and of one that is there twice the worst
    /// verdict counts.
    #[arg(
        long,
        value_name = "DIR",
        num_args = 1..,
        conflicts_with_all = ["file", "kernels", "jobs", "retries", "list", "shard", "times", "output"],
    )]
    pub(crate) merge: Vec<PathBuf>,
    /// Write the united results as one page for a browser to this file
    ///
    /// It has a table of cases and kernels, and of each case its command, why it has not passed, reports of the kernel, and the
    /// end of the console. It needs no other file and no script.
    #[arg(long, value_name = "FILE", requires = "merge", help_heading = heading::OUTPUT)]
    pub(crate) html: Option<PathBuf>,
    /// Keep in this folder what each case has left: recording, console, standard output and error, and all results
    #[arg(long, short = 'o', value_name = "DIR", help_heading = heading::OUTPUT)]
    pub(crate) output: Option<PathBuf>,
    /// Tell results as text, ktap, json or github
    ///
    /// json: a line for each case as it ends. github: annotations, which come with text as well where GITHUB_ACTIONS is set.
    #[arg(
        long,
        value_enum,
        default_value_t = ResultFormat::Text,
        hide_possible_values = true,
        help_heading = heading::OUTPUT,
    )]
    pub(crate) format: ResultFormat,
    /// Write results as JUnit's XML to this file; with --output, they are in its junit.xml as well
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    pub(crate) junit: Option<PathBuf>,
    /// Add a summary in Markdown to this file [default: what GITHUB_STEP_SUMMARY names]
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    pub(crate) summary: Option<PathBuf>,
}

/// How results are told.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultFormat {
    /// Lines for people
    Text,
    /// That of the kernel's own tests
    Ktap,
    /// One JSON object a line
    Json,
    /// Annotations of GitHub
    Github,
}
