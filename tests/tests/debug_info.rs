//! What debuggers find in guests and in their dumps, with the debugging information of the kernel, with `VMM_LONG` set.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use guest_kernels::Cache;
use serde_json::Value;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tests::broken_module::{Bug, broken};
use tests::gdb::{gdb, traced, write_symbols};
use tests::pages::Page;
use tests::product::{initrd_with, module};
use tests::served::{Served, said, text, wait_until};

/// A kernel with debugging information.
struct Subject {
    vmlinux: PathBuf,
    /// What names the kernel, if that is not the one under test.
    words: Vec<String>,
    /// Its module `dummy`.
    dummy: Vec<u8>,
}

impl Subject {
    /// The kernel under test, whose `vmlinux` `cargo xtask test --long debug-info` names.
    fn under_test() -> Option<Self> {
        let Some(vmlinux) = env::var_os("VMM_DEBUG_INFO").map(PathBuf::from) else {
            println!("skipped: VMM_DEBUG_INFO is not set; `cargo xtask test --long debug-info` does that");
            return None;
        };
        Some(Self { vmlinux, words: Vec::new(), dummy: module("dummy") })
    }

    /// The one that `cargo xtask kernels` has built as Linux comes, which `cargo xtask test --long kernels` names.
    fn built() -> Option<Self> {
        let Some(folder) = env::var_os("VMM_BUILT_DEFCONFIG").map(PathBuf::from) else {
            println!(
                "skipped: no kernel that was built is named; `cargo xtask test --long kernels` does that"
            );
            return None;
        };
        let modules = fs::read_dir(folder.join("lib/modules")).unwrap().next().unwrap().unwrap().path();
        let dummy = fs::read(modules.join("kernel/drivers/net/dummy.ko")).unwrap();
        let words = vec!["--kernel".to_owned(), folder.to_str().unwrap().to_owned()];
        Some(Self { vmlinux: folder.join("vmlinux"), words, dummy })
    }

    fn vmlinux(&self) -> &str {
        self.vmlinux.to_str().unwrap()
    }

    /// A guest of it with these words, which has both sockets.
    fn start(&self, words: &[&str]) -> Option<Served> {
        let own = ["run", "--control=guest.sock", "--qmp=qmp.sock", "--cpus=2"];
        let kernel: Vec<&str> = self.words.iter().map(String::as_str).collect();
        Served::start(&[&own, &kernel[..], words].concat(), &["guest.sock", "qmp.sock"])
    }

    /// A guest whose script has said that it is ready, by `rmdir`.
    fn ready(&self, initrd: &Path, cmdline: &str) -> Option<Served> {
        let cmdline = format!("--cmdline=workload=sh:/script {cmdline}");
        let words = ["--probe=__x64_sys_rmdir", "--initrd", initrd.to_str().unwrap(), &cmdline];
        let guest = self.start(&words)?;
        wait_until("the guest is ready", || guest.first_probe()["hits"].as_u64().unwrap() > 0);
        Some(guest)
    }
}

/// Our package for Python.
const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/src");

/// What a program of Python prints, which runs in the guest's folder with drgn and our package, and with `vmm`.
#[track_caller]
fn python(guest: &Served, program: &str) -> String {
    let paths = env::var_os("PATH").unwrap_or_default();
    let own = guest.binary().parent().unwrap().to_owned();
    let paths = env::join_paths([own].into_iter().chain(env::split_paths(&paths))).unwrap();
    let mut python = Command::new("python3");
    python.current_dir(guest.folder()).args(["-c", program]).stdin(Stdio::null());
    let modules =
        env::join_paths([Cache::open().unwrap().python_dir().as_path(), Path::new(PACKAGE)]).unwrap();
    let output = python.env("PYTHONPATH", modules).env("PATH", paths).output();
    let output = output.unwrap();
    println!("{}\n{}", text(&output.stdout), said(&output));
    assert!(output.status.success());
    text(&output.stdout)
}

/// A program's beginning: `prog` with debugging information, and drgn's helpers.
fn opened(how: &str, debug_info: &str) -> String {
    format!(
        "import json\nimport drgn\nfrom drgn.helpers.linux import *\n\
         prog = drgn.Program()\nprog.{how}\nprog.load_debug_info([{debug_info:?}])\n"
    )
}

/// Says what it is, and waits.
const SCRIPT: &str = "insmod /dummy.ko
sleep 3000 &
sleeper=$!
sleep 2
for task in /proc/[0-9]*; do echo \"task ${task#/proc/} $(cat $task/comm)\"; done
sed 's/ .*//; s/^/module /' /proc/modules
sed 's/+.*//; s/.* /frame /' /proc/$sleeper/stack
rmdir /ready
wait
";

/// What the helpers say of tasks, modules, stacks and slabs.
const FOUND: &str = r#"
tasks = {task.pid.value_(): task.comm.string_().decode() for task in for_each_task(prog)}
sleeper = find_task(prog, [pid for pid, comm in tasks.items() if comm == "sleep"][0])
own = find_slab_cache(prog, "task_struct")
slab = {task.value_() for task in slab_cache_for_each_allocated_object(own, "struct task_struct")}
info = slab_object_info(sleeper)
found = {
    "tasks": tasks,
    "sleeper": sleeper.value_(),
    "modules": [module.name.string_().decode() for module in for_each_module(prog)],
    "frames": [frame.name for frame in prog.stack_trace(sleeper)],
    # Where the guest runs, a worker may have gone meanwhile.
    "in_slab": all(task.value_() in slab for task in map(lambda pid: find_task(prog, pid), tasks) if task),
    "slab": [info.slab_cache_name.decode() if hasattr(info, "slab_cache_name") else info.slab_cache.name.string_().decode(), info.address == sleeper.value_(), info.allocated],
}
"#;
const RUNNING: &str = r#"
found["cpus"] = [[frame.name for frame in prog.stack_trace(cpu_curr(prog, cpu))] for cpu in for_each_online_cpu(prog)]
"#;
const PRINTED: &str = "print(json.dumps(found))\n";

/// The kernel's own, with the 0 behind it.
const TASK_COMM_LEN: usize = 16;

/// What the guest has said of itself, in lines of this kind.
fn of_guest<'a>(console: &'a str, kind: &'a str) -> impl Iterator<Item = &'a str> {
    console.lines().filter_map(move |line| line.trim_end().strip_prefix(kind)?.strip_prefix(' '))
}

/// Whether drgn found what the guest had said.
#[track_caller]
fn check(found: &Value, console: &str) {
    let of_drgn = found["tasks"].as_object().unwrap();
    let tasks: BTreeMap<&str, &str> =
        of_guest(console, "task").filter_map(|line| line.split_once(' ')).collect();
    // Those that looked are gone, and workers are called by what they do there.
    let passing = |name: &str| ["sh", "cat"].contains(&name) || name.starts_with("kworker");
    let lasting: Vec<_> = tasks.iter().filter(|(_, name)| !passing(name)).collect();
    assert!(lasting.len() > 10, "{console}");
    for (pid, name) in lasting {
        // The guest knows some longer names than those that its tasks have room for.
        let name: String = name.chars().take(TASK_COMM_LEN - 1).collect();
        assert_eq!(of_drgn.get(*pid).and_then(Value::as_str), Some(&*name), "{pid}");
    }
    let modules: Vec<&str> = of_guest(console, "module").collect();
    assert_eq!(found["modules"], serde_json::json!(modules), "{console}");
    assert!(modules.contains(&"dummy"));
    let frames: Vec<&str> = found["frames"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let mut left = frames.iter();
    let mut count = 0;
    for frame in of_guest(console, "frame") {
        let frame = frame.trim_end_matches("_after_hwframe").split('.').next().unwrap();
        assert!(left.any(|own| own.split('.').next() == Some(frame)), "{frame} is not in {frames:?}");
        count += 1;
    }
    assert!(count > 2, "{console}");
    assert_eq!(found["in_slab"], true);
    assert_eq!(found["slab"], serde_json::json!(["task_struct", true, true]));
}

#[test]
fn helpers_of_drgn_and_crash_find_what_the_guest_says_of_itself() {
    Subject::under_test().iter().for_each(helpers_find);
}

#[test]
fn helpers_find_the_same_in_a_kernel_that_was_built() {
    Subject::built().iter().for_each(helpers_find);
}

fn helpers_find(subject: &Subject) {
    let files = [("dummy.ko", 0o644, subject.dummy.clone()), ("script", 0o644, SCRIPT.as_bytes().to_vec())];
    let initrd = initrd_with(files);
    let Some(mut guest) = subject.ready(initrd.path(), "loglevel=5") else { return };
    let vmlinux = subject.vmlinux();
    let live = opened("set_qemu_qmp('qmp.sock')", vmlinux) + FOUND + PRINTED;
    let live: Value = serde_json::from_str(&python(&guest, &live)).unwrap();
    guest.says(&["dump", "core"]);
    let dumped = opened("set_core_dump('core')", vmlinux) + FOUND + RUNNING + PRINTED;
    let dumped: Value = serde_json::from_str(&python(&guest, &dumped)).unwrap();
    let crashed =
        env::var_os("VMM_CRASH").map(|program| crash(&guest, Path::new(&program), vmlinux, &dumped));
    guest.says(&["quit"]);
    let console = text(&guest.end().stdout);
    check(&live, &console);
    check(&dumped, &console);
    for frames in dumped["cpus"].as_array().unwrap() {
        let has = |name: &str| frames.as_array().unwrap().iter().any(|frame| frame == name);
        assert!(has("do_idle") || has("cpu_startup_entry"), "a CPU at rest: {frames}");
    }
    if let Some(crashed) = crashed {
        for words in ["RELEASE: ", "Linux version ", " dummy "] {
            assert!(crashed.contains(words), "no `{words}` in: {crashed}");
        }
        assert!(crashed.contains("comm = \"sleep\\000"), "{crashed}");
    }
}

/// What `crash` prints of the dump: the machine, its modules, its log, and the task that drgn has found, by its address. The `crash`
/// that knows this kernel's series does not know all of its tasks: a structure has changed in a stable release.
#[track_caller]
fn crash(guest: &Served, program: &Path, vmlinux: &str, dumped: &Value) -> String {
    let mut crash = Command::new(program);
    let crash = crash.args(["-s", vmlinux, "core"]).current_dir(guest.folder());
    let crash = crash.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut crash = crash.spawn().unwrap();
    let task = dumped["sleeper"].as_u64().unwrap();
    let commands = format!("sys\nmod\nlog\nstruct task_struct.comm {task:x}\nquit\n");
    crash.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let output = crash.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    text(&output.stdout)
}

/// gdb has lines, local variables and whole stacks, and the commands that the kernel brings along for gdb, where they are built.
#[test]
fn gdb_and_the_kernels_own_commands_know_types() {
    let Some(subject) = Subject::under_test() else { return };
    let scripts = env::var_os("VMM_GDB_SCRIPTS").map(PathBuf::from);
    let words = ["run", "--gdb=guest.gdb", "--gdb-wait", "--cpus=2", "--probe=__x64_sys_getppid"];
    let work = ["--cmdline=nokaslr workload=open:3,getppid:5 loglevel=5"];
    let Some(mut guest) = Served::start(&[&words[..], &work].concat(), &["guest.gdb"]) else { return };
    write_symbols(&guest, "vmlinux.sym");
    let load = format!("add-symbol-file {}\n", subject.vmlinux());
    let source = |scripts: &Path| format!("add-auto-load-safe-path /\nsource {}\n", scripts.display());
    let sourced = scripts.as_deref().map(source).unwrap_or_default();
    let commands = if scripts.is_some() { COMMANDS } else { "" };
    let said =
        gdb(&guest, Path::new("vmlinux.sym"), &[&load, &sourced, CALLED, commands, INTERRUPTED].concat());
    guest.end();
    assert!(said.contains("do_syscall_64 (regs="), "a stack with its arguments");
    let interrupted = traced(&said, "Breakpoint 3, update_process_times (user_tick=");
    let came = interrupted.iter().rposition(|name| name.contains("sysvec_apic_timer_interrupt"));
    assert!(came.is_some_and(|came| came + 1 < interrupted.len()), "it goes on: {interrupted:?}");
    assert!(said.lines().any(|line| line == "tick=0"));
    if scripts.is_some() {
        for line in ["task=init", "running=1", "Online CPUs   : [0, 1]"] {
            assert!(said.lines().any(|own| own == line), "no `{line}`");
        }
        assert!(said.contains("swapper/0") && said.contains("   1   init"), "lx-ps");
        assert!(said.matches("Linux version ").count() >= 2, "lx-version and lx-dmesg");
    }
}

/// A system call.
const CALLED: &str = "
hbreak *start_kernel
continue
delete
break __x64_sys_getppid
continue
bt
";
/// The kernel's own commands and functions.
const COMMANDS: &str = r#"
printf "task=%s\n", $lx_current().comm
printf "running=%d\n", $lx_per_cpu(runqueues).nr_running > 0
lx-version
lx-ps
lx-cpus
lx-cmdline
lx-dmesg
"#;
/// An interrupt, which came to whatever that CPU did.
const INTERRUPTED: &str = r#"
delete
hbreak update_process_times if user_tick == 0
continue
bt
printf "tick=%d\n", user_tick
detach
"#;

/// What the frames of a CPU are called that reports a bug, and their variables.
const HELD: &str = r#"
regs = json.loads(subprocess.check_output(["vmm", "ctl", "guest.sock", "regs", "--json"]))
traces = [cpu_stack(prog, number) for number in range(len(regs["vcpus"]))]
(trace,) = [trace for trace in traces if "add_taint" in [frame.name for frame in trace]]
frames = []
for frame in trace:
    values = {name: frame[name] for name in frame.locals()}
    known = {name: value for name, value in values.items() if not value.absent_}
    frames.append({"name": frame.name, "locals": {name: value.format_(dereference=False) for name, value in known.items()}})
print(json.dumps(frames))
"#;

/// The program of the docs, at a hit of a task that reads one file.
#[test]
fn at_a_hit_of_python_objects_have_types() {
    let Some(subject) = Subject::under_test() else { return };
    let reads = b"rmdir /ready\nwhile read line < /proc/version; do sleep 1; done\n".to_vec();
    let initrd = initrd_with([("script", 0o644, reads)]);
    let Some(mut guest) = subject.ready(initrd.path(), "") else { return };
    symlink(subject.vmlinux(), guest.folder().join("vmlinux")).unwrap();
    let shown = Page::open("docs/python.md");
    assert_eq!(python(&guest, shown.drgn().unwrap()), "sh reads version\n");
    guest.end();
}

#[test]
fn a_task_that_warns_is_held_with_its_variables() {
    let Some(subject) = Subject::under_test() else { return };
    let initrd = initrd_with([
        ("warn.ko", 0o644, broken(Bug::InterruptsOff, b"warns")),
        ("script", 0o644, b"insmod /warn.ko\n".to_vec()),
    ]);
    let initrd = initrd.path().to_str().unwrap();
    let Some(mut guest) =
        subject.start(&["--splat=hold", "--initrd", initrd, "--cmdline=workload=sh:/script"])
    else {
        return;
    };
    wait_until("a report", || guest.says(&["stack"]).contains("add_taint"));
    let shown = Page::open("docs/drgn.md");
    let program = opened("set_qemu_qmp('qmp.sock')", subject.vmlinux());
    let frames = python(&guest, &(program + shown.python().unwrap() + HELD));
    let frames: Vec<Value> = serde_json::from_str(&frames).unwrap();
    guest.says(&["quit"]);
    guest.end();
    let locals = |name: &str| {
        let frame = frames.iter().find(|frame| frame["name"] == name);
        &frame.unwrap_or_else(|| panic!("no {name} in {frames:#?}"))["locals"]
    };
    // TAINT_WARN
    assert_eq!(locals("add_taint")["flag"], "(unsigned int)9");
    let message = locals("do_one_initcall")["msgbuf"].as_str().unwrap();
    assert!(message.contains("disabled interrupts"), "{message}");
}
