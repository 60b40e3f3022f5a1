//! The outer end of a run: starts the host, hands in the command, carries streams and signals.

use super::disk::{Disk, DiskError};
use super::machine::{Machine, MachineError, Start};
use super::protocol::{
    Arg, Exit, FrameReader, FromAgent, Job, Outbox, Program, ProtocolError, STDIN_CHUNK, STDIN_WINDOW,
    ToAgent,
};
use super::qemu::{HostImage, HostSize, Qemu};
use super::snapshot::{BOOT_PATIENCE, Place, SnapshotError, boot};
use super::terminal::{RawMode, Terminal, WindowSize};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufReader, PipeReader, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use thiserror::Error;

/// A restored host answers within 0.2 s here; this is for a loaded machine.
const RESTORE_PATIENCE: Duration = Duration::from_secs(30);
/// Two signals closer together than this are one request to end: a shell's and its `timeout`'s, say.
const IMPATIENCE: Duration = Duration::from_millis(500);

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
    /// Something that the command printed could not be written here.
    #[error("cannot write {what}")]
    Write {
        /// Which stream.
        what: String,
        /// Why.
        source: io::Error,
    },
}

/// What to run inside: this same program, unless [`HostCommand::of_file`] says otherwise.
///
/// Arguments are given one by one, because the paths of files and outputs inside are not those outside.
pub struct HostCommand<'a> {
    program: Program,
    args: Vec<Arg>,
    env: Vec<(String, String)>,
    files: Vec<PathBuf>,
    outputs: Vec<Box<dyn Write + 'a>>,
}

impl Default for HostCommand<'_> {
    fn default() -> Self {
        Self { program: Program::ThisBinary, args: vec![], env: vec![], files: vec![], outputs: vec![] }
    }
}

impl<'a> HostCommand<'a> {
    /// This same program, without arguments.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The executable at `path` (outside), which must be static.
    #[must_use]
    pub fn of_file(path: &Path) -> Self {
        Self { program: Program::File(0), files: vec![path.into()], ..Self::default() }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, text: impl Into<String>) -> Self {
        self.args.push(Arg::Text(text.into()));
        self
    }

    /// Adds an argument that is a file of ours: it is copied in, and the argument is its path there.
    #[must_use]
    pub fn file(mut self, path: &Path) -> Self {
        self.args.push(Arg::File(self.files.len()));
        self.files.push(path.into());
        self
    }

    /// Adds an argument that is a file to write: what is written to it inside arrives in `sink` as it happens.
    #[must_use]
    pub fn output(mut self, sink: impl Write + 'a) -> Self {
        self.args.push(Arg::Output(self.outputs.len()));
        self.outputs.push(Box::new(sink));
        self
    }

    /// Sets an environment variable. There are no others.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }
}

/// Where a command's streams begin and end.
pub struct Streams<'a> {
    /// Standard input; none is an empty one.
    pub stdin: Option<BorrowedFd<'a>>,
    /// Standard output.
    pub stdout: Box<dyn Write + 'a>,
    /// Standard error.
    pub stderr: Box<dyn Write + 'a>,
    /// `stdin` is a terminal: the command gets one too, and ours is in raw mode until the run ends.
    pub terminal: Option<Terminal>,
    /// Pass this process's SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGWINCH on.
    pub signals: bool,
}

impl Streams<'static> {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        Self {
            stdin: Some(rustix::stdio::stdin()),
            stdout: Box::new(io::stdout()),
            stderr: Box::new(io::stderr()),
            terminal: Terminal::of_this_process(),
            signals: true,
        }
    }
}

impl<'a> Streams<'a> {
    /// Into buffers, for a test.
    #[must_use]
    pub fn captured(stdout: &'a mut Vec<u8>, stderr: &'a mut Vec<u8>) -> Self {
        let (stdout, stderr) = (Box::new(stdout), Box::new(stderr));
        Self { stdin: None, stdout, stderr, terminal: None, signals: false }
    }
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
        let size = HostSize::new(memory_mib);
        let place = Place::of(&qemu, image, size)?;
        let disk = Disk::new().map_err(MachineError::SetUp)?;
        let restored = match place.open_or_make(&qemu, image) {
            Ok(state) => restore(&qemu, image, &size, &disk, &state).map_err(|error| {
                place.remove();
                chain(&error)
            }),
            Err(error @ (SnapshotError::Cache { .. } | SnapshotError::Save(_))) => Err(chain(&error)),
            Err(error) => return Err(error.into()),
        };
        let machine = match restored {
            Ok(machine) => machine,
            Err(why) => {
                (image.notice)(&format!(
                    "no snapshot of the emulated host ({why}); booting it takes some seconds"
                ));
                let mut machine = boot(&qemu, image, &size, &disk)?;
                machine.wait_ready(BOOT_PATIENCE)?;
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
    /// When the command could not be started, the host died under it, or its output could not be written.
    pub fn run(mut self, command: HostCommand<'_>, streams: Streams<'_>) -> Result<Exit, RunError> {
        let HostCommand { program, args, env, files, outputs } = command;
        let files = files.iter().map(|path| self.disk.add(path)).collect::<Result<_, _>>()?;
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let job = Job { program, args, env, files, outputs: outputs.len(), terminal: streams.terminal, time };
        let control = self.machine.control().try_clone().map_err(RunError::SetUp)?;
        let outbox = Outbox::new(control);
        ToAgent::Run(Box::new(job)).encode().and_then(|run| outbox.send(&run)).map_err(RunError::Send)?;

        let raw = match (streams.stdin, streams.terminal) {
            (Some(stdin), Some(_)) => Some(RawMode::enter(stdin).map_err(RunError::SetUp)?),
            _ => None,
        };
        let ending = Ending { raw: Mutex::new(raw), ended_by: AtomicI32::new(0) };
        let control = self.machine.control().try_clone().map_err(RunError::SetUp)?;
        let signals = if streams.signals { Some(Catcher::new().map_err(RunError::SetUp)?) } else { None };
        let (stop_input, stopped) =
            io::pipe().map_err(RunError::SetUp).map(|(reader, writer)| (writer, reader))?;
        let (taken, credit) = mpsc::channel();
        let mut sinks = Sinks { stdout: streams.stdout, stderr: streams.stderr, outputs, taken };

        let result = thread::scope(|scope| {
            let outbox = &outbox;
            scope.spawn(move || send_input(streams.stdin, &stopped, &credit, outbox));
            let handle = signals.map(|mut catcher| {
                let handle = catcher.signals.handle();
                let (ending, control) = (&ending, &control);
                scope.spawn(move || catcher.forward(streams.stdin, outbox, ending, control));
                handle
            });
            let result = sinks.receive(&control);
            drop((sinks, stop_input));
            if let Some(handle) = handle {
                handle.close();
            }
            result
        });
        match (result, ending.ended_by.into_inner()) {
            (Err(Ended::Protocol(_)), signal) if signal != 0 => Ok(Exit::Signal(signal)),
            (result, _) => result.map_err(|ended| match ended {
                Ended::Protocol(ProtocolError::Closed | ProtocolError::Truncated | ProtocolError::Io(_)) => {
                    self.machine.died().into()
                }
                Ended::Protocol(error) => MachineError::Protocol(error).into(),
                Ended::Run(error) => error,
            }),
        }
    }
}

fn restore(
    qemu: &Qemu,
    image: &HostImage<'_>,
    size: &HostSize,
    disk: &Disk,
    state: &File,
) -> Result<Machine, MachineError> {
    let mut machine = Machine::start(qemu, image.kernel, size, disk, &Start::Restore(state))?;
    machine.wait_ready(RESTORE_PATIENCE)?;
    Ok(machine)
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let line = error.to_string();
    error.source().map_or(line.clone(), |cause| format!("{line}: {}", chain(cause)))
}

/// Why nothing more is received.
enum Ended {
    Protocol(ProtocolError),
    Run(RunError),
}

/// Where what comes out goes.
struct Sinks<'a> {
    stdout: Box<dyn Write + 'a>,
    stderr: Box<dyn Write + 'a>,
    outputs: Vec<Box<dyn Write + 'a>>,
    /// Tells the sender of input that a frame has been taken.
    taken: Sender<()>,
}

impl Sinks<'_> {
    /// Carries output until the command has ended.
    fn receive(&mut self, control: &UnixStream) -> Result<Exit, Ended> {
        let mut frames = FrameReader::new(BufReader::with_capacity(256 << 10, control));
        loop {
            let message = frames.next().and_then(FromAgent::decode).map_err(Ended::Protocol)?;
            let (sink, bytes, what) = match message {
                FromAgent::Stdout(bytes) => (Some(&mut self.stdout), bytes, "standard output".to_owned()),
                FromAgent::Stderr(bytes) => (Some(&mut self.stderr), bytes, "standard error".to_owned()),
                FromAgent::Output(index, bytes) => {
                    (self.outputs.get_mut(index as usize), bytes, format!("output {index}"))
                }
                FromAgent::Exit(exit) => return Ok(exit),
                FromAgent::Failed(why) => return Err(Ended::Run(RunError::Agent(why.to_owned()))),
                FromAgent::StdinTaken => {
                    // The sender may have reached the end of its input.
                    let _ = self.taken.send(());
                    continue;
                }
                FromAgent::Ready => continue,
            };
            let written = sink.map_or(Ok(()), |sink| sink.write_all(bytes).and_then(|()| sink.flush()));
            written.map_err(|source| Ended::Run(RunError::Write { what, source }))?;
        }
    }
}

/// Sends standard input until it ends, `stopped` is closed or the host is gone: then the receiver says why.
fn send_input(
    stdin: Option<BorrowedFd<'_>>,
    stopped: &PipeReader,
    credit: &Receiver<()>,
    outbox: &Outbox<UnixStream>,
) {
    let send = |message: ToAgent<'_>| message.encode().and_then(|frame| outbox.send(&frame));
    let mut buffer = [0; STDIN_CHUNK];
    let mut under_way = 0;
    while let Some(stdin) = stdin {
        under_way -= credit.try_iter().count().min(under_way);
        if under_way == STDIN_WINDOW {
            match credit.recv() {
                Ok(()) => under_way -= 1,
                Err(_) => return,
            }
        }
        let mut fds = [PollFd::from_borrowed_fd(stdin, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        let [_, stop] = &fds;
        if !stop.revents().is_empty() {
            return;
        }
        match rustix::io::read(stdin, &mut buffer) {
            Err(Errno::INTR | Errno::AGAIN) => continue,
            // A terminal that hung up gives an error: that is an end too.
            Err(_) | Ok(0) => break,
            Ok(length) => {
                let sent = send(ToAgent::Stdin(buffer.get(..length).unwrap_or_default()));
                if sent.is_err() {
                    return;
                }
                under_way += 1;
            }
        }
    }
    // If the host is gone the receiver knows.
    let _ = send(ToAgent::StdinEnd);
}

/// What the thread for signals changes.
struct Ending {
    raw: Mutex<Option<RawMode>>,
    /// The signal that ended the host; 0 if none did.
    ended_by: AtomicI32,
}

/// This process's signals, from now until it is dropped.
struct Catcher {
    signals: Signals,
    /// Lets the next signal end this process.
    last_resort: Arc<AtomicBool>,
}

impl Catcher {
    const TO_END: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

    fn new() -> io::Result<Self> {
        let last_resort = Arc::new(AtomicBool::new(false));
        for signal in Self::TO_END {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&last_resort))?;
        }
        let signals = Signals::new(Self::TO_END.iter().chain(&[SIGWINCH]))?;
        Ok(Self { signals, last_resort })
    }

    /// Passes signals on until its handle is closed.
    fn forward(
        &mut self,
        stdin: Option<BorrowedFd<'_>>,
        outbox: &Outbox<UnixStream>,
        ending: &Ending,
        control: &UnixStream,
    ) {
        let mut asked: Option<Instant> = None;
        for signal in self.signals.forever() {
            let message = if signal == SIGWINCH {
                let size = stdin.and_then(|stdin| WindowSize::of(stdin.as_fd()).ok());
                size.map(ToAgent::WindowSize)
            } else {
                if asked.get_or_insert_with(Instant::now).elapsed() >= IMPATIENCE {
                    ending.ended_by.store(signal, Ordering::Relaxed);
                    ending.raw.lock().unwrap_or_else(PoisonError::into_inner).take();
                    self.last_resort.store(true, Ordering::Relaxed);
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
