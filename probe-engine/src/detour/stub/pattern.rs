//! Whether a string matches a pattern, as branches.
//!
//! ```text
//!         r8 = its end            its NUL, or where what is kept of it ends
//!         the first part          is where it begins; without a star, also where it ends
//!         each part in between    is looked for from where the one before it ended: the first place will do, as the
//!                                 star behind it takes whatever a later one would leave
//!         the last part           is where it ends
//! ```
//!
//! rdx only goes up, so that what is done is bounded by the length of the string times that of the pattern. Of a string that
//! goes on, a part that was not found may be farther on, and the end is unknown.

use super::condition::Branch;
use super::{Assembler, Done};
use crate::detour::condition::ComparedString;
use crate::linux::glob::{Glob, GlobStep};
use iced_x86::code_asm::{CodeLabel, byte_ptr, dword_ptr, eax, ecx, r8, rax, rdx};

impl Assembler<'_> {
    /// Branches on whether a string matches. It is open where what is kept of the string does not tell. Uses rax, rcx, rdx and
    /// r8.
    pub(super) fn branch_on_pattern(&mut self, of: &ComparedString, pattern: &Glob, branch: Branch) -> Done {
        let Branch { wanted, to, open } = branch;
        let mut differs = self.asm.create_label();
        let other = if wanted { differs } else { to };
        let mut parts: Vec<&[GlobStep]> = pattern.parts().collect();
        let last = if parts.len() > 1 { parts.pop() } else { None };
        let mut parts = parts.into_iter();
        let first = parts.next().unwrap_or_default();
        self.bounds(of)?;
        self.behind(first)?;
        match last {
            None => self.asm.jne(other)?,
            Some(_) => self.asm.ja(other)?,
        }
        self.part(first, other)?;
        let mut behind = first;
        for part in parts {
            self.skip(behind)?;
            self.look_for(of, part, other, open)?;
            behind = part;
        }
        if let Some(last @ [_, ..]) = last {
            self.skip(behind)?;
            self.unless_it_goes_on(of, open)?;
            self.behind(last)?;
            self.asm.ja(other)?;
            self.asm.lea(rdx, r8 - last.len())?;
            self.part(last, other)?;
        }
        if wanted {
            self.asm.jmp(to)?;
        }
        self.asm.set_label(&mut differs)?;
        Ok(self.asm.zero_bytes()?)
    }

    /// Where a string begins, in rdx, and where it ends, in r8.
    fn bounds(&mut self, of: &ComparedString) -> Done {
        let (mut next, mut end) = (self.asm.create_label(), self.asm.create_label());
        let at = self.text(of)?;
        self.asm.lea(rdx, at)?;
        self.asm.lea(rax, rdx + u32::from(of.most))?;
        self.asm.mov(r8, rdx)?;
        self.asm.set_label(&mut next)?;
        self.asm.cmp(byte_ptr(r8), 0)?;
        self.asm.je(end)?;
        self.asm.inc(r8)?;
        self.asm.cmp(r8, rax)?;
        self.asm.jb(next)?;
        self.asm.set_label(&mut end)?;
        Ok(self.asm.zero_bytes()?)
    }

    /// Compares where `part` at rdx would end with where the string does.
    fn behind(&mut self, part: &[GlobStep]) -> Done {
        self.asm.lea(rax, rdx + part.len())?;
        Ok(self.asm.cmp(rax, r8)?)
    }

    /// Goes behind `part` at rdx.
    fn skip(&mut self, part: &[GlobStep]) -> Done {
        Ok(self.asm.add(rdx, part.len() as i32)?)
    }

    /// The first place from rdx on where `part` is.
    fn look_for(
        &mut self,
        of: &ComparedString,
        part: &[GlobStep],
        other: CodeLabel,
        open: CodeLabel,
    ) -> Done {
        let (mut again, mut farther, mut none) =
            (self.asm.create_label(), self.asm.create_label(), self.asm.create_label());
        self.asm.jmp(again)?;
        self.asm.set_label(&mut none)?;
        self.unless_it_goes_on(of, open)?;
        self.asm.jmp(other)?;
        self.asm.set_label(&mut farther)?;
        self.asm.inc(rdx)?;
        self.asm.set_label(&mut again)?;
        self.behind(part)?;
        self.asm.ja(none)?;
        self.part(part, farther)
    }

    /// Goes to `open` if the string may go on behind its end.
    fn unless_it_goes_on(&mut self, of: &ComparedString, open: CodeLabel) -> Done {
        if of.goes_on {
            let start = self.text(of)?;
            self.asm.lea(rax, start + u32::from(of.most))?;
            self.asm.cmp(r8, rax)?;
            self.asm.je(open)?;
        }
        Ok(())
    }

    /// Goes to `other` unless `part` is at rdx, where the string is long enough.
    fn part(&mut self, part: &[GlobStep], other: CodeLabel) -> Done {
        let (mut at, mut rest) = (rdx + 0, part);
        loop {
            let length = match rest {
                [] => return Ok(()),
                [GlobStep::Byte(a), GlobStep::Byte(b), GlobStep::Byte(c), GlobStep::Byte(d), ..] => {
                    self.asm.cmp(dword_ptr(at), i32::from_le_bytes([*a, *b, *c, *d]))?;
                    self.asm.jne(other)?;
                    4
                }
                [GlobStep::Byte(byte), ..] => {
                    self.asm.cmp(byte_ptr(at), u32::from(*byte))?;
                    self.asm.jne(other)?;
                    1
                }
                [GlobStep::Class { negated, ranges }, ..] => {
                    self.asm.movzx(eax, byte_ptr(at))?;
                    self.class(ranges, *negated, other)?;
                    1
                }
                [GlobStep::Any | GlobStep::Star, ..] => 1,
            };
            at = at + length;
            rest = rest.get(length..).unwrap_or_default();
        }
    }

    /// Goes to `other` if whether the byte in eax is in one of `ranges` is `negated`.
    fn class(&mut self, ranges: &[(u8, u8)], negated: bool, other: CodeLabel) -> Done {
        let mut inside = self.asm.create_label();
        for (low, high) in ranges.iter().filter(|(low, high)| low <= high) {
            self.asm.lea(ecx, rax - u32::from(*low))?;
            self.asm.cmp(ecx, i32::from(high - low))?;
            self.asm.jbe(if negated { other } else { inside })?;
        }
        if !negated {
            self.asm.jmp(other)?;
        }
        self.asm.set_label(&mut inside)?;
        Ok(self.asm.zero_bytes()?)
    }
}

#[cfg(test)]
mod tests;
