//! A kernel that is put in its place from outside runs as one that its own decompressor has put there.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tests::product::{binary, initrd_with, kernel, run};

/// What a guest says of itself. Of its symbols it names one in so many.
const SCRIPT: &str = "\
set -e
sed 's/^/boot: cmdline /' /proc/cmdline
sed 's/^/boot: iomem /' /proc/iomem
awk 'NR % 400 == 1 { print \"boot: symbol \" $1 \" \" $3 }' /proc/kallsyms
";

/// Where the kernel's own regions of memory begin.
const BASES: &str =
    "p:bases rest_init direct=@page_offset_base:u64 vmalloc=@vmalloc_base:u64 pages=@vmemmap_base:u64";

/// A guest that has booted.
struct Boot {
    cmdline: String,
    /// The memory map, without what the kernel's image takes.
    memory: Vec<String>,
    /// Where its code begins, physically.
    code: u64,
    /// How far its symbols are from where they were linked.
    slide: u64,
    bases: [u64; 3],
}

impl Boot {
    /// Boots once, in this way.
    fn once(binary: &Path, subject: &Kernel, way: &str, cmdline: &str) -> Self {
        let initrd = initrd_with([("script", 0o644, SCRIPT.into())]);
        let words = format!("--cmdline=workload=sh:/script loglevel=5 {cmdline}");
        let path = initrd.path().to_str().unwrap();
        let run = run(binary, &["--boot", way, "--initrd", path, "--probe", BASES, &words]);
        run.assert_success();
        run.assert_clean_log();
        assert_eq!(run.workload("sh path=/script", "status"), 0, "{}", run.console);
        let said = |what: &str| -> Vec<String> {
            let prefix = format!("boot: {what} ");
            run.console
                .lines()
                .filter_map(|line| Some(line.trim_end().strip_prefix(&prefix)?.to_owned()))
                .collect()
        };
        let (kernels, memory): (Vec<_>, Vec<_>) =
            said("iomem").into_iter().partition(|line| line.contains("Kernel "));
        let code = kernels.iter().find(|line| line.contains("Kernel code")).unwrap().trim_start();
        let code = u64::from_str_radix(code.split('-').next().unwrap(), 16).unwrap();
        let hit = run.output.iter().find(|line| line["type"] == "hit").unwrap();
        let bases = ["direct", "vmalloc", "pages"].map(|name| hit["fields"][name].as_u64().unwrap());
        let slide = slide(subject, &said("symbol"));
        Self { cmdline: said("cmdline").concat(), memory, code, slide, bases }
    }
}

/// By how much all these symbols have moved.
fn slide(subject: &Kernel, symbols: &[String]) -> u64 {
    let moved = |line: &String| {
        let (at, name) = line.split_once(' ')?;
        let (at, linked) = (u64::from_str_radix(at, 16).ok()?, subject.symbol(name)?);
        // Variables of CPUs are linked elsewhere, or not at all.
        (linked >= Gva(0xffff_ffff_8000_0000) && at != 0).then(|| at.wrapping_sub(linked.0))
    };
    let slides: BTreeSet<u64> = symbols.iter().filter_map(moved).collect();
    let count = symbols.iter().filter_map(moved).count();
    assert!(slides.len() == 1 && count > 100, "{count} symbols have moved by {slides:x?}");
    slides.into_iter().next().unwrap()
}

/// How many values there are.
fn different<T: Ord>(values: impl Iterator<Item = T>) -> usize {
    values.collect::<BTreeSet<_>>().len()
}

/// Boots so many times in each way.
fn both_ways_are_the_same(times: usize) {
    let Some(binary) = binary() else { return };
    let subject = Kernel::read(&fs::read(kernel()).unwrap(), None).unwrap();
    let ways = ["direct", "bzimage"];
    let boots = ways.map(|way| -> Vec<Boot> {
        let boots: Vec<_> = (0..times).map(|_| Boot::once(&binary, &subject, way, "")).collect();
        for boot in &boots {
            println!("{way}: at {:x}, slide {:x}, regions {:x?}", boot.code, boot.slide, boot.bases);
        }
        boots
    });
    let first = &boots[0][0];
    for (way, boots) in ways.iter().zip(&boots) {
        for boot in boots {
            assert_eq!((&boot.cmdline, &boot.memory), (&first.cmdline, &first.memory), "{way}");
            assert_eq!((boot.code % (2 << 20), boot.slide % (2 << 20)), (0, 0), "{way}");
        }
        let random = [
            different(boots.iter().map(|boot| boot.code)),
            different(boots.iter().map(|boot| boot.slide)),
            different(boots.iter().map(|boot| boot.bases)),
        ];
        println!("{way}: of {times} boots {random:?} places, slides and regions were different");
        // Two of the same happen by chance.
        assert!(random.iter().all(|count| count + times / 5 >= times), "{way}: {random:?}");
    }
    for way in ways {
        let boot = Boot::once(&binary, &subject, way, "nokaslr");
        assert_eq!((boot.slide, boot.code), (0, 0x100_0000), "{way} without KASLR");
        let boot = Boot::once(&binary, &subject, way, "no5lvl");
        let four = 0xffff_8880_0000_0000..0xffff_c880_0000_0000u64;
        assert!(four.contains(&boot.bases[0]), "{way} with four levels: {:x?}", boot.bases);
    }
}

/// Twice, or, with `VMM_LONG` set, twenty times.
#[test]
fn boots_of_each_way_are_the_same() {
    let is_long = std::env::var_os("VMM_LONG").is_some();
    both_ways_are_the_same(if is_long { 20 } else { 2 });
}
