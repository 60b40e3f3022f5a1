//! The files of programs in the guest, where they are this machine's as well: what is known of them by name.

use probe_engine::linux::program_file::ProgramDebug;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Where distributions put the debugging information of what they have built (gdb's `debug-file-directory`).
const DEBUG: &str = "/usr/lib/debug/.build-id";
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
        if OF_THE_GUEST.iter().any(|own| Path::new(path).starts_with(own)) {
            return None;
        }
        let program = self.read(path)?;
        ProgramDebug::read(program, |build_id| self.debug(build_id)).ok()
    }

    /// The file with the debugging information of a build: of the guest's own, or of this machine's.
    fn debug(&self, build_id: &[u8]) -> Option<Vec<u8>> {
        let (first, rest) = build_id.split_first()?;
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = format!("{DEBUG}/{first:02x}/{rest}.debug");
        self.read(&path).or_else(|| Self::below(Path::new("/")).read(&path))
    }

    /// What the guest reads at `path`: links in there lead to nothing outside of the root.
    fn read(&self, path: &str) -> Option<Vec<u8>> {
        // A pipe would be waited for.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let root = openat(CWD, &self.root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let file: OwnedFd = openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        let file = File::from(file);
        let length = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
        let mut bytes = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut bytes).ok()?;
        (length <= LARGEST && bytes.len() as u64 <= LARGEST).then_some(bytes)
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
        assert_eq!(files.read("/own").as_deref(), Some(&b"own"[..]));
        assert_eq!(files.read("/link").as_deref(), Some(&b"own"[..]));
        assert_eq!((files.read("/out"), files.read("/"), files.read("/none")), (None, None, None));
        assert!(files.find("/own").is_none(), "it is no program");
        assert!(ProgramFiles::below(Path::new("/")).find("/proc/self/exe").is_none());
    }

    #[test]
    fn this_program_is_known() {
        let own = std::env::current_exe().unwrap();
        let own = own.canonicalize().unwrap();
        assert!(ProgramFiles::below(Path::new("/")).find(own.to_str().unwrap()).is_some());
    }
}
