//! The outer end of a command in the guest.

use super::repeat::{Ends, Steps};
use crate::devices::virtio::console::Port;
use crate::host::conversation::{BeginError, Conversation, converse, greet};
use crate::host::protocol::{Arg, Job, PORT_NAME, Program, ProtocolError};
use crate::host::pump::Broken;
use crate::host::{Ended, Outlet, Streams};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    /// The program, as a shell finds it.
    pub program: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its environment, whole.
    pub env: Vec<(OsString, OsString)>,
    /// Where it runs, in the guest's root.
    pub folder: PathBuf,
}

/// The guest did not run the command, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum GuestCommandError {
    /// The guest has ended.
    #[error("the guest ended before its command did")]
    Gone,
    /// Its init has not come up in time.
    #[error("the guest's init has not come up in {} s (--timeout gives it longer)", .0.as_secs())]
    Silent(Duration),
    /// Its init says why.
    #[error("{0}")]
    Init(String),
    /// What it says makes no sense.
    #[error("what the guest's init says makes no sense")]
    Protocol(#[source] ProtocolError),
    /// It was not begun.
    #[error(transparent)]
    Begin(#[from] BeginError),
}

/// A command that waits for its guest.
pub struct GuestCommand {
    control: UnixStream,
}

impl GuestCommand {
    /// One, and the port by which the guest gets it.
    ///
    /// # Errors
    /// When the host is out of descriptors.
    pub fn new() -> io::Result<(Self, Port)> {
        let (control, socket) = UnixStream::pair()?;
        Ok((Self { control }, Port { name: PORT_NAME.to_owned(), socket }))
    }

    /// What ends [`wait`](Self::wait) and [`run`](Self::run) from another thread: to be shut down.
    ///
    /// # Errors
    /// When the host is out of descriptors.
    pub fn end(&self) -> io::Result<UnixStream> {
        self.control.try_clone()
    }

    /// Waits until the guest's init can run it, for so long at most.
    ///
    /// # Errors
    /// [`GuestCommandError`].
    pub fn wait(&self, limit: Option<Duration>) -> Result<(), GuestCommandError> {
        match greet(&self.control, limit) {
            Ok(()) => Ok(()),
            Err(ProtocolError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(GuestCommandError::Silent(limit.unwrap_or_default()))
            }
            Err(error) => Err(why(Broken::Protocol(error))),
        }
    }

    /// Runs it to its end, once that [can be done](Self::wait).
    ///
    /// # Errors
    /// [`GuestCommandError`].
    pub fn run(&self, words: Words, streams: Streams<'_>) -> Result<Ended, GuestCommandError> {
        let Words { program, args, env, folder } = words;
        let args = args.into_iter().map(Arg::Text).collect();
        self.converse((Program::Named(program), args), (env, folder), Vec::new(), streams)
    }

    /// Runs it so many `times`, one after the other, in the same guest. Gives the exit codes of the runs that have ended, as a
    /// shell has them. What the command leaves running goes on until the last run has ended.
    ///
    /// # Errors
    /// [`GuestCommandError`].
    pub fn run_repeatedly(
        &self,
        words: Words,
        times: u32,
        streams: Streams<'_>,
    ) -> Result<(Ended, Vec<u8>), GuestCommandError> {
        let Words { program, args, env, folder } = words;
        let ends = Ends::new(times);
        let text = |word: &str| Arg::Text(word.into());
        let own = [text("repeat"), text(&times.to_string()), Arg::Output(0), text("--"), Arg::Text(program)];
        let args = own.into_iter().chain(args.into_iter().map(Arg::Text)).collect();
        let outputs = vec![Outlet::plain(ends.clone())];
        let ended = self.converse((Program::ThisBinary, args), (env, folder), outputs, streams)?;
        Ok((ended, ends.codes()))
    }

    /// Runs it as often as `next` wants, one after the other, in the same guest. `next` gets the exit code of the run before, as a
    /// shell has it, and none at first; the guest begins no run before it has said so. The runs have an empty standard input.
    ///
    /// # Errors
    /// [`GuestCommandError`].
    pub fn run_in_steps(
        &self,
        words: Words,
        streams: Streams<'_>,
        next: impl FnMut(Option<u8>) -> bool + Send + 'static,
    ) -> Result<Ended, GuestCommandError> {
        let Words { program, args, env, folder } = words;
        let text = |word: &str| Arg::Text(word.into());
        let own = [text("repeat"), text("0"), Arg::Output(0), text("--"), Arg::Text(program)];
        let args = own.into_iter().chain(args.into_iter().map(Arg::Text)).collect();
        let (begun, begin) = io::pipe().map_err(BeginError::from)?;
        let streams = Streams { stdin: Some(begun.as_fd()), terminal: None, ..streams };
        let outputs = vec![Outlet::plain(Steps::new(next, begin))];
        self.converse((Program::ThisBinary, args), (env, folder), outputs, streams)
    }

    fn converse(
        &self,
        (program, args): (Program, Vec<Arg>),
        (env, folder): (Vec<(OsString, OsString)>, PathBuf),
        outputs: Vec<Outlet>,
        streams: Streams<'_>,
    ) -> Result<Ended, GuestCommandError> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let job = Job {
            program,
            args,
            env: env.into_iter().map(|(name, value)| (name, Arg::Text(value))).collect(),
            folder: Some(folder),
            files: Vec::new(),
            outputs: outputs.len(),
            keeps_files: streams.left.is_some(),
            terminal: streams.terminal,
            time,
            seed: None,
        };
        let Conversation { end, was_asked, lost, .. } = converse(&self.control, job, outputs, streams)?;
        Ok(Ended { exit: end.map_err(why)?, was_asked, lost })
    }
}

fn why(broken: Broken) -> GuestCommandError {
    match broken {
        Broken::Protocol(ProtocolError::Closed | ProtocolError::Truncated | ProtocolError::Io(_)) => {
            GuestCommandError::Gone
        }
        Broken::Protocol(error) => GuestCommandError::Protocol(error),
        Broken::Agent(words) => GuestCommandError::Init(words),
    }
}
