//! Files that a command has left in its guest: what is recorded of them, and the folder that gets them.
//!
//! The guest is hostile. What it sends is read twice, and neither reader believes the other: by whoever runs the guest, to record what
//! there is, and by a process that can do nothing but make files in one folder.

mod folder;
mod keeping;
mod listed;

pub(crate) use keeping::{Keeping, keep_files};
pub(crate) use listed::DroppedFiles;
