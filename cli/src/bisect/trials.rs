//! Runs of a case on candidates.

use super::candidates::Candidates;
use super::halves;
use super::outcome::{CandidateVerdicts, TrialOutcome};
use super::search::{BisectStep, Searched};
use super::state::KnownRuns;
use super::told;
use crate::cases::{Judged, Judgement, Readiness, SingleCase, TestedKernel};
use crate::kernel_choice::Choice;
use crate::listing::list;
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs of a case on candidates.
pub(crate) struct Trials {
    pub(crate) candidates: Candidates,
    pub(crate) case: SingleCase,
    pub(crate) known: KnownRuns,
    /// The candidate that can be run now.
    pub(crate) ready: Option<(String, ReadyKernel)>,
    pub(crate) is_over: Arc<AtomicBool>,
}

/// A kernel, and whether the case can be run on it.
pub(crate) struct ReadyKernel {
    kernel: TestedKernel,
    readiness: Readiness,
}

impl Trials {
    /// Refuses a case that cannot be run on an end of a list, before anything boots.
    pub(crate) fn check_ends(&self) -> Result<()> {
        let Candidates::Kernels(kernels) = &self.candidates else { return Ok(()) };
        kernels.iter().take(1).chain(kernels.last()).try_for_each(|end| self.case.ready(end).map(drop))
    }

    /// A candidate that can be run, or why it cannot.
    fn ready(&mut self, candidate: &str) -> Result<Result<&ReadyKernel, String>> {
        if self.ready.as_ref().is_none_or(|(ready, _)| ready != candidate) {
            let kernel = match &self.candidates {
                Candidates::Kernels(kernels) => {
                    let kernel = kernels.iter().find(|kernel| kernel.word == candidate);
                    kernel.cloned().context("there is no such kernel")?
                }
                Candidates::Commits(commits) => {
                    commits.tree.check_out(candidate)?;
                    let word: String = candidate.chars().take(12).collect();
                    let log = self.case.results().join(format!("build-{word}"));
                    if let Some(why) = commits.tree.build(&commits.build, &log, &self.is_over)? {
                        return Ok(Err(why));
                    }
                    TestedKernel { word, choice: Choice::At(commits.built.clone()) }
                }
            };
            let readiness = match self.case.ready(&kernel) {
                Ok(readiness) => readiness,
                Err(error) => {
                    return Ok(Err(error.to_string().lines().next().unwrap_or_default().to_owned()));
                }
            };
            self.ready = Some((candidate.to_owned(), ReadyKernel { kernel, readiness }));
        }
        Ok(self.ready.as_ref().map(|(_, ready)| ready).ok_or_else(String::new))
    }

    fn run_now(&mut self, candidate: &str) -> Result<TrialOutcome> {
        let number = self.known.count();
        let (kernel, readiness) = match self.ready(candidate)? {
            Ok(ReadyKernel { kernel, readiness }) => (kernel.clone(), readiness.clone()),
            Err(why) => return Ok(TrialOutcome::Untestable { why }),
        };
        let is_lacking = matches!(readiness, Readiness::Lacking(_));
        let Judged { judgement, fingerprints, .. } = self.case.judged(&kernel, readiness, number)?;
        let why = judgement.reasons().first().cloned().unwrap_or_default();
        Ok(match judgement {
            Judgement::Passed => TrialOutcome::Passed,
            Judgement::Failed(_) => TrialOutcome::Failed { fingerprints },
            Judgement::Skipped(_) if is_lacking => TrialOutcome::Untestable { why },
            Judgement::Skipped(_) | Judgement::Inconclusive(_) | Judgement::Infrastructure(_) => {
                TrialOutcome::Lost { why: format!("{}: {why}", judgement.word()) }
            }
        })
    }
}

impl Searched for Trials {
    fn open(&mut self, verdicts: &CandidateVerdicts) -> Result<Vec<String>> {
        match &self.candidates {
            Candidates::Kernels(kernels) => {
                let list: Vec<String> = kernels.iter().map(|kernel| kernel.word.clone()).collect();
                Ok(halves::open(&list, verdicts))
            }
            Candidates::Commits(commits) => commits.tree.open_commits(verdicts),
        }
    }

    fn run(&mut self, candidate: &str) -> Result<TrialOutcome> {
        if let Some(outcome) = self.known.next(candidate) {
            return Ok(outcome);
        }
        let outcome = self.run_now(candidate)?;
        if self.is_over.load(Ordering::Relaxed) {
            bail!("it was interrupted");
        }
        self.known.add(candidate, &outcome)?;
        Ok(outcome)
    }

    fn tell(&mut self, step: &BisectStep) -> Result<()> {
        let title = self.candidates.title(&step.candidate);
        list(|out| writeln!(out, "{}", told::step(step, &title)))
    }
}
