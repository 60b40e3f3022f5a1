//! What is run inside, and where its streams begin and end outside.

use super::protocol::{Arg, Program};
use crate::printer::Printer;
use crate::terminal::{CommandTerminal, WindowSize};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// What to run inside: this same program, unless [`HostCommand::of_file`] says otherwise.
///
/// Arguments are given one by one, because the paths of files and outputs inside are not those outside.
pub struct HostCommand<'a> {
    pub(super) program: Program,
    pub(super) args: Vec<Arg>,
    pub(super) env: Vec<(OsString, Arg)>,
    pub(super) files: Vec<FileContent<'a>>,
    pub(super) outputs: Vec<Outlet>,
}

/// What a file inside holds.
pub(super) enum FileContent<'a> {
    /// The same as this file.
    File(PathBuf),
    /// This.
    Bytes(&'a [u8]),
}

impl Default for HostCommand<'_> {
    fn default() -> Self {
        Self { program: Program::ThisBinary, args: vec![], env: vec![], files: vec![], outputs: vec![] }
    }
}

impl<'a> HostCommand<'a> {
    /// This same program, without arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The executable at `path` (outside), which must be static.
    #[must_use]
    pub fn of_file(path: &Path) -> Self {
        Self { program: Program::File(0), files: vec![FileContent::File(path.into())], ..Self::default() }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, text: impl Into<OsString>) -> Self {
        self.args.push(Arg::Text(text.into()));
        self
    }

    /// Adds an argument that is a file of ours: it is copied in, and the argument is its path there.
    #[must_use]
    pub fn file(mut self, path: &Path) -> Self {
        let file = self.add(FileContent::File(path.into()));
        self.args.push(file);
        self
    }

    /// Adds an argument that is the path of a file inside which holds `bytes`.
    #[must_use]
    pub fn bytes(mut self, bytes: &'a [u8]) -> Self {
        let file = self.add(FileContent::Bytes(bytes));
        self.args.push(file);
        self
    }

    /// Adds an argument that is a file to write: what is written to it inside goes to `outlet` as it happens.
    #[must_use]
    pub fn output(mut self, outlet: Outlet) -> Self {
        self.args.push(Arg::Output(self.outputs.len()));
        self.outputs.push(outlet);
        self
    }

    /// Sets an environment variable. There are no others.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), Arg::Text(value.into())));
        self
    }

    /// Sets an environment variable to a file of ours: it is copied in, and the value is its path there.
    #[must_use]
    pub fn env_file(mut self, name: impl Into<OsString>, path: &Path) -> Self {
        let file = self.add(FileContent::File(path.into()));
        self.env.push((name.into(), file));
        self
    }

    fn add(&mut self, input: FileContent<'a>) -> Arg {
        self.files.push(input);
        Arg::File(self.files.len() - 1)
    }
}

/// Where an output of a command goes.
pub struct Outlet {
    /// It is waited for, as long as nobody has asked for the end.
    printer: Option<Printer>,
    out: Box<dyn Write + Send>,
}

impl Outlet {
    /// What comes is written to `out`, which hands it on to `printer`.
    #[must_use]
    pub fn through(printer: Printer, out: impl Write + Send + 'static) -> Self {
        Self { printer: Some(printer), out: Box::new(out) }
    }

    /// What comes is written to `out`, which makes nobody wait.
    #[must_use]
    pub fn plain(out: impl Write + Send + 'static) -> Self {
        Self { printer: None, out: Box::new(out) }
    }

    /// Prints when there is room, or at once when the end `is_asked` for.
    pub(super) fn print(&mut self, bytes: &[u8], is_asked: impl Fn() -> bool) -> io::Result<()> {
        if let Some(printer) = &self.printer {
            printer.wait_until_ready(is_asked);
        }
        self.out.write_all(bytes)
    }
}

impl From<Printer> for Outlet {
    fn from(printer: Printer) -> Self {
        Self::through(printer.clone(), printer)
    }
}

/// What becomes of Ctrl-A x at a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    /// It is sent like all other keys, and known to ask for the end: the command ends by it. Where the command takes no keys, it
    /// is obeyed.
    Observed,
    /// It ends the conversation, and what it is made of is not sent.
    Obeyed,
}

/// Where a command's streams begin and end.
pub struct Streams<'a> {
    /// Standard input; none is an empty one.
    pub stdin: Option<BorrowedFd<'a>>,
    /// Standard output. The command waits for its reader, and the run does not, once it has been told to end.
    pub stdout: Outlet,
    /// Standard error, likewise.
    pub stderr: Outlet,
    /// `stdin` is a terminal: the command gets one too, and ours is in raw mode until the run ends.
    pub terminal: Option<CommandTerminal>,
    /// Pass this process's SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGWINCH on.
    pub signals: bool,
    /// At a terminal, what becomes of Ctrl-A x.
    pub escape: Escape,
    /// Where the [files](crate::dropped) go that a guest's command leaves in its root, if anybody wants them.
    pub left: Option<Outlet>,
}

impl Streams<'static> {
    /// Those of this process, with these outlets of its own.
    #[must_use]
    pub fn of_this_process(stdout: impl Into<Outlet>, stderr: impl Into<Outlet>) -> Self {
        let (stdout, stderr) = (stdout.into(), stderr.into());
        Self {
            stdin: Some(rustix::stdio::stdin()),
            stdout,
            stderr,
            terminal: CommandTerminal::of_this_process(),
            signals: true,
            escape: Escape::Observed,
            left: None,
        }
    }
}

impl Streams<'_> {
    /// The command's terminal with the size that ours has now: the user may have changed the size since.
    pub(super) fn terminal_now(&self) -> Option<CommandTerminal> {
        let size = self.stdin.and_then(|stdin| WindowSize::of(stdin).ok());
        self.terminal.map(|terminal| CommandTerminal { size: size.unwrap_or(terminal.size), ..terminal })
    }
}
