//! How a stub in the place of ftrace's nop ends:
//!
//! ```text
//! end:    test byte [rsp+1], 2    were interrupts on?
//!         jz quiet
//!         and byte [rsp+1], ~2
//!         popfq
//!         sti                     the CPU takes no interrupt behind it before the next instruction is over
//!         next                    the instruction behind the nop, if it can be moved
//!         jmp behind it
//! quiet:  popfq
//!         next
//!         jmp behind it
//! aside:  popfq                   from a shut gate
//!         jmp back
//! ```
//!
//! Whoever was counted has executed the instruction behind the nop before anything else can happen, and does not come to
//! it where it stands. The stub's probes can move there at any moment, and a task that was counted is not counted again:
//! neither one that is in the stub, nor one that was interrupted when it had just left.
//!
//! Where that instruction cannot be moved, or something of ours stands there, the jumps lead back to it. An interrupt may
//! then come behind the jump, and a stub that is left has to be asked [who has passed it](Stub::passed).

use super::super::relocation::RelocatedCode;
use super::{Guest, NoStub, Stub};
use crate::addr::Gva;
use crate::insn::copy::{JUMP, OutOfReach, jump};

const TEST_INTERRUPTS: [u8; 5] = [0xf6, 0x44, 0x24, 0x01, 0x02];
const JZ: u8 = 0x74;
const CLEAR_INTERRUPTS: [u8; 5] = [0x80, 0x64, 0x24, 0x01, 0xfd];
const POPFQ: u8 = 0x9d;
const STI: u8 = 0xfb;

/// More bytes than it takes.
pub(super) const LONGEST: usize = 80;

impl Stub {
    /// Ends the stub at `at`, which leads on at `back`. There is `next`, one instruction, which it runs itself.
    pub(super) fn end(
        mut self,
        guest: &Guest,
        at: Gva,
        back: Gva,
        next: Option<&RelocatedCode>,
    ) -> Result<Self, NoStub> {
        let end = self.code.len();
        self.code.extend(TEST_INTERRUPTS);
        let quiet = CLEAR_INTERRUPTS.len() + 2 + next.map_or(JUMP, length);
        self.code.extend([JZ, u8::try_from(quiet).map_err(|_| NoStub("a long instruction".to_owned()))?]);
        self.code.extend(CLEAR_INTERRUPTS);
        self.code.extend([POPFQ, STI]);
        self.leave(guest, at, back, next)?;
        self.code.push(POPFQ);
        self.leave(guest, at, back, next)?;
        if next.is_none() {
            return self.shut_to(end);
        }
        let aside = self.code.len();
        self.code.push(POPFQ);
        self.leave(guest, at, back, None)?;
        self.shut_to(aside)
    }

    /// Runs `region`, and goes on behind it, or else to `back`.
    pub(super) fn leave(
        &mut self,
        guest: &Guest,
        at: Gva,
        back: Gva,
        region: Option<&RelocatedCode>,
    ) -> Result<(), OutOfReach> {
        let here = |stub: &Self| at.add(stub.code.len() as u64);
        let Some(region) = region else {
            self.code.extend(jump(here(self), back)?);
            return Ok(());
        };
        self.copies.push(self.code.len());
        self.code.extend(region.assemble(here(self), guest.ret())?);
        if region.goes_on() {
            self.code.extend(jump(here(self), region.end())?);
        }
        Ok(())
    }
}

/// Bytes that it takes to run `region` and to go on.
fn length(region: &RelocatedCode) -> usize {
    region.moved_length() as usize + if region.goes_on() { JUMP } else { 0 }
}
