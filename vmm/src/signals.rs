//! Signals: those that end a run, and the one that interrupts a vCPU's KVM_RUN.

mod disposition;
pub(crate) mod timer;

use disposition::Disposition;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::low_level::{pipe, unregister};
use signal_hook::{SigId, flag};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use vmm_sys_util::errno;
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

/// Makes the signal that [`kick`] sends do nothing but interrupt a system call; where a timer has sent it, that is counted.
///
/// # Errors
/// What sigaction(2) said.
pub fn make_kick_harmless() -> Result<(), errno::Error> {
    register_signal_handler(SIGRTMIN(), timer::interrupted)
}

/// Interrupts `thread`'s system call. A thread that has ended already is left alone.
pub fn kick(thread: &JoinHandle<()>) {
    if !thread.is_finished() {
        let _ = thread.kill(SIGRTMIN());
    }
}

/// The signals by which a process is told to end, unless it [ignores](Caught::signals) them.
const TO_END: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// As long as there is one that was not released, those signals do not what they do by default. Without one they do what
/// they did before there was any, also where others have asked for them.
pub(crate) struct Caught {
    is_held: AtomicBool,
    signals: Arc<[i32]>,
}

/// What the handlers of this process do. A handler cannot be taken back, so each is installed once.
struct SignalHandlers {
    /// Those of the signals that this process had not ignored.
    signals: Arc<[i32]>,
    /// Whether those that nobody had handled do what they do by default.
    by_default: Arc<AtomicBool>,
    /// How many [`Caught`] hold that off.
    holders: usize,
}

static HANDLERS: Mutex<Option<SignalHandlers>> = Mutex::new(None);

impl Caught {
    /// # Errors
    /// What sigaction(2) said.
    pub(crate) fn catch() -> io::Result<Self> {
        let mut installed = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
        let handlers = match &mut *installed {
            Some(handlers) => handlers,
            None => {
                let by_default = Arc::new(AtomicBool::new(true));
                let mut signals = Vec::new();
                for signal in TO_END {
                    match Disposition::of(signal)? {
                        Disposition::Ignored => continue,
                        // That handler is called besides, now and afterwards.
                        Disposition::Handled => {}
                        Disposition::Default => {
                            flag::register_conditional_default(signal, by_default.clone())?;
                        }
                    }
                    signals.push(signal);
                }
                installed.insert(SignalHandlers { signals: signals.into(), by_default, holders: 0 })
            }
        };
        handlers.holders += 1;
        handlers.by_default.store(false, Ordering::Relaxed);
        Ok(Self { is_held: AtomicBool::new(true), signals: handlers.signals.clone() })
    }

    /// Those of the signals that this process does not ignore.
    pub(crate) fn signals(&self) -> &[i32] {
        &self.signals
    }

    /// From now on they do again what they did before, unless another one is there.
    pub(crate) fn release(&self) {
        let mut installed = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(handlers) = &mut *installed else { return };
        if self.is_held.swap(false, Ordering::Relaxed) {
            handlers.holders = handlers.holders.saturating_sub(1);
            handlers.by_default.store(handlers.holders == 0, Ordering::Relaxed);
        }
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        self.release();
    }
}

/// The signals that end a run, as something to wait for. When it is dropped, they act as before.
pub(crate) struct Signals {
    last: Arc<AtomicUsize>,
    wake: UnixStream,
    ids: Vec<SigId>,
    caught: Caught,
}

impl Signals {
    /// Catches the signals to end from now on, but for those that this process ignores.
    ///
    /// # Errors
    /// When the host is out of descriptors.
    pub(crate) fn catch() -> io::Result<Self> {
        let (wake, ring) = UnixStream::pair()?;
        let mut signals = Self { last: Arc::default(), wake, ids: Vec::new(), caught: Caught::catch()? };
        for signal in signals.caught.signals.iter().copied() {
            // First the number, then the wake-up: handlers run in the order of registration.
            signals.ids.push(flag::register_usize(signal, signals.last.clone(), signal as usize)?);
            signals.ids.push(pipe::register(signal, ring.try_clone()?)?);
        }
        Ok(signals)
    }

    /// The signal that arrived last, if any did.
    pub(crate) fn take(&self) -> Option<i32> {
        match self.last.swap(0, Ordering::Relaxed) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.ids.drain(..).for_each(|id| {
            unregister(id);
        });
    }
}

/// Held by the test that sends this process a signal: each that is caught meanwhile is counted by all who catch.
#[cfg(test)]
pub(crate) static SENDING: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::low_level::raise;
    use std::process::Command;

    /// Set in a process that ignores SIGHUP.
    const IGNORES: &str = "VMM_TEST_IGNORES_SIGHUP";

    #[test]
    fn what_a_process_ignored_or_handled_it_ignores_or_handles_afterwards() {
        if std::env::var_os(IGNORES).is_none() {
            let me = std::env::current_exe().unwrap();
            let name = "signals::tests::what_a_process_ignored_or_handled_it_ignores_or_handles_afterwards";
            // What the shell that runs the tests had ignored is not ignored there: a shell does so for what it puts into
            // the background.
            let mut env = Command::new("env");
            let ignoring =
                env.args(["--default-signal", "--ignore-signal=HUP"]).arg(me).args(["--exact", name]);
            let output = ignoring.env(IGNORES, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{:?} {said}", output.status);
            return;
        }
        let asked = Arc::new(AtomicUsize::new(0));
        flag::register_usize(SIGTERM, asked.clone(), 7).unwrap();
        let caught = Caught::catch().unwrap();
        assert_eq!(caught.signals(), [SIGINT, SIGTERM, SIGQUIT]);
        drop(caught);
        // Each would end this process.
        raise(SIGHUP).unwrap();
        raise(SIGTERM).unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_signal_is_caught_as_long_as_somebody_catches_it() {
        let _alone = SENDING.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, _second) = (Caught::catch().unwrap(), Caught::catch().unwrap());
        first.release();
        drop(first);
        // It would end this process. A signal to this thread has arrived when the call returns. One to the process may
        // arrive on another thread, when nobody catches it any more.
        raise(SIGHUP).unwrap();
    }
}
