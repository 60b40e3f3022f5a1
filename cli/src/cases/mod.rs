//! `vmm test`: cases, each a guest and what is expected of it.

mod case_run;
mod checks;
mod child;
mod expect;
mod judge;
mod judgement;
mod kernels;
mod ktap;
mod observed;
mod ordered;
mod pattern;
mod queue;
mod results;
mod seen_probe;
mod source;
mod suite;

use crate::args::{Cases, HostArgs, HostChoice};
use crate::listing::list;
use crate::say::{note, say};
use anyhow::{Context, Result, bail};
use case_run::{CaseRun, Readiness};
use child::Bench;
use judgement::JudgementCounts;
use kernels::{KnownKernel, TestedKernel};
use results::CaseResult;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use source::SuiteSource;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use suite::TestSuite;
use vmm::guest::Host;

/// What runs where no kernel is named.
const DEFAULT_KERNEL: &str = "debian:6.12";
/// What a guest takes beside its own memory, in bytes: the emulated host, and what is read of a kernel.
const BESIDE: u64 = 512 << 20;

pub(crate) fn main(args: &Cases) -> Result<ExitCode> {
    let file = SuiteSource::read(&args.file)?;
    let suite: TestSuite = file.parse()?;
    checks::check(&file, &suite)?;
    let folder = std::path::absolute(&args.file)?;
    let folder = folder.parent().unwrap_or(Path::new("/"));
    let kernels = kernels(args, &file, folder, &suite)?;
    let mut runs = runs(&file, &suite, &kernels)?;
    let is_named = |run: &CaseRun<'_>| args.names.iter().any(|name| run.name().contains(name));
    runs.retain(|run| args.names.is_empty() || is_named(run));
    if runs.is_empty() {
        bail!("no case of {} has one of these names", args.file.display());
    }
    if args.list {
        list(|out| runs.iter().try_for_each(|run| writeln!(out, "{} [{}]", run.name(), run.kernel.word)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).context("cannot take signals")?;
    }
    let results = tempfile::tempdir().context("cannot create a folder for what cases leave")?;
    let bench = Bench {
        here: folder.to_owned(),
        results: results.path().to_owned(),
        is_emulated: is_emulated(&args.place)?,
        kvm_device: std::path::absolute(&args.place.kvm_device)?,
        is_over: interrupted.clone(),
    };
    let jobs = args.jobs.map_or_else(|| jobs(&runs), usize::from);
    let mut all = Vec::new();
    let work = |run: CaseRun<'_>| {
        let begun = Instant::now();
        let judged = bench.judged(&run);
        CaseResult::of(&run, judged, begun.elapsed())
    };
    queue::side_by_side(runs, jobs, work, |result: CaseResult| {
        // Whoever reads may go away when that is enough.
        let _ = result.write_text(&mut io::stdout().lock());
        all.push(result);
    });
    let counts = JudgementCounts::of(all.iter().map(|result| &result.judgement));
    list(|out| writeln!(out, "{counts}"))?;
    Ok(ExitCode::from(counts.exit_code()))
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
    suite: &'a TestSuite,
    kernels: &'a [TestedKernel],
) -> Result<Vec<CaseRun<'a>>> {
    let mut runs = Vec::new();
    for kernel in kernels {
        let read = kernel.read();
        let known = read.as_ref().map(|(source, read)| KnownKernel::new(&kernel.word, source, read));
        if let Err(error) = &known {
            say(format_args!("the kernel {} cannot be used: {error:#}", kernel.word));
        }
        for case in &suite.cases {
            let ready = match &known {
                Err(error) => Readiness::NoKernel(format!("{error:#}")),
                Ok(known) => match known.lacks(file, case)? {
                    Some(reason) => Readiness::Lacking(reason),
                    None => Readiness::Ready(known.probes(file, case)?),
                },
            };
            runs.push(CaseRun { number: runs.len(), suite, case, kernel, ready });
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
