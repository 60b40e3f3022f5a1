//! `vmm report`: a recording is shown as the run was, and in forms that other programs read.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use guest_kernels::Cache;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use tests::product::{Ended, binary, command, json_lines, report};

/// Counts what is in a trace for Perfetto, by the messages of Perfetto's own package, which has to know every field.
const READ_TRACE: &str = r#"
import collections, json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

def check(message):
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.message_type:
            for one in value if field.is_repeated else [value]:
                check(one)

data = open(sys.argv[1], "rb").read()
trace = Trace()
trace.ParseFromString(data)
check(trace)
seen = collections.Counter()
names, annotations, tracks = {}, {}, {}
values = set()
for packet in trace.packet:
    assert packet.trusted_packet_sequence_id == 1
    assert packet.sequence_flags in (1, 2)
    for name in packet.interned_data.event_names:
        names[name.iid] = name.name
    for name in packet.interned_data.debug_annotation_names:
        annotations[name.iid] = name.name
    if packet.HasField("track_descriptor"):
        tracks[packet.track_descriptor.uuid] = packet.track_descriptor
    if packet.HasField("track_event"):
        event = packet.track_event
        track = tracks[event.track_uuid]
        kind = TrackEvent.Type.Name(event.type)
        on = "thread" if track.HasField("thread") else "track"
        seen[f"{kind} {on} {names[event.name_iid]}"] += 1
        for annotation in event.debug_annotations:
            value = getattr(annotation, annotation.WhichOneof("value"))
            values.add(f"{annotations[annotation.name_iid]}={value}")
clock = {clock.clock_id: clock.timestamp for clock in trace.packet[0].clock_snapshot.clocks}
print(json.dumps({"seen": seen, "values": sorted(values), "clock": clock}))
"#;

/// Runs a guest with `words` whose hits are shown and recorded, at `recording`; gives what was shown.
fn run(binary: &Path, recording: &Path, words: &[&str]) -> String {
    record(binary, recording, &[&["run", "--cpus=2"], words].concat())
}

/// Runs these words, and records and shows what is seen. Gives what was shown.
fn record(binary: &Path, recording: &Path, words: &[&str]) -> String {
    let place = ["--format=text", "--output", recording.to_str().unwrap()];
    let ran = command(binary, recording.parent().unwrap(), &[words, &place].concat()).output().ended();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.success(), "{said}");
    let where_it_is = format!("vmm: the recording is in {}\n", recording.display());
    assert!(said.ends_with(&where_it_is), "{said}");
    said.split_inclusive('\n').filter(|line| !line.starts_with("vmm: ")).collect()
}

/// What `docs/recording.md` has as its example in a block of this kind.
fn example(kind: &str) -> String {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/recording.md")).unwrap();
    let block = page.split(&format!("```{kind}\n")).nth(1).unwrap();
    block.split("```").next().unwrap().to_owned()
}

/// Takes one request, whose body it gives.
fn take_request(listener: &TcpListener) -> Value {
    let mut stream = BufReader::new(listener.accept().unwrap().0);
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let line = line.to_ascii_lowercase();
        if let Some(number) = line.strip_prefix("content-length: ") {
            length = number.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    stream.get_mut().write_all(answer).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// The end of the recording ends what sends it, and not the signal that a terminal sends to all of a pipe.
#[test]
fn findings_are_sent_while_the_guest_runs_and_once_more_after_a_signal() {
    let Some(binary) = binary() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let mut sender = Command::new(&binary)
        .args(["report", "-", "--format=otlp", "--to", &endpoint])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut recording = sender.stdin.take().unwrap();
    let text = example("jsonl finding");
    for (number, line) in text.split_inclusive('\n').enumerate() {
        recording.write_all(line.as_bytes()).unwrap();
        if line.contains("\"type\":\"finding\"") {
            let request = take_request(&listener);
            let logs = &request["resourceLogs"][0]["scopeLogs"][0]["logRecords"];
            assert_eq!(logs.as_array().unwrap().len(), 1, "{request}");
            assert_eq!(logs[0]["eventName"], "vmm.guard.finding", "line {number}");
            if number == 1 {
                kill_process(Pid::from_child(&sender), Signal::INT).unwrap();
            }
        }
    }
    drop(recording);
    let output = sender.wait_with_output().ended();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(said, format!("vmm: 2 events were delivered to {endpoint}\n"));
    assert!(output.stdout.is_empty());
}

#[test]
fn what_nobody_takes_is_no_success() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    fs::write(&recording, example("jsonl finding")).unwrap();
    let endpoint = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let words = ["report", recording.to_str().unwrap(), "--format=otlp", "--to", &endpoint];
    let output = command(&binary, folder.path(), &words).output().ended();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("the receiver does not take events: Connection refused"), "{said}");
    assert!(
        said.contains(&format!("2 of 2 events were not delivered to {endpoint}: Connection refused")),
        "{said}"
    );
}

/// Whoever reads the first lines alone is not told that the recording has no more.
#[test]
fn a_reader_that_goes_early_finds_nothing_wrong() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("hits.json");
    let example = example("json");
    let hit = example.split_inclusive('\n').find(|line| line.contains("\"type\":\"hit\"")).unwrap();
    fs::write(&recording, example.replacen(hit, &hit.repeat(5000), 1)).unwrap();
    let mut report = Command::new(&binary)
        .arg("report")
        .arg(&recording)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 64];
    report.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = report.wait_with_output().ended();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success() && first.starts_with(b"["));
}

/// What Perfetto's package finds in a trace.
fn read_trace(trace: &Path) -> Value {
    let packages = Cache::open().unwrap().python_dir();
    let mut python = Command::new("python3");
    python.args(["-c", READ_TRACE]).arg(trace).env("PYTHONPATH", packages);
    let read = python.output().expect("no python3: run `cargo xtask setup`");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    serde_json::from_slice(&read.stdout).unwrap()
}

#[test]
fn a_recording_is_shown_as_the_run_was() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let shown = run(
        &binary,
        &recording,
        &[
            "--graph=vfs_*",
            "--count=do_filp_*",
            "--probe=do_sys_openat2",
            "--probe=p:opens do_sys_openat2 dfd filename:string flags=how->flags:x64 $comm if dfd == -100",
            "--probe=r vfs_read ret=$retval",
            "--probe=p vfs_write hist:keys=comm,count.log2:vals=count",
            "--probe=p vfs_open hist:keys=common_pid.execname",
            "--watch=panic_on_oops:4:w",
            "--append=workload=open:5,pipe:5",
        ],
    );
    let again = String::from_utf8(report(&binary, &recording, &[])).unwrap();
    assert_eq!(again, shown);
    for part in
        ["do_sys_openat2(dfd=", "opens: (do_sys_openat2) ", " us | ", "# event histogram", "function: "]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let lines = json_lines(&fs::read(&recording).unwrap());
    let header = &lines[0];
    assert!(header["kernel"]["release"].as_str().unwrap().contains('.'), "{header}");
    assert!(header["kernel"]["build_id"].as_str().unwrap().len() == 40, "{header}");
    assert!(header["slide"].as_str().unwrap().starts_with("0x"), "{header}");
    let began = std::time::Duration::from_nanos(header["wall_ns"].as_u64().unwrap());
    assert!((std::time::UNIX_EPOCH + began).elapsed().unwrap().as_secs() < 600, "{header}");
    assert_eq!(report(&binary, &recording, &["--format=json"]), fs::read(&recording).unwrap());
}

#[test]
fn a_recording_of_coverage_is_shown_as_the_run_was() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let shown =
        record(&binary, &recording, &["coverage", "vfs_*", "do_sys_open*", "--append=workload=open:1"]);
    assert_eq!(String::from_utf8(report(&binary, &recording, &[])).unwrap(), shown);
    assert!(shown.contains(" vfs_open\n") && shown.contains("\nprefix  "), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("all  ")), "{shown}");
    let chosen =
        Command::new(&binary).arg("report").arg(&recording).args(["--filter", "cpu == 0"]).output().unwrap();
    let said = String::from_utf8(chosen.stderr).unwrap();
    assert!(chosen.status.code() == Some(2) && said.contains("has no hits"), "{said}");
}

#[test]
fn quiet_says_nothing_of_files() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (recording, page) = (folder.path().join("recording"), folder.path().join("page"));
    for (words, file, expected) in [
        (&["count", "vfs_open", "--append=workload=open:1"][..], &recording, "the recording"),
        (&["report", recording.to_str().unwrap(), "--format=html"], &page, "the report"),
    ] {
        let place = ["--output", file.to_str().unwrap()];
        let said = |more: &[&str]| {
            let output = command(&binary, folder.path(), &[words, &place, more].concat()).output().ended();
            assert!(output.status.success());
            String::from_utf8(output.stderr).unwrap()
        };
        let line = format!("vmm: {expected} is in {}\n", file.display());
        assert!(said(&[]).ends_with(&line), "{line}");
        assert_eq!(said(&["--quiet"]), "");
    }
}

#[test]
fn stacks_and_traces_are_what_was_recorded() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let words = ["--stack", "--probe=vfs_open", "--probe=vfs_read%return", "--append=workload=open:5"];
    let shown = run(&binary, &recording, &words);
    assert_eq!(String::from_utf8(report(&binary, &recording, &[])).unwrap(), shown);
    let lines = json_lines(&fs::read(&recording).unwrap());
    let count = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count() as u64;
    let (hits, returns) = (count("hit"), count("return"));
    assert!(hits >= 5 && returns >= 5, "{shown}");

    let folded = String::from_utf8(report(&binary, &recording, &["--format=folded"])).unwrap();
    let counts = folded.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap());
    assert_eq!(counts.sum::<u64>(), hits + returns, "{folded}");
    let of_init = |line: &str| line.starts_with("init;") && line.contains(";do_syscall_64;");
    assert!(folded.lines().any(|line| of_init(line) && line.contains(";vfs_open ")), "{folded}");

    let svg = String::from_utf8(report(&binary, &recording, &["--format=svg"])).unwrap();
    assert!(svg.starts_with("<?xml") && svg.contains("<title>do_syscall_64 ("), "{svg:.2000}");

    let trace = folder.path().join("trace");
    report(&binary, &recording, &["--format=perfetto", "--output", trace.to_str().unwrap()]);
    let read = read_trace(&trace);
    let sum = |of: &str, names: &str| -> u64 {
        let seen = read["seen"].as_object().unwrap().iter();
        seen.filter(|(key, _)| key.starts_with(of) && key.ends_with(names))
            .filter_map(|(_, n)| n.as_u64())
            .sum()
    };
    assert_eq!(sum("TYPE_SLICE_BEGIN", " vfs_read"), returns, "{read:#}");
    assert_eq!(sum("TYPE_SLICE_END", " vfs_read"), returns, "{read:#}");
    // Each hit is on its CPU's track besides.
    assert_eq!(sum("TYPE_INSTANT", " vfs_open"), 2 * hits, "{read:#}");
    assert!(sum("TYPE_INSTANT thread", " vfs_open") > 0, "{read:#}");
    assert_eq!(&read["clock"]["1"], &lines[0]["wall_ns"]);
    let values = read["values"].as_array().unwrap();
    let has = |begin: &str| values.iter().any(|value| value.as_str().unwrap().starts_with(begin));
    assert!(has("return=") && has("path=") && has("stack=vfs_open+"), "{values:#?}");
}

/// What a hostile or a broken disk leaves.
#[test]
fn a_recording_that_is_cut_or_none_is_spoken_of() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let example = example("json");
    let path = folder.path().join("recording");
    let said = |recording: &[u8]| {
        fs::write(&path, recording).unwrap();
        let output = Command::new(&binary).arg("report").arg(&path).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), said)
    };
    let (code, whole, words) = said(example.as_bytes());
    assert_eq!((code, &*words), (Some(0), ""), "{whole}");
    let (code, shown, words) = said(&example.as_bytes()[..example.find("\"type\":\"return\"").unwrap()]);
    assert!(code == Some(0) && words.contains(" is cut: it ends before the run did\n"), "{words}");
    assert!(whole.starts_with(&shown) && shown.contains("do_sys_openat2(dfd=-100"), "{shown}");
    for (wrong, expected) in [
        (example.replacen("\"format\":1", "\"format\":9", 1), "it has format 9, and this vmm reads format 1"),
        ("\u{7f}ELF\n".to_owned(), "it is no recording of vmm"),
        (String::new(), "it is no recording of vmm: it is empty"),
        (example.replacen("\"args\":[", "\"args\":{", 1), "its line 6 is damaged"),
    ] {
        let (code, _, words) = said(wrong.as_bytes());
        assert!(code == Some(2) && words.lines().count() == 1 && words.contains(expected), "{words}");
    }
}

/// Every stream of JSON, as `jq` reads it.
#[test]
fn jq_reads_every_stream_of_json() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    run(&binary, &recording, &["--probe=rest_init", "--append=workload=open:1"]);
    let path = recording.to_str().unwrap();
    for words in [
        &["run", "--dry-run", "--format=json", "--probe=vfs_*"][..],
        &["list", "--format=json", "vfs_*"],
        &["doctor", "--json", "--host=kvm"],
        &["report", path, "--format=json"],
        &["run", "--format=json", "--probe=rest_init", "--append=workload=open:1"],
        &["count", "--format=json", "vfs_*", "--append=workload=open:1"],
        &["graph", "--format=json", "do_filp_*", "--append=workload=open:1"],
        &["coverage", "--format=json", "vfs_*", "--append=workload=open:1"],
    ] {
        let output = command(&binary, folder.path(), words).output().ended();
        let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        let text = folder.path().join("stream");
        fs::write(&text, &output.stdout).unwrap();
        let jq =
            Command::new("jq").args(["-c", "."]).arg(&text).output().expect("no jq: run `cargo xtask setup`");
        let read = jq.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
        assert!(jq.status.success(), "{words:?}: {}", String::from_utf8_lossy(&jq.stderr));
        assert!(lines > 0 && read == lines, "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
