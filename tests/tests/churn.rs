//! A guarded kernel that nobody attacks, however much it changes itself: five boots, with `VMM_LONG` set. Nothing may be found, neither
//! while it runs nor in its memory at the end. In the emulated host each write of the kernel's to its code takes some 10 ms, so the rounds
//! are few, and not all functions are traced.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use std::fs;
use tests::product::{binary, guard, kernel, module};

const BOOTS: u32 = 5;

/// Modules, the kernel's own tracer on some hundred functions, its probes, its jump labels and static calls, a program that is another
/// user's (set-id), one that dumps core, and a filter, which the kernel compiles.
const CHURN: &str = r#"
set -e
cd /sys/kernel/tracing
if [ -n "$TRACED" ]; then
    echo "$TRACED" > set_ftrace_filter
    echo function > current_tracer
    cat /proc/version > /dev/null
    echo nop > current_tracer
fi
echo 'vfs_*' > set_ftrace_filter
for round in $(seq "$ROUNDS"); do
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
done
sleep 2
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
    let Some(binary) = binary().filter(|_| std::env::var_os("VMM_LONG").is_some()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let module = path("dummy.ko", &module("dummy"));
    let script = path("churn", CHURN.as_bytes());
    let [load, unload] = [LOAD, UNLOAD].map(|code| code.replace('\'', "'\\''"));
    let is_emulated = std::env::var_os("VMM_TEST_HOST").is_some_and(|host| host == "emulated");
    let (rounds, most) = if is_emulated { (4, "*read*") } else { (20, "*") };
    for boot in 0..BOOTS {
        let traced = if boot == 0 { most } else { "" };
        let names =
            format!("LOAD='{load}' UNLOAD='{unload}' MODULE={module} ROUNDS={rounds} TRACED='{traced}'");
        let begin = format!("{names} sh {script}");
        let run =
            guard(&binary, &["--kernel", kernel().to_str().unwrap(), "--cpus=2", "--", "sh", "-c", &begin]);
        run.assert_success();
        assert!(run.console.contains("the churn is over"), "{}{}", run.console, run.said);
        let of_type = |kind| run.output.iter().filter(move |line| line["type"] == kind);
        let found: Vec<_> = of_type("finding").chain(of_type("scan_finding")).collect();
        assert!(found.is_empty(), "boot {boot}: {found:#?}");
        for check in of_type("scan_check") {
            assert_eq!((&check["findings"], &check["failure"]), (&0.into(), &Value::Null), "{check}");
        }
        let guard = of_type("guard").next().unwrap();
        println!("boot {boot}: {guard}");
        assert_eq!(guard["findings"], 0);
    }
}
