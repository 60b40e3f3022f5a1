//! Our own terminal: what it is, and raw mode that always ends.

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde::{Deserialize, Serialize};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};

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
pub struct Terminal {
    /// Its size at the start.
    pub size: WindowSize,
    /// Standard output is the terminal too.
    pub stdout: bool,
    /// Standard error is the terminal too.
    pub stderr: bool,
}

impl Terminal {
    /// The terminal of this process, if its standard input is one.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let stdin = io::stdin();
        let size = WindowSize::of(&stdin).ok()?;
        Some(Self { size, stdout: io::stdout().is_terminal(), stderr: io::stderr().is_terminal() })
    }
}

/// A terminal in raw mode: each key as it is typed, no echo, no signals from keys. Dropping it brings back the
/// mode that was there before.
pub struct RawMode {
    terminal: OwnedFd,
    before: Termios,
}

impl RawMode {
    /// Puts the terminal `fd` into raw mode.
    ///
    /// # Errors
    /// When `fd` is not a terminal.
    pub fn enter(fd: impl AsFd) -> io::Result<Self> {
        let terminal = fd.as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&terminal)?;
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
        // The terminal may be gone by now; then there is nothing to bring back.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}
