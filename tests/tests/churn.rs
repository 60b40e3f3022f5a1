//! A guarded kernel that nobody attacks, however much it changes itself: five boots, with `VMM_LONG` set. Nothing may be found, neither
//! while it runs nor in its memory at the end.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use std::fs;
use tests::product::{binary, guard, kernel, module};

/// In one of them, all of the kernel's functions are traced once.
const BOOTS: u32 = 5;
const ROUNDS: u32 = 20;

/// Modules, the kernel's own tracer on some hundred functions, its probes, its jump labels and static calls, a program that is another
/// user's (set-id), one that dumps core, and a filter, which the kernel compiles.
const CHURN: &str = r#"
set -e
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
if [ "$ALL" = 1 ]; then
    echo function > current_tracer
    cat /proc/version > /dev/null
    echo nop > current_tracer
fi
echo 'vfs_*' > set_ftrace_filter
for round in $(seq "$ROUNDS"); do
    insmod "$MODULE"
    echo function > current_tracer
    echo 'p:mine do_sys_openat2' > kprobe_events
    echo 'r:back vfs_read' >> kprobe_events
    echo 1 > events/kprobes/enable
    echo 1 > events/sched/enable
    cat /proc/version > /dev/null
    setpriv --reuid=65534 --regid=65534 --clear-groups /usr/bin/su --version > /dev/null
    (ulimit -c unlimited; cd /tmp; sh -c 'kill -SEGV $$' || true)
    /usr/bin/python3 -c "$FILTER"
    echo 0 > events/sched/enable
    echo 0 > events/kprobes/enable
    echo > kprobe_events
    rmmod dummy
    echo nop > current_tracer
done
sleep 2
echo the churn is over
"#;

/// A filter of one instruction (`ret`) on a socket.
const FILTER: &str = "\
import socket, struct, ctypes
code = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0xffff))
own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
own.setsockopt(socket.SOL_SOCKET, 26, struct.pack('HL', 1, ctypes.addressof(code)))
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
    let (module, script) = (path("dummy.ko", &module("dummy")), path("churn", CHURN.as_bytes()));
    for boot in 0..BOOTS {
        let all = u8::from(boot == 0);
        let begin = format!("MODULE={module} ROUNDS={ROUNDS} ALL={all} FILTER=\"$FILTER\" sh {script}");
        let begin = format!("FILTER='{}'; {begin}", FILTER.replace('\'', r"'\''"));
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
