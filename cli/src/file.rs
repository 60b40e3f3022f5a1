//! Files that the user has named.

use crate::say::note;
use anyhow::{Context, Result, bail};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Creates a file for output.
pub(crate) fn create(path: &Path) -> Result<File> {
    refuse_dash(path)?;
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Where others mean standard output by a dash, a file of that name would surprise.
fn refuse_dash(path: &Path) -> Result<()> {
    if path == Path::new("-") {
        bail!(
            "- is no file to write: standard output needs no --output, and a file that is called so is ./-"
        );
    }
    Ok(())
}

/// Says where `what` was written, unless nothing is there to look at later, as in a pipe.
pub(crate) fn note_written(what: &str, path: &Path) {
    if fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() > 0) {
        note(format_args!("{what} is in {}", path.display()));
    }
}

/// Refuses an output that is one of `inputs`: creating it would empty what is read.
pub(crate) fn refuse_an_input<'a>(
    output: Option<&Path>,
    inputs: impl IntoIterator<Item = &'a Path>,
) -> Result<()> {
    let Some((output, number)) = output.and_then(|path| Some((path, number(&fs::metadata(path).ok()?)?)))
    else {
        return Ok(());
    };
    for input in inputs {
        if fs::metadata(input).is_ok_and(|input| self::number(&input) == Some(number)) {
            bail!(
                "{} is read as {}, and would be overwritten: name another file with --output",
                output.display(),
                input.display()
            );
        }
    }
    Ok(())
}

/// What tells a regular file from all others, by whatever name it is found.
fn number(metadata: &Metadata) -> Option<(u64, u64)> {
    metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
}

/// A file for output, which takes the place of what was there when it is whole.
pub(crate) enum NewFile {
    /// It is written beside its place.
    Beside(NamedTempFile, PathBuf),
    /// It is written where it is: a device, a pipe, or in a folder that takes no other file.
    There(File),
}

impl NewFile {
    /// Begins a file that is to be `path`, and is not `input`.
    pub(crate) fn begin(path: &Path, input: &File) -> Result<Self> {
        refuse_dash(path)?;
        let cannot_write = || format!("cannot write {}", path.display());
        let there = match OpenOptions::new().write(true).open(path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(cannot_write),
        };
        let old = there.as_ref().map(File::metadata).transpose().with_context(cannot_write)?;
        let number = old.as_ref().and_then(number);
        if number.is_some() && number == self::number(&input.metadata()?) {
            bail!("{} is the recording itself: name another file with --output", path.display());
        }
        if let Some(device) = there.filter(|_| number.is_none()) {
            return Ok(Self::There(device));
        }
        match beside(path, old.as_ref()) {
            Ok((file, path)) => Ok(Self::Beside(file, path)),
            Err(_) => create(path).map(Self::There),
        }
    }

    /// Begins a file that is to be `path`, which its owner alone can read.
    pub(crate) fn begin_private(path: &Path) -> Result<Self> {
        refuse_dash(path)?;
        let old = fs::metadata(path).ok();
        if old.as_ref().is_some_and(|old| !old.is_file()) {
            bail!("cannot write {}: it is no file", path.display());
        }
        let begin = || -> io::Result<Self> {
            // A link stays a link.
            let path = if old.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
            let file = tempfile::Builder::new().prefix(PREFIX).tempfile_in(folder_of(&path))?;
            Ok(Self::Beside(file, path))
        };
        begin().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Where it is written.
    pub(crate) fn file(&self) -> &File {
        match self {
            Self::Beside(file, _) => file.as_file(),
            Self::There(file) => file,
        }
    }

    /// It is whole.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Self::Beside(file, path) => Ok(file.persist(path).map(drop)?),
            Self::There(_) => Ok(()),
        }
    }
}

/// Writes a whole file, which is on the disk before it takes the place of what was there.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    refuse_dash(path)?;
    let write = || {
        let (mut file, path) = beside(path, fs::metadata(path).ok().as_ref())?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map(drop).map_err(io::Error::from)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// How files are called that are not whole yet.
const PREFIX: &str = ".vmm-";

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

/// A file beside `path`, as accessible as the `old` one there, and where it is to be in the end.
fn beside(path: &Path, old: Option<&Metadata>) -> io::Result<(NamedTempFile, PathBuf)> {
    // A link stays a link.
    let path = if old.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
    let mut builder = tempfile::Builder::new();
    // The process's mask takes away what it takes from all files.
    let builder = builder.prefix(PREFIX).permissions(Permissions::from_mode(0o666));
    let file = builder.tempfile_in(folder_of(&path))?;
    if let Some(old) = old {
        file.as_file().set_permissions(old.permissions())?;
    }
    Ok((file, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_output_that_is_read_is_refused_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("kernel"), "kernel").unwrap();
        fs::write(at("other"), "other").unwrap();
        symlink("kernel", at("link")).unwrap();
        fs::hard_link(at("kernel"), at("hard")).unwrap();
        let kernel = at("kernel");
        let refused = |output: &Path| refuse_an_input(Some(output), [&*at("gone"), &*kernel]).is_err();
        for name in ["kernel", "link", "hard"] {
            assert!(refused(&at(name)), "{name}");
        }
        assert!(!refused(&at("other")) && !refused(&at("new")) && !refused(Path::new("/dev/null")));
        // A device may be both.
        assert!(refuse_an_input(Some(Path::new("/dev/null")), [Path::new("/dev/null")]).is_ok());
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        for text in ["a longer text", "short"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read(&path).unwrap(), text.as_bytes());
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(
            replace(Path::new("-"), b"").is_err() && replace(&folder.path().join("no/state"), b"").is_err()
        );
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        symlink("report", folder.path().join("link")).unwrap();
        let input = File::open("/dev/null").unwrap();
        let begin = || NewFile::begin(&folder.path().join("link"), &input).unwrap();
        let half = begin();
        half.file().write_all(b"half").unwrap();
        drop(half);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let whole = begin();
        whole.file().write_all(b"whole").unwrap();
        whole.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        let private = NewFile::begin_private(&path).unwrap();
        private.file().write_all(b"private").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        private.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"private");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(
            [folder.path(), Path::new("-"), Path::new("/dev/null")]
                .map(NewFile::begin_private)
                .iter()
                .all(Result::is_err)
        );
        assert!(NewFile::begin(Path::new("/dev/null"), &input).is_ok());
        assert!(NewFile::begin(Path::new("-"), &input).is_err() && create(Path::new("-")).is_err());
    }
}
