//! The two things a child must do between `fork` and `exec`.
#![allow(unsafe_code, reason = "`pre_exec` is unsafe: what runs there must be async-signal-safe")]

use super::processor::Processor;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, getppid, ioctl_tiocsctty, set_parent_process_death_signal, setsid};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// Starts `command` with `inherit` open in it under the same numbers, on `processor` of this machine alone. The kernel
/// kills it when the **thread** that called this ends, however it ends.
///
/// One processor, because QEMU's threads race when they run side by side. What was seen: guests that took one timer
/// interrupt inside another, with interrupts disabled, and died; on one CPU, storms of hits did not bring it about.
/// What QEMU's structure suggests: a thread that raises an interrupt asks the emulated processor to leave its loop a
/// moment later, and if that processor has meanwhile entered a guest with an injected interrupt, it delivers that
/// interrupt twice. Threads that take turns hardly ever meet in that moment. For the same reason
/// the machine inside has one processor: there are no others whose requests interrupt it.
///
/// # Errors
/// That of the system call that failed.
pub(super) fn bound_to_us(
    mut command: Command,
    inherit: Vec<OwnedFd>,
    processor: &Processor,
) -> io::Result<Child> {
    let mut here = CpuSet::new();
    here.set(processor.number());
    let parent = getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            // We were gone before the kernel was asked.
            return Err(Errno::SRCH.into());
        }
        sched_setaffinity(None, &here)?;
        for fd in &inherit {
            fcntl_setfd(fd, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: the closure makes only system calls, on descriptors that it owns; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Starts `command` with names of the system of its own, where the kernel has such: what the kernel does for it and its children
/// is known by that ([`Scope::Command`](probe_engine::linux::scope::Scope)).
///
/// # Errors
/// That of the system call that failed.
pub(crate) fn told_apart(mut command: Command) -> io::Result<Child> {
    // SAFETY: the closure makes only a system call; it takes no lock and allocates nothing.
    unsafe {
        command.pre_exec(|| {
            unshare_names();
            Ok(())
        });
    }
    command.spawn()
}

/// Gives this process, which has one thread, names of the system of its own.
fn unshare_names() {
    // SAFETY: the child that was forked has one thread, and shares nothing that this changes.
    let _ = unsafe { libc::unshare(libc::CLONE_NEWUTS) };
}

/// Starts `command` as the leader of a session of its own, with `terminal`, if there is one, as its controlling
/// terminal. Its process group has its process id. One that is to be `apart` is [told apart](told_apart).
///
/// # Errors
/// That of the system call that failed.
pub(super) fn in_own_session(
    mut command: Command,
    terminal: Option<OwnedFd>,
    apart: bool,
) -> io::Result<Child> {
    let prepare = move || {
        setsid()?;
        if let Some(terminal) = &terminal {
            ioctl_tiocsctty(terminal.as_fd())?;
        }
        if apart {
            unshare_names();
        }
        Ok(())
    };
    // SAFETY: the closure makes only system calls, on a descriptor that it owns; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}
