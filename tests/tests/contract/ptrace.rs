//! A small ptrace(2) harness: the system calls of one thread between two marks.
#![expect(
    unsafe_code,
    reason = "ptrace and waitpid are libc's, and a child is prepared between fork and exec"
)]

use libc::{c_int, pid_t};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr::null_mut;

/// A system call as it is entered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// `SYS_*`.
    pub(crate) number: i64,
    /// Its second argument: of an ioctl, the request.
    pub(crate) request: u64,
}

/// What became of a traced program.
pub(crate) struct Traced {
    /// Its exit code; none when a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it printed.
    pub(crate) said: String,
    /// The system calls of a thread between its [`begin`] and its [`end`]; none when the end is missing.
    pub(crate) calls: Option<Vec<Call>>,
}

/// In the traced program: from here on, each system call of this thread is seen.
pub(crate) fn begin() {
    // SAFETY: takes nothing from memory. The tracer swallows the signal.
    assert_eq!(unsafe { libc::raise(BEGIN) }, 0);
}

/// In the traced program: up to here.
pub(crate) fn end() {
    // SAFETY: takes nothing from memory; what it returns is of no use.
    unsafe { libc::syscall(END) };
}

const BEGIN: c_int = libc::SIGUSR1;
/// A system call that no program of ours makes for its own sake.
const END: i64 = libc::SYS_getpgrp;

/// Runs `command` to its end. Its output has to fit a pipe. Outside of the marks all threads run at full speed.
#[expect(clippy::zombie_processes, reason = "it is reaped here, by `wait`")]
pub(crate) fn trace(command: &mut Command) -> Traced {
    // SAFETY: `trace_me` makes one system call, which is allowed between fork and exec.
    unsafe { command.pre_exec(trace_me) };
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let main = pid_t::try_from(child.id()).unwrap();
    // The first stop is behind the exec.
    let (_, status) = wait();
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SETOPTIONS, main, options as usize);
    request(libc::PTRACE_CONT, main, 0);
    // Between its marks a thread is stopped at each system call, whatever signals come.
    let mut watched = None;
    let (mut calls, mut ended) = (Vec::new(), false);
    let code = loop {
        let (thread, status) = wait();
        if !libc::WIFSTOPPED(status) {
            if thread == main {
                break libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
            }
            continue;
        }
        let (how, signal) = match libc::WSTOPSIG(status) {
            BEGIN => {
                watched = Some(thread);
                (libc::PTRACE_SYSCALL, 0)
            }
            SYSTEM_CALL => {
                let call = entered(thread);
                ended = call.as_ref().is_some_and(|call| call.number == END);
                calls.extend(call.filter(|_| !ended));
                (if ended { libc::PTRACE_CONT } else { libc::PTRACE_SYSCALL }, 0)
            }
            // A new thread's first stop, and its parent's stop at its birth.
            libc::SIGSTOP | libc::SIGTRAP => (libc::PTRACE_CONT, 0),
            signal if watched == Some(thread) && !ended => (libc::PTRACE_SYSCALL, signal),
            signal => (libc::PTRACE_CONT, signal),
        };
        request(how, thread, signal as usize);
    };
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    Traced { code, said, calls: ended.then_some(calls) }
}

/// What PTRACE_O_TRACESYSGOOD makes of SIGTRAP at a system call.
const SYSTEM_CALL: c_int = libc::SIGTRAP | 0x80;

fn trace_me() -> io::Result<()> {
    // SAFETY: PTRACE_TRACEME ignores its other arguments.
    match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The next stop or end of a thread that this thread traces, and of no child of another test's thread.
fn wait() -> (pid_t, c_int) {
    let mut status = 0;
    // SAFETY: the status is writable and outlives the call.
    let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
    assert!(thread > 0, "{}", io::Error::last_os_error());
    (thread, status)
}

/// A request that writes no memory of ours.
fn request(what: libc::c_uint, thread: pid_t, data: usize) {
    // SAFETY: `data` is options or a signal, never an address.
    let done = unsafe { libc::ptrace(what, thread, null_mut::<u8>(), data) };
    // A thread that was killed while it was stopped shows its end by `wait`.
    let gone = done == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    assert!(done == 0 || gone, "{}", io::Error::last_os_error());
}

/// The system call that a stopped thread enters; none when it leaves one.
fn entered(thread: pid_t) -> Option<Call> {
    // SAFETY: all-zero is a valid record of this plain type.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    // SAFETY: the record is writable and of the size that is said.
    let length =
        unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size_of_val(&info), &raw mut info) };
    if length <= 0 || info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: `op` says that this is the member that was written.
    let entry = unsafe { info.u.entry };
    let [_, request, ..] = entry.args;
    Some(Call { number: entry.nr.cast_signed(), request })
}
