//! This process's signals while a command runs inside: passed on, and in the end obeyed.

use super::protocol::{Outbox, ToAgent};
use super::terminal::{RawMode, WindowSize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::flag::register_conditional_default;
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Two signals closer together than this are one request to end: a shell's and its `timeout`'s, say.
const IMPATIENCE: Duration = Duration::from_millis(500);

const TO_END: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// What the thread for signals changes.
pub(super) struct Ending {
    pub(super) raw: Mutex<Option<RawMode>>,
    /// The signal that ended the host; 0 if none did.
    pub(super) ended_by: AtomicI32,
}

/// This process's signals, from now until it is dropped; then they do again what they do by default.
pub(super) struct Catcher {
    signals: Signals,
    default_action: Arc<AtomicBool>,
}

impl Catcher {
    pub(super) fn new() -> io::Result<Self> {
        let default_action = default_action()?;
        let signals = Signals::new(TO_END.iter().chain(&[SIGWINCH]))?;
        default_action.store(false, Ordering::Relaxed);
        Ok(Self { signals, default_action })
    }

    /// What ends [`Catcher::forward`].
    pub(super) fn handle(&self) -> Handle {
        self.signals.handle()
    }

    /// Passes signals on until its handle is closed.
    pub(super) fn forward(
        &mut self,
        stdin: Option<BorrowedFd<'_>>,
        outbox: &Outbox<UnixStream>,
        ending: &Ending,
        control: &UnixStream,
    ) {
        let mut asked: Option<Instant> = None;
        for signal in self.signals.forever() {
            let message = if signal == SIGWINCH {
                let size = stdin.and_then(|stdin| WindowSize::of(stdin).ok());
                size.map(ToAgent::WindowSize)
            } else {
                if asked.get_or_insert_with(Instant::now).elapsed() >= IMPATIENCE {
                    ending.ended_by.store(signal, Ordering::Relaxed);
                    ending.raw.lock().unwrap_or_else(PoisonError::into_inner).take();
                    self.default_action.store(true, Ordering::Relaxed);
                    // The receiver sees the end of the stream, and the host is dropped.
                    let _ = control.shutdown(Shutdown::Both);
                }
                Some(ToAgent::Signal(signal))
            };
            if let Some(message) = message {
                // A host that is gone needs no signal; the receiver says why it is.
                let _ = message.encode().and_then(|frame| outbox.send(&frame));
            }
        }
    }
}

impl Drop for Catcher {
    fn drop(&mut self) {
        self.default_action.store(true, Ordering::Relaxed);
    }
}

/// While this is set, the signals to end do what they do by default. A handler cannot be taken back, so it is
/// installed once for the process.
fn default_action() -> io::Result<Arc<AtomicBool>> {
    static ACTION: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);
    let mut installed = ACTION.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(action) = &*installed {
        return Ok(Arc::clone(action));
    }
    let action = Arc::new(AtomicBool::new(true));
    for signal in TO_END {
        register_conditional_default(signal, Arc::clone(&action))?;
    }
    *installed = Some(Arc::clone(&action));
    Ok(action)
}
