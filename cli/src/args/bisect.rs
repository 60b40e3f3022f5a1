//! `vmm bisect`.

use super::guest::{Memory, parse_memory};
use super::{HostArgs, heading};
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Find the first bad kernel of a list, or the first bad commit of a tree
///
/// The test is a case of a file for `vmm test`, or CMD, which is to end with 0 while the kernel reports no bug. A kernel is bad when it
/// fails as the bad end does, by the fingerprint of the failure; any other failure is said, and the kernel is skipped, as one that
/// cannot be built or run. A line tells what came of each kernel.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm bisect --kernels debian:6.1,debian:6.12 -- ls /proc/sys/kernel/sched_child_runs_first
  vmm bisect setting.toml --kernels @kernels --state bisection.json

Exit codes:
  0      the first bad one was found
  1      there is none: the bad end passes, or the good end fails in the same way
  2      there is a mistake in the words, and nothing was run
  125    it could not be found: an end, or those next to it, could not be built or run
  128+n  ended by signal n; with --state, the same command goes on")]
pub(crate) struct Bisect {
    /// The file of cases that has the test
    #[arg(value_name = "FILE", required_unless_present = "command", conflicts_with = "command")]
    pub(crate) file: Option<PathBuf>,
    /// The name of the case [default: the only one]
    #[arg(long, value_name = "NAME", requires = "file")]
    pub(crate) test: Option<String>,
    /// The kernels, from good to bad: names as of --kernel with commas between them, or @FILE with one a line
    #[arg(
        long,
        value_name = "LIST",
        required_unless_present = "good",
        conflicts_with_all = ["good", "bad", "build", "built", "tree"],
    )]
    pub(crate) kernels: Option<String>,
    /// A commit that passes
    #[arg(long, value_name = "REV", requires_all = ["bad", "build"])]
    pub(crate) good: Option<String>,
    /// A commit that comes from it and fails
    #[arg(long, value_name = "REV", requires = "good")]
    pub(crate) bad: Option<String>,
    /// What builds a kernel in the tree, for a shell
    ///
    /// A commit for which it fails is skipped. It must fail, too, when it has left the kernel of another commit.
    #[arg(long, value_name = "COMMAND", requires = "good")]
    pub(crate) build: Option<String>,
    /// The tree of git, where commits are checked out; no file may be changed in it
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) tree: PathBuf,
    /// What --build leaves, as --kernel takes it [default: the tree]
    #[arg(long, value_name = "PATH", requires = "build")]
    pub(crate) built: Option<PathBuf>,
    /// For a failure that does not come in each run: run kernels again until the answer is right with this probability, as 0.95
    ///
    /// The bad end is run until five runs have failed. From how many that took follows how often others must pass.
    #[arg(long, value_name = "P", value_parser = probability)]
    pub(crate) confidence: Option<f64>,
    /// Run one kernel no more often than this, whatever confidence that gives
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) most_runs: u32,
    /// Skip a kernel when more than so many of its runs say nothing
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) retries: u32,
    /// Keep what is known in this file, and go on from it when it is there
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    pub(crate) state: Option<PathBuf>,
    /// Keep in this folder what each run has left, and what builds have printed
    #[arg(long, short = 'o', value_name = "DIR", help_heading = heading::OUTPUT)]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) place: HostArgs,
    /// How many CPUs the guest of CMD has [default: 1]
    #[arg(
        long,
        value_name = "N",
        requires = "command",
        value_parser = clap::value_parser!(u8).range(1..=16),
        help_heading = heading::MACHINE,
    )]
    pub(crate) cpus: Option<u8>,
    /// How much memory it has [default: 512M]
    #[arg(long, value_name = "SIZE", requires = "command", value_parser = parse_memory, help_heading = heading::MACHINE)]
    pub(crate) memory: Option<Memory>,
    /// Words for its kernel's command line
    #[arg(long, value_name = "WORDS", requires = "command", help_heading = heading::MACHINE)]
    pub(crate) append: Option<String>,
    /// How many seconds it may take where guests run natively [default: 100]
    #[arg(long, value_name = "SECONDS", requires = "command", help_heading = heading::MACHINE)]
    pub(crate) timeout: Option<u64>,
    /// The test: a command in a guest on this machine's files
    #[arg(last = true, value_name = "CMD", help_heading = heading::COMMAND)]
    pub(crate) command: Vec<OsString>,
}

/// A probability that can be reached.
fn probability(text: &str) -> Result<f64, ProbabilityError> {
    text.parse().ok().filter(|p| (0.5..1.0).contains(p)).ok_or(ProbabilityError)
}

/// A text is no probability that makes sense here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a number from 0.5 to less than 1, as 0.95")]
struct ProbabilityError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confidence_is_one_that_can_be_reached() {
        assert_eq!((probability("0.95"), probability("0.5")), (Ok(0.95), Ok(0.5)));
        for wrong in ["", "1", "95", "95%", "0.49", "-1", "nan", "inf"] {
            assert_eq!(probability(wrong), Err(ProbabilityError), "{wrong}");
        }
    }
}
