//! The pages for readers, and what can be held to the program in them: commands with what they print, definitions, tables,
//! links and paths.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// The folder of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A page.
pub struct Page {
    /// Its path in the repository.
    pub name: String,
    text: String,
}

/// A command of a `console` block, and the lines that it is said to print.
pub struct Example {
    /// Which program is run: `vmm`, or `./vmm` where the program is alone.
    pub program: String,
    /// The words behind it.
    pub words: Vec<String>,
    shown: Vec<String>,
    /// The exit code: `$ echo $?` says another one than 0.
    code: i32,
}

impl Page {
    /// The page of this name.
    pub fn open(name: &str) -> Self {
        let text = fs::read_to_string(Path::new(ROOT).join(name)).unwrap();
        Self { name: name.to_owned(), text }
    }

    /// All pages that there are.
    pub fn all() -> Vec<Self> {
        let pages = fs::read_dir(Path::new(ROOT).join("docs")).unwrap();
        let pages = pages.map(|entry| format!("docs/{}", entry.unwrap().file_name().to_str().unwrap()));
        let mut names: Vec<String> = pages.filter(|name| name.ends_with(".md")).collect();
        names.extend(["README.md", "ARCHITECTURE.md"].map(str::to_owned));
        names.iter().map(|name| Self::open(name)).collect()
    }

    /// The contents of all blocks of this language.
    fn blocks(&self, language: &str) -> Vec<&str> {
        let begin = format!("\n```{language}\n");
        self.text.split(&begin).skip(1).map(|rest| rest.split("\n```").next().unwrap()).collect()
    }

    /// The commands of all `console` blocks. A command goes on in the next line behind a `\`.
    pub fn examples(&self) -> Vec<Example> {
        let mut examples: Vec<Example> = Vec::new();
        for block in self.blocks("console") {
            let block = block.replace(" \\\n", " ");
            assert!(block.starts_with("$ "), "{}: a block begins with `$ `:\n{block}", self.name);
            let mut lines = block.lines();
            while let Some(line) = lines.next() {
                match (line.strip_prefix("$ "), examples.last_mut()) {
                    (Some("echo $?"), Some(last)) => last.code = lines.next().unwrap().parse().unwrap(),
                    (Some(command), _) => examples.push(Example::of(command)),
                    (None, Some(last)) => last.shown.push(line.to_owned()),
                    (None, None) => {}
                }
            }
        }
        examples
    }

    /// The definitions of all `probes` blocks, as a file for `--probes`.
    pub fn definitions(&self) -> String {
        self.blocks("probes").join("\n")
    }

    /// The file `cases.toml`, which is the first `toml` block of a page that speaks of it.
    pub fn cases(&self) -> Option<&str> {
        self.blocks("toml").first().copied()
    }

    /// The file `rules.yaml`, which is the first `yaml` block of a page that has rules.
    pub fn rules(&self) -> Option<&str> {
        self.blocks("yaml").first().copied()
    }

    /// The first program in Python.
    pub fn python(&self) -> Option<&str> {
        self.blocks("python").first().copied()
    }

    /// The first one that uses drgn.
    pub fn drgn(&self) -> Option<&str> {
        self.blocks("python drgn").first().copied()
    }

    /// The file `greet.c`, which is the first `c` block of a page that has it compiled.
    pub fn source(&self) -> Option<&str> {
        self.blocks("c").first().copied()
    }

    /// A column of the table below a heading: the first cell of each row, and the one below `column`, without the marks of
    /// code.
    pub fn table(&self, heading: &str, column: &str) -> Vec<(String, String)> {
        let below = self.text.split(&format!("# {heading}\n")).nth(1).unwrap();
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

    /// The links that lead to nothing: to a file that is not there, or a heading that its page does not have.
    pub fn broken_links(&self) -> Vec<&str> {
        let links = self.text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        links.filter(|link| !link.contains("://") && !self.leads_somewhere(link)).collect()
    }

    fn leads_somewhere(&self, link: &str) -> bool {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let folder = Path::new(ROOT).join(&self.name);
        let target = match path {
            "" => folder,
            path => folder.parent().unwrap().join(path),
        };
        if anchor.is_empty() {
            return target.exists();
        }
        let text = fs::read_to_string(target).unwrap_or_default();
        text.lines().filter(|line| line.starts_with('#')).any(|heading| self::anchor(heading) == anchor)
    }

    /// What is named like a file or a folder of the repository and is none. A path begins at the repository's root, or at the
    /// folder that the last heading names.
    pub fn missing_paths(&self) -> Vec<String> {
        let mut base = PathBuf::from(ROOT);
        let mut missing = Vec::new();
        for line in self.text.lines() {
            let is_heading = line.starts_with('#');
            let paths = line.split('`').skip(1).step_by(2).filter(|word| is_path(word));
            for path in paths {
                let at_root = Path::new(ROOT).join(path);
                if is_heading && at_root.is_dir() {
                    base = at_root;
                } else if !at_root.exists() && !base.join(path).exists() {
                    missing.push(path.to_owned());
                }
            }
        }
        missing
    }
}

/// Whether this word in the marks of code is a path of the repository: `vmm/src`, `stage.rs`, `devices/`.
fn is_path(word: &str) -> bool {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_named = word.contains('/') || word.ends_with(".rs") || word.ends_with(".md");
    is_named
        && word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '.')
        && word.chars().all(is_of_path)
}

/// What a link to this heading is called.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

impl Example {
    fn of(command: &str) -> Self {
        let mut words = self::words(command).into_iter().map(str::to_owned);
        let program = words.next().unwrap();
        Self { program, words: words.collect(), shown: Vec::new(), code: 0 }
    }

    /// What stands for the folder in which a kernel was built.
    const BUILD: &str = "BUILD";

    /// Whether it is of a kernel that was built.
    pub fn needs_build(&self) -> bool {
        self.words.iter().any(|word| word == Self::BUILD)
    }

    /// Whether it starts a guest that goes on, or is about one.
    pub fn needs_guest(&self) -> bool {
        self.words.first().is_some_and(|verb| verb == "ctl")
            || self.words.last().is_some_and(|word| word == "&")
    }

    /// The lines that it is said to print.
    pub fn shown(&self) -> &[String] {
        &self.shown
    }

    /// The words with the kernel in `folder`.
    pub fn words_with<'a>(&'a self, folder: &'a str) -> Vec<&'a str> {
        self.words.iter().map(|word| if word == Self::BUILD { folder } else { word }).collect()
    }

    /// Fails the test unless the command ended as is shown and printed every line that is shown.
    #[track_caller]
    pub fn assert_printed_by(&self, output: &Output) {
        let text = [&*output.stdout, &*output.stderr].concat();
        let printed: Vec<String> = String::from_utf8_lossy(&text).lines().map(shape).collect();
        assert_eq!(output.status.code(), Some(self.code), "{:?}: {printed:#?}", self.words);
        for line in &self.shown {
            // On a machine whose own KVM serves, nothing is said about another host.
            if ["vmm: using", "vmm: preparing"].iter().any(|of| line.starts_with(of)) {
                continue;
            }
            let (shown, is_begin) = (shape(line), line.contains("..."));
            let is_it = |line: &String| *line == shown || is_begin && line.starts_with(&shown);
            assert!(printed.iter().any(is_it), "`{line}` is not in\n{printed:#?}");
        }
    }
}

/// The words of a command as a shell has them, as far as single quotes go.
pub fn words(command: &str) -> Vec<&str> {
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
        let number = value.strip_suffix("us").unwrap_or(value);
        let varies =
            number.starts_with(|c: char| c.is_ascii_digit() || c == '[') && number.chars().all(is_number);
        let is_outside = has_outside && column == 3;
        let is_count = is_of_summary && !is_outside && word.bytes().all(|byte| byte.is_ascii_digit());
        let kept = if varies && !is_count { &word[..word.len() - value.len()] } else { word };
        shape.push_str(kept);
        shape.push(' ');
    }
    shape.trim().to_owned()
}
