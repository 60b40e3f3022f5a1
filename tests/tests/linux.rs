//! Unmodified Debian kernels with probes in them, run as a user runs them: on this machine's KVM where that can,
//! in the emulated host otherwise.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::insn::decode::instructions;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::symbols::Symbol;
use probe_engine::probe::place::in_kernel;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use tests::product::{Ended, Run, binary, command, initrd_with, kernel, run, run_in_vain};

/// Words that choose `kernel`.
fn kernel_words(kernel: &Path) -> [&str; 2] {
    ["--kernel", kernel.to_str().unwrap()]
}

/// The main job: hits of `do_sys_openat2` are as many as the workload's calls, whatever the number of CPUs, and wherever KASLR has put it.
fn counts_opens(cpus: &str, cmdline: &str) {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let mut words = kernel_words(kernel).to_vec();
    let cmdline = format!("workload=open:50,walk:5,fork:3 loglevel=5 {cmdline}");
    words.extend(["--cpus", cpus, "--probe=do_sys_openat2", "--probe=rest_init", "--probe=kernel_init"]);
    words.extend(["--probe=vfs_caches_init", "--cmdline", &cmdline]);
    let run = run(&binary, &words);
    run.assert_success();
    assert_eq!(run.hits("do_sys_openat2"), run.workload("done", "openat"));
    assert!(run.workload("done", "openat") >= 55);
    assert_eq!(run.hits("rest_init"), 1, "a probe early in boot");
    assert_eq!(run.hits("kernel_init"), 1);
    assert_eq!(run.hits("vfs_caches_init"), 1, "a probe in init text");
    assert_eq!(run.probe("vfs_caches_init")["state"], "[GONE]");
    assert_eq!(run.probe("do_sys_openat2")["state"], "[OPTIMIZED]");
    run.assert_clean_log();
}

macro_rules! counts_opens {
    ($($name:ident: $cpus:literal, $cmdline:literal;)*) => {
        $(#[test]
        fn $name() {
            counts_opens($cpus, $cmdline);
        })*
    };
}

counts_opens! {
    opens_1_cpu_kaslr: "1", "";
    opens_2_cpus_kaslr: "2", "";
    opens_1_cpu_nokaslr: "1", "nokaslr";
    opens_2_cpus_nokaslr: "2", "nokaslr";
}

/// Under page table isolation user mode has page tables without the kernel: what a probe is armed, read and emulated
/// by are the kernel's own.
#[test]
fn page_table_isolation_loses_no_hit() {
    let Some(binary) = binary() else { return };
    let cmdline = "--cmdline=workload=open:50,walk:5,fork:3 loglevel=7 pti=on";
    let run = run(&binary, &["--cpus=2", "--probe=do_sys_openat2", "--probe=do_sys_openat2%return", cmdline]);
    run.assert_success();
    assert!(run.console.contains("Kernel/User page tables isolation: enabled"), "{}", run.console);
    let opened = run.workload("done", "openat");
    assert!(opened >= 55);
    assert_eq!([run.hits("do_sys_openat2"), run.returns("do_sys_openat2")], [opened; 2]);
    run.assert_clean_log();
}

/// Probes are found behind the decompressor, wherever that puts the kernel: the guest's own symbols say the same.
#[test]
fn a_probe_stands_where_the_guest_says_that_its_function_is() {
    const SCRIPT: &str = "grep -w do_sys_openat2 /proc/kallsyms\n";
    let Some(binary) = binary() else { return };
    let initrd = initrd_with([("script", 0o644, SCRIPT.into())]);
    let initrd = initrd.path().to_str().unwrap();
    let run = run(&binary, &["--initrd", initrd, "--probe=do_sys_openat2", "--cmdline=workload=sh:/script"]);
    run.assert_success();
    let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let theirs = run.console.lines().find_map(|line| line.trim().strip_suffix(" do_sys_openat2"));
    let theirs = address(theirs.unwrap().split(' ').next().unwrap());
    let ours = address(run.probe("do_sys_openat2")["address"].as_str().unwrap().trim_start_matches("0x"));
    // Behind an `endbr64`, where there is one.
    assert!([theirs, theirs + 4].contains(&ours), "{ours:#x} {theirs:#x}");
    assert!(run.hits("do_sys_openat2") > 0);
}

/// A pattern arms every match that can be probed, and the guest does not notice.
#[test]
fn pattern() {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let mut words = kernel_words(kernel).to_vec();
    words.extend(["--cpus=2", "--probe=vfs_*"]);
    words.extend(["--cmdline", "workload=open:20,fork:5,pipe:50,walk:10,signal:20,pinned:100 loglevel=5"]);
    let run = run(&binary, &words);
    run.assert_success();
    run.assert_clean_log();
    for (step, key) in [("open", "calls"), ("pipe", "read"), ("walk", "mkdir"), ("signal", "handled")] {
        assert!(run.workload(step, key) > 0);
    }
    let probes: Vec<_> = run.output.iter().filter(|o| o["type"] == "probe").collect();
    assert!(probes.len() > 60, "{} probes", probes.len());
    for probe in &probes {
        let state = probe["state"].as_str().unwrap();
        assert!(["armed", "[OPTIMIZED]", "[GONE]"].contains(&state), "{probe}");
        assert_eq!(probe["missed"], 0, "{probe}");
    }
    assert!(run.hits("vfs_read") >= run.workload("pipe", "read"));
    // The kernel makes directories of its own while it boots, and removes none.
    assert!(run.hits("vfs_mkdir") > run.workload("walk", "mkdir"));
    assert_eq!(run.hits("vfs_rmdir"), run.workload("walk", "rmdir"));
}

/// Two CPUs at once call the probed function so many times each, and wait for whoever reads.
fn two_cpus_hammer_one_probe(optimize: &str) {
    let Some(binary) = binary() else { return };
    let optimize = format!("--optimize={optimize}");
    const CALLS: u64 = 25_000;
    let cmdline = format!("--cmdline=workload=pinned:{CALLS} loglevel=5");
    let run = run(&binary, &["--cpus=2", &optimize, "--probe=__x64_sys_getppid", &cmdline]);
    run.assert_success();
    run.assert_clean_log();
    assert_eq!(run.workload("pinned", "cpus"), 2);
    assert_eq!(run.workload("pinned", "calls"), 2 * CALLS);
    let summary = run.probe("__x64_sys_getppid");
    let count = |key: &str| summary[key].as_u64().unwrap();
    assert_eq!((count("hits"), count("missed")), (run.workload("done", "getppid"), 0), "{summary}");
    let of = |cpu| run.output.iter().filter(|o| o["type"] == "hit" && o["vcpu"] == cpu).count() as u64;
    let [first, second] = [0, 1].map(of);
    assert_eq!(first + second, count("hits"), "the summary and its lines");
    assert!(first >= CALLS && second >= CALLS, "{first} {second} {summary}");
}

#[test]
fn two_cpus_hammering_one_trap_lose_no_hit() {
    two_cpus_hammer_one_probe("off");
}

#[test]
fn two_cpus_hammering_one_detour_lose_no_hit() {
    two_cpus_hammer_one_probe("require");
}

#[test]
fn several_probes_share_a_site_and_offsets_are_passed_by_emulation() {
    let Some(binary) = binary() else { return };
    // At +0 there is ftrace's nop, at +5 the first instruction of the function's own.
    let words = [
        "--probe=do_sys_openat2",
        "--probe=do_sys_openat2",
        "--probe=do_sys_openat2+0x5",
        "--cmdline=workload=open:30",
    ];
    let run = run(&binary, &words);
    run.assert_success();
    let probes = run.output.iter().filter(|o| o["type"] == "probe");
    let hits: Vec<u64> = probes.map(|o| o["hits"].as_u64().unwrap()).collect();
    assert_eq!(hits, [run.workload("done", "openat"); 3]);
}

/// A script writes a variable, a CPU that starts later writes another one, and a function is entered: who, and what the
/// values were.
#[test]
fn watches() {
    const SCRIPT: &str = "\
for value in 1 1 0; do echo $value > /proc/sys/kernel/panic_on_oops; done
exit 5
";
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let initrd = initrd_with([("script", 0o644, SCRIPT.into())]);
    let mut words = kernel_words(kernel).to_vec();
    words.extend(["--initrd", initrd.path().to_str().unwrap(), "--cpus=2", "--probe=proc_dointvec"]);
    let [variable, online, entry] = ["panic_on_oops:4:w", "__cpu_online_mask:8:w", "kernel_init:1:x"];
    words.extend(["--watch", variable, "--watch", online, "--watch", entry]);
    words.push("--cmdline=workload=sh:/script loglevel=5");
    let run = run(&binary, &words);
    run.assert_success();
    run.assert_clean_log();
    assert!(run.console.contains("workload: sh path=/script status=5"), "{}", run.console);
    let accesses = |watch: &str| -> Vec<(String, String, u64)> {
        let of = run.output.iter().filter(|o| o["type"] == "access" && o["probe"] == watch);
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        of.map(|o| (text(&o["old"]), text(&o["new"]), o["vcpu"].as_u64().unwrap())).collect()
    };
    let written = accesses(variable);
    let values: Vec<_> = written.iter().map(|(old, new, _)| (old.as_str(), new.as_str())).collect();
    assert_eq!(values, [("0x0", "0x1"), ("0x1", "0x1"), ("0x1", "0x0")], "{}", run.said);
    let second = ("0x1".to_owned(), "0x3".to_owned(), 1);
    assert!(accesses(online).contains(&second), "the second CPU starts: {:?}", accesses(online));
    assert_eq!(run.hits(entry), 1);
    assert!(run.hits("proc_dointvec") >= 3);
    for watch in [variable, online, entry] {
        let summary = run.probe(watch);
        assert_eq!((&summary["kind"], &summary["state"]), (&"w".into(), &"armed".into()), "{summary}");
        assert_eq!(summary["missed"], 0, "{summary}");
    }
    assert_eq!(run.probe(variable)["hits"], 3);
}

#[test]
fn a_large_guest_uses_the_memory_above_four_gib() {
    let Some(binary) = binary() else { return };
    let run =
        run(&binary, &["--memory=5G", "--probe=do_sys_openat2", "--cmdline=workload=open:5 loglevel=7"]);
    run.assert_success();
    assert_eq!(run.hits("do_sys_openat2"), run.workload("done", "openat"));
    let mut lines =
        run.console.lines().filter(|line| line.contains("[mem 0x0000000100000000-0x000000017fffffff]"));
    // Newer kernels say `System RAM`.
    let is_ram = |line: &str| line.ends_with("usable") || line.ends_with("System RAM");
    assert!(lines.any(is_ram), "{}", run.console);
}

#[test]
fn four_cpus_start() {
    let Some(binary) = binary() else { return };
    let run = run(&binary, &["--cpus=4", "--probe=__x64_sys_getppid", "--cmdline=workload=pinned:500"]);
    run.assert_success();
    assert_eq!(run.workload("pinned", "cpus"), 4);
    assert_eq!(run.hits("__x64_sys_getppid"), 2000);
}

/// The symbols of `kernel`, a line each as in `/proc/kallsyms`.
fn symbol_lines(kernel: &Kernel) -> Vec<String> {
    let line = |symbol: Symbol<'_>| format!("{:016x} {} {}", symbol.at.0, symbol.kind, symbol.name);
    kernel.symbols().iter().map(line).collect()
}

/// The guest lists the same symbols as are read from its kernel's file.
#[test]
fn the_symbols_of_a_kernels_file_are_those_that_the_guest_lists() {
    const SCRIPT: &str = "\
grep -v ']$' /proc/kallsyms > /theirs
if cmp -s /ours /theirs; then
    echo symbols: $(wc -l < /theirs) equal
else
    diff /ours /theirs | head -20 | sed 's/^/symbols: /'
fi
";
    let Some(binary) = binary() else { return };
    let ours = symbol_lines(&Kernel::read(&fs::read(kernel()).unwrap(), None).unwrap());
    let text: String = ours.iter().map(|line| format!("{line}\n")).collect();
    let initrd = initrd_with([("script", 0o644, SCRIPT.into()), ("ours", 0o644, text.into())]);
    let initrd = initrd.path().to_str().unwrap();
    let run = run(&binary, &["--initrd", initrd, "--cmdline=workload=sh:/script nokaslr"]);
    run.assert_success();
    let said: Vec<_> = run.console.lines().filter_map(|line| line.trim().strip_prefix("symbols: ")).collect();
    assert_eq!(said, [format!("{} equal", ours.len())]);
}

/// A kernel whose own symbols cannot be read, without KASLR, as an ELF file has none.
#[test]
fn a_system_map_stands_in_for_a_kernels_own_symbols() {
    /// By these tokens the kernel's own tables are found.
    const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
    let Some(binary) = binary() else { return };
    let kernel = Kernel::read(&fs::read(kernel()).unwrap(), None).unwrap();
    // Nor has it relocations.
    let end = kernel.image().file().len() - kernel.image().trailer().len();
    let mut file = kernel.image().file()[..end].to_vec();
    while let Some(at) = file.windows(DIGITS.len()).position(|window| window == DIGITS) {
        file[at..at + DIGITS.len()].fill(0);
    }
    let temporary = tempfile::tempdir().unwrap();
    let vmlinux = temporary.path().join("vmlinux");
    fs::write(&vmlinux, file).unwrap();
    let map = temporary.path().join("System.map");
    // Debian's packages have a System.map without symbols. Of per-CPU variables kallsyms says that they are absolute,
    // and System.map that they are data.
    let lines = symbol_lines(&kernel).into_iter().map(|line| line.replace(" A ", " D ") + "\n");
    fs::write(&map, lines.collect::<String>()).unwrap();
    let mut words = kernel_words(&vmlinux).to_vec();
    words.extend(["--probe=do_sys_openat2", "--probe=vfs_caches_init", "--cmdline=workload=open:5"]);
    let alone = run_in_vain(&binary, &words);
    assert!(alone.said.contains("give them with --symbols"), "{}", alone.said);

    words.extend(["--symbols", map.to_str().unwrap()]);
    let run = run(&binary, &words);
    run.assert_success();
    assert_eq!(run.hits("do_sys_openat2"), run.workload("done", "openat"));
    assert_eq!(run.hits("vfs_caches_init"), 1);
    let hits = run.output.iter().filter(|o| o["type"] == "hit" && o["probe"] == "do_sys_openat2");
    assert!(hits.clone().all(|hit| hit["task"]["comm"] == "init"), "{:?}", hits.collect::<Vec<_>>());
    assert_eq!(run.probe("do_sys_openat2")["state"], "[OPTIMIZED]", "a detour finds the task");
    let linked = kernel.symbol("do_sys_openat2").unwrap();
    let at = run.probe("do_sys_openat2")["address"].as_str().unwrap().to_owned();
    let at = u64::from_str_radix(at.trim_start_matches("0x"), 16).unwrap();
    assert!((linked.0..=linked.0 + 4).contains(&at), "an ELF kernel runs where it was linked: {at:#x}");
}

/// Symbols from the ELF file of the same kernel, at addresses that KASLR moves; that of another kernel is refused.
#[test]
fn a_vmlinux_stands_in_for_a_kernels_own_symbols() {
    let Some(binary) = binary() else { return };
    let kernel = Kernel::read(&fs::read(kernel()).unwrap(), None).unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let vmlinux = temporary.path().join("vmlinux");
    fs::write(&vmlinux, kernel.image().file()).unwrap();
    let words =
        ["--probe=do_sys_openat2", "--symbols", vmlinux.to_str().unwrap(), "--cmdline=workload=open:5"];
    let run = run(&binary, &words);
    run.assert_success();
    assert_eq!(run.hits("do_sys_openat2"), run.workload("done", "openat"));

    let map = temporary.path().join("System.map");
    let text = format!("{:x} T _text\n{:x} T _sinittext\n", kernel.image().text_start().0, 0x1000);
    fs::write(&map, text).unwrap();
    let refused = run_in_vain(&binary, &["--probe=do_sys_openat2", "--symbols", map.to_str().unwrap()]);
    assert!(refused.said.contains("it is of another kernel: it has _sinittext at"), "{}", refused.said);
    assert!(!refused.said.contains("give them with"), "that was done: {}", refused.said);
}

#[test]
fn a_guest_that_panics_has_died() {
    let Some(binary) = binary() else { return };
    let run = run(&binary, &["--probe=do_sys_openat2", "--cmdline=workload=open:3,panic"]);
    assert_eq!(run.code, 123, "{}", run.said);
    assert!(run.said.contains("the guest panicked: sysrq triggered crash"), "{}", run.said);
    assert!(run.said.contains("rip "), "the last registers: {}", run.said);
    assert_eq!(run.hits("do_sys_openat2"), run.workload("done", "openat"), "hits before it are kept");
}

#[test]
fn a_triple_fault_has_its_own_words() {
    let Some(binary) = binary() else { return };
    let run = run(&binary, &["--cmdline=workload=reboot reboot=t"]);
    assert_eq!(run.code, 123, "{}", run.said);
    assert!(run.said.contains("triple fault"), "{}", run.said);
}

#[test]
fn a_reset_is_a_clean_end() {
    let Some(binary) = binary() else { return };
    let run = run(&binary, &["--cmdline=workload=open:1,reboot"]);
    run.assert_success();
    assert_eq!(run.output.last().unwrap()["end"], "reset");
}

#[test]
fn a_signal_ends_the_run_and_what_was_seen_is_kept() {
    let Some(binary) = binary() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let words = ["run", "--probe=do_sys_openat2", "--cmdline=workload=open:7,idle:600"];
    let mut child = command(&binary, temporary.path(), &words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut console = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(console.any(|line| line.unwrap().contains("workload: open calls=7")), "it never came to idle");
    let id = i32::try_from(child.id()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), rustix::process::Signal::TERM)
        .unwrap();
    let output = child.wait_with_output().ended();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(143), "{said}");
    let hits = said.lines().filter(|line| line.contains(" do_sys_openat2(dfd=")).count();
    assert!(hits >= 7, "{said}");
    let row = said.lines().find(|line| line.starts_with("do_sys_openat2 ")).unwrap_or_default();
    assert_eq!(row.split_whitespace().nth(2), Some(hits.to_string().as_str()), "{said}");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

/// The interrupt controller is no memory: only the guest's own CPU can access it.
#[test]
fn an_instruction_that_accesses_a_device_runs_from_a_copy() {
    // An interrupt that is to move is masked while it does, at the next one.
    const SCRIPT: &str = "for n in 1 2 3; do echo 1 > /proc/irq/4/smp_affinity; echo $n; done\n";
    let Some(binary) = binary() else { return };
    let image = kernel();
    let kernel = Kernel::read(&fs::read(image).unwrap(), None).unwrap();
    let function = kernel.function(kernel.symbol("unmask_ioapic_irq").unwrap()).unwrap();
    let text = kernel.image().bytes(&function).unwrap();
    let mut body: Vec<_> = instructions(text, function.start).collect();
    // It ends in a tail call; behind that is padding.
    body.truncate(body.iter().position(|i| i.is_jmp_short_or_near()).unwrap() + 1);
    let offsets = body.iter().skip(1).map(|i| i.ip() - function.start.0);
    let places = offsets.filter(|offset| in_kernel(function.start.add(*offset), &kernel).is_ok());
    let probes: Vec<String> = places.map(|offset| format!("--probe=unmask_ioapic_irq+{offset:#x}")).collect();
    assert!(probes.len() > 20, "{probes:?}");
    let mut words: Vec<&str> = probes.iter().map(String::as_str).collect();
    let initrd = initrd_with([("script", 0o644, SCRIPT.into())]);
    words.extend(["--initrd", initrd.path().to_str().unwrap()]);
    words.extend(["--probe=unmask_ioapic_irq", "--cmdline=workload=sh:/script,open:5 loglevel=5"]);
    let run = run(&binary, &words);
    run.assert_success();
    run.assert_clean_log();
    // `mov [rax], edi; mov [rax+0x10], esi` are behind one branch that is not taken.
    let hits = run.hits("unmask_ioapic_irq");
    assert!(hits > 1);
    let all = run.output.iter().filter(|o| o["type"] == "probe" && o["hits"].as_u64() >= Some(hits));
    assert_eq!(all.count(), probes.len() + 1, "every instruction, as often as the function");
    assert_eq!(run.workload("open", "calls"), 5);
}

/// Every function that ftrace knows, counted by detours: what a system call runs through is counted exactly, and the guest
/// does not notice.
#[test]
fn every_function_is_counted_at_once() {
    const CALLS: u64 = 200;
    let Some(binary) = binary() else { return };
    let count = |calls: u64| {
        let steps = format!("--cmdline=workload=open:{calls},getppid:{calls} loglevel=5");
        let run = run(&binary, &["--count=*", &steps]);
        run.assert_success();
        run.assert_clean_log();
        run
    };
    let (once, twice) = (count(CALLS), count(2 * CALLS));
    let optimized = once.output.iter().filter(|line| line["state"] == "[OPTIMIZED]").count();
    let called = once.output.iter().filter(|line| line["type"] == "probe" && line["hits"] != 0).count();
    println!("{optimized} functions are counted by detours, {called} are called");
    assert!(optimized > 40_000 && called > 4_000);
    // A file is read until nothing comes any more.
    let functions = [
        ("__do_sys_getppid", 1),
        ("__x64_sys_openat", 1),
        ("do_sys_openat2", 1),
        ("__x64_sys_read", 2),
        ("__x64_sys_close", 1),
    ];
    for (function, each) in functions {
        let calls = |run: &Run| {
            let is_it = |line: &&serde_json::Value| line["type"] == "probe" && line["probe"] == function;
            run.output.iter().find(is_it).unwrap()["hits"].as_u64().unwrap()
        };
        let (once, twice) = (calls(&once), calls(&twice));
        assert_eq!(twice - once, each * CALLS, "{function}: {once}, {twice}");
    }
}
