//! `vmm manual`: what a package of this program has beside it, made of what the command line takes.

use crate::args::Cli;
use anyhow::{Context, Result};
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Writes a man page of each command, and completions for three shells, below `folder`.
pub(crate) fn main(folder: &Path) -> Result<ExitCode> {
    let made = |name: &str| {
        let made = folder.join(name);
        fs::create_dir_all(&made).with_context(|| format!("cannot make {}", made.display())).map(|()| made)
    };
    clap_mangen::generate_to(Cli::command(), made("man")?).context("the man pages cannot be written")?;
    let completions = made("completions")?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut shown(&Cli::command()), "vmm", &completions)
            .with_context(|| format!("the completions for {shell} cannot be written"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is completed of `command`: clap's completions have what is hidden from help as well.
fn shown(command: &Command) -> Command {
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set()).map(completed);
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(shown);
    let mut shown = Command::new(command.get_name().to_owned());
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_flag(true)
        .args(args.collect::<Vec<_>>())
        .subcommands(commands.collect::<Vec<_>>())
}

/// `arg` without what it says of others, which may be hidden.
fn completed(arg: &Arg) -> Arg {
    let mut completed = Arg::new(arg.get_id().clone())
        .action(arg.get_action().clone())
        .value_parser(arg.get_value_parser().clone())
        .value_hint(arg.get_value_hint())
        .help(arg.get_help().cloned().unwrap_or_default())
        .last(arg.is_last_set())
        .global(arg.is_global_set())
        .short(arg.get_short());
    if let Some(long) = arg.get_long() {
        completed = completed.long(long.to_owned());
    }
    if let Some(values) = arg.get_num_args() {
        completed = completed.num_args(values);
    }
    match arg.get_value_names() {
        Some(names) => completed.value_names(names.to_vec()),
        None => completed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_have_what_help_has() {
        let mut bash = Vec::new();
        clap_complete::generate(Shell::Bash, &mut shown(&Cli::command()), "vmm", &mut bash);
        let bash = String::from_utf8(bash).unwrap();
        let words: Vec<&str> = bash.split([' ', '"', '\n']).collect();
        for word in ["coverage", "--probe", "--watch", "lcov", "-h", "--quiet", "--version"] {
            assert!(words.contains(&word), "{word}");
        }
        for word in ["serve-files", "manual", "--emulated-at", "--files-port"] {
            assert!(!words.contains(&word), "{word}");
        }
    }
}
