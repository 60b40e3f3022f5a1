//! The source lines of a real kernel, compared with what addr2line(1) of binutils says.
//!
//! VMM_TEST_VMLINUX names an ELF vmlinux with debugging information, which is some 350 MB: without it there is nothing to
//! compare, and the tests say so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, fs, thread};

use probe_engine::addr::Gva;
use probe_engine::linux::dwarf::{DebugFile, SourceMap};
use probe_engine::linux::lines::{LineTable, SourceLine};
use probe_engine::linux::vmlinux::Vmlinux;

fn vmlinux() -> Option<String> {
    let path = env::var("VMM_TEST_VMLINUX").ok();
    if path.is_none() {
        eprintln!("nothing is compared: VMM_TEST_VMLINUX does not name a vmlinux");
    }
    path
}

/// Addresses in the text, as evenly as a linear congruence spreads them, and always the same.
fn addresses(image: &Vmlinux, count: usize) -> Vec<Gva> {
    let text = image.section(".text").unwrap().range;
    let len = text.end.offset_from(text.start).unwrap();
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.start.add((state >> 33) % len)
    };
    (0..count).map(|_| next()).collect()
}

/// What addr2line says of each: the frames from the innermost on, each as function and place.
fn addr2line(vmlinux: &str, addresses: &[Gva]) -> Vec<Vec<(String, String)>> {
    let mut child = Command::new("addr2line")
        .args(["-afie", vmlinux])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("binutils is installed");
    let mut input = child.stdin.take().unwrap();
    let lines: String = addresses.iter().map(|at| format!("{at}\n")).collect();
    let writer = thread::spawn(move || input.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let mut found: Vec<Vec<(String, String)>> = Vec::new();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            found.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap().split(" (discriminator").next().unwrap();
        found.last_mut().unwrap().push((line.to_owned(), normal(place)));
    }
    found
}

/// A path without `.`, `..` and empty parts.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." | "" if !parts.is_empty() => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn line_table(vmlinux: &str) -> (Vmlinux, LineTable) {
    let file = fs::read(vmlinux).unwrap();
    let start = Instant::now();
    let debug = DebugFile::read(&file).unwrap();
    let image = Vmlinux::parse(file.clone()).unwrap();
    let map = SourceMap::read(&debug, image.text_start()).unwrap();
    let read = start.elapsed();
    let table = map.line_table();
    eprintln!("read in {read:.1?}, made {} bytes in {:.1?}", table.bytes(), start.elapsed() - read);
    (image, table)
}

#[test]
fn lines_and_inlined_functions_are_those_of_addr2line() {
    let Some(vmlinux) = vmlinux() else { return };
    let (image, table) = line_table(&vmlinux);
    let addresses = addresses(&image, 10_000);
    let theirs = addr2line(&vmlinux, &addresses);
    assert_eq!(theirs.len(), addresses.len());
    let place = |line: &SourceLine<'_>| line.to_string();
    let (mut lines, mut frames, mut inlined) = (0, 0, 0);
    for (at, theirs) in addresses.iter().zip(&theirs) {
        let ours = table.at(*at);
        // They name the folder of the compilation, and know nothing where we know nothing.
        let is_same = |ours: &SourceLine<'_>, theirs: &(String, String)| theirs.1.ends_with(&place(ours));
        let is_line = match (ours.first(), theirs.first()) {
            (Some(ours), Some(theirs)) => is_same(ours, theirs),
            (None, Some(theirs)) => theirs.1.starts_with("??"),
            _ => false,
        };
        let is_all = ours.len() == theirs.len()
            && ours.iter().zip(theirs).all(|(ours, theirs)| {
                is_same(ours, theirs) && ours.inlined.is_none_or(|name| name == theirs.0)
            });
        lines += usize::from(is_line);
        frames += usize::from(is_all || (ours.is_empty() && is_line));
        inlined += usize::from(ours.len() > 1);
        if !is_line || (!is_all && !ours.is_empty()) {
            let ours: Vec<_> = ours.iter().map(|line| format!("{line} {:?}", line.inlined)).collect();
            eprintln!("{at}: {ours:?}, addr2line {theirs:?}");
        }
    }
    eprintln!(
        "of {}: {lines} lines, {frames} with all frames, {inlined} in inlined functions",
        addresses.len()
    );
    // For the functions of a tracepoint addr2line joins the line in the header to the name of the file that includes it, and for
    // padding before functions it names the last file that it has seen.
    assert!(lines >= 9_900 && frames >= 9_900, "{lines} lines and {frames} with all frames are the same");
}
