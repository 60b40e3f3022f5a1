//! What a guest may try that speaks FUSE by itself, and what becomes of it.

use super::{Files, Folder};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const READLINK: u32 = 5;
const SYMLINK: u32 = 6;
const MKNOD: u32 = 8;
const MKDIR: u32 = 9;
const UNLINK: u32 = 10;
const RMDIR: u32 = 11;
const RENAME: u32 = 12;
const LINK: u32 = 13;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const RELEASE: u32 = 18;
const SETXATTR: u32 = 21;
const REMOVEXATTR: u32 = 24;
const INIT: u32 = 26;
const CREATE: u32 = 35;
const DESTROY: u32 = 38;
const IOCTL: u32 = 39;
const FALLOCATE: u32 = 43;
const RENAME2: u32 = 45;
const COPY_FILE_RANGE: u32 = 47;
const SETUPMAPPING: u32 = 48;
const TMPFILE: u32 = 51;
const ROOT: u64 = 1;

/// A guest, and a server of `folders` in a thread of this test.
struct Guest {
    stream: UnixStream,
    folder: u8,
}

impl Guest {
    fn of(folders: &[Folder]) -> Self {
        let (stream, theirs) = UnixStream::pair().unwrap();
        let files = Files::open(folders).unwrap();
        thread::spawn(move || files.serve(&theirs));
        // An answer that does not come fails the test.
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut guest = Self { stream, folder: 0 };
        guest.init();
        guest
    }

    fn init(&mut self) {
        let init = [7_u32, 38, 0x2_0000, u32::MAX, 0, 0].map(u32::to_le_bytes).concat();
        let init = [init, vec![0; 40]].concat();
        self.ask(INIT, 0, &init).unwrap();
    }

    /// The answer, or the number of the error.
    fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let length = 40 + body.len() as u32;
        let mut message = [length, opcode].map(u32::to_le_bytes).concat();
        message.extend([1, 2, 3, 4, 5, 6, 7, self.folder]);
        message.extend(node.to_le_bytes());
        message.extend([0; 16]);
        message.extend(body);
        self.stream.write_all(&message).unwrap();
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).unwrap();
        assert_eq!(header[8..], [1, 2, 3, 4, 5, 6, 7, self.folder]);
        let length = u32::from_le_bytes(header[..4].try_into().unwrap()) as usize;
        let mut rest = vec![0; length - 16];
        self.stream.read_exact(&mut rest).unwrap();
        match i32::from_le_bytes(header[4..8].try_into().unwrap()) {
            0 => Ok(rest),
            error => Err(-error),
        }
    }

    /// The number of what is called `name` in `parent`.
    fn find(&mut self, parent: u64, name: &[u8]) -> Result<u64, i32> {
        let name = [name, &[0]].concat();
        let entry = self.ask(LOOKUP, parent, &name)?;
        Ok(u64::from_le_bytes(entry[..8].try_into().unwrap()))
    }

    fn open(&mut self, node: u64, flags: i32) -> Result<u64, i32> {
        let body = [flags.to_le_bytes(), [0; 4]].concat();
        let opened = self.ask(OPEN, node, &body)?;
        Ok(u64::from_le_bytes(opened[..8].try_into().unwrap()))
    }

    fn read(&mut self, node: u64, handle: u64) -> Result<Vec<u8>, i32> {
        let mut body = handle.to_le_bytes().to_vec();
        body.extend(0_u64.to_le_bytes());
        body.extend(4096_u32.to_le_bytes());
        body.extend([0; 20]);
        self.ask(READ, node, &body)
    }
}

/// A folder to share, beside a secret.
fn tree() -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    let at = |path: &str| tree.path().join(path);
    fs::create_dir_all(at("share/deep")).unwrap();
    fs::write(at("secret"), "secret").unwrap();
    fs::write(at("share/file"), "contents").unwrap();
    fs::write(at("share/deep/file"), "deep").unwrap();
    symlink("../secret", at("share/out")).unwrap();
    symlink(at("secret"), at("share/far")).unwrap();
    symlink("..", at("share/up")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("share/pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    tree
}

fn share(tree: &TempDir, writable: bool) -> Folder {
    Folder { path: tree.path().join("share"), writable }
}

/// All files below `path`: names, modes, contents.
fn contents(path: &Path) -> Vec<(String, u32, Vec<u8>)> {
    let mut all = Vec::new();
    let mut open = vec![path.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let bytes = match metadata.file_type() {
                kind if kind.is_dir() => {
                    open.push(path.clone());
                    vec![]
                }
                kind if kind.is_file() => fs::read(&path).unwrap(),
                kind if kind.is_symlink() => {
                    fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
                }
                _ => vec![],
            };
            all.push((path.display().to_string(), metadata.permissions().mode(), bytes));
        }
    }
    all.sort();
    all
}

#[test]
fn files_are_read() {
    let tree = tree();
    let mut guest = Guest::of(&[share(&tree, false)]);
    let file = guest.find(ROOT, b"file").unwrap();
    let handle = guest.open(file, libc::O_RDONLY).unwrap();
    assert_eq!(guest.read(file, handle).unwrap(), b"contents");
    let deep = guest.find(ROOT, b"deep").unwrap();
    let file = guest.find(deep, b"file").unwrap();
    // A handle belongs to its file.
    assert_eq!(guest.read(file, handle), Err(libc::EBADF));
    let handle = guest.open(file, libc::O_RDONLY).unwrap();
    assert_eq!(guest.read(file, handle).unwrap(), b"deep");
    // It stays open when it is gone.
    fs::remove_file(tree.path().join("share/deep/file")).unwrap();
    assert_eq!(guest.read(file, handle).unwrap(), b"deep");
    assert_eq!(guest.find(deep, b"file"), Err(libc::ENOENT));
}

#[test]
fn no_name_leads_out_of_a_folder() {
    let tree = tree();
    for writable in [false, true] {
        let mut guest = Guest::of(&[share(&tree, writable)]);
        let root = guest.ask(GETATTR, ROOT, &[0; 16]).unwrap()[16..24].to_vec();
        let deep = guest.find(ROOT, b"deep").unwrap();
        let long = vec![b'a'; 4000];
        let names: [&[u8]; 11] = [
            b"../secret",
            b"deep/../../secret",
            b"/etc/passwd",
            b"/",
            b"deep/file",
            b"",
            b"..\0",
            b"up/secret",
            b"out/",
            &long,
            b"..",
        ];
        for name in names {
            let found = guest.find(ROOT, name);
            let is_root = found.is_ok_and(|node| guest.ask(GETATTR, node, &[0; 16]).unwrap()[16..24] == root);
            assert!(found.is_err() || is_root, "{:?}: {found:?}", String::from_utf8_lossy(name));
        }
        // The root's parent is the root, also seen from below.
        for (node, name) in [(deep, &b"../.."[..]), (deep, b"../../secret")] {
            assert!(guest.find(node, name).is_err());
        }
        // A link is shown, and not followed.
        for (name, target) in
            [("out", "../secret".to_owned()), ("far", tree.path().join("secret").display().to_string())]
        {
            let link = guest.find(ROOT, name.as_bytes()).unwrap();
            assert_eq!(guest.ask(READLINK, link, &[]).unwrap(), target.as_bytes());
            assert!(guest.open(link, libc::O_RDONLY).is_err(), "{name}");
            assert!(guest.find(link, b"x").is_err(), "{name}");
        }
        // What is no file is not opened: that would wait, or reach a device of ours.
        let pipe = guest.find(ROOT, b"pipe").unwrap();
        assert!(guest.open(pipe, libc::O_RDONLY).is_err());
        // Numbers that nobody gave out.
        for node in [0, 99, u64::MAX] {
            assert!(guest.find(node, b"file").is_err() && guest.open(node, 0).is_err());
            assert!(guest.read(node, 7).is_err());
        }
    }
}

/// A folder that is moved away while the guest is in it stays what it was: its parent is found in no case.
#[test]
fn a_folder_that_is_moved_away_leads_nowhere() {
    let tree = tree();
    let mut guest = Guest::of(&[share(&tree, false)]);
    let deep = guest.find(ROOT, b"deep").unwrap();
    fs::rename(tree.path().join("share/deep"), tree.path().join("moved")).unwrap();
    assert!(guest.find(deep, b"../secret").is_err());
    let parent = guest.find(deep, b"..");
    let secret = parent.and_then(|parent| guest.find(parent, b"secret"));
    assert!(secret.is_err(), "{parent:?}");
}

#[test]
fn a_folder_that_becomes_a_link_meanwhile_leads_nowhere() {
    let tree = tree();
    let at = |path: &str| tree.path().join(path);
    fs::create_dir(at("share/turn")).unwrap();
    fs::write(at("share/turn/secret"), "innocent").unwrap();
    symlink("..", at("share/link")).unwrap();
    let mut guest = Guest::of(&[share(&tree, true)]);
    thread::scope(|scope| {
        // It is dropped also where this test fails.
        let (_not_over, is_over) = mpsc::channel::<()>();
        scope.spawn(move || {
            while is_over.try_recv() == Err(TryRecvError::Empty) {
                renameat_with(CWD, at("share/turn"), CWD, at("share/link"), RenameFlags::EXCHANGE).unwrap();
            }
        });
        let mut seen = 0;
        for _ in 0..20_000 {
            let Ok(turn) = guest.find(ROOT, b"turn") else { continue };
            let Ok(secret) = guest.find(turn, b"secret") else { continue };
            let Ok(handle) = guest.open(secret, libc::O_RDONLY) else { continue };
            seen += 1;
            assert_eq!(guest.read(secret, handle).unwrap(), b"innocent");
            let release = [&handle.to_le_bytes()[..], &[0; 16]].concat();
            guest.ask(RELEASE, secret, &release).unwrap();
        }
        assert!(seen > 1000, "{seen}");
    });
}

#[test]
fn nothing_changes_a_folder_that_is_not_to_be_changed() {
    let tree = tree();
    let before = contents(tree.path());
    let mut guest = Guest::of(&[share(&tree, false)]);
    let file = guest.find(ROOT, b"file").unwrap();
    let deep = guest.find(ROOT, b"deep").unwrap();
    for flags in [
        libc::O_WRONLY,
        libc::O_RDWR,
        libc::O_RDONLY | libc::O_TRUNC,
        libc::O_RDONLY | libc::O_APPEND,
        libc::O_RDONLY | libc::O_CREAT,
        libc::O_ACCMODE,
        libc::O_TMPFILE | libc::O_RDWR,
        libc::O_WRONLY | libc::O_PATH,
    ] {
        for node in [file, deep, ROOT] {
            assert!(guest.open(node, flags).is_err(), "{flags:#o}");
        }
    }
    let handle = guest.open(file, libc::O_RDONLY).unwrap();
    let new = b"new\0";
    let zeros = |count: usize, name: &[u8]| [&vec![0; count][..], name].concat();
    let write = [&handle.to_le_bytes()[..], &[0; 8], &[4, 0, 0, 0], &[0; 20], b"evil"].concat();
    // Truncated, by its handle and without, and its mode changed.
    let size = [&(1_u32 << 3).to_le_bytes()[..], &[0; 84]].concat();
    let by_handle =
        [&(1_u32 << 3 | 1 << 6).to_le_bytes()[..], &[0; 4], &handle.to_le_bytes(), &[0; 72]].concat();
    let mode = [&1_u32.to_le_bytes()[..], &[0; 84]].concat();
    let allocate = [&handle.to_le_bytes()[..], &[0; 8], &4096_u64.to_le_bytes(), &[0; 8]].concat();
    let rename = [&deep.to_le_bytes()[..], b"file\0new\0"].concat();
    let rename2 = [&deep.to_le_bytes()[..], &[0; 8], b"file\0new\0"].concat();
    let link = [&file.to_le_bytes()[..], new].concat();
    let copy =
        [&handle.to_le_bytes()[..], &[0; 8], &file.to_le_bytes(), &handle.to_le_bytes(), &[0; 24]].concat();
    let attempts: [(u32, u64, &[u8]); 22] = [
        (WRITE, file, &write),
        (SETATTR, file, &size),
        (SETATTR, file, &by_handle),
        (SETATTR, file, &mode),
        (SYMLINK, ROOT, b"new\0target\0"),
        (MKNOD, ROOT, &zeros(16, new)),
        (MKDIR, ROOT, &zeros(8, new)),
        (UNLINK, ROOT, b"file\0"),
        (UNLINK, deep, b"file\0"),
        (RMDIR, ROOT, b"deep\0"),
        (RENAME, ROOT, &rename),
        (RENAME2, ROOT, &rename2),
        (LINK, ROOT, &link),
        (CREATE, ROOT, &zeros(16, new)),
        (TMPFILE, ROOT, &zeros(16, new)),
        (SETXATTR, file, &zeros(8, b"user.x\0y")),
        (REMOVEXATTR, file, b"user.x\0"),
        (FALLOCATE, file, &allocate),
        (COPY_FILE_RANGE, file, &copy),
        (IOCTL, file, &zeros(32, &[])),
        (SETUPMAPPING, file, &zeros(40, &[])),
        (12345, file, &zeros(40, &[])),
    ];
    for (opcode, node, body) in attempts {
        assert!(guest.ask(opcode, node, body).is_err(), "{opcode}");
    }
    assert_eq!(guest.read(file, handle).unwrap(), b"contents");
    assert_eq!(contents(tree.path()), before);
}

#[test]
fn a_folder_that_may_be_changed_is() {
    let tree = tree();
    let secret =
        (tree.path().join("secret"), fs::metadata(tree.path().join("secret")).unwrap().modified().unwrap());
    let mut guest = Guest::of(&[share(&tree, false), share(&tree, true)]);
    guest.folder = 1;
    guest.init();
    let made = [&[0; 8][..], b"new\0"].concat();
    guest.ask(MKDIR, ROOT, &made).unwrap();
    assert!(tree.path().join("share/new").is_dir());
    let file = guest.find(ROOT, b"file").unwrap();
    let handle = guest.open(file, libc::O_WRONLY).unwrap();
    let write = [&handle.to_le_bytes()[..], &[0; 8], &[4, 0, 0, 0], &[0; 20], b"CONT"].concat();
    guest.ask(WRITE, file, &write).unwrap();
    assert_eq!(fs::read(tree.path().join("share/file")).unwrap(), b"CONTents");
    // But nothing by which somebody here would get more rights.
    let node = |mode: u32| [&mode.to_le_bytes()[..], &[0; 12], b"node\0"].concat();
    for mode in [libc::S_IFBLK | 0o666, libc::S_IFCHR | 0o666, libc::S_IFREG | 0o4755] {
        assert_eq!(guest.ask(MKNOD, ROOT, &node(mode)), Err(libc::EPERM), "{mode:o}");
    }
    assert!(!tree.path().join("share/node").exists());
    guest.ask(MKNOD, ROOT, &node(libc::S_IFREG | 0o755)).unwrap();
    assert!(tree.path().join("share/node").is_file());
    // A link is not followed by what is named and not opened.
    let create = |flags: i32, name: &[u8]| {
        [&flags.to_le_bytes()[..], &0o100_644_u32.to_le_bytes(), &[0; 8], name, &[0]].concat()
    };
    for flags in [libc::O_PATH, libc::O_PATH | libc::O_RDWR, libc::O_TMPFILE | libc::O_RDWR] {
        assert_eq!(guest.ask(CREATE, ROOT, &create(flags, b"far")), Err(libc::EPERM), "{flags:#o}");
        assert_eq!(guest.open(file, flags), Err(libc::EPERM), "{flags:#o}");
    }
    guest.ask(CREATE, ROOT, &create(libc::O_RDWR, b"made")).unwrap();
    assert_eq!(fs::read(tree.path().join("share/made")).unwrap(), b"");
    // And nothing beside it.
    let up = [&ROOT.to_le_bytes()[..], b"file\0../file\0"].concat();
    assert!(guest.ask(RENAME, ROOT, &up).is_err());
    assert!(guest.ask(UNLINK, ROOT, b"../secret\0").is_err());
    assert!(guest.ask(SYMLINK, ROOT, b"../new\0x\0").is_err());
    let link = guest.find(ROOT, b"out").unwrap();
    assert!(guest.open(link, libc::O_WRONLY).is_err());
    assert_eq!(fs::read(&secret.0).unwrap(), b"secret");
    assert_eq!(fs::metadata(&secret.0).unwrap().modified().unwrap(), secret.1);
}

/// What has taken the place of a folder by the time that a guest begins anew is not served.
#[test]
fn a_guest_that_begins_anew_finds_the_folder_that_was_shared() {
    let tree = tree();
    for writable in [false, true] {
        let mut guest = Guest::of(&[share(&tree, writable)]);
        fs::rename(tree.path().join("share"), tree.path().join("moved")).unwrap();
        symlink("/etc", tree.path().join("share")).unwrap();
        guest.ask(DESTROY, 0, &[]).unwrap();
        guest.init();
        assert_eq!(guest.find(ROOT, b"passwd"), Err(libc::ENOENT));
        assert!(guest.find(ROOT, b"file").is_ok());
        fs::remove_file(tree.path().join("share")).unwrap();
        fs::rename(tree.path().join("moved"), tree.path().join("share")).unwrap();
    }
}

/// What is mounted later is looked at as well: not shown in one that is only read, and the end of one that may be changed.
#[test]
#[allow(unsafe_code, reason = "a thread gets mounts of its own")]
fn what_is_mounted_meanwhile_is_hidden() {
    let tree = tree();
    let at = tree.path().join("share/deep");
    let thread = thread::spawn(move || {
        // SAFETY: this thread shares no descriptors or directories that others rely on.
        if unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.is_err() {
            return println!("skipped: only root can mount something");
        }
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).unwrap();
        let mut guest = Guest::of(&[share(&tree, false)]);
        let mut changing = Guest::of(&[share(&tree, true)]);
        for guest in [&mut guest, &mut changing] {
            let deep = guest.find(ROOT, b"deep").unwrap();
            guest.find(deep, b"file").unwrap();
        }
        mount("proc", &at, "proc", MountFlags::empty(), None).unwrap();
        assert_eq!(guest.find(ROOT, b"deep"), Err(libc::ENOENT));
        assert!(guest.find(ROOT, b"file").is_ok());
        let message =
            [&[45, 0, 0, 0, 1, 0, 0, 0][..], &[0; 8], &ROOT.to_le_bytes(), &[0; 16], b"deep\0"].concat();
        changing.stream.write_all(&message).unwrap();
        assert_eq!(changing.stream.read(&mut [0]).unwrap(), 0, "an answer");
        unmount(&at, UnmountFlags::DETACH).unwrap();
    });
    thread.join().unwrap();
}

/// The kernel's own file systems are not shown.
#[test]
fn what_is_no_file_of_the_hosts_is_hidden() {
    let mut guest = Guest::of(&[Folder { path: "/".into(), writable: false }]);
    assert_eq!(guest.find(ROOT, b"proc"), Err(libc::ENOENT));
    assert_eq!(guest.find(ROOT, b"sys"), Err(libc::ENOENT));
    assert!(guest.find(ROOT, b"etc").is_ok());
}

/// Messages that are none end the server, and nothing else.
#[test]
fn what_is_no_message_ends_the_service() {
    let tree = tree();
    for message in
        [&[0; 40][..], &[39, 0, 0, 0], &[0xff; 40], &[40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]]
    {
        let (mut stream, theirs) = UnixStream::pair().unwrap();
        let files = Files::open(&[share(&tree, false)]).unwrap();
        let served = thread::spawn(move || files.serve(&theirs).is_err());
        let message = [message, &[0; 64]].concat();
        stream.write_all(&message).unwrap();
        assert!(served.join().unwrap());
    }
}
