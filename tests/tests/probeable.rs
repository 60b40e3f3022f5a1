//! What can be probed here is what the guest's own `kprobe_events` accepts: every place in 200 functions. Where the two
//! differ, a short table says why.
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
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use tests::product::{binary, initrd_with, kernel, run};

/// How many functions, and how many in the long tests: each has 256 places, and a guest takes 15 ms for one.
const FUNCTIONS: (usize, usize) = (12, 200);
/// Offsets from 0 to 255.
const OFFSETS: u64 = 256;

/// Where they differ, and why: what we say of a place that only the guest accepts. A place that only we accept lies in a
/// function that has none of ftrace's sites: the guest's *events* refuse what its tracer cannot trace, its kprobes do
/// not.
const EXPLAINED: &[(&str, &str)] = &[
    (BEHIND, "the guest counts on into the next function"),
    ("lock prefix", "the guest's probes do not look for what a CPU that comes or goes rewrites"),
    ("alternative instruction", "rewritten before a user of the guest can ask; here one may ask before"),
    ("paravirtual call", "the same"),
    ("instruction at", "of a paravirtual call: the bytes that have been written over it by then are several"),
];

/// What we say of an offset that is not in its function.
const BEHIND: &str = "behind the function";

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
    size: u64,
    /// Whether it begins with one of ftrace's sites.
    traced: bool,
}

/// A sample of functions that have a name for themselves, all over the kernel's text.
fn sample(kernel: &Kernel, count: usize) -> Vec<Function> {
    let mut functions: Vec<Function> = kernel
        .symbols()
        .text()
        .filter(|symbol| !symbol.is_padding() && !symbol.name.contains('.'))
        .filter(|symbol| kernel.symbols().address_of(symbol.name) == Some(symbol.at))
        .filter(|symbol| kernel.image().is_text(symbol.at) && !kernel.image().is_init_text(symbol.at))
        .filter_map(|symbol| {
            let range = kernel.function(symbol.at)?;
            let size = range.end.offset_from(range.start)?;
            let traced = in_kernel(symbol.at, kernel).is_ok_and(|spot| spot.traced);
            Some(Function { name: symbol.name.to_owned(), at: symbol.at, size, traced })
        })
        .filter(|function| (16..0x4000).contains(&function.size))
        .collect();
    // The same at every run, and in no order that the compiler knows.
    functions.sort_by_key(|function| {
        let hash = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        function.name.bytes().fold(0xcbf2_9ce4_8422_2325, hash)
    });
    functions.truncate(count);
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

/// Why we refuse a place, by the name of the function and the offset: by the kernel's file, and for those that are left by
/// the text of a running guest.
fn ours(
    binary: &Path,
    kernel_file: &str,
    kernel: &Kernel,
    functions: &[Function],
) -> BTreeMap<(String, u64), String> {
    let mut refused = BTreeMap::new();
    let mut asked = String::new();
    for Function { name, at, size, .. } in functions {
        for offset in 0..OFFSETS {
            let place = || (name.clone(), offset);
            if offset >= *size {
                refused.insert(place(), BEHIND.to_owned());
                continue;
            }
            match in_kernel(at.add(offset), kernel) {
                Ok(_) => writeln!(asked, "{name}+{offset}").unwrap(),
                Err(reason) => drop(refused.insert(place(), reason.to_string())),
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let probes = folder.path().join("probes");
    fs::write(&probes, &asked).unwrap();
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
    let states: Vec<&Value> = run.output.iter().filter(|line| line["type"] == "probe").collect();
    assert_eq!(states.len(), asked.lines().count());
    for probe in states {
        let Some(reason) = probe["state"].as_str().unwrap().strip_prefix("[REFUSED] ") else { continue };
        let name = probe["probe"].as_str().unwrap();
        let (name, offset) = name.split_once('+').unwrap_or((name, "0"));
        let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap();
        refused.insert((name.to_owned(), offset), reason.to_owned());
    }
    refused
}

/// Whether the instruction before `at` is `lea REGISTER, [rip + DISTANCE]`. Since 6.19 the guest's table of bugs has the place
/// behind the one by which a warning gets its format, so that the guest refuses it; the trap is at the call behind that.
fn is_behind_lea(kernel: &Kernel, at: Gva) -> bool {
    let before = kernel.image().bytes(&(at.offset(-7)..at));
    before.is_some_and(|bytes| bytes[0] & 0xf8 == 0x48 && bytes[1] == 0x8d && bytes[2] & 0xc7 == 0x05)
}

#[test]
fn what_can_be_probed_is_what_the_guest_accepts() {
    let Some(binary) = binary() else { return };
    let count = if std::env::var_os("VMM_LONG").is_some() { FUNCTIONS.1 } else { FUNCTIONS.0 };
    let file = kernel();
    let kernel = Kernel::read(&fs::read(file).unwrap(), None).unwrap();
    let functions = sample(&kernel, count);
    assert_eq!(functions.len(), count);
    let ours = ours(&binary, file.to_str().unwrap(), &kernel, &functions);
    let theirs = theirs(&binary, file.to_str().unwrap(), &functions);
    let (mut accepted, mut refused) = (0, 0);
    let mut explained = BTreeMap::<String, u32>::new();
    let mut unexplained = Vec::new();
    for Function { name, at, size, traced } in &functions {
        for (offset, accepts) in (0..OFFSETS).zip(&theirs[name]) {
            let reason = ours.get(&(name.clone(), offset));
            let why = match (accepts, reason) {
                (true, None) => {
                    accepted += 1;
                    continue;
                }
                (false, Some(_)) => {
                    refused += 1;
                    continue;
                }
                (false, None) if !traced => {
                    Some("accepted here only: the function has no site of ftrace's".to_owned())
                }
                (false, None) if is_behind_lea(&kernel, at.add(offset)) => {
                    Some("accepted here only: the guest lists a warning with arguments here, whose trap comes later".to_owned())
                }
                (false, None) => None,
                (true, Some(reason))
                    if reason.contains("lies inside") && !reason.contains("call qword ptr [") =>
                {
                    None
                }
                (true, Some(reason)) => EXPLAINED
                    .iter()
                    .find(|(ours, _)| reason.contains(ours))
                    .map(|(ours, why)| format!("accepted there only: `{ours}`: {why}")),
            };
            match why {
                Some(why) => *explained.entry(why).or_default() += 1,
                None => unexplained.push(format!("{name}+{offset:#x} of {size:#x}: {reason:?}")),
            }
        }
    }
    println!("{count} functions, {accepted} places accepted by both, {refused} refused by both");
    explained.iter().for_each(|(why, count)| println!("{count} {why}"));
    assert!(unexplained.is_empty(), "{} differ:\n{}", unexplained.len(), unexplained.join("\n"));
    assert!(accepted as usize > 10 * count, "most of these functions can be probed somewhere");
}
