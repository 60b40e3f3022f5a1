//! The two images that boot: the guest's, and the emulated host's.

use std::io;

use crate::archive::Archive;

/// Files of the guest that workloads open; an ordinary Linux machine has them too.
const GUEST_FILES: [(&str, &str); 4] = [
    ("etc/passwd", "root:x:0:0:root:/:/bin/sh\n"),
    ("etc/group", "root:x:0:\n"),
    ("etc/hostname", "guest\n"),
    ("etc/os-release", "NAME=\"vmm guest\"\nID=vmm-guest\n"),
];

/// A file that is added to an image.
#[derive(Clone, Debug)]
pub struct ExtraFile {
    /// Where it appears.
    pub path: String,
    /// Its permission bits.
    pub mode: u32,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// The guest's initramfs: the `workload` program as `/init`, and busybox with its applets in `/bin`.
///
/// All applets are in `/bin` and none in `/sbin`, where the kernel looks for `modprobe` and would run it by itself:
/// then more files would be opened than the workload says.
///
/// # Errors
/// When a program is too large for the format.
pub fn guest(workload: Vec<u8>, busybox: Vec<u8>, applets: &[String]) -> io::Result<Vec<u8>> {
    let mut archive = base().file("init", 0o755, workload).file("bin/busybox", 0o755, busybox);
    for (path, text) in GUEST_FILES {
        archive = archive.file(path, 0o644, text.into());
    }
    for applet in applets.iter().filter(|applet| *applet != "busybox") {
        archive = archive.link(&format!("bin/{applet}"), "busybox");
    }
    archive.to_gzip()
}

/// More files for a guest, to put behind the bytes of [`guest`]: the kernel unpacks one image after the other, and a
/// file of the later one replaces one of the same path.
///
/// # Errors
/// When a file is too large for the format.
pub fn overlay(files: impl IntoIterator<Item = ExtraFile>) -> io::Result<Vec<u8>> {
    add(Archive::new(), files).to_gzip()
}

fn add(archive: Archive, files: impl IntoIterator<Item = ExtraFile>) -> Archive {
    files
        .into_iter()
        .fold(archive, |archive, ExtraFile { path, mode, bytes }| archive.file(&path, mode, bytes))
}

/// The emulated host's initramfs: a static program as `/init`, modules, and whatever else it is given.
///
/// Modules are name and contents in the order in which they load, which `/modules/load-order` then names, one a
/// line.
///
/// # Errors
/// When a file is too large for the format.
pub fn host(
    init: Vec<u8>,
    modules: impl IntoIterator<Item = (String, Vec<u8>)>,
    extra: impl IntoIterator<Item = ExtraFile>,
) -> io::Result<Vec<u8>> {
    with_modules(init, modules, extra).to_gzip()
}

/// The initramfs of a guest that runs a command: the same, and not compressed.
///
/// # Errors
/// When a file is too large for the format.
pub fn command(
    init: Vec<u8>,
    modules: impl IntoIterator<Item = (String, Vec<u8>)>,
    extra: impl IntoIterator<Item = ExtraFile>,
) -> io::Result<Vec<u8>> {
    with_modules(init, modules, extra).to_bytes()
}

fn with_modules(
    init: Vec<u8>,
    modules: impl IntoIterator<Item = (String, Vec<u8>)>,
    extra: impl IntoIterator<Item = ExtraFile>,
) -> Archive {
    let mut archive = base().file("init", 0o755, init).directory("modules");
    let mut order = String::new();
    for (name, bytes) in modules {
        archive = archive.file(&format!("modules/{name}"), 0o644, bytes);
        order += &format!("{name}\n");
    }
    archive = archive.file("modules/load-order", 0o644, order.into_bytes());
    add(archive, extra)
}

/// What every first process needs: places to mount on, and the console that the kernel opens for it.
fn base() -> Archive {
    ["dev", "proc", "sys", "tmp"].into_iter().fold(Archive::new(), Archive::directory).char_device(
        "dev/console",
        5,
        1,
    )
}
