//! A kernel's ORC table as call frame information (DWARF 5, section 6.4), by which debuggers go from a frame to its caller:
//! also through interrupts and exceptions, and from one stack to another, of which the compiler's own knows nothing.
//!
//! The table says how RSP, RBP and the return address are found. Where the other registers are that a function has to
//! keep is seen from what it pushes: see [`Pushes`].

use super::pushes::{KEPT, Place, Pushes};
use super::spans::{Function, Span, functions};
use gimli::write::{
    Address, CallFrameInstruction, CieId, CommonInformationEntry, DebugFrame, EndianVec, Error, Expression,
    FrameDescriptionEntry, FrameTable, Result,
};
use gimli::{Encoding, Format, LittleEndian, Register, X86_64};
use probe_engine::addr::Gva;
use probe_engine::linux::orc::{BpBase, Holds, OrcFrame, OrcRow, OrcTable, SpBase};
use probe_engine::linux::symbols::SymbolTable;
use probe_engine::regs::Register as Saved;
use std::collections::HashMap;
use std::ops::Range;

/// All registers that `struct pt_regs` has.
const PT_REGS: [(Register, Saved); 17] = [
    (X86_64::R15, Saved::R15),
    (X86_64::R14, Saved::R14),
    (X86_64::R13, Saved::R13),
    (X86_64::R12, Saved::R12),
    (X86_64::RBP, Saved::Rbp),
    (X86_64::RBX, Saved::Rbx),
    (X86_64::R11, Saved::R11),
    (X86_64::R10, Saved::R10),
    (X86_64::R9, Saved::R9),
    (X86_64::R8, Saved::R8),
    (X86_64::RAX, Saved::Rax),
    (X86_64::RCX, Saved::Rcx),
    (X86_64::RDX, Saved::Rdx),
    (X86_64::RSI, Saved::Rsi),
    (X86_64::RDI, Saved::Rdi),
    (X86_64::RA, Saved::Rip),
    (X86_64::RSP, Saved::Rsp),
];
/// Where what the CPU pushes at an interrupt has them (SDM volume 3, section 6.14.2).
const IRET_FRAME: [(Register, i32); 2] = [(X86_64::RA, 0), (X86_64::RSP, 24)];

/// The contents of `.debug_frame`, for the functions of `symbols`, whose code `code` reads.
///
/// # Errors
/// When it is larger than such a section can be.
pub(super) fn debug_frame<'a>(
    orc: &OrcTable,
    symbols: &SymbolTable,
    code: impl Fn(&Range<Gva>) -> Option<&'a [u8]>,
) -> Result<Vec<u8>> {
    let functions = functions(orc, symbols);
    let pushes: HashMap<Gva, Pushes> =
        functions.iter().map(|function| (function.start, Pushes::of(&function.spans, &code))).collect();
    let mut table = FrameTable::default();
    for function in &functions {
        // What a function does seldom lies elsewhere, and begins with what the function has pushed.
        let main = function.name.split_once(".cold").map(|(main, _)| symbols.address_of(main));
        let pushes = main.unwrap_or(Some(function.start)).and_then(|start| pushes.get(&start));
        add(&mut table, function, pushes)?;
    }
    let mut section = DebugFrame::from(EndianVec::new(LittleEndian));
    table.write_debug_frame(&mut section)?;
    Ok(section.0.into_vec())
}

/// What instructions have in common that one entry describes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nobody has called them.
    Bottom,
    /// The caller's frame leads from `Holds`. A frame that is none of a call has `signal`: the instruction before
    /// its caller's is no call either.
    Frame { holds: Holds, signal: bool },
}

impl Kind {
    fn of(row: &OrcRow) -> Option<Self> {
        match row {
            OrcRow::Undefined => None,
            OrcRow::EndOfStack => Some(Self::Bottom),
            // A debugger takes a stack that goes on at a lower address for a damaged one, but where a signal came.
            OrcRow::Frame(OrcFrame { holds, signal, sp, .. }) => {
                Some(Self::Frame { holds: *holds, signal: *signal || *sp == SpBase::SpIndirect })
            }
        }
    }

    /// What holds for all of them. The CFA is what the table's `sp` leads to.
    fn cie(self) -> CommonInformationEntry {
        let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 1 };
        let mut cie = CommonInformationEntry::new(encoding, 1, -8, X86_64::RA);
        cie.add_instruction(CallFrameInstruction::Cfa(X86_64::RSP, 8));
        let saved: Vec<(Register, i32)> = match self {
            Self::Bottom => {
                cie.add_instruction(CallFrameInstruction::Undefined(X86_64::RA));
                Vec::new()
            }
            Self::Frame { holds: Holds::Return, .. } => {
                KEPT.iter().for_each(|kept| cie.add_instruction(CallFrameInstruction::SameValue(*kept)));
                vec![(X86_64::RA, -8)]
            }
            Self::Frame { holds: Holds::Regs, .. } => {
                PT_REGS.map(|(register, saved)| (register, saved.saved().into())).to_vec()
            }
            Self::Frame { holds: Holds::IretFrame, .. } => IRET_FRAME.to_vec(),
        };
        for (register, at) in saved {
            cie.add_instruction(CallFrameInstruction::Offset(register, at));
        }
        cie.signal_trampoline = matches!(self, Self::Frame { signal: true, .. });
        cie
    }
}

/// All that may change from one instruction to the next.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rules {
    cfa: (SpBase, i16),
    places: [Place; KEPT.len()],
}

impl Rules {
    /// Those at the first instruction, when nothing else is said.
    const FIRST: Self = Self { cfa: (SpBase::Sp, 8), places: [Place::Usual; KEPT.len()] };

    fn of(row: &OrcRow, at: Gva, pushes: Option<&Pushes>) -> Self {
        let OrcRow::Frame(frame) = row else { return Self::FIRST };
        let is_call = frame.holds == Holds::Return;
        let places = KEPT.map(|register| match (register, frame.bp) {
            (X86_64::RBP, BpBase::Unchanged) => Place::Usual,
            (X86_64::RBP, BpBase::PrevSp) => Place::Saved(frame.bp_offset.into()),
            (X86_64::RBP, BpBase::Bp) => Place::AtBp(frame.bp_offset),
            _ if is_call => pushes.map_or(Place::Unknown, |pushes| pushes.place(register, at, frame)),
            _ => Place::Usual,
        });
        Self { cfa: (frame.sp, frame.sp_offset), places }
    }

    /// How one comes from `before` to these.
    fn instructions(&self, before: &Self) -> impl Iterator<Item = CallFrameInstruction> {
        let cfa = (self.cfa != before.cfa).then(|| cfa(self.cfa.0, self.cfa.1));
        let places = KEPT.into_iter().zip(self.places).zip(before.places);
        let changed =
            places.filter(|((_, now), before)| now != before).map(|((register, now), _)| match now {
                Place::Usual => CallFrameInstruction::Restore(register),
                Place::Saved(at) => CallFrameInstruction::Offset(register, at),
                Place::AtBp(at) => CallFrameInstruction::Expression(register, from(X86_64::RBP, at)),
                Place::Unknown => CallFrameInstruction::Undefined(register),
            });
        cfa.into_iter().chain(changed)
    }
}

fn cfa(base: SpBase, offset: i16) -> CallFrameInstruction {
    let pointed = |register, at, behind: i16| {
        let mut place = from(register, at);
        place.op_deref();
        place.op_consts(behind.into());
        place.op(gimli::DW_OP_plus);
        CallFrameInstruction::CfaExpression(place)
    };
    match base {
        SpBase::Sp => CallFrameInstruction::Cfa(X86_64::RSP, offset.into()),
        SpBase::Bp => CallFrameInstruction::Cfa(X86_64::RBP, offset.into()),
        SpBase::SpIndirect => pointed(X86_64::RSP, 0, offset),
        SpBase::BpIndirect => pointed(X86_64::RBP, offset, 0),
        SpBase::R10 => CallFrameInstruction::Cfa(X86_64::R10, 0),
        SpBase::R13 => CallFrameInstruction::Cfa(X86_64::R13, 0),
        SpBase::Di => CallFrameInstruction::Cfa(X86_64::RDI, 0),
        SpBase::Dx => CallFrameInstruction::Cfa(X86_64::RDX, 0),
        SpBase::Ax => CallFrameInstruction::Cfa(X86_64::RAX, 0),
    }
}

/// The address `at` bytes from what `register` holds.
fn from(register: Register, at: i16) -> Expression {
    let mut place = Expression::new();
    place.op_breg(register, at.into());
    place
}

/// Adds the entries of a function: one for each part whose instructions are of one kind.
fn add(table: &mut FrameTable, function: &Function<'_>, pushes: Option<&Pushes>) -> Result<()> {
    let belong = |one: &Span, next: &Span| {
        one.range.end == next.range.start && Kind::of(&one.row) == Kind::of(&next.row)
    };
    for part in function.spans.chunk_by(belong) {
        let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
        let Some(kind) = Kind::of(&first.row) else { continue };
        let cie: CieId = table.add_cie(kind.cie());
        let start = first.range.start;
        let offset = |at: Gva| u32::try_from(at.0 - start.0).map_err(|_| Error::ValueTooLarge);
        let mut entry = FrameDescriptionEntry::new(Address::Constant(start.0), offset(last.range.end)?);
        let mut before = Rules::FIRST;
        for span in part {
            let more = pushes.into_iter().flat_map(|pushes| pushes.within(span.range.clone()));
            for at in [span.range.start].into_iter().chain(more) {
                let (rules, offset) = (Rules::of(&span.row, at, pushes), offset(at)?);
                rules
                    .instructions(&before)
                    .for_each(|instruction| entry.add_instruction(offset, instruction));
                before = rules;
            }
        }
        table.add_fde(cie, entry);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
