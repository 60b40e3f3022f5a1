//! A tree of git: which of its commits may be the first bad one, and what is built of one.

use super::outcome::{CandidateVerdict, CandidateVerdicts};
use crate::file;
use anyhow::{Context, Result, bail};
use probe_engine::guest_text::Escaped;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// A tree, in which one commit is checked out at a time.
pub(crate) struct SourceTree {
    path: PathBuf,
}

impl SourceTree {
    /// The one at `path`, in which no file that git knows is changed.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).with_context(|| format!("cannot read {}", path.display()))?;
        let tree = Self { path };
        let changed = tree.git(&["status", "--porcelain", "--untracked-files=no"])?;
        match changed.lines().next() {
            Some(first) => bail!(
                "files of {} are changed ({}): commit or stash them, as other commits are checked out there",
                tree.path.display(),
                first.trim()
            ),
            None => Ok(tree),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the commit that these words mean.
    pub(crate) fn commit(&self, revision: &str) -> Result<String> {
        let meant = format!("{revision}^{{commit}}");
        match self.run(&["rev-parse", "--verify", "--quiet", &meant])? {
            output if output.status.success() && !revision.starts_with('-') => {
                Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
            }
            _ => bail!("{revision} is no commit of {}", self.path.display()),
        }
    }

    /// Refuses a good commit of which the bad one does not come.
    pub(crate) fn check_ends(&self, good: &str, bad: &str) -> Result<()> {
        let is_before = self.run(&["merge-base", "--is-ancestor", good, bad])?.status.success();
        match (good == bad, is_before) {
            (true, _) => bail!("the good and the bad commit are the same"),
            (_, true) => Ok(()),
            (_, false) => bail!("the good commit is no ancestor of the bad one: name one that is"),
        }
    }

    /// The branch that is checked out, if it is one.
    pub(crate) fn branch(&self) -> Result<Option<String>> {
        let branch = self.run(&["symbolic-ref", "--quiet", "--short", "HEAD"])?;
        Ok(branch.status.success().then(|| String::from_utf8_lossy(&branch.stdout).trim().to_owned()))
    }

    /// The commits that may be the first bad one: the one that halves them best first, the one that is known to be bad last.
    pub(crate) fn open_commits(&self, verdicts: &CandidateVerdicts) -> Result<Vec<String>> {
        // Each bad one is an ancestor of those before it.
        let bad = verdicts.all(CandidateVerdict::Bad).next_back().context("no commit is bad")?;
        let mut words = vec!["rev-list", "--bisect-all", bad, "--not"];
        words.extend(verdicts.all(CandidateVerdict::Good));
        let listed = self.git(&words)?;
        let all = listed.lines().filter_map(|line| line.split(' ').next());
        Ok(all.filter(|commit| *commit != bad).chain([bad]).map(str::to_owned).collect())
    }

    /// A commit as people know it: the beginning of its number, and its subject.
    pub(crate) fn title(&self, commit: &str) -> String {
        let title = self.git(&["log", "-1", "--no-show-signature", "--format=%h %s", commit]);
        title.map_or_else(|_| commit.to_owned(), |title| Escaped(title.trim().as_bytes()).to_string())
    }

    /// Checks out a commit, and none of its branches.
    pub(crate) fn check_out(&self, commit: &str) -> Result<()> {
        self.git(&["checkout", "--quiet", "--detach", commit]).map(drop)
    }

    /// Checks out what was checked out before.
    pub(crate) fn go_back(&self, head: &str) -> Result<()> {
        self.git(&["checkout", "--quiet", head]).map(drop)
    }

    /// Builds what is checked out by these words for a shell, unless it is over before. What that prints is in `log`. Says why it could
    /// not be built.
    pub(crate) fn build(&self, words: &str, log: &Path, is_over: &AtomicBool) -> Result<Option<String>> {
        /// How often is looked whether it has ended.
        const TICK: Duration = Duration::from_millis(20);
        let out = file::create(log)?;
        let both = out.try_clone().context("the host has no descriptor left")?;
        let mut build = Command::new("sh");
        build.arg("-c").arg(words).current_dir(&self.path).stdin(Stdio::null()).stdout(out).stderr(both);
        let mut build = build.spawn().context("cannot start a shell to build")?;
        let status = loop {
            if let Some(status) = build.try_wait().context("cannot wait for a build")? {
                break status;
            }
            if is_over.load(Ordering::Relaxed) {
                build.kill().context("cannot end a build")?;
            }
            thread::sleep(TICK);
        };
        if status.success() {
            return Ok(None);
        }
        let said = fs::read(log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it has said nothing");
        Ok(Some(format!("its build failed ({status}): {}", Escaped(last.as_bytes()))))
    }

    /// What git prints, where it succeeds.
    fn git(&self, words: &[&str]) -> Result<String> {
        let output = self.run(words)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("git {} failed in {}: {}", words.first().unwrap_or(&""), self.path.display(), said.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn run(&self, words: &[&str]) -> Result<Output> {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.path).args(words).stdin(Stdio::null());
        git.output().context("cannot run git")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CandidateVerdict::{Bad, Good, Skipped};

    /// Commits 0 to 7, of which 3 and 4 are on a branch that is merged by 6 with 5.
    fn repository() -> (tempfile::TempDir, SourceTree, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let tree = SourceTree { path: folder.path().to_owned() };
        let git = |words: &str| {
            let mut command = Command::new("git");
            command.arg("-C").arg(folder.path()).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
            let output = command.args(words.split(' ')).output().unwrap();
            assert!(output.status.success(), "{words}: {output:?}");
        };
        let mut commits = Vec::new();
        let mut commit = |words: &str| {
            git(words);
            commits.push(tree.commit("HEAD").unwrap());
        };
        git("init --quiet --initial-branch=main");
        fs::write(folder.path().join("file"), "0").unwrap();
        git("add file");
        for n in 0..3 {
            commit(&format!("commit --quiet --allow-empty -m c{n}"));
        }
        git("checkout --quiet -b side");
        commit("commit --quiet --allow-empty -m c3");
        commit("commit --quiet --allow-empty -m c4");
        git("checkout --quiet main");
        commit("commit --quiet --allow-empty -m c5");
        commit("merge --quiet --no-ff -m c6 side");
        commit("commit --quiet --allow-empty -m c7");
        (folder, tree, commits)
    }

    #[test]
    fn commits_that_may_be_the_first_bad_one_are_those_between() {
        let (_folder, tree, commits) = repository();
        let open = |verdicts: &[(usize, CandidateVerdict)]| {
            let mut all = CandidateVerdicts::default();
            verdicts.iter().for_each(|(at, verdict)| all.add(&commits[*at], *verdict));
            let open = tree.open_commits(&all).unwrap();
            let at = |open: &String| commits.iter().position(|commit| commit == open).unwrap();
            open.iter().map(at).collect::<Vec<_>>()
        };
        let all = open(&[(7, Bad), (0, Good)]);
        assert_eq!((all.len(), all[6], all.contains(&0)), (7, 7, false));
        // Three lie on one side of each of these; which git names first depends on their hashes.
        assert!([3, 4, 5].contains(&all[0]), "it halves them: {all:?}");
        let mut side = open(&[(7, Bad), (0, Good), (6, Bad), (5, Good)]);
        assert_eq!(side.pop(), Some(6));
        side.sort_unstable();
        assert_eq!(side, [3, 4]);
        assert_eq!(open(&[(7, Bad), (0, Good), (1, Skipped), (2, Bad)]), [1, 2]);
        assert_eq!(open(&[(7, Bad), (6, Good)]), [7]);
    }

    #[test]
    fn a_tree_is_left_as_it_was_found_and_one_with_changes_is_refused() {
        let (folder, tree, commits) = repository();
        assert_eq!(tree.branch().unwrap().as_deref(), Some("main"));
        tree.check_out(&commits[3]).unwrap();
        assert_eq!((tree.branch().unwrap(), tree.commit("HEAD").unwrap()), (None, commits[3].clone()));
        tree.go_back("main").unwrap();
        assert_eq!(tree.branch().unwrap().as_deref(), Some("main"));
        assert!(tree.title(&commits[3]).ends_with(" c3"));
        assert_eq!(tree.commit("side").unwrap(), commits[4]);
        for revision in ["no-such", "-x", "--all", ""] {
            assert!(tree.commit(revision).unwrap_err().to_string().contains("is no commit"), "{revision}");
        }
        tree.check_ends(&commits[0], &commits[7]).unwrap();
        assert!(tree.check_ends(&commits[4], &commits[5]).unwrap_err().to_string().contains("no ancestor"));
        assert!(tree.check_ends(&commits[4], &commits[4]).is_err());
        assert!(SourceTree::open(folder.path()).is_ok());
        fs::write(folder.path().join("file"), "1").unwrap();
        let refused = SourceTree::open(folder.path()).err().unwrap().to_string();
        assert!(refused.contains("M file") && refused.contains("stash"), "{refused}");
    }

    #[test]
    fn a_build_that_fails_is_told_with_its_last_words() {
        let (folder, tree, _) = repository();
        let log = folder.path().join("log");
        let is_over = AtomicBool::new(false);
        assert_eq!(tree.build("cat file", &log, &is_over).unwrap(), None);
        assert_eq!(fs::read(&log).unwrap(), b"0");
        let why =
            tree.build("echo a; echo 'no \u{1b}rule' >&2; echo; exit 2", &log, &is_over).unwrap().unwrap();
        assert!(why.contains("exit status: 2") && why.ends_with("no \\x1brule"), "{why}");
        is_over.store(true, Ordering::Relaxed);
        let why = tree.build("exec sleep 1000", &log, &is_over).unwrap().unwrap();
        assert!(why.contains("signal: 9"), "{why}");
    }
}
