//! Every instruction of real kernels: where each starts, and how many can be probed. `VMM_TEST_KERNELS` lists boot
//! images, separated by colons.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use iced_x86::{Instruction, Mnemonic};
use probe_engine::addr::Gva;
use probe_engine::insn::decode::{instructions, text};
use probe_engine::insn::plan::{StepPlan, plan};
use probe_engine::linux::kernel::Kernel;

/// Calls `check` with each kernel's name and what was read of it.
fn each_kernel(check: impl Fn(&str, &Kernel)) {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        eprintln!("skipped: VMM_TEST_KERNELS names no kernels");
        return;
    };
    for path in list.split(':') {
        let file = fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        check(path, &Kernel::read(&file, None).unwrap_or_else(|error| panic!("{path}: {error}")));
    }
}

/// The code from one text symbol to the next, or to the end of the section.
struct Function<'a> {
    name: &'a str,
    range: Range<Gva>,
    code: &'a [u8],
}

/// All of them by address, each under its first name.
fn functions(kernel: &Kernel) -> Vec<Function<'_>> {
    let mut last = None;
    let image = kernel.image();
    let function = |start: Gva, name| {
        let end = kernel.function(start)?.end;
        let section = image.sections().find(|section| section.range.contains(&start))?;
        let range = start..end.min(section.range.end);
        let code = image.bytes(&range)?;
        Some(Function { name, range, code })
    };
    let symbols = kernel.symbols().text().filter(|symbol| image.is_text(symbol.at));
    let firsts = symbols.filter(|symbol| last.replace(symbol.at) != Some(symbol.at));
    firsts.filter_map(|symbol| function(symbol.at, symbol.name)).collect()
}

/// What becomes of a probe on an instruction.
enum Outcome {
    Emulated,
    Copied,
    Refused(String),
}

/// As `resolve::check` has it, which walks the function anew for each address.
fn outcome(
    kernel: &Kernel,
    code: &[u8],
    instruction: &Instruction,
    previous: Option<&Instruction>,
) -> Outcome {
    let at = Gva(instruction.ip());
    let bytes = at..Gva(instruction.next_ip());
    let has_fixup = kernel.patched().has_fixup(bytes.clone());
    if let Some(why) = kernel.patched().covers(bytes).filter(|why| !why.is_settled_late()) {
        return Outcome::Refused(format!("{why:?}"));
    }
    match plan(code, at, previous, has_fixup) {
        Ok(StepPlan::Emulate(_)) => Outcome::Emulated,
        Ok(StepPlan::OutOfLine(_)) => Outcome::Copied,
        Err(refusal) => {
            let words = format!("{refusal:?}");
            Outcome::Refused(words.split([' ', '(']).next().unwrap_or_default().to_owned())
        }
    }
}

#[test]
fn nearly_all_instructions_can_be_probed() {
    each_kernel(|name, kernel| {
        let start = Instant::now();
        let (mut all, mut emulated, mut copied) = (0u32, 0u32, 0u32);
        let mut refused: BTreeMap<String, (u32, String)> = BTreeMap::new();
        for function in functions(kernel) {
            if function.name.starts_with("__pfx_") || function.name.starts_with("__cfi_") {
                continue;
            }
            let mut previous = None;
            for instruction in instructions(function.code, function.range.start) {
                let offset = Gva(instruction.ip()).offset_from(function.range.start).unwrap() as usize;
                let code = function.code.get(offset..).unwrap();
                let before = previous.replace(instruction);
                // Padding, and what stops speculation behind jumps: it never runs.
                if instruction.mnemonic() == Mnemonic::Int3 {
                    continue;
                }
                all += 1;
                match outcome(kernel, code, &instruction, before.as_ref()) {
                    Outcome::Emulated => emulated += 1,
                    Outcome::Copied => copied += 1,
                    Outcome::Refused(reason) => {
                        let place = kernel.symbols().place(Gva(instruction.ip()));
                        let first = || (0, format!("{place} `{}`", text(&instruction)));
                        refused.entry(reason).or_insert_with(first).0 += 1;
                    }
                }
            }
        }
        let percent = |part: u32| f64::from(part) * 100.0 / f64::from(all);
        println!(
            "{name}: of {all} instructions {emulated} are emulated ({:.2} %), {copied} copied ({:.2} %), in {:?}",
            percent(emulated),
            percent(copied),
            start.elapsed()
        );
        let mut refused: Vec<_> = refused.into_iter().collect();
        refused.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (reason, (count, first)) in refused {
            println!("  {count:6} ({:.2} %) refused: {reason}, first {first}", percent(count));
        }
        assert!(all > 2_000_000);
        assert!(percent(emulated) > 95.0 && percent(emulated + copied) > 97.0);
        assert!(copied > 5_000);
    });
}

/// Functions where objdump and the engine may disagree, once, and why the engine is right.
const DISAGREEMENTS: &[(&str, &str)] = &[
    ("native_lkgs", LKGS),
    ("native_load_gs_index", LKGS),
    ("__pfx_cr4_update_irqsoff", AFTER_LKGS),
    ("__pfx_cr4_read_shadow", AFTER_LKGS),
    ("fpu__init_check_bugs", "objdump takes fwait and what follows for one instruction"),
    ("get_rmpentry", "neither knows the instruction rmpread, and each goes on behind it in its own way"),
    ("retbleed_return_thunk", OVERLAP),
    ("srso_safe_ret", OVERLAP),
    ("pvh_start_xen", "it has 32-bit code, which neither decodes rightly"),
];
const LKGS: &str = "objdump 2.40 does not know the instruction lkgs";
const AFTER_LKGS: &str =
    "objdump 2.40 does not know the lkgs before it, and ends what it makes of that in here";
const OVERLAP: &str =
    "the function before ends in an instruction that has this one's first bytes as its operand";

#[test]
fn instructions_start_where_objdump_sees_them() {
    each_kernel(|name, kernel| {
        let start = Instant::now();
        let file = std::env::temp_dir().join(format!("kernel_text_{}", std::process::id()));
        fs::write(&file, kernel.image().file()).unwrap();
        let theirs = objdump(&file);
        fs::remove_file(&file).unwrap();
        let objdumps = start.elapsed();

        let (mut compared, mut unexplained) = (0, vec![]);
        let functions = functions(kernel);
        for function in &functions {
            let Range { start, end } = function.range;
            let first = theirs.partition_point(|at| *at < start.0);
            let after = theirs.partition_point(|at| *at < end.0);
            let theirs = theirs.get(first..after).unwrap();
            let ours: Vec<u64> = instructions(function.code, start).map(|found| found.ip()).collect();
            compared += ours.len();
            for at in disagreements(&ours, theirs) {
                match DISAGREEMENTS.iter().find(|(name, _)| *name == function.name) {
                    Some((_, why)) => println!("  {} at {at:#x}: {why}", function.name),
                    None => unexplained.push(format!("{} at {at:#x}", function.name)),
                }
            }
        }
        println!(
            "{name}: {compared} starts in {} functions, {objdumps:?} of {:?} for objdump",
            functions.len(),
            start.elapsed()
        );
        assert!(unexplained.is_empty(), "{unexplained:#?}");
        assert!(compared > 2_000_000);
    });
}

/// Where objdump sees instructions, by address.
fn objdump(file: &Path) -> Vec<u64> {
    let mut child = Command::new("objdump")
        .args(["--disassemble", "--disassemble-zeroes", "--no-show-raw-insn"])
        .arg(file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("objdump of binutils: {error}"));
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let starts = lines
        .filter_map(|line| u64::from_str_radix(line.unwrap().split_once(":\t")?.0.trim(), 16).ok())
        .collect();
    assert!(child.wait().unwrap().success());
    starts
}

/// Where one of two sorted lists has an address that the other has not: the first of each run of such addresses.
fn disagreements(ours: &[u64], theirs: &[u64]) -> Vec<u64> {
    let (mut ours, mut theirs) = (ours.iter().copied().peekable(), theirs.iter().copied().peekable());
    let (mut found, mut agreed) = (vec![], true);
    loop {
        let (one, other) = match (ours.peek(), theirs.peek()) {
            (None, None) => return found,
            (one, other) => (one.copied().unwrap_or(u64::MAX), other.copied().unwrap_or(u64::MAX)),
        };
        if one <= other {
            ours.next();
        }
        if other <= one {
            theirs.next();
        }
        if one != other && agreed {
            found.push(one.min(other));
        }
        agreed = one == other;
    }
}
