//! How each step is done.

use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::time::Duration;

use crate::step::{During, End, Failure, Step};
use crate::{EXIT_AT_ONCE, say, sys};

/// What `open` opens in turn; they are in the guest initramfs and on any Linux machine.
const FILES: [&CStr; 4] = [c"/etc/passwd", c"/etc/group", c"/etc/hostname", c"/etc/os-release"];

/// Where a guest finds this very program.
const THIS_PROGRAM: &CStr = c"/proc/self/exe";

/// Does one step and prints its line.
pub(crate) fn step(step: &Step) -> Result<(), Failure> {
    match *step {
        Step::Open(count) => open(count).during("open"),
        Step::Getppid(count) => {
            sys::getppid(count);
            say(format_args!("getppid calls={count}"));
            Ok(())
        }
        Step::Fork(count) => fork(count).during("fork"),
        Step::Pinned(count) => pinned(count).during("pinned"),
        Step::Pipe(count) => pipe(count).during("pipe"),
        Step::Walk(depth) => walk(depth).during("walk"),
        Step::Signal(count) => signal(count).during("signal"),
        Step::Idle(seconds) => {
            std::thread::sleep(Duration::from_secs(seconds.into()));
            say(format_args!("idle seconds={seconds}"));
            Ok(())
        }
        Step::Shell => shell().during("shell"),
    }
}

fn open(count: u32) -> io::Result<()> {
    let mut bytes = 0;
    for path in FILES.iter().cycle().take(count as usize) {
        let mut file = sys::open(path, libc::O_RDONLY)?;
        let mut buffer = [0; 4096];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => bytes += read,
            }
        }
    }
    say(format_args!("open calls={count} bytes={bytes}"));
    Ok(())
}

fn fork(count: u32) -> io::Result<()> {
    let argument = sys::c_path(EXIT_AT_ONCE)?;
    for _ in 0..count {
        let code = sys::spawn(THIS_PROGRAM, &[c"workload", &argument], &[], || ())?.wait()?;
        if code != 0 {
            return Err(io::Error::other(format!("the child ended with {code}")));
        }
    }
    say(format_args!("fork calls={count}"));
    Ok(())
}

fn pinned(count: u32) -> io::Result<()> {
    let cpus = sys::cpus()?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .map(|&cpu| {
                sys::count_thread();
                scope.spawn(move || {
                    sys::pin(cpu)?;
                    sys::getppid(count);
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread did not end well")))
        })
    })?;
    say(format_args!("pinned calls={} cpus={}", u64::from(count) * cpus.len() as u64, cpus.len()));
    Ok(())
}

fn pipe(count: u32) -> io::Result<()> {
    let (mut from_parent, mut to_child) = io::pipe()?;
    let (mut from_child, mut to_parent) = io::pipe()?;
    let mut byte = [0];
    let child = sys::fork(|| {
        let echoed: io::Result<()> = (0..count).try_for_each(|_| {
            let mut byte = [0];
            from_parent.read_exact(&mut byte)?;
            to_parent.write_all(&byte)
        });
        i32::from(echoed.is_err())
    })?;
    for _ in 0..count {
        to_child.write_all(&byte)?;
        from_child.read_exact(&mut byte)?;
    }
    match child.wait()? {
        0 => say(format_args!("pipe calls={count} read={both} write={both}", both = 2 * u64::from(count))),
        code => return Err(io::Error::other(format!("the child ended with {code}"))),
    }
    Ok(())
}

fn walk(depth: u32) -> io::Result<()> {
    let mut path = format!("/tmp/workload-{}", std::process::id());
    let levels: Vec<String> = (0..depth)
        .map(|level| {
            if level > 0 {
                path.push_str("/d");
            }
            path.clone()
        })
        .collect();
    let mut listings = 0;
    levels.iter().try_for_each(std::fs::create_dir)?;
    for level in &levels {
        let level = sys::c_path(level)?;
        sys::stat(&level)?;
        listings += sys::list(&sys::open(&level, libc::O_RDONLY | libc::O_DIRECTORY)?)?;
    }
    levels.iter().rev().try_for_each(std::fs::remove_dir)?;
    say(format_args!("walk calls={depth} mkdir={depth} rmdir={depth} openat={depth} getdents={listings}"));
    Ok(())
}

fn signal(count: u32) -> io::Result<()> {
    let handled = sys::signal_self(count)?;
    say(format_args!("signal calls={count} handled={handled}"));
    Ok(())
}

fn shell() -> io::Result<()> {
    let env = [c"HOME=/", c"PATH=/bin", c"TERM=linux", c"PS1=guest# "];
    let status = sys::spawn(c"/bin/sh", &[c"-sh"], &env, sys::own_the_console)?.wait()?;
    say(format_args!("shell status={status}"));
    Ok(())
}

/// Mounts what a shell and the steps expect of a Linux system.
pub(crate) fn mount_all() -> Result<(), Failure> {
    [(c"proc", c"/proc"), (c"sysfs", c"/sys"), (c"devtmpfs", c"/dev")]
        .into_iter()
        .try_for_each(|(kind, directory)| sys::mount(kind, directory))
        .during("mount")
}

/// Ends the guest; what is returned is why it did not end.
pub(crate) fn end(end: End) -> Failure {
    match end {
        End::PowerOff => Failure::new("poweroff", sys::reboot(libc::RB_POWER_OFF)),
        End::Reboot => Failure::new("reboot", sys::reboot(libc::RB_AUTOBOOT)),
        End::Panic => {
            let written = sys::open_uncounted(c"/proc/sysrq-trigger", libc::O_WRONLY)
                .and_then(|mut trigger| trigger.write_all(b"c"));
            Failure::new("panic", written.err().unwrap_or_else(|| io::Error::other("the kernel went on")))
        }
    }
}
