//! `cargo xtask setup`: from a bare Debian machine with Rust to one where everything runs.
//!
//! Every step looks first whether there is anything to do, so that the whole takes a second when there is not.

mod apt;
mod packages;
mod python;
mod speedscope;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, anyhow, ensure};
use guest_kernels::cache::CacheWriter;
use guest_kernels::{Cache, DEFAULT_KERNEL, Fetcher, KERNELS, initramfs};

use apt::Apt;

/// The shell and its tools for the guest: one static program, from the package `busybox-static`.
const BUSYBOX: &str = "/bin/busybox";

/// Brings the machine to where everything can run, and says what it does.
///
/// # Errors
/// When a step fails; what the steps before it did stays, and running it again goes on from there.
pub(crate) fn run() -> anyhow::Result<Ready> {
    let log = Log { start: Instant::now() };
    // Building keeps the processors busy, and what is fetched the network.
    let (cache, programs) = thread::scope(|scope| {
        let programs = scope.spawn(Programs::build);
        let mut apt = Apt::new(&log);
        packages::install(&log, &mut apt)?;
        let cache = Cache::open()?;
        fetch_kernels(&log, &cache.lock()?)?;
        speedscope::fetch(&log, &mut apt, &cache.lock()?)?;
        python::install(&log, &cache.lock()?)?;
        let programs = programs.join().map_err(|_| anyhow!("building has panicked"))??;
        anyhow::Ok((cache, programs))
    })?;
    let Programs { workload, vmm } = programs;
    log.say(format_args!("vmm: {}", vmm.display()));
    build_initramfs(&log, &cache.lock()?, &workload)?;
    prepare_host(&log, &vmm)?;
    log.say(format_args!("ready, in {}", cache.root().display()));
    Ok(Ready { vmm })
}

/// Installs those of these Debian packages, each with what for, that are missing: for what only few need.
///
/// # Errors
/// When a package cannot be installed.
pub(crate) fn install(packages: &[(&str, &str)]) -> anyhow::Result<()> {
    let log = Log { start: Instant::now() };
    packages::install_missing(&log, &mut Apt::new(&log), packages)
}

/// The version of a Debian package that is installed.
///
/// # Errors
/// When the machine cannot be asked.
pub(crate) fn version(package: &str) -> anyhow::Result<Option<String>> {
    apt::installed(package)
}

/// What a set-up machine has.
pub(crate) struct Ready {
    /// The product, built in release.
    pub(crate) vmm: PathBuf,
}

/// What is built in release.
struct Programs {
    /// The guest's first program.
    workload: PathBuf,
    /// The product.
    vmm: PathBuf,
}

impl Programs {
    fn build() -> anyhow::Result<Self> {
        Ok(Self { workload: build("workload", "workload")?, vmm: build("cli", "vmm")? })
    }
}

/// Lines about progress, with the seconds since the start.
struct Log {
    start: Instant,
}

impl Log {
    fn say(&self, line: impl std::fmt::Display) {
        let seconds = self.start.elapsed().as_secs_f32();
        // Whoever reads this may have seen enough; the work goes on.
        let _ = writeln!(std::io::stdout(), "setup: [{seconds:5.1} s] {line}");
    }
}

/// Fetches every kernel of the manifest. Without the default one nothing runs; others may be unknown to the machine's
/// Debian release, or to Debian.
fn fetch_kernels(log: &Log, cache: &CacheWriter<'_>) -> anyhow::Result<()> {
    let notice = |line: &str| log.say(line);
    let mut fetcher = Fetcher::new(cache, &notice);
    for kernel in KERNELS {
        match fetcher.fetch(kernel) {
            Ok(fetched) => log.say(fetched),
            Err(error) if *kernel != DEFAULT_KERNEL => {
                log.say(format_args!("kernel {kernel}: left out: {:#}", anyhow::Error::from(error)));
            }
            Err(error) => return Err(error).with_context(|| format!("kernel {kernel} is needed")),
        }
    }
    Ok(())
}

/// Builds the initramfs, whose first program is `workload`.
fn build_initramfs(log: &Log, cache: &CacheWriter<'_>, workload: &Path) -> anyhow::Result<()> {
    let applets =
        Command::new(BUSYBOX).arg("--list").output().with_context(|| format!("cannot run {BUSYBOX}"))?;
    ensure!(applets.status.success(), "{BUSYBOX} --list failed");
    let applets: Vec<String> = String::from_utf8(applets.stdout)?.lines().map(str::to_owned).collect();
    let image = initramfs::guest(read(workload)?, read(Path::new(BUSYBOX))?, &applets)?;
    let size = image.len() / 1024;
    if cache.put_initramfs(&image).context("cannot write the guest initramfs")? {
        log.say(format_args!("guest initramfs: built, {size} KiB"));
    } else {
        log.say("guest initramfs: unchanged");
    }
    Ok(())
}

/// Whether guests run on this machine's own KVM.
pub(crate) fn has_fit_kvm(vmm: &Path) -> anyhow::Result<bool> {
    let doctor = Command::new(vmm).args(["doctor", "--host=kvm"]).output().context("cannot run vmm")?;
    Ok(doctor.status.success())
}

/// Boots the emulated host once and keeps its snapshot, where guests will need it.
fn prepare_host(log: &Log, vmm: &Path) -> anyhow::Result<()> {
    if has_fit_kvm(vmm)? {
        log.say("emulated host: not needed, this machine's own KVM runs guests");
        return Ok(());
    }
    let prepared = Command::new(vmm).args(["host", "prepare"]).status().context("cannot run vmm")?;
    ensure!(prepared.success(), "the emulated host cannot be prepared");
    log.say("emulated host: a snapshot is ready");
    Ok(())
}

/// Builds a package of the workspace in release; returns the path of one of its programs.
pub(crate) fn build(package: &str, program: &str) -> anyhow::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "--package", package])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "building {package} failed");
    // This program is in `debug/` next to `release/`, wherever the target directory is.
    let own = std::env::current_exe().context("cannot find this program's own path")?;
    let target = own.ancestors().nth(2).context("this program was not built by cargo")?;
    Ok(target.join("release").join(program))
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Runs a program to its end; its output is shown only when it fails.
pub(crate) fn quietly(command: &mut Command) -> anyhow::Result<()> {
    let output =
        command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed:\n{said}", command.get_program().display());
    Ok(())
}
