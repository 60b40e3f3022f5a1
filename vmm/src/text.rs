//! Changes to the guest's text: one byte at a time, while every vCPU is parked, and only over the byte that is
//! expected there.

use crate::memory::GuestRam;
use crate::world::Parked;
use probe_engine::addr::Gpa;
use probe_engine::memory::PhysMemory;

/// One byte of text to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch {
    /// Where, in guest-physical memory.
    pub at: Gpa,
    /// What must be there now.
    pub expect: u8,
    /// What will be there.
    pub write: u8,
}

/// The text is not what was expected: the guest has changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// Another byte than expected.
    #[error("the guest's text at physical {at} holds {found:#04x} where {expect:#04x} was expected")]
    Changed {
        /// Where, in guest-physical memory.
        at: Gpa,
        /// What was expected.
        expect: u8,
        /// What is there.
        found: u8,
    },
    /// Not RAM at all.
    #[error(transparent)]
    NoMemory(#[from] probe_engine::memory::NoMemory),
}

/// Carries out one patch.
///
/// # Errors
/// [`PatchError`]; the text is then as it was.
pub fn patch(_: &Parked<'_>, ram: &GuestRam, patch: &Patch) -> Result<(), PatchError> {
    let found = byte(ram, patch.at)?;
    if found != patch.expect {
        return Err(PatchError::Changed { at: patch.at, expect: patch.expect, found });
    }
    Ok(ram.unsealed().write(patch.at, &[patch.write])?)
}

/// The byte of text at `at`.
fn byte(ram: &GuestRam, at: Gpa) -> Result<u8, probe_engine::memory::NoMemory> {
    let mut byte = [0];
    ram.read(at, &mut byte)?;
    let [byte] = byte;
    Ok(byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::World;
    use vmm_sys_util::eventfd::EventFd;

    #[test]
    fn a_patch_over_another_byte_is_refused_and_changes_nothing() {
        let world = World::<(), ()>::new(0, (), EventFd::new(0).unwrap().into());
        let parked = world.park(|_| {});
        let ram = GuestRam::new(0x1000).unwrap();
        ram.write(Gpa(0x10), &[0x55]).unwrap();
        let trap = |expect| Patch { at: Gpa(0x10), expect, write: 0xcc };
        assert_eq!(
            patch(&parked, &ram, &trap(0x90)),
            Err(PatchError::Changed { at: Gpa(0x10), expect: 0x90, found: 0x55 })
        );
        assert_eq!(byte(&ram, Gpa(0x10)), Ok(0x55));
        assert_eq!(patch(&parked, &ram, &trap(0x55)), Ok(()));
        assert_eq!(byte(&ram, Gpa(0x10)), Ok(0xcc));
        assert!(patch(&parked, &ram, &Patch { at: Gpa(0x1000), ..trap(0) }).is_err());
    }
}
