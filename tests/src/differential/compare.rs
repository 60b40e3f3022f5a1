//! Runs instructions both ways, and tells what differs.

use super::guest::{BATCH, BP, CELL, End, Guest, IN_CELL, ORIGINALS, PF, SLOTS, Start, UD};
use super::guest::{FS_BASE, GS_BASE};
use super::rng::Rng;
use super::start::{Case, case, excluded};
use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, RflagsBits};
use probe_engine::addr::Gva;
use probe_engine::insn::copy::{Ending, OutOfLine};
use probe_engine::insn::decode::{decode, text};
use probe_engine::insn::emulate::{Emulation, Segments};
use probe_engine::insn::plan::{Plan, Refusal, plan};
use probe_engine::regs::rflags;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use vmm::kvm::Exception;

/// What became of all instructions.
#[derive(Default)]
pub struct Outcome {
    /// Compared after emulation, and after a copy.
    pub emulated: usize,
    /// As above.
    pub copied: usize,
    /// Not planned, by reason.
    pub refused: BTreeMap<String, usize>,
    /// Not tried, by reason.
    pub excluded: BTreeMap<&'static str, usize>,
    /// Where the CPU is known to be wrong, by what it does.
    pub known: BTreeMap<&'static str, usize>,
    /// How the CPU ended, by exception vector.
    pub vectors: BTreeMap<u64, usize>,
    /// Distinct opcodes that were compared after emulation, and after a copy.
    pub opcodes: [BTreeMap<String, usize>; 2],
    /// Mismatches by opcode.
    pub mismatches: BTreeMap<String, usize>,
    /// The first mismatches of each opcode, described.
    pub described: Vec<String>,
}

/// One instruction under way.
struct Trial {
    number: usize,
    case: Case,
    way: Plan,
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
        *outcome.excluded.entry("no state in which it comes back").or_default() += 1;
        return None;
    };
    let way =
        plan(&case.bytes, at, None, false).unwrap_or_else(|refusal| panic!("{refusal}, but not before"));
    Some(Trial { number, case, way })
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
    let mut originals = guest.run(&starts);
    let mut copies = Vec::new();
    for (n, trial) in trials.iter().enumerate() {
        if let Plan::OutOfLine(copy) = &trial.way {
            let slot = in_cell(SLOTS, n);
            let code = copy.place(slot, ending(n)).unwrap_or_else(|error| panic!("{error}"));
            guest.slot(n, &code);
            let mut start = trial.case.start.clone();
            start.regs.rip = slot.0;
            copies.push(start);
        }
    }
    let mut copies = guest.run(&copies).into_iter();
    for ((n, trial), original) in trials.iter().enumerate().zip(&mut originals) {
        let (ours, index) = match &trial.way {
            Plan::Emulate(emulation) => (emulate(guest, emulation, &trial.case.start), 0),
            Plan::OutOfLine(copy) => {
                let end = copies.next().expect("an end for each start");
                (back(end, copy, in_cell(SLOTS, n)), 1)
            }
        };
        let code = format!("{:?}", trial.case.instruction.code());
        *[&mut outcome.emulated, &mut outcome.copied][index] += 1;
        *outcome.vectors.entry(original.vector).or_default() += 1;
        *outcome.opcodes[index].entry(code.clone()).or_default() += 1;
        if index == 0 && guest.is_qemu() {
            match correct(original, &ours, &trial.case) {
                Quirk::None => {}
                Quirk::Corrected(what) => *outcome.known.entry(what).or_default() += 1,
                Quirk::Refused(what) => {
                    *outcome.known.entry(what).or_default() += 1;
                    continue;
                }
            }
        }
        let undefined = if index == 0 { undefined_flags(&trial.case.instruction) } else { 0 };
        let differences = differences(original, &ours, !undefined & !rflags::RF);
        if !differences.is_empty() {
            let count = outcome.mismatches.entry(code).or_default();
            *count += 1;
            if *count <= 2 {
                outcome.described.push(describe(trial, original, &ours, &differences));
            }
        }
    }
}

/// Both endings of a copy have their turn.
fn ending(n: usize) -> Ending {
    if n.is_multiple_of(2) { Ending::Trap } else { Ending::Jump }
}

/// The end of a copy as that of its original.
fn back(mut end: End, copy: &OutOfLine, slot: Gva) -> End {
    if end.vector == BP && end.regs.rip == copy.trap(slot).0 {
        end.regs.rip = copy.next().0;
    } else if end.regs.rip == slot.0 {
        end.regs.rip = copy.at().0;
    }
    end
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

/// What QEMU's CPU, as of version 10.0, does and no other.
enum Quirk {
    None,
    /// The end has been made what another CPU leaves.
    Corrected(&'static str),
    /// There is nothing to compare with.
    Refused(&'static str),
}

/// Makes of what QEMU's CPU left behind an instruction what a CPU leaves.
fn correct(end: &mut End, ours: &End, case: &Case) -> Quirk {
    const WRITE: u64 = 1 << 1;
    const SS: u64 = 12;
    const GP: u64 = 13;
    let instruction = &case.instruction;
    if end.vector == GP && end.code == 0 && ours.vector == SS {
        end.vector = SS;
        return Quirk::Corrected("a bad stack address raises #GP");
    }
    if is_whole_turn(case) {
        return Quirk::Refused("rcl and rcr by a whole turn change the operand");
    }
    let mut factory = InstructionInfoFactory::new();
    let memory = factory.info(instruction).used_memory();
    let modifies = memory.iter().any(|used| used.access() == OpAccess::ReadWrite);
    if end.vector == PF && end.code & WRITE == 0 && modifies {
        // The load of a read-modify-write needs write access (SDM volume 3, 4.7).
        end.code |= WRITE;
        return Quirk::Corrected("a read-modify-write faults as a load");
    }
    if end.vector == BP && instruction.code() == Code::Retnq_imm16 && instruction.immediate16() >> 15 != 0 {
        // It takes the operand for a signed number.
        end.regs.rsp = end.regs.rsp.wrapping_add(0x1_0000);
        return Quirk::Corrected("ret with an operand above 32767 goes back");
    }
    if end.vector == UD && instruction.mnemonic() == Mnemonic::Test {
        return Quirk::Refused("the second encoding of test is none");
    }
    Quirk::None
}

/// Whether it rotates an operand of 8 or 16 bits through the carry to where it was.
fn is_whole_turn(case: &Case) -> bool {
    let instruction = &case.instruction;
    let size = match instruction.op0_kind() {
        OpKind::Memory => instruction.memory_size().size(),
        _ => instruction.op0_register().size(),
    };
    let count = instruction.try_immediate(1).unwrap_or(case.start.regs.rcx) as usize & 0x1f;
    matches!(instruction.mnemonic(), Mnemonic::Rcl | Mnemonic::Rcr)
        && count != 0
        && count.is_multiple_of(8 * size + 1)
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

fn describe(trial: &Trial, cpu: &End, ours: &End, differences: &[&str]) -> String {
    let Trial { number, case, way } = trial;
    let mut words = String::new();
    let how = if matches!(way, Plan::Emulate(_)) { "emulated" } else { "copied" };
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
    use super::super::guest::{FX, WINDOW};
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
