//! On a kernel that confines nothing, or in a container that lets nobody be confined, `vmm` works and says so.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]
#![allow(unsafe_code, reason = "the child that becomes `vmm` loses system calls before it does")]

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Output;
use tests::product::{Ended, binary, command};

/// `vmm` with these words, where Landlock's system calls fail with `landlock`, and seccomp's with `seccomp`.
fn without(landlock: i32, seccomp: i32, words: &[&str]) -> Option<Output> {
    let (binary, temporary) = (binary()?, tempfile::tempdir().unwrap());
    let filter = |rules, error: i32| -> BpfProgram {
        let refused = SeccompAction::Errno(error as u32);
        SeccompFilter::new(rules, SeccompAction::Allow, refused, TargetArch::x86_64)
            .unwrap()
            .try_into()
            .unwrap()
    };
    let of_landlock =
        [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_add_rule, libc::SYS_landlock_restrict_self];
    let is_of_seccomp =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::PR_SET_SECCOMP as u64);
    let by_prctl = vec![SeccompRule::new(vec![is_of_seccomp.unwrap()]).unwrap()];
    let landlock = filter(of_landlock.map(|call| (call, vec![])).into(), landlock);
    // In this order: the second one takes the means of any more.
    let seccomp = filter(BTreeMap::from([(libc::SYS_seccomp, vec![]), (libc::SYS_prctl, by_prctl)]), seccomp);
    let mut command = command(&binary, temporary.path(), words);
    let confine = move || {
        [&landlock, &seccomp]
            .into_iter()
            .try_for_each(|program| apply_filter(program).map_err(std::io::Error::other))
    };
    // SAFETY: the closure makes system calls; the filters are made.
    let command = unsafe { command.pre_exec(confine) };
    Some(command.output().ended())
}

#[test]
fn a_command_runs_where_nothing_is_confined() {
    for (landlock, seccomp) in
        [(libc::ENOSYS, libc::EINVAL), (libc::EOPNOTSUPP, libc::ENOSYS), (libc::EPERM, libc::EPERM)]
    {
        let words = ["run", "--probe=do_sys_openat2", "--", "cat", "/etc/hostname"];
        let Some(output) = without(landlock, seccomp, &words) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{landlock} {seccomp}: {said}");
        assert_eq!(output.stdout, std::fs::read("/etc/hostname").unwrap());
        assert!(said.contains("filename=\"/etc/hostname\""), "{said}");
    }
}

#[test]
fn doctor_says_that_nothing_is_confined() {
    let Some(output) = without(libc::ENOSYS, libc::EINVAL, &["doctor"]) else { return };
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for name in ["Landlock", "seccomp"] {
        // The first one is of this machine, the second of the emulated host.
        let line = said.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{said}"));
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words, ["no", name, "not", "in", "this", "kernel"], "{said}");
    }
}
