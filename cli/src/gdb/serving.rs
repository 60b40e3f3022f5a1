//! Speaking with one gdb after the other.

use super::endpoint::Endpoint;
use super::guest::Guest;
use super::target::Debugged;
use super::wire::{Stream, Wire};
use crate::control::Entrance;
use crate::say::note;
use anyhow::{Error, Result};
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub, GdbStubError, MultiThreadStopReason};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

type State<'a> = GdbStubStateMachine<'a, Debugged, Wire>;

/// What of two is there first.
struct Ready {
    first: bool,
    second: bool,
}

/// Waits until one of two can be read.
fn wait(first: BorrowedFd<'_>, second: BorrowedFd<'_>) -> Ready {
    let mut fds = [first, second].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    // Interrupted, it says of none that it is ready.
    let _ = poll(&mut fds, None);
    let [first, second] = fds.map(|fd| !fd.revents().is_empty());
    Ready { first, second }
}

/// Serves those that come to `endpoint`, until that has `ended`.
pub(super) fn serve(endpoint: &Endpoint, entrance: &Entrance, ended: &OwnedFd) {
    loop {
        let Ready { first: is_over, second: has_come } = wait(ended.as_fd(), endpoint.as_fd());
        if is_over {
            return;
        }
        let Some(stream) = has_come.then(|| endpoint.accept().ok()).flatten() else { continue };
        if let Err(error) = one(stream, entrance) {
            note(format_args!("gdb was left: {error:#}"));
        }
    }
}

/// Serves one gdb to its end.
fn one(stream: Stream, entrance: &Entrance) -> Result<()> {
    stream.settle()?;
    let mut guest = Guest::over(entrance.join()?)?;
    guest.pause()?;
    let mut target = Debugged::new(guest);
    let stub = GdbStub::new(Wire::new(stream));
    let state = stub.run_state_machine(&mut target).map_err(|error| said(&error))?;
    match spoken(state, &mut target)? {
        // The guest is gone.
        None | Some(DisconnectReason::TargetExited(_) | DisconnectReason::TargetTerminated(_)) => Ok(()),
        Some(DisconnectReason::Disconnect) => {
            target.points.remove_all(&mut target.guest);
            target.guest.resume()
        }
        Some(DisconnectReason::Kill) => target.guest.quit(),
    }
}

fn said(error: &GdbStubError<Error, std::io::Error>) -> Error {
    anyhow::anyhow!("{error}")
}

/// Speaks until one of both leaves. Says how, where it was gdb.
fn spoken(mut state: State<'_>, target: &mut Debugged) -> Result<Option<DisconnectReason>> {
    let mut bytes = VecDeque::new();
    loop {
        state = match state {
            GdbStubStateMachine::Idle(mut idle) => {
                let Some(byte) = bytes.pop_front() else {
                    match heard(idle.borrow_conn(), target) {
                        Heard::Bytes(more) => bytes.extend(more),
                        Heard::Guest => {}
                        Heard::GuestEnded => return Ok(None),
                        Heard::GdbGone => return Ok(Some(DisconnectReason::Disconnect)),
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
                        Heard::GdbGone => return Ok(Some(DisconnectReason::Disconnect)),
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
        false => wait(wire.stream.as_fd(), target.guest.as_fd()),
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
