//! What the guest does for us with functions of its own kernel.

use super::heading;
use clap::{Args, ValueEnum};
use std::ffi::OsString;

/// What the guest does for us
#[derive(Args, Default)]
#[command(next_help_heading = heading::COMMAND)]
pub(crate) struct Assisted {
    /// Show a file of a guest without a command, as its own kernel reads it; may be repeated
    ///
    /// It is read as soon as there is such a file, with the root of process 1, at most 1 MiB of it, and written to where the guest's
    /// console goes. /proc and the like are there when the guest has mounted them. A file that was never there ends the run with 122.
    ///
    /// The guest's kernel calls functions of its own for this, which it can notice: docs/errands.md says of what.
    #[arg(
        long = "cat",
        value_name = "PATH",
        conflicts_with_all = ["command", "work", "bundle", "fail_nth"],
        hide_short_help = true
    )]
    pub(crate) cats: Vec<OsString>,
    /// Run a program of a guest without a command, as its kernel runs helpers; end with its exit code
    ///
    /// CMD is the program's path in the guest and words for it, with blanks in between. It is begun as soon as there is such a program, as
    /// the superuser, and has no terminal and no open files: what it prints goes nowhere. What --cat shows is read when it has ended.
    #[arg(
        long,
        value_name = "CMD",
        conflicts_with_all = ["command", "work", "bundle", "fail_nth"],
        hide_short_help = true
    )]
    pub(crate) exec: Option<String>,
    /// Whether the guest's own kernel may be asked to do something for us
    #[arg(long, value_enum, default_value_t, hide_short_help = true, help_heading = heading::ADVANCED)]
    pub(crate) assist: Assist,
}

/// See [`Assisted::assist`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Assist {
    /// Where that is asked for: tracepoints, probes in programs, --hold-mode task, --cat, --exec
    #[default]
    On,
    /// Never: what needs it is refused. All other probes are silent
    Off,
}

impl Assisted {
    /// Everything that is asked for, as it is said.
    pub(crate) fn said(&self) -> Vec<String> {
        let files = self.cats.iter().map(|path| format!("--cat {}", path.display()));
        self.exec.iter().map(|words| format!("--exec '{words}'")).chain(files).collect()
    }
}
