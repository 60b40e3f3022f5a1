//! A folder with all that a run needs to be run again.

use super::heading;
use clap::Args;
use std::path::PathBuf;

/// What is kept of a run
#[derive(Args, Default)]
#[command(next_help_heading = heading::OUTPUT)]
pub(crate) struct Bundled {
    /// Keep all that the run needs in this folder, with what it came to, for `vmm replay`
    ///
    /// That is the kernel, the modules or the initramfs, the files that the guest has opened, the words of this command line, and then the
    /// recording, the guest's console and the verdict. Files that the guest has only looked at are kept by their names and sizes. The
    /// folder is made when the run is over, and must not be there before. What the guest has opened may be secret: look at it before
    /// you give it away.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = ["target", "dry_run", "rwdirs"],
        hide_short_help = true
    )]
    pub(crate) bundle: Option<PathBuf>,
}
