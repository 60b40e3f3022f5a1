//! What straight code does to the stack, by decoding it.

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use probe_engine::addr::Gva;
use probe_engine::linux::orc::{BpBase, Holds, OrcRow, SpBase};

/// How far straight code has moved RSP and RBP: all in bytes below what RSP was before the call.
#[derive(Clone, Copy)]
pub(super) struct Depth {
    pub(super) rsp: i64,
    /// Where RBP points, if it is a frame pointer.
    pub(super) rbp: Option<i64>,
    /// Where the caller's RBP was pushed, if it was.
    pub(super) pushed_rbp: Option<i64>,
}

impl Depth {
    pub(super) const CALLED: Self = Self { rsp: 8, rbp: None, pushed_rbp: None };

    /// Whether a row says the same.
    pub(super) fn is(&self, row: OrcRow) -> bool {
        let OrcRow::Frame(frame) = row else { return false };
        let sp = match frame.sp {
            SpBase::Sp => Some(self.rsp),
            SpBase::Bp => self.rbp,
            _ => None,
        };
        let bp = match frame.bp {
            BpBase::Unchanged => None,
            BpBase::PrevSp => Some(-i64::from(frame.bp_offset)),
            BpBase::Bp => return false,
        };
        frame.holds == Holds::Return
            && !frame.signal
            && sp == Some(frame.sp_offset.into())
            && bp == self.pushed_rbp
    }

    /// Where the memory operand of `instruction` lies, if that is a place on the stack.
    fn slot(&self, instruction: &Instruction) -> Option<i64> {
        let is_on_stack = instruction.memory_base() == Register::RSP
            && instruction.memory_index() == Register::None
            && instruction.memory_size().size() == 8;
        is_on_stack.then(|| self.rsp - instruction.memory_displacement64().cast_signed())
    }

    /// Behind `instruction`; `None` where it does not lead on, or does with RSP or RBP what is not followed here.
    pub(super) fn behind(
        mut self,
        instruction: &Instruction,
        fentry: Gva,
        writes: &[Register],
    ) -> Option<Self> {
        let goes_on = match instruction.flow_control() {
            FlowControl::Next | FlowControl::ConditionalBranch => true,
            FlowControl::Call => instruction.near_branch_target() == fentry.0,
            _ => false,
        };
        let register = instruction.op0_register();
        let is_immediate = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
        match instruction.mnemonic() {
            _ if !goes_on => return None,
            Mnemonic::Call => {}
            Mnemonic::Push | Mnemonic::Pushfq => {
                self.rsp -= i64::from(instruction.stack_pointer_increment());
                if register == Register::RBP && self.pushed_rbp.is_none() {
                    self.pushed_rbp = Some(self.rsp);
                }
            }
            Mnemonic::Pop | Mnemonic::Popfq => {
                if register == Register::RBP {
                    self.pushed_rbp = self.pushed_rbp.filter(|pushed| *pushed != self.rsp);
                    self.rbp = None;
                }
                self.rsp -= i64::from(instruction.stack_pointer_increment());
            }
            Mnemonic::Sub if register == Register::RSP && is_immediate => {
                self.rsp += instruction.immediate(1) as i64;
            }
            Mnemonic::Add if register == Register::RSP && is_immediate => {
                self.rsp -= instruction.immediate(1) as i64;
            }
            // Newer compilers make room for all registers at once.
            Mnemonic::Mov
                if self.slot(instruction).is_some() && instruction.op1_register() == Register::RBP =>
            {
                self.pushed_rbp = self.pushed_rbp.or(self.slot(instruction));
            }
            Mnemonic::Mov if register == Register::RBP && self.slot(instruction).is_some() => {
                self.pushed_rbp = self.pushed_rbp.filter(|pushed| Some(*pushed) != self.slot(instruction));
                self.rbp = None;
            }
            _ if writes.contains(&Register::RSP) => return None,
            _ if writes.contains(&Register::RBP) => {
                self.pushed_rbp?;
                let is_frame_pointer =
                    instruction.mnemonic() == Mnemonic::Mov && instruction.op1_register() == Register::RSP;
                self.rbp = is_frame_pointer.then_some(self.rsp);
            }
            _ => {}
        }
        Some(self)
    }
}

/// Full registers that an instruction may write.
pub(super) fn writes(info: &mut InstructionInfoFactory, instruction: &Instruction) -> Vec<Register> {
    let used = info.info(instruction).used_registers();
    let written = used.iter().filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead));
    written.map(|used| used.register().full_register()).collect()
}
