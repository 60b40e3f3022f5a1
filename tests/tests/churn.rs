//! A guarded kernel that nobody attacks, however much it changes itself: one boot, with `VMM_LONG` set, with all shipped rules and a scan every
//! ten seconds. Nothing may be found, neither while it runs nor in its memory at the end. `VMM_CHURN_BOOT` says which boot that is: each
//! traces another fifth of all functions.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use std::collections::BTreeSet;
use std::{env, fs};
use tests::product::{Run, binary, guard, kernel, module};

/// So many boots trace all functions.
const PARTS: u32 = 5;
/// Rules about what happens here. Others would tell what nobody has done.
const HAPPENS: [&str; 8] = [
    "execution",
    "module-load",
    "kernel-probe",
    "kernel-hook",
    "kernel-helper",
    "bpf-load",
    "becomes-root",
    "mount",
];

/// All functions of a part by the kernel's own tracer, a thousand at a time; then, in 20 rounds, a module, the tracer on some hundred
/// functions, the kernel's own probes, its jump labels and static calls, a program that is another user's (set-id), one that dumps core,
/// a filter, which the kernel compiles, and a CPU that goes and comes.
const CHURN: &str = r#"
set -e
cd /sys/kernel/tracing
all=$(wc -l < available_filter_functions)
from=$((all * PART / PARTS + 1))
end=$((all * (PART + 1) / PARTS))
while [ $from -le $end ]; do
    to=$((from + 999))
    [ $to -le $end ] || to=$end
    seq $from $to > set_ftrace_filter
    echo function > current_tracer
    cat /proc/version > /dev/null
    echo nop > current_tracer
    from=$((to + 1))
done
echo "traced up to $end of $all"
echo 'vfs_*' > set_ftrace_filter
for round in $(seq 20); do
    /usr/bin/python3 -c "$LOAD" "$MODULE"
    echo function > current_tracer
    echo 'p:mine do_sys_openat2' > kprobe_events
    echo 'r:back vfs_read' >> kprobe_events
    echo 1 > events/kprobes/enable
    echo 1 > events/sched/enable
    cat /proc/version > /dev/null
    setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/su --version > /dev/null
    (ulimit -c unlimited; cd /tmp; sh -c 'kill -SEGV $$' || true)
    echo 0 > events/sched/enable
    echo 0 > events/kprobes/enable
    echo > kprobe_events
    /usr/bin/python3 -c "$UNLOAD"
    echo nop > current_tracer
    echo 0 > /sys/devices/system/cpu/cpu1/online
    echo 1 > /sys/devices/system/cpu/cpu1/online
done
echo the churn is over
"#;

/// Loads a module (finit_module), and has a socket a filter of one instruction (`ret`).
const LOAD: &str = "\
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None)
assert libc.syscall(313, os.open(sys.argv[1], os.O_RDONLY), b'', 0) == 0
code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xffff))
own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
own.setsockopt(socket.SOL_SOCKET, 26, struct.pack('HL', 1, ctypes.addressof(code)))
";
/// Unloads it (delete_module).
const UNLOAD: &str = "\
import ctypes
assert ctypes.CDLL(None).syscall(176, b'dummy', 0) == 0
";

#[test]
fn a_kernel_that_changes_itself_is_not_found_to_be_attacked() {
    let Some(binary) = binary().filter(|_| env::var_os("VMM_LONG").is_some()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let module = path("dummy.ko", &module("dummy"));
    let script = path("churn", CHURN.as_bytes());
    let [load, unload] = [LOAD, UNLOAD].map(|code| code.replace('\'', "'\\''"));
    let boot: u32 = env::var("VMM_CHURN_BOOT").map_or(0, |boot| boot.parse().unwrap());
    let part = boot % PARTS;
    let names = format!("LOAD='{load}' UNLOAD='{unload}' MODULE={module} PART={part} PARTS={PARTS}");
    let begin = format!("{names} sh {script}");
    let kernel = kernel();
    let words = ["--kernel", kernel.to_str().unwrap(), "--cpus=2", "--rules=default", "--scan=10s"];
    let run = guard(&binary, &[&words[..], &["--", "sh", "-c", &begin]].concat());
    run.assert_success();
    assert!(run.console.contains("the churn is over"), "{}{}", run.console, run.said);
    let found: Vec<_> = ["finding", "scan_finding"].into_iter().flat_map(|kind| run.of_type(kind)).collect();
    assert!(found.is_empty(), "boot {boot}: {found:#?}");
    for check in run.of_type("scan_check") {
        assert_eq!((&check["findings"], &check["failure"]), (&0.into(), &Value::Null), "{check}");
    }
    let hit = rules_that_hit(&run);
    let told = hit.iter().filter(|rule| !HAPPENS.contains(&rule.as_str())).collect::<Vec<_>>();
    assert!(told.is_empty(), "boot {boot}: {told:?}");
    let guard = run.of_type("guard")[0];
    println!("boot {boot}: {hit:?} {guard}");
    assert_eq!((&guard["findings"], &guard["unsealed_modules"]), (&0.into(), &0.into()));
}

/// The rules that have told something.
fn rules_that_hit(run: &Run) -> BTreeSet<String> {
    let hits: BTreeSet<u64> = run.of_type("hit").iter().filter_map(|hit| hit["id"].as_u64()).collect();
    let probes = run.of_type("registered").into_iter();
    let hit = probes.filter(|probe| probe["id"].as_u64().is_some_and(|id| hits.contains(&id)));
    hit.filter_map(|probe| probe["rule"].as_str().map(str::to_owned)).collect()
}
