//! Counting a hit by its keys: see [`groups`](crate::detour::groups).
//!
//! ```text
//!         each key into the area, and into r8
//!         the place that r8 says
//! look:   if the group there is that of these keys: go to found
//!         if none is there and it can be taken: write it, then its tag; go to found
//!         the next place; go to look, if that was not often
//!         there is no room
//! found:  lock inc [its hits]
//!         lock add [each sum], ...
//! ```

use super::{Assembler, Done, imm};
use crate::detour::condition::Number;
use crate::detour::groups::{GroupKey, GroupStep, Groups};
use crate::detour::layout::{GROUP, GROUPS, TABLE_OF_GROUPS, TAKEN, group, tag};
use crate::detour::work::Work;
use iced_x86::code_asm::{
    AsmMemoryOperand, CodeLabel, eax, ecx, edx, qword_ptr, r8, r8d, rax, rcx, rdx, rsp,
};

/// How many places a hit looks at.
const PLACES: u32 = 16;
/// Spreads keys over the places: 2^64 by the golden ratio, as in include/linux/hash.h.
const SPREAD: u64 = 0x61c8_8646_80b5_83eb;

impl Groups {
    /// Bytes of the area that a hit needs for its keys.
    pub(super) fn area(&self) -> u64 {
        8 * (1 + self.words() as u64)
    }
}

impl Assembler<'_> {
    /// Counts the hit, and goes to `done` then. Falls through when there is no room. Uses what is saved.
    pub(super) fn group(&mut self, work: &Work, groups: &Groups, done: CodeLabel) -> Done {
        let (mut look, mut other, mut found, mut full) = (
            self.asm.create_label(),
            self.asm.create_label(),
            self.asm.create_label(),
            self.asm.create_label(),
        );
        let key = work.reads.length;
        self.keys(groups, key, work.probe)?;
        self.asm.shr(r8, GROUPS.leading_zeros() + 1)?;
        self.asm.shl(r8d, GROUP.ilog2())?;
        let table = self.at(TABLE_OF_GROUPS)?;
        let member = |at: u64| qword_ptr(r8 + at + table);
        let words = || (0..=groups.words() as u64).map(|n| 8 * n);
        self.asm.mov(ecx, PLACES)?;
        self.asm.set_label(&mut look)?;
        self.asm.mov(rax, member(group::TAG))?;
        self.asm.test(rax, rax)?;
        let mut taken = self.asm.create_label();
        self.asm.jnz(taken)?;
        self.asm.mov(edx, TAKEN)?;
        self.asm.lock().cmpxchg(member(group::TAG), rdx)?;
        self.asm.jne(look)?;
        for word in words() {
            self.asm.mov(rax, qword_ptr(rsp + (key + word)))?;
            self.asm.mov(member(group::MISSING + word), rax)?;
        }
        self.ticks()?;
        self.asm.mov(member(group::FIRST), rax)?;
        let name = self.comm()?;
        for half in [0, 8] {
            self.asm.mov(rdx, name + half)?;
            self.asm.mov(member(group::COMM + half), rdx)?;
        }
        self.asm.mov(member(group::TAG), tag(work.probe).cast_signed())?;
        self.asm.jmp(found)?;
        self.asm.set_label(&mut taken)?;
        self.asm.cmp(rax, tag(work.probe).cast_signed())?;
        self.asm.jne(other)?;
        for word in words() {
            self.asm.mov(rax, qword_ptr(rsp + (key + word)))?;
            self.asm.cmp(rax, member(group::MISSING + word))?;
            self.asm.jne(other)?;
        }
        self.asm.jmp(found)?;
        self.asm.set_label(&mut other)?;
        self.asm.add(r8d, imm(GROUP)?)?;
        self.asm.and(r8d, imm(GROUPS * GROUP - 1)?)?;
        self.asm.dec(ecx)?;
        self.asm.jnz(look)?;
        self.asm.jmp(full)?;
        self.asm.set_label(&mut found)?;
        self.asm.lock().inc(member(group::HITS))?;
        for (n, sum) in (0..).zip(&groups.sums) {
            self.sum(sum, member(group::SUMS + 16 * n), member(group::SUMS + 16 * n + 8))?;
        }
        self.asm.jmp(done)?;
        self.asm.set_label(&mut full)?;
        Ok(self.asm.zero_bytes()?)
    }

    /// Puts the keys where `at` bytes of the area are before, behind the bits of those that are missing, and all of them
    /// together into r8.
    fn keys(&mut self, groups: &Groups, at: u64, probe: u32) -> Done {
        let missing = qword_ptr(rsp + at);
        self.asm.mov(r8d, probe)?;
        self.asm.mov(missing, 0)?;
        let mut places = (at + 8..).step_by(8);
        for (n, key) in (0..).zip(&groups.keys) {
            match key {
                GroupKey::Comm => {
                    for (half, place) in [0, 8].into_iter().zip(&mut places) {
                        let name = self.comm()?;
                        self.asm.mov(rax, name + half)?;
                        self.key_word(place)?;
                    }
                }
                GroupKey::Number(number, step) => {
                    let (mut unread, mut there) = (self.asm.create_label(), self.asm.create_label());
                    self.unless_read(number.entry(), unread)?;
                    self.number(number)?;
                    self.step(*step, number.is_signed)?;
                    if number.entry().is_some() {
                        self.asm.jmp(there)?;
                        self.asm.set_label(&mut unread)?;
                        self.asm.or(missing, 1 << n)?;
                        self.asm.xor(eax, eax)?;
                    }
                    self.asm.set_label(&mut there)?;
                    self.asm.zero_bytes()?;
                    places.next().map_or(Ok(()), |place| self.key_word(place))?;
                }
            }
        }
        self.asm.mov(rax, missing)?;
        self.spread()
    }

    /// The word in rax is a key's.
    fn key_word(&mut self, place: u64) -> Done {
        self.asm.mov(qword_ptr(rsp + place), rax)?;
        self.spread()
    }

    /// Mixes rax into r8. Uses rcx.
    fn spread(&mut self) -> Done {
        self.asm.rol(r8, 32)?;
        self.asm.xor(r8, rax)?;
        self.asm.mov(rcx, SPREAD)?;
        self.asm.imul_2(r8, rcx)?;
        Ok(())
    }

    /// Makes the number in rax what all have that count as the same. Uses rcx and rdx.
    fn step(&mut self, step: GroupStep, is_signed: bool) -> Done {
        match step {
            GroupStep::One => {}
            GroupStep::Log2 => {
                let (mut none, mut end) = (self.asm.create_label(), self.asm.create_label());
                self.asm.cmp(rax, 1)?;
                self.asm.jbe(none)?;
                self.asm.dec(rax)?;
                self.asm.bsr(rax, rax)?;
                self.asm.inc(eax)?;
                self.asm.jmp(end)?;
                self.asm.set_label(&mut none)?;
                self.asm.xor(eax, eax)?;
                self.asm.set_label(&mut end)?;
                self.asm.zero_bytes()?;
            }
            GroupStep::Buckets(width) => {
                self.asm.mov(rcx, width)?;
                if is_signed {
                    // Rounded down, as it is not for numbers below zero.
                    self.asm.cqo()?;
                    self.asm.idiv(rcx)?;
                    self.asm.sar(rdx, 63)?;
                    self.asm.add(rax, rdx)?;
                } else {
                    self.asm.xor(edx, edx)?;
                    self.asm.div(rcx)?;
                }
            }
        }
        Ok(())
    }

    /// Adds a number to one of 128 bits, unless it could not be read. Uses rax and rdx.
    fn sum(&mut self, number: &Number, low: AsmMemoryOperand, high: AsmMemoryOperand) -> Done {
        let mut unread = self.asm.create_label();
        self.unless_read(number.entry(), unread)?;
        self.number(number)?;
        if number.is_signed {
            self.asm.cqo()?;
        } else {
            self.asm.xor(edx, edx)?;
        }
        self.asm.lock().add(low, rax)?;
        self.asm.adc(rdx, 0)?;
        self.asm.lock().add(high, rdx)?;
        self.asm.set_label(&mut unread)?;
        Ok(self.asm.zero_bytes()?)
    }
}
