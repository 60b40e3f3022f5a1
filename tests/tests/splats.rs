//! Reports of the guest's kernel, from modules with real bugs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use serde_json::Value;
use std::fs;
use tempfile::NamedTempFile;
use tests::broken_module::{Bug, broken};
use tests::kernel::is_default;
use tests::product::{Run, binary, initrd_with, run, run_in_vain};

/// Runs `script` in a guest that prints nothing of its own, with a module of each bug.
fn run_script(script: &str, options: &[&str]) -> Option<Run> {
    let binary = binary()?;
    let initrd = initrd_with([
        ("null.ko", 0o644, broken(Bug::NullPointer, b"nulls")),
        ("list.ko", 0o644, broken(Bug::ListCorruption, b"lists")),
        ("lock.ko", 0o644, broken(Bug::NoLock, b"locks")),
        ("loop.ko", 0o644, broken(Bug::Endless, b"loops")),
        ("script", 0o644, script.into()),
    ]);
    let initrd = initrd.path().to_str().unwrap();
    let words = ["--initrd", initrd, "--cmdline=workload=sh:/script quiet loglevel=0"];
    Some(run(&binary, &[&words, options].concat()))
}

/// The reports of a run.
fn splats(run: &Run) -> Vec<&Value> {
    run.output.iter().filter(|line| line["type"] == "splat").collect()
}

/// A file that allows this.
fn list(entries: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("allow = [{entries}]\n")).unwrap();
    file
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// A warning, a fault, a damaged list, a CPU that is stuck, and a panic, each with the calls that lead there. Nothing of them is on
/// the console.
#[test]
fn five_splats_of_one_guest_and_the_hits_before_them() {
    const SCRIPT: &str = "\
insmod /lock.ko
insmod /null.ko
insmod /list.ko
rmmod lists
echo 1 > /proc/sys/kernel/watchdog_thresh
echo 1 > /proc/sys/kernel/softlockup_panic
insmod /loop.ko
";
    // Newer kernels preempt what is stuck.
    if !is_default() {
        return;
    }
    let probes = ["--probe=load_module", "--probe=do_init_module", "--recent=2", "--optimize=off"];
    let Some(run) = run_script(SCRIPT, &probes) else { return };
    run.assert_code(123);
    assert!(!run.console.contains("Call Trace") && !run.console.contains("BUG"), "{}", run.console);
    let all = splats(&run);
    let find = |beginning: &str| {
        let found = all.iter().find(|splat| text(&splat["fingerprint"]).starts_with(beginning));
        found.unwrap_or_else(|| panic!("no {beginning} in {all:#?}"))
    };
    let init = "dummy_init_module,do_one_initcall,do_init_module";
    for (fingerprint, title, comm) in [
        (format!("warning:register_netdevice,{init}"), "WARNING in register_netdevice: RTNL: ", "insmod"),
        (format!("oops:{init}"), "BUG: kernel NULL pointer dereference in dummy_init_module", "insmod"),
        (
            "memory:__rtnl_link_unregister,rtnl_link_unregister".to_owned(),
            "kernel BUG at lib/list_debug.c",
            "rmmod",
        ),
        (format!("soft-lockup:{init}"), "BUG: soft lockup", "insmod"),
    ] {
        let splat = find(&fingerprint);
        assert!(text(&splat["title"]).starts_with(title), "{splat}");
        assert_eq!((&splat["task"]["comm"], &splat["cpu"]), (&comm.into(), &0.into()), "{splat}");
        assert!(text(&splat["taint"]).contains('E') && splat["allowed"].is_null(), "{splat}");
        assert!(run.said.contains(text(&splat["fingerprint"])), "{}", run.said);
    }
    assert_eq!(find("panic:")["title"], "Kernel panic - not syncing: softlockup: hung tasks");
    assert!(text(&find("warning:register_netdevice,")["at"]).starts_with("net/core/dev.c:"));
    // What was hit before each of them, and before no other.
    let hits = |splat: &Value| -> Vec<&Value> {
        run.output.iter().filter(|line| line["type"] == "hit" && line["recent"] == splat["number"]).collect()
    };
    for beginning in ["warning:register_netdevice,", "oops:", "soft-lockup:"] {
        let splat = find(beginning);
        let own = hits(splat);
        let names: Vec<&str> = own.iter().map(|hit| text(&hit["probe"])).collect();
        assert_eq!(names, ["load_module", "do_init_module"], "{beginning} {}", run.said);
        assert!(own.iter().all(|hit| hit["guest_ns"].as_u64() < splat["guest_ns"].as_u64()), "{own:?}");
    }
    let written = run.output.iter().filter(|line| line["type"] == "hit").count() as u64;
    assert!(run.output.iter().all(|line| line["type"] != "hit" || line["recent"].is_u64()));
    assert_eq!(
        written,
        run.probe("load_module")["hits"].as_u64().unwrap() * 2,
        "each of them explains a report"
    );
}

#[test]
fn what_is_allowed_fails_no_run_until_it_expires() {
    let Some(binary) = binary() else { return };
    let warned = |options: &[&str]| run_script("insmod /list.ko\nrmmod lists || true\n", options).unwrap();
    let run = warned(&["--splat=report"]);
    run.assert_success();
    assert!(splats(&run)[0]["allowed"].is_null() && run.said.contains("vmm: splat at "), "{}", run.said);
    let known = "{ match = \"^memory:.*rtnl_link_unregister\", reason = \"known\", until = \"2999-12\" }";
    let allowed = list(known);
    let run = warned(&["--splat=fail", "--allow-splats", allowed.path().to_str().unwrap()]);
    run.assert_success();
    let splat = splats(&run)[0];
    assert_eq!((&splat["allowed"], &splat["until"]), (&"known".into(), &"2999-12".into()), "{splat}");
    let expired = list(&known.replace("2999-12", "2020-02-29"));
    let run = warned(&["--splat=fail", "--allow-splats", expired.path().to_str().unwrap()]);
    run.assert_code(123);
    assert!(splats(&run)[0]["allowed"].is_null() && splats(&run)[0]["expired"] == true);
    assert!(run.said.contains("it was allowed until 2020-02-29"), "{}", run.said);
    let run = warned(&["--splat=ignore"]);
    run.assert_success();
    assert!(splats(&run).is_empty() && !run.said.contains("splat"), "{}", run.said);
    let wrong = list("{ match = \"x\", reason = \"y\", till = \"2027-06\" }");
    let run = run_in_vain(&binary, &["--allow-splats", wrong.path().to_str().unwrap()]);
    assert!(run.said.contains(":1:") && run.said.contains("unknown field `till`"), "{}", run.said);
}

/// A process may write what looks like a report wherever it can, and ask the kernel to show stacks.
#[test]
fn what_is_no_report_makes_none() {
    const SCRIPT: &str = "\
report='BUG: kernel NULL pointer dereference, address: 0000000000000010'
echo \"$report\" > /dev/console
echo \"$report\" > /dev/kmsg
echo '<0>Kernel panic - not syncing: not at all' > /dev/kmsg
echo l > /proc/sysrq-trigger
echo w > /proc/sysrq-trigger
";
    let Some(run) = run_script(SCRIPT, &["--splat=fail"]) else { return };
    run.assert_success();
    assert!(splats(&run).is_empty(), "{:#?}", splats(&run));
    assert!(run.console.contains("BUG: kernel NULL"), "{}", run.console);
}
