//! Folders of the host that a guest sees: a server of its own process answers the guest's requests.
//!
//! The guest is hostile, and so is whatever reaches the server. What it can do is bounded five times: a folder that is not
//! to be changed is served by code that has no way to change anything ([`read_only`]); in one that may be changed no file is
//! made by which somebody here would get more rights ([`planted`]); the server's process may open
//! what is in its folders and nothing else, and write to those alone that may be changed ([`Files::confine`]); it makes no system
//! calls but those of a server of files ([`Role::Files`](crate::confine::Role::Files)); and what is no
//! file of the host's, as `/proc`, is not shown ([`hidden`]).

mod confine;
mod hidden;
mod kept;
mod noted;
mod planted;
mod read_only;
mod root;
mod server;

pub use confine::{Confined, LandlockError, confine_to_reading, confined_here};
pub use hidden::kernels_own_in;
pub use kept::{KeepError, KeptFolder, Told};
pub use noted::SeenFiles;
pub use server::{Files, ServeError};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A folder that the guest sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folder {
    /// Where it is here.
    pub path: PathBuf,
    /// Whether the guest may change what is in it.
    pub writable: bool,
}

#[cfg(test)]
mod tests;
