//! The folder that gets a guest's files, and the process that makes them.

use super::folder::OwnFolder;
use crate::exit_codes;
use crate::say::{self, note, say};
use crate::work::{Work, server};
use anyhow::{Context, Result, bail};
use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, ExitCode, Stdio};
use vmm::confine::{self, Role};
use vmm::dropped::StreamReader;
use vmm::files::{Confined, KeptFolder};

/// The process that makes files of what a guest sends.
pub(crate) struct Keeping {
    stream: File,
    process: Child,
}

impl Keeping {
    /// Makes the folder, unless it is there and empty, and starts the process.
    pub(crate) fn begin(folder: &Path, work: &Work) -> Result<Self> {
        let open = OwnFolder::open(folder).context("--keep-files")?;
        let folder = open.path()?;
        if let Some(shared) = work.folders.iter().skip(1).find(|shared| folder.starts_with(&shared.path)) {
            bail!(
                "--keep-files {} is in --rwdir {}, where the guest could come first: name another folder",
                folder.display(),
                shared.path.display()
            );
        }
        let mut server = server("keep-files");
        if say::is_quiet() {
            server.arg("--quiet");
        }
        // The process finds the folder where it begins, and gets the path for what it says.
        let process = server.arg(&folder).current_dir(open.by_descriptor()).stdin(Stdio::piped()).spawn();
        let mut process = process.context("cannot start the process that keeps the guest's files")?;
        let stream = process.stdin.take().context("the process that keeps the guest's files has no input")?;
        Ok(Self { stream: OwnedFd::from(stream).into(), process })
    }

    /// Where the files go as the guest sends them.
    pub(crate) fn stream(&self) -> Result<File> {
        self.stream.try_clone().context("cannot share a pipe")
    }

    /// Waits until all are made of a run that would end with `code`, and says what it ends with.
    pub(crate) fn finish(self, code: ExitCode) -> ExitCode {
        let Self { stream, mut process } = self;
        drop(stream);
        let is_kept = process.wait().is_ok_and(|ended| ended.success());
        // It has said why.
        if is_kept || code != ExitCode::SUCCESS { code } else { exit_codes::INFRASTRUCTURE.into() }
    }
}

/// `vmm keep-files`: the process, which begins in the folder that is at `path`. What a guest sends comes in over standard input.
pub(crate) fn keep_files(path: &Path) -> Result<ExitCode> {
    let kept = KeptFolder::open(Path::new(".")).with_context(|| format!("cannot open {}", path.display()))?;
    let lack = lack(kept.confine()?, confine::this_thread(Role::Keeper)?);
    lack.iter().for_each(say);
    let is_kept = keep(kept, io::stdin().lock(), path)?;
    Ok(if is_kept { ExitCode::SUCCESS } else { exit_codes::FAILED.into() })
}

/// What this machine's kernel lacks to confine the process. One that is older than the newest Landlock leaves nothing open that system
/// calls of [`Role::Keeper`] reach.
fn lack(confined: Confined, is_filtered: bool) -> Option<String> {
    let lack = match (confined != Confined::Not, is_filtered) {
        (true, true) => return None,
        (false, true) => "no Landlock",
        (true, false) => "no seccomp",
        (false, false) => "neither Landlock nor seccomp",
    };
    Some(format!(
        "this machine's kernel has {lack}: a guest that gets into the process which keeps its files is not held there"
    ))
}

/// Makes the files of `stream`, and says how many there are. Whether nothing has failed on this side.
fn keep(mut kept: KeptFolder, mut stream: impl Read, folder: &Path) -> Result<bool> {
    let (mut reader, mut buffer, mut is_empty) = (StreamReader::default(), vec![0; 64 << 10], true);
    loop {
        let length = stream.read(&mut buffer).context("the guest's files broke off")?;
        let bytes = buffer.get(..length).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
        is_empty = false;
        let read = reader.read(bytes, |part| {
            kept.take(&part);
            Ok(())
        });
        if let Err(error) = read {
            say(format_args!("{error}: nothing behind that is kept"));
        }
    }
    let made = kept.finish();
    for (told, what) in [(kept.lost(), "not kept"), (kept.elsewhere(), "kept by their numbers")] {
        for error in &told.first {
            let cause = error.source().map(ToString::to_string).unwrap_or_default();
            say(format_args!("{error}: {cause}"));
        }
        if told.more > 0 {
            say(format_args!("{} more files are {what}", told.more));
        }
    }
    if !is_empty {
        let files = if made == 1 { "file" } else { "files" };
        note(format_args!(
            "{made} {files} of the guest's {} in {}",
            if made == 1 { "is" } else { "are" },
            folder.display()
        ));
    }
    Ok(kept.lost().first.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_makes_no_sense_ends_what_is_kept_and_is_no_failure_of_ours() {
        let all = tempfile::tempdir().unwrap();
        let kept = KeptFolder::open(all.path()).unwrap();
        assert!(keep(kept, &[9; 4096][..], all.path()).unwrap());
        assert_eq!(fs::read_dir(all.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_confines_the_process_is_missed() {
        assert_eq!((lack(Confined::Fully, true), lack(Confined::Partly, true)), (None, None));
        for (confined, is_filtered, lacks) in [
            (Confined::Not, true, "has no Landlock:"),
            (Confined::Partly, false, "has no seccomp:"),
            (Confined::Not, false, "has neither Landlock nor seccomp:"),
        ] {
            let said = lack(confined, is_filtered).unwrap();
            assert!(said.contains(lacks), "{said}");
        }
    }
}
