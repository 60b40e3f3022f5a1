//! Carries a command's streams between the control port and ours.

use super::emulated::RunError;
use super::protocol::{
    Exit, FrameReader, FromAgent, Outbox, ProtocolError, STDIN_CHUNK, STDIN_WINDOW, ToAgent,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::{BufReader, PipeReader, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender};

/// Why nothing more is received.
pub(super) enum Ended {
    Protocol(ProtocolError),
    Run(RunError),
}

/// Where what comes out goes.
pub(super) struct Sinks<'a> {
    pub(super) stdout: Box<dyn Write + 'a>,
    pub(super) stderr: Box<dyn Write + 'a>,
    pub(super) outputs: Vec<Box<dyn Write + 'a>>,
    /// Tells the sender of input that a frame has been taken.
    pub(super) taken: Sender<()>,
}

impl Sinks<'_> {
    /// Carries output until the command has ended.
    pub(super) fn receive(&mut self, control: &UnixStream) -> Result<Exit, Ended> {
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
pub(super) fn send_input(
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
