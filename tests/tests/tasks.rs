//! Which task a hit belongs to: early in boot, idle, in interrupts, and in a pid namespace, as the guest itself knows it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use std::collections::BTreeSet;
use tests::product::{Run, binary, initrd_with, kernel, run};

/// The program under another name: as the first process of a pid namespace, where it is number 1, and as it is.
const SCRIPT: &str = "\
cp /init /tmp/subject
unshare -p -f /tmp/subject --steps getppid:2
/tmp/subject --steps getppid:1 &
echo \"the subject is $!\"
wait
";

fn hits<'a>(run: &'a Run, probe: &str) -> impl Iterator<Item = &'a Value> {
    let probe = probe.to_owned();
    run.output.iter().filter(move |line| line["type"] == "hit" && line["probe"] == probe.as_str())
}

#[test]
fn a_hit_belongs_to_the_task_that_the_guest_knows() {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let initrd = initrd_with([("script", 0o644, SCRIPT.into())]);
    let words = [
        format!("--kernel={}", kernel.display()),
        format!("--initrd={}", initrd.path().display()),
        "--cpus=2".to_owned(),
        "--probe=rest_init".to_owned(),
        "--probe=p __x64_sys_getppid cgroup=$cgroup".to_owned(),
        "--probe=hrtimer_interrupt".to_owned(),
        "--probe=tick_nohz_idle_enter".to_owned(),
        "--probe=run_timer_softirq".to_owned(),
        "--probe=rcu_core_si".to_owned(),
        "--cmdline=workload=sh:/script,pinned:20,idle:1 loglevel=5".to_owned(),
    ];
    let run = run(&binary, &words.each_ref().map(String::as_str));
    run.assert_success();
    run.assert_clean_log();

    let early = hits(&run, "rest_init").next().unwrap();
    assert_eq!((&early["task"]["pid"], &early["task"]["tgid"]), (&0.into(), &0.into()), "{early}");
    assert!(early["task"]["comm"].as_str().unwrap().starts_with("swapper"), "{early}");

    // Every CPU has an idle task of its own, which is number 0.
    let idle: BTreeSet<(u64, String)> = hits(&run, "tick_nohz_idle_enter")
        .map(|hit| {
            assert_eq!(hit["task"]["pid"], 0, "{hit}");
            (hit["vcpu"].as_u64().unwrap(), hit["task"]["comm"].as_str().unwrap().to_owned())
        })
        .collect();
    let expected = [(0, "swapper/0".to_owned()), (1, "swapper/1".to_owned())];
    assert_eq!(idle.into_iter().collect::<Vec<_>>(), expected);

    // Whom an interrupt meets is not whose work it is: that is marked.
    let interrupts: Vec<_> = hits(&run, "hrtimer_interrupt").collect();
    assert!(interrupts.len() > 10, "{}", interrupts.len());
    assert!(interrupts.iter().all(|hit| hit["task"]["context"] == "irq"), "{interrupts:?}");
    let soft: Vec<_> =
        ["run_timer_softirq", "rcu_core_si"].iter().flat_map(|probe| hits(&run, probe)).collect();
    assert!(!soft.is_empty());
    assert!(soft.iter().all(|hit| hit["task"]["context"] == "softirq"), "{soft:?}");

    let calls: Vec<&Value> =
        hits(&run, "__x64_sys_getppid").filter(|hit| hit["task"]["comm"] == "subject").collect();
    assert_eq!(calls.len(), 3, "{calls:?}");
    let (inside, outside): (Vec<&Value>, Vec<&Value>) =
        calls.iter().partition(|hit| hit["task"]["ns_pid"] != hit["task"]["pid"]);
    assert_eq!((inside.len(), outside.len()), (2, 1), "{calls:?}");
    assert!(inside.iter().all(|hit| hit["task"]["ns_pid"] == 1), "{inside:?}");
    let said = run.console.lines().find_map(|line| line.trim().strip_prefix("the subject is ")).unwrap();
    assert_eq!(outside[0]["task"]["pid"], said.parse::<u64>().unwrap());
    for hit in &calls {
        assert_eq!((&hit["task"]["uid"], &hit["fields"]["cgroup"]), (&0.into(), &"/".into()), "{hit}");
        assert_eq!(hit["task"]["context"], Value::Null, "{hit}");
    }
    println!("{} timer interrupts, {} soft ones", interrupts.len(), soft.len());
}
