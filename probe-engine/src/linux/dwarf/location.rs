//! Where the value of a variable is at an address: what its location says, as far as a probe can read that.

use gimli::{
    AttributeValue, BaseAddresses, CfaRule, DebugFrame, EhFrame, Expression, Operation, UnitRef,
    UnwindContext, UnwindSection,
};

use super::scopes::Declared;
use super::{DwarfError, Slice};
use crate::regs::Register;

/// Most entries of lists that are looked at for one variable.
const MOST_ENTRIES: usize = 1 << 20;

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariablePlace {
    /// In a register.
    Register(Register),
    /// In memory, at an offset in bytes from what is in a register: a slot of the stack.
    Memory(Register, i64),
    /// It is this number all the time.
    Constant(u64),
}

/// Why a value cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Hidden {
    /// No register and no memory has it.
    #[error("has no value here: the compiler has optimized it out")]
    OptimizedOut,
    /// It is in several places.
    #[error("is kept in pieces here")]
    Pieces,
    /// Only the caller knows it.
    #[error("is not kept any more here: only its value at the function's entry could be found out")]
    EntryValue,
    /// Nothing has it as a whole.
    #[error("is not kept here: it would have to be computed from other values")]
    Computed,
    /// Its place is told by a pointer.
    #[error("lies here where a pointer leads, and in no register and no slot of the stack")]
    Indirect,
    /// It leads to nothing that is in memory.
    #[error("is a pointer here to something that the compiler has optimized out")]
    ImplicitPointer,
    /// It is no variable of a call.
    #[error("lies at a fixed address, and not in a register or on the stack")]
    Fixed,
    /// Each task or each CPU has its own.
    #[error("is a variable of the thread")]
    ThreadLocal,
    /// A vector register, for one.
    #[error("is in a register here that probes do not see")]
    OtherRegister,
    /// The function begins there, and has not put it there yet.
    #[error("is not there yet where the function begins: its place in the stack frame gets it later")]
    NotYet,
    /// The stack slots are counted from a place that is not known.
    #[error(
        "lies in the stack frame, and where that begins here is not said by the debugging information (.debug_frame)"
    )]
    NoFrame,
    /// The location is damaged, or of a kind that is not known.
    #[error("has a location here that is not understood")]
    Unknown,
}

/// From where stack slots are counted.
type FrameBase = Result<(Register, i64), Hidden>;

/// Where the functions of a unit have their variables.
pub(super) struct Locations<'u, 'a> {
    pub(super) unit: UnitRef<'u, Slice<'a>>,
    /// The address.
    pub(super) at: u64,
    /// The canonical frame address there.
    cfa: FrameBase,
    /// From where the function's slots are counted.
    base: FrameBase,
}

impl<'u, 'a> Locations<'u, 'a> {
    /// Those at `at`, in a function with this frame base.
    pub(super) fn new(
        unit: UnitRef<'u, Slice<'a>>,
        frames: Frames<'a>,
        at: u64,
        frame_base: Option<AttributeValue<Slice<'a>>>,
    ) -> Self {
        let cfa = cfa(frames, unit.address_size(), at);
        let mut found = Self { unit, at, cfa, base: Err(Hidden::NoFrame) };
        if let Some(AttributeValue::Exprloc(expression)) = frame_base {
            found.base = match found.evaluated(expression) {
                // `DW_OP_reg6`: the address is in the register.
                Ok(VariablePlace::Register(register)) => Ok((register, 0)),
                Ok(VariablePlace::Memory(register, offset)) => Ok((register, offset)),
                Ok(VariablePlace::Constant(_)) => Err(Hidden::NoFrame),
                Err(hidden) => Err(hidden),
            };
        }
        found
    }

    /// Where a variable is.
    pub(super) fn place(&self, declared: &Declared<'a>) -> Result<Result<VariablePlace, Hidden>, DwarfError> {
        let Some(location) = declared.location else {
            return Ok(match (declared.constant, declared.is_elsewhere) {
                (Some(value), _) => constant(value).map(VariablePlace::Constant),
                (None, true) => Err(Hidden::Fixed),
                (None, false) => Err(Hidden::OptimizedOut),
            });
        };
        if let AttributeValue::Exprloc(expression) = location {
            return Ok(self.evaluated(expression));
        }
        let Some(mut entries) = self.unit.attr_locations(location)? else { return Ok(Err(Hidden::Unknown)) };
        for _ in 0..MOST_ENTRIES {
            match entries.next()? {
                Some(entry) if (entry.range.begin..entry.range.end).contains(&self.at) => {
                    return Ok(self.evaluated(entry.data));
                }
                Some(_) => {}
                None => return Ok(Err(Hidden::OptimizedOut)),
            }
        }
        Err(DwarfError::TooMuch)
    }

    /// What an expression says (DWARF 5, 2.5 and 2.6). Whatever is neither a register, a slot nor a number is not computed.
    fn evaluated(&self, expression: Expression<Slice<'a>>) -> Result<VariablePlace, Hidden> {
        let mut operations = expression.operations(self.unit.encoding());
        let mut next = || operations.next().map_err(|_| Hidden::Unknown);
        let Some(first) = next()? else { return Err(Hidden::OptimizedOut) };
        let second = next()?;
        if second.is_none() {
            return self.simple(first);
        }
        let number = match first {
            Operation::UnsignedConstant { value } => Some(value),
            Operation::SignedConstant { value } => Some(value.cast_unsigned()),
            _ => None,
        };
        if let (Some(number), Some(Operation::StackValue)) = (number, second)
            && next()?.is_none()
        {
            return Ok(VariablePlace::Constant(number));
        }
        // Why it is not simple, the plainest reason first.
        let mut why = Hidden::Indirect;
        let mut operations = expression.operations(self.unit.encoding());
        while let Some(operation) = operations.next().map_err(|_| Hidden::Unknown)? {
            match operation {
                Operation::Piece { .. } => return Err(Hidden::Pieces),
                Operation::EntryValue { .. } | Operation::ParameterRef { .. } => why = Hidden::EntryValue,
                Operation::TLS => return Err(Hidden::ThreadLocal),
                Operation::StackValue if why == Hidden::Indirect => why = Hidden::Computed,
                _ => {}
            }
        }
        Err(why)
    }

    /// What a single operation says.
    fn simple(&self, operation: Operation<Slice<'a>>) -> Result<VariablePlace, Hidden> {
        let from = |frame: FrameBase, offset: i64| {
            frame.map(|(register, start)| VariablePlace::Memory(register, start.wrapping_add(offset)))
        };
        match operation {
            Operation::Register { register } => numbered(register).map(VariablePlace::Register),
            Operation::RegisterOffset { register, offset, base_type } if base_type.0 == 0 => {
                from(numbered(register).map(|register| (register, 0)), offset)
            }
            Operation::FrameOffset { offset } => from(self.base, offset),
            Operation::CallFrameCFA => from(self.cfa, 0),
            Operation::ImplicitValue { data } => word(data).map(VariablePlace::Constant),
            Operation::ImplicitPointer { .. } => Err(Hidden::ImplicitPointer),
            Operation::Address { .. } | Operation::AddressIndex { .. } => Err(Hidden::Fixed),
            Operation::Piece { .. } => Err(Hidden::OptimizedOut),
            Operation::EntryValue { .. } | Operation::ParameterRef { .. } => Err(Hidden::EntryValue),
            _ => Err(Hidden::Unknown),
        }
    }
}

/// What says where the frames of functions begin.
#[derive(Clone, Copy)]
pub(super) struct Frames<'a> {
    /// `.debug_frame`
    pub(super) debug: Slice<'a>,
    /// `.eh_frame`, which programs have at run time.
    pub(super) eh: Slice<'a>,
    /// Where that was linked to.
    pub(super) eh_at: u64,
}

/// The canonical frame address at `at`.
fn cfa(frames: Frames<'_>, address_size: u8, at: u64) -> FrameBase {
    let (mut debug, mut eh) = (DebugFrame::from(frames.debug), EhFrame::from(frames.eh));
    debug.set_address_size(address_size);
    eh.set_address_size(address_size);
    let mut context = UnwindContext::new();
    let none = BaseAddresses::default();
    if let Ok(row) = debug.unwind_info_for_address(&none, &mut context, at, DebugFrame::cie_from_offset) {
        return start(row.cfa());
    }
    let bases = BaseAddresses::default().set_eh_frame(frames.eh_at);
    let row = eh.unwind_info_for_address(&bases, &mut context, at, EhFrame::cie_from_offset);
    start(row.map_err(|_| Hidden::NoFrame)?.cfa())
}

fn start(rule: &CfaRule<usize>) -> FrameBase {
    match rule {
        CfaRule::RegisterAndOffset { register, offset } => Ok((numbered(*register)?, *offset)),
        CfaRule::Expression(_) => Err(Hidden::NoFrame),
    }
}

/// A register by its number in DWARF (System V ABI for x86-64, figure 3.36).
fn numbered(register: gimli::Register) -> Result<Register, Hidden> {
    const REGISTERS: [Register; 16] = [
        Register::Rax,
        Register::Rdx,
        Register::Rcx,
        Register::Rbx,
        Register::Rsi,
        Register::Rdi,
        Register::Rbp,
        Register::Rsp,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    REGISTERS.get(usize::from(register.0)).copied().ok_or(Hidden::OtherRegister)
}

/// The value of DW_AT_const_value.
fn constant(value: AttributeValue<Slice<'_>>) -> Result<u64, Hidden> {
    match value {
        AttributeValue::Sdata(value) => Ok(value.cast_unsigned()),
        AttributeValue::Data1(value) => Ok(value.into()),
        AttributeValue::Data2(value) => Ok(value.into()),
        AttributeValue::Data4(value) => Ok(value.into()),
        AttributeValue::Block(data) => word(data),
        value => value.udata_value().ok_or(Hidden::Unknown),
    }
}

/// Up to 8 bytes as a number.
fn word(data: Slice<'_>) -> Result<u64, Hidden> {
    let bytes = data.slice();
    if bytes.len() > 8 {
        return Err(Hidden::Unknown);
    }
    Ok(bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}
