//! The files of programs in the guest, where they are this machine's as well: what is known of them by name.

use probe_engine::linux::program_file::{FunctionTable, ProgramDebug};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Where distributions put the debugging information of what they have built (gdb's `debug-file-directory`).
pub(crate) const DEBUG: &str = "/usr/lib/debug";
/// No file is larger that is read, in bytes.
const LARGEST: u64 = 2 << 30;
/// What the guest's kernel has there is its own.
const OF_THE_GUEST: [&str; 3] = ["/proc", "/sys", "/dev"];

/// The folder that is the root of a command in the guest.
pub(crate) struct ProgramFiles {
    root: PathBuf,
    /// Those that were asked for.
    found: RefCell<BTreeMap<String, Option<Rc<ProgramDebug>>>>,
}

impl ProgramFiles {
    /// Those below `root`.
    pub(crate) fn below(root: &Path) -> Self {
        Self { root: root.to_owned(), found: RefCell::default() }
    }

    /// The program that the guest has at `path`, if it is known.
    pub(crate) fn find(&self, path: &str) -> Option<Rc<ProgramDebug>> {
        let known = self.found.borrow().get(path).cloned();
        known.unwrap_or_else(|| {
            let program = self.look(path).map(Rc::new);
            self.found.borrow_mut().insert(path.to_owned(), program.clone());
            program
        })
    }

    fn look(&self, path: &str) -> Option<ProgramDebug> {
        self.look_for(path, LARGEST, |_| true)
    }

    fn look_for(
        &self,
        path: &str,
        most: u64,
        is_wanted: impl FnOnce(&Metadata) -> bool,
    ) -> Option<ProgramDebug> {
        if OF_THE_GUEST.iter().any(|own| Path::new(path).starts_with(own)) {
            return None;
        }
        let program = self.read_if(path, most, is_wanted)?;
        ProgramDebug::read(program, |build_id| self.debug(build_id, most)).ok()
    }

    /// The functions of the program that the guest has at `path`, where that is of this length and was changed last at this time, in
    /// nanoseconds since 1970: then it is the same file, or a copy of it. No more than `most` bytes are read.
    pub(crate) fn functions(
        &self,
        path: &str,
        (length, modified): (u64, i64),
        most: u64,
    ) -> Option<FunctionTable> {
        let is_same = |metadata: &Metadata| {
            let nanos = metadata
                .mtime()
                .checked_mul(1_000_000_000)
                .and_then(|s| s.checked_add(metadata.mtime_nsec()));
            metadata.len() == length && nanos == Some(modified)
        };
        let program = self.look_for(path, most, is_same)?;
        program.function_table().ok()
    }

    /// The file with the debugging information of a build: of the guest's own, or of this machine's.
    fn debug(&self, build_id: &[u8], most: u64) -> Option<Vec<u8>> {
        let (first, rest) = build_id.split_first()?;
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = format!("{DEBUG}/.build-id/{first:02x}/{rest}.debug");
        let read = |files: &Self| files.read_if(&path, most, |_| true);
        read(self).or_else(|| read(&Self::below(Path::new("/"))))
    }

    /// What the guest reads at `path`: links in there lead to nothing outside of the root.
    fn read_if(&self, path: &str, most: u64, is_wanted: impl FnOnce(&Metadata) -> bool) -> Option<Vec<u8>> {
        let only_named = OFlags::PATH | OFlags::CLOEXEC;
        let root = openat(CWD, &self.root, only_named, Mode::empty()).ok()?;
        // What it is is known before it is opened: that may do something to a device.
        let named = openat2(root, path, only_named, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        let named = File::from(named);
        let metadata =
            named.metadata().ok().filter(|metadata| metadata.is_file() && metadata.len() <= most)?;
        if !is_wanted(&metadata) {
            return None;
        }
        let file = File::open(format!("/proc/self/fd/{}", named.as_raw_fd())).ok()?;
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).ok()?;
        (bytes.len() as u64 <= most).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_are_those_of_the_guest() {
        let root = tempfile::tempdir().unwrap();
        let files = ProgramFiles::below(root.path());
        std::fs::write(root.path().join("own"), b"own").unwrap();
        symlink("/own", root.path().join("link")).unwrap();
        symlink("../../../../../../etc/passwd", root.path().join("out")).unwrap();
        let read = |path| files.read_if(path, 3, |metadata| metadata.len() == 3);
        assert_eq!(read("/own").as_deref(), Some(&b"own"[..]));
        assert_eq!(read("/link").as_deref(), Some(&b"own"[..]));
        assert_eq!((read("/out"), read("/"), read("/none")), (None, None, None));
        assert_eq!((files.read_if("/own", 2, |_| true), files.read_if("/own", 3, |_| false)), (None, None));
        assert!(files.find("/own").is_none(), "it is no program");
        assert!(ProgramFiles::below(Path::new("/")).find("/proc/self/exe").is_none());
    }

    #[test]
    fn this_program_is_known() {
        let own = std::env::current_exe().unwrap();
        let own = own.canonicalize().unwrap();
        let (files, path) = (ProgramFiles::below(Path::new("/")), own.to_str().unwrap());
        assert!(files.find(path).is_some());
        let metadata = own.metadata().unwrap();
        let changed = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
        let functions = |length, changed| files.functions(path, (length, changed), LARGEST);
        assert!(functions(metadata.len(), changed).is_some());
        assert!(functions(metadata.len(), changed + 1).is_none(), "it is another file");
        assert!(functions(metadata.len() - 1, changed).is_none());
    }
}
