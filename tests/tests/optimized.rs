//! Where a jump may stand is decided here from a kernel's text, and in the guest by its own kprobes: what the guest
//! optimises has room for a detour here, too. Where the two differ, a short table says why.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::addr::Gva;
use probe_engine::detour::verdict::{FunctionText, verdict};
use probe_engine::insn::decode::instructions;
use probe_engine::insn::plan::skip_endbr;
use probe_engine::linux::ftrace_site::{FTRACE_NOP, FTRACE_SITE};
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::targets::JumpTargets;
use probe_engine::linux::thunks::Thunks;
use probe_engine::probe::jump_constraints::JumpConstraints;
use probe_engine::probe::place::in_kernel;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use tests::differential::rng::Rng;
use tests::kernel::under_test;
use tests::optprobe::{Refusal, Rules};
use tests::product::{binary, initrd_with, kernel, run};

/// How many sites, each in a function of its own, and how many in the long tests.
const SITES: (usize, usize) = (200, 2_000);

/// What we say of a site that the guest optimises, and why we say it.
const EXPLAINED: &[(&str, &str)] = &[
    ("lock prefix", "the guest's probes do not look for what a CPU that comes or goes rewrites"),
    (
        "alternative instruction",
        "rewritten before a user of the guest can ask; here the kernel's file is asked",
    ),
    ("has an indirect jump", "since 6.6 the guest trusts its compiler to make no tables of jumps"),
];

/// Has the guest probe all sites, and prints which it optimises. It does that by and by: the last word is said when
/// nothing has changed for five seconds.
const SCRIPT: &str = "\
exec 2> /dev/null
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
echo 1 > /sys/kernel/rcu_expedited
exec 3>> /sys/kernel/tracing/kprobe_events
n=0
while read -r site; do
    n=$((n + 1))
    printf 'p:o/p%s %s\\n' $n $site >&3
done < /sites
echo 1 > /sys/kernel/tracing/events/o/enable
list=/sys/kernel/debug/kprobes/list
last=
same=0
while [ $same -lt 5 ]; do
    sleep 1
    now=$(grep -c OPTIMIZED $list)
    if [ \"$now\" = \"$last\" ]; then same=$((same + 1)); else same=0; fi
    last=$now
done
while read -r address kind place flags; do
    echo \"listed $address $flags\"
done < $list
";

/// A place in a function.
struct Site {
    name: String,
    at: Gva,
    /// Why we would not put a jump there.
    refused: Option<String>,
    /// Why the guest should not, by its own rules.
    ruled_out: Option<Refusal>,
}

/// One instruction of each of so many functions that ftrace can trace: the guest's events have no others. Functions and
/// instructions are the same at every run, and in no order that the compiler knows.
fn sites(kernel: &Kernel, count: usize) -> Vec<Site> {
    let (symbols, rules) = (kernel.symbols(), Rules::of(kernel, under_test().series));
    let (targets, thunks) = (JumpTargets::scan(kernel), Thunks::of(kernel));
    let named = symbols.text().filter(|symbol| {
        !symbol.is_padding()
            && symbols.address_of(symbol.name) == Some(symbol.at)
            && kernel.image().is_text(symbol.at)
            && !kernel.image().is_init_text(symbol.at)
    });
    let mut seen = HashSet::new();
    let mut functions: Vec<_> = named
        .filter(|symbol| seen.insert(symbol.at))
        .filter(|symbol| in_kernel(symbol.at, kernel).is_ok_and(|info| info.traced))
        .collect();
    let mut rng = Rng::new(1);
    let mut sites = Vec::new();
    while sites.len() < count {
        let symbol = functions.swap_remove(rng.below(functions.len() as u64) as usize);
        let range = kernel.function(symbol.at).unwrap();
        let mut bytes = kernel.image().bytes(&range).unwrap().to_vec();
        let entry = skip_endbr(&bytes, range.start);
        let nop = entry.offset_from(range.start).unwrap() as usize;
        bytes[nop..][..FTRACE_NOP.len()].copy_from_slice(&FTRACE_NOP);
        let all: Vec<Gva> = instructions(&bytes, range.start).map(|found| Gva(found.ip())).collect();
        // At its own site the guest's ftrace makes the call.
        let behind: Vec<Gva> = all.into_iter().filter(|at| *at >= entry.add(FTRACE_SITE)).collect();
        let at = behind[rng.below(behind.len() as u64) as usize];
        let constraints = &JumpConstraints::at(at, kernel.patched(), &targets);
        let function =
            FunctionText { start: range.start, bytes: &bytes, slide: 0, constraints, thunks: &thunks };
        let refused = verdict(&function).err().map(|reason| reason.to_string());
        let name = format!("{}+{}", symbol.name, at.offset_from(range.start).unwrap());
        sites.push(Site { name, at, refused, ruled_out: rules.refusal(at) });
    }
    sites
}

/// Which addresses the guest has probed, and whether it has optimised the probe.
fn theirs(binary: &Path, kernel: &str, sites: &[Site]) -> BTreeMap<Gva, bool> {
    let mut names = String::new();
    sites.iter().for_each(|site| writeln!(names, "{}", site.name).unwrap());
    let initrd = initrd_with([("script", 0o644, SCRIPT.into()), ("sites", 0o644, names.into())]);
    let words = [
        format!("--kernel={kernel}"),
        format!("--initrd={}", initrd.path().display()),
        "--memory=1G".to_owned(),
        // Without return thunks, whatever the CPU.
        "--cmdline=workload=sh:/script nokaslr mitigations=off loglevel=5".to_owned(),
    ];
    let run = run(binary, &words.each_ref().map(String::as_str));
    run.assert_success();
    run.assert_clean_log();
    let listed = run.console.lines().filter_map(|line| line.trim().strip_prefix("listed "));
    listed
        .map(|line| {
            let (at, flags) = line.split_once(' ').unwrap_or((line, ""));
            (Gva(u64::from_str_radix(at, 16).unwrap()), flags.contains("[OPTIMIZED]"))
        })
        .collect()
}

#[test]
fn what_the_guest_optimises_has_room_for_a_detour() {
    let Some(binary) = binary() else { return };
    let count = if std::env::var_os("VMM_LONG").is_some() { SITES.1 } else { SITES.0 };
    let file = kernel();
    let kernel = Kernel::read(&fs::read(file).unwrap(), None).unwrap();
    let sites = sites(&kernel, count);
    let theirs = theirs(&binary, file.to_str().unwrap(), &sites);
    let (mut both, mut neither) = (0, 0);
    let mut rows = BTreeMap::<String, u32>::new();
    let mut unexplained = Vec::new();
    for Site { name, at, refused, ruled_out } in &sites {
        let row = match (theirs.get(at), refused, ruled_out) {
            // The rules are those of the guest only if they never say no where the guest says yes.
            (Some(true), None, None) => {
                both += 1;
                continue;
            }
            (Some(false) | None, Some(_), _) => {
                neither += 1;
                continue;
            }
            (Some(false), None, Some(Refusal::Cautious(rule))) => Some(format!("here only: {rule}")),
            (Some(true), Some(reason), _) => EXPLAINED
                .iter()
                .find(|(ours, _)| reason.contains(ours))
                .map(|(ours, why)| format!("there only: `{ours}`: {why}")),
            _ => None,
        };
        match row {
            Some(row) => *rows.entry(row).or_default() += 1,
            None => unexplained.push(format!(
                "{name}: the guest says {:?}, its rules {ruled_out:?}, we {refused:?}",
                theirs.get(at)
            )),
        }
    }
    println!("{count} sites: {both} optimised by both, {neither} by neither");
    rows.iter().for_each(|(row, count)| println!("{count} {row}"));
    assert!(unexplained.is_empty(), "{} differ:\n{}", unexplained.len(), unexplained.join("\n"));
    assert!(both > count / 3, "the guest optimises many of its probes");
}
