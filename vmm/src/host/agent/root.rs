//! The guest's root: the host's files, which stay as they are, with what the guest changes on top.

use super::changes::Changes;
use super::plan::{PLAN, Plan};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount, mount_bind, mount_move};
use rustix::process::{chdir, chroot};
use rustix::system::sethostname;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;

/// The host's files.
const LOWER: &str = "/host";
/// What the guest changes.
const CHANGES: &str = "/changes";
/// Both.
const ROOT: &str = "/new";
/// IFF_UP and IFF_LOOPBACK (include/uapi/linux/if.h).
const LOOPBACK_UP: &str = "0x9";

/// What no command can do without: kind, place, options.
const NEEDED: [(&str, &str, Option<&str>); 6] = [
    ("proc", "proc", None),
    ("sysfs", "sys", None),
    ("devtmpfs", "dev", None),
    ("devpts", "dev/pts", Some("mode=0620,ptmxmode=0666,gid=5")),
    ("tmpfs", "dev/shm", Some("mode=1777")),
    ("tmpfs", "run", Some("mode=0755")),
];
/// What a machine usually has besides.
const WANTED: [(&str, &str); 7] = [
    ("mqueue", "dev/mqueue"),
    ("debugfs", "sys/kernel/debug"),
    ("tracefs", "sys/kernel/tracing"),
    ("securityfs", "sys/kernel/security"),
    ("configfs", "sys/kernel/config"),
    ("cgroup2", "sys/fs/cgroup"),
    ("bpf", "sys/fs/bpf"),
];

/// Why there is no root to run a command in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RootError {
    #[error("the plan of this guest cannot be read")]
    Plan(#[source] io::Error),
    #[error(
        "the host's files cannot be mounted: this kernel has no virtiofs (CONFIG_VIRTIO_FS) and no module for it"
    )]
    NoVirtiofs,
    #[error("the host's files cannot be mounted: no device has them")]
    NoDevice,
    #[error("cannot mount {what} at {at}")]
    Mount { what: String, at: String, source: io::Error },
    #[error("cannot read {0}")]
    Read(&'static str, #[source] io::Error),
    #[error("cannot make {0}")]
    Make(String, #[source] io::Error),
    #[error("cannot enter the new root")]
    Enter(#[source] io::Error),
}

/// Makes the root that the plan describes, and goes there. Says where what is changed lies.
pub(crate) fn enter() -> Result<Changes, RootError> {
    let plan = fs::read(PLAN).and_then(|plan| Ok(serde_json::from_slice::<Plan>(&plan)?));
    let plan = plan.map_err(RootError::Plan)?;
    put(&plan.root, LOWER, "virtiofs", MountFlags::RDONLY, None)?;
    no_halves();
    let mut changes = on_top(&plan.folder)?;
    for mount in &plan.mounts {
        put(&mount.tag, &inside(&mount.at), "virtiofs", MountFlags::empty(), None)?;
    }
    for (kind, at, options) in NEEDED {
        put(kind, &inside(Path::new(at)), kind, MountFlags::empty(), options)?;
    }
    for at in ["dev/shm", "run"] {
        changes.add(at, &inside(Path::new(at))).map_err(|error| RootError::Read(CHANGES, error))?;
    }
    for (kind, at) in WANTED {
        // Some kernels lack it, or have no place for it.
        let _ = put(kind, &inside(Path::new(at)), kind, MountFlags::empty(), None);
    }
    read_ahead();
    chdir(ROOT)
        .and_then(|()| mount_move(".", "/"))
        .and_then(|()| chroot("."))
        .and_then(|()| chdir("/"))
        .map_err(|error| RootError::Enter(error.into()))?;
    // Programs do without a name, and without 127.0.0.1.
    if let Ok(name) = fs::read_to_string("/etc/hostname") {
        let _ = sethostname(name.trim().as_bytes());
    }
    let _ = fs::write("/sys/class/net/lo/flags", LOOPBACK_UP);
    Ok(changes)
}

/// Has an overlay copy a file as a whole also where its mode alone is changed: otherwise what is changed would have the file's length and
/// none of its bytes (Documentation/filesystems/overlayfs.rst, "Metadata only copy up"). A folder that gets another name is copied as
/// well, so that its files are among those that are changed ("redirect_dir", same file). Older kernels do so by themselves.
fn no_halves() {
    for parameter in ["metacopy", "redirect_dir"] {
        let _ = fs::write(format!("/sys/module/overlay/parameters/{parameter}"), "N");
    }
}

/// Has the guest read as much of a file at a time as a message can carry: each takes its time on the way to the host, and the
/// kernel alone asks for 128 KiB (`VM_READAHEAD_PAGES`). A guest that cannot do so reads more slowly.
fn read_ahead() {
    const KIB: &[u8] = b"1008";
    let Ok(device) = fs::metadata(LOWER).map(|metadata| metadata.dev()) else { return };
    let (major, minor) = (libc::major(device), libc::minor(device));
    let _ = fs::write(inside(Path::new(&format!("sys/class/bdi/{major}:{minor}/read_ahead_kb"))), KIB);
}

/// What lies at `path` of the guest's root before that is the root.
fn inside(path: &Path) -> String {
    let path = path.strip_prefix("/").unwrap_or(path);
    Path::new(ROOT).join(path).to_string_lossy().into_owned()
}

/// Puts a layer for changes on the host's files. A kernel that has no overlay gets them as they are, beside places of its own
/// to write to. The command runs in `folder`. Says where what is changed lies.
fn on_top(folder: &Path) -> Result<Changes, RootError> {
    put("tmpfs", CHANGES, "tmpfs", MountFlags::empty(), Some("mode=0755"))?;
    for folder in ["upper", "work"].map(|name| format!("{CHANGES}/{name}")) {
        fs::create_dir(&folder).map_err(|error| RootError::Make(folder, error))?;
    }
    let layers = format!("lowerdir={LOWER},upperdir={CHANGES}/upper,workdir={CHANGES}/work");
    match put("overlay", ROOT, "overlay", MountFlags::empty(), Some(&layers)) {
        Err(RootError::Mount { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {
            side_by_side(folder)
        }
        mounted => {
            mounted?;
            let mut changes = Changes::default();
            let upper = format!("{CHANGES}/upper");
            changes.add_overlay(&upper, LOWER).map_err(|error| RootError::Read(CHANGES, error))?;
            Ok(changes)
        }
    }
}

/// Makes a root in memory in which everything of the host's is mounted, with places that can be written to. Where the command
/// runs below one of these, what it runs in is seen there.
fn side_by_side(folder: &Path) -> Result<Changes, RootError> {
    let mut changes = Changes::default();
    put("tmpfs", ROOT, "tmpfs", MountFlags::empty(), Some("mode=0755"))?;
    let unreadable = |source| RootError::Read(LOWER, source);
    for entry in fs::read_dir(LOWER).map_err(unreadable)? {
        let (entry, to) =
            entry.map(|entry| (entry.path(), Path::new(ROOT).join(entry.file_name()))).map_err(unreadable)?;
        // What is the kernel's own there is listed, and nothing more.
        let Ok(kind) = fs::symlink_metadata(&entry).map(|metadata| metadata.file_type()) else { continue };
        let made = if kind.is_symlink() {
            fs::read_link(&entry).and_then(|target| symlink(target, &to))
        } else if kind.is_dir() {
            fs::create_dir(&to)
        } else {
            fs::write(&to, "")
        };
        made.map_err(|error| RootError::Make(to.display().to_string(), error))?;
        if !kind.is_symlink() {
            show(&entry, &to)?;
        }
    }
    for place in ["tmp", "var/tmp"] {
        let (written, at) = (Path::new("/").join(place), inside(Path::new(place)));
        // Nothing is made on what cannot be changed.
        if place != "tmp" && !Path::new(&at).is_dir() {
            continue;
        }
        put("tmpfs", &at, "tmpfs", MountFlags::empty(), Some("mode=1777"))?;
        changes.add(place, &at).map_err(|error| RootError::Read(CHANGES, error))?;
        if let Some(first) = folder.strip_prefix(&written).ok().and_then(|below| below.iter().next()) {
            let to = Path::new(&at).join(first);
            fs::create_dir(&to).map_err(|error| RootError::Make(to.display().to_string(), error))?;
            show(&Path::new(LOWER).join(place).join(first), &to)?;
        }
    }
    Ok(changes)
}

/// Has `to` be what is at `from`.
fn show(from: &Path, to: &Path) -> Result<(), RootError> {
    mount_bind(from, to).map_err(|error| RootError::Mount {
        what: from.display().to_string(),
        at: to.display().to_string(),
        source: error.into(),
    })
}

fn put(what: &str, at: &str, kind: &str, flags: MountFlags, options: Option<&str>) -> Result<(), RootError> {
    // On what the guest may not change, places are there or not.
    if !Path::new(at).is_dir() {
        fs::create_dir_all(at).map_err(|error| RootError::Make(at.to_owned(), error))?;
    }
    let options = options.and_then(|options| CString::new(options).ok());
    mount(what, at, kind, flags, options.as_deref()).map_err(|error| match (kind, error) {
        ("virtiofs", Errno::NODEV) => RootError::NoVirtiofs,
        ("virtiofs", Errno::INVAL) => RootError::NoDevice,
        _ => RootError::Mount { what: what.to_owned(), at: at.to_owned(), source: error.into() },
    })
}
