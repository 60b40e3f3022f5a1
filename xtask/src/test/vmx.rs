//! `cargo xtask test --vmx`: breakpoints that KVM intercepts, on Intel's virtualization, inside Bochs.
//!
//! Neither the machine's own KVM nor the emulated host need have them, so everything else may pass without that
//! half of the trap path. One boot of the machine serves all checks.

use super::kernels::draw;
use super::programs::Programs;
use crate::bochs::{self, Contents, Entry, Outcome};
use crate::workload;
use anyhow::{Context as _, bail, ensure};
use guest_kernels::initramfs::ExtraFile;
use guest_kernels::{Cache, DEFAULT_KERNEL, Kernel, SINCE_7};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// How many instructions are tried both ways: every opcode of the emulated ones is among them.
const INSTRUCTIONS: u32 = 10_000;
/// A boot of a kernel.
struct Boot {
    name: &'static str,
    kernel: Kernel,
    /// Where its resolved probes are.
    target: &'static str,
    probes: &'static [&'static str],
    work: Work,
    optimize: &'static str,
    checks: fn(&Outcome) -> Vec<Check>,
}

/// What the guest does.
#[derive(Clone, Copy)]
enum Work {
    /// Steps of the workload, in its initramfs.
    Steps(&'static str),
    /// A command, on the machine's files.
    Command(&'static [&'static str]),
}

/// A function that the workload enters, and one that the kernel enters once while it boots.
const OPEN: &str = "do_sys_openat2";
const ONCE: &str = "rest_init";
/// Functions that it enters once, before it has breakpoints of its own.
const EARLY: [&str; 2] = ["start_kernel", "setup_arch"];
/// A tracepoint: calls of the workload's, told by their number.
const TRACEPOINT: &str = "raw_syscalls:sys_enter";
/// As users have it: detours.
const LINUX: Boot = Boot {
    name: "linux",
    kernel: DEFAULT_KERNEL,
    target: "guest/target",
    probes: &[OPEN, ONCE, EARLY[0], EARLY[1], "t raw_syscalls:sys_enter if id == 110"],
    work: Work::Steps("workload=open:20,getppid:20"),
    optimize: "--optimize=auto",
    checks: linux,
};

/// The same on the newest kernel.
const NEWEST: Boot = Boot { name: "newest", kernel: SINCE_7, target: "guest/newest", ..LINUX };

/// Traps, most of them in code that runs with interrupts off: the CPU refuses to enter a guest whose state its own instructions
/// cannot have led to.
const TRAPS: Boot = Boot {
    name: "traps",
    kernel: DEFAULT_KERNEL,
    target: "guest/traps",
    probes: &[
        "p:woken try_to_wake_up flags=%flags:x64 if !(flags & 0x200)",
        "p:queued enqueue_task_fair flags=%flags:x64 if !(flags & 0x200)",
        "p:dequeued dequeue_task_fair flags=%flags:x64 if !(flags & 0x200)",
        "r:wakes try_to_wake_up",
        "p:read vfs_read flags=%flags:x64 if flags & 0x200",
        "r:reads vfs_read",
    ],
    work: Work::Steps("workload=pipe:1200"),
    optimize: "--optimize=off",
    checks: |outcome| traps(outcome, 1),
};

/// A storm of such.
const STORM: Boot =
    Boot { work: Work::Steps("workload=pipe:6000"), checks: |outcome| traps(outcome, 5), ..TRAPS };

/// A command on the machine's files: PCI, virtio, and the server of files.
const COMMAND: Boot = Boot {
    name: "command",
    kernel: DEFAULT_KERNEL,
    target: "guest/command",
    probes: &[OPEN],
    work: Work::Command(&["/bin/busybox", "cat", "/guest/words"]),
    optimize: "--optimize=auto",
    checks: command,
};
/// What the command prints.
const WORDS: &str = "words of the machine's";

/// Those of CI.
const SOME: [&Boot; 2] = [&LINUX, &TRAPS];
const ALL: [&Boot; 4] = [&LINUX, &STORM, &COMMAND, &NEWEST];

/// What a check found.
type Check = (String, anyhow::Result<()>);

/// Runs all checks and some of the boots, as CI does.
///
/// # Errors
/// When one fails; what it printed has been shown.
pub(crate) fn run_some(vmm: &Path) -> anyhow::Result<()> {
    run(vmm, &SOME)
}

/// Runs all checks, and all boots of these kernels.
///
/// # Errors
/// When one fails; what it printed has been shown.
pub(crate) fn run_all(vmm: &Path, kernels: &[&Kernel]) -> anyhow::Result<()> {
    let boots: Vec<_> = ALL.into_iter().filter(|boot| kernels.contains(&&boot.kernel)).collect();
    run(vmm, &boots)
}

fn run(vmm: &Path, boots: &[&Boot]) -> anyhow::Result<()> {
    let cache = Cache::open()?;
    let initramfs = cache.initramfs()?;
    let programs = Programs::built_of(&["contract", "differential"])?;
    let drawn = draw(programs.draw()?, INSTRUCTIONS)?;
    let mut files = vec![
        bochs::file("bin/busybox", 0o755, Path::new("/bin/busybox"))?,
        ExtraFile { path: "guest/words".to_owned(), mode: 0o644, bytes: format!("{WORDS}\n").into() },
        bochs::file("bin/contract", 0o755, programs.get("contract")?)?,
        bochs::file("bin/differential", 0o755, programs.get("differential")?)?,
        bochs::file("guest/instructions", 0o644, drawn.path())?,
        bochs::file("guest/initramfs", 0o644, &initramfs)?,
    ];
    let resolved = tempfile::tempdir().context("no temporary folder")?;
    let mut unpacked = BTreeMap::new();
    for boot in boots {
        boot.resolve(vmm, &cache.kernel(&boot.kernel)?.image, &initramfs, resolved.path())?;
        files.push(bochs::file(boot.target, 0o644, &resolved.path().join("target"))?);
        // It is the same for all boots of a kernel.
        let kernel = boot.kernel_file();
        unpacked.insert(kernel.clone(), bochs::file(&kernel, 0o644, &resolved.path().join("kernel"))?);
    }
    files.extend(unpacked.into_values());
    let mut entries = vec![
        Entry::new("doctor", &["vmm", "doctor", "--host=kvm", "--json"]),
        // A second is ten million instructions here, of which samples at their tests' rates take more than all. They change nothing of a vCPU.
        // Bochs 2.7 leaves a debug exception pending where a stepped instruction leaves to the host, and the guest gets that later. Processors
        // do not (SDM 3C, "Saving Non-Register State"), and newer versions of Bochs neither.
        Entry::new(
            "contract",
            &["/bin/contract", "--test-threads=1", "--skip=samples::", "--skip=steps::a_step_over_a_port"],
        )
        .env("VMM_CONTRACT_REQUIRED", "1"),
        Entry::new("differential", &["/bin/differential", "--show-output"])
            .env("VMM_CONTRACT_REQUIRED", "1")
            .env("VMM_DIFF_CORPUS", "/guest/instructions"),
    ];
    entries.extend(boots.iter().map(|boot| boot.entry()));
    let outcomes = bochs::run(Contents { vmm, files, entries })?;
    let mut failed = 0;
    let mut passed = 0;
    for outcome in &outcomes {
        let checks = match outcome.name.as_str() {
            "doctor" => vec![("breakpoints_are_intercepted".to_owned(), intercepted(outcome))],
            "contract" => each_test(outcome),
            "differential" => {
                counts(outcome);
                each_test(outcome)
            }
            name => boots
                .iter()
                .find(|boot| boot.name == name)
                .map_or_else(Vec::new, |boot| (boot.checks)(outcome)),
        };
        let bad = checks.iter().filter(|(_, result)| result.is_err()).count();
        for (name, result) in checks.iter() {
            match result {
                Ok(()) => println!("test vmx::{}::{name} ... ok", outcome.name),
                Err(error) => println!("test vmx::{}::{name} ... FAILED: {error:#}", outcome.name),
            }
        }
        if bad > 0 {
            println!("---- vmx::{} printed ----\n{}\n----", outcome.name, outcome.output.join("\n"));
        }
        failed += bad;
        passed += checks.len() - bad;
    }
    println!("vmx: {passed} passed; {failed} failed");
    ensure!(failed == 0, "{failed} checks on VMX failed");
    Ok(())
}

impl Boot {
    /// Finds out what is to be probed, and unpacks the kernel, into a folder: there it would take a minute.
    fn resolve(&self, vmm: &Path, kernel: &Path, initramfs: &Path, folder: &Path) -> anyhow::Result<()> {
        let mut resolve = Command::new(vmm);
        resolve.args(["run", self.optimize, "--kernel"]).arg(kernel);
        resolve.args(self.probes.iter().map(|probe| format!("--probe={probe}")));
        resolve.arg("--write-target").arg(folder);
        match self.work {
            Work::Steps(_) => resolve.arg("--initrd").arg(initramfs),
            Work::Command(words) => resolve.arg("--").args(words),
        };
        let status = resolve.status().context("cannot run vmm")?;
        ensure!(status.success(), "vmm did not resolve the probes");
        Ok(())
    }

    /// Where its kernel is, unpacked.
    fn kernel_file(&self) -> String {
        format!("guest/kernel-{}", self.kernel)
    }

    fn entry(&self) -> Entry {
        let (kernel, target) =
            (format!("--kernel=/{}", self.kernel_file()), format!("--target=/{}", self.target));
        let mut words = vec!["vmm", "run", "--host=kvm", &kernel, &target, self.optimize];
        words.extend(["--memory=256M", "--output=/dev/null"]);
        match self.work {
            Work::Steps(steps) => words.extend(["--initrd=/guest/initramfs", "--cmdline", steps]),
            Work::Command(command) => words.extend([&["--"], command].concat()),
        }
        Entry::new(self.name, &words)
    }
}

fn ended_well(outcome: &Outcome) -> anyhow::Result<()> {
    ensure!(outcome.exit == "0", "it ended with {}", outcome.exit);
    Ok(())
}

fn intercepted(outcome: &Outcome) -> anyhow::Result<()> {
    ended_well(outcome)?;
    let report = outcome.output.iter().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let report = report.context("no report")?;
    let delivery = report.pointer("/hosts/0/delivery").context("no delivery in the report")?;
    ensure!(delivery == "intercepted", "they are {delivery}");
    Ok(())
}

/// Shows what the differential test has counted.
fn counts(outcome: &Outcome) {
    outcome
        .output
        .iter()
        .filter(|line| line.starts_with("differential:"))
        .for_each(|line| println!("{line}"));
}

/// A check for each test of the program, and one for its end.
fn each_test(outcome: &Outcome) -> Vec<Check> {
    let tests = outcome.output.iter().filter_map(|line| {
        let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        Some((name.to_owned(), if result == "ok" { Ok(()) } else { Err(anyhow::anyhow!("{result}")) }))
    });
    let mut checks: Vec<Check> = tests.collect();
    let some = if checks.is_empty() { Err(anyhow::anyhow!("no test was run")) } else { Ok(()) };
    checks.push(("all".to_owned(), ended_well(outcome).and(some)));
    checks
}

fn linux(outcome: &Outcome) -> Vec<Check> {
    let opens = || {
        let calls = workload::done(&outcome.output, "openat");
        let calls = calls.context("the workload did not say how often it opened a file")?;
        ensure!(calls >= 20, "the workload opened {calls} files");
        counted(outcome, OPEN, calls)
    };
    let events = || {
        let calls =
            workload::done(&outcome.output, "getppid").context("the workload did not count getppid")?;
        ensure!(calls >= 20, "the workload called getppid {calls} times");
        counted(outcome, TRACEPOINT, calls)
    };
    vec![
        ("ends_in_order".to_owned(), ended_well(outcome)),
        ("each_open_is_a_hit".to_owned(), opens()),
        ("each_event_of_a_tracepoint_is_a_hit".to_owned(), events()),
        ("a_function_of_the_boot_is_hit_once".to_owned(), counted(outcome, ONCE, 1)),
        (
            "what_runs_before_breakpoints_is_hit_once".to_owned(),
            EARLY.iter().try_for_each(|probe| counted(outcome, probe, 1)),
        ),
    ]
}

/// Hits with interrupts off, and others beside them, of `times` as many messages as are least.
fn traps(outcome: &Outcome, times: u64) -> Vec<Check> {
    const OFF: [&str; 3] = ["try_to_wake_up", "enqueue_task_fair", "dequeue_task_fair"];
    // How often anybody sleeps who is to be woken depends on the pace of the host: somewhat more often than there are messages.
    const ON: [(&str, u64); 3] =
        [("try_to_wake_up%return", 1_000), ("vfs_read", 1_600), ("vfs_read%return", 1_600)];
    let at_least = |probes: &[&str], least: u64| {
        let hits = probes.iter().map(|probe| hits(outcome, probe)).sum::<anyhow::Result<u64>>()?;
        ensure!(hits >= least * times, "{hits} hits of {probes:?}");
        println!("vmx::traps: {hits} hits of {}", probes.join(", "));
        Ok(())
    };
    vec![
        ("end_in_order".to_owned(), ended_well(outcome)),
        ("hit_with_interrupts_off".to_owned(), at_least(&OFF, 4_000)),
        (
            "hit_with_interrupts_on".to_owned(),
            ON.iter().try_for_each(|(probe, least)| at_least(&[probe], *least)),
        ),
    ]
}

/// What a command printed, and its own opens apart from those of others.
fn command(outcome: &Outcome) -> Vec<Check> {
    let said = || {
        ensure!(outcome.output.iter().any(|line| line == WORDS), "the command printed nothing");
        Ok(())
    };
    let opens = || {
        let row = outcome.output.iter().find(|line| line.split(' ').next() == Some(OPEN));
        let row = row.with_context(|| format!("{OPEN} is not in the table"))?;
        let [hits, outside, missed] = *row.split_whitespace().skip(2).take(3).collect::<Vec<_>>() else {
            bail!("its row has no counts: {row}");
        };
        ensure!(hits == "1" && outside != "0" && missed == "0", "{row}");
        Ok(())
    };
    vec![
        ("ends_in_order".to_owned(), ended_well(outcome)),
        ("prints_a_file_of_the_machines".to_owned(), said()),
        ("its_own_open_is_the_only_hit".to_owned(), opens()),
    ]
}

/// That the table at the end counts `calls` hits of `probe` and no missed one.
fn counted(outcome: &Outcome, probe: &str, calls: u64) -> anyhow::Result<()> {
    let hits = hits(outcome, probe)?;
    ensure!(hits == calls, "{calls} calls, {hits} hits");
    Ok(())
}

/// The hits of `probe` by the table at the end, of which none may be missed.
fn hits(outcome: &Outcome, probe: &str) -> anyhow::Result<u64> {
    let row = outcome.output.iter().find(|line| line.split(' ').next() == Some(probe));
    let row = row.with_context(|| format!("{probe} is not in the table"))?;
    match row.split_whitespace().collect::<Vec<_>>().as_slice() {
        [_, _, hits, "0", ..] => hits.parse().with_context(|| format!("no number: {row}")),
        [_, _, hits, missed, ..] => bail!("{probe}: {hits} hits, {missed} missed"),
        _ => bail!("its row has no counts: {row}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(exit: &str, output: &str) -> Outcome {
        Outcome {
            exit: exit.to_owned(),
            output: output.lines().map(str::to_owned).collect(),
            ..Outcome::default()
        }
    }

    #[test]
    fn the_table_must_agree_with_the_workload() {
        let text = "workload: done openat=22 getppid=20\n\
                    probe           address                   hits  missed\n\
                    raw_syscalls:sys_enter 0xffffffffba842062   20       0\n\
                    do_sys_openat2  0xffffffffba842060          22       0\n\
                    rest_init       0xffffffffbb096980           1       0\n\
                    start_kernel    0xffffffffbc096980           1       0\n\
                    setup_arch      0xffffffffbc086980           1       0\n";
        assert!(linux(&outcome("0", text)).iter().all(|(_, result)| result.is_ok()));
        for (right, wrong) in [
            ("openat=22", "openat=23"),
            ("getppid=20", "getppid=21"),
            ("bb096980           1 ", "bb096980           2 "),
            ("bc086980           1 ", "bc086980           0 "),
            ("22       0", "22       1"),
        ] {
            let checks = linux(&outcome("0", &text.replace(right, wrong)));
            assert_eq!(checks.iter().filter(|(_, result)| result.is_err()).count(), 1, "{wrong}");
        }
        assert!(linux(&outcome("1", text))[0].1.is_err());
    }

    #[test]
    fn a_storm_must_be_one_and_lose_nothing() {
        let rows = [
            ("try_to_wake_up", "8000"),
            ("enqueue_task_fair", "9000"),
            ("dequeue_task_fair", "9000"),
            ("try_to_wake_up%return", "8000"),
            ("vfs_read", "8000"),
            ("vfs_read%return", "8000"),
        ];
        let table = rows.map(|(name, hits)| format!("{name} 0xffffffffba842060 {hits} 0\n")).concat();
        let failed =
            |exit, text: &str| traps(&outcome(exit, text), 5).iter().filter(|(_, r)| r.is_err()).count();
        assert_eq!(failed("0", &table), 0);
        assert_eq!(failed("2", &table), 1);
        assert_eq!(failed("0", &table.replace("9000 0", "5999 0")), 1);
        assert_eq!(
            failed("0", &table.replace("vfs_read 0xffffffffba842060 8000 0", "vfs_read 0x1 8000 1")),
            1
        );
        assert_eq!(failed("0", ""), 2);
    }

    #[test]
    fn a_command_must_print_its_file_and_be_told_from_others() {
        let text = format!(
            "{WORDS}\nprobe           address   hits  outside  missed\n{OPEN} 0x1 1 9 0  [OPTIMIZED]\n"
        );
        let failed =
            |exit, text: &str| command(&outcome(exit, text)).iter().filter(|(_, r)| r.is_err()).count();
        assert_eq!(failed("0", &text), 0);
        assert_eq!(failed("125", &text), 1);
        for (right, wrong) in [("1 9 0", "10 0 0"), ("1 9 0", "1 9 1"), (WORDS, "words")] {
            assert_eq!(failed("0", &text.replace(right, wrong)), 1, "{wrong}");
        }
    }

    #[test]
    fn tests_that_fail_or_were_not_run_are_seen() {
        let failed = |exit, text| each_test(&outcome(exit, text)).iter().filter(|(_, r)| r.is_err()).count();
        assert_eq!(failed("0", "test hits::a ... ok\ntest hits::b ... ok"), 0);
        assert_eq!(failed("101", "test hits::a ... ok\ntest hits::b ... FAILED"), 2);
        assert_eq!(failed("0", ""), 1);
        assert_eq!(failed("timeout", "test hits::a ... ok"), 1);
    }

    #[test]
    fn only_intercepted_breakpoints_will_do() {
        assert!(intercepted(&outcome("0", "noise\n{\"hosts\":[{\"delivery\":\"intercepted\"}]}")).is_ok());
        assert!(intercepted(&outcome("0", "{\"hosts\":[{\"delivery\":\"reflected\"}]}")).is_err());
        assert!(intercepted(&outcome("0", "")).is_err());
    }
}
