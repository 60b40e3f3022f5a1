//! What a confined thread may do, and what becomes of a process that does something else.
#![allow(unsafe_code, reason = "system calls are made as they are")]

use super::*;
use crate::terminal::RawMode;
use crate::terminal::tests::terminal;
use rustix::termios::{LocalModes, tcgetattr};
use std::env;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const ROLES: [Role; 7] = [
    Role::Vcpu,
    Role::Device,
    Role::Control,
    Role::Files { writable: false },
    Role::Files { writable: true },
    Role::Names,
    Role::Keeper,
];

/// Names the case that a child is to carry out.
const CASE: &str = "VMM_CONFINE_CASE";

/// Has a process of its own carry out `case`.
fn child(case: &str) -> Output {
    child_with(Stdio::null(), case)
}

/// The same, with this standard input.
fn child_with(stdin: impl Into<Stdio>, case: &str) -> Output {
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "--nocapture", "confine::tests::the_child"]);
    child.env(CASE, case).stdin(stdin).output().unwrap()
}

/// Calls that no thread makes: a program, a network, another process, a mount, code.
fn refused() -> Vec<(i64, [usize; 6])> {
    let exec = libc::PROT_READ | libc::PROT_EXEC;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    vec![
        (libc::SYS_execve, [0; 6]),
        (libc::SYS_execveat, [0; 6]),
        (libc::SYS_socket, [1, 1, 0, 0, 0, 0]),
        (libc::SYS_connect, [0; 6]),
        (libc::SYS_ptrace, [0; 6]),
        (libc::SYS_process_vm_writev, [0; 6]),
        (libc::SYS_mount, [0; 6]),
        (libc::SYS_unshare, [0; 6]),
        (libc::SYS_bpf, [0; 6]),
        (libc::SYS_io_uring_setup, [0; 6]),
        (libc::SYS_fork, [0; 6]),
        (libc::SYS_clone, [0; 6]),
        (libc::SYS_kill, [1, 0, 0, 0, 0, 0]),
        // Signals to another process by a socket, and keys typed into a terminal.
        (libc::SYS_fcntl, [0, libc::F_SETOWN as usize, 1, 0, 0, 0]),
        (libc::SYS_ioctl, [0, libc::TIOCSTI as usize, 0, 0, 0, 0]),
        (libc::SYS_mmap, [0, 4096, exec as usize, anonymous as usize, usize::MAX, 0]),
        // Of a number that no kernel has, and of another table of numbers.
        (5000, [0; 6]),
        (libc::SYS_read | 0x4000_0000, [0; 6]),
    ]
}

/// Has a thread that was there before make a call that no thread of a confined process makes, or start another thread.
fn the_process(number: Option<usize>) {
    let (begin, begun) = std::sync::mpsc::channel();
    let before = std::thread::spawn(move || {
        begun.recv().unwrap();
        assert!(File::open("/").is_ok());
        std::thread::spawn(std::process::id).join().unwrap();
        let Some((number, [a, b, c, d, e, f])) = number.map(|number| outward()[number]) else { return };
        // SAFETY: the call is refused, and has no effect where it is not but that of these arguments.
        unsafe { libc::syscall(number, a, b, c, d, e, f) };
    });
    assert!(whole_process().unwrap());
    begin.send(()).unwrap();
    before.join().unwrap();
    // Its threads are confined by themselves on top of that.
    work(Role::Control);
}

/// Calls that no thread of a confined process makes.
fn outward() -> Vec<(i64, [usize; 6])> {
    // The kernel takes 32 bits of a request.
    const FIOSETOWN: usize = 0x8901;
    let exec = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    // What is no call is not refused: nobody keeps a list of those.
    let known = refused().into_iter().filter(|(number, _)| *number != 5000);
    let more = [
        (libc::SYS_ioctl, [0, libc::TIOCSTI as usize | 1 << 40, 0, 0, 0, 0]),
        (libc::SYS_ioctl, [0, libc::TIOCLINUX as usize, 0, 0, 0, 0]),
        (libc::SYS_ioctl, [0, FIOSETOWN, 0, 0, 0, 0]),
        (libc::SYS_pkey_mprotect, [0, 0, exec, usize::MAX, 0, 0]),
        (libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]),
        (libc::SYS_prlimit64, [1, 0, 0, 0, 0, 0]),
        (libc::SYS_mount_setattr, [0; 6]),
    ];
    // `execve` of the other table of numbers.
    known.chain(more).chain([(0x4000_0000 | 520, [0; 6])]).collect()
}

#[test]
fn a_process_gets_nowhere_and_its_threads_work() {
    let output = child("process");
    assert!(output.status.success(), "{output:?}");
    for (case, (number, _)) in outward().into_iter().enumerate() {
        let output = child(&format!("process {case}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{number}: {output:?}");
        assert!(said.contains(&format!("made system call {number}, which it has no need of")), "{said}");
    }
}

/// What a child process of these tests does; nothing in the tests' own process.
#[test]
fn the_child() {
    let Ok(case) = env::var(CASE) else { return };
    if let Some(number) = case.strip_prefix("process") {
        the_process(number.trim().parse().ok());
        std::process::exit(0);
    }
    let mut words = case.split(' ').map(|word| word.parse::<usize>().unwrap());
    let role = ROLES[words.next().unwrap()];
    let stdin = std::io::stdin();
    let raw = stdin.is_terminal().then(|| RawMode::enter(&stdin).unwrap());
    assert!(raw.is_none() || !tcgetattr(&stdin).unwrap().local_modes.contains(LocalModes::ECHO));
    match words.next() {
        Some(number) => {
            let (number, [a, b, c, d, e, f]) = refused()[number];
            assert!(this_thread(role).unwrap());
            // SAFETY: the call is refused, and has no effect where it is not but that of these arguments.
            unsafe { libc::syscall(number, a, b, c, d, e, f) };
        }
        None => work(role),
    }
    std::process::exit(0);
}

/// What threads do now and then.
fn work(role: Role) {
    let (mut one, mut other) = UnixStream::pair().unwrap();
    let file = tempfile::tempfile().unwrap();
    assert!(this_thread(role).unwrap());
    let grown: Vec<Vec<u8>> = (1..200).map(|n| vec![1; n * 4096]).collect();
    assert_eq!(grown.concat().len(), 199 * 200 / 2 * 4096);
    one.write_all(b"x").unwrap();
    other.read_exact(&mut [0]).unwrap();
    one.shutdown(std::net::Shutdown::Both).unwrap();
    std::thread::sleep(Duration::from_millis(1));
    let _ = (Instant::now(), std::time::SystemTime::now());
    if matches!(role, Role::Control | Role::Files { writable: true }) {
        file.write_all_at(b"x", 0).unwrap();
    }
    if let Role::Files { .. } | Role::Names = role {
        assert!(File::open("/").is_ok());
    }
    // A panic is said, and the thread goes on.
    let panic = std::panic::catch_unwind(|| panic!("as it should"));
    assert!(panic.is_err());
    if let Role::Files { writable: false } | Role::Names = role {
        return;
    }
    let writes = File::options().write(true).create(true).truncate(false).open("/proc/self/nothing");
    let error = writes.map(drop).map_err(|error| error.raw_os_error());
    match role {
        Role::Files { writable: true } => assert_eq!(error, Err(Some(libc::ENOENT))),
        Role::Files { writable: false } | Role::Names => unreachable!("it may not open for writing"),
        _ => assert_eq!(error, Err(Some(libc::ENOSYS))),
    }
    if role == Role::Keeper {
        // What is there is neither read nor written to, and what is not there is made.
        let create = |path: &str| File::create_new(path).map(drop).map_err(|error| error.raw_os_error());
        assert_eq!(create("/proc/self/nothing"), Err(Some(libc::ENOENT)));
        assert_eq!(create("/proc/self/status"), Err(Some(libc::EEXIST)));
        for how in [File::options().read(true), File::options().write(true), File::options().append(true)] {
            assert_eq!(how.open("/dev/null").unwrap_err().raw_os_error(), Some(libc::ENOSYS));
        }
    }
    if let Role::Control | Role::Keeper = role {
        std::thread::Builder::new().name("more".to_owned()).spawn(|| ()).unwrap().join().unwrap();
    }
}

#[test]
fn a_thread_does_its_work_and_may_panic() {
    for (n, role) in ROLES.iter().enumerate() {
        let output = child(&n.to_string());
        assert!(output.status.success(), "{role:?}: {output:?}");
    }
}

#[test]
fn whoever_keeps_files_makes_new_ones_and_does_no_more() {
    let calls = lists::allowed(Role::Keeper).unwrap();
    for call in [libc::SYS_openat, libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_write] {
        assert!(calls.contains_key(&call), "{call}");
    }
    for call in [
        libc::SYS_renameat2,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
        libc::SYS_mknodat,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fchownat,
        libc::SYS_ftruncate,
        libc::SYS_pwrite64,
        libc::SYS_copy_file_range,
        libc::SYS_setresuid,
        libc::SYS_readlinkat,
        libc::SYS_getdents64,
    ] {
        assert!(!calls.contains_key(&call), "{call}");
    }
}

#[test]
fn a_call_that_is_on_no_list_ends_the_process_with_a_sentence() {
    for (role, (case, (number, _))) in
        (0..ROLES.len()).flat_map(|role| refused().into_iter().enumerate().map(move |case| (role, case)))
    {
        let output = child(&format!("{role} {case}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{:?}, {number}: {output:?}", ROLES[role]);
        let words = format!("made system call {number}, which it has no need of");
        assert!(said.starts_with("vmm: the thread `") && said.contains(&words), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_terminal_is_left_as_it_was_found() {
    let (terminal, _master) = terminal();
    let modes = || tcgetattr(&terminal).unwrap().local_modes;
    assert!(modes().contains(LocalModes::ECHO | LocalModes::ICANON));
    for (n, role) in
        ROLES.iter().enumerate().filter(|(_, role)| matches!(role, Role::Vcpu | Role::Device | Role::Control))
    {
        let output = child_with(terminal.try_clone().unwrap(), &format!("{n} 0"));
        assert_eq!(output.status.code(), Some(125), "{role:?}: {output:?}");
        assert!(modes().contains(LocalModes::ECHO | LocalModes::ICANON), "{role:?}");
    }
}

#[test]
fn it_is_in_force_here() {
    assert!(is_in_force().unwrap());
}
