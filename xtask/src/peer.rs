//! QEMU with virtiofsd, put together the way virtme-ng does it: the host's root is the guest's, and a script of ours is
//! its first program. Runs of the product are compared with it.

use crate::setup;
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, Kernel};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// The version of virtiofsd that its crate is built from: Debian 12's QEMU has one that newer QEMUs refuse, Debian 13's
/// has none.
const VIRTIOFSD: &str = "1.14.0";
/// What building virtiofsd needs.
const NEEDED: [(&str, &str); 2] =
    [("libcap-ng-dev", "building virtiofsd"), ("libseccomp-dev", "building virtiofsd")];
/// The guest's memory, as `vmm run` has it by default.
const MEMORY: &str = "512M";
/// What the script prints last, before the command's exit code.
const ENDED: &str = "peer: ended ";
/// What it prints where its files cannot be written, which would be another test than ours.
const FAILED: &str = "peer: nothing can be written";

/// What is needed to start such guests.
pub(crate) struct Peer {
    virtiofsd: PathBuf,
    image: PathBuf,
    /// The module by which what is written is thrown away. Without it nothing can be written.
    overlay: PathBuf,
    accelerator: &'static str,
}

impl Peer {
    /// Builds what is missing. `own_kvm`: guests run on this machine's KVM, otherwise in QEMU's emulator.
    pub(crate) fn prepare(kernel: &Kernel, own_kvm: bool) -> anyhow::Result<Self> {
        let cache = Cache::open()?;
        let kernel = cache.kernel(kernel)?;
        let is_overlay = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == "overlay");
        let overlay =
            kernel.command_modules.into_iter().find(is_overlay).context("the kernel has no overlay")?;
        let place = cache.root().join(format!("virtiofsd-{VIRTIOFSD}"));
        let virtiofsd = place.join("bin/virtiofsd");
        if !virtiofsd.exists() {
            setup::install(&NEEDED)?;
            let mut cargo = Command::new("cargo");
            cargo
                .args(["install", "--quiet", "--locked", "--version", VIRTIOFSD, "virtiofsd", "--root"])
                .arg(&place);
            ensure!(cargo.status().context("cannot run cargo")?.success(), "virtiofsd cannot be built");
        }
        Ok(Self { virtiofsd, image: kernel.image, overlay, accelerator: if own_kvm { "kvm" } else { "tcg" } })
    }

    /// Runs a guest in which the shell runs `script` in the directory `place`, for `seconds` at most. Each line that the
    /// script prints goes to `line` when it arrives. Returns the script's exit code, or none when the guest did not come
    /// to its end.
    pub(crate) fn run(
        &self,
        cpus: u32,
        (place, script): (&Path, &str),
        seconds: u32,
        line: impl FnMut(&str),
    ) -> anyhow::Result<Option<i32>> {
        let files = tempfile::tempdir().context("no temporary directory")?;
        let [socket, init, console] = ["socket", "init", "console"].map(|name| files.path().join(name));
        fs::write(&init, first_program(&self.overlay, place, script))?;
        let _server = Server::start(&self.virtiofsd, &socket)?;
        let mut qemu = Command::new("timeout");
        qemu.arg(seconds.to_string()).arg("qemu-system-x86_64");
        qemu.args([
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-accel",
            self.accelerator,
            "-cpu",
            "max",
        ])
        .args(["-m", MEMORY, "-smp", &cpus.to_string(), "-kernel"])
        .arg(&self.image)
        .args(["-object", &format!("memory-backend-memfd,id=memory,size={MEMORY},share=on")])
        .args(["-numa", "node,memdev=memory", "-device", "virtio-serial-pci"])
        .args(["-chardev", "file,id=out,path=/dev/stdout", "-device", "virtserialport,chardev=out"])
        .args(["-device", "virtio-rng-pci"])
        .args(["-chardev", &format!("socket,id=files,path={}", socket.display())])
        .args(["-device", "vhost-user-fs-pci,chardev=files,tag=root"])
        .args(["-serial", &format!("file:{}", console.display()), "-append"])
        .arg(format!(
            "console=ttyS0 quiet rootfstype=virtiofs root=root ro init=/bin/sh -- {}",
            init.display()
        ));
        lines(qemu.stdin(Stdio::null()), line)
    }
}

/// The process that serves the host's files.
struct Server(Child);

impl Server {
    fn start(virtiofsd: &Path, socket: &Path) -> anyhow::Result<Self> {
        let mut server = Command::new(virtiofsd);
        server.args([
            "--shared-dir",
            "/",
            "--sandbox",
            "none",
            "--readonly",
            "--log-level",
            "error",
            "--socket-path",
        ]);
        let mut server = Self(server.arg(socket).spawn().context("cannot run virtiofsd")?);
        while !socket.exists() {
            ensure!(server.0.try_wait()?.is_none(), "virtiofsd has ended");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server ends by itself when QEMU does.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs what prints the script's output, and hands each line on when it arrives.
fn lines(qemu: &mut Command, mut line: impl FnMut(&str)) -> anyhow::Result<Option<i32>> {
    let mut qemu = qemu.stdout(Stdio::piped()).spawn().context("cannot run QEMU")?;
    let mut code = None;
    for said in BufReader::new(qemu.stdout.take().context("QEMU has no output")?).split(b'\n') {
        let said = said?;
        let said = String::from_utf8_lossy(&said);
        ensure!(said != FAILED, "the guest of QEMU cannot write its files");
        match said.strip_prefix(ENDED) {
            Some(ended) => code = Some(ended.trim().parse().context("the guest's last line has no number")?),
            None => line(&said),
        }
    }
    qemu.wait()?;
    Ok(code)
}

/// The guest's first program: mounts what a command expects, runs the script, and powers the guest off. The script's
/// files can be written in `place`, and are thrown away.
fn first_program(overlay: &Path, place: &Path, script: &str) -> String {
    let (overlay, place) = (overlay.display(), place.display());
    format!(
        "mount -t proc proc /proc; mount -t sysfs sysfs /sys
mount -t debugfs debugfs /sys/kernel/debug; mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t devtmpfs devtmpfs /dev; mkdir -p /dev/shm /dev/mqueue /dev/pts
mount -t tmpfs shm /dev/shm; mount -t mqueue mqueue /dev/mqueue; mount -t devpts devpts /dev/pts
mount -t tmpfs run /run; mkdir /run/upper /run/work
busybox insmod {overlay}
mount -t overlay -o lowerdir={place},upperdir=/run/upper,workdir=/run/work overlay {place}
mount -t tmpfs tmp /tmp; cd {place}
exec > $(echo /dev/vport*p1) 2>&1 < /dev/null
: > writable || echo '{FAILED}'
setsid sh -c '{script}'
code=$?; echo; echo '{ENDED}'$code
echo o > /proc/sysrq-trigger
sleep 100
"
    )
}
