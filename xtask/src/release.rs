//! `cargo xtask release`: a package for Debian and an archive of the program, each with man pages, completions and licences.

mod licences;

use crate::setup;
use anyhow::{Context as _, ensure};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What makes the package; `cli/Cargo.toml` says what is in it.
const CARGO_DEB: &str = "3.8.0";

const VERSION: &str = env!("CARGO_PKG_VERSION");

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Builds all that a release has, below `target/dist`, and checks that the package has it.
pub(crate) fn run() -> anyhow::Result<()> {
    let vmm = setup::build("cli", "vmm")?;
    let dist = Path::new(ROOT).join("target/dist");
    if dist.exists() {
        fs::remove_dir_all(&dist).context("the last release cannot be removed")?;
    }
    // `cli/Cargo.toml` names the folder: the package takes its files from where the archive does.
    let files = dist.join("vmm");
    fs::create_dir_all(&files)?;
    fs::copy(&vmm, files.join("vmm")).context("the program cannot be copied")?;
    setup::quietly(Command::new(&vmm).arg("manual").arg(&files))?;
    for file in ["README.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        fs::copy(Path::new(ROOT).join(file), files.join(file)).with_context(|| format!("no {file}"))?;
    }
    fs::write(files.join("THIRD-PARTY"), licences::all()?)?;
    let epoch = epoch()?;
    let archive = archive(&dist, &epoch)?;
    let package = package(&dist, &epoch)?;
    check(&package)?;
    let sums = [archive, package].map(|path| sum(&path));
    let sums = sums.into_iter().collect::<anyhow::Result<String>>()?;
    fs::write(dist.join("SHA256SUMS"), &sums)?;
    print!("{sums}");
    println!("in target/dist");
    Ok(())
}

/// When what is released was written, which is the time of all files: the same files give the same archive.
fn epoch() -> anyhow::Result<String> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    let git = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(ROOT).output();
    let epoch = String::from_utf8(git.context("cannot run git")?.stdout)?.trim().to_owned();
    ensure!(!epoch.is_empty(), "this is no checkout: say by SOURCE_DATE_EPOCH when it was written");
    Ok(epoch)
}

fn archive(dist: &Path, epoch: &str) -> anyhow::Result<PathBuf> {
    let name = format!("vmm-{VERSION}-x86_64-linux");
    let archive = dist.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    tar.arg(format!("--mtime=@{epoch}")).args(["--use-compress-program=gzip -n", "--create", "--file"]);
    tar.arg(&archive).arg(format!("--transform=s/^vmm/{name}/")).arg("--directory").arg(dist).arg("vmm");
    setup::quietly(&mut tar)?;
    Ok(archive)
}

fn package(dist: &Path, epoch: &str) -> anyhow::Result<PathBuf> {
    let tools = Path::new(ROOT).join("target/tools");
    if !tools.join("bin/cargo-deb").exists() {
        println!("building cargo-deb {CARGO_DEB}, once");
        let version = ["cargo-deb", "--version", CARGO_DEB, "--locked"];
        let mut install = Command::new("cargo");
        // The workspace's flags are for the product.
        install.arg("install").args(version).arg("--root").arg(&tools).current_dir("/");
        setup::quietly(&mut install)?;
    }
    let package = dist.join(format!("vmm_{VERSION}_amd64.deb"));
    let mut deb = Command::new(tools.join("bin/cargo-deb"));
    deb.args(["deb", "--package", "cli", "--no-build", "--no-strip", "--deb-version", VERSION]);
    deb.arg("--output").arg(&package).env("SOURCE_DATE_EPOCH", epoch).current_dir(ROOT);
    setup::quietly(&mut deb)?;
    Ok(package)
}

/// Fails where something is not in the package, or its program does not run.
fn check(package: &Path) -> anyhow::Result<()> {
    let unpacked = tempfile::tempdir().context("no temporary directory")?;
    setup::quietly(Command::new("dpkg-deb").arg("--extract").arg(package).arg(unpacked.path()))?;
    let share = [
        "man/man1/vmm.1.gz",
        "man/man1/vmm-run.1.gz",
        "bash-completion/completions/vmm",
        "zsh/vendor-completions/_vmm",
        "fish/vendor_completions.d/vmm.fish",
        "doc/vmm/copyright",
        "doc/vmm/THIRD-PARTY",
    ];
    for file in share {
        ensure!(unpacked.path().join("usr/share").join(file).is_file(), "the package has no {file}");
    }
    let said = Command::new(unpacked.path().join("usr/bin/vmm")).arg("--version").output();
    let said = said.context("the packaged program cannot be run")?.stdout;
    ensure!(said == format!("vmm {VERSION}\n").as_bytes(), "the packaged program is of another version");
    Ok(())
}

/// A line as sha256sum writes it.
fn sum(path: &Path) -> anyhow::Result<String> {
    let sum: String = Sha256::digest(fs::read(path)?).iter().map(|byte| format!("{byte:02x}")).collect();
    let name = path.file_name().context("a file has a name")?;
    Ok(format!("{sum}  {}\n", name.display()))
}
