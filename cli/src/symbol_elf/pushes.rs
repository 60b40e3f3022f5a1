//! Where a function keeps its caller's registers: what it pushes.
//!
//! The ORC table has a row behind each push, as the distance to the caller's frame grows by 8 there: the instruction in
//! front of that row is the push. Behind `mov %rsp,%rbp` there are no such rows, as the frame is found by RBP: the
//! instructions there are looked at.

use super::spans::Span;
use gimli::{Register, X86_64};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use probe_engine::addr::Gva;
use probe_engine::linux::orc::{Holds, OrcFrame, OrcRow, SpBase};
use std::collections::HashSet;
use std::ops::Range;

/// What a function has to leave as its caller had it (System V ABI, AMD64, figure 3.4), but for RSP.
pub(super) const KEPT: [Register; 6] =
    [X86_64::RBP, X86_64::RBX, X86_64::R12, X86_64::R13, X86_64::R14, X86_64::R15];

/// Most bytes from where a frame is found by RBP to where all is pushed.
const LONGEST_PROLOGUE: u64 = 128;
/// Most bytes that a function pushes there.
const DEEPEST: i16 = 256;
/// Most different pushes.
const MOST_PUSHES: usize = 64;

/// Where the caller's value of a register is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Where all of that kind have it: in its register, where functions call each other.
    Usual,
    /// So far from the CFA.
    Saved(i32),
    /// So far from RBP.
    AtBp(i16),
    Unknown,
}

/// What a function pushes.
pub(super) struct Pushes {
    /// What is pushed so many bytes below the caller's frame.
    below_frame: HashSet<(i16, Register)>,
    /// What is pushed behind `mov %rsp,%rbp`.
    below_bp: Vec<BelowBp>,
}

/// A register that lies `at` bytes from RBP, but not yet at the instructions of `missing`.
struct BelowBp {
    register: Register,
    at: i16,
    missing: Range<Gva>,
}

impl Pushes {
    /// Those in a function of these spans.
    pub(super) fn of<'a>(spans: &[Span], code: &impl Fn(&Range<Gva>) -> Option<&'a [u8]>) -> Self {
        let mut below_frame = HashSet::new();
        for pair in spans.windows(2) {
            let [before, behind] = pair else { continue };
            let (Some(above), Some(depth)) = (distance(&before.row), distance(&behind.row)) else { continue };
            if before.range.end != behind.range.start || above.checked_add(8) != Some(depth) {
                continue;
            }
            let last =
                decoded(code(&before.range).unwrap_or_default(), before.range.start).into_iter().last();
            let push = last.filter(|last| last.next_ip() == before.range.end.0);
            if let Some(register) = push.as_ref().and_then(pushed) {
                below_frame.insert((depth, register));
                // No function pushes so much: that is no such code.
                if below_frame.len() > MOST_PUSHES {
                    return Self { below_frame: HashSet::new(), below_bp: Vec::new() };
                }
            }
        }
        Self { below_frame, below_bp: below_bp(spans, code).unwrap_or_default() }
    }

    /// Where the caller's `register` is, at the instruction at `at`, which has this row: nothing lies below the stack
    /// pointer.
    pub(super) fn place(&self, register: Register, at: Gva, row: &OrcFrame) -> Place {
        let limit = if row.sp == SpBase::Sp { row.sp_offset } else { i16::MAX };
        let mut own =
            self.below_frame.iter().filter(|(depth, pushed)| *depth <= limit && *pushed == register);
        let is_shared = |depth| self.below_frame.iter().filter(|(other, _)| *other == depth).count() > 1;
        match (own.next(), own.next()) {
            (Some((depth, _)), None) if !is_shared(*depth) => return Place::Saved(-i32::from(*depth)),
            // Other ways through the function push something else there, or the register elsewhere.
            (Some(_), _) => return Place::Unknown,
            (None, _) => {}
        }
        let below_bp =
            self.below_bp.iter().find(|push| push.register == register && !at.is_in(&push.missing));
        match (below_bp, row.sp) {
            (Some(push), SpBase::Bp) => Place::Saved(i32::from(push.at) - i32::from(row.sp_offset)),
            (Some(push), SpBase::BpIndirect) => Place::AtBp(push.at),
            _ => Place::Usual,
        }
    }

    /// Where behind the first instruction of `range` something has been pushed for which the table has no row.
    pub(super) fn within(&self, range: Range<Gva>) -> impl Iterator<Item = Gva> {
        let behind = self.below_bp.iter().map(|push| push.missing.end);
        behind.filter(move |at| at.is_in(&range) && *at != range.start)
    }
}

/// How far the caller's frame is from RSP, where that is how it is found.
fn distance(row: &OrcRow) -> Option<i16> {
    match row {
        OrcRow::Frame(OrcFrame { holds: Holds::Return, sp: SpBase::Sp, sp_offset, .. }) => Some(*sp_offset),
        _ => None,
    }
}

fn is_by_bp(row: &OrcRow) -> bool {
    matches!(row, OrcRow::Frame(OrcFrame { sp: SpBase::Bp | SpBase::BpIndirect, .. }))
}

/// What is pushed behind `mov %rsp,%rbp`, up to where the function does something else.
fn below_bp<'a>(spans: &[Span], code: &impl Fn(&Range<Gva>) -> Option<&'a [u8]>) -> Option<Vec<BelowBp>> {
    let by_bp = spans.iter().find(|span| is_by_bp(&span.row))?.range.start;
    let (start, end) = (spans.first()?.range.start, spans.last()?.range.end);
    let function = code(&(start..end.min(by_bp.add(LONGEST_PROLOGUE))))?;
    let (mut pushes, mut depth, mut first) = (Vec::new(), 0, None);
    for instruction in decoded(function, start) {
        let (writes, behind) = (instruction.op0_register(), Gva(instruction.next_ip()));
        let is_push = instruction.mnemonic() == Mnemonic::Push;
        let Some(first) = first else {
            let is_frame =
                writes == iced_x86::Register::RBP && instruction.op1_register() == iced_x86::Register::RSP;
            first = is_frame.then_some(behind);
            continue;
        };
        if instruction.flow_control() != FlowControl::Next || (writes == iced_x86::Register::RSP && !is_push)
        {
            break;
        }
        if is_push {
            depth += 8;
        }
        if depth > DEEPEST {
            break;
        }
        // A second push of a register is of the function's own value.
        if let Some(register) = pushed(&instruction)
            && pushes.iter().all(|push: &BelowBp| push.register != register)
        {
            pushes.push(BelowBp { register, at: -depth, missing: first..behind });
        }
    }
    Some(pushes)
}

fn decoded(code: &[u8], start: Gva) -> Decoder<'_> {
    Decoder::with_ip(64, code, start.0, DecoderOptions::NONE)
}

/// Which register the instruction pushes, where it is one that has to be kept: of RBP the table tells.
fn pushed(instruction: &Instruction) -> Option<Register> {
    match (instruction.mnemonic(), instruction.op0_register()) {
        (Mnemonic::Push, iced_x86::Register::RBX) => Some(X86_64::RBX),
        (Mnemonic::Push, iced_x86::Register::R12) => Some(X86_64::R12),
        (Mnemonic::Push, iced_x86::Register::R13) => Some(X86_64::R13),
        (Mnemonic::Push, iced_x86::Register::R14) => Some(X86_64::R14),
        (Mnemonic::Push, iced_x86::Register::R15) => Some(X86_64::R15),
        _ => None,
    }
}
