//! The outer end of a command's run: carries its streams and our signals until it has ended.

use super::command::{Outlet, Streams};
use super::protocol::{
    CommandExit, FrameReader, FromAgent, Job, Outbox, ProtocolError, STDIN_WINDOW, ToAgent,
};
use super::pump::{Broken, Input, Lost, Sinks};
use super::signals::{Catcher, Ending};
use crate::session::Keys;
use crate::terminal::RawMode;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// The command was not begun.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// It or its environment is too long, or nobody is there.
    #[error("cannot hand the command over")]
    Send(#[source] ProtocolError),
    /// Threads, pipes or signal handlers could not be had.
    #[error("cannot set up the run")]
    SetUp(#[from] io::Error),
}

/// Signals and the like that wait to be sent while the other end does not read. More of them say nothing new.
const MESSAGES: usize = 8;

/// How a conversation ended.
pub(crate) struct Conversation {
    /// The command's end, or why nothing more is known of it.
    pub(crate) end: Result<CommandExit, Broken>,
    /// Whether the user has asked for the end.
    pub(crate) was_asked: bool,
    /// Whether anything was seen of the command, or read for it.
    pub(crate) is_seen: bool,
    /// What it printed that could not be written here, if that came about.
    pub(crate) lost: Option<Lost>,
}

/// Greets the agent at the other end of `control`, and waits until it answers, for so long at most: then the error is
/// `WouldBlock`. Nothing of what follows is read.
pub(crate) fn greet(mut control: &UnixStream, patience: Option<Duration>) -> Result<(), ProtocolError> {
    control.write_all(&ToAgent::Hello.encode()?)?;
    let answers = Until { control, end: patience.and_then(|patience| Instant::now().checked_add(patience)) };
    let mut frames = FrameReader::new(answers);
    while FromAgent::decode(frames.next()?)? != FromAgent::Ready {}
    Ok(control.set_read_timeout(None)?)
}

/// What comes in until a certain moment, however slowly.
struct Until<'a> {
    control: &'a UnixStream,
    end: Option<Instant>,
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(end) = self.end {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.control.set_read_timeout(Some(left))?;
        }
        self.control.read(buffer)
    }
}

/// Hands `job` over by `control`, and carries `streams` and `outputs` until it has ended, and what it leaves, where the streams take that.
///
/// A first signal to end is the command's to obey; a second one, half a second or more later, closes `control`, and a
/// third ends this process.
///
/// # Errors
/// [`BeginError`].
pub(crate) fn converse(
    control: &UnixStream,
    job: Job,
    outputs: Vec<Outlet>,
    streams: Streams<'_>,
) -> Result<Conversation, BeginError> {
    let outbox = Outbox::new(control.try_clone()?);
    // Signals are caught before the terminal is raw and until it no longer is. What a signal tells is asked for after that.
    let mut catcher = streams.signals.then(Catcher::new).transpose()?;
    let job = Job { terminal: streams.terminal_now(), ..job };
    ToAgent::Run(Box::new(job)).encode().and_then(|run| outbox.send(&run)).map_err(BeginError::Send)?;

    let handle = catcher.as_ref().map(Catcher::handle);
    let raw = streams.stdin.filter(|_| streams.terminal.is_some()).map(RawMode::enter).transpose()?;
    let ending =
        Ending { is_asked: AtomicBool::new(false), raw: Mutex::new(raw), ended_by: AtomicI32::new(0) };
    let keys = streams.terminal.map(|_| Keys::default());
    let (stopped, stop_input) = io::pipe()?;
    let (taken, credit) = mpsc::sync_channel(STDIN_WINDOW);
    let (messages, waiting) = mpsc::sync_channel(MESSAGES);
    let (stdout, stderr) = (streams.stdout, streams.stderr);
    let outputs = outputs.into_iter().chain(streams.left).collect();
    let mut sinks =
        Sinks { stdout, stderr, outputs, lost: None, messages: messages.clone(), taken, is_seen: false };

    let (end, is_seen, lost) = thread::scope(|scope| {
        let (outbox, ending, stdin) = (&outbox, &ending, streams.stdin);
        let input = Input { stdin, keys, escape: streams.escape, is_asked: &ending.is_asked, control };
        let input = scope.spawn(move || input.send(&stopped, &credit, outbox));
        if let Some(catcher) = &mut catcher {
            scope.spawn(move || catcher.forward(stdin, &messages, ending, control));
        } else {
            drop(messages);
        }
        scope.spawn(move || {
            // A host that is gone needs no message; the receiver says why it is.
            let send = |message: ToAgent<'_>| message.encode().and_then(|frame| outbox.send(&frame));
            waiting.iter().try_for_each(send)
        });
        let end = sinks.receive(control, &ending.is_asked);
        let (is_shown, lost) = (sinks.is_seen, sinks.lost.take());
        // Whoever still sends would wait for ever where nobody reads.
        let _ = control.shutdown(Shutdown::Both);
        // The threads end now.
        drop((sinks, stop_input));
        if let Some(handle) = handle {
            handle.close();
        }
        let is_read = input.join().unwrap_or(true);
        (end, is_shown || is_read || ending.is_asked.load(Ordering::Relaxed), lost)
    });
    let end = match (end, ending.ended_by.load(Ordering::Relaxed)) {
        (Err(Broken::Protocol(_)), signal) if signal != 0 => Ok(CommandExit::Signal(signal)),
        (end, _) => end,
    };
    Ok(Conversation { end, was_asked: ending.is_asked.load(Ordering::Relaxed), is_seen, lost })
}

#[cfg(test)]
mod tests;
