//! What can be said on the command line.

mod assisted;
mod bisect;
mod bundle;
mod controlled;
mod counting;
mod coverage;
mod ctl;
mod doctor;
mod dropped;
mod endpoint;
mod followed;
mod gdb_place;
mod guard;
mod guarded;
mod guest;
mod host;
mod injections;
mod kernel;
mod list;
mod metrics_place;
mod orders;
mod probes;
mod profile;
mod race;
mod replay;
mod report;
mod run;
mod sampled;
mod scan;
mod shake;
mod splats;
mod test;
mod time;
mod top;
mod types;

pub(crate) use assisted::{Assist, Assisted};
pub(crate) use bisect::Bisect;
pub(crate) use bundle::Bundled;
pub(crate) use controlled::Controlled;
pub(crate) use counting::{Count, Graph};
pub(crate) use coverage::{Coverage, CoverageFormat};
pub(crate) use ctl::{Ctl, CtlCommand};
pub(crate) use doctor::Doctor;
pub(crate) use dropped::Dropped;
pub(crate) use endpoint::Endpoint;
pub(crate) use followed::Followed;
pub(crate) use gdb_place::GdbPlace;
pub(crate) use guard::Guard;
pub(crate) use guarded::Guarded;
pub(crate) use guest::{Boot, Format, Guest, HostArgs, HostChoice, Memory, Records, Scope, parse_memory};
pub(crate) use host::{Host, HostCommand};
pub(crate) use injections::Injections;
pub(crate) use kernel::{FetchKernels, KernelArg, KernelCommand, KernelSymbols, KernelTask, SymbolSource};
pub(crate) use list::{List, ListKind};
pub(crate) use metrics_place::MetricsPlace;
pub(crate) use orders::{HoldModeChoice, Imposed, Orders, Shaken};
pub(crate) use probes::{Arming, Optimize, Probes};
pub(crate) use profile::Profile;
pub(crate) use race::{Between, Race, RaceOrder};
pub(crate) use replay::Replay;
pub(crate) use report::{Report, ReportFormat};
pub(crate) use run::Run;
pub(crate) use sampled::Sampled;
pub(crate) use scan::{Scan, ScanFormat};
pub(crate) use shake::Shake;
pub(crate) use splats::{SplatArgs, SplatChoice};
pub(crate) use test::{Cases, ResultFormat};
pub(crate) use top::Top;
pub(crate) use types::Types;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// A value as it is written on the command line.
pub(crate) fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The headings of help.
mod heading {
    pub(super) const PROBES: &str = "Probes";
    pub(super) const MACHINE: &str = "Machine";
    pub(super) const COMMAND: &str = "Command";
    pub(super) const OUTPUT: &str = "Output";
    pub(super) const ADVANCED: &str = "Advanced";
    pub(super) const GENERAL: &str = "General";
}

/// Kprobes from outside the guest
///
/// `vmm` boots an unmodified Linux kernel in a small virtual machine, plants breakpoints in its text from the host, and
/// shows every hit as the call that it is. The guest needs no agent, no configuration and no privileges.
#[derive(Parser)]
#[command(name = "vmm", version, max_term_width = 110, disable_help_flag = true)]
#[command(after_help = "\
Examples:
  vmm run -p do_sys_openat2 -- cat /etc/passwd
  vmm count 'vfs_*' -- ls /
  vmm list 'vfs_*'")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Show errors alone: no notes, no table
    #[arg(long, short, global = true, help_heading = heading::GENERAL)]
    pub(crate) quiet: bool,
    /// Print help: -h in short, --help with all options and examples
    #[arg(long, short, global = true, action = ArgAction::Help, help_heading = heading::GENERAL)]
    help: Option<bool>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Count(Box<Count>),
    Graph(Box<Graph>),
    Profile(Box<Profile>),
    Guard(Box<Guard>),
    Scan(Box<Scan>),
    Race(Box<Race>),
    Shake(Box<Shake>),
    Coverage(Box<Coverage>),
    Test(Box<Cases>),
    Bisect(Box<Bisect>),
    Replay(Box<Replay>),
    Ctl(Ctl),
    Top(Top),
    Report(Report),
    #[command(alias = "symbols")]
    List(List),
    Types(Types),
    Kernel(KernelTask),
    Doctor(Doctor),
    #[command(hide = true)]
    Host(Host),
    /// Write man pages and completions of shells, for packages
    #[command(hide = true)]
    Manual {
        /// The folder that gets `man` and `completions`.
        folder: PathBuf,
    },
    /// Run a command several times, and note its exit codes
    #[command(hide = true)]
    Repeat {
        times: u32,
        /// Where they are noted.
        ends: PathBuf,
        #[arg(last = true, required = true)]
        words: Vec<OsString>,
    },
    /// Answer a guest's requests for files, which come in over standard input
    #[command(hide = true)]
    ServeFiles {
        /// The folders.
        folders: String,
        /// Note on standard output what the guest looks at.
        #[arg(long)]
        noting: bool,
    },
    /// Make files of what a guest sends over standard input
    #[command(hide = true)]
    KeepFiles {
        /// Where it begins.
        folder: PathBuf,
    },
    /// Answer which functions the files below a folder have: questions come in over standard input
    #[command(hide = true)]
    ServeNames {
        /// The folder.
        root: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// As wide as where nobody says how wide the terminal is.
    #[test]
    fn short_help_fits_one_screen() {
        let mut cli = Cli::command();
        cli.build();
        for command in cli.get_subcommands_mut().filter(|command| !command.is_hide_set()) {
            let help = command.render_help().to_string();
            assert!(help.lines().count() <= 40, "{help}");
        }
    }

    #[test]
    fn what_a_comparison_of_recordings_does_not_heed_is_refused() {
        let parse =
            |more: &[&str]| Cli::try_parse_from([&["vmm", "coverage", "--diff", "a", "b"], more].concat());
        assert!(parse(&[]).is_ok());
        for more in [&["--output", "x"][..], &["--format", "json"], &["--kernel", "x"], &["--", "ls"]] {
            assert!(parse(more).is_err(), "{more:?}");
        }
    }

    #[test]
    fn old_names_mean_the_same() {
        let run = |words: &[&str]| match Cli::try_parse_from(words).map(|cli| cli.command) {
            Ok(Command::Run(run)) => run,
            _ => panic!("{words:?}"),
        };
        let old = run(&["vmm", "run", "--cmdline", "a=b", "--count", "vfs_*", "--graph", "do_*"]);
        assert_eq!(old.guest.append.as_deref(), Some("a=b"));
        assert_eq!((old.probes.counts.len(), old.probes.graphs.len()), (1, 1));
        assert_eq!(run(&["vmm", "run", "--raw-cmdline=x"]).guest.raw_append.as_deref(), Some("x"));
        let symbols = ["vmm", "symbols", "--proto", "vfs_*"];
        let Ok(Command::List(list)) = Cli::try_parse_from(symbols).map(|cli| cli.command) else { panic!() };
        assert!(list.verbose && list.pattern.as_deref() == Some("vfs_*"));
        let Ok(Command::Count(count)) =
            Cli::try_parse_from(["vmm", "count", "vfs_*", "-q", "--", "ls", "-l"]).map(|cli| cli.command)
        else {
            panic!()
        };
        let run = Run::from(*count);
        assert_eq!((run.probes.counts.len(), run.guest.command.len()), (1, 2));
    }
}
