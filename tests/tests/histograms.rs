//! The guest as oracle for histograms: the same events with the same `hist` in its own tracefs and through us. Both count
//! the calls of one program, and have to show the same entries and the same totals.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use std::fs;
use tests::product::{Ended, binary, command, initrd_with, kernel};

/// An event's name, its place and arguments, and its histogram.
type Row = (&'static str, &'static str, &'static str);

const ROWS: [Row; 8] = [
    ("path", "do_sys_openat2 path=+0($arg2):ustring", "keys=path"),
    ("flags", "do_sys_openat2 flags=+0($arg3):u64 dfd=$arg1:s32", "keys=flags.hex,dfd:sort=flags"),
    ("log2", "vfs_read count=$arg3:u64", "keys=count.log2:values=count"),
    ("buckets", "vfs_read count=$arg3:u64", "keys=count.buckets=100:values=count:sort=count.descending"),
    ("tasks", "vfs_write count=$arg3:u64", "keys=common_pid.execname:values=hitcount,count"),
    ("caller", "vfs_write caller=$stack0:u64", "keys=caller.sym-offset"),
    ("system", "__x64_sys_getppid nr=+0x78($arg1):s64", "keys=nr.syscall,common_pid"),
    ("two", "vfs_read count=$arg3:u64 pos=$arg2:u64", "keys=count,common_pid:values=count"),
];

/// What we write otherwise than the guest, which writes a negative key as if it had no sign, and system calls by their
/// functions' names: ours, theirs.
const WRITTEN_OTHERWISE: [(&str, &str); 2] =
    [("dfd: -100 ", "dfd: 18446744073709551516 "), ("nr: getppid ", "nr: sys_getppid ")];

const FILTER: &str = "comm == \"subject\"";

/// Defines the events with their histograms, runs the subject, a program of a name of its own, and prints what was counted.
const SCRIPT: &str = r#"
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
while read -r definition; do
    printf '%s\n' "$definition" >> dynamic_events || echo "refused: $definition"
done < /definitions
while read -r event trigger; do
    printf '%s\n' "$trigger" > events/oracle/$event/trigger || echo "refused: $trigger"
done < /triggers
cp /init /tmp/subject
/tmp/subject --steps open:6,getppid:3,walk:3,pipe:4,fork:2
while read -r event trigger; do
    echo "histogram of $event"
    cat events/oracle/$event/hist
done < /triggers
echo "that was all"
"#;

/// What is printed of a histogram: its entries, sorted, as those of equal rank have no order, and then its totals.
fn shown<'a>(lines: impl Iterator<Item = &'a str>) -> (Vec<String>, Vec<String>) {
    let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = lines.map(plain).collect();
    let mut entries: Vec<String> = lines.iter().filter(|line| line.starts_with('{')).cloned().collect();
    entries.sort();
    let totals = lines
        .into_iter()
        .filter(|line| ["Hits: ", "Entries: ", "Dropped: "].iter().any(|total| line.starts_with(total)));
    (entries, totals.collect())
}

#[test]
fn histograms_are_those_of_the_guest() {
    let Some(binary) = binary() else { return };
    let (mut definitions, mut triggers, mut asked) = (String::new(), String::new(), String::new());
    for (event, place, histogram) in ROWS {
        definitions.push_str(&format!("p:oracle/{event} {place}\n"));
        triggers.push_str(&format!("{event} hist:{histogram} if {FILTER}\n"));
        asked.push_str(&format!("p:oracle/{event} {place} hist:{histogram} if {FILTER}\n"));
    }
    let initrd = initrd_with([
        ("script", 0o644, SCRIPT.into()),
        ("definitions", 0o644, definitions.into()),
        ("triggers", 0o644, triggers.into()),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let probes = folder.path().join("probes");
    fs::write(&probes, asked).unwrap();
    let words = [
        "run".to_owned(),
        format!("--kernel={}", kernel().display()),
        format!("--initrd={}", initrd.path().display()),
        format!("--probes={}", probes.display()),
        "--cmdline=workload=sh:/script".to_owned(),
    ];
    let output = command(&binary, folder.path(), &words.each_ref().map(String::as_str)).output().ended();
    let (console, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{console}\n{said}");
    assert!(!console.contains("refused: ") && console.contains("that was all"), "{console}");
    let mut wrong = Vec::new();
    for (event, _, histogram) in ROWS {
        let theirs = console.split(&format!("histogram of {event}\r\n")).nth(1).unwrap_or_default();
        let theirs =
            theirs.lines().take_while(|line| !line.starts_with("histogram of ") && *line != "that was all");
        let ours = said.split(&format!("# oracle/{event}\n")).nth(1).unwrap_or_default();
        // Behind the totals comes the next one, or the summary.
        let ours =
            ours.lines().take_while(|line| !line.starts_with("# oracle/") && !line.starts_with("probe "));
        let (theirs, mut ours) = (shown(theirs), shown(ours));
        for (our, their) in WRITTEN_OTHERWISE {
            ours.0.iter_mut().for_each(|entry| *entry = entry.replace(our, their));
        }
        println!("{event}: {} entries", theirs.0.len());
        if theirs != ours || theirs.0.is_empty() || theirs.1.len() != 3 {
            wrong.push(format!("{event} {histogram}: theirs {theirs:#?}\nours {ours:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n{console}\n{said}", wrong.join("\n"));
}
