//! `vmm test`: cases, each a guest and what is expected of it.

mod case_run;
mod checks;
mod child;
mod evidence;
mod expect;
mod fingerprint;
mod judge;
mod judgement;
mod junit;
mod kept;
mod kernels;
mod known;
mod ktap;
mod observed;
mod ordered;
mod outlet;
mod page;
mod pattern;
mod queue;
mod results;
mod seen_probe;
mod single;
mod source;
mod suite;
mod times;
mod told;

pub(crate) use case_run::Readiness;
pub(crate) use judge::Judged;
pub(crate) use judgement::Judgement;
pub(crate) use kernels::TestedKernel;
pub(crate) use single::{SingleCase, SingleCaseSource};

use crate::args::{Cases, HostArgs, HostChoice, ResultFormat};
use crate::file;
use crate::json::json;
use crate::listing::list;
use crate::say::{note, say};
use anyhow::{Context, Result, bail};
use case_run::CaseRun;
use child::Bench;
use kept::{AllCases, MergedResult};
use kernels::KnownKernel;
use results::CaseResult;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use source::SuiteSource;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use suite::TestSuite;
use times::CaseTimes;
use vmm::guest::Host;

/// What runs where no kernel is named.
const DEFAULT_KERNEL: &str = "debian:6.12";
/// What a guest takes beside its own memory, in bytes: the emulated host, and what is read of a kernel.
const BESIDE: u64 = 512 << 20;

pub(crate) fn main(args: &Cases) -> Result<ExitCode> {
    let Some(path) = &args.file else {
        let (all, merged) = kept::merged(&args.merge)?;
        if let Some(path) = &args.html {
            write_page(path, &all.file, &merged)?;
        }
        let results: Vec<CaseResult> = merged.into_iter().map(|merged| merged.result).collect();
        // People want to know of the others; programs of all.
        let is_told =
            |result: &&CaseResult| args.format != ResultFormat::Text || result.judgement != Judgement::Passed;
        for result in results.iter().filter(is_told) {
            outlet::tell_one(args.format, result)?;
        }
        return outlet::tell_all(args, &all.file, &results);
    };
    let file = SuiteSource::read(path)?;
    let suite: TestSuite = file.parse()?;
    let folder = std::path::absolute(path)?;
    let folder = folder.parent().unwrap_or(Path::new("/"));
    checks::check(&file, folder, &suite)?;
    let kernels = kernels(args, &file, folder, &suite)?;
    let mut runs = runs(&file, folder, &suite, &kernels)?;
    runs.retain(|run| args.names.is_empty() || args.names.iter().any(|name| run.name().contains(name)));
    if runs.is_empty() {
        bail!("no case of {} has one of these names", path.display());
    }
    let all = AllCases { file: file.name().to_owned(), cases: runs.iter().map(CaseRun::known).collect() };
    if let Some(shard) = args.shard {
        let (rule, part) = shard.part(args.shards, |name| std::env::var(name).ok()).context("--shard")?;
        let mut place = 0..;
        runs.retain(|run| place.next().is_some_and(|at| part.has(rule, at, &run.kernel.word, run.name())));
    }
    if args.list {
        list(|mut out| {
            runs.iter().try_for_each(|run| match args.format {
                ResultFormat::Json => json(&mut out, &run.known()),
                _ => writeln!(out, "{} [{}]", run.name(), run.kernel.word),
            })
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut times = args.times.as_deref().map(CaseTimes::read).transpose()?.unwrap_or_default();
    times.sort(&mut runs);
    let results = run_all(args, folder, runs)?;
    if let Some(path) = &args.times {
        times.add(&results);
        times.write(path)?;
    }
    if let Some(folder) = &args.output {
        kept::write(folder, &all, &results)?;
    }
    outlet::tell_all(args, file.name(), &results)
}

fn write_page(path: &Path, file: &str, merged: &[MergedResult]) -> Result<()> {
    let mut out = BufWriter::new(file::create(path)?);
    page::write(&mut out, file, merged)
        .and_then(|()| out.flush())
        .with_context(|| format!("cannot write {}", path.display()))?;
    file::note_written("the page", path);
    Ok(())
}

/// Runs all of these, and tells what came of each as it comes. They are in the order of the file then.
fn run_all(args: &Cases, here: &Path, runs: Vec<CaseRun<'_>>) -> Result<Vec<CaseResult>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).context("cannot take signals")?;
    }
    // It is gone with what cases leave, where nobody wants that.
    let passing = tempfile::tempdir().context("cannot create a folder for what cases leave")?;
    let results = args.output.as_deref().unwrap_or(passing.path());
    fs::create_dir_all(results).with_context(|| format!("cannot create {}", results.display()))?;
    let bench = Bench {
        here: here.to_owned(),
        results: std::path::absolute(results)?,
        // Who has nothing to run needs no host.
        is_emulated: !runs.is_empty() && is_emulated(&args.place)?,
        kvm_device: std::path::absolute(&args.place.kvm_device)?,
        is_over: interrupted,
    };
    let jobs = args.jobs.map_or_else(|| jobs(&runs), usize::from);
    let mut all = Vec::new();
    let work = |run: CaseRun<'_>| {
        let begun = Instant::now();
        let (judged, attempts) = bench.judged_at_last(&run, args.retries);
        CaseResult::of(&run, judged, attempts, begun.elapsed())
    };
    queue::side_by_side(runs, jobs, work, |result: CaseResult| {
        // Whoever reads may go away when that is enough.
        let _ = outlet::tell_one(args.format, &result);
        all.push(result);
    });
    all.sort_by_key(|result| result.number);
    Ok(all)
}

fn kernels(args: &Cases, file: &SuiteSource, folder: &Path, suite: &TestSuite) -> Result<Vec<TestedKernel>> {
    let kernels = match args.kernels.as_slice() {
        [] => TestedKernel::of_file(file, folder, &suite.kernels)?,
        said => said.iter().map(TestedKernel::said).collect::<Result<_>>()?,
    };
    match kernels.is_empty() {
        true => Ok(vec![TestedKernel::said(
            &crate::kernel_choice::Choice::parse(DEFAULT_KERNEL.into()).map_err(anyhow::Error::msg)?,
        )?]),
        false => Ok(kernels),
    }
}

/// All cases on all kernels, checked. What is said of a kernel that cannot be had is what comes of its cases.
fn runs<'a>(
    file: &SuiteSource,
    folder: &Path,
    suite: &'a TestSuite,
    kernels: &'a [TestedKernel],
) -> Result<Vec<CaseRun<'a>>> {
    let mut runs = Vec::new();
    for kernel in kernels {
        let read = kernel.read();
        let known = read.as_ref().map(|read| KnownKernel::new(&kernel.word, read));
        if let Err(error) = &known {
            say(format_args!("the kernel {} cannot be used: {error:#}", kernel.word));
        }
        for case in &suite.cases {
            let ready = match &known {
                Err(error) => Readiness::NoKernel(format!("{error:#}")),
                Ok(known) => Readiness::of(known, file, folder, (suite, case))?,
            };
            let line = file.line_of(&case.name);
            runs.push(CaseRun { number: runs.len(), line, suite, case, kernel, ready });
        }
    }
    Ok(runs)
}

/// Whether guests run in the emulated host. That is found out once for all of them.
fn is_emulated(args: &HostArgs) -> Result<bool> {
    let own = || Host::open_at(&args.kvm_device);
    match args.host {
        HostChoice::Emulated => Ok(true),
        HostChoice::Kvm => Ok(own().map(|_| false)?),
        HostChoice::Auto => Ok(match own() {
            Ok(_) => false,
            Err(reason) => {
                note(format_args!("using the emulated host: {reason:#}"));
                true
            }
        }),
    }
}

/// How many guests run side by side, where nobody says it.
fn jobs(runs: &[CaseRun<'_>]) -> usize {
    let memory = runs.iter().filter_map(|run| checks::amount(run.memory()).ok()).map(|memory| memory.0).max();
    let cpus = runs.iter().map(CaseRun::cpus).max();
    queue::fitting(memory.unwrap_or_default() + BESIDE, cpus.unwrap_or(1))
}
