//! Programs of tests that run side by side, one for each processor of this machine: each keeps one busy, as an emulated host
//! and Bochs do.

use super::repeat::repeatable;
use super::say;
use anyhow::{Context as _, ensure};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// How often tests are run once more whose guests the emulator has failed: guests of real-time kernels that run for minutes meet
/// that one time in a few.
const MOST_REPEATS: u32 = 3;

/// A program of tests.
pub(super) struct Job {
    what: String,
    command: Command,
    /// Lines that it prints, by how they begin or end.
    prints: &'static [&'static str],
}

impl Job {
    pub(super) fn new(what: impl Into<String>, command: Command) -> Self {
        Self { what: what.into(), command, prints: &[] }
    }

    /// The same, which must print these lines.
    pub(super) fn printing(self, prints: &'static [&'static str]) -> Self {
        Self { prints, ..self }
    }

    /// Runs it to its end. Gives what it printed, and what is wrong with it.
    fn run(&mut self) -> anyhow::Result<(String, Option<String>)> {
        let output = self.command.stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {:?}", self.command))?;
        let mut printed = text(&output);
        let mut status = output.status;
        let mut last = printed.clone();
        for _ in 0..MOST_REPEATS {
            let Some(tests) = repeatable(&last).filter(|_| !status.success()) else { break };
            let words = tests.join(", ");
            printed += &format!(
                "test: run once more, as QEMU has interrupted a guest where no processor does: {words}\n"
            );
            let output = again(&self.command, &tests).output().context("cannot run tests once more")?;
            status = output.status;
            last = text(&output);
            printed += &last;
        }
        let is_printed = |line: &&&str| {
            !printed.lines().any(|printed| printed.starts_with(**line) || printed.ends_with(**line))
        };
        let wrong = match self.prints.iter().find(is_printed) {
            _ if !status.success() => Some(format!("{}: failed", self.what)),
            Some(line) => Some(format!("{} did not print `{line}`", self.what)),
            None => None,
        };
        Ok((printed, wrong))
    }
}

/// Runs all, begun in this order, and shows what each has printed when it is over. The others go on where one fails.
pub(super) fn side_by_side(start: Instant, jobs: Vec<Job>) -> anyhow::Result<()> {
    let jobs = Mutex::new(VecDeque::from(jobs));
    let wrong = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        loop {
            let Some(mut job) = locked(&jobs).pop_front() else { return Ok(()) };
            say(start, &format!("begun: {}", job.what));
            let begun = Instant::now();
            let (printed, failed) = match job.run() {
                Ok(ran) => ran,
                Err(error) => (format!("{error:#}\n"), Some(format!("{}: not run", job.what))),
            };
            let mut out = std::io::stdout().lock();
            out.write_all(printed.as_bytes())?;
            drop(out);
            say(start, &format!("{}, in {:.1} s", job.what, begun.elapsed().as_secs_f32()));
            locked(&wrong).extend(failed.map(|what| (what, failures(&printed))));
        }
    };
    thread::scope(|scope| -> anyhow::Result<()> {
        let workers: Vec<_> = (0..workers()).map(|_| scope.spawn(work)).collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ended.into_iter().try_for_each(|end| end.unwrap_or_else(|_| anyhow::bail!("a worker has panicked")))
    })?;
    let wrong = locked(&wrong);
    // Whoever reads the end of all this reads what has failed.
    wrong.iter().for_each(|(what, printed)| println!("\ntest: {what}:\n{printed}"));
    let wrong: Vec<&str> = wrong.iter().map(|(what, _)| what.as_str()).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

/// What a program of tests printed that has failed, from where it tells of its failures, and its end: so many bytes of each at most.
fn failures(printed: &str) -> String {
    const MOST: usize = 3_000;
    let whole = |from: usize| (from..printed.len()).find(|at| printed.is_char_boundary(*at));
    let part = |from, to| printed.get(from..to).unwrap_or_default();
    let end = whole(printed.len().saturating_sub(MOST)).unwrap_or(printed.len());
    match printed.find("\nfailures:\n\n") {
        Some(told) => match whole(told + MOST).filter(|to| *to < end) {
            Some(to) => format!("{}\n[...]\n{}", part(told, to), part(end, printed.len())),
            None => part(told, printed.len()).to_owned(),
        },
        None => part(end, printed.len()).to_owned(),
    }
}

fn workers() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// The same program with the same words, of whose tests only these are run.
fn again(command: &Command, tests: &[String]) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args()).arg("--exact").args(tests).stdin(Stdio::null());
    let changed = |(name, value): (&OsStr, Option<&OsStr>)| Some((name.to_owned(), value?.to_owned()));
    again.envs(command.get_envs().filter_map(changed));
    if let Some(folder) = command.get_current_dir() {
        again.current_dir(folder);
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script, "tests"]);
        Job::new(script, command)
    }

    #[test]
    fn the_others_go_on_where_one_fails() {
        let folder = tempfile::tempdir().unwrap();
        let touch = format!("touch {}", folder.path().join("done").display());
        let jobs = vec![shell("exit 1"), shell("exit 0"), shell(&touch)];
        let error = side_by_side(Instant::now(), jobs).unwrap_err().to_string();
        assert_eq!(error, "exit 1: failed");
        assert!(folder.path().join("done").exists());
    }

    #[test]
    fn the_end_of_what_failed_is_kept() {
        let printed =
            format!("{}\nfailures:\n\n---- a stdout ----\nwrong\n\nfailures:\n    a\n", "é".repeat(9_000));
        assert_eq!(failures(&printed), "\nfailures:\n\n---- a stdout ----\nwrong\n\nfailures:\n    a\n");
        let long = failures(&format!("{printed}{}last", "é".repeat(9_000)));
        assert!(long.contains("---- a stdout") && long.contains("[...]") && long.ends_with("last"));
        assert!(long.len() < 6_100);
        assert_eq!(failures(&"é".repeat(9_000)).len(), 3_000);
        assert_eq!(failures(&format!("{}x", "é".repeat(9_000))).len(), 2_999);
        assert_eq!(failures(""), "");
    }

    #[test]
    fn what_is_to_be_printed_is_looked_for() {
        let run = |prints| shell("echo one two").printing(prints).run().unwrap().1;
        assert_eq!(run(&["one", "two"]), None);
        assert_eq!(run(&["one", "three"]).as_deref(), Some("echo one two did not print `three`"));
    }

    #[test]
    fn a_test_that_the_emulator_has_failed_is_run_once_more() {
        const SCRIPT: &str = r#"[ "$1" = --exact ] && exec test "$2" = a::b
            printf 'test a::b ... FAILED\n---- a::b stdout ----\nby a fault of QEMU\n\nfailures:\n    a::b\n'; exit 1"#;
        let (printed, wrong) = shell(SCRIPT).run().unwrap();
        assert!(wrong.is_none() && printed.contains("run once more"), "{printed}");
        let (_, wrong) = shell(&SCRIPT.replace("fault", "mistake")).run().unwrap();
        assert!(wrong.is_some());
    }

    #[test]
    fn a_test_that_the_emulator_fails_for_ever_has_failed() {
        const SCRIPT: &str = "printf 'test a ... FAILED\n---- a stdout ----\nby a fault of QEMU\n\nfailures:\n    a\n'; exit 1";
        let (printed, wrong) = shell(SCRIPT).run().unwrap();
        assert_eq!(wrong.as_deref(), Some(&*format!("{SCRIPT}: failed")));
        assert_eq!(printed.matches("run once more").count(), 3);
    }
}
