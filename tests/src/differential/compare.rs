//! Runs instructions as they are and in every way past them, and tells what differs.

use super::guest::{BATCH, BP, CELL, End, FS_BASE, GS_BASE, Guest, IN_CELL, ORIGINALS, SLOTS, Start};
use super::quirks::{Quirk, correct};
use super::rng::Rng;
use super::start::{Case, case, excluded};
use iced_x86::{Instruction, Mnemonic, RflagsBits};
use probe_engine::addr::Gva;
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::insn::copy::{Ending, jump};
use probe_engine::insn::decode::{decode, text};
use probe_engine::insn::emulate::{Emulation, Segments};
use probe_engine::insn::plan::{Refusal, StepPlan, plan};
use probe_engine::regs::rflags;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use vmm::kvm::Exception;

/// How often each opcode was compared.
pub type Opcodes = BTreeMap<String, usize>;

/// What became of all instructions.
#[derive(Default)]
pub struct Outcome {
    /// Compared after emulation.
    pub emulated: Opcodes,
    /// Compared after a copy in a slot, as traps run them.
    pub copied: Opcodes,
    /// Compared after they were moved, as the stubs of detours run them. These are compared in another way as well.
    pub moved: Opcodes,
    /// Not planned, by reason.
    pub refused: BTreeMap<String, usize>,
    /// Not tried, by reason.
    pub excluded: BTreeMap<&'static str, usize>,
    /// Not tried, as they came back from none of the states that were drawn.
    pub stateless: Vec<String>,
    /// Emulated, and the CPU did what no other does: nothing to compare with, by what it does.
    pub incomparable: BTreeMap<&'static str, usize>,
    /// Compared with what another CPU does, by what this one does.
    pub corrected: BTreeMap<&'static str, usize>,
    /// How the CPU ended, by exception vector.
    pub vectors: BTreeMap<u64, usize>,
    /// Mismatches by opcode.
    pub mismatches: BTreeMap<String, usize>,
    /// The first mismatches of each opcode, described.
    pub described: Vec<String>,
}

/// One instruction under way.
struct Trial {
    number: usize,
    case: Case,
    way: StepPlan,
    moved: Option<RelocatedCode>,
}

/// Tries all `drawn` instructions, each in one state that its number decides.
pub fn compare(guest: &mut Guest, drawn: &[Vec<u8>]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut trials = Vec::new();
    for (number, bytes) in drawn.iter().enumerate() {
        if let Some(trial) = prepare(guest, number, bytes, trials.len(), &mut outcome) {
            trials.push(trial);
        }
        if trials.len() == BATCH || number + 1 == drawn.len() {
            run(guest, &trials, &mut outcome);
            trials.clear();
        }
    }
    outcome
}

/// Where the instruction in cell `n` of `cells` is.
fn in_cell(cells: Gva, n: usize) -> Gva {
    cells.add(n as u64 * CELL + IN_CELL)
}

fn prepare(guest: &Guest, number: usize, drawn: &[u8], n: usize, outcome: &mut Outcome) -> Option<Trial> {
    let at = in_cell(ORIGINALS, n);
    let mut rng = Rng::new(number as u64 + 1);
    if let Err(refusal) = plan(drawn, at, None, false) {
        *outcome.refused.entry(name(&refusal)).or_default() += 1;
        return None;
    }
    let decoded = decode(drawn, at)?;
    if let Some(reason) = excluded(&decoded) {
        *outcome.excluded.entry(reason).or_default() += 1;
        return None;
    }
    let Some(case) = case(drawn, at, &mut rng, |at| guest.is_mapped(at)) else {
        outcome.stateless.push(text(&decoded));
        return None;
    };
    let way =
        plan(&case.bytes, at, None, false).unwrap_or_else(|refusal| panic!("{refusal}, but not before"));
    let moved = RelocatedCode::single(&case.bytes, at);
    Some(Trial { number, case, way, moved })
}

/// The variant's name.
fn name(refusal: &Refusal) -> String {
    let words = format!("{refusal:?}");
    words.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

fn run(guest: &mut Guest, trials: &[Trial], outcome: &mut Outcome) {
    for (n, trial) in trials.iter().enumerate() {
        guest.original(n, &trial.case.bytes);
    }
    let starts: Vec<Start> = trials.iter().map(|trial| trial.case.start.clone()).collect();
    let originals = guest.run(&starts);
    let copies = elsewhere(guest, trials, copy);
    let moved = elsewhere(guest, trials, moved);
    for (((trial, original), copied), moved) in trials.iter().zip(originals).zip(copies).zip(moved) {
        *outcome.vectors.entry(original.vector).or_default() += 1;
        if let Some(moved) = moved {
            count(&mut outcome.moved, trial);
            settle(outcome, trial, "moved", &original, &moved, u64::MAX);
        }
        if let Some(copied) = copied {
            count(&mut outcome.copied, trial);
            settle(outcome, trial, "copied", &original, &copied, u64::MAX);
        }
        if let StepPlan::Emulate(emulation) = &trial.way {
            let ours = emulate(guest, emulation, &trial.case.start);
            settle_emulated(outcome, trial, original, &ours, guest.is_qemu());
        }
    }
}

/// Code that does what an instruction does, and where that traps behind it, if it does.
type Elsewhere = (Vec<u8>, Option<Gva>);

/// What the CPU leaves behind the code that `make` makes for each slot, as if the instruction had run at its own place.
fn elsewhere(
    guest: &mut Guest,
    trials: &[Trial],
    make: impl Fn(&Trial, usize, Gva) -> Option<Elsewhere>,
) -> Vec<Option<End>> {
    let slots: Vec<Gva> = (0..trials.len()).map(|n| in_cell(SLOTS, n)).collect();
    let made = trials.iter().zip(&slots).enumerate().map(|(n, (trial, slot))| make(trial, n, *slot));
    let made: Vec<Option<Elsewhere>> = made.collect();
    let mut starts = Vec::new();
    for (n, (trial, made)) in trials.iter().zip(&made).enumerate() {
        if let Some((code, _)) = made {
            guest.slot(n, code);
            let mut start = trial.case.start.clone();
            start.regs.rip = slots[n].0;
            starts.push(start);
        }
    }
    let mut ends = guest.run(&starts).into_iter();
    let end = |((trial, slot), made): ((&Trial, &Gva), Option<Elsewhere>)| {
        let (_, trap) = made?;
        let mut end = ends.next().expect("an end for each start");
        if end.vector == BP && trap.is_some_and(|trap| end.regs.rip == trap.0) {
            end.regs.rip = trial.case.instruction.next_ip();
        } else if end.regs.rip == slot.0 {
            end.regs.rip = trial.case.instruction.ip();
        }
        Some(end)
    };
    trials.iter().zip(&slots).zip(made).map(end).collect()
}

/// The copy of an instruction that is not emulated. Both endings have their turn.
fn copy(trial: &Trial, n: usize, slot: Gva) -> Option<Elsewhere> {
    let StepPlan::OutOfLine(copy) = &trial.way else { return None };
    let ending = if n.is_multiple_of(2) { Ending::Trap } else { Ending::Jump };
    let code = copy.place(slot, ending).unwrap_or_else(|error| panic!("{error}"));
    Some((code.to_vec(), Some(copy.trap(slot))))
}

/// The code of an instruction in whose place a detour's jump could stand.
fn moved(trial: &Trial, _: usize, slot: Gva) -> Option<Elsewhere> {
    let region = trial.moved.as_ref()?;
    let end = slot.add(region.moved_length());
    let mut code = region.assemble(slot, end).unwrap_or_else(|error| panic!("{error}"));
    if !region.goes_on() {
        // A return goes on here.
        code.push(RET);
    } else {
        code.extend(jump(end, region.end()).unwrap_or_else(|error| panic!("{error}")));
    }
    Some((code, None))
}

/// The instruction `ret`.
const RET: u8 = 0xc3;

fn count(opcodes: &mut Opcodes, trial: &Trial) {
    *opcodes.entry(opcode(trial)).or_default() += 1;
}

fn opcode(trial: &Trial) -> String {
    format!("{:?}", trial.case.instruction.code())
}

/// Compares `ours`, which emulation has left.
fn settle_emulated(outcome: &mut Outcome, trial: &Trial, mut cpu: End, ours: &End, is_qemu: bool) {
    if is_qemu {
        match correct(&mut cpu, ours, &trial.case) {
            Quirk::None => {}
            Quirk::Corrected(what) => *outcome.corrected.entry(what).or_default() += 1,
            Quirk::Incomparable(what) => {
                *outcome.incomparable.entry(what).or_default() += 1;
                return;
            }
        }
    }
    count(&mut outcome.emulated, trial);
    settle(outcome, trial, "emulated", &cpu, ours, !undefined_flags(&trial.case.instruction));
}

/// Notes down what differs, of the flags in `flags` only. RF is a debugger's.
fn settle(outcome: &mut Outcome, trial: &Trial, how: &str, cpu: &End, ours: &End, flags: u64) {
    let differences = differences(cpu, ours, flags & !rflags::RF);
    if !differences.is_empty() {
        let count = outcome.mismatches.entry(opcode(trial)).or_default();
        *count += 1;
        if *count <= 2 {
            outcome.described.push(describe(trial, how, cpu, ours, &differences));
        }
    }
}

/// What the product makes of an emulated instruction.
fn emulate(guest: &Guest, emulation: &Emulation, start: &Start) -> End {
    let segments = Segments { fs_base: FS_BASE, gs_base: GS_BASE };
    let mut regs = start.regs;
    let (result, window) = guest.with_memory(start, |memory| emulation.execute(&mut regs, memory, &segments));
    let (vector, code, cr2) = match result {
        Ok(_) => (BP, 0, 0),
        Err(fault) => {
            let exception = Exception::of(fault).unwrap_or_else(|| panic!("{fault}: there are no devices"));
            let (vector, code) = exception.vector_and_code();
            let cr2 = if let Exception::PageFault(fault) = exception { fault.at.0 } else { 0 };
            (vector.into(), code.into(), cr2)
        }
    };
    End { regs, vector, code, cr2, fx: End::comparable(start.fx), window }
}

/// What the architecture leaves open, and CPUs of different makers fill differently. Where all of them do the
/// same, as the logical operations that clear AF, the emulation has to do it too.
fn undefined_flags(instruction: &Instruction) -> u64 {
    if matches!(instruction.mnemonic(), Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test) {
        return 0;
    }
    let undefined = instruction.rflags_undefined();
    [
        (RflagsBits::AF, rflags::AF),
        (RflagsBits::CF, rflags::CF),
        (RflagsBits::OF, rflags::OF),
        (RflagsBits::PF, rflags::PF),
        (RflagsBits::SF, rflags::SF),
        (RflagsBits::ZF, rflags::ZF),
    ]
    .into_iter()
    .filter(|(bit, _)| undefined & bit != 0)
    .map(|(_, flag)| flag)
    .sum()
}

/// The names of what differs, flags only in `flags`.
fn differences(cpu: &End, ours: &End, flags: u64) -> Vec<&'static str> {
    let (mut cpu_regs, mut our_regs) = (cpu.regs, ours.regs);
    cpu_regs.rflags &= flags;
    our_regs.rflags &= flags;
    let all = [
        ("exception", (cpu.vector, cpu.code, cpu.cr2) != (ours.vector, ours.code, ours.cr2)),
        ("flags", cpu_regs.rflags != our_regs.rflags),
        ("registers", {
            cpu_regs.rflags = our_regs.rflags;
            cpu_regs != our_regs
        }),
        ("x87 and SSE registers", cpu.fx != ours.fx),
        ("memory", cpu.window != ours.window),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

fn describe(trial: &Trial, how: &str, cpu: &End, ours: &End, differences: &[&str]) -> String {
    let Trial { number, case, .. } = trial;
    let mut words = String::new();
    let _ = writeln!(
        words,
        "instruction {number} `{}` {:02x?}, {how}: {} differ\n  start {:x?}\n  window {}\n  sse {}",
        text(&case.instruction),
        case.bytes,
        differences.join(", "),
        case.start.regs,
        Hex(&case.start.window),
        Hex(&case.start.fx[160..416]),
    );
    for (who, end) in [("cpu ", cpu), ("ours", ours)] {
        let _ = writeln!(
            words,
            "  {who}  {:x?} exception {} code {:#x} cr2 {:#x}",
            end.regs, end.vector, end.code, end.cr2
        );
    }
    for (what, cpu, ours) in [("window", &cpu.window[..], &ours.window[..]), ("fx", &cpu.fx, &ours.fx)] {
        for (at, (cpu, ours)) in cpu.iter().zip(ours).enumerate().filter(|(_, (cpu, ours))| cpu != ours) {
            let _ = writeln!(words, "  {what}+{at:#x}: cpu {cpu:02x}, ours {ours:02x}");
        }
    }
    words
}

/// Bytes without anything between them.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::guest::{FX, PF, WINDOW};
    use super::*;
    use probe_engine::regs::Regs;

    #[test]
    fn whatever_differs_is_named_and_flags_only_where_they_count() {
        let cpu =
            End { regs: Regs::default(), vector: BP, code: 0, cr2: 0, fx: [0; FX], window: [0; WINDOW] };
        type Change = fn(&mut End);
        let cases: [(&str, Change); 8] = [
            ("exception", |end| end.vector = PF),
            ("exception", |end| end.code = 2),
            ("exception", |end| end.cr2 = 1),
            ("flags", |end| end.regs.rflags = rflags::CF),
            ("registers", |end| end.regs.r15 = 1),
            ("registers", |end| end.regs.rip = 1),
            ("x87 and SSE registers", |end| end.fx[200] = 1),
            ("memory", |end| end.window[WINDOW - 1] = 1),
        ];
        assert!(differences(&cpu, &cpu, u64::MAX).is_empty());
        for (name, change) in cases {
            let mut ours = cpu.clone();
            change(&mut ours);
            assert_eq!(differences(&cpu, &ours, u64::MAX), [name]);
        }
        let ours = End { regs: Regs { rflags: rflags::AF, ..cpu.regs }, ..cpu.clone() };
        assert!(differences(&cpu, &ours, !rflags::AF).is_empty());
    }
}
