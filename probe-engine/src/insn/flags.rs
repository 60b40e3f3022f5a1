//! Results and status flags of the integer operations (Intel SDM volume 1, appendix A; volume 2 for each).

use super::operand::Width;
use crate::regs::rflags::{AF, CF, OF, PF, SF, ZF};
use iced_x86::ConditionCode;

/// The six status flags.
pub(super) const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// A result, and the status flags that belong to it.
pub(super) struct Outcome {
    pub(super) value: u64,
    pub(super) flags: u64,
}

/// An operation on two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    And,
    Or,
    Xor,
}

/// A shift by a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shift {
    Left,
    LogicalRight,
    ArithmeticRight,
}

impl Binary {
    /// The result and all six status flags; the operands are already cut to `width`.
    pub(super) fn apply(self, a: u64, b: u64, width: Width) -> Outcome {
        match self {
            Self::Add => {
                let value = a.wrapping_add(b) & width.mask();
                let overflow = (a ^ value) & (b ^ value) & width.sign() != 0;
                outcome(value, width, set(CF, value < a) | set(OF, overflow) | ((a ^ b ^ value) & AF))
            }
            Self::Sub => {
                let value = a.wrapping_sub(b) & width.mask();
                let overflow = (a ^ b) & (a ^ value) & width.sign() != 0;
                outcome(value, width, set(CF, a < b) | set(OF, overflow) | ((a ^ b ^ value) & AF))
            }
            // AF is undefined after these; CPUs clear it.
            Self::And => outcome(a & b, width, 0),
            Self::Or => outcome(a | b, width, 0),
            Self::Xor => outcome(a ^ b, width, 0),
        }
    }
}

impl Shift {
    /// The result and all six status flags of a shift by `count`, 1 to 63 and already masked as the CPU does.
    pub(super) fn apply(self, a: u64, count: u32, width: Width) -> Outcome {
        let (value, carry, overflow) = match self {
            Self::Left => {
                let wide = u128::from(a) << count;
                let value = wide as u64 & width.mask();
                let carry = wide >> width.bits() & 1 != 0;
                (value, carry, (value & width.sign() != 0) != carry)
            }
            Self::LogicalRight => (a >> count, a >> (count - 1) & 1 != 0, a & width.sign() != 0),
            Self::ArithmeticRight => {
                let wide = width.sign_extend(a) as i64;
                ((wide >> count) as u64 & width.mask(), wide >> (count - 1) & 1 != 0, false)
            }
        };
        outcome(value, width, set(CF, carry) | set(OF, overflow))
    }
}

/// Whether `condition` holds in `rflags` (SDM volume 1, appendix B).
pub(super) fn holds(condition: ConditionCode, rflags: u64) -> bool {
    let is_set = |flag| rflags & flag != 0;
    let less = is_set(SF) != is_set(OF);
    match condition {
        ConditionCode::None => true,
        ConditionCode::o => is_set(OF),
        ConditionCode::no => !is_set(OF),
        ConditionCode::b => is_set(CF),
        ConditionCode::ae => !is_set(CF),
        ConditionCode::e => is_set(ZF),
        ConditionCode::ne => !is_set(ZF),
        ConditionCode::be => is_set(CF | ZF),
        ConditionCode::a => !is_set(CF | ZF),
        ConditionCode::s => is_set(SF),
        ConditionCode::ns => !is_set(SF),
        ConditionCode::p => is_set(PF),
        ConditionCode::np => !is_set(PF),
        ConditionCode::l => less,
        ConditionCode::ge => !less,
        ConditionCode::le => less || is_set(ZF),
        ConditionCode::g => !less && !is_set(ZF),
    }
}

fn outcome(value: u64, width: Width, flags: u64) -> Outcome {
    let even = (value as u8).count_ones().is_multiple_of(2);
    let by_value = set(ZF, value == 0) | set(SF, value & width.sign() != 0) | set(PF, even);
    Outcome { value, flags: flags | by_value }
}

fn set(flag: u64, condition: bool) -> u64 {
    if condition { flag } else { 0 }
}
