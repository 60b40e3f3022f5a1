//! What a server's process may still do, once it has opened its folders.

use super::Folder;
use super::root::Root;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::thread;

/// How far this kernel confines the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confined {
    /// In all that is asked for.
    Fully,
    /// In what it knows: it is older.
    Partly,
    /// Not at all: it has no Landlock.
    Not,
}

/// Why the process could not be confined, though the kernel can.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// A rule was refused.
    #[error(transparent)]
    Rules(#[from] RulesetError),
    /// The kernel did not take its rights.
    #[error("the server of files cannot give up its rights")]
    Rights(#[source] io::Error),
}

/// From now on this process, with the threads that it starts, reads what is in `folders`, writes to those that are
/// writable, makes no device node, and reaches nothing else: no other file, no network (Documentation/userspace-api/landlock.rst).
/// Of root's rights it keeps those that files need.
///
/// # Errors
/// [`LandlockError`].
pub(super) fn confine(folders: &[Root]) -> Result<Confined, LandlockError> {
    const NEWEST: ABI = ABI::V5;
    let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let rules =
        rules.handle_access(AccessFs::from_all(NEWEST))?.handle_access(AccessNet::from_all(NEWEST))?;
    let mut rules = rules.create()?;
    let changes =
        AccessFs::from_all(NEWEST) & !(AccessFs::MakeBlock | AccessFs::MakeChar | AccessFs::IoctlDev);
    for Root { open, folder } in folders {
        let access = if folder.writable { changes } else { AccessFs::from_read(NEWEST) };
        rules = rules.add_rule(PathBeneath::new(open, access))?;
    }
    let status = rules.restrict_self()?.ruleset;
    give_up_rights().map_err(LandlockError::Rights)?;
    Ok(match status {
        RulesetStatus::FullyEnforced => Confined::Fully,
        RulesetStatus::PartiallyEnforced => Confined::Partly,
        RulesetStatus::NotEnforced => Confined::Not,
    })
}

/// Gives up what root may do beside reading and changing files of anybody's (capabilities(7)). Without CAP_FSETID a program
/// that is written to no longer lends its owner's rights.
fn give_up_rights() -> io::Result<()> {
    let needed = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID;
    let CapabilitySets { effective, permitted, .. } = capabilities(None)?;
    let inheritable = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets { effective: effective & needed, permitted: permitted & needed, inheritable },
    )?;
    Ok(())
}

/// From now on this process reads what is in `folders`, and reaches nothing else.
///
/// # Errors
/// When one is not there, or the process cannot be confined, though the kernel can.
pub fn confine_to_reading(folders: &[PathBuf]) -> io::Result<Confined> {
    let open = |path: &PathBuf| Root::open(&Folder { path: path.clone(), writable: false });
    let roots = folders.iter().map(open).collect::<io::Result<Vec<_>>>()?;
    confine(&roots).map_err(io::Error::other)
}

/// How far this kernel confines: tried by a thread.
///
/// # Errors
/// When the thread could not be started or confined.
pub fn confined_here() -> io::Result<Confined> {
    let thread = thread::Builder::new().spawn(|| -> io::Result<Confined> {
        let confined = confine(&[]).map_err(io::Error::other)?;
        let is_open = File::open("/").is_ok();
        Ok(if is_open { Confined::Not } else { confined })
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}
