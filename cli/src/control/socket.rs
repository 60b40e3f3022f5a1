//! A socket at a path of this machine's: taken before anything boots, and given back at the end.

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, Mode, RenameFlags, fchmod, renameat_with};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;

/// A socket at a path, which is removed in the end.
pub(crate) struct OwnSocket {
    listener: UnixListener,
    path: PathBuf,
    /// What tells the file from another one that takes its place.
    file: (u64, u64),
}

impl OwnSocket {
    /// Where those come who connect. It makes nobody wait.
    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Makes the socket at `path`, which this option names, for its owner alone. One that a run has left behind that is gone is replaced.
    ///
    /// # Errors
    /// In words, where something else is there, or somebody listens.
    pub(crate) fn open(option: &str, path: &Path) -> Result<Self> {
        let shown = path.display();
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("{option} {shown}")),
            Ok(file) if !file.file_type().is_socket() => {
                bail!("{option} {shown}: a file is there that is no socket: name another path")
            }
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).with_context(|| format!("{option} {shown}"))?;
                }
                _ => bail!("{option} {shown}: the socket is in use: name another path"),
            },
        }
        let listener = listen(path).with_context(|| format!("{option} {shown}: no socket can be made"))?;
        let file = fs::symlink_metadata(path).with_context(|| format!("{option} {shown}"))?;
        Ok(Self { listener, path: path.to_owned(), file: (file.dev(), file.ino()) })
    }
}

/// A socket at `path` to which nobody but its owner can connect at any time. It makes nobody wait. Whoever finds it there can connect:
/// until then it has another name.
fn listen(path: &Path) -> io::Result<UnixListener> {
    /// So many may wait until they are spoken with.
    const BACKLOG: i32 = 128;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file gets the mode that its socket has.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let unready = path.with_file_name(format!(".vmm-{}", process::id()));
    bind(&socket, &SocketAddrUnix::new(&unready)?)?;
    let named = rustix::net::listen(&socket, BACKLOG)
        .and_then(|()| renameat_with(CWD, &unready, CWD, path, RenameFlags::NOREPLACE));
    if let Err(error) = named {
        let _ = fs::remove_file(&unready);
        return Err(error.into());
    }
    Ok(socket.into())
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        let is_own = fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file);
        if is_own {
            // Where that fails, the next run replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_socket_is_its_owners_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let socket = OwnSocket::open("--control", &path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let refused = OwnSocket::open("--control", &path).err().unwrap();
        assert!(refused.to_string().contains("in use"), "{refused}");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn whoever_finds_the_socket_can_connect() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        for _ in 0..200 {
            let waiting = {
                let path = path.clone();
                std::thread::spawn(move || {
                    while !path.exists() {
                        std::hint::spin_loop();
                    }
                    UnixStream::connect(&path).map(drop)
                })
            };
            let socket = OwnSocket::open("--control", &path).unwrap();
            waiting.join().unwrap().unwrap();
            drop(socket);
        }
    }

    #[test]
    fn what_is_no_socket_stays_and_what_is_left_behind_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        fs::write(&path, "precious").unwrap();
        let refused = OwnSocket::open("--control", &path).err().unwrap();
        assert!(refused.to_string().contains("no socket"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let first = OwnSocket::open("--control", &path).unwrap();
        // Another one takes its place.
        fs::remove_file(&path).unwrap();
        let second = OwnSocket::open("--control", &path).unwrap();
        drop(first);
        assert!(path.exists(), "what others have made stays");
        drop(second);
    }
}
