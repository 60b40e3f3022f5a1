//! Commands in the guest, as a user runs them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Output, Stdio};
use std::ptr::null_mut;
use std::thread;
use std::time::Duration;
use tests::product::{Ended, binary, child, command, json_lines, report};

/// What `vmm run` with these `options` says and ends with, when `words` run in the guest and read `input`.
fn run(options: &[&str], words: &[&str], input: &[u8]) -> Option<Output> {
    let (binary, temporary) = (binary()?, tempfile::tempdir().unwrap());
    let mut command = command(&binary, temporary.path(), &[&["run"], options].concat());
    if !words.is_empty() {
        command.arg("--").args(words);
    }
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // A command may end without reading everything.
    let fed = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().ended();
    fed.join().unwrap();
    Some(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Names and contents of all files below `path`.
fn contents(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let bytes = if path.is_dir() {
            contents(&path).iter().flat_map(|file| file.1.clone()).collect()
        } else {
            fs::read(&path).unwrap()
        };
        all.push((path.display().to_string(), bytes));
    }
    all.sort();
    all
}

/// A host that does nothing any more does not watch the guest's time either.
#[test]
fn a_host_that_stands_still_is_ended() {
    let (Some(binary), temporary) = (binary(), tempfile::tempdir().unwrap()) else { return };
    let words = ["run", "--host=emulated", "--timeout=1", "--", "sleep", "1000"];
    let mut run = command(&binary, temporary.path(), &words);
    let running = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let wait_for = |words: &[&str]| loop {
        match child(running.id(), words) {
            Some(child) => break child,
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    // The server of files is started once the host has answered.
    wait_for(&["serve-files"]);
    let qemu = wait_for(&["qemu-system", "virtserialport"]);
    kill_process(qemu, Signal::STOP).unwrap();
    let output = running.wait_with_output().ended();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("the emulated host has not ended the guest in 61 s, and is ended"), "{said}");
}

/// As in a shell: a command that writes for ever ends when nobody reads.
#[test]
fn a_command_ends_when_nobody_reads_what_it_prints() {
    let (Some(binary), temporary) = (binary(), tempfile::tempdir().unwrap()) else { return };
    let mut run = command(&binary, temporary.path(), &["run", "--", "yes"]);
    let mut child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 2];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().ended();
    assert_eq!((&first, output.status.code()), (b"y\n", Some(128 + 13)), "{output:?}");
}

#[test]
fn a_command_has_our_files_our_streams_and_a_code_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(at("kept")).unwrap();
    fs::create_dir(at("written")).unwrap();
    fs::write(at("kept/file"), "as it was").unwrap();
    let before = contents(&folder.path().join("kept"));
    let script = format!(
        "cat /etc/passwd; cat; echo to stderr >&2; pwd; \
         echo changed > {kept}/file; echo new > {kept}/new; rm -rf /etc/default; touch /etc/new; \
         cat {kept}/file; echo stays > {written}/new; exit 7",
        kept = at("kept"),
        written = at("written")
    );
    let options = ["--probe", "do_sys_openat2", "--rwdir", &at("written")];
    let input: Vec<u8> = (0..300_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    let Some(output) = run(&options, &["sh", "-c", &script], &input) else { return };
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    let passwd = fs::read("/etc/passwd").unwrap();
    let here = std::env::current_dir().unwrap();
    let after = format!("{}\nchanged\n", here.display());
    assert!(
        output.stdout == [passwd, input, after.into_bytes()].concat(),
        "{} bytes, and:\n{stderr}",
        output.stdout.len()
    );
    assert!(stderr.contains("to stderr\n"), "{stderr}");
    assert!(stderr.contains("filename=\"/etc/passwd\""), "{stderr}");
    assert_eq!(contents(&folder.path().join("kept")), before);
    assert!(!Path::new("/etc/new").exists());
    assert_eq!(fs::read_to_string(at("written/new")).unwrap(), "stays\n");
}

#[test]
fn what_cannot_be_is_said_before_the_boot() {
    let cases: [(&[&str], &[&str], &str); 5] = [
        (&["--root", "/nowhere"], &["true"], "cannot share /nowhere: No such file or directory"),
        (&["--rwdir", "/etc/passwd"], &["true"], "cannot share /etc/passwd: Not a directory"),
        (&["--rwdir", "/"], &["true"], "which is the kernel's: name a folder below"),
        (&["--rwdir", "/tmp"], &[], "are for a command in the guest"),
        (&["--initrd", "x"], &["true"], "has an initramfs of its own"),
    ];
    for (options, words, expected) in cases {
        let Some(output) = run(options, words, b"") else { return };
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}

/// The names of the tasks whose hits these lines of JSON are.
fn tasks(lines: &[Value]) -> BTreeSet<String> {
    lines.iter().filter_map(|line| Some(line.get("task")?.get("comm")?.as_str()?.to_owned())).collect()
}

#[test]
fn only_the_commands_processes_are_seen_unless_one_asks_for_more() {
    // The child outlives the process that started it, and is in another session.
    let script = "(setsid sh -c 'sleep 0.1; cat /etc/passwd > /dev/null' &); cat /etc/group; sleep 0.5";
    for optimize in ["--optimize=require", "--optimize=off"] {
        let options = [optimize, "--format=json", "--probe=do_sys_openat2%return", "--probe=vfs_read"];
        let Some(output) = run(&options, &["sh", "-c", script], b"") else { return };
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        let lines = json_lines(&output.stdout);
        let expected = ["cat", "setsid", "sh", "sleep"].map(str::to_owned);
        assert_eq!(tasks(&lines), BTreeSet::from(expected), "{stderr}");
        let summary = |probe: &str| {
            lines.iter().find(|line| line["type"] == "probe" && line["probe"] == probe).unwrap()
        };
        for probe in ["do_sys_openat2%return", "vfs_read"] {
            let (hits, outside) = (&summary(probe)["hits"], &summary(probe)["outside"]);
            let shown = lines.iter().filter(|line| line["rip"].is_string() && line["probe"] == probe);
            assert_eq!(shown.count() as u64, hits.as_u64().unwrap(), "{stderr}");
            assert!(outside.as_u64().unwrap() > 0, "init has read files, too: {stderr}");
        }
    }
    let options = ["--scope=init", "--probe=commit_creds", "--format=json"];
    let output = run(&options, &["true"], b"").unwrap();
    let stderr = text(&output.stderr);
    let lines = json_lines(&output.stdout);
    assert!(tasks(&lines).contains("init") && tasks(&lines).contains("true"), "{stderr}");
    assert!(!tasks(&lines).contains("swapper/0") && !tasks(&lines).contains("kthreadd"), "{stderr}");
}

#[test]
fn coverage_of_a_command_is_of_its_processes() {
    let (Some(binary), temporary) = (binary(), tempfile::tempdir().unwrap()) else { return };
    let ran = temporary.path().join("ran");
    let words = [
        "coverage",
        "--output",
        ran.to_str().unwrap(),
        "vfs_*",
        "kernel_*",
        "rcu_*",
        "--",
        "cat",
        "/etc/hostname",
    ];
    let output = command(&binary, temporary.path(), &words).stdin(Stdio::null()).output().ended();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(output.stdout, fs::read("/etc/hostname").unwrap());
    let text = String::from_utf8(report(&binary, &ran, &[])).unwrap();
    let ran = json_lines(&fs::read(&ran).unwrap());
    for has in [
        |name: &str, ran: &[Value], _: &str| ran.iter().any(|line| line["function"] == name),
        |name: &str, _: &[Value], text: &str| text.lines().any(|line| line.ends_with(&format!(" {name}"))),
    ] {
        let has = |name| has(name, &ran, &text);
        assert!(has("vfs_read") && has("vfs_fstat"), "{text}");
        assert!(!has("kernel_init_freeable") && !has("rcu_gp_kthread"), "{text}");
    }
}

/// Messages and hits of which the order is known: each message is made in a call of a function that is probed.
#[test]
fn hits_and_messages_have_one_clock() {
    const EACH: usize = 5_000;
    let shell = |name: &str| {
        format!("exec 3>/dev/kmsg; i=0; while [ $i -lt {EACH} ]; do echo \"{name} $i\" >&3; i=$((i+1)); done")
    };
    let script =
        format!("({}) & ({}) & wait; cat /proc/kmsg & sleep 4; kill $!", shell("even"), shell("odd"));
    let options = ["--cpus=2", "--format=json", "--probe=devkmsg_write", "--probe=devkmsg_write%return"];
    let options = [&options[..], &["--cmdline=log_buf_len=16M printk.devkmsg=on"]].concat();
    for optimize in ["--optimize=require", "--optimize=off"] {
        let Some(output) = run(&[&options[..], &[optimize]].concat(), &["sh", "-c", &script], b"") else {
            return;
        };
        let stderr = text(&output.stderr);
        // Nanoseconds and what was then: a call begins, a message is made, the call returns. By task.
        let mut calls = BTreeMap::<u64, Vec<(u64, bool)>>::new();
        for line in json_lines(&output.stdout) {
            let kind = line["type"].as_str().unwrap();
            if ["hit", "return"].contains(&kind) {
                let time = line["guest_ns"].as_u64().unwrap();
                calls
                    .entry(line["task"]["pid"].as_u64().unwrap())
                    .or_default()
                    .push((time, kind == "return"));
            }
        }
        let mut messages = BTreeMap::<String, Vec<u64>>::new();
        for line in stderr.lines() {
            let Some((time, message)) = line.split_once("] ") else { continue };
            let Some((name, _)) = message.split_once(' ').filter(|(name, _)| ["even", "odd"].contains(name))
            else {
                continue;
            };
            let (seconds, micros) = time.split_once('[').unwrap().1.trim().split_once('.').unwrap();
            let micros = seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap();
            messages.entry(name.to_owned()).or_default().push(micros);
        }
        assert_eq!((calls.len(), messages.len()), (2, 2), "{stderr:.2000}");
        // Whose task is which is told by the first message.
        for times in messages.values() {
            assert_eq!(times.len(), EACH);
            let fits = |calls: &Vec<(u64, bool)>| {
                let pairs: Vec<_> = calls.chunks(2).collect();
                pairs.len() == EACH
                    && pairs.iter().zip(times).all(|(pair, time)| {
                        let [(begun, false), (over, true)] = pair[..] else { panic!("{pair:?}") };
                        begun / 1000 <= *time && *time <= over / 1000
                    })
            };
            assert_eq!(calls.values().filter(|calls| fits(calls)).count(), 1, "{optimize}");
        }
    }
}

#[test]
fn a_guest_that_dies_or_hangs_is_spoken_of_by_name() {
    let Some(output) = run(&["--probe=vfs_read"], &["sh", "-c", "echo c > /proc/sysrq-trigger"], b"") else {
        return;
    };
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(123), "{stderr}");
    for words in [
        "vmm: the guest panicked: sysrq triggered crash\n",
        "vmm: rip is panic+0x",
        "vmm:   sysrq_handle_crash+0x",
        "vmm:   vfs_write+0x",
        "console: ",
    ] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    // Its init is never started. On a busy machine it comes to wait for its root later.
    let words =
        ["vmm: the guest was ended after", "vmm: cpu1 at 0x", "vmm:   do_idle+0x", "vmm:   start_kernel+0x"];
    let mut said = String::new();
    let is_spoken_of = ["--timeout=8", "--timeout=30", "--timeout=120"].iter().any(|timeout| {
        let hangs = ["--cmdline=rdinit=/none root=/dev/none rootwait", timeout, "--cpus=2"];
        let output = run(&hangs, &["true"], b"").unwrap();
        said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(124), "{said}");
        words.iter().all(|words| said.contains(words))
    });
    assert!(is_spoken_of, "{said}");
}

/// What the guest of the next test runs: this very program.
#[test]
#[allow(unsafe_code, reason = "what is written through a mapping is what is tested")]
fn writes_through_a_mapping_when_told_to() {
    let Ok(file) = File::options().read(true).write(true).open("to-be-mapped") else { return };
    let length = NonZeroUsize::new(4096).unwrap();
    // SAFETY: nobody else maps the file, which is so long, and the mapping is never removed.
    let mapped = unsafe {
        let at = mmap(null_mut(), length.get(), ProtFlags::WRITE, MapFlags::SHARED, &file, 0).unwrap();
        std::slice::from_raw_parts_mut(at.cast::<u8>(), length.get())
    };
    // Closing it would write what is there.
    drop(file);
    mapped.fill(b'm');
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    TcpStream::connect(listener.local_addr().unwrap()).unwrap();
}

#[test]
fn what_was_mapped_is_written_and_what_is_usual_is_there() {
    let (Some(binary), folder) = (binary(), tempfile::tempdir().unwrap()) else { return };
    let file = folder.path().join("to-be-mapped");
    fs::write(&file, [b'o'; 4096]).unwrap();
    let own = std::env::current_exe().unwrap();
    let at = folder.path().to_str().unwrap();
    let script = format!("{} --exact writes_through_a_mapping_when_told_to && hostname", own.display());
    let mut run = command(&binary, folder.path(), &["run", "--rwdir", at, "--", "sh", "-c", &script]);
    let output = run.current_dir(folder.path()).output().ended();
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(fs::read(&file).unwrap().iter().all(|byte| *byte == b'm'), "it was not written");
    let name = fs::read_to_string("/etc/hostname").unwrap();
    assert_eq!(text(&output.stdout).lines().last(), Some(name.trim()));
}
