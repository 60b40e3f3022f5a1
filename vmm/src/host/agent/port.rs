//! The control port inside: a virtio serial port, found by its name.

use super::AgentError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const PORTS: &str = "/sys/class/virtio-ports";
/// A port is announced a moment after its device.
const PATIENCE: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_millis(20);

/// The open port. Its end of file is no end: it says that nobody is connected outside, as between a snapshot and
/// its restoration, and reading goes on.
pub(super) struct AgentPort(File);

impl AgentPort {
    /// Waits for the port of that name, and opens it.
    pub(super) fn open(name: &str) -> Result<Self, AgentError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(path) = find(name) {
                let mut options = OpenOptions::new();
                // A write that may wait has its CPU spin, with interrupts off, until the other side has taken the bytes.
                let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
                let file = options.open(&path);
                return file.map(Self).map_err(AgentError::file("open", path));
            }
            if Instant::now() > deadline {
                let missing = io::Error::from(io::ErrorKind::NotFound);
                return Err(AgentError::file("find a port of ours in", PORTS)(missing));
            }
            thread::sleep(RETRY);
        }
    }

    /// A port that is something else, for a test.
    #[cfg(test)]
    pub(super) fn of(file: File) -> Self {
        Self(file)
    }

    pub(super) fn try_clone(&self) -> Result<Self, AgentError> {
        self.0.try_clone().map(Self).map_err(AgentError::file("share", PORTS))
    }
}

impl AgentPort {
    fn wait(&self, what: PollFlags) -> io::Result<()> {
        match poll(&mut [PollFd::new(&self.0, what)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let mut ports = fs::read_dir(PORTS).ok()?.flatten();
    let named = |port: &fs::DirEntry| {
        fs::read_to_string(port.path().join("name")).is_ok_and(|found| found.trim_end() == name)
    };
    ports.find(named).map(|port| Path::new("/dev").join(port.file_name()))
}

impl Read for AgentPort {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buffer) {
                Ok(0) if !buffer.is_empty() => thread::sleep(RETRY),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                done => return done,
            }
        }
    }
}

impl Write for AgentPort {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
