//! Files that a command leaves in its guest.

use clap::Args;
use std::path::PathBuf;

/// Files that the command leaves
#[derive(Args, Default)]
pub(crate) struct Dropped {
    /// The folder that gets them.
    #[arg(skip)]
    pub(crate) keep_files: Option<PathBuf>,
    /// They are kept elsewhere: they go there as the guest sends them
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) dropped_to: Option<PathBuf>,
}
