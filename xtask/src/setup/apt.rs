//! The machine's package manager: what is installed and offered, and installing it.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use super::Log;

/// Apt, run as root.
pub(super) struct Apt<'a> {
    log: &'a Log,
    updated: bool,
}

impl<'a> Apt<'a> {
    pub(super) fn new(log: &'a Log) -> Self {
        Self { log, updated: false }
    }

    /// Fetches the package lists anew, once a run.
    pub(super) fn update(&mut self) -> anyhow::Result<()> {
        if self.updated {
            return Ok(());
        }
        self.log.say("fetching apt's package lists");
        finish(as_root("apt-get")?.args(["-q", "-q", "update"]))?;
        self.updated = true;
        Ok(())
    }

    /// Has the package lists fetched again after a source was added.
    pub(super) fn update_again(&mut self) -> anyhow::Result<()> {
        self.updated = false;
        self.update()
    }

    /// Installs packages without what they only recommend, from a suite other than the usual one if one is named.
    pub(super) fn install(&mut self, packages: &[&str], suite: Option<&str>) -> anyhow::Result<()> {
        self.update()?;
        let from = suite.map(|suite| format!(" from {suite}")).unwrap_or_default();
        self.log.say(format_args!("installing{from}: {}", packages.join(" ")));
        let mut command = as_root("env")?;
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-q", "install", "--yes"]);
        command.args(["--no-install-recommends", "-o", "Dpkg::Use-Pty=0"]);
        if let Some(suite) = suite {
            command.args(["--target-release", suite]);
        }
        finish(command.args(packages))
    }
}

/// Writes a file that belongs to root.
pub(super) fn write_as_root(path: &Path, contents: &str) -> anyhow::Result<()> {
    let mut tee = as_root("tee")?
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run tee")?;
    let mut input = tee.stdin.take().context("tee has no input")?;
    input.write_all(contents.as_bytes())?;
    drop(input);
    ensure!(tee.wait()?.success(), "cannot write {}", path.display());
    Ok(())
}

/// The version of a package that is installed.
pub(super) fn installed(package: &str) -> anyhow::Result<Option<String>> {
    let format = "--showformat=${db:Status-Status} ${Version}\n";
    let said = output(Command::new("dpkg-query").args(["--show", format, package]))?;
    Ok(said.lines().find_map(|line| line.strip_prefix("installed ")).map(str::to_owned))
}

/// The version of a package that apt would install from the usual suite.
pub(super) fn offered(package: &str) -> anyhow::Result<Option<String>> {
    let said = output(Command::new("apt-cache").args(["policy", package]))?;
    let version = said.lines().find_map(|line| line.trim().strip_prefix("Candidate: "));
    Ok(version.filter(|version| *version != "(none)").map(str::to_owned))
}

/// What a program prints, in the language that is parsed here; that it knows nothing is an answer too.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .env("LC_ALL", "C")
        .stderr(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}: this needs Debian", command.get_program().display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program that talks to the user.
fn finish(command: &mut Command) -> anyhow::Result<()> {
    // Its output belongs to the progress lines; standard error stays what it is.
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

/// A program to be run as root: directly, or through sudo.
fn as_root(program: &str) -> anyhow::Result<Command> {
    let id = output(Command::new("id").arg("-u"))?;
    if id.trim() == "0" {
        return Ok(Command::new(program));
    }
    let sudo = Command::new("sudo").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if sudo.is_err() {
        bail!("packages must be installed, but this user is not root and there is no sudo");
    }
    let mut command = Command::new("sudo");
    command.arg(program);
    Ok(command)
}
