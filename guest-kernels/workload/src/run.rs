//! How each step is done.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::called::called;
use crate::step::{During, End, Failure, Step};
use crate::{EXIT_AT_ONCE, bpf, btf, perf, say, sys};

/// What `open` opens in turn; they are in the guest initramfs and on any Linux machine.
const FILES: [&CStr; 4] = [c"/etc/passwd", c"/etc/group", c"/etc/hostname", c"/etc/os-release"];

/// What a shell finds in its environment.
const SHELL_ENV: [&CStr; 4] = [c"HOME=/", c"PATH=/bin", c"TERM=linux", c"PS1=guest# "];

/// Where a guest finds this very program.
const THIS_PROGRAM: &CStr = c"/proc/self/exe";

/// Does one step and prints its line.
pub(crate) fn step(step: &Step) -> Result<(), Failure> {
    match step {
        &Step::Open(count) => open(count).during("open"),
        &Step::Getppid(count) => {
            sys::getppid(count);
            say(format_args!("getppid calls={count}"));
            Ok(())
        }
        &Step::Ticks(count) => ticks(count, sys::getppid).during("ticks"),
        &Step::Called(count) => ticks(count, called).during("called"),
        &Step::Fork(count) => fork(count).during("fork"),
        &Step::Pinned(count) => pinned(count).during("pinned"),
        &Step::Pipe(count) => pipe(count).during("pipe"),
        &Step::Walk(depth) => walk(depth).during("walk"),
        &Step::Signal(count) => signal(count).during("signal"),
        &Step::Die(count) => die(count).during("die"),
        Step::Try(path) => try_open(path).during("try"),
        &Step::Nest(depth) => nest(depth).during("nest"),
        Step::Fentry(function) => fentry(function).during("fentry"),
        Step::Watched(path) => watched(path).during("watched"),
        Step::Sh(path) => sh(path).during("sh"),
        Step::Beside(path) => beside(path).during("beside"),
        &Step::Mix(seconds) => mix(Duration::from_secs(seconds.into())).during("mix"),
        &Step::Idle(seconds) => {
            std::thread::sleep(Duration::from_secs(seconds.into()));
            say(format_args!("idle seconds={seconds}"));
            Ok(())
        }
        Step::Shell => shell().during("shell"),
    }
}

fn open(count: u32) -> io::Result<()> {
    let bytes = read_files(count)?;
    say(format_args!("open calls={count} bytes={bytes}"));
    Ok(())
}

/// Opens `count` files and reads them to their ends. Returns how many bytes that were.
fn read_files(count: u32) -> io::Result<usize> {
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
    Ok(bytes)
}

/// So few calls at once that most have no timer's interrupt among them.
fn ticks(count: u32, call: impl Fn(u32)) -> io::Result<()> {
    const AT_ONCE: u32 = 5;
    let mut samples = vec![0; count as usize];
    for sample in &mut samples {
        let before = sys::ticks();
        call(AT_ONCE);
        *sample = sys::ticks() - before;
    }
    samples.sort_unstable();
    let (Some(least), Some(median)) = (samples.first(), samples.get(samples.len() / 2)) else {
        return Err(io::Error::other("nothing to be timed"));
    };
    say(format_args!("ticks calls={} least={least} median={median}", AT_ONCE * count));
    Ok(())
}

fn fork(count: u32) -> io::Result<()> {
    have_children(count)?;
    say(format_args!("fork calls={count}"));
    Ok(())
}

/// Starts `count` children one after the other, and waits for each.
fn have_children(count: u32) -> io::Result<()> {
    let argument = sys::c_path(EXIT_AT_ONCE)?;
    for _ in 0..count {
        let code = sys::spawn(THIS_PROGRAM, &[c"workload", &argument], &[], || ())?.wait()?;
        if code != 0 {
            return Err(io::Error::other(format!("the child ended with {code}")));
        }
    }
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
    echo(count)?;
    say(format_args!("pipe calls={count} read={both} write={both}", both = 2 * u64::from(count)));
    Ok(())
}

/// Sends `count` bytes to a child and back.
fn echo(count: u32) -> io::Result<()> {
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
        0 => Ok(()),
        code => Err(io::Error::other(format!("the child ended with {code}"))),
    }
}

/// A bit of everything at once, for `time`. What is read is compared with what was read first.
fn mix(time: Duration) -> io::Result<()> {
    let end = Instant::now() + time;
    let expected = read_files(FILES.len() as u32)?;
    let checks = AtomicU64::new(0);
    let on_cpu = |cpu: usize| {
        sys::pin(cpu)?;
        while Instant::now() < end {
            sys::getppid(20);
            if read_files(FILES.len() as u32)? != expected {
                return Err(io::Error::other("a file was not whole"));
            }
            // Fresh pages each time: so much is mapped anew.
            let memory = vec![cpu as u8 + 1; 256 << 10];
            if memory.iter().any(|byte| *byte != cpu as u8 + 1) {
                return Err(io::Error::other("memory does not hold what was written"));
            }
            checks.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let start = |cpu| {
            sys::count_thread();
            let on_cpu = &on_cpu;
            scope.spawn(move || on_cpu(cpu))
        };
        let threads: Vec<_> = sys::cpus()?.into_iter().map(start).collect();
        while Instant::now() < end {
            have_children(1)?;
            echo(5)?;
            if sys::signal_self(2)? != 2 {
                return Err(io::Error::other("a signal was lost"));
            }
            std::thread::sleep(Duration::from_millis(2));
            rounds += 1;
        }
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread did not end well")))
        })
    })?;
    say(format_args!("mix rounds={rounds} checks={}", checks.into_inner()));
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

fn die(count: u32) -> io::Result<()> {
    let [mut exited, mut paused, mut reading] = [0; 3];
    // Nobody writes to it, and it stays open.
    let (mut never, _writer) = io::pipe()?;
    for child in 0..count {
        let asleep = match child % 3 {
            0 => {
                match sys::fork(|| 3)?.wait()? {
                    3 => exited += 1,
                    code => return Err(io::Error::other(format!("the child ended with {code}"))),
                }
                continue;
            }
            1 => {
                paused += 1;
                sys::fork(sys::pause)?
            }
            _ => {
                reading += 1;
                sys::fork(|| i32::from(never.read_exact(&mut [0]).is_err()))?
            }
        };
        wait_until_asleep(&asleep)?;
        asleep.kill()?;
        match asleep.wait()? {
            KILLED => {}
            code => return Err(io::Error::other(format!("the child ended with {code}"))),
        }
    }
    let opened = paused + reading;
    say(format_args!("die calls={count} exited={exited} paused={paused} reading={reading} openat={opened}"));
    Ok(())
}

/// What [`sys::Child::wait`] returns for a child that SIGKILL ended.
const KILLED: libc::c_int = 128 + libc::SIGKILL;

/// Waits until a child sleeps in the one system call that it makes. Its file in `/proc` is opened once.
fn wait_until_asleep(child: &sys::Child) -> io::Result<()> {
    let path = sys::c_path(&format!("/proc/{}/stat", child.pid()))?;
    let file = sys::open(&path, libc::O_RDONLY)?;
    loop {
        // `PID (NAME) STATE ...`, see proc_pid_stat(5).
        let mut stat = [0; 64];
        file.read_at(&mut stat, 0)?;
        if stat.windows(3).any(|end| end == b") S") {
            return Ok(());
        }
        std::thread::yield_now();
    }
}

fn try_open(path: &str) -> io::Result<()> {
    let errno = match sys::open(&sys::c_path(path)?, libc::O_RDONLY) {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().ok_or(error)?,
    };
    say(format_args!("try path={path} errno={errno}"));
    Ok(())
}

fn nest(depth: u32) -> io::Result<()> {
    const FOLDER: &CStr = c"/tmp/bpf";
    const PIN: &CStr = c"/tmp/bpf/map";
    let map = bpf::array_map(&bpf::load_btf(&btf::nested_arrays(depth))?, btf::INT, btf::INT + depth)?;
    std::fs::create_dir_all("/tmp/bpf")?;
    sys::mount(c"bpf", FOLDER)?;
    bpf::pin(&map, PIN)?;
    let mut text = [0; 4096];
    // One read: each would print the value again.
    let bytes = sys::open(PIN, libc::O_RDONLY)?.read(&mut text)?;
    sys::unmount(FOLDER)?;
    std::fs::remove_dir("/tmp/bpf")?;
    say(format_args!("nest depth={depth} bytes={bytes} openat=1"));
    Ok(())
}

fn fentry(function: &str) -> io::Result<()> {
    const OPENED: usize = 20;
    let mut types = Vec::new();
    sys::open(c"/sys/kernel/btf/vmlinux", libc::O_RDONLY)?.read_to_end(&mut types)?;
    let id = btf::function_id(&types, function).ok_or_else(|| io::Error::other("no such function"))?;
    let counting = bpf::count_runs()?;
    let program = bpf::fentry_program(id)?;
    let attached = bpf::attach(&program)?;
    for path in FILES.iter().cycle().take(OPENED) {
        sys::open(path, libc::O_RDONLY)?;
    }
    drop(attached);
    let runs = runs(&program)?;
    drop(counting);
    say(format_args!("fentry function={function} opened={OPENED} runs={runs} openat={}", OPENED + 2));
    Ok(())
}

/// How often a BPF program has run, while that is counted.
fn runs(program: &File) -> io::Result<u64> {
    let path = sys::c_path(&format!("/proc/self/fdinfo/{}", program.as_raw_fd()))?;
    let mut said = String::new();
    sys::open(&path, libc::O_RDONLY)?.read_to_string(&mut said)?;
    let count = said.lines().find_map(|line| line.strip_prefix("run_cnt:")?.trim().parse().ok());
    count.ok_or_else(|| io::Error::other("the kernel does not say how often a program has run"))
}

/// The guest's own perf and BPF see every call of `getppid`, whoever comes and goes beside them.
fn watched(path: &str) -> io::Result<()> {
    const TRACEFS: &CStr = c"/sys/kernel/tracing";
    let mut number = String::new();
    sys::mount(c"tracefs", TRACEFS)?;
    sys::open(c"/sys/kernel/tracing/events/raw_syscalls/sys_enter/id", libc::O_RDONLY)?
        .read_to_string(&mut number)?;
    sys::unmount(TRACEFS)?;
    let filter = sys::c_path(&format!("id == {}", libc::SYS_getppid))?;
    let in_perf = perf::count(number.trim().parse().map_err(io::Error::other)?, &filter)?;
    let in_bpf = bpf::counter()?;
    let program = bpf::counting_program(&in_bpf, libc::SYS_getppid as u32, std::process::id())?;
    let attached = bpf::attach_to(&program, c"sys_enter")?;
    sys::getppid(20);
    run_script(path)?;
    sys::getppid(40);
    run_script(path)?;
    sys::getppid(80);
    drop(attached);
    let (perf, bpf) = (perf::read(&in_perf)?, bpf::read(&in_bpf)?);
    say(format_args!("watched calls=140 perf={perf} bpf={bpf} openat=1"));
    Ok(())
}

fn sh(path: &str) -> io::Result<()> {
    let status = run_script(path)?;
    say(format_args!("sh path={path} status={status}"));
    Ok(())
}

fn run_script(path: &str) -> io::Result<libc::c_int> {
    let script = sys::c_path(path)?;
    sys::spawn(c"/bin/sh", &[c"sh", &script], &SHELL_ENV, || ())?.wait()
}

/// Calls on every CPU before a script begins, and until it has ended: whenever that has nothing to do.
fn beside(path: &str) -> io::Result<()> {
    const AT_ONCE: u32 = 100;
    let cpus = sys::cpus()?;
    let begun = Barrier::new(cpus.len() + 1);
    let (is_over, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let on_cpu = |cpu: usize| {
        let call = || {
            sys::getppid(AT_ONCE);
            calls.fetch_add(AT_ONCE.into(), Ordering::Relaxed);
        };
        let ready = sys::pin(cpu).and_then(|()| sys::give_way());
        call();
        begun.wait();
        ready?;
        while !is_over.load(Ordering::Relaxed) {
            call();
        }
        Ok(())
    };
    let status = std::thread::scope(|scope| {
        let start = |&cpu| {
            sys::count_thread();
            let on_cpu = &on_cpu;
            scope.spawn(move || on_cpu(cpu))
        };
        let threads: Vec<_> = cpus.iter().map(start).collect();
        begun.wait();
        let status = run_script(path);
        is_over.store(true, Ordering::Relaxed);
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread did not end well")))
        })?;
        status
    })?;
    let calls = calls.into_inner();
    say(format_args!("beside path={path} status={status} calls={calls} cpus={}", cpus.len()));
    Ok(())
}

fn shell() -> io::Result<()> {
    let status = sys::spawn(c"/bin/sh", &[c"-sh"], &SHELL_ENV, sys::own_the_console)?.wait()?;
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
