//! Which system calls a thread may still make once it works for a guest (seccomp,
//! Documentation/userspace-api/seccomp_filter.rst).
//!
//! A guest that finds a way to run code of its own in a thread of ours can then start no program, open no file, reach no
//! network and trace no process. Each kind of thread has a [list](lists) of what it needs. A call that is on no list ends the
//! process with a [sentence](refused) and exit code 125; a few that C's library makes where it can do without are answered
//! with ENOSYS, as by a kernel that has none.

mod lists;
mod refused;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch};
use std::collections::BTreeMap;
use std::io;
use std::thread;

/// What a thread does, and with that what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs a vCPU, with the handlers of probes.
    Vcpu,
    /// Serves queues of a virtio device.
    Device,
    /// Attends to a guest: its probes, its console, its command's streams. It may start threads.
    Control,
    /// Serves files of folders that are already open.
    Files {
        /// Whether the guest may change some of them.
        writable: bool,
    },
    /// Reads files of folders, which the guest names.
    Names,
    /// Makes new files in a folder that is open, and opens none that is there. It may start threads.
    Keeper,
}

/// The thread could not be confined, though the kernel can.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// The handler for calls that are refused was not installed.
    #[error("the signal of refused system calls cannot be caught")]
    Handler(#[source] vmm_sys_util::errno::Error),
    /// The list is none.
    #[error("the list of system calls makes no filter")]
    List(#[from] seccompiler::BackendError),
    /// The kernel refused it.
    #[error("the kernel refused a filter of system calls")]
    Kernel(#[from] seccompiler::Error),
}

/// From now on this thread, with those that it starts, makes the system calls of its `role` and no others. For good: so that
/// its process should end when its work does. Says whether that is in force: not where the kernel has no seccomp, or a container
/// lets nobody have it.
///
/// # Errors
/// [`ConfineError`].
pub fn this_thread(role: Role) -> Result<bool, ConfineError> {
    refused::report().map_err(ConfineError::Handler)?;
    let [absent, allowed] = programs(role)?;
    // The second one refuses filters.
    Ok(apply(&absent)? && apply(&allowed)?)
}

/// From now on no thread of this process starts a program, makes a connection, touches another process, or makes code. For good:
/// what follows is the guest, and the end of the process. Says whether that is in force, as [`this_thread`] does.
///
/// A thread that is confined by itself is so on top of this, and one that is not, as that which runs a session, can still open
/// files.
///
/// # Errors
/// [`ConfineError`].
pub fn whole_process() -> Result<bool, ConfineError> {
    refused::report().map_err(ConfineError::Handler)?;
    let absent = program([(libc::SYS_clone3, vec![])].into(), ABSENT, SeccompAction::Allow)?;
    let refused = program(lists::refused_to_all()?, SeccompAction::Trap, SeccompAction::Allow)?;
    Ok(in_force(seccompiler::apply_filter_all_threads(&absent))?
        && in_force(seccompiler::apply_filter_all_threads(&refused))?
        && in_force(seccompiler::apply_filter_all_threads(&one_table()))?)
}

/// The filter that refuses calls of [another table](lists::X32).
fn one_table() -> BpfProgram {
    /// The instructions of include/uapi/linux/bpf_common.h, and where `struct seccomp_data` has the call's number.
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_AT_LEAST: u16 = 0x35;
    const RETURN: u16 = 0x06;
    const NUMBER: u32 = 0;
    let instruction = |code, jt, k| seccompiler::sock_filter { code, jt, jf: 0, k };
    vec![
        instruction(LOAD_WORD, 0, NUMBER),
        instruction(JUMP_IF_AT_LEAST, 1, lists::X32),
        instruction(RETURN, 0, SeccompAction::Allow.into()),
        instruction(RETURN, 0, SeccompAction::Trap.into()),
    ]
}

/// As [`this_thread`], where this was asked for. The process ends where it cannot be done.
pub fn this_thread_if(asked: bool, role: Role) {
    if asked && let Err(error) = this_thread(role) {
        refused::end(format_args!("a thread cannot be confined: {error}"));
    }
}

/// Whether this kernel filters system calls: tried by a thread.
///
/// # Errors
/// When the thread could not be started or confined.
pub fn is_in_force() -> io::Result<bool> {
    let thread = thread::Builder::new().spawn(|| -> io::Result<bool> {
        let is_said = this_thread(Role::Device).map_err(io::Error::other)?;
        // The list has no files to open.
        let is_refused = std::fs::File::open("/").is_err_and(|e| e.raw_os_error() == Some(libc::ENOSYS));
        Ok(is_said && is_refused)
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// The filter of calls that are answered with ENOSYS, and that of all that are refused.
fn programs(role: Role) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    Ok([
        program(lists::absent(role)?, ABSENT, SeccompAction::Allow)?,
        program(lists::allowed(role)?, SeccompAction::Allow, SeccompAction::Trap)?,
    ])
}

/// As by a kernel that has no such call.
const ABSENT: SeccompAction = SeccompAction::Errno(libc::ENOSYS as u32);

/// The filter by which what is on the list gets `listed`, and all else `otherwise`.
fn program(
    list: BTreeMap<i64, Vec<SeccompRule>>,
    listed: SeccompAction,
    otherwise: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(list, otherwise, listed, TargetArch::x86_64)?.try_into()
}

fn apply(program: &BpfProgram) -> Result<bool, seccompiler::Error> {
    in_force(seccompiler::apply_filter(program))
}

/// Whether a filter is in force that was to be.
fn in_force(applied: Result<(), seccompiler::Error>) -> Result<bool, seccompiler::Error> {
    match applied {
        Ok(()) => Ok(true),
        // seccomp(2): the kernel was built without it. A container's own filter says EPERM.
        Err(seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error))
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EPERM)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
