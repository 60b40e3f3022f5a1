//! System calls, made directly and counted.
//!
//! The counts are what a probe sees from outside, so nothing here goes through a library function that may call the
//! kernel a second time. A call counts when it is made, whether it succeeds or not.
#![expect(unsafe_code, reason = "system calls that std does not offer, or not one to one")]

use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::{c_char, c_int, c_long, c_ulong};

static OPENAT: AtomicU64 = AtomicU64::new(0);
static GETPPID: AtomicU64 = AtomicU64::new(0);
static EXECVE: AtomicU64 = AtomicU64::new(0);
static CLONE: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// System calls made so far by this program and its children, the shell's own excepted.
pub(crate) struct Totals {
    openat: u64,
    getppid: u64,
    execve: u64,
    clone: u64,
}

impl Totals {
    pub(crate) fn now() -> Self {
        let [openat, getppid, execve, clone] =
            [&OPENAT, &GETPPID, &EXECVE, &CLONE].map(|total| total.load(Relaxed));
        Self { openat, getppid, execve, clone }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { openat, getppid, execve, clone } = self;
        write!(f, "openat={openat} getppid={getppid} execve={execve} clone={clone}")
    }
}

/// Counts an open that is made after the totals are said.
pub(crate) fn count_open() {
    OPENAT.fetch_add(1, Relaxed);
}

/// Counts a thread started by the caller: `clone` is every new task, process or thread.
pub(crate) fn count_thread() {
    CLONE.fetch_add(1, Relaxed);
}

/// `-1` means that `errno` says why.
pub(crate) fn checked(result: c_long) -> io::Result<c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Opens a file with `O_*` flags: one `openat`.
pub(crate) fn open(path: &CStr, flags: c_int) -> io::Result<File> {
    count_open();
    open_uncounted(path, flags)
}

/// As [`open`], for one that [`count_open`] has counted already.
pub(crate) fn open_uncounted(path: &CStr, flags: c_int) -> io::Result<File> {
    // SAFETY: the path is NUL-terminated and outlives the call.
    let fd = checked(unsafe {
        libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, 0)
    })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it. Descriptors fit an int.
    Ok(unsafe { File::from_raw_fd(fd as c_int) })
}

/// Calls `getppid` `times` times.
pub(crate) fn getppid(times: u32) {
    for _ in 0..times {
        // SAFETY: takes nothing and touches no memory.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    GETPPID.fetch_add(times.into(), Relaxed);
}

/// The time-stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has one, and Linux lets programs read it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A child process of this one.
pub(crate) struct Child(c_int);

/// Starts a child that runs `body` and exits with what it returns.
///
/// Only this process may have one thread: the child is a copy of it, and runs on its own copy of the memory.
pub(crate) fn fork(body: impl FnOnce() -> c_int) -> io::Result<Child> {
    CLONE.fetch_add(1, Relaxed);
    // SAFETY: without CLONE_VM the child has its own copy of everything; the calls have no arguments in memory.
    let pid = checked(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })?;
    if pid == 0 {
        let code = body();
        // SAFETY: ends the child without running what the parent registered for its own exit.
        unsafe { libc::_exit(code) }
    }
    Ok(Child(pid as c_int))
}

/// Starts a child that executes `path` with `args` (the first is its name) and `env`, after `prepare` in the child.
/// It exits with 127 when the program cannot be executed.
pub(crate) fn spawn(path: &CStr, args: &[&CStr], env: &[&CStr], prepare: impl FnOnce()) -> io::Result<Child> {
    let vector = |strings: &[&CStr]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (args, env) = (vector(args), vector(env));
    // Counted here, because what the child counts stays in the child.
    EXECVE.fetch_add(1, Relaxed);
    fork(|| {
        prepare();
        // SAFETY: all strings are NUL-terminated, both vectors end in a null pointer, and they live in this frame.
        unsafe { libc::syscall(libc::SYS_execve, path.as_ptr(), args.as_ptr(), env.as_ptr()) };
        127
    })
}

impl Child {
    /// Its process id.
    pub(crate) fn pid(&self) -> c_int {
        self.0
    }

    /// Ends it by SIGKILL, wherever it is.
    pub(crate) fn kill(&self) -> io::Result<()> {
        // SAFETY: takes nothing from memory, and the child was not waited for yet, so that its id is its own.
        checked(unsafe { libc::kill(self.0, libc::SIGKILL) }.into())?;
        Ok(())
    }

    /// Waits for this child and returns its exit code, 128 and more for a signal. Other children that end meanwhile
    /// (orphans are given to process 1) are reaped.
    pub(crate) fn wait(self) -> io::Result<c_int> {
        loop {
            let mut status: c_int = 0;
            let null = std::ptr::null::<libc::rusage>();
            // SAFETY: `status` outlives the call, and a null rusage is allowed.
            let pid = checked(unsafe { libc::syscall(libc::SYS_wait4, -1, &raw mut status, 0, null) });
            match pid {
                Ok(pid) if pid == c_long::from(self.0) => {
                    return Ok(if libc::WIFEXITED(status) {
                        libc::WEXITSTATUS(status)
                    } else {
                        128 + libc::WTERMSIG(status)
                    });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Makes the console on descriptor 0 the controlling terminal of a new session, so that Ctrl-C and job control
/// reach its processes. Without a terminal there it changes nothing that matters.
pub(crate) fn own_the_console() {
    // SAFETY: neither call has arguments in memory.
    unsafe {
        libc::setsid();
        libc::ioctl(0, libc::TIOCSCTTY, 1);
    }
}

/// The CPUs that this process may run on: all that are online, unless someone restricted it.
pub(crate) fn cpus() -> io::Result<Vec<usize>> {
    // SAFETY: an all-zero set is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is writable and of the size that is said.
    checked(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }.into())?;
    let most = 8 * size_of_val(&set);
    // SAFETY: every index is within the set.
    Ok((0..most).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// Lets all others run before the calling thread.
pub(crate) fn give_way() -> io::Result<()> {
    const LEAST: c_int = 19;
    // SAFETY: takes numbers and touches no memory. On Linux the calling thread alone is meant.
    checked(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LEAST) }.into())?;
    Ok(())
}

/// Binds the calling thread to one CPU, and makes sure that it runs there.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero set is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's CPU comes from `cpus`, so it is within the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is readable and of the size that is said.
    checked(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }.into())?;
    // SAFETY: takes nothing and touches no memory of ours.
    let here = unsafe { libc::sched_getcpu() };
    if usize::try_from(here) == Ok(cpu) {
        Ok(())
    } else {
        Err(io::Error::other(format!("pinned to CPU {cpu}, but running on CPU {here}")))
    }
}

/// Looks a path up: one `newfstatat`.
pub(crate) fn stat(path: &CStr) -> io::Result<()> {
    // SAFETY: all-zero is a valid stat record.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated, the record is writable, and both outlive the call.
    checked(unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path.as_ptr(), &raw mut stat, 0) })?;
    Ok(())
}

/// Lists an open directory to its end; returns how many `getdents64` that took.
pub(crate) fn list(directory: &File) -> io::Result<u64> {
    let mut buffer = [0_u8; 4096];
    let mut calls = 0;
    loop {
        calls += 1;
        let fd = directory.as_raw_fd();
        // SAFETY: the buffer is writable and of the size that is said.
        let bytes =
            checked(unsafe { libc::syscall(libc::SYS_getdents64, fd, buffer.as_mut_ptr(), buffer.len()) })?;
        if bytes == 0 {
            return Ok(calls);
        }
    }
}

extern "C" fn count_signal(_: c_int) {
    SIGNALS.fetch_add(1, Relaxed);
}

/// Sends `times` signals to this process; returns how many its handler saw.
pub(crate) fn signal_self(times: u32) -> io::Result<u64> {
    // SAFETY: all-zero is a valid record: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = count_signal as extern "C" fn(c_int) as usize;
    // SAFETY: the record is valid and the handler only adds to an atomic, which is allowed in a handler.
    checked(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) }.into())?;
    let before = SIGNALS.load(Relaxed);
    for _ in 0..times {
        // SAFETY: no arguments in memory. With one thread, the signal is handled before the call returns.
        checked(unsafe { libc::kill(libc::getpid(), libc::SIGUSR1) }.into())?;
    }
    Ok(SIGNALS.load(Relaxed) - before)
}

/// Sleeps until a signal is handled; returns an exit code for a child.
pub(crate) fn pause() -> c_int {
    // SAFETY: takes nothing and touches no memory.
    unsafe { libc::syscall(libc::SYS_pause) };
    1
}

/// Mounts a file system that needs no device.
pub(crate) fn mount(kind: &CStr, directory: &CStr) -> io::Result<()> {
    let (flags, data): (c_ulong, _) = (0, std::ptr::null());
    // SAFETY: the strings are NUL-terminated and outlive the call; no data is passed.
    checked(unsafe { libc::mount(kind.as_ptr(), directory.as_ptr(), kind.as_ptr(), flags, data) }.into())?;
    Ok(())
}

/// Unmounts what was mounted last on a directory.
pub(crate) fn unmount(directory: &CStr) -> io::Result<()> {
    // SAFETY: the path is NUL-terminated and outlives the call.
    checked(unsafe { libc::umount2(directory.as_ptr(), 0) }.into())?;
    Ok(())
}

/// Waits until the terminal has taken what was written to standard output, if it is one.
pub(crate) fn drain_stdout() {
    // SAFETY: the argument is no memory.
    unsafe { libc::tcdrain(libc::STDOUT_FILENO) };
}

/// Writes everything out and powers off (`RB_POWER_OFF`) or restarts (`RB_AUTOBOOT`). Returns only on failure.
pub(crate) fn reboot(command: c_int) -> io::Error {
    // SAFETY: no arguments in memory; process 1 has nothing left to lose.
    unsafe {
        libc::sync();
        libc::reboot(command);
    }
    io::Error::last_os_error()
}

/// A path for the calls above; one with a NUL inside cannot be written here.
pub(crate) fn c_path(path: &str) -> io::Result<CString> {
    CString::new(path).map_err(io::Error::other)
}
