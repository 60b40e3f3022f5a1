//! What the two ends of the control port say to each other.
//!
//! A frame is a kind (u8), the length of what follows (u32, little endian, at most [`MAX_PAYLOAD`]), and that
//! many bytes. Structured messages are JSON; streams are bytes.
//!
//! ```text
//! outside                       inside
//! Hello                  ->
//!                        <-     Ready
//! Run(job)               ->
//! Stdin StdinEnd         ->
//! Signal WindowSize      ->     Stdout Stderr Output StdinTaken
//! StdoutClosed StderrClosed ->
//!                        <-     Exit, or Failed
//! ```
//!
//! **Nothing is buffered without bound.** What comes out is held back by the port itself: a reader outside that
//! does not read stops the writers inside. What goes in is counted: at most [`STDIN_WINDOW`] `Stdin` frames may
//! wait for their `StdinTaken`, so that a command that does not read its input never blocks a signal.

use crate::terminal::WindowSize;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use thiserror::Error;

/// The control port's name inside.
pub(crate) const PORT_NAME: &str = "vmm.control";
/// The name of the port for files outside, which carries messages of FUSE.
pub(crate) const FILES_PORT: &str = "vmm.files";
/// The name of the port for names of what programs outside have.
pub(crate) const NAMES_PORT: &str = "vmm.names";
/// The name of the port for commands to a session inside.
pub(crate) const COMMANDS_PORT: &str = "vmm.commands";
/// The longest payload of a frame, in bytes.
pub(crate) const MAX_PAYLOAD: usize = 1 << 20;
/// How many `Stdin` frames may be under way.
pub(crate) const STDIN_WINDOW: usize = 16;
/// The most bytes in one `Stdin` frame.
pub(crate) const STDIN_CHUNK: usize = 4096;

const HEADER: usize = 5;

/// Why a frame could not be sent or understood.
#[derive(Debug, Error)]
pub enum ProtocolError {
    /// The other end closed the port between two frames.
    #[error("the control port was closed")]
    Closed,
    /// The other end closed the port inside a frame.
    #[error("the control port was closed in the middle of a message")]
    Truncated,
    /// A frame longer than any we send.
    #[error("a message of {0} bytes is longer than the protocol allows; both ends must be the same program")]
    TooLong(usize),
    /// A kind that this end does not know.
    #[error("a message of the unknown kind {0}; both ends must be the same program")]
    UnknownKind(u8),
    /// A payload that does not fit its kind.
    #[error("a message of kind {0} with a wrong payload; both ends must be the same program")]
    Malformed(u8),
    /// Reading or writing failed.
    #[error("the control port failed")]
    Io(#[from] io::Error),
}

/// One command to run inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) program: Program,
    pub(crate) args: Vec<Arg>,
    pub(crate) env: Vec<(OsString, Arg)>,
    /// The directory that it runs in, if not the agent's.
    pub(crate) folder: Option<PathBuf>,
    /// The input files, in the order that [`Arg::File`] counts.
    pub(crate) files: Vec<DiskFile>,
    /// How many pipes [`Arg::Output`] may name.
    pub(crate) outputs: usize,
    /// Whether the files that the command leaves are sent when it has ended, as one output more.
    pub(crate) keeps_files: bool,
    /// The terminal the command gets, if any.
    pub(crate) terminal: Option<crate::terminal::CommandTerminal>,
    /// Wall-clock time outside, in seconds since 1970.
    pub(crate) time: u64,
    /// For a machine that was restored: what its random numbers are to begin with. Those of its snapshot would be the same in
    /// each run.
    pub(crate) seed: Option<[u8; 32]>,
}

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Program {
    /// This same binary.
    ThisBinary,
    /// The input file of that number.
    File(usize),
    /// What is found by that name as a shell finds it.
    Named(OsString),
}

/// An argument, or the value of a variable. Files and outputs are named by number, because their paths inside are
/// the agent's to choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Arg {
    /// Passed as it is.
    Text(OsString),
    /// The path of an input file.
    File(usize),
    /// The path of an output pipe.
    Output(usize),
}

/// An input file: a stretch of the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DiskFile {
    /// Its last path component.
    pub(crate) name: String,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Where it begins, in bytes.
    pub(crate) offset: u64,
    /// Its length in bytes.
    pub(crate) length: u64,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandExit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl From<ExitStatus> for CommandExit {
    fn from(status: ExitStatus) -> Self {
        status.code().map_or_else(|| Self::Signal(status.signal().unwrap_or(0)), Self::Code)
    }
}

impl CommandExit {
    /// What a shell says of a program that it cannot run: that there is none, or that it is none.
    pub(crate) fn not_run(error: &io::Error) -> Self {
        const NOT_FOUND: i32 = 127;
        const NOT_EXECUTABLE: i32 = 126;
        Self::Code(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
    }

    /// The exit code of a process that ends as it did, as shells have it. A guest may claim anything: what says that a signal
    /// ended it is never that of a success.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => code as u8,
            Self::Signal(signal) => 128 | signal as u8,
        }
    }
}

/// A message from outside.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ToAgent<'a> {
    Hello,
    Run(Box<Job>),
    Stdin(&'a [u8]),
    StdinEnd,
    Signal(i32),
    WindowSize(WindowSize),
    /// Nobody reads the command's standard output any more.
    StdoutClosed,
    /// Nor its standard error.
    StderrClosed,
}

/// A message from inside.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FromAgent<'a> {
    Ready,
    Stdout(&'a [u8]),
    Stderr(&'a [u8]),
    Output(u32, &'a [u8]),
    StdinTaken,
    Exit(CommandExit),
    Failed(&'a str),
}

mod kind {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const RUN: u8 = 2;
    pub(crate) const STDIN: u8 = 3;
    pub(crate) const STDIN_END: u8 = 4;
    pub(crate) const SIGNAL: u8 = 5;
    pub(crate) const WINDOW_SIZE: u8 = 6;
    pub(crate) const STDOUT_CLOSED: u8 = 7;
    pub(crate) const STDERR_CLOSED: u8 = 8;
    pub(crate) const READY: u8 = 65;
    pub(crate) const STDOUT: u8 = 66;
    pub(crate) const STDERR: u8 = 67;
    pub(crate) const OUTPUT: u8 = 68;
    pub(crate) const STDIN_TAKEN: u8 = 69;
    pub(crate) const EXIT: u8 = 70;
    pub(crate) const FAILED: u8 = 71;
}

impl<'a> ToAgent<'a> {
    /// The whole frame.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ProtocolError> {
        match self {
            Self::Hello => frame(kind::HELLO, &[]),
            Self::Run(job) => frame(kind::RUN, &[&json(job.as_ref())?]),
            Self::Stdin(bytes) => frame(kind::STDIN, &[bytes]),
            Self::StdinEnd => frame(kind::STDIN_END, &[]),
            Self::Signal(number) => frame(kind::SIGNAL, &[&number.to_le_bytes()]),
            Self::WindowSize(size) => frame(kind::WINDOW_SIZE, &[&json(size)?]),
            Self::StdoutClosed => frame(kind::STDOUT_CLOSED, &[]),
            Self::StderrClosed => frame(kind::STDERR_CLOSED, &[]),
        }
    }

    /// What `frame` says.
    pub(crate) fn decode(frame: Frame<'a>) -> Result<Self, ProtocolError> {
        Ok(match frame.kind {
            kind::HELLO => Self::Hello,
            kind::RUN => Self::Run(frame.json()?),
            kind::STDIN => Self::Stdin(frame.payload),
            kind::STDIN_END => Self::StdinEnd,
            kind::SIGNAL => Self::Signal(i32::from_le_bytes(frame.array()?)),
            kind::WINDOW_SIZE => Self::WindowSize(frame.json()?),
            kind::STDOUT_CLOSED => Self::StdoutClosed,
            kind::STDERR_CLOSED => Self::StderrClosed,
            other => return Err(ProtocolError::UnknownKind(other)),
        })
    }
}

impl<'a> FromAgent<'a> {
    /// The whole frame.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ProtocolError> {
        match self {
            Self::Ready => frame(kind::READY, &[]),
            Self::Stdout(bytes) => frame(kind::STDOUT, &[bytes]),
            Self::Stderr(bytes) => frame(kind::STDERR, &[bytes]),
            Self::Output(index, bytes) => frame(kind::OUTPUT, &[&index.to_le_bytes(), bytes]),
            Self::StdinTaken => frame(kind::STDIN_TAKEN, &[]),
            Self::Exit(exit) => frame(kind::EXIT, &[&json(exit)?]),
            Self::Failed(why) => frame(kind::FAILED, &[why.as_bytes()]),
        }
    }

    /// What `frame` says.
    pub(crate) fn decode(frame: Frame<'a>) -> Result<Self, ProtocolError> {
        let malformed = ProtocolError::Malformed(frame.kind);
        Ok(match frame.kind {
            kind::READY => Self::Ready,
            kind::STDOUT => Self::Stdout(frame.payload),
            kind::STDERR => Self::Stderr(frame.payload),
            kind::OUTPUT => {
                let (index, bytes) = frame.payload.split_first_chunk().ok_or(malformed)?;
                Self::Output(u32::from_le_bytes(*index), bytes)
            }
            kind::STDIN_TAKEN => Self::StdinTaken,
            kind::EXIT => Self::Exit(frame.json()?),
            kind::FAILED => Self::Failed(std::str::from_utf8(frame.payload).map_err(|_| malformed)?),
            other => return Err(ProtocolError::UnknownKind(other)),
        })
    }
}

/// A frame as it came in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    kind: u8,
    payload: &'a [u8],
}

impl Frame<'_> {
    fn json<T: for<'de> Deserialize<'de>>(&self) -> Result<T, ProtocolError> {
        serde_json::from_slice(self.payload).map_err(|_| ProtocolError::Malformed(self.kind))
    }

    fn array<const N: usize>(&self) -> Result<[u8; N], ProtocolError> {
        self.payload.try_into().map_err(|_| ProtocolError::Malformed(self.kind))
    }
}

/// Reads frames one after the other into one buffer.
pub(crate) struct FrameReader<R> {
    port: R,
    payload: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    pub(crate) fn new(port: R) -> Self {
        Self { port, payload: Vec::new() }
    }

    /// The next frame; waits for it.
    pub(crate) fn next(&mut self) -> Result<Frame<'_>, ProtocolError> {
        let (mut kind, mut length) = ([0], [0; HEADER - 1]);
        self.port.read_exact(&mut kind).map_err(|e| at_end(e, ProtocolError::Closed))?;
        self.port.read_exact(&mut length).map_err(|e| at_end(e, ProtocolError::Truncated))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_PAYLOAD {
            return Err(ProtocolError::TooLong(length));
        }
        self.payload.resize(length, 0);
        self.port.read_exact(&mut self.payload).map_err(|e| at_end(e, ProtocolError::Truncated))?;
        let [kind] = kind;
        Ok(Frame { kind, payload: &self.payload })
    }
}

/// The sending side of the port, shared by the threads that have something to say.
pub(crate) struct Outbox<W>(Mutex<W>);

impl<W: Write> Outbox<W> {
    pub(crate) fn new(port: W) -> Self {
        Self(Mutex::new(port))
    }

    /// Sends one encoded frame; waits until the port has taken it.
    pub(crate) fn send(&self, frame: &[u8]) -> Result<(), ProtocolError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(frame)?)
    }
}

fn at_end(error: io::Error, end: ProtocolError) -> ProtocolError {
    if error.kind() == io::ErrorKind::UnexpectedEof { end } else { ProtocolError::Io(error) }
}

fn json<T: Serialize>(value: &T) -> Result<Vec<u8>, ProtocolError> {
    serde_json::to_vec(value).map_err(|e| ProtocolError::Io(e.into()))
}

fn frame(kind: u8, parts: &[&[u8]]) -> Result<Vec<u8>, ProtocolError> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let header = u32::try_from(length).ok().filter(|_| length <= MAX_PAYLOAD);
    let header = header.ok_or(ProtocolError::TooLong(length))?;
    let mut bytes = Vec::with_capacity(HEADER + length);
    bytes.push(kind);
    bytes.extend_from_slice(&header.to_le_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    Ok(bytes)
}

#[cfg(test)]
mod tests;
