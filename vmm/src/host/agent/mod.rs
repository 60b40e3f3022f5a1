//! The inner end: what this program does as process 1 of the emulated host.
//!
//! The initramfs holds, beside this program as `/init`:
//! - `/modules/load-order`: names of files in `/modules`, one a line, loaded in that order; of `kvm-intel` and
//!   `kvm-amd` only the one that fits the processor;
//! - `/batch.json`, if commands are to be run without a control port; see `batch`.

mod batch;
mod changes;
mod job;
mod plan;
mod port;
mod randomness;
mod root;
mod setup;

use super::emulated::chain;
use super::protocol::{
    COMMANDS_PORT, FILES_PORT, FrameReader, FromAgent, NAMES_PORT, Outbox, PORT_NAME, ProtocolError, ToAgent,
};
use changes::{Changes, end_others};
pub use plan::{Mount, PLAN, Plan};
use port::AgentPort;
use root::{RootError, enter};
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
    #[error(transparent)]
    Root(RootError),
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

/// In the emulated host: where requests for files outside go, and where the answers come from.
///
/// # Errors
/// When there is no such port.
pub fn files_port() -> io::Result<PortEnds> {
    ends(FILES_PORT)
}

/// The same for questions for names of what programs outside have.
///
/// # Errors
/// When there is no such port.
pub fn names_port() -> io::Result<PortEnds> {
    ends(NAMES_PORT)
}

/// The same for commands from outside: where the answers go, and where the commands come from.
///
/// # Errors
/// When there is no such port.
pub fn commands_port() -> io::Result<PortEnds> {
    ends(COMMANDS_PORT)
}

/// Where requests go, and where the answers come from.
pub type PortEnds = (Box<dyn io::Write + Send>, Box<dyn io::Read + Send>);

fn ends(name: &str) -> io::Result<PortEnds> {
    let open = || -> Result<_, AgentError> {
        let port = AgentPort::open(name)?;
        Ok((port.try_clone()?, port))
    };
    let (requests, answers) = open().map_err(|error| io::Error::other(chain(&error)))?;
    Ok((Box::new(requests), Box::new(BufReader::with_capacity(128 << 10, answers))))
}

/// Makes the host usable, runs what it is told to, and powers the machine off. To be called by process 1.
pub fn main() {
    let result = match Path::new(PLAN).exists() {
        true => in_guest(),
        false => setup::prepare().and_then(|()| {
            setup::allow_large_pages();
            let batch = Path::new(BATCH);
            if batch.exists() { batch::run(batch) } else { serve(Ok(Changes::default())) }
        }),
    };
    if let Err(error) = result {
        // The console: whoever started the machine has its last lines.
        eprintln!("vmm agent: {}", chain(&error));
    }
    setup::power_off();
}

/// As the init of a guest: what prevents a command is said to whoever wants it.
fn in_guest() -> Result<(), AgentError> {
    setup::prepare()?;
    serve(enter().map_err(AgentError::Root))
}

/// Runs the one command that comes in over the control port, if that is `possible`: then it is known where what it changes lies.
fn serve(possible: Result<Changes, AgentError>) -> Result<(), AgentError> {
    let port = AgentPort::open(PORT_NAME)?;
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
    let seeded = job.seed.map_or(Ok(()), |seed| randomness::seed(&seed));
    let outbox = Arc::new(outbox);
    let run = |changes: Changes| {
        seeded?;
        let exit = job::run(&job, frames, &outbox)?;
        if job.keeps_files {
            end_others();
            changes.send(&outbox, job.outputs)?;
        }
        Ok(exit)
    };
    let last = match possible.and_then(run) {
        Ok(exit) => FromAgent::Exit(exit).encode()?,
        Err(error) => FromAgent::Failed(&chain(&error)).encode()?,
    };
    Ok(outbox.send(&last)?)
}
