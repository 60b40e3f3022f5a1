//! A command that is run several times in one guest, one time after the other.
//!
//! In the guest, this same program runs it, and notes how each run has ended.

use crate::host::{CommandExit, spawn};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, PipeWriter, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs `program` with `args` so many `times`, and writes to `ends` for each run a line with its exit code, as a shell has it.
/// Returns that of the first run that has failed, or 0.
///
/// # Errors
/// When nothing can be written there.
pub fn repeat(times: u32, ends: &Path, program: &OsString, args: &[OsString]) -> io::Result<u8> {
    let mut ends = OpenOptions::new().write(true).open(ends)?;
    let mut first = 0;
    for _ in 0..times {
        let mut command = Command::new(program);
        command.args(args);
        let code = run(command);
        writeln!(ends, "{code}")?;
        if first == 0 {
            first = code;
        }
    }
    Ok(first)
}

/// The same, once for each byte of standard input. The runs have an empty one.
///
/// # Errors
/// When nothing can be written to `ends`, or standard input cannot be read.
pub fn repeat_in_steps(ends: &Path, program: &OsString, args: &[OsString]) -> io::Result<()> {
    let mut ends = OpenOptions::new().write(true).open(ends)?;
    let mut steps = io::stdin().lock();
    while steps.read(&mut [0])? > 0 {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null());
        writeln!(ends, "{}", run(command))?;
    }
    Ok(())
}

/// Runs `command`, and gives its exit code, as a shell has it.
fn run(command: Command) -> u8 {
    let program = command.get_program().to_owned();
    let end = match spawn::told_apart(command).and_then(|mut child| child.wait()) {
        Ok(status) => CommandExit::from(status),
        Err(error) => {
            eprintln!("vmm: {} cannot be run: {error}", program.display());
            CommandExit::not_run(&error)
        }
    };
    end.code()
}

/// Has the next run begin as often as `next` wants one, which gets the exit code of the one before.
pub(super) struct Steps<F> {
    next: F,
    /// One byte there begins a run; none follows where it is closed.
    begin: Option<PipeWriter>,
    line: String,
}

impl<F: FnMut(Option<u8>) -> bool> Steps<F> {
    pub(super) fn new(next: F, begin: PipeWriter) -> Self {
        let mut steps = Self { next, begin: Some(begin), line: String::new() };
        steps.ended(None);
        steps
    }

    fn ended(&mut self, code: Option<u8>) {
        let is_wanted = (self.next)(code);
        let has_begun = self.begin.as_mut().is_some_and(|begin| is_wanted && begin.write_all(b".").is_ok());
        if !has_begun {
            self.begin = None;
        }
    }
}

/// The guest may write anything: what is no code ends no run.
impl<F: FnMut(Option<u8>) -> bool> Write for Steps<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        /// The digits of a code.
        const LONGEST: usize = 3;
        for byte in bytes {
            match (*byte, self.line.parse()) {
                (b'\n', Ok(code)) => {
                    self.line.clear();
                    self.ended(Some(code));
                }
                (b'\n', Err(_)) => self.line.clear(),
                (byte, _) if self.line.len() <= LONGEST => self.line.push(byte.into()),
                _ => {}
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the runs write of their ends, as it comes in.
#[derive(Clone)]
pub(super) struct Ends {
    text: Arc<Mutex<Vec<u8>>>,
    times: u32,
}

impl Ends {
    /// Of so many runs.
    pub(super) fn new(times: u32) -> Self {
        Self { text: Arc::default(), times }
    }

    /// The exit codes that have come. The guest may write anything: what is no code is left out.
    pub(super) fn codes(&self) -> Vec<u8> {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = String::from_utf8_lossy(&text);
        lines.lines().filter_map(|line| line.parse().ok()).take(self.times as usize).collect()
    }
}

impl Write for Ends {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        /// A code and a line feed.
        const LONGEST: usize = 4;
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let space = (self.times as usize * LONGEST).saturating_sub(text.len());
        text.extend(bytes.iter().take(space));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let (ends, count) = (folder.path().join("ends"), folder.path().join("count"));
        std::fs::write(&ends, "").unwrap();
        let words = |script: &str| ["-c", script, "sh", count.to_str().unwrap()].map(OsString::from);
        let script =
            "echo >> \"$1\"; [ $(wc -l < \"$1\") != 2 ] || exit 7; [ $(wc -l < \"$1\") != 3 ] || kill -9 $$";
        assert_eq!(repeat(4, &ends, &"sh".into(), &words(script)).unwrap(), 7);
        assert_eq!(std::fs::read_to_string(&ends).unwrap(), "0\n7\n137\n0\n");
        assert_eq!(repeat(1, &ends, &"/no/such/program".into(), &[]).unwrap(), 127);
    }

    #[test]
    fn a_run_begins_when_the_one_before_has_ended_and_another_one_is_wanted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let codes = Arc::new(Mutex::new(Vec::new()));
        let seen = codes.clone();
        let next = move |code| {
            let mut seen = seen.lock().unwrap();
            seen.push(code);
            seen.len() < 3
        };
        let mut steps = Steps::new(next, writer);
        steps.write_all(b"7\nno code\n12345\n1").unwrap();
        steps.write_all(b"37\n0\n").unwrap();
        let mut begun = Vec::new();
        reader.read_to_end(&mut begun).unwrap();
        assert_eq!(begun.len(), 2);
        assert_eq!(*codes.lock().unwrap(), [None, Some(7), Some(137), Some(0)]);
    }

    #[test]
    fn what_a_guest_writes_of_ends_has_bounds() {
        let mut ends = Ends::new(3);
        ends.write_all(b"0\n255\nx\n1000\n").unwrap();
        ends.write_all(&[b'1'; 100]).unwrap();
        assert_eq!(ends.codes(), [0, 255]);
        let mut ends = Ends::new(2);
        ends.write_all(b"1\n2\n3\n4\n").unwrap();
        assert_eq!(ends.codes(), [1, 2]);
    }
}
