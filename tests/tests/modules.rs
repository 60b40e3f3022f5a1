//! Probes in modules of real kernels: armed when a module is loaded, before any of it runs, and gone with it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use tests::kernel::is_default;
use tests::product::{Run, binary, initrd_with, kernel, module, run};

/// Runs `script` in a guest that has the modules `dummy` and `loop`. All probes are armed at some time.
fn with_modules(script: &str, words: &[&str]) -> Option<Run> {
    let run = ended_with_modules(script, words)?;
    run.assert_success();
    Some(run)
}

/// The same, however many probes are armed.
fn ended_with_modules(script: &str, words: &[&str]) -> Option<Run> {
    let binary = binary()?;
    let kernel = kernel();
    let initrd = initrd_with([
        ("dummy.ko", 0o644, module("dummy")),
        ("loop.ko", 0o644, module("loop")),
        ("script", 0o644, script.into()),
    ]);
    let mut all = vec!["--kernel", kernel.to_str().unwrap(), "--initrd", initrd.path().to_str().unwrap()];
    all.extend(["--cmdline", "workload=sh:/script loglevel=5"]);
    all.extend(words);
    let run = run(&binary, &all);
    assert_eq!(run.workload("sh path=/script", "status"), 0, "{}", run.console);
    run.assert_clean_log();
    Some(run)
}

/// Loaded twice, unloaded once, and once more with a parameter that its init refuses: a device is set up for each
/// of `numdummies`, and busybox asks a second time, in an older way, when it is refused.
const LOADS: &str = "\
set -e
insmod /dummy.ko
rmmod dummy
insmod /dummy.ko numdummies=3
! insmod /loop.ko max_part=1000 2> /dev/null
insmod /loop.ko
! rmmod nbd 2> /dev/null
";

#[test]
fn probes_follow_their_modules() {
    let probes = [
        "dummy:dummy_init_module",
        "dummy:dummy_dev_init",
        "dummy:dummy_dev_init%return",
        "dummy:dummy_cleanup_module",
        "loop:loop_init",
        "loop:loop_init%return",
        "loop:loop_ad",
        "nbd:nbd_init",
    ];
    // No file of the guest's has `nbd`.
    let mut words = vec!["--cpus=2", "--allow-pending"];
    words.extend(probes.iter().flat_map(|probe| ["--probe", probe]));
    let Some(run) = ended_with_modules(LOADS, &words) else { return };
    // Because of `loop_ad`.
    run.assert_code(122);
    let state = |probe: &str| run.probe(probe)["state"].as_str().unwrap().to_owned();
    // Its text is freed when it has run; each load brings it back.
    assert_eq!((run.hits("dummy:dummy_init_module"), state("dummy:dummy_init_module")), (2, "[GONE]".into()));
    // Called by the module's init: a probe that is armed later misses it.
    let optimized = "[OPTIMIZED]".to_owned();
    assert_eq!((run.hits("dummy:dummy_dev_init"), state("dummy:dummy_dev_init")), (1 + 3, optimized));
    assert_eq!(run.returns("dummy:dummy_dev_init"), 1 + 3);
    assert_eq!(run.hits("dummy:dummy_cleanup_module"), 1);
    // Twice in vain: then the module is freed at once.
    assert_eq!((run.hits("loop:loop_init"), state("loop:loop_init")), (2 + 1, "[GONE]".into()));
    assert_eq!(run.returns("loop:loop_init"), 2 + 1);
    let is_return = |o: &&serde_json::Value| o["type"] == "return" && o["probe"] == "loop:loop_init%return";
    let values: Vec<_> = run.output.iter().filter(is_return).map(|o| &o["value"]).collect();
    assert_eq!(values, ["0xffffffea", "0xffffffea", "0x0"], "EINVAL, EINVAL, 0");
    let refused = state("loop:loop_ad");
    assert!(
        refused.starts_with("[REFUSED] the module `loop` has no function `loop_ad`; did you mean"),
        "{refused}"
    );
    assert!(refused.contains("`loop_add`"), "{refused}");
    assert_eq!(state("nbd:nbd_init"), "[PENDING] the module `nbd` was not loaded");
}

const NOTHING: &str = "true";

#[test]
fn a_probe_whose_module_never_came_is_no_success() {
    let words = ["--probe=dummy:dummy_xmit", "--probe=do_sys_openat2"];
    let Some(run) = ended_with_modules(NOTHING, &words) else { return };
    run.assert_code(122);
    let said = "vmm: dummy:dummy_xmit: never armed, as the module `dummy` was not loaded";
    assert!(run.said.contains(said), "{}", run.said);
    assert!(run.said.contains("--allow-pending"), "{}", run.said);
}

#[test]
fn a_module_may_stay_away_where_that_is_allowed() {
    let words = ["--probe=dummy:dummy_xmit", "--probe=do_sys_openat2", "--allow-pending"];
    let Some(run) = with_modules(NOTHING, &words) else { return };
    assert_eq!(run.probe("dummy:dummy_xmit")["state"], "[PENDING] the module `dummy` was not loaded");
    assert!(!run.said.contains("never armed"), "{}", run.said);
}

#[test]
fn a_probe_that_the_live_text_refuses_is_no_success() {
    let words = ["--allow-pending", "--probe=dummy:dummy_xmitt", "--probe=dummy:dummy_xmit"];
    let Some(run) = ended_with_modules("insmod /dummy.ko", &words) else { return };
    run.assert_code(122);
    let said = "vmm: dummy:dummy_xmitt could not be armed: the module `dummy` has no function `dummy_xmitt`";
    assert!(run.said.contains(said), "{}", run.said);
}

const COMES_AND_GOES: &str = "\
set -e
for _ in 1 2 3 4 5 6 7 8; do
    insmod /dummy.ko
    rmmod dummy
done
";

/// In 6.12 `dummy_setup` is `endbr64; nop; push rbx; mov rbx, rdi; ...` with a call of `ether_setup` at 0x21.
#[test]
fn modules_come_and_go() {
    let mut probes = vec![("dummy:dummy_setup", 4), ("dummy:dummy_setup+0xa", 0xa)];
    if is_default() {
        probes.push(("dummy:dummy_setup+0x21", 0x21));
    }
    let words: Vec<&str> = probes.iter().flat_map(|(probe, _)| ["--probe", probe]).collect();
    let Some(run) = with_modules(COMES_AND_GOES, &[&words[..], &["--cpus=2"]].concat()) else {
        return;
    };
    for (probe, offset) in probes {
        assert_eq!((run.hits(probe), run.probe(probe)["state"].as_str()), (8, Some("[GONE]")), "{probe}");
        let hits = run.output.iter().filter(|o| o["type"] == "hit" && o["probe"] == probe);
        let at = |hit: &serde_json::Value| {
            u64::from_str_radix(hit["rip"].as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
        };
        // Functions are aligned to 16 bytes: a call is hit where it stands, and not behind it.
        assert!(hits.map(at).all(|rip| rip % 16 == offset % 16), "{probe}");
    }
}

#[test]
fn a_one_shot_probe_stays_spent_when_its_module_comes_back() {
    let words = ["--once", "--probe=dummy:dummy_dev_init", "--probe=dummy:dummy_validate"];
    let Some(run) = with_modules(COMES_AND_GOES, &words) else { return };
    assert_eq!(run.hits("dummy:dummy_dev_init"), 1);
    assert_eq!(run.probe("dummy:dummy_dev_init")["state"], "[ONCE]");
    assert_eq!(run.hits("dummy:dummy_validate"), 0);
    assert_eq!(run.probe("dummy:dummy_validate")["state"], "[GONE]");
}

/// No probe is in a module here: `do_one_initcall(fn)` calls the init of each.
#[test]
fn functions_of_modules_have_names() {
    let words = ["--cpus=2", "--probe", "p:init do_one_initcall fn=%di:symbol"];
    let Some(run) = with_modules(COMES_AND_GOES, &words) else { return };
    let names: Vec<_> = run.output.iter().filter_map(|o| o["fields"]["fn"].as_str()).collect();
    let of_module: Vec<_> = names.iter().filter(|name| name.ends_with(" [dummy]")).collect();
    assert_eq!(of_module.len(), 8, "{names:?}");
    assert!(of_module.iter().all(|name| name.starts_with("dummy_init_module+0x0/0x")), "{of_module:?}");
    assert!(names.iter().all(|name| name.contains("+0x0/0x")), "{names:?}");
}
