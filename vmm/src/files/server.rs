//! The server's loop: a message of FUSE comes, and its answer goes.

use super::Folder;
use super::hidden;
use super::planted::plants;
use super::read_only::ReadOnly;
use crate::devices::virtio::fs::{IN_HEADER, LONGEST, OUT_HEADER};
use fuse_backend_rs::api::filesystem::FileSystem;
use fuse_backend_rs::api::server::Server;
use fuse_backend_rs::passthrough::{CachePolicy, Config, PassthroughFs};
use fuse_backend_rs::transport::{FuseBuf, FuseDevWriter, Reader, Writer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
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

/// The files of each folder, ready to be served: everything that is needed from outside the folders is open.
pub struct Files(Vec<Box<dyn Serve>>);

impl Files {
    /// Opens the folders. Which of them a message is for is its `unique`'s highest byte.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn open(folders: &[Folder]) -> Result<Self, ServeError> {
        let hidden = hidden::devices().map_err(ServeError::Mounts)?;
        open_as_many_as_allowed();
        let open = |folder: &Folder| -> Result<Box<dyn Serve>, ServeError> {
            let failed = |error| ServeError::Folder(folder.path.clone(), error);
            let files = passthrough(&folder.path).map_err(failed)?;
            Ok(match folder.writable {
                true => Box::new(Server::new(files)),
                false => Box::new(Server::new(ReadOnly { files, hidden: hidden.clone() })),
            })
        };
        folders.iter().map(open).collect::<Result<_, _>>().map(Self)
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
            let folder = message.get(NUMBER).and_then(|number| self.0.get(usize::from(*number)));
            let folder = folder.ok_or(ServeError::Nonsense)?;
            match message.get(8..16).and_then(|unique| unique.try_into().ok()) {
                Some(unique) if climbs(message) => refuse(unique, libc::ENOENT, stream),
                Some(unique) if plants(message) => refuse(unique, libc::EPERM, stream),
                _ => folder.answer(message, &mut reply, stream),
            }
        }
    }
}

fn passthrough(path: &Path) -> io::Result<PassthroughFs<()>> {
    let root = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
    // What is not changed by the guest may be changed here at any time: a second is what a person does not notice.
    let valid = Duration::from_secs(1);
    let config = Config {
        root_dir: root.to_owned(),
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

/// Each file that the guest knows of takes a descriptor.
fn open_as_many_as_allowed() {
    let limit = getrlimit(Resource::Nofile);
    // Otherwise the guest finds that too many files are open, sooner.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
