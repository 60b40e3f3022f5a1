//! What the guest's init is to do before the command runs: a file of its initramfs.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the plan is. Its being there says that this is the init of a guest.
pub const PLAN: &str = "/plan.json";

/// The plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The folder that is the guest's root. What the guest changes in it is thrown away.
    pub root: String,
    /// Where the command runs, in the guest's root.
    pub folder: PathBuf,
    /// Folders that it may change.
    pub mounts: Vec<Mount>,
}

/// A folder of the host's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// By what it is mounted.
    pub tag: String,
    /// Where, in the guest's root.
    pub at: PathBuf,
}
