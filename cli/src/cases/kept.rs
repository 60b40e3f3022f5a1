//! Results in a folder, which parts leave on several machines and which are put together later.

use super::judgement::Judgement;
use super::known::KnownCase;
use super::results::CaseResult;
use crate::json::json;
use crate::say::say;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The file of results in a folder.
const NAME: &str = "results.json";

/// The first line: all cases that there are, of which this folder may have a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "cases")]
pub(crate) struct AllCases {
    /// The file of cases.
    pub(crate) file: String,
    pub(crate) cases: Vec<KnownCase>,
}

/// Writes what came of a part of all cases.
pub(crate) fn write(folder: &Path, all: &AllCases, results: &[CaseResult]) -> Result<()> {
    let path = folder.join(NAME);
    let write = || {
        let mut out = BufWriter::new(File::create(&path)?);
        json(&mut out, all)?;
        results.iter().try_for_each(|result| json(&mut out, result))?;
        out.flush()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// A result of one of several parts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MergedResult {
    pub(crate) result: CaseResult,
    /// The folders of the parts that have run the case. The result is that of the first one.
    pub(crate) parts: Vec<PathBuf>,
}

/// The results of all parts, in the order of the file. One that no part has run could not be run; of one that several have run,
/// the worst verdict counts. The order of `folders` changes nothing.
pub(crate) fn merged(folders: &[PathBuf]) -> Result<(AllCases, Vec<MergedResult>)> {
    let folders = BTreeSet::from_iter(folders);
    let mut parts = folders.iter().map(|folder| read(folder).map(|part| (*folder, part)));
    let (first, (all, results)) = parts.next().context("there is nothing to be put together")??;
    let mut found = BTreeMap::<usize, MergedResult>::new();
    let mut add = |folder: &Path, results: Vec<CaseResult>| {
        for result in results {
            let folder = folder.to_owned();
            match found.get_mut(&result.number) {
                None => drop(found.insert(result.number, MergedResult { result, parts: vec![folder] })),
                Some(other) => {
                    say(format_args!("{} [{}] was run by two parts", result.name, result.kernel));
                    if worse(&result.judgement) > worse(&other.result.judgement) {
                        other.result = result;
                        other.parts.insert(0, folder);
                    } else {
                        other.parts.push(folder);
                    }
                }
            }
        }
    };
    add(first, results);
    for part in parts {
        let (folder, (other, results)) = part?;
        if other.cases != all.cases {
            bail!("{} has parts of other cases than {}", folder.display(), first.display());
        }
        add(folder, results);
    }
    let missing = all.cases.iter().filter(|case| !found.contains_key(&case.number)).map(|case| {
        say(format_args!("{} [{}] was run by no part", case.name, case.kernel));
        CaseResult {
            number: case.number,
            kernel: case.kernel.clone(),
            name: case.name.clone(),
            line: case.line,
            judgement: Judgement::Infrastructure("no part has run it".to_owned()),
            subtests: Vec::new(),
            attempts: 0,
            seconds: 0.0,
            command: Vec::new(),
        }
    });
    let missing: Vec<CaseResult> = missing.collect();
    let missing = missing.into_iter().map(|result| MergedResult { result, parts: Vec::new() });
    found.extend(missing.map(|missing| (missing.result.number, missing)));
    Ok((all, found.into_values().collect()))
}

fn worse(judgement: &Judgement) -> u8 {
    match judgement {
        Judgement::Passed => 0,
        Judgement::Skipped(_) => 1,
        Judgement::Infrastructure(_) => 2,
        Judgement::Inconclusive(_) => 3,
        Judgement::Failed(_) => 4,
    }
}

fn read(folder: &Path) -> Result<(AllCases, Vec<CaseResult>)> {
    let path = folder.join(NAME);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut lines = text.lines();
    let damaged = || format!("{} is damaged", path.display());
    let all: AllCases = serde_json::from_str(lines.next().unwrap_or_default()).with_context(damaged)?;
    let results: Vec<CaseResult> =
        lines.map(serde_json::from_str).collect::<Result<_, _>>().with_context(damaged)?;
    let is_known = |result: &CaseResult| {
        all.cases.iter().any(|case| (case.number, &case.name) == (result.number, &result.name))
    };
    match results.iter().all(is_known) {
        true => Ok((all, results)),
        false => bail!(damaged()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::testing::results;
    use super::*;

    fn all() -> AllCases {
        let known = |result: CaseResult| KnownCase {
            number: result.number,
            kernel: result.kernel,
            name: result.name,
            line: result.line,
        };
        AllCases { file: "cases.toml".to_owned(), cases: results().into_iter().map(known).collect() }
    }

    /// Each of these parts in a folder of its own.
    fn folders(parts: &[&[usize]]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            let path = folder.path().join(n.to_string());
            fs::create_dir(&path).unwrap();
            let results: Vec<CaseResult> = part.iter().map(|number| results()[*number].clone()).collect();
            write(&path, &all(), &results).unwrap();
            paths.push(path);
        }
        (folder, paths)
    }

    fn found(paths: &[PathBuf]) -> (AllCases, Vec<CaseResult>) {
        let (all, found) = merged(paths).unwrap();
        (all, found.into_iter().map(|found| found.result).collect())
    }

    #[test]
    fn parts_unite_to_the_whole() {
        let (_folder, paths) = folders(&[&[4, 0], &[2, 1, 3]]);
        assert_eq!(found(&paths), (all(), results()));
    }

    #[test]
    fn a_case_that_no_part_has_run_was_not_run() {
        let (_folder, paths) = folders(&[&[4, 0], &[2, 3]]);
        let (_, found) = found(&paths);
        assert_eq!(found.len(), 5);
        assert_eq!(found[1].judgement, Judgement::Infrastructure("no part has run it".to_owned()));
    }

    #[test]
    fn of_a_case_that_two_parts_have_run_the_worst_verdict_counts() {
        let (_folder, paths) = folders(&[&[0, 1, 2, 3, 4], &[1]]);
        let mut better = results()[1].clone();
        better.judgement = Judgement::Passed;
        write(&paths[1], &all(), &[better]).unwrap();
        assert_eq!(found(&paths).1, results());
    }

    #[test]
    fn the_order_of_the_folders_changes_nothing() {
        let (_folder, paths) = folders(&[&[0, 1, 2], &[1, 3], &[2, 4]]);
        let mut slower = results()[1].clone();
        slower.seconds = 9.0;
        write(&paths[1], &all(), &[slower]).unwrap();
        let (one, other) =
            (merged(&paths), merged(&[&paths[2], &paths[0], &paths[1], &paths[0]].map(Clone::clone)));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(one, other);
        assert_eq!(one.1[1].parts, paths[..2]);
        assert_eq!(one.1[1].result, results()[1]);
    }

    #[test]
    fn parts_of_other_cases_are_refused() {
        let (_folder, paths) = folders(&[&[0], &[1]]);
        let mut other = all();
        other.cases.pop();
        write(&paths[1], &other, &[]).unwrap();
        assert!(merged(&paths).unwrap_err().to_string().contains("parts of other cases"));
        fs::write(paths[1].join(NAME), "{}\n").unwrap();
        assert!(merged(&paths).unwrap_err().to_string().contains("is damaged"));
    }
}
