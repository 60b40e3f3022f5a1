//! One hit: from "an int3 was executed" to "the guest goes on behind the probed instruction".

use super::table::{CopyEnd, Site};

/// The one-byte breakpoint instruction.
pub const INT3: u8 = 0xcc;

/// Whose breakpoint it is.
#[derive(Debug)]
pub enum Verdict<'a, P> {
    /// One of our sites.
    Ours(&'a Site<P>),
    /// The end of a copy that a post handler waits for.
    CopyEnd(CopyEnd),
    /// A function returns through the trampoline of this number, of this owner.
    Return(u32, &'a P),
    /// A detour has found its ring full, and waits for room.
    NoRoom,
    /// Ours once: it was taken out while the hit was on its way. The instruction runs again from memory.
    Stale,
    /// The guest's own: it gets its exception, once.
    Foreign,
}
