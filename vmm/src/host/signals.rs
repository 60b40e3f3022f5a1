//! This process's signals while a command runs inside: passed on, and in the end obeyed.

use super::protocol::ToAgent;
use crate::signals::Caught;
use crate::terminal::{RawMode, WindowSize};
use signal_hook::consts::SIGWINCH;
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Two signals closer together than this are one request to end: a shell's and its `timeout`'s, say.
const IMPATIENCE: Duration = Duration::from_millis(500);

/// What the thread for signals changes.
pub(super) struct Ending {
    /// The user wants the command to end.
    pub(super) is_asked: AtomicBool,
    pub(super) raw: Mutex<Option<RawMode>>,
    /// The signal that ended the host; 0 if none did.
    pub(super) ended_by: AtomicI32,
}

/// This process's signals, from now until it is dropped; then they do again what they did.
pub(super) struct Catcher {
    signals: Signals,
    caught: Caught,
}

impl Catcher {
    pub(super) fn new() -> io::Result<Self> {
        // Handlers run in the order of registration. What a signal does by default has to be decided before the signal is
        // told of: who is told of it may give it back.
        let caught = Caught::catch()?;
        let signals = Signals::new(caught.signals().iter().chain(&[SIGWINCH]))?;
        Ok(Self { signals, caught })
    }

    /// What ends [`Catcher::forward`].
    pub(super) fn handle(&self) -> Handle {
        self.signals.handle()
    }

    /// Passes signals on to whoever sends `messages`, until its handle is closed. It waits for nobody, so that a second signal
    /// ends what has stopped reading.
    pub(super) fn forward(
        &mut self,
        stdin: Option<BorrowedFd<'_>>,
        messages: &SyncSender<ToAgent<'static>>,
        ending: &Ending,
        control: &UnixStream,
    ) {
        let mut asked: Option<Instant> = None;
        for signal in self.signals.forever() {
            let message = if signal == SIGWINCH {
                let size = stdin.and_then(|stdin| WindowSize::of(stdin).ok());
                size.map(ToAgent::WindowSize)
            } else {
                ending.is_asked.store(true, Ordering::Relaxed);
                if asked.get_or_insert_with(Instant::now).elapsed() >= IMPATIENCE {
                    ending.ended_by.store(signal, Ordering::Relaxed);
                    ending.raw.lock().unwrap_or_else(PoisonError::into_inner).take();
                    self.caught.release();
                    // The receiver sees the end of the stream, and the host is dropped.
                    let _ = control.shutdown(Shutdown::Both);
                }
                Some(ToAgent::Signal(signal))
            };
            // Where many wait, nobody reads them.
            let _ = message.map(|message| messages.try_send(message));
        }
    }
}
