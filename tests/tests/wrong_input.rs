//! Each mistake of a user gets one clear sentence and exit code 2, before any guest runs, and leaves nothing behind.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use std::fs;
use std::path::Path;
use tests::product::{binary, command, kernel};

/// What is said, and what must be in the answer.
struct Case {
    words: &'static [&'static str],
    says: &'static [&'static str],
}

const fn case(words: &'static [&'static str], says: &'static [&'static str]) -> Case {
    Case { words, says }
}

/// `KERNEL`, `TRUNCATED`, `TEXT`, `BIG` and `NONE` stand for files.
const CASES: &[Case] = &[
    case(
        &["--probe", "do_sys_opena2"],
        &["the kernel has no function `do_sys_opena2`", "did you mean", "do_sys_openat2"],
    ),
    case(&["--probe", "qqqqqqqqq_*"], &["no function matches `qqqqqqqqq_*`"]),
    case(
        &["--probe", "do_sys_openat2+0x1"],
        &["`do_sys_openat2+0x1` cannot be probed", "lies inside the", "-byte instruction at"],
    ),
    case(&["--probe", "do_sys_openat2+0x10000"], &["the offset 0x10000 is behind it"]),
    case(&["--probe", "0x1000"], &["cannot be probed", "not in the kernel's text"]),
    case(&["--probe", "asm_exc_int3"], &["`asm_exc_int3` cannot be probed", "entry code"]),
    case(&["--probe", "vfs_*+4"], &["a pattern takes no offset"]),
    case(
        &["--probe", "init_once"],
        &[
            "`init_once`, and their files are not known",
            "choose init_once#1 at 0xffffffff",
            ", init_once#2 at ",
        ],
    ),
    case(&["--probe", "init_once#99"], &["there are only", "`init_once`: init_once#1 at"]),
    case(&["--probe", "vfs_read#2"], &["there is only one `vfs_read`: leave out"]),
    case(&["--probe", "vfs_read#0"], &["`#0` does not say which function", "`#2` for the second"]),
    case(&["--probe", "p init_once#99 %di"], &["there are only", "`init_once`"]),
    case(&["--probe", "p vfs_read#x"], &["`x` is not the number of one of several symbols", "write `#2`"]),
    case(&["--probe", "p vfs_read @show"], &["there are", "`show`", "choose show#1 at"]),
    case(&["--probe", "p vfs_read n=%di if m == 1"], &["there is no field `m`", "did you mean `n`"]),
    case(&["--probe", "p vfs_read n=%di if n == cat"], &["`n` is a number, and is not compared with text"]),
    case(&["--probe", "p vfs_read hist:keys=coun"], &["there is no field `coun`", "did you mean `count`"]),
    case(&["--probe", "p vfs_read file->f_opp"], &["there is no member `f_opp`", "did you mean `f_op`"]),
    case(&["--probe", "vfs_read", "--filter", "coun > 3"], &["there is no field `coun`", "`count`"]),
    case(&["--dry-run", "--probe", "do_sys_opena2"], &["the kernel has no function `do_sys_opena2`"]),
    case(&["--dry-run", "--probe", "p vfs_read hist:keys=coun"], &["there is no field `coun`"]),
    case(&["--dry-run", "--output", "x"], &["cannot be used with"]),
    case(
        &[
            "--dry-run",
            "--host=emulated",
            "--watch=init_task:8:w",
            "--watch=init_task+8:8:w",
            "--watch=init_task+16:8:w",
            "--watch=jiffies:8:w",
        ],
        &["3 places can be watched at a time"],
    ),
    case(&["--probe", "__pfx_vfs_read"], &["`__pfx_vfs_read` cannot be probed", "padding before a function"]),
    case(&["--probe", "vfs_read-4"], &["lies before its symbol"]),
    case(&["--probe", "1234"], &["write addresses in hexadecimal"]),
    case(&["--probe", "linux_banner"], &["the kernel has no function `linux_banner`"]),
    case(&["--watch", "jiffies"], &["`jiffies` is no watch", "SYMBOL:LENGTH:ACCESS"]),
    case(&["--watch", "jiffies:8:r"], &["`r` is nothing that a CPU watches for", "rw (reads and writes)"]),
    case(&["--watch", "jiffies:3:w"], &["`3` is no length", "1, 2, 4 or 8 bytes"]),
    case(&["--watch", "jiffies+4:8:w"], &["is no multiple of 8", "only where they are aligned"]),
    case(&["--watch", "init_task+2:4:w"], &["is no multiple of 4"]),
    case(&["--watch", "jifies:8:w"], &["the kernel has no symbol `jifies`", "did you mean", "`jiffies`"]),
    case(&["--watch", "cpu_info:8:w"], &["`cpu_info` is a per-CPU variable"]),
    case(&["--watch", "jiffies:1:x"], &["is not in the kernel's text"]),
    case(&["--watch", "do_sys_openat2+1:1:x"], &["lies inside the", "-byte instruction at"]),
    case(&["--watch", "init_once:1:x"], &["`init_once`", "choose init_once#1"]),
    case(&["--watch", "vfs_*:1:x"], &["`vfs_*` does not name one place"]),
    case(
        &[
            "--watch=init_task:8:w",
            "--watch=init_task+8:8:w",
            "--watch=init_task+16:8:w",
            "--watch=jiffies:8:w",
            "--host=emulated",
        ],
        &["3 places can be watched at a time", "catches this host's breakpoints"],
    ),
    case(&["--kernel", "TRUNCATED"], &["cannot use the kernel", "truncated"]),
    case(
        &["--kernel", "TEXT"],
        &["cannot use the kernel", "not a bzImage", "--kernel takes a bzImage or a vmlinux"],
    ),
    case(&["--kernel", "NONE"], &["cannot read", "No such file"]),
    case(&["--initrd", "NONE"], &["cannot read", "No such file"]),
    case(&["--initrd", "BIG", "--memory", "128M"], &["the initrd", "does not fit", "--memory"]),
    case(&["--memory", "64M"], &["a guest needs at least 128M"]),
    case(&["--memory", "65G"], &["a guest gets at most 64G"]),
    case(&["--memory", "lots"], &["write it as 512M or 2G"]),
    case(&["--cpus", "0"], &["0 is not in 1..=16"]),
    case(&["--cpus", "17"], &["17 is not in 1..=16"]),
    case(&["--cmdline", "a", "--raw-cmdline", "b"], &["cannot be used with"]),
    case(&["--host", "kvm", "--host", "emulated"], &["cannot be used multiple times"]),
    case(&["--format", "xml"], &["invalid value 'xml'", "text, json"]),
    case(&["--output", "/nonexistent/hits"], &["cannot write /nonexistent/hits", "No such file"]),
    case(&["--symbols", "TEXT"], &["System.map", "line 1"]),
    case(&["--host", "kvm", "--kvm-device", "NONE"], &["does not exist", "--host emulated"]),
    case(&["--host", "kvm", "--kvm-device", "TEXT"], &["cannot be used as a KVM device"]),
    case(&["--nonsense"], &["unexpected argument '--nonsense'"]),
    case(
        &["--dry-run", "--probe", "p vfs_read if xyzzy > 3"],
        &["vmm: --probe: there is no field `xyzzy`", "the fields here are `file`, `buf`, `count` and `pos`"],
    ),
    case(
        &["--dry-run", "--probe", "vfs_read", "--filter", "xyzzy > 3"],
        &[
            "vmm: --probe vfs_read: at vfs_read: --filter: there is no field `xyzzy`",
            "`pos`; every event has `comm`",
        ],
    ),
    case(&["--dry-run", "--probe", "p vfs_read if count = 3"], &["a single `=`", "write `==` to compare"]),
    case(&["--dry-run", "--probe", "p vfs_read count>3"], &["a condition comes behind `if`"]),
    case(
        &["--dry-run", "--probe", "t sched_swich"],
        &["the kernel has no tracepoint `sched_swich`", "did you mean", "sched:sched_switch"],
    ),
    case(&["--dry-run", "--probe", "t nothing_*"], &["no tracepoint matches `nothing_*`"]),
    case(
        &["--dry-run", "--probe", "t syscalls:sys_exit_openat"],
        &["an event that the kernel makes of raw_syscalls:sys_exit", "write `r syscall:openat`"],
    ),
    case(&["--dry-run", "--probe", "t:sched_switch"], &["another tool's word", "write `t SYSTEM:NAME`"]),
    case(
        &["--dry-run", "--assist=off", "--probe", "t sched_switch"],
        &["sched:sched_switch is switched on by the guest's own kernel", "--assist=off"],
    ),
    case(&["--dry-run", "--probe", "p ./ls:main"], &["named by its whole path", "write `/usr/bin/ls:main`"]),
    case(
        &["--dry-run", "--probe", "uprobe:/bin/ls:main"],
        &["a word of other tools", "write `p PATH:SYMBOL`"],
    ),
    case(&["--dry-run", "--probe", "p /bin/ls:main @jiffies"], &["the kernel's, and not the program's"]),
    case(
        &["--dry-run", "--probe", "p /bin/ls:main hist:keys=__probe_ip"],
        &["`__probe_ip` cannot be read in a program", "`ip=%ip`"],
    ),
    case(
        &["--dry-run", "--probe", "/bin/ls:ls.c:25"],
        &["lines of a program's source are not probed", "0x1234"],
    ),
    case(&["--dry-run", "--probe", "p /bin/ls:ns::f"], &["`::` is in none of those names", "mangled"]),
    case(
        &["--dry-run", "--assist=off", "--probe", "p /bin/ls:main"],
        &["/bin/ls:main is registered with the guest's own kernel", "--assist=off"],
    ),
    case(
        &["--dry-run", "--probe", "kprobe:vfs_read { }"],
        &["`kprobe:` is a word of other tools", "write `p FUNCTION`"],
    ),
    case(&["--filter", "count > 3", "--", "true"], &["--filter is for probes", "--probe"]),
    case(&["--stack", "--", "true"], &["--stack is for probes", "--probe"]),
    case(
        &["--probe", "nosuchmod:foo"],
        &["no module `nosuchmod` in the guest's initramfs", "--allow-pending"],
    ),
    case(&["--probe", "ext4:vfs_read"], &["the kernel itself has `vfs_read`: leave out `ext4:`"]),
    case(
        &["--probe", "nosuchmod:foo", "--", "true"],
        &["no module `nosuchmod` among those of the kernel", "--allow-pending"],
    ),
    case(&["--probe", "overlai:ovl_open", "--", "true"], &["did you mean `overlay`"]),
    case(&["--timeout", "30s"], &["write whole seconds"]),
    case(&["--root", "NONE", "--", "true"], &["--root: cannot share", "No such file"]),
    case(&["--rwdir", "NONE", "--", "true"], &["--rwdir: cannot share", "No such file"]),
    case(&["--modules", "NONE", "--", "true"], &["--modules: cannot read", "No such file"]),
    case(&["--kernel", "debian:9"], &["named by its series", "there are", "6.1, ", "6.12, "]),
    case(&["vfs_read"], &["a function to probe goes behind -p"]),
];

fn write_files(folder: &Path) {
    let kernel = fs::read(kernel()).unwrap();
    fs::write(folder.join("TRUNCATED"), &kernel[..kernel.len() / 2]).unwrap();
    fs::write(folder.join("TEXT"), "this is no kernel\n").unwrap();
    fs::File::create(folder.join("BIG")).unwrap().set_len(256 << 20).unwrap();
}

#[test]
fn every_mistake_is_one_sentence_and_exit_code_2() {
    let Some(binary) = binary() else { return };
    let files = tempfile::tempdir().unwrap();
    write_files(files.path());
    let mut wrong = Vec::new();
    for Case { words, says } in CASES {
        let temporary = tempfile::tempdir().unwrap();
        let is_file = |word: &str| ["TRUNCATED", "TEXT", "BIG", "NONE"].contains(&word);
        let path = |word: &str| match is_file(word) {
            true => files.path().join(word).to_str().unwrap().to_owned(),
            false => word.to_owned(),
        };
        let all: Vec<String> = ["run".to_owned()].into_iter().chain(words.iter().map(|w| path(w))).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let output = command(&binary, temporary.path(), &all).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut complain = |what: &str| wrong.push(format!("{words:?}: {what}\n    {said}"));
        if output.status.code() != Some(2) {
            complain(&format!("exit code {:?}", output.status.code()));
        }
        for part in says.iter().filter(|part| !said.contains(**part)) {
            complain(&format!("does not say {part:?}"));
        }
        let mut sentences = said.split("vmm: ").skip(1).map(str::trim);
        if sentences.any(|sentence| sentence.len() > 30 && said.matches(sentence).count() > 1) {
            complain("says it twice");
        }
        if !output.stdout.is_empty() {
            complain("writes to standard output");
        }
        if fs::read_dir(temporary.path()).unwrap().count() != 0 {
            complain("leaves temporary files");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Mistakes in the words of other commands.
const OTHERS: &[Case] = &[
    case(&["types", "nosuch"], &["has no type `nosuch`", "vmm types '*PART*'"]),
    case(&["types", "task_strct"], &["the nearest names are `task_struct`"]),
    case(&["list", "nosuch"], &["no function matches `nosuch`", "vmm list '*PART*'"]),
    case(&["list", "vfs_raed"], &["the nearest names are `vfs_read`"]),
    case(&["list", "--kind", "syscalls", "opennat"], &["did you mean one of `openat`"]),
    case(&["kernel", "fetch", "9"], &["named by its series", "there are", "6.1, ", "6.12, "]),
    case(&["report", "NONE"], &["cannot read", "No such file"]),
    case(&["report", "TEXT"], &["it is no recording of vmm"]),
    case(&["report", "TEXT", "--to=http://127.0.0.1:4318"], &["--to goes with --format otlp"]),
    case(&["report", "TEXT", "--format=otlp", "--to=https://127.0.0.1:4318"], &["vmm has no TLS"]),
    case(&["report", "TEXT", "--format=otlp", "--to=localhost:4318"], &["write it as http://127.0.0.1:4318"]),
    case(&["count"], &["<PATTERN>"]),
    case(&["count", "qqqqqqqqq", "--", "true"], &["the kernel has no function `qqqqqqqqq`"]),
    case(&["coverage", "qqqqqqqqq*", "--", "true"], &["no function matches `qqqqqqqqq*`"]),
    case(&["coverage", "--diff", "TEXT", "NONE"], &["it is no recording of vmm"]),
];

#[test]
fn mistakes_of_other_commands_are_one_sentence_and_exit_code_2() {
    let Some(binary) = binary() else { return };
    let files = tempfile::tempdir().unwrap();
    write_files(files.path());
    let mut wrong = Vec::new();
    for Case { words, says } in OTHERS {
        let output = command(&binary, files.path(), words).current_dir(files.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let is_said = says.iter().all(|part| said.contains(part));
        if output.status.code() != Some(2) || !is_said || !output.stdout.is_empty() {
            wrong.push(format!("{words:?}: {:?}, {said}", output.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn without_qemu_the_error_names_the_package_and_the_suite() {
    let Some(binary) = binary() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let output = command(&binary, temporary.path(), &["run", "--host=emulated"])
        .env("PATH", temporary.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("qemu-system-x86"), "{said}");
    assert!(said.contains("bookworm-backports"), "{said}");
}

#[test]
fn an_error_that_nobody_can_read_is_still_an_exit_code() {
    let Some(binary) = binary() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let status = command(&binary, temporary.path(), &["symbols", "no_such_function_here"])
        .stderr(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(2));
}

/// No host is looked for, and no initramfs: what a kernel's file says is all that is needed.
#[test]
fn a_dry_run_boots_nothing() {
    let Some(binary) = binary() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let words = ["run", "--dry-run", "--format=json", "--initrd=NONE", "--kvm-device=NONE"];
    let probes = [
        "--probe=p list_sort head=%di",
        "--probe=asm_acpi_mp_play_dea?",
        "--probe=*int3*",
        "--probe=dummy:dummy_xmit",
    ];
    let more = ["--probe=r vfs_read n=$retval if n > 3", "--filter=common_cpu == 1"];
    let words = [&words[..], &probes[..], &more[..]].concat();
    let output = command(&binary, temporary.path(), &words).env("PATH", temporary.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |probe: &str| rows.iter().find(|row| row["probe"] == probe).unwrap();
    // Its file is compiled without ftrace's sites.
    let detour = row("list_sort")["detour"].as_str().unwrap();
    assert!(detour.starts_with("detour: "), "{detour}");
    assert_eq!(row("list_sort")["how"], "emulate");
    assert_eq!(row("asm_acpi_mp_play_dead")["how"], "copy");
    assert_eq!(row("dummy:dummy_xmit")["how"], "pending (module dummy)");
    assert_eq!(row("dummy:dummy_xmit")["conditions"][0], "if common_cpu == 1");
    let read = row("vfs_read%return");
    assert_eq!((&read["kind"], &read["conditions"][0]), (&"r".into(), &"if n > 3".into()));
    assert_eq!(read["detour"], "detour");
    assert_eq!(read["fields"][0], serde_json::json!({ "name": "n", "type": "s64", "fetch": "$retval" }));
    let refused = rows.iter().find(|row| row["function"] == "exc_int3").unwrap();
    assert!(refused["reason"].as_str().unwrap().contains("noinstr"), "{refused}");
}
