//! The inner end: what this program does as process 1 of the emulated host.
//!
//! The initramfs holds, beside this program as `/init`:
//! - `/modules/load-order`: names of files in `/modules`, one a line, loaded in that order; of `kvm-intel` and
//!   `kvm-amd` only the one that fits the processor;
//! - `/batch.json`, if commands are to be run without a control port; see `batch`.

mod batch;
mod job;
mod port;
mod setup;

use super::emulated::chain;
use super::protocol::{FrameReader, FromAgent, Outbox, ProtocolError, ToAgent};
use port::Port;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Why the agent gave up.
#[derive(Debug, Error)]
pub(super) enum AgentError {
    #[error("cannot {what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot use the control port")]
    Protocol(#[from] ProtocolError),
    #[error("{} is not a list of commands", path.display())]
    Batch { path: PathBuf, source: serde_json::Error },
    #[error("the message is not one for an agent that waits for a command")]
    OutOfTurn,
}

impl AgentError {
    /// For `map_err`: `what` is what was to be done with `path`.
    fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}

const BATCH: &str = "/batch.json";

/// Makes the host usable, runs what it is told to, and powers the machine off. To be called by process 1.
pub fn main() {
    let result = setup::prepare().and_then(|()| {
        let batch = Path::new(BATCH);
        if batch.exists() { batch::run(batch) } else { serve() }
    });
    if let Err(error) = result {
        // The console: whoever started the machine has its last lines.
        eprintln!("vmm agent: {}", chain(&error));
    }
    setup::power_off();
}

/// Runs the one command that comes in over the control port.
fn serve() -> Result<(), AgentError> {
    let port = Port::open()?;
    let outbox = Outbox::new(port.try_clone()?);
    let mut frames = FrameReader::new(BufReader::with_capacity(64 << 10, port));
    // A host is greeted when it has booted, and again each time it is restored.
    let job = loop {
        match ToAgent::decode(frames.next()?)? {
            ToAgent::Hello => outbox.send(&FromAgent::Ready.encode()?)?,
            ToAgent::Run(job) => break job,
            _ => return Err(AgentError::OutOfTurn),
        }
    };
    setup::set_clock(job.time);
    let outbox = Arc::new(outbox);
    let last = match job::run(&job, frames, &outbox) {
        Ok(exit) => FromAgent::Exit(exit).encode()?,
        Err(error) => FromAgent::Failed(&chain(&error)).encode()?,
    };
    Ok(outbox.send(&last)?)
}
