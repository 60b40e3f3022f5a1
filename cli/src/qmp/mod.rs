//! `--qmp SOCK`: what debuggers ask QEMU for by its monitor's protocol (QMP), as far as they need it to read a guest.
//!
//! ```text
//! drgn --qemu ──QMP──▶ client ──lines of JSON-RPC──▶ server of the control socket
//! ```
//!
//! Memory is the guest's own: without what is ours. So it is never read from this process, as drgn does where QEMU says where memory
//! is in that (`gpa2hva`), and it is the same in the emulated host.

mod client;
mod commands;
mod error;
mod monitor;
mod seen;

use crate::control::{Entrance, OwnSocket};
use anyhow::{Context, Result};
use client::Client;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use vmm::confine::{self, Role};

/// So many clients are connected at most.
const MOST_CLIENTS: usize = 16;
/// A client that takes nothing of an answer for so long is left.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server of the protocol. It takes no more clients when it is dropped, and its socket is removed.
pub(crate) struct QmpServer {
    over: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    _socket: OwnSocket,
}

impl QmpServer {
    /// Serves clients of `socket`, each of which becomes one of the guest's control socket.
    ///
    /// # Errors
    /// When this machine is out of threads or descriptors.
    pub(crate) fn start(socket: OwnSocket, entrance: Entrance) -> Result<Self> {
        const NO_DESCRIPTOR: &str = "the host has no descriptor left";
        let listener = socket.listener().try_clone().context(NO_DESCRIPTOR)?;
        let over = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context(NO_DESCRIPTOR)?);
        let until = over.clone();
        let serve = move || {
            confine::this_thread_if(true, Role::Control);
            serve(&listener, &entrance, &until);
        };
        let thread = thread::Builder::new().name("qmp".to_owned()).spawn(serve);
        let thread = thread.context("the host has no thread left")?;
        Ok(Self { over, thread: Some(thread), _socket: socket })
    }
}

impl Drop for QmpServer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.over, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said why.
            let _ = thread.join();
        }
    }
}

/// Takes clients until it is over. Each has a thread of its own, which ends with the client or with the guest.
fn serve(listener: &UnixListener, entrance: &Entrance, until: &OwnedFd) {
    let connected = Arc::new(AtomicUsize::new(0));
    loop {
        let mut fds = [PollFd::new(until, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        let [over, _] = fds;
        if !over.revents().is_empty() {
            return;
        }
        let Ok((stream, _)) = listener.accept() else {
            // Out of descriptors, for instance: whoever waits goes on waiting.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if connected.load(Ordering::Relaxed) < MOST_CLIENTS {
            let client = Counted::of(&connected);
            let entrance = entrance.clone();
            let attend = move || {
                let _client = client;
                // Whoever is gone is told nothing.
                let _ = attend(stream, entrance);
            };
            // Without a thread the client is left.
            let _ = thread::Builder::new().name("qmp".to_owned()).spawn(attend);
        }
    }
}

fn attend(stream: UnixStream, entrance: Entrance) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Client::new(stream, entrance).serve()
}

/// A client that is counted as long as it is there.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn of(all: &Arc<AtomicUsize>) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
