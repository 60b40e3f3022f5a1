//! What is searched: kernels of a list, or commits that are built.

use super::tree::SourceTree;
use crate::cases::TestedKernel;
use std::path::PathBuf;

/// Among what the first bad one is.
pub(crate) enum Candidates {
    /// From good to bad.
    Kernels(Vec<TestedKernel>),
    Commits(BuiltCommits),
}

/// Commits, of which each is built where it is checked out.
pub(crate) struct BuiltCommits {
    pub(crate) tree: SourceTree,
    /// Words for a shell.
    pub(crate) build: String,
    /// What they leave, as `--kernel` takes it.
    pub(crate) built: PathBuf,
}

impl Candidates {
    /// How one is called by people.
    pub(crate) fn title(&self, candidate: &str) -> String {
        match self {
            Self::Kernels(_) => candidate.to_owned(),
            Self::Commits(commits) => commits.tree.title(candidate),
        }
    }

    /// What they are.
    pub(crate) fn noun(&self) -> &'static str {
        match self {
            Self::Kernels(_) => "kernel",
            Self::Commits(_) => "commit",
        }
    }

    /// The kernel of a list that comes before all of these.
    pub(crate) fn before(&self, among: &[String]) -> Option<&str> {
        let Self::Kernels(kernels) = self else { return None };
        let first = kernels.iter().position(|kernel| among.contains(&kernel.word))?;
        Some(&kernels.get(first.checked_sub(1)?)?.word)
    }
}
