//! The workload as an ordinary process: what it prints, and whether its counts are the kernel's.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::{Command, Output};

/// One of everything that can run outside a guest and opens no files on its own, with different counts.
const STEPS: &str =
    "open:5,getppid:6,fork:3,pinned:7,pipe:4,walk:9,signal:8,die:7,ticks:3,try:/etc/passwd,try:/nonexistent";

fn run(command: &mut Command) -> (String, Option<i32>) {
    let Output { stdout, status, .. } = command.output().unwrap();
    (String::from_utf8(stdout).unwrap(), status.code())
}

fn steps(steps: &str) -> (String, Option<i32>) {
    run(Command::new(env!("CARGO_BIN_EXE_workload")).args(["--steps", steps]))
}

/// The number after `key=` in the line that begins with `workload: STEP `.
fn number(said: &str, step: &str, key: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("workload: {step} "))).unwrap();
    let pair = line.split(' ').find_map(|pair| pair.strip_prefix(&format!("{key}=")));
    pair.unwrap().parse().unwrap()
}

#[test]
fn every_step_says_what_it_did() {
    let (said, code) = steps(&format!("{STEPS},sh:/nonexistent,beside:/nonexistent"));
    assert_eq!(code, Some(0), "{said}");
    let cpus = number(&said, "pinned", "cpus");
    let bytes = number(&said, "open", "bytes");
    let shell = number(&said, "sh", "status");
    assert_ne!(shell, 0, "{said}");
    let (least, median) = (number(&said, "ticks", "least"), number(&said, "ticks", "median"));
    assert!(0 < least && least <= median, "{said}");
    let beside = number(&said, "beside", "calls");
    assert!(beside >= 100 * cpus, "{said}");
    let (getppid, clone) = (6 + 7 * cpus + 15 + beside, 3 + 1 + cpus + 7 + 1 + cpus + 1);
    let done = format!("openat=20 getppid={getppid} execve=5 clone={clone}");
    let expected = [
        format!("open calls=5 bytes={bytes}"),
        "getppid calls=6".to_owned(),
        "fork calls=3".to_owned(),
        format!("pinned calls={} cpus={cpus}", 7 * cpus),
        "pipe calls=4 read=8 write=8".to_owned(),
        "walk calls=9 mkdir=9 rmdir=9 openat=9 getdents=18".to_owned(),
        "signal calls=8 handled=8".to_owned(),
        "die calls=7 exited=3 paused=2 reading=2 openat=4".to_owned(),
        format!("ticks calls=15 least={least} median={median}"),
        "try path=/etc/passwd errno=0".to_owned(),
        format!("try path=/nonexistent errno={}", libc::ENOENT),
        format!("sh path=/nonexistent status={shell}"),
        format!("beside path=/nonexistent status={shell} calls={beside} cpus={cpus}"),
        format!("done {done}"),
    ];
    assert_eq!(said, expected.map(|line| format!("workload: {line}\n")).concat());
}

#[test]
fn a_mix_lasts_as_long_as_asked_and_keeps_its_counts() {
    let (said, code) = steps("mix:1");
    assert_eq!(code, Some(0), "{said}");
    let (rounds, checks) = (number(&said, "mix", "rounds"), number(&said, "mix", "checks"));
    assert!(rounds > 0 && checks > 0, "{said}");
    assert_eq!(number(&said, "done", "getppid"), 20 * checks);
    assert_eq!(number(&said, "done", "openat"), 4 * checks + 4);
    assert_eq!(number(&said, "done", "execve"), rounds);
}

#[test]
fn the_counts_are_the_kernels() {
    if Command::new("strace").arg("--version").output().is_err() {
        eprintln!("skipped: strace is not installed");
        return;
    }
    let trace = std::env::temp_dir().join(format!("workload-{}.strace", std::process::id()));
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "signal=none", "-o"]).arg(&trace);
    let (said, code) = run(strace.arg(env!("CARGO_BIN_EXE_workload")).args(["--steps", STEPS]));
    let calls = std::fs::read_to_string(&trace).unwrap();
    std::fs::remove_file(&trace).unwrap();
    assert_eq!(code, Some(0), "{said}");
    // Lines are `PID name(...`; a call that another thread interrupts is continued in a line without the name in front.
    let made = |names: &[&str]| {
        let name = |line: &str| line.split_once(' ').map(|(_pid, call)| call.trim_start().to_owned());
        let is = |call: &String| names.iter().any(|name| call.starts_with(&format!("{name}(")));
        calls.lines().filter_map(name).filter(is).count() as u64
    };
    let done = |key| number(&said, "done", key);
    assert_eq!(made(&["open", "openat", "openat2"]), done("openat"));
    assert_eq!(made(&["getppid"]), done("getppid"));
    // The first one is strace's, which starts the program.
    assert_eq!(made(&["execve", "execveat"]), done("execve") + 1);
    assert_eq!(made(&["clone", "clone3", "fork", "vfork"]), done("clone"));
    assert_eq!(made(&["mkdir", "mkdirat"]), number(&said, "walk", "mkdir"));
    assert_eq!(made(&["newfstatat", "statx", "stat"]), number(&said, "walk", "calls"));
    assert_eq!(made(&["getdents64"]), number(&said, "walk", "getdents"));
    assert_eq!(made(&["rt_sigreturn"]), number(&said, "signal", "handled"));
}

#[test]
fn what_cannot_be_done_is_said() {
    for (asked, reason) in [
        ("open:2,dance:1", "failed dance: no such step"),
        ("getppid", "failed getppid: no count in 'getppid', write getppid:COUNT"),
        ("pipe:-1", "failed pipe: no count in 'pipe:-1', write pipe:COUNT"),
        ("walk:1001", "failed walk: deeper than 1000"),
        ("nest:121", "failed nest: deeper than 120"),
        ("try:", "failed try: no path in 'try:', write try:PATH"),
        ("sh", "failed sh: no path in 'sh', write sh:PATH"),
        ("fentry", "failed fentry: no function in 'fentry', write fentry:FUNCTION"),
        ("", "failed : no such step"),
    ] {
        // All is read before anything is done: the good steps say nothing either.
        assert_eq!(steps(asked), (format!("workload: {reason}\n"), Some(1)));
    }
}

#[test]
fn without_arguments_it_is_not_an_init() {
    let (said, code) = run(&mut Command::new(env!("CARGO_BIN_EXE_workload")));
    assert_eq!(said, "workload: usage: workload --steps NAME[:ARGUMENT][,NAME[:ARGUMENT]...]\n");
    assert_eq!(code, Some(2));
}
