//! The folder that gets a guest's files: one that is empty, and that nobody but this user changes.

use anyhow::{Context, Result, bail};
use rustix::fs::{Dir, Mode, OFlags, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The folder, open: what takes its name's place later is another one.
pub(super) struct OwnFolder(OwnedFd);

impl OwnFolder {
    /// Opens the folder. It is made where there is none.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        // With a slash behind its name a link would be followed.
        let folder = folder.components().as_path();
        let shown = folder.display();
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot make the folder {shown}"));
            }
            _ => {}
        }
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = match rustix::fs::open(folder, how, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => bail!("{shown} is no folder, but a file or a link"),
            open => open.with_context(|| format!("cannot open {shown}"))?,
        };
        let metadata = fstat(&open).with_context(|| format!("cannot look at {shown}"))?;
        if metadata.st_uid != geteuid().as_raw() {
            bail!("{shown} belongs to another user: name a new folder");
        }
        if Mode::from_raw_mode(metadata.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
            bail!("others may write to {shown}: name a new folder");
        }
        for entry in Dir::read_from(&open).with_context(|| format!("cannot read {shown}"))? {
            let entry = entry.with_context(|| format!("cannot read {shown}"))?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                bail!("{shown} is not empty: name a new folder");
            }
        }
        Ok(Self(open))
    }

    /// A path by which this process, and one that it starts, reaches the folder wherever its name is.
    pub(super) fn by_descriptor(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    /// Where it is now.
    pub(super) fn path(&self) -> Result<PathBuf> {
        fs::read_link(self.by_descriptor()).context("cannot find the folder that gets the guest's files")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    #[test]
    fn the_folder_is_new_or_empty_and_ones_own() {
        let all = tempfile::tempdir().unwrap();
        let at = |name: &str| all.path().join(name);
        let folder = OwnFolder::open(&at("new")).unwrap().path().unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(OwnFolder::open(&at("new/")).unwrap().path().unwrap(), folder, "it is empty");
        symlink("new", at("link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        fs::create_dir(at("shared")).unwrap();
        fs::set_permissions(at("shared"), Permissions::from_mode(0o770)).unwrap();
        fs::create_dir(at("full")).unwrap();
        fs::write(at("full/file"), "").unwrap();
        let link = "is no folder, but a file or a link";
        for (name, why) in [
            ("link", link),
            ("link/", link),
            ("link/.", link),
            ("dangling", link),
            ("full/file", link),
            ("shared", "others may write to"),
            ("full", "is not empty"),
            ("no/folder", "cannot make"),
        ] {
            let error = OwnFolder::open(&at(name)).err().unwrap().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
        // Root alone gives folders away.
        if chown(at("new"), Some(1), None).is_ok() {
            let error = OwnFolder::open(&at("new")).err().unwrap().to_string();
            assert!(error.contains("belongs to another user"), "{error}");
        }
    }

    #[test]
    fn what_takes_its_place_is_another_folder() {
        let all = tempfile::tempdir().unwrap();
        let at = |name: &str| all.path().join(name);
        let folder = OwnFolder::open(&at("new")).unwrap();
        fs::rename(at("new"), at("moved")).unwrap();
        fs::create_dir(at("new")).unwrap();
        let mut child = std::process::Command::new("/bin/touch");
        assert!(child.arg("file").current_dir(folder.by_descriptor()).status().unwrap().success());
        assert!(at("moved/file").exists() && !at("new/file").exists());
        assert_eq!(folder.path().unwrap(), at("moved").canonicalize().unwrap());
    }
}
