//! What a signal does to this process.
#![allow(unsafe_code, reason = "sigaction(2) is asked, and changes nothing")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// What a signal does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disposition {
    /// What it does where nobody has said anything.
    Default,
    /// Nothing: whoever has started this process may have wanted that, as nohup(1) does.
    Ignored,
    /// It calls a handler of this process.
    Handled,
}

impl Disposition {
    /// # Errors
    /// What sigaction(2) said.
    pub(super) fn of(signal: i32) -> io::Result<Self> {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: there is no new action to be read, and the old one is written to memory of its type.
        if unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: sigaction(2) has filled it in.
        let action = unsafe { action.assume_init() };
        Ok(match action.sa_sigaction {
            libc::SIG_DFL => Self::Default,
            libc::SIG_IGN => Self::Ignored,
            _ => Self::Handled,
        })
    }
}
