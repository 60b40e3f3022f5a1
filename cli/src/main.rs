//! `vmm`: kprobes from outside the guest.

mod advice;
mod args;
mod assisted;
mod attack;
mod bisect;
mod bundle;
mod cases;
mod choice;
mod control;
mod coverage;
mod coverage_diff;
mod ctl;
mod demangled;
mod detection;
mod doctor;
mod dropped;
mod dry_run;
mod ending_signals;
mod exit_codes;
mod fail_nth;
mod file;
mod gdb;
mod guest_files;
mod host;
mod host_image;
mod imposed;
mod json;
mod kept_console;
mod kept_memory;
mod kernel;
mod kernel_choice;
mod lcov;
mod limits;
mod list;
mod listing;
mod manual;
mod metrics;
mod mistake;
mod module_files;
mod output;
mod post_mortem;
mod program_files;
mod program_listing;
mod program_names;
mod qmp;
mod race;
mod record;
mod report;
mod requests;
mod requirements;
mod rules;
mod run;
mod say;
mod scan;
mod scan_policy;
mod served;
mod shard;
mod shared_terminal;
mod source_listing;
mod splats;
mod symbol_elf;
mod symbol_file;
mod system_calls;
mod target;
mod time_limits;
mod top;
mod tracepoints;
mod types;
mod unarmed;
mod vmcore;
mod wall_clock;
mod work;

use advice::Advised;
use args::{Cli, Command, Guard, Run};
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
        Command::Guard(guard) => guarded(*guard),
        Command::Scan(args) => scan::main(&args),
        Command::Shake(shake) => bundle::run(Run::from(*shake)),
        Command::Replay(replay) => bundle::replay(&replay),
        Command::Race(race) => race::main(*race),
        Command::Coverage(coverage) if !coverage.diff.is_empty() => coverage_diff::main(&coverage.diff),
        Command::Coverage(coverage) => coverage::main(&coverage),
        Command::Test(cases) => cases::main(&cases),
        Command::Bisect(question) => bisect::main(&question),
        Command::List(list) => list::main(&list),
        Command::Ctl(args) => ctl::main(&args),
        Command::Top(args) => top::main(&args),
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
        Command::KeepFiles { folder } => dropped::keep_files(&folder),
        Command::ServeNames { root } => work::serve_names(&root).map(|()| ExitCode::SUCCESS),
    };
    let code = done.unwrap_or_else(|error| {
        say::say_shown(Advised(&error));
        ExitCode::from(exit_codes::USAGE)
    });
    say::finish_all();
    code
}

/// Runs a guarded guest, or says what rules there are.
fn guarded(guard: Guard) -> anyhow::Result<ExitCode> {
    let (is_list, explained) = (guard.list, guard.explain.clone());
    let run = Run::from(guard);
    match (is_list, explained) {
        (true, _) => rules::list(&run.guarded.rules),
        (false, Some(name)) => rules::explain(&name, &run),
        (false, None) => run::main(&run),
    }
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
