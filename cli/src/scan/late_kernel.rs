//! The file of a guest's kernel, which is read when it is wanted for the first time.

use anyhow::{Error, Result, anyhow};
use probe_engine::linux::kernel::Kernel;
use std::cell::OnceCell;

/// A kernel that may not be wanted.
pub(crate) struct LateKernel {
    image: Vec<u8>,
    /// The kernel, or why it cannot be read.
    read: OnceCell<Result<Kernel, String>>,
}

impl LateKernel {
    /// The kernel of this file.
    pub(crate) fn new(image: Vec<u8>) -> Self {
        Self { image, read: OnceCell::new() }
    }

    /// The kernel, which is read now if nobody has wanted it before.
    pub(crate) fn get(&self) -> Result<&Kernel> {
        let read = || Kernel::read(&self.image, None).map_err(|error| format!("{:#}", Error::from(error)));
        self.read.get_or_init(read).as_ref().map_err(|words| anyhow!("{words}"))
    }
}
