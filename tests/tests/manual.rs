//! What a package has beside the program: man pages, and completions.
#![allow(clippy::unwrap_used, reason = "test support: what goes wrong here is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tests::product::binary;

/// What `vmm manual` writes.
fn written() -> Option<(PathBuf, tempfile::TempDir)> {
    let (binary, folder) = (binary()?, tempfile::tempdir().unwrap());
    assert!(Command::new(&binary).arg("manual").arg(folder.path()).status().unwrap().success());
    Some((binary, folder))
}

/// The commands that help shows.
fn commands(binary: &Path) -> Vec<String> {
    let help = Command::new(binary).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|line| line.starts_with("  "));
    lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_page_that_groff_understands() {
    let Some((binary, folder)) = written() else { return };
    let has_groff = Command::new("groff").arg("--version").stdout(Stdio::null()).status().is_ok();
    let commands = commands(&binary);
    assert!(commands.contains(&"coverage".to_owned()), "{commands:?}");
    for command in commands.iter().filter(|command| *command != "help") {
        let page = folder.path().join(format!("man/vmm-{command}.1"));
        assert!(fs::read_to_string(&page).unwrap().contains(".SH DESCRIPTION"), "{}", page.display());
        if has_groff {
            let groff =
                Command::new("groff").args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&groff.stderr), "", "{}", page.display());
        }
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let Some((_, folder)) = written() else { return };
    let script = r#"source "$1"; COMP_WORDS=("${@:2}"); COMP_CWORD=$(($# - 2)); _vmm vmm "${@: -1}" "${@: -2:1}"
        echo "${COMPREPLY[@]}""#;
    let completed = |words: &[&str]| {
        let file = folder.path().join("completions/vmm.bash");
        let bash = Command::new("bash").args(["-c", script, "bash"]).arg(file).args(words).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&bash.stderr), "");
        String::from_utf8(bash.stdout).unwrap()
    };
    assert_eq!(completed(&["vmm", "co"]), "count coverage\n");
    assert_eq!(completed(&["vmm", "coverage", "--form"]), "--format\n");
    assert_eq!(completed(&["vmm", "coverage", "--format", ""]), "text json lcov\n");
    assert_eq!(completed(&["vmm", "serve"]), "\n");
}
