//! Carries a command's streams between the control port and ours.

use super::command::{Escape, Outlet};
use super::protocol::{
    CommandExit, FrameReader, FromAgent, Outbox, ProtocolError, STDIN_CHUNK, STDIN_WINDOW, ToAgent,
};
use crate::session::{Keys, Typed};
use probe_engine::guest_text::Escaped;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, BufReader, PipeReader};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

/// Why nothing more is received.
pub(crate) enum Broken {
    Protocol(ProtocolError),
    /// The agent could not start the command, and says why: text of the guest's, on one line.
    Agent(String),
}

/// What an agent says, as it may be shown. It may be a guest that says so.
fn shown(why: &str) -> String {
    const MOST: usize = 1000;
    Escaped(why.as_bytes().get(..MOST).unwrap_or(why.as_bytes())).to_string()
}

/// Something that a command writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The output of this number, as the command was given them.
    Output(usize),
}

/// Output of a command that went nowhere.
#[derive(Debug)]
pub struct Lost {
    /// Which.
    pub what: Stream,
    /// Why it could not be written.
    pub why: io::Error,
}

/// Where what comes out goes.
pub(super) struct Sinks {
    pub(super) stdout: Outlet,
    pub(super) stderr: Outlet,
    pub(super) outputs: Vec<Outlet>,
    /// What could not be written, from then on: the first of all.
    pub(super) lost: Option<Lost>,
    /// Tells the command what nobody reads any more.
    pub(super) messages: SyncSender<ToAgent<'static>>,
    /// Tells the sender of input that a frame has been taken.
    pub(super) taken: SyncSender<()>,
    /// Whether anything has come out.
    pub(super) is_seen: bool,
}

impl Sinks {
    /// Carries output until the command has ended. Once that `is_asked` for, no reader is waited for.
    pub(super) fn receive(
        &mut self,
        control: &UnixStream,
        is_asked: &AtomicBool,
    ) -> Result<CommandExit, Broken> {
        let print =
            |outlet: &mut Outlet, bytes: &[u8]| outlet.print(bytes, || is_asked.load(Ordering::Relaxed));
        let mut frames = FrameReader::new(BufReader::with_capacity(256 << 10, control));
        loop {
            let message = frames.next().and_then(FromAgent::decode).map_err(Broken::Protocol)?;
            let (written, what) = match message {
                FromAgent::Stdout(bytes) => (print(&mut self.stdout, bytes), Stream::Stdout),
                FromAgent::Stderr(bytes) => (print(&mut self.stderr, bytes), Stream::Stderr),
                FromAgent::Output(index, bytes) => {
                    let outlet = self.outputs.get_mut(index as usize);
                    let written = outlet.map_or(Ok(()), |outlet| print(outlet, bytes));
                    (written, Stream::Output(index as usize))
                }
                FromAgent::Exit(exit) => return Ok(exit),
                FromAgent::Failed(why) => return Err(Broken::Agent(shown(why))),
                FromAgent::StdinTaken => {
                    // The sender may have reached the end of its input, and no more than the window can be taken.
                    let _ = self.taken.try_send(());
                    continue;
                }
                FromAgent::Ready => continue,
            };
            self.is_seen = true;
            // The command goes on, unless it is one that ends where nobody reads what it prints.
            if let Err(why) = written {
                // Nothing is written behind a gap.
                if let Stream::Output(index) = what
                    && let Some(outlet) = self.outputs.get_mut(index)
                {
                    *outlet = Outlet::plain(io::sink());
                }
                if why.kind() == io::ErrorKind::BrokenPipe {
                    let closed = match what {
                        Stream::Stdout => Some(ToAgent::StdoutClosed),
                        Stream::Stderr => Some(ToAgent::StderrClosed),
                        Stream::Output(_) => None,
                    };
                    // It is said again with what the command prints next.
                    let _ = closed.map(|closed| self.messages.try_send(closed));
                }
                self.lost.get_or_insert(Lost { what, why });
            }
        }
    }
}

/// Standard input on its way to a command.
pub(super) struct Input<'a> {
    pub(super) stdin: Option<BorrowedFd<'a>>,
    /// At a terminal, those by which the user asks for the end.
    pub(super) keys: Option<Keys>,
    pub(super) escape: Escape,
    pub(super) is_asked: &'a AtomicBool,
    pub(super) control: &'a UnixStream,
}

/// Keys that are kept while the command takes none, in bytes: what a terminal itself keeps.
const TYPED_AHEAD: usize = 4096;
/// How often keys are looked at while the command takes none, in nanoseconds.
const LOOK: i64 = 50_000_000;

impl Input<'_> {
    /// Sends it until it ends, `stopped` is closed or the other end is gone: then the receiver says why. Says whether
    /// anything was read, which a command that is run once more would not get.
    ///
    /// A terminal is read also while the command takes nothing: the user can always ask for the end.
    pub(super) fn send(
        mut self,
        stopped: &PipeReader,
        credit: &Receiver<()>,
        outbox: &Outbox<UnixStream>,
    ) -> bool {
        let send = |message: ToAgent<'_>| message.encode().and_then(|frame| outbox.send(&frame));
        let mut buffer = [0; STDIN_CHUNK];
        let (mut under_way, mut is_read) = (0, false);
        let mut ahead = Vec::new();
        while let Some(stdin) = self.stdin {
            under_way -= credit.try_iter().count().min(under_way);
            let is_full = under_way == STDIN_WINDOW;
            if is_full && self.keys.is_none() {
                match credit.recv() {
                    Ok(()) => under_way -= 1,
                    Err(_) => return is_read,
                }
            }
            if !is_full && !ahead.is_empty() {
                if send(ToAgent::Stdin(&std::mem::take(&mut ahead))).is_err() {
                    return true;
                }
                under_way += 1;
                continue;
            }
            let mut fds =
                [PollFd::from_borrowed_fd(stdin, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
            let soon = is_full.then_some(Timespec { tv_sec: 0, tv_nsec: LOOK });
            match poll(&mut fds, soon.as_ref()) {
                Err(Errno::INTR) | Ok(0) => continue,
                Err(_) => return is_read,
                Ok(_) => {}
            }
            let [_, stop] = &fds;
            if !stop.revents().is_empty() {
                return is_read;
            }
            let typed = match rustix::io::read(stdin, &mut buffer) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                // A terminal that hung up gives an error: that is an end too.
                Err(_) | Ok(0) => break,
                Ok(length) => buffer.get(..length).unwrap_or_default(),
            };
            is_read = true;
            let filtered = self.keys.as_mut().map(|keys| keys.filter(typed));
            if filtered == Some(Typed::Quit) {
                self.is_asked.store(true, Ordering::Relaxed);
            }
            let bytes = match (self.escape, &filtered) {
                (escape, Some(Typed::Quit)) if escape == Escape::Obeyed || is_full => {
                    // The receiver sees the end of the stream.
                    let _ = self.control.shutdown(Shutdown::Both);
                    return true;
                }
                (Escape::Obeyed, Some(Typed::Bytes(bytes))) => bytes,
                _ => typed,
            };
            if is_full && self.keys.is_some() {
                ahead.extend(bytes.iter().take(TYPED_AHEAD - ahead.len()));
                continue;
            }
            if send(ToAgent::Stdin(bytes)).is_err() {
                return true;
            }
            under_way += 1;
        }
        // If the host is gone the receiver knows.
        let _ = send(ToAgent::StdinEnd);
        is_read
    }
}
