//! Options of `vmm` that change what is shown, each with what is shown without it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use tests::product::{binary, command, run};

const OPENS: &str = "--cmdline=workload=open:3";

/// Of the three files that are opened, `/etc/passwd` is one. The first probe has a condition of its own.
#[test]
fn a_filter_leaves_out_hits_of_a_running_guest() {
    let Some(binary) = binary() else { return };
    let own = "p:own do_sys_openat2 filename:string dfd if dfd == -100";
    let words = ["--probe", own, "--probe=p:other do_sys_openat2 filename:string"];
    let run = run(&binary, &[&words[..], &["--filter=filename ~ \"*passwd\"", OPENS]].concat());
    run.assert_success();
    let files = |event: &str| -> Vec<&str> {
        let hits = run.output.iter().filter(|o| o["type"] == "hit" && o["event"] == event);
        hits.map(|hit| hit["fields"]["filename"].as_str().unwrap()).collect()
    };
    assert_eq!(files("other"), ["/etc/passwd"], "{:?}", run.output);
    assert_eq!(files("own").len(), 3, "{:?}", run.output);
}

/// `struct file` is large, and is shown by its address alone without the option.
#[test]
fn structures_are_shown_in_full_only_when_asked() {
    let Some(binary) = binary() else { return };
    for (more, is_deep) in [(&[][..], false), (&["--deep"], true)] {
        let folder = tempfile::tempdir().unwrap();
        let words = [&["run", "--probe=vfs_open", OPENS], more].concat();
        let output = command(&binary, folder.path(), &words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        let hit =
            text.lines().find(|line| line.contains(" vfs_open(path={")).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(hit.contains("file={"), is_deep, "{hit}");
        assert_eq!(hit.contains("f_mode="), is_deep, "{hit}");
    }
}

#[test]
fn a_function_is_listed_with_its_prototype_when_asked() {
    const PROTOTYPE: &str = "int do_sys_openat2(int dfd, const char *filename, struct open_how *how)";
    let Some(binary) = binary() else { return };
    let kernel = format!("--kernel={}", tests::product::kernel().display());
    for (more, has_it) in [(&[][..], false), (&["--proto"], true)] {
        let folder = tempfile::tempdir().unwrap();
        let words = [&["symbols", &kernel, "do_sys_openat2"], more].concat();
        let output = command(&binary, folder.path(), &words).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("do_sys_openat2"), "{text}");
        assert_eq!(text.contains(PROTOTYPE), has_it, "{text}");
    }
}
