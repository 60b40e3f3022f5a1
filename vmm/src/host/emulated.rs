//! The outer end of a run: starts the host, hands in the command, carries streams and signals.

use super::command::{HostCommand, Streams};
use super::disk::{Disk, DiskError};
use super::machine::{Machine, MachineError, Start};
use super::protocol::{Exit, Job, Outbox, ProtocolError, ToAgent};
use super::pump::{Broken, Lost, Sinks, send_input};
use super::qemu::{HostImage, HostSize, Qemu};
use super::signals::{Catcher, Ending};
use super::snapshot::{PATIENCE, Place, SnapshotError, boot};
use super::terminal::RawMode;
use crate::session::Keys;
use std::error::Error;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
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
    Machine(#[from] MachineError),
}

/// Why a command's run broke off.
#[derive(Debug, Error)]
pub enum RunError {
    /// An input file cannot be handed in.
    #[error(transparent)]
    File(#[from] DiskError),
    /// The command or its environment is too long, or the host is gone.
    #[error("cannot hand the command to the emulated host")]
    Send(#[source] ProtocolError),
    /// Threads, pipes or signal handlers could not be had.
    #[error("cannot set up the run")]
    SetUp(#[source] io::Error),
    /// The agent could not start the command.
    #[error("the emulated host could not run the command: {0}")]
    Agent(String),
    /// The host died or speaks nonsense.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The host died before anything of the command was seen, and before the user had said anything: it can be run again.
    #[error(transparent)]
    Unseen(MachineError),
}

/// How a command's run ended.
#[derive(Debug)]
pub struct Ended {
    /// The command's end.
    pub exit: Exit,
    /// Whether the user has asked for it, by a signal or a key.
    pub was_asked: bool,
    /// What it printed that could not be written here, if that came about.
    pub lost: Option<Lost>,
}

/// A host that waits for its command. Dropping it ends it.
pub struct EmulatedHost {
    machine: Machine,
    disk: Disk,
}

impl EmulatedHost {
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
        let disk = Disk::new().map_err(MachineError::SetUp)?;
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

    /// Runs `command` to its end.
    ///
    /// A first signal to end is the command's to obey; a second one, half a second or more later, ends the host,
    /// and a third this process.
    ///
    /// # Errors
    /// When the command could not be started, or the host died under it.
    pub fn run(mut self, command: HostCommand<'_>, streams: Streams<'_>) -> Result<Ended, RunError> {
        let HostCommand { program, args, env, files, outputs } = command;
        let files = files.iter().map(|path| self.disk.add(path)).collect::<Result<_, _>>()?;
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let job = Job { program, args, env, files, outputs: outputs.len(), terminal: streams.terminal, time };
        let control = self.machine.control().try_clone().map_err(RunError::SetUp)?;
        let outbox = Outbox::new(control);
        ToAgent::Run(Box::new(job)).encode().and_then(|run| outbox.send(&run)).map_err(RunError::Send)?;

        // Signals are caught before the terminal is raw and until it no longer is.
        let mut catcher = streams.signals.then(Catcher::new).transpose().map_err(RunError::SetUp)?;
        let handle = catcher.as_ref().map(Catcher::handle);
        let raw = streams.stdin.filter(|_| streams.terminal.is_some()).map(RawMode::enter);
        let raw = raw.transpose().map_err(RunError::SetUp)?;
        let ending =
            Ending { is_asked: AtomicBool::new(false), raw: Mutex::new(raw), ended_by: AtomicI32::new(0) };
        let keys = streams.terminal.map(|_| Keys::default());
        let control = self.machine.control();
        let (stopped, stop_input) = io::pipe().map_err(RunError::SetUp)?;
        let (taken, credit) = mpsc::channel();
        let (stdout, stderr) = (streams.stdout, streams.stderr);
        let mut sinks = Sinks { stdout, stderr, outputs, lost: None, taken, is_seen: false };

        let (result, is_seen, lost) = thread::scope(|scope| {
            let (outbox, ending, stdin) = (&outbox, &ending, streams.stdin);
            let input =
                scope.spawn(move || send_input(stdin, keys, &ending.is_asked, &stopped, &credit, outbox));
            if let Some(catcher) = &mut catcher {
                scope.spawn(move || catcher.forward(stdin, outbox, ending, control));
            }
            let result = sinks.receive(control, &ending.is_asked);
            let (is_shown, lost) = (sinks.is_seen, sinks.lost.take());
            // Both threads end now.
            drop((sinks, stop_input));
            if let Some(handle) = handle {
                handle.close();
            }
            let is_read = input.join().unwrap_or(true);
            (result, is_shown || is_read || ending.is_asked.load(Ordering::Relaxed), lost)
        });
        let exit = match (result, ending.ended_by.load(Ordering::Relaxed)) {
            (Err(Broken::Protocol(_)), signal) if signal != 0 => Exit::Signal(signal),
            (result, _) => result.map_err(|broken| match broken {
                Broken::Protocol(ProtocolError::Closed | ProtocolError::Truncated | ProtocolError::Io(_)) => {
                    let died = self.machine.died();
                    if is_seen { died.into() } else { RunError::Unseen(died) }
                }
                Broken::Protocol(error) => MachineError::Protocol(error).into(),
                Broken::Run(error) => error,
            })?,
        };
        Ok(Ended { exit, was_asked: ending.is_asked.load(Ordering::Relaxed), lost })
    }
}

fn restore(
    qemu: &Qemu,
    image: &HostImage<'_>,
    size: HostSize,
    disk: &Disk,
    state: &File,
) -> Result<Machine, MachineError> {
    let mut machine = Machine::start(qemu, image, size, disk, &Start::Restore(state))?;
    machine.wait_ready(PATIENCE)?;
    Ok(machine)
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let line = error.to_string();
    error.source().map_or(line.clone(), |cause| format!("{line}: {}", chain(cause)))
}
