//! System calls by the names that programs know: `syscall:openat`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use tests::product::{Ended, binary, command, kernel, run};

const OPENS: &str = "--append=workload=open:3,getppid:20";
const FILES: [&str; 3] = ["/etc/passwd", "/etc/group", "/etc/hostname"];

/// The guest's process alone opens what is counted: the workload says how many calls it has made.
#[test]
fn a_system_call_is_seen_by_its_name_with_its_arguments() {
    let Some(binary) = binary() else { return };
    let words = [
        "--probe=syscall:openat",
        "--probe=syscall:getppid",
        "--probe=p:mine syscall:openat filename:string flags if dfd == -100 && filename ~ \"*s*\"",
        "--probe=r:back syscall:openat filename:string fd=$retval if $retval >= 0",
        "--optimize=require",
        "--scope=init",
        OPENS,
    ];
    let run = run(&binary, &words);
    run.assert_success();
    let of = |kind: &str, key: &str, value: &str| -> Vec<&Value> {
        run.output.iter().filter(|line| line["type"] == kind && line[key] == value).collect()
    };
    let files = |hits: &[&Value]| -> Vec<String> {
        hits.iter().map(|hit| hit["fields"]["filename"].as_str().unwrap_or_default().to_owned()).collect()
    };
    let plain: Vec<&Value> =
        of("hit", "probe", "syscall:openat").into_iter().filter(|hit| hit["event"].is_null()).collect();
    let opened = files(&plain);
    assert!(FILES.iter().all(|file| opened.iter().any(|own| own == file)), "{opened:?}\n{}", run.said);
    assert!(plain.iter().all(|hit| hit["fields"]["dfd"] == -100), "{plain:?}");
    let mine = files(&of("hit", "event", "mine"));
    assert!(mine.iter().all(|file| file.contains('s')) && mine.len() == 2, "{mine:?}\n{}", run.said);
    let back = of("return", "event", "back");
    assert!(back.iter().all(|back| back["fields"]["fd"].as_i64().unwrap() >= 0), "{back:?}");
    assert_eq!(files(&back), FILES, "{}", run.said);
    assert_eq!(run.probe("syscall:getppid")["hits"], run.workload("done", "getppid"));
}

/// Without a guest: what is listed, what a dry run says, and what is refused.
#[test]
fn handlers_are_named_and_what_does_not_enter_there() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let of_kernel = format!("--kernel={}", kernel().display());
    let vmm = |words: &[&str]| {
        let output = command(&binary, folder.path(), &[words, &[&of_kernel]].concat()).output().ended();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, listed, _) = vmm(&["list", "--kind=syscalls", "-v"]);
    assert_eq!(code, Some(0));
    assert!(listed.lines().count() > 300, "{listed}");
    for line in [
        " 257 long openat(int dfd, const char *filename, int flags, umode_t mode) __x64_sys_openat",
        " 110 long getppid(void) __do_sys_getppid",
        // Its name in the kernel's source is another one.
        "   4 long stat(const char *filename, struct stat *statbuf) __do_sys_newstat",
    ] {
        let has = listed.lines().any(|own| own.trim() == line.trim());
        assert!(has, "`{line}` is not in\n{listed}");
    }
    let (code, shown, said) = vmm(&["run", "--dry-run", "--probe=syscall:openat", "--probe=syscall:getppid"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(shown.contains("32-bit programs enter by __ia32_compat_sys_openat"), "{shown}");
    assert!(shown.contains("at __do_sys_getppid, for programs of all sizes"), "{shown}");
    assert!(shown.contains("filename: string = "), "{shown}");
    let (code, _, said) = vmm(&["run", "--dry-run", "--probe=syscall:opennat"]);
    assert!(code == Some(2) && said.contains("no system call `opennat`; did you mean"), "{said}");
}
