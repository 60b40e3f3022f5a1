//! What can be probed here is what the guest's own `kprobe_events` accepts: 256 places from the start of each of 12
//! functions, or of 200 in the long tests. Where the two differ, a short table says why, and how often that may be.
//!
//! Every day draws other functions. `VMM_TEST_SEED` repeats those of another day: the test prints which seed it was.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::in_kernel;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tests::differential::rng::Rng;
use tests::product::{binary, initrd_with, kernel, run};

/// How many functions, and how many in the long tests: a guest takes 15 ms for one of their places.
const FUNCTIONS: (usize, usize) = (12, 200);
/// One in so many has none of ftrace's sites, as in all of the kernel.
const UNTRACED: usize = 6;
/// Offsets from 0 to 255. The guest counts on into the next functions; here they are asked for by their addresses.
const OFFSETS: u64 = 256;

/// What we say of a place that only the guest accepts, why we say it, and of how many places in 1,000 at most.
const EXPLAINED: &[(&str, &str, u64)] = &[
    ("lock prefix", "the guest's probes do not look for what a CPU that comes or goes rewrites", 10),
    ("alternative instruction", "rewritten before a user of the guest can ask; here one may ask before", 20),
    ("paravirtual call", "the same", 20),
    (
        "instruction at",
        "of a paravirtual call: the bytes that have been written over it by then are several",
        10,
    ),
];

/// Why only we accept a place, and of how many places in 1,000 at most. The guest's *events* refuse what its tracer cannot
/// trace, its kprobes do not.
const UNTRACED_HERE: (&str, u64) = ("its function has no site of ftrace's", 100);
/// The same. Since 6.19 the guest's table of bugs has the place behind the `lea` by which a warning gets its format.
const WARNING: (&str, u64) = ("the guest lists a warning with arguments here, whose trap comes later", 2);

/// Tries each place, and prints for each function `yn...`, a letter an offset. What was accepted is removed at once: a
/// guest searches all that it keeps for each new one.
const SCRIPT: &str = "\
exec 2> /dev/null
mount -t tracefs tracefs /sys/kernel/tracing
echo 1 > /sys/kernel/rcu_expedited
exec 3>> /sys/kernel/tracing/kprobe_events
while read -r function; do
    seen=
    n=0
    while [ $n -lt 256 ]; do
        if printf 'p:o/p %s+%s\\n' $function $n >&3; then
            printf -- '-:o/p\\n' >&3 || echo \"kept $function+$n\"
            seen=\"${seen}y\"
        else
            seen=\"${seen}n\"
        fi
        n=$((n + 1))
    done
    echo \"tried $function $seen\"
done < /functions
";

/// A function of the kernel.
struct Function {
    name: String,
    at: Gva,
}

impl Function {
    fn places(&self) -> impl Iterator<Item = Gva> {
        (0..OFFSETS).map(|offset| self.at.add(offset))
    }
}

/// The number that decides which functions are drawn: that of the day, unless someone asks for another one.
fn seed() -> u64 {
    const DAY: u64 = 24 * 60 * 60;
    let today = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / DAY;
    std::env::var("VMM_TEST_SEED").map_or_else(|_| today(), |seed| seed.parse().unwrap())
}

/// Functions that have a name for themselves, drawn from all of the kernel's text.
fn sample(kernel: &Kernel, count: usize, rng: &mut Rng) -> Vec<Function> {
    let named = kernel
        .symbols()
        .text()
        .filter(|symbol| !symbol.is_padding() && !symbol.name.contains('.'))
        .filter(|symbol| kernel.symbols().address_of(symbol.name) == Some(symbol.at))
        .filter(|symbol| kernel.image().is_text(symbol.at) && !kernel.image().is_init_text(symbol.at))
        .filter(|symbol| {
            let size = kernel.function(symbol.at).and_then(|range| range.end.offset_from(range.start));
            size.is_some_and(|size| (16..0x4000).contains(&size))
        })
        .map(|symbol| Function { name: symbol.name.to_owned(), at: symbol.at });
    let is_traced = |function: &Function| in_kernel(function.at, kernel).is_ok_and(|info| info.traced);
    let (mut traced, mut untraced): (Vec<_>, Vec<_>) = named.partition(is_traced);
    let untraced_count = count / UNTRACED;
    let mut draw = |from: &mut Vec<Function>| from.swap_remove(rng.below(from.len() as u64) as usize);
    let mut functions: Vec<_> = (untraced_count..count).map(|_| draw(&mut traced)).collect();
    functions.extend((0..untraced_count).map(|_| draw(&mut untraced)));
    functions
}

/// What the guest says of each place.
fn theirs(binary: &Path, kernel: &str, functions: &[Function]) -> BTreeMap<String, Vec<bool>> {
    let names: String = functions.iter().map(|function| format!("{}\n", function.name)).collect();
    let initrd = initrd_with([("script", 0o644, SCRIPT.into()), ("functions", 0o644, names.into())]);
    let words = [
        format!("--kernel={kernel}"),
        format!("--initrd={}", initrd.path().display()),
        "--memory=1G".to_owned(),
        "--cmdline=workload=sh:/script".to_owned(),
    ];
    let run = run(binary, &words.each_ref().map(String::as_str));
    run.assert_success();
    assert!(!run.console.contains("kept "), "{}", run.console);
    let tried = run.console.lines().filter_map(|line| line.trim().strip_prefix("tried "));
    tried
        .map(|line| {
            let (name, seen) = line.split_once(' ').unwrap();
            assert_eq!(seen.len() as u64, OFFSETS, "{line}");
            (name.to_owned(), seen.chars().map(|c| c == 'y').collect())
        })
        .collect()
}

/// Why we refuse a place: by the kernel's file, and where that allows it by the text of a running guest.
fn ours(binary: &Path, kernel_file: &str, kernel: &Kernel, functions: &[Function]) -> BTreeMap<Gva, String> {
    let mut refused = BTreeMap::new();
    let mut asked = BTreeSet::new();
    for at in functions.iter().flat_map(Function::places) {
        match in_kernel(at, kernel) {
            Ok(_) => drop(asked.insert(at)),
            Err(reason) => drop(refused.insert(at, reason.to_string())),
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let probes = folder.path().join("probes");
    fs::write(&probes, asked.iter().map(|at| format!("{at}\n")).collect::<String>()).unwrap();
    let words = [
        format!("--kernel={kernel_file}"),
        format!("--probes={}", probes.display()),
        "--once".to_owned(),
        "--memory=1G".to_owned(),
        "--cmdline=workload=open:3,fork:2 loglevel=5".to_owned(),
    ];
    let run = run(binary, &words.each_ref().map(String::as_str));
    run.assert_success();
    run.assert_clean_log();
    // In the order in which they were asked for.
    let states: Vec<&Value> = run.output.iter().filter(|line| line["type"] == "probe").collect();
    assert_eq!(states.len(), asked.len());
    for (at, probe) in asked.into_iter().zip(states) {
        let function = kernel.symbols().function_at(at).unwrap();
        let name = probe["probe"].as_str().unwrap();
        assert!(name.starts_with(&*kernel.symbols().written(&function.symbol)), "{name} is at {at}");
        if let Some(reason) = probe["state"].as_str().unwrap().strip_prefix("[REFUSED] ") {
            refused.insert(at, reason.to_owned());
        }
    }
    refused
}

/// Whether the instruction before `at` is `lea REGISTER, [rip + DISTANCE]`.
fn is_behind_lea(kernel: &Kernel, at: Gva) -> bool {
    let before = kernel.image().bytes(&(at.offset(-7)..at));
    before.is_some_and(|bytes| bytes[0] & 0xf8 == 0x48 && bytes[1] == 0x8d && bytes[2] & 0xc7 == 0x05)
}

/// Why only one of the two accepts `at`, if that is known, and of how many places in 1,000 it may be so.
fn difference(kernel: &Kernel, at: Gva, refused: Option<&String>) -> Option<(String, u64)> {
    let here = |(why, cap): (&str, u64)| Some((format!("accepted here only: {why}"), cap));
    match refused {
        None if !in_kernel(at, kernel).is_ok_and(|info| info.traced) => here(UNTRACED_HERE),
        None if is_behind_lea(kernel, at) => here(WARNING),
        None => None,
        Some(reason) if reason.contains("lies inside") && !reason.contains("call qword ptr [") => None,
        Some(reason) => EXPLAINED
            .iter()
            .find(|(ours, ..)| reason.contains(ours))
            .map(|(ours, why, cap)| (format!("accepted there only: `{ours}`: {why}"), *cap)),
    }
}

#[test]
fn what_can_be_probed_is_what_the_guest_accepts() {
    let Some(binary) = binary() else { return };
    let count = if std::env::var_os("VMM_LONG").is_some() { FUNCTIONS.1 } else { FUNCTIONS.0 };
    let seed = seed();
    println!("VMM_TEST_SEED={seed}");
    let file = kernel();
    let kernel = Kernel::read(&fs::read(file).unwrap(), None).unwrap();
    let functions = sample(&kernel, count, &mut Rng::new(seed));
    let names: Vec<_> = functions.iter().map(|function| function.name.as_str()).collect();
    println!("{count} functions: {}", names.join(" "));
    let ours = ours(&binary, file.to_str().unwrap(), &kernel, &functions);
    let theirs = theirs(&binary, file.to_str().unwrap(), &functions);
    let (mut accepted, mut refused) = (0, 0);
    let mut explained = BTreeMap::<(String, u64), u64>::new();
    let mut unexplained = Vec::new();
    for function in &functions {
        for (at, accepts) in function.places().zip(&theirs[&function.name]) {
            let reason = ours.get(&at);
            match (accepts, reason) {
                (true, None) => accepted += 1,
                (false, Some(_)) => refused += 1,
                _ => match difference(&kernel, at, reason) {
                    Some(why) => *explained.entry(why).or_default() += 1,
                    None => unexplained.push(format!("{}: {reason:?}", kernel.symbols().place(at))),
                },
            }
        }
    }
    println!("{accepted} places accepted by both, {refused} refused by both");
    explained.iter().for_each(|((why, _), count)| println!("{count} {why}"));
    assert!(unexplained.is_empty(), "{} differ:\n{}", unexplained.len(), unexplained.join("\n"));
    let places = count as u64 * OFFSETS;
    for ((why, cap), count) in explained {
        assert!(count * 1_000 <= cap * places, "{count} of {places} places {why}: more than {cap} in 1,000");
    }
    assert!(accepted > 10 * count, "most of these functions can be probed somewhere");
}
