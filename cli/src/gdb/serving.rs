//! Speaking with one gdb after the other.

use super::endpoint::Endpoint;
use super::guest::Guest;
use super::target::Debugged;
use super::wire::{PATIENCE, Stream, Wire};
use crate::control::Entrance;
use crate::say::note;
use anyhow::{Error, Result, bail};
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub, GdbStubError, MultiThreadStopReason};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The longest packet of gdb's that is taken, in bytes: gdb is told so.
const LONGEST_PACKET: usize = 16 << 10;

type State<'a> = GdbStubStateMachine<'a, Debugged, Wire>;

/// What of two is there first.
struct Ready {
    first: bool,
    second: bool,
}

/// Waits until one of two can be read, or for so long.
fn wait(first: BorrowedFd<'_>, second: BorrowedFd<'_>, time: Option<Duration>) -> Ready {
    let mut fds = [first, second].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    // Interrupted, it says of none that it is ready.
    let _ = poll(&mut fds, time.as_ref());
    let [first, second] = fds.map(|fd| !fd.revents().is_empty());
    Ready { first, second }
}

/// Serves those that come to `endpoint`, until that has `ended`.
pub(super) fn serve(endpoint: &Endpoint, entrance: &Entrance, ended: &OwnedFd) {
    loop {
        let Ready { first: is_over, second: has_come } = wait(ended.as_fd(), endpoint.as_fd(), None);
        if is_over {
            return;
        }
        let Some(stream) = has_come.then(|| endpoint.accept().ok()).flatten() else { continue };
        match one(stream, entrance, ended) {
            Err(error) if !error.is::<Gone>() => note(format_args!("gdb was left: {error:#}")),
            _ => {}
        }
    }
}

/// Serves one gdb to its end.
fn one(stream: Stream, entrance: &Entrance, ended: &OwnedFd) -> Result<()> {
    stream.settle()?;
    let mut wire = Wire::new(stream);
    // Nothing stands still for whoever only looks what is there.
    let Some(first) = greeting(&mut wire, ended)? else { return Ok(()) };
    let mut guest = Guest::over(entrance.join()?)?;
    guest.pause()?;
    let mut target = Debugged::new(guest);
    let mut packet = vec![0; LONGEST_PACKET];
    let stub = GdbStub::builder(wire).with_packet_buffer(&mut packet).build()?;
    let state = stub.run_state_machine(&mut target).map_err(|error| said(&error))?;
    match spoken(state, first, &mut target)? {
        // The guest is gone, or the server sees to what gdb has left.
        None | Some(DisconnectReason::TargetExited(_) | DisconnectReason::TargetTerminated(_)) => Ok(()),
        Some(DisconnectReason::Disconnect) => {
            target.points.remove_all(&mut target.guest);
            target.guest.resume()
        }
        Some(DisconnectReason::Kill) => target.guest.quit(),
    }
}

/// With what a gdb begins; nothing where it goes, or where that has `ended`.
fn greeting(wire: &mut Wire, ended: &OwnedFd) -> Result<Option<Vec<u8>>> {
    let Ready { first: is_over, second: has_said } = wait(ended.as_fd(), wire.stream.as_fd(), Some(PATIENCE));
    if is_over {
        return Ok(None);
    }
    if !has_said {
        bail!("it has said nothing");
    }
    let Ok(bytes) = wire.receive() else { return Ok(None) };
    match bytes.first() {
        Some(b'+' | b'-' | b'$' | 0x03) => Ok(Some(bytes)),
        _ => bail!("it does not speak as gdb does"),
    }
}

/// gdb has gone, amid what it was told.
#[derive(Debug, thiserror::Error)]
#[error("gdb has gone")]
struct Gone;

fn said(error: &GdbStubError<Error, std::io::Error>) -> Error {
    match error.is_connection_error() {
        true => Gone.into(),
        false => anyhow::anyhow!("{error}"),
    }
}

/// Speaks until one of both leaves, where gdb has said the `first` bytes. Says how gdb has taken leave, if it has.
fn spoken(mut state: State<'_>, first: Vec<u8>, target: &mut Debugged) -> Result<Option<DisconnectReason>> {
    let mut bytes = VecDeque::from(first);
    loop {
        state = match state {
            GdbStubStateMachine::Idle(mut idle) => {
                let Some(byte) = bytes.pop_front() else {
                    match heard(idle.borrow_conn(), target) {
                        Heard::Bytes(more) => bytes.extend(more),
                        Heard::Guest => {}
                        Heard::GuestEnded => return Ok(None),
                        Heard::GdbGone => return Ok(None),
                    }
                    state = idle.into();
                    continue;
                };
                idle.incoming_data(target, byte).map_err(|error| said(&error))?
            }
            GdbStubStateMachine::Running(mut running) => {
                if let Some(reason) = target.next_stop() {
                    running.report_stop(target, reason).map_err(|error| said(&error))?
                } else if let Some(byte) = bytes.pop_front() {
                    running.incoming_data(target, byte).map_err(|error| said(&error))?
                } else {
                    match heard(running.borrow_conn(), target) {
                        Heard::Bytes(more) => bytes.extend(more),
                        Heard::Guest => {}
                        Heard::GuestEnded => {
                            let exited = MultiThreadStopReason::Exited(0);
                            running.report_stop(target, exited).map_err(|error| said(&error))?;
                            return Ok(None);
                        }
                        Heard::GdbGone => return Ok(None),
                    }
                    running.into()
                }
            }
            GdbStubStateMachine::CtrlCInterrupt(interrupt) => {
                let reason = target.interrupt()?;
                interrupt.interrupt_handled(target, Some(reason)).map_err(|error| said(&error))?
            }
            GdbStubStateMachine::Disconnected(disconnected) => return Ok(Some(disconnected.get_reason())),
        };
    }
}

/// What has come.
enum Heard {
    /// From gdb.
    Bytes(Vec<u8>),
    /// From the guest's server.
    Guest,
    GuestEnded,
    GdbGone,
}

fn heard(wire: &mut Wire, target: &mut Debugged) -> Heard {
    let ready = match target.guest.has_more() {
        true => Ready { first: false, second: true },
        false => wait(wire.stream.as_fd(), target.guest.as_fd(), None),
    };
    if ready.second {
        return if target.guest.listen().is_ok() { Heard::Guest } else { Heard::GuestEnded };
    }
    match ready.first.then(|| wire.receive()) {
        None => Heard::Bytes(Vec::new()),
        Some(Ok(bytes)) => Heard::Bytes(bytes),
        Some(Err(_)) => Heard::GdbGone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn nobody_but_a_gdb_is_greeted() {
        let (ended, end) = rustix::pipe::pipe().unwrap();
        let said = |bytes: &[u8]| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(bytes).unwrap();
            drop(theirs);
            greeting(&mut Wire::new(Stream::Unix(ours)), &ended)
        };
        assert_eq!(said(b"").unwrap(), None);
        assert_eq!(said(b"+$qSupported#37").unwrap().unwrap(), b"+$qSupported#37");
        assert!(said(b"GET / HTTP/1.1\r\n\r\n").is_err() && said(b"\x16\x03\x01").is_err());
        let (ours, _theirs) = UnixStream::pair().unwrap();
        drop(end);
        assert_eq!(greeting(&mut Wire::new(Stream::Unix(ours)), &ended).unwrap(), None, "the run is over");
    }
}
