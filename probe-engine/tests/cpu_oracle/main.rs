//! Emulation against the CPU that runs the test: the same instruction, registers, flags and memory natively and
//! through `Emulation::execute`, and everything that both leave behind compared. What is not emulated is compared
//! with its own copy.
//!
//! A piece of code in an executable mapping below 2 GiB loads all sixteen registers and the flags from absolute
//! addresses, runs the instruction, and stores them back.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "test code")]

mod encodings;
mod native;
mod state;

use encodings::{copied_forms, encode, forms, others};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register, RflagsBits};
use native::{Native, SCRATCH, SITE, SLOT_BEFORE_SITE, WINDOW};
use probe_engine::addr::{Gpa, Gva};
use probe_engine::insn::copy::Ending;
use probe_engine::insn::decode::text;
use probe_engine::insn::emulate::Segments;
use probe_engine::insn::plan::{Refusal, StepPlan, plan};
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::paging::AddressSpace;
use probe_engine::regs::rflags;
use probe_engine::virt_memory::VirtMemory;
use state::{FLAGS, Rng, state};
use std::cell::RefCell;
use std::collections::BTreeMap;

const STATES: u64 = 100;
/// Guest memory of the emulated side: page tables that map the scratch page where the native one lies.
struct Ram(RefCell<Vec<u8>>);

const SCRATCH_PHYS: u64 = 0x5000;

impl Ram {
    fn new(scratch: u64) -> Self {
        let ram = Self(RefCell::new(vec![0; 0x6000]));
        for (level, table) in [(3, 0x1000), (2, 0x2000), (1, 0x3000), (0, 0x4000)] {
            let index = scratch >> (12 + 9 * level) & 0x1ff;
            ram.write(Gpa(table + index * 8), &((table + 0x1000) | 3).to_le_bytes()).unwrap();
        }
        ram
    }
}

impl PhysMemory for Ram {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        let ram = self.0.borrow();
        buf.copy_from_slice(ram.get(at.0 as usize..at.0 as usize + buf.len()).ok_or(NoMemory(at))?);
        Ok(())
    }
    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
        let mut ram = self.0.borrow_mut();
        ram.get_mut(at.0 as usize..at.0 as usize + bytes.len()).ok_or(NoMemory(at))?.copy_from_slice(bytes);
        Ok(())
    }
    fn compare_exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, NoMemory> {
        let mut now = [0; 8];
        self.read(at, &mut now)?;
        let is_old = now == old.to_le_bytes();
        if is_old {
            self.write(at, &new.to_le_bytes())?;
        }
        Ok(is_old)
    }
}

/// Runs `bytes` in [`STATES`] states both ways, and says how many were compared.
fn compare(bytes: &[u8], rng: &mut Rng, native: &Native, ram: &Ram) -> u64 {
    let site = native.at(SITE);
    let instruction = Decoder::with_ip(64, bytes, site, DecoderOptions::NONE).decode();
    let name = text(&instruction);
    assert_eq!(instruction.len(), bytes.len(), "{bytes:02x?} `{name}`");
    let plan = plan(bytes, Gva(site), None, false);
    let Ok(StepPlan::Emulate(emulation)) = plan else { panic!("{bytes:02x?} `{name}`: {plan:?}") };
    let memory = VirtMemory::new(ram, AddressSpace::new(0x1000, 0));
    let segments = Segments { fs_base: 0, gs_base: native.at(SCRATCH) };
    native.assemble(bytes);
    let defined = FLAGS & !undefined_flags(&instruction);
    let mut compared = 0;
    for _ in 0..STATES {
        let filling: Vec<u8> = (0..WINDOW / 8).flat_map(|_| rng.value().to_le_bytes()).collect();
        native.write(SCRATCH, &filling);
        let Some(before) = state(&instruction, rng, native) else { continue };
        let mut window = vec![0; WINDOW];
        native.read(SCRATCH, &mut window);
        ram.write(Gpa(SCRATCH_PHYS), &window).unwrap();

        let mut ours = before;
        emulation
            .execute(&mut ours, &memory, &segments)
            .unwrap_or_else(|e| panic!("`{name}` {before:x?}: {e}"));
        let mut theirs = native.run(&before);

        ours.rflags &= defined;
        theirs.rflags &= defined;
        assert_eq!(
            ours, theirs,
            "{bytes:02x?} `{name}`\nours   {ours:x?}\ncpu    {theirs:x?}\nbefore {before:x?}"
        );
        let mut our_window = vec![0; WINDOW];
        ram.read(Gpa(SCRATCH_PHYS), &mut our_window).unwrap();
        native.read(SCRATCH, &mut window);
        assert!(our_window == window, "{bytes:02x?} `{name}` left other memory, before {before:x?}");
        compared += 1;
    }
    compared
}

/// Runs `bytes` in [`STATES`] states in place and from a copy, on the CPU both times, and says how many were
/// compared.
fn compare_copy(bytes: &[u8], rng: &mut Rng, native: &Native) -> u64 {
    let site = native.at(SITE);
    let instruction = Decoder::with_ip(64, bytes, site, DecoderOptions::NONE).decode();
    let name = text(&instruction);
    let plan = plan(bytes, Gva(site), None, false);
    let copy = match plan {
        Ok(StepPlan::OutOfLine(copy)) => copy,
        Err(Refusal::Operand(_)) if instruction.memory_base() == Register::EIP => return 0,
        other => panic!("{bytes:02x?} `{name}`: {other:?}"),
    };
    let slot = copy.place(Gva(native.at(SLOT_BEFORE_SITE)), Ending::Jump).unwrap();
    let mut compared = 0;
    for _ in 0..STATES {
        let filling: Vec<u8> = (0..WINDOW / 8).flat_map(|_| rng.value().to_le_bytes()).collect();
        native.write(SCRATCH, &filling);
        let Some(before) = state(&instruction, rng, native) else { continue };
        let mut window = vec![0; WINDOW];
        native.read(SCRATCH, &mut window);
        let run = |slot: Option<&[u8]>| {
            native.assemble(bytes);
            if let Some(slot) = slot {
                native.write(SLOT_BEFORE_SITE, slot);
                native.write(SITE, &vec![0xcc; bytes.len()]);
            }
            native.write(SCRATCH, &window);
            let regs = native.run(&before);
            let mut left = vec![0; WINDOW];
            native.read(SCRATCH, &mut left);
            (regs, left)
        };
        let (in_place, copied) = (run(None), run(Some(&slot)));
        assert_eq!(copied.0, in_place.0, "{bytes:02x?} `{name}` before {before:x?}");
        assert!(copied.1 == in_place.1, "{bytes:02x?} `{name}` left other memory, before {before:x?}");
        compared += 1;
    }
    compared
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

#[test]
fn emulation_leaves_what_the_cpu_leaves() {
    let native = Native::new();
    let ram = Ram::new(native.at(SCRATCH));
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let mut compared = BTreeMap::new();
    for bytes in others(&mut rng) {
        let states = compare(&bytes, &mut rng, &native, &ram);
        compared.insert(bytes, states);
    }
    for form in forms() {
        for _ in 0..12 {
            let bytes = encode(&form, &mut rng, &native);
            let states = compare(&bytes, &mut rng, &native, &ram);
            compared.insert(bytes, states);
        }
    }
    let whole = compared.values().filter(|states| **states == STATES).count();
    let states: u64 = compared.values().sum();
    println!("{} encodings, {whole} of them in all {STATES} states, {states} states", compared.len());
    assert!(whole >= 1000, "only {whole} of {} encodings ran in all states", compared.len());
}

#[test]
fn a_copy_leaves_what_the_original_leaves() {
    let native = Native::new();
    let mut rng = Rng(0x2545_f491_4f6c_dd1d);
    let mut states = vec![];
    for bytes in [&[0x66, 0x50][..], &[0x66, 0x58], &[0x0f, 0xa0], &[0x8c, 0xd8]] {
        states.push(compare_copy(bytes, &mut rng, &native));
    }
    for form in copied_forms() {
        for _ in 0..24 {
            let bytes = encode(&form, &mut rng, &native);
            states.push(compare_copy(&bytes, &mut rng, &native));
        }
    }
    let whole = states.iter().filter(|states| **states == STATES).count();
    println!("{} copies, {whole} of them in all {STATES} states", states.len());
    assert!(whole >= 150, "only {whole} of {} copies ran in all states", states.len());
}
