//! The README's examples: what is typed, and what is said to be printed.

use std::fs;
use std::process::Output;

/// A `console` block: the command, and the lines that it is said to print.
pub struct Example {
    /// Which program is run: `vmm`, or `./vmm` where the program is alone.
    pub program: String,
    /// The words behind it.
    pub words: Vec<String>,
    shown: Vec<String>,
}

/// All examples of the README.
pub fn examples() -> Vec<Example> {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let blocks = text.split("```console\n").skip(1);
    let example = |block: &str| {
        let mut lines = block.split("```").next().unwrap().lines();
        let command = lines.next().unwrap().strip_prefix("$ ").unwrap();
        let (program, words) = command.split_once(' ').unwrap();
        let words = self::words(words).into_iter().map(str::to_owned).collect();
        Example { program: program.to_owned(), words, shown: lines.map(str::to_owned).collect() }
    };
    blocks.map(example).collect()
}

/// A column of the table below a heading of the README: the first cell of each row, and the one below `column`, without the
/// marks of code.
pub fn table(heading: &str, column: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let below = text.split(&format!("## {heading}\n")).nth(1).unwrap();
    let lines =
        below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = lines.map(cells).collect();
    let index = rows[0].iter().position(|cell| cell.trim_matches('`') == column).unwrap();
    let row = |row: &Vec<String>| (row[0].clone(), row[index].trim_matches('`').to_owned());
    rows.iter().skip(2).map(row).collect()
}

impl Example {
    /// What stands for the folder in which a kernel was built.
    const BUILD: &str = "BUILD";

    /// Whether it is of a kernel that was built.
    pub fn needs_build(&self) -> bool {
        self.words.iter().any(|word| word == Self::BUILD)
    }

    /// The words with the kernel in `folder`.
    pub fn words_with<'a>(&'a self, folder: &'a str) -> Vec<&'a str> {
        self.words.iter().map(|word| if word == Self::BUILD { folder } else { word }).collect()
    }

    /// Fails the test unless the command succeeded and printed every line that is shown.
    #[track_caller]
    pub fn assert_printed_by(&self, output: &Output) {
        let text = [&*output.stdout, &*output.stderr].concat();
        let printed: Vec<String> = String::from_utf8_lossy(&text).lines().map(shape).collect();
        assert_eq!(output.status.code(), Some(0), "{printed:#?}");
        for line in &self.shown {
            // On a machine whose own KVM serves, nothing is said about another host.
            if ["vmm: using", "vmm: preparing"].iter().any(|of| line.starts_with(of)) {
                continue;
            }
            let (shown, is_begin) = (shape(line), line.ends_with("..."));
            let is_it = |line: &String| *line == shown || is_begin && line.starts_with(&shown);
            assert!(printed.iter().any(is_it), "`{line}` is not in\n{printed:#?}");
        }
    }
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

/// A line without what differs from run to run: numbers, those of tasks too, and all after `...`. How often a probe was hit, and how often
/// that was missed, is the same each time. How often others than the command hit a probe depends on what the guest's set-up opens.
fn shape(line: &str) -> String {
    let line = line.split("...").next().unwrap_or_default();
    let is_of_summary = line.contains("0x") && line.ends_with(']');
    let has_outside = line.split_whitespace().count() == 6;
    let mut shape = String::new();
    for (column, word) in line.split_whitespace().enumerate() {
        // A task, with the number that it has this time.
        let task =
            word.rsplit_once('-').filter(|(_, number)| number.bytes().all(|byte| byte.is_ascii_digit()));
        let word = task.map_or(word, |(name, _)| name);
        let is_number = |c: char| c.is_ascii_hexdigit() || "x.[]{}(),".contains(c);
        let value = word.rsplit('=').next().unwrap_or_default();
        let varies =
            value.starts_with(|c: char| c.is_ascii_digit() || c == '[') && value.chars().all(is_number);
        let is_outside = has_outside && column == 3;
        let is_count = is_of_summary && !is_outside && word.bytes().all(|byte| byte.is_ascii_digit());
        let kept = if varies && !is_count { &word[..word.len() - value.len()] } else { word };
        shape.push_str(kept);
        shape.push(' ');
    }
    shape.trim().to_owned()
}
