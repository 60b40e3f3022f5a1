//! The options of a run, kept as the words that say them, and read again.

use super::manifest::KeptCommand;
use crate::args::{Cli, Command, Guarded, Guest, Injections, Orders, Probes, Run, SplatArgs};
use crate::say::note;
use crate::work::Work;
use anyhow::{Context, Result, bail};
use clap::Parser;
use std::env;
use std::path::PathBuf;

/// The words of this process, without its own name.
pub(super) fn words_of_this_process() -> Result<Vec<String>> {
    let words = env::args_os().skip(1).map(|word| word.into_string().ok());
    words
        .collect::<Option<_>>()
        .context("--bundle: a word of the command line is no UTF-8, and cannot be kept")
}

/// The run that such words mean. Chance begins with `seed`.
pub(super) fn run_of(words: &[String], seed: Option<u64>) -> Result<Run> {
    let words = ["vmm"].into_iter().chain(words.iter().map(String::as_str));
    let mut run = match Cli::try_parse_from(words).context("the words of the bundle say no run")?.command {
        Command::Run(run) => *run,
        Command::Shake(shake) => Run::from(*shake),
        _ => bail!("the words of the bundle say no run"),
    };
    if let (Some(shaken), Some(seed)) = (&mut run.orders.shaken, seed) {
        shaken.delay.seed = seed;
        shaken.is_random = false;
    }
    Ok(run)
}

/// What chance begins with, where CPUs are delayed.
pub(super) fn seed(run: &Run) -> Option<u64> {
    Some(run.orders.shaken.as_ref()?.delay.seed)
}

/// Each option that names a file which is read as it is, with what that file is called in a bundle. All options are listed here, so that
/// a new one says whether it names such a file.
pub(super) fn named_files(run: &mut Run) -> Vec<(&mut PathBuf, String)> {
    let Run {
        probes:
            Probes { files: probes, probes: _, filter: _, watches: _, stack: _, once: _, counts: _, graphs: _ },
        orders: Orders { holds: _, untils: _, within: _, hold_mode: _, shaken: _, imposed: _ },
        // With the others no bundle is made.
        controlled: _,
        injections: Injections { injects: _, force: _, fail_nth: _, fail_from: _, fail_record: _ },
        guest,
        // Not with a bundle.
        assisted: _,
        splats: SplatArgs { allow_splats, splat: _, vmcore: _, recent: _ },
        // Where something is written.
        records: _,
        bundled: _,
        write_target: _,
        arming: _,
        sampled: _,
        // Rules are not with a bundle.
        guarded: Guarded { guard: _, scan: _, fail: _, rules: _ },
        // Of a guard, of which no bundle is made, and of the emulated host.
        dropped: _,
        allow_pending: _,
        deep: _,
    } = run;
    let Guest {
        symbols,
        // Their files are kept as they come into the guest.
        kernel: _,
        initrd: _,
        modules: _,
        root: _,
        // Of a command that changes files, no bundle is made.
        rwdirs: _,
        scope: _,
        append: _,
        raw_append: _,
        cpus: _,
        memory: _,
        place: _,
        timeout: _,
        command: _,
        repeat: _,
        verbose: _,
        console: _,
        boot: _,
        // Of the emulated host.
        work: _,
        files_port: _,
        names_port: _,
        target: _,
        emulated_at: _,
        marked: _,
    } = guest;
    let symbols = symbols.symbols.iter_mut().map(|path| (path, "symbols".to_owned()));
    let probes = (1..).zip(probes).map(|(number, path)| (path, format!("probes-{number}")));
    let allowed = (1..).zip(allow_splats).map(|(number, path)| (path, format!("allowed-splats-{number}")));
    symbols.chain(probes).chain(allowed).collect()
}

/// What belongs to the command beside its words.
pub(super) fn command(work: &Work) -> Result<KeptCommand> {
    let words = work.words()?;
    let folder =
        words.folder.to_str().context("--bundle: the working directory is no UTF-8, and cannot be kept")?;
    let mut environment = Vec::new();
    for (name, value) in words.env {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => environment.push((name, value)),
            (name, _) => note(format_args!("{name:?} of the environment is no UTF-8, and is not kept")),
        }
    }
    Ok(KeptCommand { environment, folder: folder.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str], seed: Option<u64>) -> Run {
        run_of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), seed).unwrap()
    }

    #[test]
    fn words_mean_the_run_that_they_said() {
        let said = run(&["run", "--cpus", "2", "-p", "vfs_open", "--bundle", "b", "--", "ls", "-l"], None);
        assert_eq!((said.guest.cpus, said.probes.probes.len(), seed(&said)), (2, 1, None));
        assert_eq!(said.guest.command, ["ls", "-l"]);
        let shaken = run(&["shake", "vfs_*"], Some(7));
        assert!(seed(&shaken) == Some(7) && shaken.orders.shaken.is_some_and(|shaken| !shaken.is_random));
        assert!(
            run_of(&["doctor".to_owned()], None).is_err()
                && run_of(&["run".into(), "--x".into()], None).is_err()
        );
    }

    #[test]
    fn files_that_options_name_are_found() {
        let words =
            ["run", "--symbols", "s", "--probes", "a", "--probes", "b", "--allow-splats", "c", "--root", "r"];
        let mut run = run(&words, None);
        let found: Vec<_> = named_files(&mut run)
            .into_iter()
            .map(|(path, name)| (path.display().to_string(), name))
            .collect();
        let expected = [("s", "symbols"), ("a", "probes-1"), ("b", "probes-2"), ("c", "allowed-splats-1")];
        assert_eq!(found, expected.map(|(path, name)| (path.to_owned(), name.to_owned())));
    }
}
