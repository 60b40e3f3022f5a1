//! What a probe costs the program that calls the probed function: by the guest's own kprobes, and by ours.

use crate::bochs::{self, Entry, Outcome};
use crate::setup;
use anyhow::{Context as _, ensure};
use guest_kernels::initramfs::ExtraFile;
use guest_kernels::{Cache, DEFAULT_KERNEL};
use serde_json::{Value, json};
use std::path::Path;

/// The names of the commands in Bochs.
const OURS: &str = "calls";
const REFERENCE: &str = "reference";
/// Calls between two looks at the counter.
const AT_ONCE: f64 = 5.0;
/// The row that all others of its function are compared with.
const UNPROBED: &str = "unprobed";

/// The kernel's own probes on the same call, in Debian's kernel that runs in Bochs. Behind ftrace's site, which follows an
/// `endbr64` where there is one, a probe is an `int3`, and stays one.
const SCRIPT: &str = "\
/bin/busybox mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
timed() {
    echo \"row getppid, the guest's own: $1\"
    /bin/workload --steps ticks:400
}
probed() {
    echo \"$2\" > kprobe_events || echo \"$3\" > kprobe_events
    echo 1 > events/bench/call/enable
    timed \"$1\"
    echo 0 > events/bench/call/enable
    echo > kprobe_events
}
timed_program() {
    echo \"row a program's function, the guest's own: $1\"
    /bin/workload --steps called:400
}
probed_program() {
    echo \"$2\" > uprobe_events
    echo 1 > events/bench/call/enable
    timed_program \"$1\"
    echo 0 > events/bench/call/enable
    echo > uprobe_events
}
call=__x64_sys_getppid
timed 'unprobed'
echo 0 > /proc/sys/debug/kprobes-optimization
probed 'kprobe event at the entry' \"p:bench/call $call\"
probed 'kprobe event on an int3' \"p:bench/call $call+9\" \"p:bench/call $call+5\"
probed 'kretprobe event' \"r:bench/call $call\"
echo 1 > events/raw_syscalls/sys_enter/enable
timed 'tracepoint event in its way'
echo 0 > events/raw_syscalls/sys_enter/enable
at=/bin/workload:$(/bin/calls --offset /bin/workload)
timed_program 'unprobed'
probed_program 'uprobe event' \"p:bench/call $at\"
probed_program 'uprobe event with two registers' \"p:bench/call $at a=%di b=%si\"
probed_program 'uretprobe event' \"r:bench/call $at\"
";

/// What the commands need.
pub(super) fn files() -> anyhow::Result<Vec<ExtraFile>> {
    let cache = Cache::open()?;
    Ok(vec![
        ExtraFile { path: "bench/reference".to_owned(), mode: 0o644, bytes: SCRIPT.into() },
        bochs::file("bin/busybox", 0o755, Path::new("/bin/busybox"))?,
        bochs::file("bin/workload", 0o755, &setup::build("workload", "workload")?)?,
        bochs::file("bin/calls", 0o755, &setup::build("tests", "calls")?)?,
        bochs::file("guest/vmlinuz", 0o644, &cache.kernel(&DEFAULT_KERNEL)?.image)?,
        bochs::file("guest/initramfs", 0o644, &cache.initramfs()?)?,
    ])
}

/// The commands.
pub(super) fn entries() -> [Entry; 2] {
    [
        Entry::new(REFERENCE, &["/bin/busybox", "sh", "/bench/reference"]),
        Entry::new(OURS, &["/bin/calls"])
            .env("VMM_CONTRACT_REQUIRED", "1")
            .env("VMM_GUEST_KERNEL_6_12", "/guest/vmlinuz")
            .env("VMM_GUEST_INITRD", "/guest/initramfs"),
    ]
}

/// The rows of both.
pub(super) fn rows(outcomes: &[Outcome]) -> anyhow::Result<Vec<Value>> {
    let mut rows = reference(super::of(outcomes, REFERENCE)?)?;
    rows.extend(ours(super::of(outcomes, OURS)?)?);
    Ok(rows)
}

/// The rows of what the script printed: a line with a row's name, and one of the workload's.
fn reference(outcome: &Outcome) -> anyhow::Result<Vec<Value>> {
    let mut name = None;
    let mut rows = Vec::new();
    for line in outcome.output.iter().map(|line| line.trim()) {
        if let Some(row) = line.strip_prefix("row ") {
            name = Some(row);
        } else if let Some(said) = line.strip_prefix("workload: ticks ") {
            let name = name.take().context("a figure without a name")?;
            rows.push(row(name, said, "the guest's")?);
        }
    }
    above(rows, 9)
}

/// The rows that the program printed.
fn ours(outcome: &Outcome) -> anyhow::Result<Vec<Value>> {
    let printed = outcome.output.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let rows = printed.map(|printed| {
        let text = |key| printed.get(key).and_then(Value::as_str).with_context(|| format!("no {key}"));
        row(text("row")?, text("said")?, text("on")?)
    });
    above(rows.collect::<anyhow::Result<_>>()?, 17)
}

/// A row of what the workload said of its calls.
fn row(name: &str, said: &str, on: &str) -> anyhow::Result<Value> {
    let number = |key: &str| {
        let word = said.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let number = word.and_then(|word| word.parse::<f64>().ok());
        number.map(|ticks| ticks / AT_ONCE).with_context(|| format!("no {key} in `{said}`"))
    };
    Ok(json!({
        "row": name, "unit": "ticks", "on": on, "least": number("least")?, "median": number("median")?,
    }))
}

/// Of so many ways: adds to each row by how much its least is above that of the same function's unprobed call, and shows it.
fn above(mut rows: Vec<Value>, ways: usize) -> anyhow::Result<Vec<Value>> {
    let least = |row: &Value| row.get("least").and_then(Value::as_f64);
    let name = |row: &Value| row.get("row").and_then(Value::as_str).unwrap_or_default().to_owned();
    let function = |name: &str| name.split(',').next().unwrap_or_default().to_owned();
    let unprobed: Vec<_> = rows.iter().filter(|row| name(row).ends_with(UNPROBED)).cloned().collect();
    ensure!(rows.len() == ways, "{} ways were timed", rows.len());
    for row in &mut rows {
        let own = function(&name(row));
        let unprobed = unprobed.iter().find(|unprobed| function(&name(unprobed)) == own).and_then(least);
        let added = least(row).unwrap_or_default() - unprobed.context("no unprobed call was timed")?;
        println!(
            "bench: {}: {} instructions at least ({added:+.1}), {} in the median",
            row["row"].as_str().unwrap_or_default(),
            row["least"],
            row["median"]
        );
        row["added"] = json!(added);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(lines: &[String]) -> Outcome {
        Outcome { output: lines.to_vec(), ..Outcome::default() }
    }

    fn printed(names: &[&str]) -> Vec<String> {
        let lines = |(n, name): (usize, &&str)| {
            [format!("row {name}"), format!("workload: ticks calls=2000 least={} median=9000", 1780 + 50 * n)]
        };
        names.iter().enumerate().flat_map(lines).collect()
    }

    #[test]
    fn each_way_is_compared_with_the_unprobed_call() {
        let names = ["f, unprobed", "f, a", "f, b", "f, c", "f, d", "g, unprobed", "g, a", "g, b", "g, c"];
        let lines = printed(&names);
        let rows = reference(&outcome(&lines)).unwrap();
        let added: Vec<_> = rows.iter().map(|row| row["added"].as_f64().unwrap()).collect();
        assert_eq!(added, [0.0, 10.0, 20.0, 30.0, 40.0, 0.0, 10.0, 20.0, 30.0]);
        assert_eq!((rows[0]["least"].as_f64(), rows[0]["median"].as_f64()), (Some(356.0), Some(1800.0)));
        assert!(reference(&outcome(&lines[..8])).is_err(), "one way was not timed");
        assert!(reference(&outcome(&lines[1..])).is_err(), "a figure has no name");
    }
}
