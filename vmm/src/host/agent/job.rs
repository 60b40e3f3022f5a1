//! Runs one command: its files, its pipes or terminal, its signals.

use super::super::protocol::{
    Arg, CommandExit, DiskFile, FrameReader, FromAgent, Job, Outbox, Program, ProtocolError, STDIN_WINDOW,
    ToAgent,
};
use super::super::spawn;
use super::AgentError;
use super::port::AgentPort;
use crate::terminal::{CommandTerminal, WindowSize};
use rustix::fs::OFlags;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

const DISK: &str = "/dev/vda";
const FILES: &str = "/run/files";
/// The port's driver cuts a write after 32 KiB: a frame with this much in it, and its header, is one write.
pub(super) const CHUNK: usize = (32 << 10) - 16;

type Frames = FrameReader<BufReader<AgentPort>>;

/// Runs `job` until it has ended and all it printed has been sent.
pub(super) fn run(
    job: &Job,
    frames: Frames,
    outbox: &Arc<Outbox<AgentPort>>,
) -> Result<CommandExit, AgentError> {
    let files = job.files.iter().enumerate().map(|(index, file)| unpack(index, file));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let mut pumps = Pumps { outbox: Arc::clone(outbox), closed: Arc::default(), threads: Vec::new() };
    let outputs = (0..job.outputs).map(|index| pumps.output(index)).collect::<io::Result<Vec<_>>>();
    let outputs = outputs.map_err(AgentError::file("make a pipe for", "an output"))?;

    let program = match &job.program {
        Program::ThisBinary => Some(PathBuf::from("/proc/self/exe")),
        Program::File(index) => files.get(*index).cloned(),
        Program::Named(name) => Some(PathBuf::from(name)),
    };
    let program = program.unwrap_or_default();
    let mut command = Command::new(&program);
    let word = |arg: &Arg| -> Option<OsString> {
        match arg {
            Arg::Text(text) => Some(text.clone()),
            Arg::File(index) => files.get(*index).map(Into::into),
            Arg::Output(index) => {
                outputs.get(*index).map(|pipe| format!("/dev/fd/{}", pipe.as_raw_fd()).into())
            }
        }
    };
    command.env_clear().envs(job.env.iter().filter_map(|(name, value)| Some((name, word(value)?))));
    if job.program == Program::ThisBinary {
        std::os::unix::process::CommandExt::arg0(&mut command, "vmm");
    }
    command.args(job.args.iter().filter_map(word));
    if let Some(folder) = &job.folder {
        std::env::set_current_dir(folder).map_err(AgentError::file("change to", folder))?;
    }
    let streams =
        pumps.streams(&mut command, job.terminal).map_err(AgentError::file("make streams for", &program))?;
    let child = spawn::in_own_session(command, streams.controlling, matches!(job.program, Program::Named(_)));
    let mut child = match (child, &job.program) {
        (Ok(child), _) => child,
        (Err(error), Program::Named(name)) => {
            let words = format!("vmm: {} cannot be run: {error}\n", name.display());
            outbox.send(&FromAgent::Stderr(words.as_bytes()).encode()?)?;
            return Ok(CommandExit::not_run(&error));
        }
        (Err(error), _) => return Err(AgentError::file("start", program)(error)),
    };
    drop(outputs);

    let group = Pid::from_child(&child);
    let input = streams.input.or_else(|| child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe))));
    let running = Running { group, terminal: streams.terminal, input, closed: Arc::clone(&pumps.closed) };
    let taken = Arc::clone(outbox);
    thread::spawn(move || obey(frames, running, taken));
    let status = child.wait().map_err(AgentError::file("wait for", &program))?;
    // Whatever it left behind would keep its streams open.
    let _ = kill_process_group(group, Signal::KILL);
    pumps.finish();
    Ok(status.into())
}

/// Copies an input file from the disk into a folder of its own, so that it keeps its name.
fn unpack(index: usize, file: &DiskFile) -> Result<PathBuf, AgentError> {
    let folder = Path::new(FILES).join(index.to_string());
    fs::create_dir_all(&folder).map_err(AgentError::file("create", &folder))?;
    let path = folder.join(&file.name);
    let copy = OpenOptions::new().write(true).create_new(true).mode(file.mode).open(&path);
    copy.and_then(|copy| copy_from_disk(file, copy)).map_err(AgentError::file("unpack", &path))?;
    Ok(path)
}

/// Copies a file from the disk. The disk writes to the buffer by itself: on an emulated processor that is several times faster
/// than reading through the kernel's cache.
fn copy_from_disk(file: &DiskFile, mut copy: File) -> io::Result<()> {
    const PIECE: usize = 1 << 20;
    /// What the disk reads begins and ends at multiples of this, in memory as well.
    const ALIGNMENT: usize = 4096;
    let disk = OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(DISK)?;
    let mut buffer = vec![0; PIECE + ALIGNMENT];
    let start = buffer.as_ptr().align_offset(ALIGNMENT);
    let buffer = buffer.get_mut(start..start + PIECE).ok_or(io::ErrorKind::OutOfMemory)?;
    let (mut at, end) = (file.offset, file.offset + file.length);
    while at < end {
        let left = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        let length = left.next_multiple_of(ALIGNMENT);
        disk.read_exact_at(buffer.get_mut(..length).unwrap_or_default(), at)?;
        copy.write_all(buffer.get(..left).unwrap_or_default())?;
        at += left as u64;
    }
    Ok(())
}

/// The threads that carry output, one a stream.
struct Pumps {
    outbox: Arc<Outbox<AgentPort>>,
    closed: Arc<Closed>,
    threads: Vec<JoinHandle<()>>,
}

/// What nobody outside reads any more: its pipe is closed, so that a command that writes more is told by a signal.
#[derive(Default)]
struct Closed {
    stdout: AtomicBool,
    stderr: AtomicBool,
}

/// What is left of a command's streams for us to use.
struct OurEnds {
    /// Where input goes, unless that is the child's own pipe.
    input: Option<File>,
    /// The terminal's master, for its size.
    terminal: Option<OwnedFd>,
    /// The terminal that will be the command's own.
    controlling: Option<OwnedFd>,
}

impl Pumps {
    /// A pipe for output number `index`; the command inherits its end.
    fn output(&mut self, index: usize) -> io::Result<PipeWriter> {
        let (reader, writer) = io::pipe()?;
        fcntl_setfd(&writer, FdFlags::empty())?;
        let index = u32::try_from(index).map_err(io::Error::other)?;
        self.carry(reader, |_| false, move |bytes| FromAgent::Output(index, bytes).encode());
        Ok(writer)
    }

    /// Connects the three standard streams.
    fn streams(&mut self, command: &mut Command, terminal: Option<CommandTerminal>) -> io::Result<OurEnds> {
        let (on_terminal, ends) = match terminal {
            Some(terminal) => self.terminal(command, terminal)?,
            None => {
                command.stdin(Stdio::piped());
                ((false, false), OurEnds { input: None, terminal: None, controlling: None })
            }
        };
        if !on_terminal.0 {
            let (reader, writer) = io::pipe()?;
            command.stdout(writer);
            let is_closed = |closed: &Closed| closed.stdout.load(Ordering::Relaxed);
            self.carry(reader, is_closed, |bytes| FromAgent::Stdout(bytes).encode());
        }
        if !on_terminal.1 {
            let (reader, writer) = io::pipe()?;
            command.stderr(writer);
            let is_closed = |closed: &Closed| closed.stderr.load(Ordering::Relaxed);
            self.carry(reader, is_closed, |bytes| FromAgent::Stderr(bytes).encode());
        }
        Ok(ends)
    }

    /// Connects standard input, and the outputs that are to be on it, to a new terminal.
    fn terminal(
        &mut self,
        command: &mut Command,
        terminal: CommandTerminal,
    ) -> io::Result<((bool, bool), OurEnds)> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        unlockpt(&master)?;
        let peer =
            ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        resize(&master, terminal.size)?;
        command.stdin(peer.try_clone()?);
        if terminal.stdout {
            command.stdout(peer.try_clone()?);
        }
        if terminal.stderr {
            command.stderr(peer.try_clone()?);
        }
        let printed = File::from(master.try_clone()?);
        match (terminal.stdout, terminal.stderr) {
            (false, true) => self.carry(printed, |_| false, |bytes| FromAgent::Stderr(bytes).encode()),
            // What is echoed belongs on the terminal, which outside is where standard output goes.
            _ => self.carry(printed, |_| false, |bytes| FromAgent::Stdout(bytes).encode()),
        }
        let input = Some(File::from(master.try_clone()?));
        let ends = OurEnds { input, terminal: Some(master), controlling: Some(peer) };
        Ok(((terminal.stdout, terminal.stderr), ends))
    }

    /// Sends what comes out of `source`, as messages that `wrap` makes, until its end, or until it `is_closed`.
    fn carry<F>(&mut self, mut source: impl Read + Send + 'static, is_closed: fn(&Closed) -> bool, wrap: F)
    where
        F: Fn(&[u8]) -> Result<Vec<u8>, ProtocolError> + Send + 'static,
    {
        let (outbox, closed) = (Arc::clone(&self.outbox), Arc::clone(&self.closed));
        self.threads.push(thread::spawn(move || {
            let mut buffer = vec![0; CHUNK];
            // A terminal's end is an error: nobody has it open any more.
            while let Ok(length) = source.read(&mut buffer) {
                let bytes = buffer.get(..length).unwrap_or_default();
                if bytes.is_empty()
                    || is_closed(&closed)
                    || wrap(bytes).and_then(|frame| outbox.send(&frame)).is_err()
                {
                    break;
                }
            }
        }));
    }

    /// Waits until all has been sent.
    fn finish(self) {
        for thread in self.threads {
            // A thread that panicked has said so on the console.
            let _ = thread.join();
        }
    }
}

fn resize(terminal: &OwnedFd, size: WindowSize) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(terminal, size)?)
}

/// A command that runs, as what comes in reaches it.
struct Running {
    group: Pid,
    terminal: Option<OwnedFd>,
    input: Option<File>,
    closed: Arc<Closed>,
}

/// Does what comes in while the command runs. Ends with the machine.
fn obey(mut frames: Frames, command: Running, outbox: Arc<Outbox<AgentPort>>) {
    let Running { group, terminal, input, closed } = command;
    let (queue, typed) = sync_channel(STDIN_WINDOW);
    let mut queue: Option<SyncSender<Vec<u8>>> = Some(queue);
    thread::spawn(move || feed(input, &typed, &outbox));
    while let Ok(message) = frames.next().and_then(ToAgent::decode) {
        match message {
            // The window has room for all that may be under way.
            ToAgent::Stdin(bytes) => {
                let queued = queue.as_ref().map(|queue| queue.try_send(bytes.to_vec()));
                if queued.is_some_and(|queued| queued.is_err()) {
                    break;
                }
            }
            ToAgent::StdinEnd => queue = None,
            ToAgent::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // It may have ended already.
                    let _ = kill_process_group(group, signal);
                }
            }
            ToAgent::WindowSize(size) => {
                // The kernel tells the command; a terminal that is closed needs no size.
                let _ = terminal.as_ref().map(|terminal| resize(terminal, size));
            }
            ToAgent::StdoutClosed => closed.stdout.store(true, Ordering::Relaxed),
            ToAgent::StderrClosed => closed.stderr.store(true, Ordering::Relaxed),
            ToAgent::Hello | ToAgent::Run(_) => break,
        }
    }
}

/// Writes input to the command, at the pace at which it reads.
fn feed(mut input: Option<File>, typed: &Receiver<Vec<u8>>, outbox: &Outbox<AgentPort>) {
    for bytes in typed {
        if input.as_mut().is_some_and(|input| input.write_all(&bytes).is_err()) {
            // The command closed its input: the rest goes nowhere.
            input = None;
        }
        let taken = FromAgent::StdinTaken.encode().and_then(|frame| outbox.send(&frame));
        if taken.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
