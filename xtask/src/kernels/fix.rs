//! Fixes that are taken back, for kernels with a bug that is known.

use crate::setup;
use anyhow::{Context as _, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A fix of the kernel's own, small enough to be taken back.
#[derive(Debug)]
pub(super) struct Fix {
    /// Its file in the source.
    file: &'static str,
    /// What the file says with the fix: once.
    fixed: &'static str,
    /// What the file said before.
    pub(super) before: &'static str,
}

/// 0d196e7589ce ("exec: don't WARN for racy path_noexec check", CVE-2024-50010): a file system that is made noexec between the
/// opening of a program and this check warned of a kernel that is broken.
pub(super) const EXEC_WARNS: Fix = Fix {
    file: "fs/exec.c",
    fixed: "if (WARN_ON_ONCE(!S_ISREG(file_inode(file)->i_mode)) ||\n\t    path_noexec(&file->f_path))\n\t\treturn",
    before: "if (WARN_ON_ONCE(!S_ISREG(file_inode(file)->i_mode) ||\n\t    path_noexec(&file->f_path)))\n\t\treturn",
};

impl Fix {
    /// Makes `without` the source in `tree` without this fix. Both share the files that are the same.
    pub(super) fn take_back(&self, tree: &Path, without: &Path) -> anyhow::Result<()> {
        let _ = fs::remove_dir_all(without);
        let parent = without.parent().context("a folder without a parent")?;
        fs::create_dir_all(parent)?;
        setup::quietly(Command::new("cp").arg("-al").arg(tree).arg(without))?;
        let (from, to) = (tree.join(self.file), without.join(self.file));
        let text = fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
        let before = self.before(&text).with_context(|| from.display().to_string())?;
        // It would be written in both.
        fs::remove_file(&to)?;
        fs::write(&to, before).with_context(|| format!("cannot write {}", to.display()))
    }

    /// The text of the file without this fix.
    fn before(&self, text: &str) -> anyhow::Result<String> {
        ensure!(text.matches(self.fixed).count() == 1, "the source no longer has the fix where it had it");
        Ok(text.replace(self.fixed, self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_is_taken_back_where_it_is_found_once() {
        let fix = Fix { file: "a.c", fixed: "b(c)", before: "b" };
        assert_eq!(fix.before("a b(c) d").unwrap(), "a b d");
        assert!(fix.before("a b d").is_err() && fix.before("b(c) b(c)").is_err());
    }

    #[test]
    fn the_two_sources_share_all_but_that_file() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, without) = (folder.path().join("tree"), folder.path().join("building/without"));
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("a.c"), "b(c)").unwrap();
        fs::write(tree.join("d.c"), "e").unwrap();
        let fix = Fix { file: "a.c", fixed: "b(c)", before: "b" };
        for _ in 0..2 {
            fix.take_back(&tree, &without).unwrap();
            let read = |folder: &Path, name: &str| fs::read_to_string(folder.join(name)).unwrap();
            assert_eq!(
                [read(&tree, "a.c"), read(&without, "a.c"), read(&without, "d.c")],
                ["b(c)", "b", "e"]
            );
        }
    }
}
