//! The server's loop: a message of FUSE comes, and its answer goes.

use super::Folder;
use super::confine::{Confined, LandlockError, confine};
use super::hidden::Mounts;
use super::noted::Noted;
use super::planted::{plants, word};
use super::read_only::ReadOnly;
use super::root::Root;
use crate::devices::virtio::fs::{IN_HEADER, LONGEST, OUT_HEADER};
use fuse_backend_rs::api::filesystem::FileSystem;
use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::passthrough::{CachePolicy, Config, PassthroughFs};
use fuse_backend_rs::transport::{FuseBuf, FuseDevWriter, Reader, Writer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Why the server ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A folder is not there, or cannot be read.
    #[error("{} cannot be shared", .0.display())]
    Folder(PathBuf, #[source] io::Error),
    /// What is mounted here is not known.
    #[error("the kernel does not say what is mounted here")]
    Mounts(#[source] io::Error),
    /// Something of the kernel's own was mounted in a folder that the guest may change.
    #[error(
        "{} was mounted in a folder that the guest may change, and is the kernel's: the guest gets no more files", .0.display()
    )]
    Mounted(PathBuf),
    /// The stream broke off.
    #[error("the guest's requests for files broke off")]
    Stream(#[source] io::Error),
    /// The other end does not speak FUSE.
    #[error("a request for files makes no sense")]
    Nonsense,
}

/// The files below one folder, as they are served.
trait Serve: Send {
    /// Answers the message.
    fn answer(&self, message: &mut [u8], reply: &mut [u8], to: &UnixStream);
}

impl<F: FileSystem + Send + Sync> Serve for Server<F> {
    fn answer(&self, message: &mut [u8], reply: &mut [u8], to: &UnixStream) {
        let unique: Option<[u8; 8]> = message.get(8..16).and_then(|unique| unique.try_into().ok());
        let reader = Reader::<()>::from_fuse_buffer(FuseBuf::new(message));
        let writer = FuseDevWriter::<()>::new(to.as_raw_fd(), reply);
        let (Ok(reader), Ok(writer)) = (reader, writer) else { return };
        let answered = self.handle_message(reader, Writer::FuseDev(writer), None, None);
        // What makes no sense gets no answer there, and whoever asked would wait for ever. A second answer is dropped.
        if let (Err(_), Some(unique)) = (answered, unique) {
            refuse(unique, libc::EINVAL, to);
        }
    }
}

/// Answers that it cannot be done.
fn refuse(unique: [u8; 8], error: i32, mut to: &UnixStream) {
    let length = (OUT_HEADER as u32).to_le_bytes();
    // Where nobody reads answers, the next read tells.
    let _ = to.write_all(&[&length[..], &(-error).to_le_bytes(), &unique].concat());
}

/// Whether the message looks for the parent of a folder, which no guest does that mounts it: where the folder was moved
/// away, its parent is outside.
fn climbs(message: &[u8]) -> bool {
    const LOOKUP: [u8; 4] = 1_u32.to_le_bytes();
    let is_lookup = message.get(4..8) == Some(&LOOKUP);
    let name = message.get(IN_HEADER..).and_then(|name| name.split(|byte| *byte == 0).next());
    is_lookup && matches!(name, Some(b"." | b".."))
}

/// Whether a file is opened in a way that no program's `open` comes to the server: what is not opened but only named can be
/// something outside, as a link is followed then, and what has no name yet is made by another message.
fn names_only(message: &[u8]) -> bool {
    const OPEN: u32 = 14;
    const OPENDIR: u32 = 27;
    const CREATE: u32 = 35;
    const NO_NAME: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
    let opens = matches!(word(message, 4), Some(OPEN | OPENDIR | CREATE));
    opens && word(message, IN_HEADER).is_some_and(|flags| flags & (libc::O_PATH | NO_NAME) as u32 != 0)
}

/// The files of each folder, ready to be served: everything that is needed from outside the folders is open.
pub struct Files {
    served: Vec<Box<dyn Serve>>,
    roots: Vec<Root>,
    mounts: Arc<Mounts>,
    /// Where is noted what the guest looks at.
    notes: Option<File>,
}

impl Files {
    /// Opens the folders. Which of them a message is for is its `unique`'s highest byte.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn open(folders: &[Folder]) -> Result<Self, ServeError> {
        Self::open_noting(folders, None)
    }

    /// The same, and [notes](super::SeenFiles) what the guest looks at in those that it may not change.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn open_noting(folders: &[Folder], notes: Option<File>) -> Result<Self, ServeError> {
        let mounts = Arc::new(Mounts::now().map_err(ServeError::Mounts)?);
        let mut files = Self { served: Vec::new(), roots: Vec::new(), mounts, notes };
        for folder in folders {
            files.add(folder).map_err(|error| ServeError::Folder(folder.path.clone(), error))?;
        }
        Ok(files)
    }

    fn add(&mut self, folder: &Folder) -> io::Result<()> {
        let root = Root::open(folder)?;
        let files = passthrough(&root.open)?;
        self.served.push(match folder.writable {
            true => Box::new(Server::new(files)),
            false => {
                let notes = self.notes.as_ref().map(File::try_clone).transpose()?;
                let noted = notes.map(Noted::begin).transpose()?;
                Box::new(Server::new(ReadOnly { files, mounts: self.mounts.clone(), noted }))
            }
        });
        self.roots.push(root);
        Ok(())
    }

    /// From now on this process, with the threads that it starts, reaches [nothing else](confine), has no rights that serving
    /// files does not need, and grows no larger than a server that all those files fit in.
    ///
    /// # Errors
    /// [`LandlockError`].
    pub fn confine(&self) -> Result<Confined, LandlockError> {
        bound();
        confine(&self.roots)
    }

    /// Answers what comes in over `stream` until that ends.
    ///
    /// # Errors
    /// [`ServeError`] when it ends in the middle of a message.
    pub fn serve(&self, stream: &UnixStream) -> Result<(), ServeError> {
        let (mut message, mut reply) = (vec![0; LONGEST], vec![0; LONGEST]);
        let mut input = stream;
        loop {
            let (length, rest) = message.split_at_mut(4);
            match input.read_exact(length) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                result => result.map_err(ServeError::Stream)?,
            }
            let length = u32::from_le_bytes(length.try_into().map_err(|_| ServeError::Nonsense)?) as usize;
            let rest = length.checked_sub(4).and_then(|length| rest.get_mut(..length));
            let rest = rest.filter(|_| length >= IN_HEADER).ok_or(ServeError::Nonsense)?;
            input.read_exact(rest).map_err(ServeError::Stream)?;
            /// Where `unique` ends in `struct fuse_in_header`.
            const NUMBER: usize = 15;
            let message = message.get_mut(..length).ok_or(ServeError::Nonsense)?;
            let folder = message.get(NUMBER).and_then(|number| self.served.get(usize::from(*number)));
            let folder = folder.ok_or(ServeError::Nonsense)?;
            if let Some(own) = self.mounts.changed().map_err(ServeError::Mounts)? {
                self.check(own)?;
            }
            match message.get(8..16).and_then(|unique| unique.try_into().ok()) {
                Some(unique) if climbs(message) => refuse(unique, libc::ENOENT, stream),
                Some(unique) if plants(message) || names_only(message) => refuse(unique, libc::EPERM, stream),
                _ => folder.answer(message, &mut reply, stream),
            }
        }
    }

    /// Nothing of the kernel's own, which is at `own`, is in a folder that may be changed.
    fn check(&self, own: Vec<PathBuf>) -> Result<(), ServeError> {
        let is_inside = |at: &PathBuf| {
            let mut writable = self.roots.iter().filter(|root| root.folder.writable);
            writable.any(|root| at.starts_with(&root.folder.path))
        };
        own.into_iter().find(is_inside).map_or(Ok(()), |at| Err(ServeError::Mounted(at)))
    }
}

/// The files below the folder `open`. The library finds the folder by a name again each time that a guest begins, and that
/// name leads to the folder which is open, whatever has become of its path.
fn passthrough(open: &OwnedFd) -> io::Result<PassthroughFs<()>> {
    // What is not changed by the guest may be changed here at any time: a second is what a person does not notice.
    let valid = Duration::from_secs(1);
    let config = Config {
        root_dir: format!("/proc/self/fd/{}/.", open.as_raw_fd()),
        entry_timeout: valid,
        attr_timeout: valid,
        cache_policy: CachePolicy::Auto,
        // An overlay asks for one or two attributes of each file that it sees, and asks once where there are none.
        xattr: false,
        ..Config::default()
    };
    let files = PassthroughFs::new(config)?;
    files.import()?;
    Ok(files)
}

/// Bounds this process. Each file that the guest knows of takes a descriptor and some memory.
fn bound() {
    const DESCRIPTORS: u64 = 1 << 20;
    const BYTES: u64 = 4 << 30;
    let least = |resource, most: u64| {
        let allowed = getrlimit(resource).maximum;
        let bound = Some(allowed.map_or(most, |allowed| allowed.min(most)));
        // Otherwise the guest finds sooner that too many files are open.
        let _ = setrlimit(resource, Rlimit { current: bound, maximum: bound });
    };
    least(Resource::Nofile, DESCRIPTORS);
    least(Resource::As, BYTES);
}
