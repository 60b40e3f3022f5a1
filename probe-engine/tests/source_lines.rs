//! The source lines of a real kernel, compared with what addr2line(1) of binutils and gdb say.
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
use probe_engine::linux::symtab;
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

fn source_map(vmlinux: &str) -> (Vmlinux, SourceMap) {
    let file = fs::read(vmlinux).unwrap();
    let start = Instant::now();
    let debug = DebugFile::read(&file).unwrap();
    let image = Vmlinux::parse(file.clone()).unwrap();
    let map = SourceMap::read(&debug, image.text_start()).unwrap();
    eprintln!("read in {:.1?}", start.elapsed());
    (image, map)
}

fn line_table(vmlinux: &str) -> (Vmlinux, LineTable) {
    let (image, map) = source_map(vmlinux);
    let start = Instant::now();
    let table = map.line_table();
    eprintln!("made {} bytes in {:.1?}", table.bytes(), start.elapsed());
    (image, table)
}

/// Where gdb puts a breakpoint on each line. It goes on to another line from one whose instruction is that of the next line,
/// too: then there is none.
fn breakpoints(vmlinux: &str, lines: &[(String, u32)]) -> Vec<Vec<Gva>> {
    let mut command = Command::new("gdb");
    command.args(["-batch", "-nx"]);
    for (file, line) in lines {
        command.args(["-ex", &format!("break {file}:{line}"), "-ex", "info breakpoints", "-ex", "delete"]);
        command.args(["-ex", "echo next\\n"]);
    }
    let output = command.arg(vmlinux).output().expect("gdb is installed");
    let text = String::from_utf8(output.stdout).unwrap();
    let address = |line: &str| {
        let digits = line.split(" 0x").nth(1)?.split_whitespace().next()?;
        u64::from_str_radix(digits, 16).ok().map(Gva)
    };
    let on_line = |(part, (_, line)): (&str, &(String, u32))| {
        let end = format!(":{line}");
        let rows = part.lines().filter(|row| row.contains(" y ") && row.ends_with(&end));
        rows.filter_map(address).collect()
    };
    text.split("next\n").zip(lines).map(on_line).collect()
}

#[test]
fn places_of_lines_are_where_gdb_has_them() {
    let Some(vmlinux) = vmlinux() else { return };
    let (image, map) = source_map(&vmlinux);
    let symbols = symtab::read(&image).unwrap();
    let mut asked = Vec::new();
    for at in addresses(&image, 1_000) {
        let Some(function) = symbols.function_at(at).map(|function| function.range()) else { continue };
        let Some(file) = map.file_of(function.start) else { continue };
        let lines: Vec<u32> = map.lines_with_code(file, Some(&function)).into_iter().collect();
        if asked.len() < 50 && lines.len() > 4 && file.ends_with(".c") {
            asked.push((function, (file.to_owned(), lines[lines.len() / 2])));
        }
    }
    let lines: Vec<_> = asked.iter().map(|(_, line)| line.clone()).collect();
    let theirs = breakpoints(&vmlinux, &lines);
    let (mut same, mut known) = (0, 0);
    for ((function, (file, line)), theirs) in asked.iter().zip(&theirs) {
        let ours = map.places(file, *line, Some(function), &symbols);
        let is_same = ours.iter().all(|place| theirs.contains(&place.at));
        known += usize::from(!theirs.is_empty());
        same += usize::from(is_same && !theirs.is_empty());
        if !is_same {
            eprintln!("{file}:{line} in {}: {ours:?}, gdb {theirs:?}", symbols.place(function.start));
        }
    }
    eprintln!("of {} lines gdb stops on {known}, and we where it does on {same}", asked.len());
    assert!(asked.len() == 50 && known >= 35 && same * 100 >= known * 95, "{same} of {known}");
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
