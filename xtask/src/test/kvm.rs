//! On which KVM tests run.

use crate::setup;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kvm {
    /// This machine's own.
    Own,
    /// The emulated host's.
    Emulated,
}

/// What a test program is given, wherever it runs.
#[derive(Default)]
pub(super) struct Variables {
    /// Names and values.
    pub(super) values: Vec<(OsString, OsString)>,
    /// Names, and files whose paths are the values.
    pub(super) files: Vec<(OsString, PathBuf)>,
}

impl Variables {
    /// One more value.
    pub(super) fn with(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.values.push((name.into(), value.as_ref().into()));
        self
    }

    /// One more file.
    pub(super) fn with_file(mut self, name: &str, path: &Path) -> Self {
        self.files.push((name.into(), path.into()));
        self
    }
}

impl Kvm {
    /// Those that guests can be probed on, of this machine.
    pub(super) fn all(vmm: &Path) -> anyhow::Result<&'static [Self]> {
        Ok(Self::of(setup::has_fit_kvm(vmm)?))
    }

    /// Those of a machine whose own KVM is fit, or is not.
    fn of(is_fit: bool) -> &'static [Self] {
        if is_fit { &[Self::Own, Self::Emulated] } else { &[Self::Emulated] }
    }

    /// As a sentence goes on.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Own => "on this machine's KVM",
            Self::Emulated => "in the emulated host",
        }
    }

    /// The value of `vmm run --host`.
    pub(super) fn host(self) -> &'static str {
        match self {
            Self::Own => "kvm",
            Self::Emulated => "emulated",
        }
    }

    /// Runs the static `program`, which may not be skipped: it is superuser there, or whoever runs this.
    pub(super) fn command(self, vmm: &Path, program: &Path, variables: Variables) -> Command {
        let Variables { values, files } = variables.with("VMM_CONTRACT_REQUIRED", "1");
        match self {
            Self::Own => {
                let mut command = Command::new(program);
                command.envs(values).envs(files);
                command
            }
            Self::Emulated => {
                let mut command = Command::new(vmm);
                command.args(["host", "exec"]);
                for (name, value) in values {
                    command.arg("--env").arg(assignment(&name, &value));
                }
                for (name, path) in files {
                    command.arg("--file").arg(assignment(&name, path.as_os_str()));
                }
                command.arg(program);
                command
            }
        }
    }
}

/// `NAME=VALUE`.
fn assignment(name: &OsStr, value: &OsStr) -> OsString {
    let mut assignment = name.to_owned();
    assignment.push("=");
    assignment.push(value);
    assignment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<&OsStr> {
        [command.get_program()].into_iter().chain(command.get_args()).collect()
    }

    #[test]
    fn a_fit_machine_runs_tests_on_its_own_kvm_too() {
        assert_eq!(Kvm::of(false), [Kvm::Emulated]);
        assert_eq!(Kvm::of(true), [Kvm::Own, Kvm::Emulated]);
    }

    #[test]
    fn a_program_is_given_the_same_wherever_it_runs() {
        let given = || Variables::default().with("KERNEL", "6.12").with_file("IMAGE", Path::new("/image"));
        let (vmm, program) = (Path::new("/vmm"), Path::new("/session"));
        let own = Kvm::Own.command(vmm, program, given());
        assert_eq!(words(&own), ["/session"]);
        let variables: Vec<_> = own.get_envs().map(|(name, value)| (name, value.unwrap())).collect();
        let expected = [("IMAGE", "/image"), ("KERNEL", "6.12"), ("VMM_CONTRACT_REQUIRED", "1")];
        assert_eq!(variables, expected.map(|(name, value)| (OsStr::new(name), OsStr::new(value))));
        let emulated = Kvm::Emulated.command(vmm, program, given());
        let expected = [
            "/vmm",
            "host",
            "exec",
            "--env",
            "KERNEL=6.12",
            "--env",
            "VMM_CONTRACT_REQUIRED=1",
            "--file",
            "IMAGE=/image",
            "/session",
        ];
        assert_eq!(words(&emulated), expected);
    }
}
