//! Tells results to all who want to know.

use super::judgement::JudgementCounts;
use super::results::CaseResult;
use super::{junit, told};
use crate::args::{Cases, ResultFormat};
use crate::json::json;
use crate::listing::list;
use anyhow::{Context, Result};
use serde::Serialize;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// The last line of JSON.
#[derive(Serialize)]
#[serde(tag = "type", rename = "counts")]
struct CountsLine {
    passed: usize,
    failed: usize,
    inconclusive: usize,
    skipped: usize,
    infrastructure: usize,
}

/// Tells one result as it comes, where that is wanted.
pub(crate) fn tell_one(format: ResultFormat, result: &CaseResult) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        ResultFormat::Text => result.write_text(&mut out),
        ResultFormat::Json => json(&mut out, result),
        ResultFormat::Ktap | ResultFormat::Github => Ok(()),
    }
}

/// Tells all results of `file` in the end, and gives the exit code.
pub(crate) fn tell_all(args: &Cases, file: &str, results: &[CaseResult]) -> Result<ExitCode> {
    let counts = JudgementCounts::of(results.iter().map(|result| &result.judgement));
    let is_github = env::var_os("GITHUB_ACTIONS").is_some_and(|value| value == "true");
    list(|out| match args.format {
        ResultFormat::Ktap => told::write_ktap(out, results),
        ResultFormat::Json => {
            let JudgementCounts { passed, failed, inconclusive, skipped, infrastructure } = counts;
            json(&mut &mut *out, &CountsLine { passed, failed, inconclusive, skipped, infrastructure })
        }
        format => {
            if format == ResultFormat::Github || is_github {
                told::write_github(out, file, results)?;
            }
            writeln!(out, "{counts}")
        }
    })?;
    let beside = args.output.as_ref().map(|folder| folder.join("junit.xml"));
    for path in args.junit.iter().chain(&beside) {
        let text = junit::xml(file, results)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let summary = args.summary.clone().or_else(|| env::var_os("GITHUB_STEP_SUMMARY").map(PathBuf::from));
    if let Some(path) = summary {
        let add = || {
            let mut page = OpenOptions::new().append(true).create(true).open(&path)?;
            page.write_all(told::markdown(file, results).as_bytes())
        };
        add().with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::from(counts.exit_code()))
}
