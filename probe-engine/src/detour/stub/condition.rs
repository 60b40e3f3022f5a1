//! Which hits count, as branches.

use super::{Assembler, Done, NoStub, displacement, imm, own};
use crate::capture::filter::{Order, Test};
use crate::detour::condition::{ComparedString, HitCondition, Number, Origin};
use crate::detour::reads;
use iced_x86::code_asm::{AsmMemoryOperand, CodeLabel, dword_ptr, eax, edx, qword_ptr, rax, rcx, rdx, rsp};
use std::ops::Range;

/// Where a condition leads. What leads nowhere falls through.
#[derive(Clone, Copy)]
pub(super) struct Branch {
    /// Whether the condition is to hold for the branch to be taken.
    pub(super) wanted: bool,
    /// To there, then.
    pub(super) to: CodeLabel,
    /// To there if it cannot be told whether the condition holds.
    pub(super) open: CodeLabel,
}

impl Assembler<'_> {
    /// Branches on `condition`. Uses rax, rcx, rdx and r8.
    pub(super) fn branch(&mut self, condition: &HitCondition, branch: Branch) -> Done {
        let Branch { wanted, to, .. } = branch;
        let mut unread = self.asm.create_label();
        self.unless_read(condition.entry(), if wanted { unread } else { to })?;
        match condition {
            HitCondition::Not(condition) => self.branch(condition, Branch { wanted: !wanted, ..branch })?,
            HitCondition::All(all) => self.branch_each(all, false, branch)?,
            HitCondition::Any(any) => self.branch_each(any, true, branch)?,
            HitCondition::Text(of, equal, text) => {
                self.branch_on_text(of, text, Branch { wanted: *equal == wanted, ..branch })?;
            }
            HitCondition::Pattern(of, pattern) => self.branch_on_pattern(of, pattern, branch)?,
            HitCondition::Number(number, test) => {
                self.number(number)?;
                self.branch_on_rax(test, number.is_signed, branch)?;
            }
        }
        self.asm.set_label(&mut unread)?;
        Ok(self.asm.zero_bytes()?)
    }

    /// Goes to `unread` if this entry of memory could not be read; where there is none, nothing is to be.
    pub(super) fn unless_read(&mut self, entry: Option<u64>, unread: CodeLabel) -> Done {
        if let Some(entry) = entry {
            self.asm.cmp(qword_ptr(rsp + (entry + reads::LENGTH)), 0)?;
            self.asm.je(unread)?;
        }
        Ok(())
    }

    /// One of `conditions` that is `decisive` decides.
    fn branch_each(&mut self, conditions: &[HitCondition], decisive: bool, branch: Branch) -> Done {
        if branch.wanted == decisive {
            return conditions.iter().try_for_each(|condition| self.branch(condition, branch));
        }
        let mut decided = self.asm.create_label();
        let decide = Branch { wanted: decisive, to: decided, ..branch };
        conditions.iter().try_for_each(|condition| self.branch(condition, decide))?;
        self.asm.jmp(branch.to)?;
        self.asm.set_label(&mut decided)?;
        self.asm.zero_bytes()?;
        Ok(())
    }

    /// Loads a number into rax, extended to 64 bits.
    pub(super) fn number(&mut self, number: &Number) -> Done {
        match number.from {
            Origin::Given(given) => self.given(given)?,
            Origin::Pid => {
                let task = self.cpu()?.task;
                self.asm.mov(rax, own(qword_ptr(displacement(task.current.offset)?)))?;
                self.asm.mov(eax, dword_ptr(rax + imm(task.pid)?))?;
            }
            Origin::Memory(entry) => self.asm.mov(rax, qword_ptr(rsp + (entry + reads::DATA)))?,
            Origin::Cpu => self.asm.mov(eax, own(dword_ptr(displacement(self.cpu()?.number)?)))?,
        }
        let (low, width) = (u32::from(number.low), u32::from(number.width).clamp(1, 64));
        let unused = 64 - width;
        if let above @ 1.. = unused.saturating_sub(low) {
            self.asm.shl(rax, above)?;
        }
        match (unused, number.is_signed) {
            (0, _) => {}
            (_, true) => self.asm.sar(rax, unused)?,
            (_, false) => self.asm.shr(rax, unused)?,
        }
        Ok(())
    }

    fn branch_on_rax(&mut self, test: &Test, is_signed: bool, branch: Branch) -> Done {
        let Branch { wanted, to, .. } = branch;
        match test {
            Test::Number(order, than) => self.branch_on_order(*order, *than, is_signed, branch),
            Test::Bits(bits) => {
                self.asm.mov(rdx, *bits)?;
                self.asm.test(rax, rdx)?;
                if wanted {
                    self.asm.jnz(to)?
                } else {
                    self.asm.jz(to)?
                }
                Ok(())
            }
            Test::Among(ranges) => {
                let (mut inside, mut end) = (self.asm.create_label(), self.asm.create_label());
                for Range { start, end } in ranges {
                    let mut next = self.asm.create_label();
                    self.asm.mov(edx, start.cast_signed())?;
                    self.asm.cmp(rax, rdx)?;
                    self.asm.jb(next)?;
                    self.asm.mov(edx, end.cast_signed())?;
                    self.asm.cmp(rax, rdx)?;
                    self.asm.jb(if wanted { to } else { inside })?;
                    self.asm.set_label(&mut next)?;
                    self.asm.zero_bytes()?;
                }
                self.asm.jmp(if wanted { end } else { to })?;
                self.asm.set_label(&mut inside)?;
                self.asm.zero_bytes()?;
                self.asm.set_label(&mut end)?;
                self.asm.zero_bytes()?;
                Ok(())
            }
            // They are conditions of their own.
            Test::Text(..) | Test::Glob(_) => Err(NoStub("a comparison of strings".to_owned())),
        }
    }

    fn branch_on_order(&mut self, order: Order, than: i128, is_signed: bool, branch: Branch) -> Done {
        let Branch { wanted, to, .. } = branch;
        let known =
            if is_signed { i64::try_from(than).ok() } else { u64::try_from(than).ok().map(u64::cast_signed) };
        let Some(than_bits) = known else {
            // Beyond what the number can be, on one side or the other.
            let is_above = than > 0;
            let holds = match order {
                Order::Equal => false,
                Order::NotEqual => true,
                Order::Less | Order::LessOrEqual => is_above,
                Order::Greater | Order::GreaterOrEqual => !is_above,
            };
            if holds == wanted {
                self.asm.jmp(to)?;
            }
            return Ok(());
        };
        self.asm.mov(rdx, than_bits.cast_unsigned())?;
        self.asm.cmp(rax, rdx)?;
        let order = match (order, wanted) {
            (order, true) => order,
            (Order::Equal, false) => Order::NotEqual,
            (Order::NotEqual, false) => Order::Equal,
            (Order::Less, false) => Order::GreaterOrEqual,
            (Order::LessOrEqual, false) => Order::Greater,
            (Order::Greater, false) => Order::LessOrEqual,
            (Order::GreaterOrEqual, false) => Order::Less,
        };
        match (order, is_signed) {
            (Order::Equal, _) => self.asm.je(to)?,
            (Order::NotEqual, _) => self.asm.jne(to)?,
            (Order::Less, true) => self.asm.jl(to)?,
            (Order::LessOrEqual, true) => self.asm.jle(to)?,
            (Order::Greater, true) => self.asm.jg(to)?,
            (Order::GreaterOrEqual, true) => self.asm.jge(to)?,
            (Order::Less, false) => self.asm.jb(to)?,
            (Order::LessOrEqual, false) => self.asm.jbe(to)?,
            (Order::Greater, false) => self.asm.ja(to)?,
            (Order::GreaterOrEqual, false) => self.asm.jae(to)?,
        }
        Ok(())
    }

    /// Branches on whether a string is `text`: its bytes with a NUL behind them, if there is room.
    fn branch_on_text(&mut self, of: &ComparedString, text: &str, branch: Branch) -> Done {
        let Branch { wanted, to, .. } = branch;
        let mut bytes = text.as_bytes().to_vec();
        let most = usize::from(of.most);
        if bytes.len() > most {
            if !wanted {
                self.asm.jmp(to)?;
            }
            return Ok(());
        }
        if bytes.len() < most {
            bytes.push(0);
        }
        let mut differs = self.asm.create_label();
        let at = self.text(of)?;
        self.compare(at, &bytes, if wanted { differs } else { to })?;
        if wanted {
            self.asm.jmp(to)?;
        }
        self.asm.set_label(&mut differs)?;
        self.asm.zero_bytes()?;
        Ok(())
    }

    /// Where a string is. Uses rax.
    pub(super) fn text(&mut self, of: &ComparedString) -> Result<AsmMemoryOperand, NoStub> {
        of.entry.map_or_else(|| self.comm(), |entry| Ok(qword_ptr(rsp + (entry + reads::DATA))))
    }

    /// Where the task's name is. Uses rax.
    pub(super) fn comm(&mut self) -> Result<AsmMemoryOperand, NoStub> {
        let task = self.cpu()?.task;
        self.asm.mov(rax, own(qword_ptr(displacement(task.current.offset)?)))?;
        Ok(qword_ptr(rax + imm(task.comm)?))
    }

    /// Goes to `other` unless there is `text` at `at`, where a multiple of 8 bytes can be read. Uses rcx and rdx.
    fn compare(&mut self, at: AsmMemoryOperand, text: &[u8], other: CodeLabel) -> Done {
        for (n, part) in (0..).zip(text.chunks(8)) {
            let word = part.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            let unused = 64 - 8 * part.len() as u32;
            self.asm.mov(rcx, at + 8 * n)?;
            self.asm.mov(rdx, word << unused)?;
            if unused > 0 {
                self.asm.shl(rcx, unused)?;
            }
            self.asm.cmp(rcx, rdx)?;
            self.asm.jne(other)?;
        }
        Ok(())
    }
}

impl HitCondition {
    /// Whether there are hits at which it cannot be told.
    pub(super) fn may_stay_open(&self) -> bool {
        match self {
            Self::All(conditions) | Self::Any(conditions) => conditions.iter().any(Self::may_stay_open),
            Self::Not(condition) => condition.may_stay_open(),
            Self::Pattern(of, _) => of.goes_on,
            Self::Number(..) | Self::Text(..) => false,
        }
    }

    /// What of memory it is about: if that could not be read, it does not hold.
    fn entry(&self) -> Option<u64> {
        match self {
            Self::Number(number, _) => number.entry(),
            Self::Text(of, ..) | Self::Pattern(of, _) => of.entry,
            Self::All(_) | Self::Any(_) | Self::Not(_) => None,
        }
    }
}

impl Number {
    /// What of memory it is.
    pub(super) fn entry(&self) -> Option<u64> {
        match self.from {
            Origin::Memory(entry) => Some(entry),
            _ => None,
        }
    }
}
