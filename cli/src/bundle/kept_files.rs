//! The files that a guest has seen, kept as a tree.
//!
//! What it has opened is copied. What it has only looked at is there with its name, size, mode and time, and holds nothing but zeros, for
//! which no room is taken: a program finds what it looks for, and a listing is the same.

use super::manifest::sum;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use vmm::files::SeenFiles;

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct KeptFiles {
    /// What each file holds that was opened (SHA-256), by its path.
    pub(super) sums: BTreeMap<String, String>,
    /// What could not be kept, and why.
    pub(super) lost: Vec<(PathBuf, io::Error)>,
}

/// Keeps in `to` what was seen of `root`.
pub(super) fn keep(seen: &SeenFiles, root: &Path, to: &Path) -> Result<KeptFiles> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    let (mut kept, mut folders) = (KeptFiles::default(), Vec::new());
    let own = to.parent().and_then(|own| own.canonicalize().ok());
    // A folder comes before what is in it.
    for (path, is_opened) in &seen.paths {
        let (from, at) = (root.join(path), to.join(path));
        // A bundle has nothing of itself.
        if own.as_ref().is_some_and(|own| from.starts_with(own)) {
            continue;
        }
        let found = fs::symlink_metadata(&from);
        // What is gone meanwhile was there for a moment.
        let Ok(found) = found else { continue };
        match one(&from, &at, &found, *is_opened) {
            Ok(()) if found.is_dir() => folders.push((at, found)),
            Ok(()) if found.is_file() && *is_opened => {
                if let (Some(name), Ok(sum)) = (path.to_str(), sum(&at)) {
                    kept.sums.insert(name.to_owned(), sum);
                }
            }
            Ok(()) => {}
            Err(error) => kept.lost.push((from, error)),
        }
    }
    // What is made in a folder changes its time, and may need rights that it does not give.
    for (at, found) in folders.iter().rev() {
        let _ = dress(at, found, 0o700);
    }
    Ok(kept)
}

fn one(from: &Path, at: &Path, found: &Metadata, is_opened: bool) -> io::Result<()> {
    let parent = at.parent().ok_or(io::ErrorKind::InvalidInput)?;
    // Not through a link: who has put one there meanwhile would have files written elsewhere.
    if !fs::symlink_metadata(parent)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if found.is_dir() {
        fs::create_dir(at)
    } else if found.is_symlink() {
        symlink(fs::read_link(from)?, at)
    } else if !found.is_file() {
        // A socket, a pipe or a device is no file of anybody's.
        Ok(())
    } else {
        match is_opened {
            true => drop(io::copy(&mut File::open(from)?, &mut File::create_new(at)?)?),
            false => File::create_new(at)?.set_len(found.len())?,
        }
        dress(at, found, 0o600)
    }
}

/// Gives a file the time of `found`, and its mode without the rights of its owner or group that it lends; who has made it may always do what
/// `own` says.
fn dress(at: &Path, found: &Metadata, own: u32) -> io::Result<()> {
    File::open(at)?.set_modified(found.modified()?)?;
    fs::set_permissions(at, Permissions::from_mode(found.permissions().mode() & 0o1777 | own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime};

    #[test]
    fn what_was_opened_is_kept_and_what_was_seen_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("from");
        let to = root.join("bundle/root");
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir(root.join("bundle")).unwrap();
        for (path, holds, mode) in
            [("bin/sh", "program", 0o4755), ("bin/seen", "secret", 0o644), ("other", "x", 0o600)]
        {
            fs::write(root.join(path), holds).unwrap();
            File::open(root.join(path)).unwrap().set_modified(old).unwrap();
            fs::set_permissions(root.join(path), Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(root.join("bin"), Permissions::from_mode(0o555)).unwrap();
        symlink("bin/sh", root.join("link")).unwrap();
        let seen = [
            ("bin", true),
            ("bin/sh", true),
            ("bin/seen", false),
            ("gone", true),
            ("link", false),
            ("link/x", true),
            ("bundle", true),
        ];
        let paths = seen.map(|(path, is_opened)| (path.into(), is_opened)).into();
        let kept = keep(&SeenFiles { paths, is_cut: false }, &root, &to).unwrap();
        assert_eq!(kept.sums.keys().collect::<Vec<_>>(), ["bin/sh"]);
        assert!(kept.lost.is_empty(), "{:?}", kept.lost);
        assert_eq!(fs::read(to.join("bin/sh")).unwrap(), b"program");
        assert_eq!(fs::read(to.join("bin/seen")).unwrap(), [0; 6]);
        let metadata = |path: &str| fs::symlink_metadata(to.join(path)).unwrap();
        assert_eq!(metadata("bin/sh").mode() & 0o7777, 0o755);
        assert_eq!(metadata("bin/seen").modified().unwrap(), old);
        assert_eq!(metadata("bin").mode() & 0o7777, 0o755);
        assert!(metadata("link").is_symlink());
        assert!(!to.join("bundle").exists() && !to.join("other").exists() && !to.join("gone").exists());
    }
}
