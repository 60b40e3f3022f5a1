//! `--splat dump`: the guest's memory, kept at its first report that is not allowed.

use crate::control::{Connection, Entrance};
use crate::file::{self, NewFile};
use crate::say::say;
use crate::vmcore;
use anyhow::{Context, Result};
use serde_json::Value;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often it is looked whether the guest stands still.
const OFTEN: Duration = Duration::from_millis(100);

/// Keeps the memory when it is time. When it is dropped, nobody waits for a report any more.
pub(crate) struct KeptMemory {
    /// By which it is asked whether it is time.
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl KeptMemory {
    /// Waits for the guest to stand still because of a report, writes its memory to `path`, and lets it go on.
    ///
    /// # Errors
    /// In words, where there can be no such file, or this machine is out of threads or descriptors.
    pub(crate) fn begin(path: &Path, entrance: Entrance) -> Result<Self> {
        let memory = NewFile::begin_private(path)?;
        let path = path.to_owned();
        let stream = entrance.join()?;
        let own = stream.try_clone().context("the host has no descriptor left")?;
        let keep = move || {
            // Without a report there is nothing to be kept.
            let Ok(mut guest) = Connection::over(own) else { return };
            if wait(&mut guest).is_err() {
                return;
            }
            match write(&entrance, memory, &path) {
                Ok(()) => file::note_written("the guest's memory at its first splat", &path),
                Err(error) => say(format_args!("the guest's memory is not kept: {error:#}")),
            }
            // One that has ended meanwhile does not.
            let _ = guest.call("resume", Value::Null);
        };
        let thread = thread::Builder::new().name("vmcore".to_owned()).spawn(keep);
        Ok(Self { stream, thread: Some(thread.context("the host has no thread left")?) })
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said why.
            let _ = thread.join();
        }
    }
}

/// Waits until the guest stands still because of a report.
fn wait(guest: &mut Connection) -> Result<()> {
    loop {
        let status = guest.call("status", Value::Null)?;
        if status.get("stands_for").and_then(Value::as_str) == Some("splat") {
            return Ok(());
        }
        thread::sleep(OFTEN);
    }
}

fn write(entrance: &Entrance, memory: NewFile, path: &Path) -> Result<()> {
    vmcore::write(Connection::over(entrance.join()?)?, None, memory.file())?;
    memory.finish().with_context(|| format!("cannot write {}", path.display()))
}
