//! `vmm coverage --diff`: which functions ran in only one of two runs.

use crate::coverage::prefix;
use crate::listing::list;
use crate::output::width;
use crate::record::{Line, Reader};
use crate::say::say;
use anyhow::{Context, Result, bail};
use probe_engine::guest_text::is_special;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A run: what its recording is called, and the functions that ran.
type Ran = (String, BTreeSet<String>);

/// Shows how two recordings of `vmm coverage` differ.
pub(crate) fn main(recordings: &[PathBuf]) -> Result<ExitCode> {
    let [first, second] = recordings else { bail!("--diff takes two recordings") };
    let text = difference(&read(first)?, &read(second)?);
    list(|out| out.write_all(text.as_bytes()))?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Ran> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let cannot_use = || format!("cannot use {name}");
    let mut recording = Reader::open(BufReader::new(file)).with_context(cannot_use)?;
    let mut functions = BTreeSet::new();
    while let Some(line) = recording.next().with_context(cannot_use)? {
        if let Line::Function(function) = line {
            let shown = |c: char| if is_special(c) { '?' } else { c };
            functions.insert(function.function.chars().map(shown).collect());
        }
    }
    if functions.is_empty() {
        bail!("{name} has no functions: `vmm coverage --output FILE` records them");
    }
    if recording.is_cut() {
        say(format_args!("{name} is cut: it ends before the run did"));
    }
    Ok((name, functions))
}

/// Those of each run alone, by the prefixes of their names, and how many are in both.
fn difference(first: &Ran, second: &Ran) -> String {
    let mut text = only_in(first, second);
    text.push_str(&only_in(second, first));
    let _ = writeln!(text, "in both: {}", first.1.intersection(&second.1).count());
    text
}

fn only_in((name, functions): &Ran, (_, others): &Ran) -> String {
    let mut rows = BTreeMap::<&str, Vec<&str>>::new();
    for function in functions.difference(others) {
        rows.entry(prefix(function)).or_default().push(function);
    }
    let mut text = format!("only in {name}: {}\n", rows.values().map(Vec::len).sum::<usize>());
    let width = width(rows.keys().copied());
    for (prefix, functions) in rows {
        let _ = writeln!(text, "  {prefix:width$}  {:>5}  {}", functions.len(), functions.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_one_run_are_grouped_by_their_prefixes() {
        let run = |name: &str, functions: &[&str]| -> Ran {
            (name.to_owned(), functions.iter().map(|name| (*name).to_owned()).collect())
        };
        let first = run("old.json", &["vfs_read", "pipe_read", "pipe_write", "__pipe_lock", "schedule"]);
        let second = run("new.json", &["vfs_read", "vfs_write", "schedule"]);
        assert_eq!(
            difference(&first, &second),
            "only in old.json: 3\n  pipe      3  __pipe_lock pipe_read pipe_write\n\
             only in new.json: 1\n  vfs      1  vfs_write\nin both: 2\n"
        );
        // As wide as a column may be, and wider than any text is padded.
        let long = run("long.json", &["b_c", &"a".repeat(70_000)]);
        assert!(difference(&first, &long).contains(&format!("\n  b{}      1  b_c\n", " ".repeat(119))));
        assert_eq!(difference(&first, &first), "only in old.json: 0\nonly in old.json: 0\nin both: 5\n");
    }
}
