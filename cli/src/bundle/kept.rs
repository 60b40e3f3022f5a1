//! A bundle that is being made: whole in the end, or not there.

use super::kept_files;
use super::manifest::{INITRD, KERNEL, MODULES, Manifest, ROOT, VMLINUX, sum};
use crate::guest_files::Files;
use crate::say::say;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use vmm::files::SeenFiles;

/// A bundle that is being made beside its place.
pub(super) struct NewBundle {
    beside: TempDir,
    folder: PathBuf,
    /// Where the server of files notes what the guest looks at.
    notes: PathBuf,
    sums: BTreeMap<String, String>,
}

impl NewBundle {
    /// Begins one that is to be `folder`.
    pub(super) fn begin(folder: &Path) -> Result<Self> {
        if fs::read_dir(folder).is_ok_and(|mut there| there.next().is_some()) || folder.is_file() {
            bail!("--bundle: {} is there already: name another folder", folder.display());
        }
        let parent = folder.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let beside = tempfile::Builder::new().prefix(".vmm-").tempdir_in(parent);
        let beside = beside.with_context(|| format!("cannot make a folder in {}", parent.display()))?;
        let notes = beside.path().join("notes");
        Ok(Self { beside, folder: folder.to_owned(), notes, sums: BTreeMap::new() })
    }

    /// Where what is called so lies meanwhile.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.beside.path().join(name)
    }

    fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let to = self.at(name);
        fs::write(&to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
        self.note_sum(name)
    }

    /// Keeps a file that the run reads.
    pub(super) fn add_file(&mut self, name: &str, from: &Path) -> Result<()> {
        self.add_output(name, from)?;
        self.note_sum(name)
    }

    /// Keeps a file that the run has written.
    pub(super) fn add_output(&self, name: &str, from: &Path) -> Result<()> {
        let to = self.at(name);
        if from != to {
            fs::copy(from, &to).with_context(|| format!("cannot keep {}", from.display()))?;
        }
        Ok(())
    }

    fn note_sum(&mut self, name: &str) -> Result<()> {
        let path = self.at(name);
        let sum = sum(&path).with_context(|| format!("cannot read {}", path.display()))?;
        self.sums.insert(name.to_owned(), sum);
        Ok(())
    }

    /// Keeps what comes into the guest at its boot, and has noted what it looks at later.
    pub(super) fn add_guest(&mut self, files: &mut Files) -> Result<()> {
        self.add_bytes(KERNEL, &files.image)?;
        if let Some(vmlinux) = &files.vmlinux {
            self.add_file(VMLINUX, vmlinux)?;
        }
        let Some(work) = &mut files.work else { return self.add_bytes(INITRD, &files.initramfs) };
        fs::create_dir(self.at(MODULES)).context("cannot make a folder")?;
        for (name, bytes) in files.modules.for_command()? {
            self.add_bytes(&format!("{MODULES}/{name}"), &bytes)?;
        }
        let notes = File::options().append(true).create_new(true).open(&self.notes);
        work.notes = Some(Arc::new(notes.context("cannot write a file")?));
        Ok(())
    }

    /// Keeps what the guest has seen of the folder that was its root.
    pub(super) fn add_tree(&mut self, root: &Path) -> Result<()> {
        let notes = fs::read(&self.notes).context("cannot read what was noted of files")?;
        fs::remove_file(&self.notes).context("cannot remove a file")?;
        let seen = SeenFiles::read(&notes);
        if seen.is_cut {
            say("the guest has looked at more files than are kept: a replay may not find all of them");
        }
        let kept = kept_files::keep(&seen, root, &self.at(ROOT))?;
        for (path, why) in kept.lost.iter().take(5) {
            say(format_args!("{} is not in the bundle: {why}", path.display()));
        }
        self.sums.extend(kept.sums.into_iter().map(|(path, sum)| (format!("{ROOT}/{path}"), sum)));
        Ok(())
    }

    /// The bundle is whole.
    pub(super) fn finish(self, mut manifest: Manifest) -> Result<()> {
        if let Some(command) = &manifest.command {
            // Nobody may have looked at it.
            let folder = self.at(ROOT).join(command.folder.trim_start_matches('/'));
            fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        manifest.files = self.sums;
        manifest.write(self.beside.path())?;
        let cannot = || format!("cannot make {}", self.folder.display());
        fs::set_permissions(self.beside.path(), Permissions::from_mode(0o755)).with_context(cannot)?;
        fs::rename(self.beside.path(), &self.folder).with_context(cannot)?;
        // There is nothing left to remove.
        let _ = self.beside.keep();
        Ok(())
    }
}
