//! The outer end of a run: starts the host, hands in the command, carries streams and signals.

use super::command::{HostCommand, Streams};
use super::conversation::{BeginError, Conversation, converse};
use super::disk::{Disk, DiskError};
use super::machine::{EmulatorError, QemuProcess, Start};
use super::protocol::{CommandExit, Job, ProtocolError};
use super::pump::{Broken, Lost};
use super::qemu::{HostImage, HostSize, Qemu};
use super::snapshot::{PATIENCE, Place, SnapshotError, boot};
use rustix::rand::{GetRandomFlags, getrandom};
use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::SystemTime;
use thiserror::Error;

/// Why the host does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// Neither from a snapshot nor by a boot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// By a boot, where there was no snapshot to be had.
    #[error(transparent)]
    Machine(#[from] EmulatorError),
}

/// Why a command's run broke off.
#[derive(Debug, Error)]
pub enum RunError {
    /// An input file cannot be handed in.
    #[error(transparent)]
    File(#[from] DiskError),
    /// It was not begun.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// The agent could not start the command.
    #[error("the emulated host could not run the command: {0}")]
    Agent(String),
    /// The host died or speaks nonsense.
    #[error(transparent)]
    Machine(#[from] EmulatorError),
    /// The host died before anything of the command was seen, and before the user had said anything: it can be run again.
    #[error(transparent)]
    Unseen(EmulatorError),
}

/// How a command's run ended.
#[derive(Debug)]
pub struct Ended {
    /// The command's end.
    pub exit: CommandExit,
    /// Whether the user has asked for it, by a signal or a key.
    pub was_asked: bool,
    /// What it printed that could not be written here, if that came about.
    pub lost: Option<Lost>,
}

/// A host that waits for its command. Dropping it ends it.
pub struct EmulatedHost {
    machine: QemuProcess,
    disk: Disk,
}

impl EmulatedHost {
    /// Whether a host with `memory_mib` MiB can be started from a snapshot that is there.
    #[must_use]
    pub fn is_prepared(image: &HostImage<'_>, memory_mib: u64) -> bool {
        let place = |qemu| Place::of(&qemu, image, HostSize { memory_mib }).ok();
        Qemu::find().ok().and_then(place).is_some_and(|place| place.is_made())
    }

    /// Starts a host with `memory_mib` MiB (see [`super::memory_for`]): from its snapshot, which is made if there
    /// is none, or by a boot where a snapshot cannot be kept or restored.
    ///
    /// The host ends with the thread that calls this, whatever ends it.
    ///
    /// # Errors
    /// When QEMU is missing or too old, or the host does not boot.
    pub fn start(image: &HostImage<'_>, memory_mib: u64) -> Result<Self, StartError> {
        let qemu = Qemu::find().map_err(SnapshotError::Qemu)?;
        let size = HostSize { memory_mib };
        let place = Place::of(&qemu, image, size)?;
        let disk = Disk::new().map_err(EmulatorError::SetUp)?;
        let restored = match place.open_or_make(&qemu, image) {
            Ok(state) => restore(&qemu, image, size, &disk, &state).map_err(|error| {
                place.remove(&state);
                format!("its snapshot cannot be restored: {}", chain(&error))
            }),
            Err(error) if error.leaves_a_boot() => Err(format!("there is no snapshot: {}", chain(&error))),
            Err(error) => return Err(error.into()),
        };
        let machine = match restored {
            Ok(machine) => machine,
            Err(why) => {
                (image.notice)(&format!("booting the emulated host takes some seconds ({why})"));
                let mut machine = boot(&qemu, image, size, &disk)?;
                machine.wait_ready(PATIENCE)?;
                machine
            }
        };
        Ok(Self { machine, disk })
    }

    /// The requests of a guest inside for files of ours, and the way of the answers.
    ///
    /// # Errors
    /// When this machine is out of descriptors.
    pub fn files(&self) -> io::Result<UnixStream> {
        self.machine.files().try_clone()
    }

    /// The questions of what runs inside for names of what programs here have, and the way of the answers.
    ///
    /// # Errors
    /// When this machine is out of descriptors.
    pub fn names(&self) -> io::Result<UnixStream> {
        self.machine.names().try_clone()
    }

    /// The way of commands to a session inside, and of its answers.
    ///
    /// # Errors
    /// When this machine is out of descriptors.
    pub fn commands(&self) -> io::Result<UnixStream> {
        self.machine.commands().try_clone()
    }

    /// What ends [`run`](Self::run) from another thread, and the host with it: to be shut down.
    ///
    /// # Errors
    /// When this machine is out of descriptors.
    pub fn end(&self) -> io::Result<UnixStream> {
        self.machine.control().try_clone()
    }

    /// Runs `command` to its end.
    ///
    /// Signals are the command's, but for [the second one](converse).
    ///
    /// # Errors
    /// When the command could not be started, or the host died under it.
    pub fn run(mut self, command: HostCommand<'_>, streams: Streams<'_>) -> Result<Ended, RunError> {
        let HostCommand { program, args, env, files, outputs } = command;
        let files = files.iter().map(|input| self.disk.add(input)).collect::<Result<_, _>>()?;
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let job = Job {
            program,
            args,
            env,
            folder: None,
            files,
            outputs: outputs.len(),
            keeps_files: streams.left.is_some(),
            terminal: streams.terminal,
            time,
            seed: Some(seed().map_err(EmulatorError::SetUp)?),
        };
        let talked = converse(self.machine.control(), job, outputs, streams)?;
        let Conversation { end, was_asked, is_seen, lost } = talked;
        let exit = end.map_err(|broken| match broken {
            Broken::Protocol(ProtocolError::Closed | ProtocolError::Truncated | ProtocolError::Io(_)) => {
                let died = self.machine.died();
                if is_seen { died.into() } else { RunError::Unseen(died) }
            }
            Broken::Protocol(error) => EmulatorError::Protocol(error).into(),
            Broken::Agent(why) => RunError::Agent(why),
        })?;
        Ok(Ended { exit, was_asked, lost })
    }
}

/// Random bytes.
fn seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    getrandom(&mut seed, GetRandomFlags::empty())?;
    Ok(seed)
}

fn restore(
    qemu: &Qemu,
    image: &HostImage<'_>,
    size: HostSize,
    disk: &Disk,
    state: &File,
) -> Result<QemuProcess, EmulatorError> {
    let mut machine = QemuProcess::start(qemu, image, size, disk, &Start::Restore(state))?;
    machine.wait_ready(PATIENCE)?;
    Ok(machine)
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let line = error.to_string();
    error.source().map_or(line.clone(), |cause| format!("{line}: {}", chain(cause)))
}
