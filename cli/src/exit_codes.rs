//! What this program ends with.

/// A probe was overwritten or never armed.
pub(crate) const UNARMED: u8 = 122;
/// The guest died, or halted without switching the machine off.
pub(crate) const DIED: u8 = 123;
/// The guest took longer than it may.
pub(crate) const TIMEOUT: u8 = 124;
/// What the guest ran in died, which says nothing about the guest.
pub(crate) const INFRASTRUCTURE: u8 = 125;
/// The user asked for something that cannot be done; nothing was run.
pub(crate) const USAGE: u8 = 2;
