//! What a bisection knows by now, in a file: its runs. All else follows from them when they are gone through again.

use super::outcome::TrialOutcome;
use crate::file;
use crate::json::json;
use crate::say::note;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The version of the format.
const VERSION: u32 = 1;

/// What is asked. An answer to one question is none to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BisectQuestion {
    pub(crate) candidates: AskedCandidates,
    /// The SHA-256 of what describes the case.
    pub(crate) test: String,
}

/// Among what the first bad one is looked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AskedCandidates {
    Kernels(Vec<String>),
    Commits { tree: PathBuf, good: String, bad: String, build: String, built: PathBuf },
}

/// The file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct BisectState {
    version: u32,
    question: BisectQuestion,
    /// Where the tree stood before: a branch, or a commit.
    head: Option<String>,
    runs: Vec<TrialRun>,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TrialRun {
    candidate: String,
    #[serde(flatten)]
    outcome: TrialOutcome,
}

/// Runs that were made, by this process or by one before it.
pub(crate) struct KnownRuns {
    /// Where they are kept, if that is wanted.
    path: Option<PathBuf>,
    state: BisectState,
    /// Those of each candidate that were made before, and were not asked for.
    before: BTreeMap<String, VecDeque<TrialOutcome>>,
}

impl KnownRuns {
    /// Those of the file at `path`, if it is there. `head` is where the tree stands now.
    pub(crate) fn open(
        path: Option<PathBuf>,
        question: BisectQuestion,
        head: Option<String>,
    ) -> Result<Self> {
        let new = BisectState { version: VERSION, question, head, runs: Vec::new() };
        let state = match &path {
            Some(path) => match fs::read(path) {
                Ok(bytes) => new.or_read(&bytes).with_context(|| path.display().to_string())?,
                Err(error) if error.kind() == ErrorKind::NotFound => new,
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
            },
            None => new,
        };
        let mut before = BTreeMap::<String, VecDeque<TrialOutcome>>::new();
        // What said nothing is tried again.
        let say_something = |run: &&TrialRun| !matches!(run.outcome, TrialOutcome::Lost { .. });
        for run in state.runs.iter().filter(say_something) {
            before.entry(run.candidate.clone()).or_default().push_back(run.outcome.clone());
        }
        let count: usize = before.values().map(VecDeque::len).sum();
        if let Some(path) = path.as_ref().filter(|_| count > 0) {
            note(format_args!("{count} runs are known from {}", path.display()));
        }
        let runs = Self { path, state, before };
        // A file that cannot be written is a mistake before anything runs.
        runs.write()?;
        Ok(runs)
    }

    /// Where the tree stood before all runs.
    pub(crate) fn head(&self) -> Option<&str> {
        self.state.head.as_deref()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.state.runs.len()
    }

    /// A run of this candidate that was made before.
    pub(crate) fn next(&mut self, candidate: &str) -> Option<TrialOutcome> {
        self.before.get_mut(candidate)?.pop_front()
    }

    /// Adds a run, and keeps it.
    pub(crate) fn add(&mut self, candidate: &str, outcome: &TrialOutcome) -> Result<()> {
        self.state.runs.push(TrialRun { candidate: candidate.to_owned(), outcome: outcome.clone() });
        self.write()
    }

    fn write(&self) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut bytes = Vec::new();
        json(&mut bytes, &self.state)?;
        file::replace(path, &bytes)
    }
}

impl BisectState {
    /// The one that was written, if it is of the same question.
    fn or_read(self, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        const OTHER: &str = "name another file with --state, or remove this one";
        let Versioned { version } = serde_json::from_slice(bytes)
            .with_context(|| format!("this is no state of a bisection; {OTHER}"))?;
        if version != VERSION {
            bail!("this state is of another version of vmm ({version}, and not {VERSION}); {OTHER}");
        }
        let read: Self =
            serde_json::from_slice(bytes).with_context(|| format!("this state is damaged; {OTHER}"))?;
        let (asked, now) = (&read.question, &self.question);
        let differs = match (&asked.candidates, &now.candidates) {
            (old, new) if old == new && asked.test == now.test => return Ok(read),
            (old, new) if old == new => "its test is another one",
            (AskedCandidates::Kernels(_), AskedCandidates::Kernels(_)) => "its kernels are other ones",
            (AskedCandidates::Commits { .. }, AskedCandidates::Commits { .. }) => {
                "its tree, its commits or its build are other ones"
            }
            _ => "one of the two is of kernels, the other one of commits",
        };
        bail!("this is the state of another question: {differs}; {OTHER}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(kernels: &[&str], test: &str) -> BisectQuestion {
        let kernels = kernels.iter().map(|&kernel| kernel.to_owned()).collect();
        BisectQuestion { candidates: AskedCandidates::Kernels(kernels), test: test.to_owned() }
    }

    fn failed() -> TrialOutcome {
        TrialOutcome::Failed { fingerprints: vec!["oops:f\u{1b}[2J".to_owned()] }
    }

    #[test]
    fn runs_are_kept_and_given_again_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let open =
            || KnownRuns::open(Some(path.clone()), question(&["a", "b"], "x"), Some("main".to_owned()));
        let mut runs = open().unwrap();
        assert_eq!(runs.next("b"), None);
        runs.add("b", &TrialOutcome::Passed).unwrap();
        runs.add("b", &TrialOutcome::Lost { why: "the host died".to_owned() }).unwrap();
        runs.add("b", &failed()).unwrap();
        // What this process has run is not given to it again.
        assert_eq!(runs.next("b"), None);
        let mut runs = open().unwrap();
        assert_eq!((runs.next("a"), runs.head()), (None, Some("main")));
        assert_eq!(
            [runs.next("b"), runs.next("b"), runs.next("b")],
            [Some(TrialOutcome::Passed), Some(failed()), None]
        );
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains('\u{1b}') && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn a_state_of_another_question_is_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let refused = |question| {
            let error = KnownRuns::open(Some(path.clone()), question, None).err();
            error.map_or_else(String::new, |error| format!("{error:#}"))
        };
        let commits = BisectQuestion {
            candidates: AskedCandidates::Commits {
                tree: "/linux".into(),
                good: "1".to_owned(),
                bad: "2".to_owned(),
                build: "make".to_owned(),
                built: "/linux".into(),
            },
            test: "x".to_owned(),
        };
        assert_eq!(refused(question(&["a", "b"], "x")), "");
        for (question, says) in [
            (question(&["b", "a"], "x"), "its kernels are other ones"),
            (question(&["a", "b"], "y"), "its test is another one"),
            (commits, "the other one of commits"),
        ] {
            let said = refused(question);
            assert!(said.contains(says) && said.contains("--state"), "{said}");
        }
        for (text, says) in [
            ("{\"version\":2,\"all\":[]}", "another version"),
            ("{\"version\":1}", "damaged"),
            ("", "no state"),
            ("[]", "no state"),
        ] {
            fs::write(&path, text).unwrap();
            let said = refused(question(&["a", "b"], "x"));
            assert!(said.contains(says), "{text}: {said}");
            // It is left as it is.
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(refused(question(&["a", "b"], "x")).contains("cannot read"));
    }
}
