//! Our own terminal: what it is, and raw mode that always ends.

use rustix::fs::{fstat, major, minor};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use serde::{Deserialize, Serialize};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl WindowSize {
    /// The size of the terminal `fd` as it is now.
    ///
    /// # Errors
    /// When `fd` is not a terminal.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        let size = tcgetwinsize(fd)?;
        Ok(Self { rows: size.ws_row, columns: size.ws_col })
    }
}

/// A command's terminal: its input, and perhaps its outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandTerminal {
    /// Its size at the start.
    pub size: WindowSize,
    /// Standard output is the terminal too.
    pub stdout: bool,
    /// Standard error is the terminal too, and not another one than standard output.
    pub stderr: bool,
}

impl CommandTerminal {
    /// The terminal of this process, if its standard input is one.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let stdin = io::stdin();
        let size = WindowSize::of(&stdin).ok()?;
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let is_other = stdout.is_terminal() && !is_one_terminal(&stdout, &stderr);
        Some(Self { size, stdout: stdout.is_terminal(), stderr: stderr.is_terminal() && !is_other })
    }
}

/// Whether both are the same terminal. `/dev/tty` may be any, and is taken for the other one.
pub fn is_one_terminal(one: impl AsFd, other: impl AsFd) -> bool {
    const CONTROLLING: (u32, u32) = (5, 0);
    let device = |fd: BorrowedFd<'_>| {
        let stat = fstat(fd).ok().filter(|_| isatty(fd))?;
        Some((major(stat.st_rdev), minor(stat.st_rdev)))
    };
    match (device(one.as_fd()), device(other.as_fd())) {
        (Some(one), Some(other)) => one == other || one == CONTROLLING || other == CONTROLLING,
        _ => false,
    }
}

/// A terminal in raw mode: each key as it is typed, no echo, no signals from keys. Dropping it brings back the
/// mode that was there before.
pub struct RawMode {
    terminal: OwnedFd,
    before: Termios,
}

impl RawMode {
    fn end(&self) {
        // The terminal may be gone by now; then there is nothing to bring back.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }

    /// Puts the terminal `fd` into raw mode.
    ///
    /// # Errors
    /// When `fd` is not a terminal.
    pub fn enter(fd: impl AsFd) -> io::Result<Self> {
        let terminal = fd.as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&terminal)?;
        if FIRST.get().is_none() {
            // Another thread may be faster.
            let _ = FIRST.set(Self { terminal: terminal.try_clone()?, before: before.clone() });
        }
        let mut raw = before.clone();
        raw.make_raw();
        // Our own lines between the guest's need their carriage returns.
        raw.output_modes = before.output_modes;
        tcsetattr(&terminal, OptionalActions::Now, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.end();
    }
}

/// The first terminal of this process that was made raw: a process has one. It is kept for good.
static FIRST: OnceLock<RawMode> = OnceLock::new();

/// Brings back the mode that this process's terminal had before it was made raw, if it ever was. For a process that ends on
/// the spot: nothing is allocated or locked, so that a signal handler may do it.
pub(crate) fn restore() {
    if let Some(first) = FIRST.get() {
        first.end();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::fs::File;

    /// A terminal, and the end at which a person types.
    pub(crate) fn terminal() -> (File, File) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        (File::from(terminal), File::from(master))
    }

    #[test]
    fn a_terminal_is_one_with_itself_and_not_with_another_one() {
        let ((one, _master), (other, _other)) = (terminal(), terminal());
        let again = one.try_clone().unwrap();
        assert!(is_one_terminal(&one, &again));
        assert!(!is_one_terminal(&one, &other));
        let (reader, writer) = io::pipe().unwrap();
        assert!(!is_one_terminal(&reader, &writer) && !is_one_terminal(&one, &reader));
    }
}
