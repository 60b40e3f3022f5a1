//! `vmm doctor --report FILE`: what somebody can send who has a machine that we have not.

use super::trial::{Seen, TRIALS, Trial};
use super::{Diagnosis, machine, table};
use crate::args::Doctor;
use crate::file;
use crate::say::note;
use anyhow::{Context, Result};
use clap::ValueEnum;
use probe_engine::guest_text::Escaped;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// What is behind that many bytes of a line is left out.
const LONGEST_LINE: usize = 4096;
/// So many of the last lines are shown of what a guest printed, and of what was said about it.
const LAST_LINES: usize = 40;

/// Writes the report to `path`. Returns how many differences it tells of.
pub(super) fn write(path: &Path, args: &Doctor, diagnosis: &Diagnosis) -> Result<usize> {
    let mut file = file::create(path)?;
    let mut add =
        |lines: &[String]| add(&mut file, lines).with_context(|| format!("cannot write {}", path.display()));
    add(&head(diagnosis))?;
    let host = host_words(args);
    let mut differences = 0;
    for (n, trial) in (1..).zip(&TRIALS) {
        note(format_args!("guest {n} of {}: {}", TRIALS.len(), trial.name));
        let seen = trial.run(&host, args.kernel.as_ref())?;
        let found = trial.differences(&seen);
        add(&section(trial, &seen, &found))?;
        differences += found.len();
    }
    let end = match differences {
        0 => "No guest differed from what it was to do.".to_owned(),
        1 => "1 difference.".to_owned(),
        many => format!("{many} differences."),
    };
    add(std::slice::from_ref(&end))?;
    note(format_args!("{end} The report is in {}: read it before you send it", path.display()));
    Ok(differences)
}

/// What is known is on the disk when a guest takes the machine with it.
fn add(file: &mut File, lines: &[String]) -> std::io::Result<()> {
    for line in lines {
        // Whoever made the processor's name, or the guest's kernel, writes no lines of ours.
        let (start, _) = line.split_at(line.floor_char_boundary(LONGEST_LINE));
        writeln!(file, "{}", Escaped(start.as_bytes()))?;
    }
    file.flush()?;
    // A pipe has nothing to sync.
    let _ = file.sync_data();
    Ok(())
}

/// Where the guests run, in words for `vmm run`.
fn host_words(args: &Doctor) -> Vec<String> {
    let host = args.place.host.to_possible_value();
    let host = host.map(|host| format!("--host={}", host.get_name()));
    let device = format!("--kvm-device={}", args.place.kvm_device.display());
    host.into_iter().chain([device]).collect()
}

fn head(diagnosis: &Diagnosis) -> Vec<String> {
    let version = env!("CARGO_PKG_VERSION");
    let mut lines =
        vec![format!("Report of vmm {version}"), String::new(), "# Machine".to_owned(), String::new()];
    lines.extend(machine::lines(Path::new("/")));
    lines.extend([String::new(), "# KVM".to_owned(), String::new()]);
    lines.extend(table(diagnosis));
    lines.push(String::new());
    lines
}

fn section(trial: &Trial, seen: &Seen, differences: &[String]) -> Vec<String> {
    let mut lines = vec![format!("# Guest: {}", trial.name), String::new(), trial.command()];
    let number = |key| seen.of_end(key).map_or_else(|| "unknown".to_owned(), |number| number.to_string());
    lines.push(format!(
        "took {:.1} s, exits {}, waits {}, armed in {} us",
        seen.took.as_secs_f64(),
        number("exits"),
        number("waits"),
        number("armed_us")
    ));
    if differences.is_empty() {
        lines.extend(["as it was to be".to_owned(), String::new()]);
        return lines;
    }
    lines.extend(differences.iter().map(|difference| format!("DIFFERS: {difference}")));
    for (what, text) in [("vmm said", &seen.said), ("the guest printed", &seen.console)] {
        let all: Vec<&str> = text.lines().collect();
        let (_, last) = all.split_at(all.len().saturating_sub(LAST_LINES));
        lines.extend([String::new(), format!("Last lines of what {what}:")]);
        lines.extend(last.iter().map(|line| format!("    {}", line.trim_end())));
    }
    lines.push(String::new());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_writes_a_line_of_the_report() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let long = "é".repeat(LONGEST_LINE);
        add(&mut file.reopen().unwrap(), &["CPU\n# Guest: forged\x1b[2K".to_owned(), long]).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, format!("CPU\\n# Guest: forged\\x1b[2K\n{}\n", "é".repeat(LONGEST_LINE / 2)));
    }
}
