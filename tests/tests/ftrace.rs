//! The guest's own tracers on functions that are probed: they get their text, say nothing, and see what we see.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::insn::decode::decode;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::{Behind, SiteInfo, in_kernel};
use serde_json::Value;
use std::fs;
use tests::kernel::{KPROBES, name_of};
use tests::product::{Run, binary, initrd_with, kernel, run};

/// A guest's kernel, and what is known about it from its file.
struct Guest {
    image: String,
    kernel: Kernel,
}

impl Guest {
    fn new() -> Self {
        let image = kernel();
        let kernel = Kernel::read(&fs::read(image).unwrap(), None).unwrap();
        Self { image: image.to_str().unwrap().to_owned(), kernel }
    }

    /// The first `count` offsets in `function` where a probe can stand and is hit in every call, behind the place
    /// that a probe of the function's entry makes room for: these never move.
    fn inner(&self, function: &str, count: usize) -> Vec<u64> {
        let start = self.kernel.symbol(function).unwrap();
        let is_free = |info: &SiteInfo| matches!(info.ftrace, Some(Behind::Free { fixup: false, .. }));
        assert!(in_kernel(start, &self.kernel).as_ref().is_ok_and(is_free), "{function}");
        let mut at = start;
        let mut found = Vec::new();
        // The first is where the probe of the entry may be.
        while found.len() <= count {
            let instruction = decode(self.kernel.image().bytes_from(at).unwrap(), at).unwrap();
            let is_branch = instruction.is_jcc_short_or_near() || instruction.is_jmp_short_or_near();
            assert!(!is_branch, "{function} branches too early");
            if at > start && in_kernel(at, &self.kernel).is_ok_and(|info| info.ftrace.is_none()) {
                found.push(at.offset_from(start).unwrap());
            }
            at = at.add(instruction.len() as u64);
        }
        found.split_off(1)
    }

    /// Runs `steps` in a guest with these scripts and two CPUs. All probes are armed at some time.
    fn run<const N: usize>(&self, steps: &str, scripts: [(&str, &str); N], words: &[String]) -> Option<Run> {
        let run = self.end(steps, scripts, words)?;
        run.assert_success();
        Some(run)
    }

    /// The same, whatever becomes of the probes.
    fn end<const N: usize>(&self, steps: &str, scripts: [(&str, &str); N], words: &[String]) -> Option<Run> {
        let binary = binary()?;
        let initrd = initrd_with(scripts.map(|(path, script)| (path, 0o644, script.into())));
        // On a busy machine one driver's own tests take longer than the kernel gives a CPU by default.
        let patient = "watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=300";
        let cmdline = format!("workload={steps} loglevel=5 {patient}");
        let mut all = vec!["--kernel", &self.image, "--initrd", initrd.path().to_str().unwrap()];
        all.extend(["--cpus=2", "--cmdline", &cmdline]);
        all.extend(words.iter().map(String::as_str));
        let run = run(&binary, &all);
        for (path, _) in scripts {
            assert_eq!(run.workload(&format!("sh path=/{path}"), "status"), 0, "{}", run.console);
        }
        run.assert_clean_log();
        Some(run)
    }
}

/// `function`, its returns, and a place inside, as words of the command line.
fn thrice(guest: &Guest, functions: &[&str]) -> Vec<String> {
    let all = functions.iter().map(|function| {
        let inner = guest.inner(function, 1)[0];
        [function.to_string(), format!("{function}%return"), format!("{function}+{inner:#x}")]
    });
    all.flatten().map(|probe| format!("--probe={probe}")).collect()
}

/// Calls of `function`: its entry, its return and the place inside have seen the same number.
fn calls(guest: &Guest, run: &Run, function: &str) -> u64 {
    let inside = run.hits(&format!("{function}+{:#x}", guest.inner(function, 1)[0]));
    assert_eq!((run.hits(function), run.returns(function)), (inside, inside), "{function}: entry and return");
    inside
}

const KPROBES_OFF: &str = "\
set -e
cd /sys/kernel/tracing
echo 0 > events/kprobes/enable
while read name hits misses; do echo \"kprobe $name hits=$hits misses=$misses\"; done < kprobe_profile
echo > kprobe_events
";
/// Also on functions where traps of our own stand: return probes follow tasks to `__put_task_struct`.
const SOME: &str = "\
set -e
cd /sys/kernel/tracing
echo do_sys_openat2 vfs_rmdir vfs_read __put_task_struct do_init_module > set_ftrace_filter
echo function > current_tracer
";
const GRAPH: &str = "\
set -e
cd /sys/kernel/tracing
echo function_graph > current_tracer
";
const OFF: &str = "\
set -e
cd /sys/kernel/tracing
echo 0 > tracing_on
echo \"trace of $(cat current_tracer): $(grep -c -e vfs_rmdir trace)\"
echo nop > current_tracer
echo 1 > tracing_on
";

/// What [`OFF`] has printed: each tracer, and how many of its lines are about `vfs_rmdir`.
fn traces(run: &Run) -> Vec<(&str, u64)> {
    let lines = run.console.lines().filter_map(|line| line.trim().strip_prefix("trace of "));
    lines.map(|line| line.split_once(": ").unwrap()).map(|(tracer, n)| (tracer, n.parse().unwrap())).collect()
}

#[test]
fn tracers_and_probes_share_functions() {
    let guest = Guest::new();
    // The guest's own probes come first, while nothing stands behind the entry.
    let kprobes = KPROBES.replace("OFFSET", &guest.inner("vfs_mkdir", 1)[0].to_string());
    let steps = "walk:20,sh:/kprobes,walk:20,sh:/kprobes_off,walk:20,sh:/some,walk:20,open:50,sh:/off,walk:20,\
        sh:/some,walk:20,fork:5,sh:/off,sh:/graph,walk:20,open:50,sh:/off,walk:20,fentry:do_sys_openat2,walk:20";
    let scripts = [
        ("kprobes", kprobes.as_str()),
        ("kprobes_off", KPROBES_OFF),
        ("some", SOME),
        ("graph", GRAPH),
        ("off", OFF),
    ];
    let functions = ["do_sys_openat2", "vfs_rmdir", "vfs_read", "__x64_sys_openat"];
    let mut words = thrice(&guest, &functions);
    words.push("--probe=vfs_mkdir".to_owned());
    let Some(run) = guest.run(steps, scripts, &words) else { return };
    assert_eq!(calls(&guest, &run, "vfs_rmdir"), 9 * 20);
    assert!(run.hits("vfs_mkdir") >= 9 * 20, "the kernel makes some while it boots");
    assert!(calls(&guest, &run, "do_sys_openat2") > run.workload("done", "openat"), "scripts open files too");
    calls(&guest, &run, "vfs_read");
    calls(&guest, &run, "__x64_sys_openat");
    for name in ["entry", "back", "inside"] {
        assert!(run.console.contains(&format!("kprobe {name} hits=20 misses=0")), "{name}: {}", run.console);
    }
    let traces = traces(&run);
    assert_eq!(traces[..2], [("function", 20), ("function", 20)], "{}", run.console);
    // In the graph a function has a line, or, when it calls others, two.
    assert!(matches!(traces[2..], [("function_graph", 20..=40)]), "{traces:?}");
    assert_eq!(run.workload("fentry function=do_sys_openat2", "runs"), 20);
    let all = run.output.iter().filter(|o| o["type"] == "probe");
    let stands = |probe: &Value| probe["state"] == "armed" || probe["state"] == "[OPTIMIZED]";
    assert!(all.into_iter().all(stands), "{:?}", run.output);
}

const TWENTY_TIMES: &str = "\
set -e
mount -t tracefs tracefs /sys/kernel/tracing
while [ ! -e /tmp/stop ]; do cat /etc/passwd > /dev/null; done &
cd /sys/kernel/tracing
echo 'vfs_*' do_sys_openat2 OPENER ksys_read > set_ftrace_filter
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    echo function > current_tracer
    cat /etc/passwd > /dev/null
    echo nop > current_tracer
done
> /tmp/stop
wait
";

fn twenty_times() -> String {
    TWENTY_TIMES.replace("OPENER", name_of("do_filp_open"))
}

/// One CPU runs into probes while the other turns the tracer on and off.
#[test]
fn a_tracer_goes_on_and_off_under_many_probes() {
    let guest = Guest::new();
    let functions = ["do_sys_openat2", name_of("do_filp_open"), "ksys_read"];
    let mut words = thrice(&guest, &functions);
    words.push("--probe=vfs_*".to_owned());
    let Some(run) = guest.run("sh:/script", [("script", &twenty_times())], &words) else { return };
    for function in functions {
        assert!(calls(&guest, &run, function) > 0, "{function}");
    }
    let probes: Vec<_> = run.output.iter().filter(|o| o["type"] == "probe").collect();
    assert!(probes.len() > 60, "{} probes", probes.len());
}

#[test]
fn one_shot_probes_count_once_under_a_tracer() {
    let guest = Guest::new();
    let words = ["--once", "--probe=vfs_*", "--probe=do_sys_openat2"].map(str::to_owned);
    let Some(run) = guest.run("sh:/script", [("script", &twenty_times())], &words) else { return };
    for name in ["do_sys_openat2", "vfs_read", "vfs_write", "vfs_open"] {
        assert_eq!((run.hits(name), run.probe(name)["state"].as_str()), (1, Some("[ONCE]")), "{name}");
    }
    let probes = run.output.iter().filter(|o| o["type"] == "probe");
    for probe in probes {
        let expected = if probe["hits"] == 0 { "armed" } else { "[ONCE]" };
        assert!(probe["hits"] == 0 || probe["hits"] == 1, "{probe}");
        assert!(probe["state"] == expected || probe["state"] == "[GONE]", "{probe}");
    }
}

/// The guest's own probe is still there when the guest ends.
const OWN_KPROBE: &str = "\
set -e
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo 'p:own do_sys_openat2+OFFSET' > kprobe_events
echo 1 > events/kprobes/own/enable
";

/// Its breakpoint is written over the jump of a detour.
#[test]
fn a_probe_that_the_guest_overwrites_is_no_success() {
    let guest = Guest::new();
    let offset = guest.inner("do_sys_openat2", 1)[0];
    let script = OWN_KPROBE.replace("OFFSET", &offset.to_string());
    let place = format!("do_sys_openat2+{offset:#x}");
    let words = [format!("--probe={place}")];
    let Some(run) = guest.end("sh:/script", [("script", &script)], &words) else { return };
    assert!(run.probe(&place)["state"].as_str().unwrap().starts_with("[OVERWRITTEN]"), "{:?}", run.output);
    run.assert_code(122);
    let said = format!("vmm: the guest changed its text under {place}, and later hits are lost");
    assert!(run.said.contains(&said), "{}", run.said);
}

const ON_AND_OFF: &str = "\
set -e
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo do_sys_openat2 > set_ftrace_filter
echo function > current_tracer
echo nop > current_tracer
";

/// Where the instruction behind ftrace's site cannot be probed, there is nowhere to go while ftrace is busy: the
/// probe waits, comes back, and the summary says how often hits may have been missed.
#[test]
fn a_probe_without_room_waits_for_ftrace() {
    const FUNCTION: &str = "cpus_read_lock";
    let guest = Guest::new();
    let info = in_kernel(guest.kernel.symbol(FUNCTION).unwrap(), &guest.kernel).unwrap();
    assert!(matches!(info.ftrace, Some(Behind::Guarded(_))), "{:?}", info.ftrace);
    let words = [format!("--probe={FUNCTION}")];
    let Some(run) = guest.run("sh:/script,walk:1", [("script", ON_AND_OFF)], &words) else { return };
    assert!(run.hits(FUNCTION) > 0);
    let probe = run.probe(FUNCTION);
    assert_eq!(probe["state"], "[OPTIMIZED]", "a detour, before and after");
    // The tracer on, and off again.
    assert_eq!(probe["reasons"], "2 times the guest worked on this text, and hits were lost uncounted");
}
