//! A stub that takes the place of several instructions, and runs them itself:
//!
//! ```text
//!         ...                     as any stub
//! end:    popfq                   interrupts are again as they were
//!         jmp tail                over what the returns of calls need, if any are followed
//! tail:   ...                     the moved instructions
//!         jmp back                unless these lead elsewhere
//! ```
//!
//! An interrupt may come between a hit and the moved instructions: nobody else counts the same hit. Whoever is inside
//! when the jump to the stub is taken out goes on behind the region.

use super::super::relocation::RelocatedCode;
use super::{Assembler, Guest, NoStub, Stub};
use crate::addr::Gva;
use crate::detour::work::Work;
use crate::insn::copy::JUMP;
use iced_x86::code_asm::CodeLabel;

impl Stub {
    /// The stub at `at` that a jump over `region` leads to.
    ///
    /// # Errors
    /// [`NoStub`].
    pub fn over(guest: &Guest, at: Gva, region: &RelocatedCode, works: &[Work]) -> Result<Self, NoStub> {
        let end = |code: &mut Assembler<'_>, end: &mut CodeLabel| {
            code.asm.set_label(end)?;
            Ok(code.asm.popfq()?)
        };
        let mut stub = Self::assemble_any(guest, at, region.at(), works, end)?;
        stub.leave(guest, at, region.end(), Some(region))?;
        Ok(stub)
    }

    /// No stub for these over `region` takes more bytes.
    #[must_use]
    pub fn most_bytes_over(region: &RelocatedCode, works: &[Work]) -> usize {
        Self::most_bytes(works) + region.moved_length() as usize + JUMP
    }
}
