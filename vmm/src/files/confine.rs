//! What a server's process may still do, once it has opened its folders.

use super::Folder;
use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, PathFdError, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
};
use std::fs::File;
use std::io;
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
pub enum ConfineError {
    /// A rule was refused.
    #[error(transparent)]
    Rules(#[from] RulesetError),
    /// A folder is not there.
    #[error(transparent)]
    Folder(#[from] PathFdError),
}

/// From now on this process, with the threads that it starts, reads what is in `folders`, writes to those that are
/// writable, makes no device node, and reaches nothing else: no other file, no network (Documentation/userspace-api/landlock.rst).
///
/// # Errors
/// [`ConfineError`].
pub fn confine(folders: &[Folder]) -> Result<Confined, ConfineError> {
    const NEWEST: ABI = ABI::V5;
    let rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort);
    let rules =
        rules.handle_access(AccessFs::from_all(NEWEST))?.handle_access(AccessNet::from_all(NEWEST))?;
    let mut rules = rules.create()?;
    let changes =
        AccessFs::from_all(NEWEST) & !(AccessFs::MakeBlock | AccessFs::MakeChar | AccessFs::IoctlDev);
    for folder in folders {
        let access = if folder.writable { changes } else { AccessFs::from_read(NEWEST) };
        rules = rules.add_rule(PathBeneath::new(PathFd::new(&folder.path)?, access))?;
    }
    Ok(match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Confined::Fully,
        RulesetStatus::PartiallyEnforced => Confined::Partly,
        RulesetStatus::NotEnforced => Confined::Not,
    })
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
