//! Random numbers of a machine that was restored from a snapshot, which would be those of all others.
#![allow(unsafe_code, reason = "rustix has no name for this ioctl")]

use super::AgentError;
use rustix::ioctl::{NoArg, Opcode, ioctl};
use std::fs::OpenOptions;
use std::io::{self, Write};

const DEVICE: &str = "/dev/urandom";
/// `_IO('R', 0x07)` (include/uapi/linux/random.h).
const RNDRESEEDCRNG: Opcode = 0x5207;

/// Has the kernel's random numbers begin anew, with `seed` among what they are made of.
///
/// # Errors
/// When the kernel refuses: what was random would be known to others.
pub(super) fn seed(seed: &[u8]) -> Result<(), AgentError> {
    let begin_anew = || -> io::Result<()> {
        let mut device = OpenOptions::new().write(true).open(DEVICE)?;
        device.write_all(seed)?;
        // SAFETY: the request takes no argument, and touches no memory of this process.
        Ok(unsafe { ioctl(&device, NoArg::<RNDRESEEDCRNG>::new()) }?)
    };
    begin_anew().map_err(AgentError::file("seed", DEVICE))
}
