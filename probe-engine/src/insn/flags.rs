//! Results and status flags of the integer operations (Intel SDM volume 1, appendix A; volume 2 for each).

use super::operand::Width;
use crate::regs::rflags::{AF, CF, OF, PF, SF, ZF};
use iced_x86::ConditionCode;

/// The six status flags.
const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// A result, and what becomes of the status flags.
pub(super) struct Outcome {
    pub(super) value: u64,
    /// The flags that the operation changes; the others stay.
    pub(super) changed: u64,
    pub(super) flags: u64,
}

/// An operation on two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    AddWithCarry,
    Sub,
    SubWithBorrow,
    And,
    Or,
    Xor,
}

/// A shift or a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shift {
    Left,
    LogicalRight,
    ArithmeticRight,
    RotateLeft,
    RotateRight,
    /// The carry is one more bit, above the top one.
    RotateLeftThroughCarry,
    RotateRightThroughCarry,
}

/// What to do with one bit after it was copied to the carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bit {
    Test,
    Set,
    Reset,
    Complement,
}

impl Binary {
    /// The result and all six status flags; the operands are already cut to `width`, and `rflags` are those before.
    pub(super) fn apply(self, a: u64, b: u64, rflags: u64, width: Width) -> Outcome {
        match self {
            Self::Add => add(a, b, 0, width),
            Self::AddWithCarry => add(a, b, rflags & CF, width),
            Self::Sub => sub(a, b, 0, width),
            Self::SubWithBorrow => sub(a, b, rflags & CF, width),
            // AF is undefined after these; CPUs clear it.
            Self::And => outcome(a & b, width, 0),
            Self::Or => outcome(a | b, width, 0),
            Self::Xor => outcome(a ^ b, width, 0),
        }
    }
}

fn add(a: u64, b: u64, carry: u64, width: Width) -> Outcome {
    let wide = u128::from(a) + u128::from(b) + u128::from(carry);
    let value = wide as u64 & width.mask();
    let overflow = (a ^ value) & (b ^ value) & width.sign() != 0;
    let carry = wide >> width.bits() != 0;
    outcome(value, width, set(CF, carry) | set(OF, overflow) | ((a ^ b ^ value) & AF))
}

fn sub(a: u64, b: u64, borrow: u64, width: Width) -> Outcome {
    let value = a.wrapping_sub(b).wrapping_sub(borrow) & width.mask();
    let overflow = (a ^ b) & (a ^ value) & width.sign() != 0;
    let borrow = u128::from(a) < u128::from(b) + u128::from(borrow);
    outcome(value, width, set(CF, borrow) | set(OF, overflow) | ((a ^ b ^ value) & AF))
}

impl Shift {
    /// The result of a shift by `count`, which is cut as the CPU does, and its flags; none change when nothing is
    /// left of the count. OF is undefined after more than one bit; here it follows the same rule then.
    pub(super) fn apply(self, a: u64, count: u64, rflags: u64, width: Width) -> Outcome {
        let count = count as u32 & if width == Width::Qword { 0x3f } else { 0x1f };
        if count == 0 {
            return unchanged(a);
        }
        let is_negative = |value: u64| value & width.sign() != 0;
        let differ = |value: u64| is_negative(value) != is_negative(value << 1);
        let bits = width.bits();
        match self {
            Self::Left => {
                let wide = u128::from(a) << count;
                let value = wide as u64 & width.mask();
                let carry = wide >> bits & 1 != 0;
                outcome(value, width, set(CF, carry) | set(OF, is_negative(value) != carry))
            }
            Self::LogicalRight => {
                let carry = a >> (count - 1) & 1 != 0;
                outcome(a >> count, width, set(CF, carry) | set(OF, is_negative(a)))
            }
            Self::ArithmeticRight => {
                let wide = width.sign_extend(a) as i64;
                outcome((wide >> count) as u64 & width.mask(), width, set(CF, wide >> (count - 1) & 1 != 0))
            }
            Self::RotateLeft => {
                let value = rotate_left(a.into(), count % bits, bits) as u64;
                let carry = value & 1 != 0;
                rotated(value, carry, is_negative(value) != carry)
            }
            Self::RotateRight => {
                let value = rotate_left(a.into(), bits - count % bits, bits) as u64;
                rotated(value, is_negative(value), differ(value))
            }
            Self::RotateLeftThroughCarry => {
                let wide = u128::from(rflags & CF) << bits | u128::from(a);
                let wide = rotate_left(wide, count % (bits + 1), bits + 1);
                let (value, carry) = (wide as u64 & width.mask(), wide >> bits != 0);
                rotated(value, carry, is_negative(value) != carry)
            }
            Self::RotateRightThroughCarry => {
                let wide = u128::from(rflags & CF) << bits | u128::from(a);
                let wide = rotate_left(wide, bits + 1 - count % (bits + 1), bits + 1);
                let (value, carry) = (wide as u64 & width.mask(), wide >> bits != 0);
                rotated(value, carry, differ(value))
            }
        }
    }
}

impl Bit {
    /// The value with the bit numbered `index`, cut to `width`, changed; CF is what the bit was.
    pub(super) fn apply(self, a: u64, index: u64, width: Width) -> Outcome {
        let bit = 1 << (index as u32 % width.bits());
        let value = match self {
            Self::Test => a,
            Self::Set => a | bit,
            Self::Reset => a & !bit,
            Self::Complement => a ^ bit,
        };
        Outcome { value, changed: CF, flags: set(CF, a & bit != 0) }
    }
}

/// The low and the high half of a product. CF and OF say that the low one is not all of it; the other flags are
/// undefined, and stay.
pub(super) fn multiply(a: u64, b: u64, is_signed: bool, width: Width) -> (Outcome, u64) {
    let wide = |value| match is_signed {
        true => i128::from(width.sign_extend(value) as i64) as u128,
        false => u128::from(value),
    };
    let product = wide(a).wrapping_mul(wide(b));
    let value = product as u64 & width.mask();
    let high = (product >> width.bits()) as u64 & width.mask();
    let outcome = Outcome { value, changed: CF | OF, flags: set(CF | OF, wide(value) != product) };
    (outcome, high)
}

/// `value` as it is.
pub(super) fn unchanged(value: u64) -> Outcome {
    Outcome { value, changed: 0, flags: 0 }
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

/// Rotates the low `bits`, at most 65, by `count`, at most `bits`.
fn rotate_left(value: u128, count: u32, bits: u32) -> u128 {
    ((value << count) | (value >> (bits - count))) & ((1 << bits) - 1)
}

/// Rotations leave the flags alone that tell of the value.
fn rotated(value: u64, carry: bool, overflow: bool) -> Outcome {
    Outcome { value, changed: CF | OF, flags: set(CF, carry) | set(OF, overflow) }
}

fn outcome(value: u64, width: Width, flags: u64) -> Outcome {
    let even = (value as u8).count_ones().is_multiple_of(2);
    let by_value = set(ZF, value == 0) | set(SF, value & width.sign() != 0) | set(PF, even);
    Outcome { value, changed: STATUS, flags: flags | by_value }
}

fn set(flag: u64, condition: bool) -> u64 {
    if condition { flag } else { 0 }
}
