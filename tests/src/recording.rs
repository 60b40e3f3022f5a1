//! A recording as `vmm run --output` writes it, of a guest that nobody has run: what is in it is known beforehand.

use serde_json::{Value, json};
use std::io::Write;

/// What a hostile guest calls its processes and files.
pub const HOSTILE: &str =
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`\u{1b}[2J\u{202e}\u{0}&amp;";
/// The same as the name of a process, which has fifteen bytes.
pub const HOSTILE_COMM: &str = "<b>\"'&\u{1b}</b>";

/// By what the hits of one are known.
#[derive(Clone, Copy)]
pub struct Size {
    /// How many there are.
    pub hits: u64,
    /// Whether each has a stack.
    pub has_stacks: bool,
}

/// When the first hit is, in nanoseconds, and how far one is from the next.
pub const FIRST: u64 = 3_000_000_000;
/// See [`FIRST`].
pub const STEP: u64 = 1_000;

/// The functions that stacks begin in, each with how many of nine hits it has.
pub const LEAVES: [(&str, u64); 3] = [("vfs_open", 4), ("vfs_read", 3), ("do_exit", 2)];

/// Of each ten hits, so many are of each probe: opens, reads that return, and writes of a watched variable.
pub const SHARES: [(&str, u64); 3] = [("do_sys_openat2", 5), ("vfs_read%return", 4), ("jiffies:8:w", 1)];

/// How long the call of a hit took, in nanoseconds.
pub fn took(hit: u64) -> u64 {
    100 << (hit % 7)
}

/// The probe of a hit, as an index of [`SHARES`].
pub fn probe(hit: u64) -> usize {
    match hit % 10 {
        0..5 => 0,
        5..9 => 1,
        _ => 2,
    }
}

/// The innermost function of a hit's stack.
pub fn leaf(hit: u64) -> &'static str {
    let mut of_nine = hit % 9;
    for (name, share) in LEAVES {
        if of_nine < share {
            return name;
        }
        of_nine -= share;
    }
    unreachable!("shares are nine together")
}

/// The first line.
pub fn header() -> Value {
    json!({
        "type": "header", "format": 1, "vmm": "0.1.0", "wall_ns": 1_764_081_801_000_000_000_u64,
        "kernel": { "release": "6.12.48-test", "build_id": "0123456789abcdef0123456789abcdef01234567" },
        "slide": "0x1000000", "cmdline": "console=ttyS0", "host": "emulated", "cpus": 2, "scope": "boot",
        "command": ["head", "-n", "1", "/etc/passwd"], "clocks": { "time_ns": "host", "guest_ns": "guest" },
    })
}

/// Writes a recording.
pub fn write(out: &mut impl Write, size: Size) {
    let mut line = |value: Value| writeln!(out, "{value}").unwrap();
    line(header());
    let fields = [
        json!([{ "name": "dfd", "type": "s32", "shape": "Signed" }, { "name": "filename", "type": "string", "shape": "Text" }]),
        json!([{ "name": "return", "type": "s64", "shape": "Result" }]),
        json!([]),
    ];
    let styles = ["call", "call", "registers"];
    let kinds = ["k", "r", "w"];
    for (id, ((name, _), fields)) in SHARES.iter().zip(fields).enumerate() {
        line(json!({
            "type": "registered", "id": id, "probe": name, "place": name.trim_end_matches("%return"),
            "kind": (kinds[id]), "event": null, "style": (styles[id]), "module": null, "pattern": null,
            "address": "0xffffffff81442060", "shown": true, "histogram": null, "fields": fields,
        }));
    }
    for hit in 0..size.hits {
        line(hit_line(hit, size.has_stacks));
    }
    for (keys, hitcount) in [(json!({ "comm": "init" }), 30), (json!({ "comm": HOSTILE_COMM }), 12)] {
        line(json!({
            "type": "entry", "histogram": "by name", "keys": keys, "hitcount": hitcount, "values": {}, "text": "{ .. }",
        }));
    }
    line(json!({
        "type": "histogram", "histogram": "by name", "definition": "hist:keys=comm", "hits": 42, "entries": 2,
        "dropped": 0,
    }));
    for (id, (name, _)) in SHARES.iter().enumerate() {
        let hits = (0..size.hits).filter(|hit| probe(*hit) == id).count();
        let (missed, reasons) =
            if id == 1 { (7, "7 with too many calls under way (--maxactive)") } else { (0, "") };
        line(json!({
            "type": "probe", "id": id, "probe": name, "kind": (kinds[id]), "module": null,
            "address": "0xffffffff82442060", "hits": hits, "outside": 0, "missed": missed, "reasons": reasons,
            "outstanding": 0, "state": "[OPTIMIZED]", "trapped": null,
        }));
    }
    line(json!({
        "type": "end", "end": "powered off", "waits": 0, "exits": null, "ran_ns": FIRST + STEP * size.hits,
        "armed_us": 10, "disarmed_us": 10,
    }));
}

/// The line of a hit. The first ones are before the guest's clock is known.
fn hit_line(hit: u64, has_stack: bool) -> Value {
    let probe = probe(hit);
    let time = FIRST + STEP * hit;
    let comm = ["init", "cat", HOSTILE_COMM, "kworker/0:1"][(hit % 4) as usize];
    let kind = ["hit", "return", "access"][probe];
    let mut line = json!({
        "type": kind, "time_ns": time,
        "guest_ns": (hit >= 3).then(|| time - 1_000_000_000), "vcpu": hit / 3 % 2, "id": probe,
        "probe": (SHARES[probe].0), "event": null, "rip": "0xffffffff82442060",
        "task": {
            "comm": comm, "pid": 100 + hit % 4, "tgid": 100 + hit % 4, "ns_pid": null, "uid": 0, "context": null,
            "at": "0xffff888000000000",
        },
        "fields": null, "stack": null,
    });
    match probe {
        0 => {
            let file = if hit % 100 == 1 { HOSTILE.to_owned() } else { format!("/etc/file-{}", hit % 50) };
            line["args"] = json!(["0x1", "0x2", "0x3", "0x4", "0x5", "0x6"]);
            line["fields"] = json!({ "dfd": -100, "filename": file });
        }
        1 => {
            line["value"] = json!("0x20");
            line["duration_ns"] = json!(took(hit));
            line["fields"] = json!({ "return": 32 });
        }
        _ => (line["old"], line["new"]) = (json!("0x1"), json!("0x2")),
    }
    if has_stack {
        let frame = |name: &str, offset: u64| json!({ "address": "0xffffffff82442060", "name": format!("{name}+{offset:#x}/0x100") });
        line["stack"] = json!([
            frame(leaf(hit), 4),
            frame("do_syscall_64", 0x80 + hit % 2),
            frame("entry_SYSCALL_64", 0x76)
        ]);
        line["stack_end"] = json!("bottom");
    }
    line
}
