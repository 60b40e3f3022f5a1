//! Live control of a guest that runs: probes come and go, several clients at once.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use guest_kernels::console::{complaint, number};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tests::kernel::is_default;
use tests::pages::{Page, words};
use tests::product::{Ended, binary, command, initrd_with, kernel};
use tests::served::{PATIENCE, Served, said, text};

/// A guest that is busy for a long time, with a socket.
fn start(words: &[&str]) -> Option<Served> {
    with("run", &[&["--cmdline=workload=mix:300 loglevel=5"], words].concat())
}

/// One of this command with these words.
fn with(verb: &str, words: &[&str]) -> Option<Served> {
    let own = [verb, "--control=guest.sock", "--output=hits.json"];
    let has_metrics = words.contains(&METRICS);
    let sockets = if has_metrics { &["guest.sock", "metrics.sock"][..] } else { &["guest.sock"] };
    Served::start(&[&own, words].concat(), sockets)
}

/// Has metrics served.
const METRICS: &str = "--metrics=metrics.sock";

/// What an HTTP client gets where metrics are served.
fn metrics(guest: &Served, path: &str) -> String {
    let mut stream = UnixStream::connect(guest.path("metrics.sock")).unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn connected(guest: &Served) -> Client {
    Client(BufReader::new(UnixStream::connect(guest.path("guest.sock")).unwrap()))
}

/// Waits for its end. What it has printed, and its recording.
fn end(mut guest: Served) -> (Output, Vec<Value>) {
    let output = guest.end();
    let text = fs::read_to_string(guest.path("hits.json")).unwrap();
    (output, text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// One connection, by which one call after the other is made.
struct Client(BufReader<UnixStream>);

impl Client {
    /// What comes of a call, which is not refused.
    #[track_caller]
    fn call(&mut self, id: u64, method: &str, params: Value) -> Value {
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.0.get_mut().write_all(format!("{call}\n").as_bytes()).unwrap();
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).unwrap() > 0, "{call} has no answer");
        let mut answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["id"], id, "{call}: {line}");
        assert!(answer.get("result").is_some(), "{call}: {line}");
        answer["result"].take()
    }

    /// The probe of this number.
    fn probe(&mut self, number: &Value) -> Value {
        let list = self.call(1, "list", json!({}));
        let own = list["probes"].as_array().unwrap().iter().find(|probe| probe["id"] == *number);
        own.cloned().unwrap_or_default()
    }

    /// Waits until this probe has more hits than `hits`, and gives how many.
    #[track_caller]
    fn more_hits(&mut self, number: &Value, hits: u64) -> u64 {
        let begun = Instant::now();
        loop {
            let now = self.probe(number)["hits"].as_u64().unwrap();
            if now > hits {
                return now;
            }
            assert!(begun.elapsed() < PATIENCE, "{number} has no more hits than {hits}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// What the recording says of the end of the probe with this number, and how many lines of hits it has.
#[track_caller]
fn recorded(recording: &[Value], number: &Value) -> (Value, u64) {
    let of_type = |kind: &'static str| {
        recording.iter().filter(move |line| line["type"] == kind && line["id"] == *number)
    };
    assert_eq!(of_type("registered").count(), 1, "{number}");
    let hits = recording.iter().filter(|line| line["id"] == *number && line.get("time_ns").is_some());
    (of_type("probe").next().unwrap().clone(), hits.count() as u64)
}

/// Whether so many hits are what the probe had when it was `removed`: each of two CPUs may have been in its code, about to take a hit
/// that counts, or a return for which nobody waits any more.
fn is_counted(removed: &Value, hits: u64) -> bool {
    let then = removed["hits"].as_u64().unwrap();
    then.abs_diff(hits) <= 2
}

#[test]
fn probes_come_and_go_by_several_clients() {
    let Some(guest) = start(&["--cpus=2", "--probe=do_sys_openat2"]) else { return };
    let mut client = connected(&guest);
    let version = client.call(7, "version", Value::Null);
    assert_eq!(version["protocol"], 1);
    client.more_hits(&json!(0), 0);
    assert!(guest.says(&["list"]).contains("do_sys_openat2+0x0    [OPTIMIZED]  #0\n"));

    let added = guest.says(&["add", "p:reads vfs_read count if count > 0", "vfs_read%return"]);
    assert!(added.contains("  k  vfs_read+0x0") && added.contains("  #1 reads\n"), "{added}");
    assert!(added.contains("  r  vfs_read+0x0") && added.contains("  #2\n"), "{added}");
    client.more_hits(&json!(1), 0);
    client.more_hits(&json!(2), 0);
    let stats = guest.says(&["stats"]);
    let row = stats.lines().find(|line| line.trim_start().starts_with("reads ")).unwrap();
    assert!(row.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() > 0, "{stats}");

    let wrong = guest.refused(&["add", "vfs_raed"]);
    assert!(wrong.contains("vfs_read"), "{wrong}");
    assert!(guest.refused(&["add", "p vfs_read nothing"]).contains("nothing"));
    assert!(guest.refused(&["remove", "99"]).contains("there is no probe number 99"));
    guest.says(&["disable", "reads"]);
    assert_eq!(client.probe(&json!(1))["state"], "disabled");
    let before = client.probe(&json!(1))["hits"].as_u64().unwrap();
    thread::sleep(Duration::from_millis(500));
    assert_eq!(client.probe(&json!(1))["hits"], before);
    guest.says(&["enable", "reads"]);
    client.more_hits(&json!(1), before);
    guest.says(&["disarm"]);
    assert_eq!(client.probe(&json!(0))["state"], "disabled");
    guest.says(&["arm"]);
    assert_eq!(client.probe(&json!(0))["state"], "optimized");

    // Each adds probes of its own, sees their hits, and removes them.
    let all: Vec<(Value, Value)> = thread::scope(|scope| {
        let clients = (0..5).map(|n| {
            let guest = &guest;
            scope.spawn(move || {
                let mut client = connected(guest);
                let definitions = json!({ "definitions": [format!("p:own{n} vfs_write n=$arg3")] });
                let added = client.call(n, "add", definitions);
                let number = added["probes"][0]["id"].clone();
                client.more_hits(&number, 0);
                let removed = client.call(n, "remove", json!({ "probes": [format!("own{n}")] }));
                (number, removed["probes"][0].clone())
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let removed = guest.says(&["remove", "reads"]);
    assert!(removed.trim_start().starts_with("reads "), "{removed}");
    guest.says(&["quit"]);
    let (output, recording) = end(guest);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("[REMOVED]"), "{said}");
    let (reads, lines) = recorded(&recording, &json!(1));
    assert_eq!((reads["hits"].as_u64(), &reads["state"]), (Some(lines), &json!("[REMOVED]")));
    assert!(recording.iter().any(|line| line["id"] == 1 && line["event"] == "reads"));
    for (number, own) in all {
        let (end, lines) = recorded(&recording, &number);
        assert_eq!(end["hits"], lines, "{number}");
        assert!(is_counted(&own, lines), "{own}: {lines}");
    }
    let (opens, lines) = recorded(&recording, &json!(0));
    assert_eq!(opens["hits"], lines);
}

/// Everything that is shown of a guest that stands still, which goes on when its client dies.
#[test]
fn a_guest_stands_still_as_long_as_its_client_lives() {
    let Some(guest) = start(&["--cpus=2", "--probe=do_sys_openat2"]) else { return };
    let mut client = connected(&guest);
    client.more_hits(&json!(0), 0);
    let mut pausing = guest.ctl(&["pause"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(pausing.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("stands still"), "{line}");
    let stands = client.probe(&json!(0));
    thread::sleep(Duration::from_secs(1));
    assert_eq!(client.probe(&json!(0))["hits"], stands["hits"]);

    let registers = guest.says(&["regs"]);
    assert_eq!(registers.matches("  rip ffffffff").count() + registers.matches("  rip 0000").count(), 2);
    assert_eq!(
        guest.says(&["regs", "1"]),
        registers.split_once("cpu1").map(|(_, own)| format!("cpu1{own}")).unwrap()
    );
    assert!(guest.says(&["stack", "0"]).starts_with("cpu0 at 0x"));
    assert!(guest.refused(&["stack", "2"]).contains("no CPU 2"));
    let address = stands["address"].as_str().unwrap();
    let raw = guest.ctl(&["read", address, "5", "--raw"]).output().unwrap().stdout;
    assert_eq!(raw, [0x0f, 0x1f, 0x44, 0, 0], "the guest's own nop, and not our jump");
    assert!(guest.says(&["read", address, "20"]).contains("  0f 1f 44 00 00 "));
    assert!(guest.refused(&["read", "0x10", "8"]).contains("no memory at 0x10"));
    // Probes come and go meanwhile.
    assert!(guest.says(&["add", "p:reads vfs_read"]).contains("#1 reads"));

    pausing.kill().unwrap();
    pausing.wait().unwrap();
    client.more_hits(&json!(1), 0);
    let mut pausing = guest.ctl(&["pause"]).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    guest.says(&["resume"]);
    while pausing.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "nobody has told it");
        guest.says(&["resume"]);
        thread::sleep(Duration::from_millis(50));
    }
    let hits = client.probe(&json!(0))["hits"].as_u64().unwrap();
    client.more_hits(&json!(0), hits);
    client.call(9, "quit", json!({}));
    let (output, _) = end(guest);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

/// Tables and durations are looked at while they grow, by commands and as metrics.
#[test]
fn what_is_counted_is_seen_while_the_guest_runs() {
    let words = [
        "--cpus=2",
        METRICS,
        // The first one is counted in the guest, and the second one outside.
        "--probe=p vfs_read count hist:keys=count.log2:name=sizes",
        "--probe=p do_sys_openat2 path=+0($arg2):ustring hist:keys=path:name=paths",
        "--probe=r:back vfs_read",
    ];
    let Some(guest) = start(&words) else { return };
    let mut client = connected(&guest);
    client.more_hits(&json!(2), 100);
    guest.says(&["add", "p vfs_write hist:keys=comm:name=writers"]);
    client.more_hits(&json!(3), 0);
    for name in ["sizes", "paths", "writers"] {
        let table = guest.says(&["hist", name]);
        assert!(table.starts_with(&format!("# {name}\n")) && table.contains("hitcount:"), "{table}");
    }
    assert!(guest.refused(&["hist", "others"]).contains("there is no histogram `others`"));
    let short = client.call(1, "histograms", json!({ "lines": 1 }));
    let short = short["histograms"].as_array().unwrap();
    assert_eq!(short.len(), 3);
    assert!(short.iter().all(|own| own["lines"].as_array().unwrap().len() == 1), "{short:?}");

    let counters = client.call(2, "counters", Value::Null);
    assert_eq!((&counters["vcpus"], &counters["paused"]), (&json!(2), &json!(false)));
    let back = &counters["probes"][2];
    let calls = back["durations"]["calls"].as_u64().unwrap();
    assert!(calls > 0 && calls <= back["hits"].as_u64().unwrap(), "{back}");
    let below = back["durations"]["below_powers_of_two"].as_array().unwrap();
    assert_eq!(below.iter().map(|count| count.as_u64().unwrap()).sum::<u64>(), calls);
    assert!(counters["probes"][0].get("durations").is_none(), "{counters}");

    let shown = metrics(&guest, "/metrics");
    assert!(shown.starts_with("HTTP/1.1 200 OK\r\n"), "{shown}");
    let value = |name: &str| {
        let line = shown.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {shown}")).trim().parse::<f64>().unwrap()
    };
    let labels = r#"{id="2",probe="vfs_read%return",event="back",kind="return"}"#;
    assert!(value(&format!("vmm_probe_hits_total{labels}")) >= calls as f64);
    assert!(value(&format!("vmm_probe_duration_seconds_count{labels}")) >= calls as f64);
    assert_eq!((value("vmm_vcpus "), value("vmm_armed ")), (2.0, 1.0));
    assert!(metrics(&guest, "/").starts_with("HTTP/1.1 404 "));

    let mut top = Command::new(guest.binary());
    let top = top.current_dir(guest.folder()).args(["top", "guest.sock", "--batch=2", "--every=0.5"]);
    let tables = text(&top.output().unwrap().stdout);
    assert_eq!(tables.matches(" hits/s").count(), 2, "{tables}");
    let rows: Vec<&str> = tables.lines().filter(|line| line.contains(" back ")).collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| row.contains('<')), "with their durations: {tables}");

    let seen = short[0]["hits"].as_u64().unwrap();
    guest.says(&["quit"]);
    let (_, recording) = end(guest);
    let sizes = recording.iter().find(|line| line["type"] == "histogram" && line["histogram"] == "sizes");
    assert!(sizes.unwrap()["hits"].as_u64().unwrap() >= seen && seen > 0);
}

#[test]
fn a_socket_that_cannot_be_had_is_refused_before_anything_boots() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path| {
        let words = ["run", "--control", path.to_str().unwrap(), "--cmdline=workload=open:1"];
        let output = command(&binary, folder.path(), &words).output().ended();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let path = folder.path().join("file");
    fs::write(&path, "mine").unwrap();
    assert!(refused(&path).contains("no socket"));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    let path = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(refused(&path).contains("in use"));
    assert!(refused(&folder.path().join("nowhere/socket")).contains("no socket can be made"));
    let output =
        Command::new(&binary).arg("ctl").arg(folder.path().join("none")).arg("list").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("nobody takes commands"));
}

/// A task that is held is seen, and let go before its time.
#[test]
fn a_task_that_is_held_is_let_go_by_a_client() {
    let initrd = initrd_with([("script", 0o644, b"sleep 1\nmkdir /held\n".to_vec())]);
    let words = [
        "--initrd",
        initrd.path().to_str().unwrap(),
        "--cpus=2",
        "--hold=__x64_sys_mkdir",
        "--until=__x64_sys_rmdir",
        "--within=5s",
        "--cmdline=workload=sh:/script loglevel=5",
    ];
    let Some(guest) = with("run", &words) else { return };
    let begun = Instant::now();
    let held = loop {
        let held = guest.says(&["held"]);
        if !held.is_empty() {
            break held;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody is held");
        thread::sleep(Duration::from_millis(20));
    };
    assert!(held.starts_with("hold 0: mkdir-"), "{held}");
    assert_eq!(guest.says(&["release", "1"]), "0 of the tasks that are held go on\n");
    assert_eq!(guest.says(&["release"]), "1 of the tasks that are held go on\n");
    let (output, recording) = end(guest);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(122), "the order was not reached: {said}");
    let hold = recording.iter().find(|line| line["type"] == "hold").unwrap();
    assert_eq!((&hold["released"], &hold["by"]), (&json!(true), &Value::Null));
    assert!(hold["waited_ns"].as_u64().unwrap() < 5_000_000_000, "{hold}");
    let gate = recording.iter().find(|line| line["type"] == "gate").unwrap();
    assert_eq!((&gate["released"], &gate["timed_out"]), (&json!(1), &json!(0)));
}

#[test]
fn a_guarded_guest_takes_commands_as_well() {
    let kernel = kernel().to_str().unwrap();
    let words = ["--kernel", kernel, "--cmdline=workload=mix:300 loglevel=5"];
    let host = std::env::var("VMM_TEST_HOST").map(|host| format!("--host={host}"));
    let words = [&words[..], &host.iter().map(String::as_str).collect::<Vec<_>>()].concat();
    let Some(guest) = with("guard", &words) else { return };
    let mut client = connected(&guest);
    let added = client.call(1, "add", json!({ "definitions": ["do_sys_openat2"] }));
    client.more_hits(&added["probes"][0]["id"], 0);
    guest.says(&["quit"]);
    let (output, recording) = end(guest);
    let said = said(&output);
    // Whoever ends a guest in the middle of its boot ends it before it was guarded.
    assert!([Some(0), Some(122)].contains(&output.status.code()), "{said}");
    let (opens, lines) = recorded(&recording, &json!(0));
    assert!(opens["hits"] == lines && lines > 0);
}

/// What differs from one run to the next is left out: numbers, and what comes behind `...`.
fn shape(line: &str) -> Vec<String> {
    let words = line.split("...").next().unwrap().split_whitespace();
    let is_number = |word: &&str| word.len() > 2 && word.chars().all(|c| c.is_ascii_hexdigit());
    let number = |word: &str| word.chars().all(|c| c.is_ascii_digit());
    words
        .map(|word| if is_number(&word) || number(word) { "N".to_owned() } else { word.to_owned() })
        .collect()
}

/// The page's example starts the guest, on which those of the help follow.
#[test]
fn what_the_page_and_the_help_show_is_what_happens() {
    if !is_default() {
        return;
    }
    let page = Page::open("docs/control.md").examples();
    let (start, steps) = page.split_first().unwrap();
    let start: Vec<&str> = start.words.iter().map(String::as_str).filter(|word| *word != "&").collect();
    let Some(guest) = Served::start(&start, &["guest.sock"]) else { return };
    connected(&guest).more_hits(&json!(0), 0);
    let (quit, steps) = steps.split_last().unwrap();
    for step in steps {
        let words: Vec<&str> = step.words.iter().skip(2).map(String::as_str).collect();
        let printed = guest.says(&words);
        let printed: Vec<_> = printed.lines().map(shape).collect();
        for line in step.shown() {
            let shown = shape(line);
            assert!(printed.iter().any(|own| own.starts_with(&shown)), "`{line}` is not in {printed:#?}");
        }
    }
    let help = Command::new(guest.binary()).args(["ctl", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let examples: Vec<_> =
        help.lines().filter_map(|line| line.strip_prefix("  vmm ctl guest.sock ")).collect();
    assert!(examples.len() >= 5, "{help}");
    for example in examples {
        assert!(!guest.says(&words(example)).is_empty(), "{example}");
    }
    assert_eq!(quit.words.last().unwrap(), "quit");
    guest.says(&["quit"]);
    assert_eq!(end(guest).0.status.code(), Some(0));
}

/// Fifty clients add and remove probes as chance has it, and one pauses the guest, for a minute. Every call has its answer, and every
/// probe has as many hits as were recorded of it.
#[test]
fn clients_by_the_dozen_lose_nothing() {
    if std::env::var_os("VMM_LONG").is_none() {
        return println!("skipped: VMM_LONG is not set");
    }
    const FUNCTIONS: [&str; 5] = ["do_sys_openat2", "vfs_open", "kernel_clone", "do_exit", "vfs_open%return"];
    const LONG: Duration = Duration::from_secs(60);
    let words = ["--cpus=2", "--probe=do_sys_openat2", "--cmdline=workload=mix:120 loglevel=5"];
    let Some(guest) = with("run", &words) else { return };
    connected(&guest).more_hits(&json!(0), 0);
    let until = Instant::now() + LONG;
    let removed: Vec<(Value, Value)> = thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = connected(&guest);
            for id in 0.. {
                if Instant::now() > until {
                    break;
                }
                assert_eq!(client.call(id, "pause", json!({})), json!({}));
                thread::sleep(Duration::from_millis(30));
                // Whoever resumes is told so as well, before the answer.
                client = connected(&guest);
                thread::sleep(Duration::from_millis(500));
            }
        });
        let clients: Vec<_> = (0..50u64)
            .map(|n| {
                let guest = &guest;
                scope.spawn(move || {
                    let (mut client, mut removed, mut chance) = (connected(guest), Vec::new(), n + 1);
                    let mut id = 0;
                    let mut call = |method: &str, params: Value| {
                        id += 1;
                        client.call(id, method, params)
                    };
                    while Instant::now() < until {
                        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let place = FUNCTIONS[(chance >> 33) as usize % FUNCTIONS.len()];
                        let added = call("add", json!({ "definitions": [place] }));
                        let number = added["probes"][0]["id"].clone();
                        thread::sleep(Duration::from_millis((chance >> 40) % 2000));
                        for method in ["disable", "enable"].into_iter().filter(|_| chance >> 50 & 1 == 1) {
                            call(method, json!({ "probes": [number] }));
                        }
                        let gone = call("remove", json!({ "probes": [number] }));
                        assert_eq!(gone["probes"][0]["id"], number);
                        removed.push((number, gone["probes"][0].clone()));
                    }
                    removed
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    println!("{} probes came and went", removed.len());
    assert!(removed.len() > 500, "{}", removed.len());
    let (output, recording) = end(guest);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let mut lines = BTreeMap::<u64, u64>::new();
    for line in recording.iter().filter(|line| line.get("time_ns").is_some()) {
        *lines.entry(line["id"].as_u64().unwrap()).or_default() += 1;
    }
    let ends = recording.iter().filter(|line| line["type"] == "probe");
    let ends: BTreeMap<u64, &Value> = ends.map(|end| (end["id"].as_u64().unwrap(), end)).collect();
    assert_eq!(ends.len(), removed.len() + 1);
    for (number, removed) in &removed {
        let number = number.as_u64().unwrap();
        let (end, lines) = (ends[&number], lines.get(&number).copied().unwrap_or_default());
        assert_eq!(end["hits"], lines, "{end}");
        assert!(is_counted(removed, lines), "{removed}: {lines}");
        assert_eq!(end["state"], "[REMOVED]");
        let most = if end["kind"] == "r" { 2 } else { 0 };
        assert!(end["missed"].as_u64().unwrap() <= most, "{end}");
    }
    let console = text(&output.stdout);
    let opened = number(&console, "done", "openat").unwrap_or_else(|| panic!("{console}"));
    assert_eq!((&ends[&0]["hits"], lines[&0]), (&json!(opened), opened));
    assert_eq!(complaint(&console), None, "{console}");
}
