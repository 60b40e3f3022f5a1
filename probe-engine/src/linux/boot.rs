//! How a kernel is started.

use super::bzimage::KernelJumps;
use serde::{Deserialize, Serialize};

/// What runs before the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Boot {
    /// Nothing: the unpacked kernel is put where it will run, and entered.
    Direct {
        /// The setup header of its bzImage, from [`SETUP_HEADER`](super::bzimage::SETUP_HEADER) on; empty for a kernel that
        /// came as an ELF file.
        setup: Vec<u8>,
    },
    /// The decompressor of a bzImage, which is left by these jumps.
    Decompressor(KernelJumps),
    /// A decompressor that nobody has seen before.
    Unknown,
}
