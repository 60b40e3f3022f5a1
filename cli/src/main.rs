//! `vmm`: kprobes from outside the guest.

mod advice;
mod args;
mod assisted;
mod bisect;
mod bundle;
mod cases;
mod choice;
mod coverage;
mod coverage_diff;
mod demangled;
mod doctor;
mod dry_run;
mod ending_signals;
mod exit_codes;
mod fail_nth;
mod file;
mod guest_files;
mod host;
mod host_image;
mod imposed;
mod json;
mod kept_console;
mod kernel;
mod kernel_choice;
mod lcov;
mod limits;
mod list;
mod listing;
mod manual;
mod mistake;
mod module_files;
mod output;
mod post_mortem;
mod program_files;
mod program_listing;
mod program_names;
mod race;
mod record;
mod report;
mod requests;
mod requirements;
mod run;
mod say;
mod scan;
mod shard;
mod shared_terminal;
mod source_listing;
mod splats;
mod symbol_file;
mod system_calls;
mod target;
mod time_limits;
mod tracepoints;
mod types;
mod unarmed;
mod wall_clock;
mod work;

use advice::Advised;
use args::{Cli, Command, Run};
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use say::say;
use std::process::ExitCode;

fn main() -> ExitCode {
    // As the first process of an emulated host, this program has another life.
    if std::process::id() == 1 {
        vmm::host::agent::main();
        return ExitCode::SUCCESS;
    }
    let Cli { command, quiet, .. } = Cli::try_parse().unwrap_or_else(|error| refuse(&error));
    if quiet {
        say::be_quiet();
    }
    let done = match command {
        Command::Run(run) => bundle::run(run.recording_as_said()),
        Command::Count(count) => run::main(&Run::from(*count)),
        Command::Graph(graph) => run::main(&Run::from(*graph)),
        Command::Profile(profile) => run::main(&Run::from(*profile)),
        Command::Guard(guard) => run::main(&Run::from(*guard)),
        Command::Scan(args) => scan::main(&args),
        Command::Shake(shake) => bundle::run(Run::from(*shake)),
        Command::Replay(replay) => bundle::replay(&replay),
        Command::Race(race) => race::main(*race),
        Command::Coverage(coverage) if !coverage.diff.is_empty() => coverage_diff::main(&coverage.diff),
        Command::Coverage(coverage) => coverage::main(&coverage),
        Command::Test(cases) => cases::main(&cases),
        Command::Bisect(question) => bisect::main(&question),
        Command::List(list) => list::main(&list),
        Command::Report(report) => report::main(&report),
        Command::Types(types) => types::main(&types),
        Command::Doctor(doctor) => doctor::main(&doctor),
        Command::Host(host) => host::main(&host),
        Command::Kernel(task) => kernel::main(&task.command),
        Command::Manual { folder } => manual::main(&folder),
        Command::Repeat { times, ends, words } => work::repeat(times, &ends, &words),
        Command::ServeFiles { folders, noting } => {
            work::serve_files(&folders, noting).map(|()| ExitCode::SUCCESS)
        }
        Command::ServeNames { root } => work::serve_names(&root).map(|()| ExitCode::SUCCESS),
    };
    let code = done.unwrap_or_else(|error| {
        say::say_shown(Advised(&error));
        ExitCode::from(exit_codes::USAGE)
    });
    say::finish_all();
    code
}

/// Says what is wrong with the words, and ends with what clap ends with.
fn refuse(error: &clap::Error) -> ! {
    // Nobody may be there to read it.
    let _ = error.print();
    let wrong = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(wrong)) => wrong.as_str(),
        _ => "-",
    };
    // Where there is a guest, the word may be a probe or a command.
    let has_guest = std::env::args_os().nth(1).is_some_and(|verb| {
        ["run", "count", "graph", "profile", "guard", "coverage"].iter().any(|booting| verb == *booting)
    });
    if has_guest && error.kind() == ErrorKind::UnknownArgument && !wrong.starts_with('-') {
        say(format_args!(
            "a function to probe goes behind -p, and a command for the guest behind --, as in: vmm run -p FUNCTION -- CMD"
        ));
    }
    say::finish_all();
    std::process::exit(error.exit_code())
}
