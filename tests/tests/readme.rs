//! What the README shows is what happens.

use std::fs;
use tests::kernel::is_default;
use tests::product::{binary, command};

/// Lines of a `console` block: the command, and what it is said to print.
struct Example {
    command: String,
    shown: Vec<String>,
}

fn examples(text: &str) -> Vec<Example> {
    let blocks = text.split("```console\n").skip(1);
    let example = |block: &str| {
        let mut lines = block.split("```").next()?.lines();
        let command = lines.next()?.strip_prefix("$ vmm ")?.to_owned();
        Some(Example { command, shown: lines.map(str::to_owned).collect() })
    };
    blocks.filter_map(example).collect()
}

/// The words of a command as a shell has them, as far as single quotes go.
fn words(command: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (n, part) in command.split('\'').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace()),
            _ => words.push(part),
        }
    }
    words
}

/// A line without what differs from run to run: numbers, those of processes, and all after `...`. How often a probe was hit, and how often
/// that was missed, is the same each time.
fn shape(line: &str) -> String {
    let line = line.split("...").next().unwrap_or_default();
    let is_of_summary = line.contains("0x") && line.ends_with(']');
    let mut shape = String::new();
    for word in line.split_whitespace() {
        let is_number = |c: char| c.is_ascii_hexdigit() || "x.[]{}(),".contains(c);
        let value = word.rsplit('=').next().unwrap_or_default();
        let varies =
            value.starts_with(|c: char| c.is_ascii_digit() || c == '[') && value.chars().all(is_number);
        let is_count = is_of_summary && word.bytes().all(|byte| byte.is_ascii_digit());
        let process = word.rsplit_once('-').filter(|(_, pid)| pid.bytes().all(|byte| byte.is_ascii_digit()));
        let kept = match process {
            _ if varies && !is_count => &word[..word.len() - value.len()],
            Some((name, _)) => name,
            None => word,
        };
        shape.push_str(kept);
        shape.push(' ');
    }
    shape.trim().to_owned()
}

#[test]
fn every_command_prints_what_is_shown() {
    if !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let examples = examples(&readme);
    assert_eq!(examples.len(), readme.matches("```console").count());
    assert!(examples.len() >= 2);
    for Example { command: words, shown } in examples {
        let words = self::words(&words);
        let output = command(&binary, std::env::temp_dir().as_path(), &words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let printed: Vec<String> = String::from_utf8_lossy(&text).lines().map(shape).collect();
        assert_eq!(output.status.code(), Some(0), "{printed:#?}");
        for line in shown.iter().map(|line| shape(line)) {
            // On a machine whose own KVM serves, nothing is said about another host.
            if !line.starts_with("vmm: using") {
                assert!(printed.contains(&line), "`{line}` is not in\n{printed:#?}");
            }
        }
    }
}
