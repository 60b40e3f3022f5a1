//! `vmm bisect`: the first bad kernel of a list, or the first bad commit of a tree.

mod candidates;
mod chance;
mod halves;
mod kernel_list;
mod outcome;
mod search;
mod state;
mod told;
mod tree;
mod trials;

use crate::args::Bisect;
use crate::cases::{SingleCase, SingleCaseSource, TestedKernel};
use crate::ending_signals::ending_signals;
use crate::exit_codes::{FAILED, INFRASTRUCTURE};
use crate::listing::list;
use crate::say::say;
use anyhow::{Context, Result};
use candidates::{BuiltCommits, Candidates};
use search::{BisectAnswer, SearchRules, first_bad};
use serde_json::json;
use sha2::{Digest, Sha256};
use state::{AskedCandidates, BisectQuestion, KnownRuns};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use tree::SourceTree;
use trials::Trials;

pub(crate) fn main(args: &Bisect) -> Result<ExitCode> {
    let source = match &args.file {
        Some(path) => SingleCaseSource::in_file(path)?,
        None => SingleCaseSource::of_text(of_command(args)?)?,
    };
    let test = [source.text(), args.test.as_deref().unwrap_or_default(), &source.folder().to_string_lossy()];
    let test = format!("{:x}", Sha256::digest(test.join("\0")));
    let (candidates, ends) = candidates(args)?;
    let question = BisectQuestion { candidates: asked(&candidates, &ends), test };
    let (branch, commit) = match &candidates {
        Candidates::Commits(commits) => (commits.tree.branch()?, Some(commits.tree.commit("HEAD")?)),
        Candidates::Kernels(_) => (None, None),
    };
    let (is_over, signal) = ending_signals()?;
    let case =
        SingleCase::of(source, args.test.as_deref(), &args.place, args.output.as_deref(), is_over.clone())?;
    let known = KnownRuns::open(args.state.clone(), question, branch.clone().or(commit))?;
    let mut trials = Trials { candidates, case, known, ready: None, is_over };
    trials.check_ends()?;
    let rules = SearchRules { confidence: args.confidence, most_runs: args.most_runs, retries: args.retries };
    let answer = first_bad(&mut trials, (&ends.0, &ends.1), rules);
    // A tree without a branch is as a run left it that was killed: an earlier one knows better.
    let head = branch.as_deref().or(trials.known.head());
    if let (Candidates::Commits(commits), Some(head)) = (&trials.candidates, head)
        && let Err(error) = commits.tree.go_back(head)
    {
        say(format_args!("{head} could not be checked out again: {error:#}"));
    }
    if let signal @ 1.. = signal.load(Ordering::Relaxed) {
        say(match &args.state {
            Some(path) => format!("interrupted: the same command goes on from {}", path.display()),
            None => "interrupted; with --state FILE, the same command goes on".to_owned(),
        });
        return Ok(ExitCode::from(128u8.wrapping_add(signal as u8)));
    }
    let answer = answer?;
    list(|out| {
        told::answer(&answer, &trials.candidates).iter().try_for_each(|line| writeln!(out, "{line}"))
    })?;
    Ok(match &answer {
        BisectAnswer::Found(found) if found.among.len() == 1 => ExitCode::SUCCESS,
        BisectAnswer::Found(_) | BisectAnswer::UnknownEnd(_) => ExitCode::from(INFRASTRUCTURE),
        BisectAnswer::WrongEnd(_) => ExitCode::from(FAILED),
    })
}

/// The case that a command is. What JSON has between quotation marks, TOML has as well.
fn of_command(args: &Bisect) -> Result<String> {
    let mut words = args.command.iter().map(|word| word.to_str().context("a word of CMD is no UTF-8"));
    let program = words.next().context("there is no CMD")??;
    let rest = words.collect::<Result<Vec<&str>>>()?;
    let mut text = format!(
        "[[test]]\nname = \"the command\"\nrun = {{ program = {}, args = {} }}\n",
        json!(program),
        json!(rest)
    );
    let lines = [
        args.cpus.map(|cpus| format!("cpus = {cpus}\n")),
        args.memory.as_ref().map(|memory| format!("memory = \"{memory}\"\n")),
        args.append.as_ref().map(|append| format!("append = {}\n", json!(append))),
        args.timeout.map(|seconds| format!("timeout = {seconds}\n")),
    ];
    text.extend(lines.into_iter().flatten());
    Ok(text)
}

/// Among what the first bad one is, and both ends.
fn candidates(args: &Bisect) -> Result<(Candidates, (String, String))> {
    if let Some(kernels) = &args.kernels {
        let kernels = kernel_list::read(kernels)?;
        let end = |kernel: Option<&TestedKernel>| {
            kernel.map(|kernel| kernel.word.clone()).context("there is no kernel")
        };
        let ends = (end(kernels.first())?, end(kernels.last())?);
        return Ok((Candidates::Kernels(kernels), ends));
    }
    let tree = SourceTree::open(&args.tree)?;
    let word = |word: &Option<String>| word.clone().context("name --good, --bad and --build");
    let ends = (tree.commit(&word(&args.good)?)?, tree.commit(&word(&args.bad)?)?);
    tree.check_ends(&ends.0, &ends.1)?;
    let built = std::path::absolute(args.built.as_deref().unwrap_or(tree.path()))?;
    Ok((Candidates::Commits(BuiltCommits { tree, build: word(&args.build)?, built }), ends))
}

fn asked(candidates: &Candidates, (good, bad): &(String, String)) -> AskedCandidates {
    match candidates {
        Candidates::Kernels(kernels) => AskedCandidates::Kernels(
            kernels.iter().map(|kernel| kernel.choice.word().to_string_lossy().into_owned()).collect(),
        ),
        Candidates::Commits(BuiltCommits { tree, build, built }) => AskedCandidates::Commits {
            tree: tree.path().to_owned(),
            good: good.clone(),
            bad: bad.clone(),
            build: build.clone(),
            built: built.clone(),
        },
    }
}
