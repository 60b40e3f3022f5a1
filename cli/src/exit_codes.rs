//! What this program ends with.

use std::io::{Error, ErrorKind};
use std::process::ExitCode;

/// A case has failed.
pub(crate) const FAILED: u8 = 1;
/// All cases were skipped, as Automake and others have it.
pub(crate) const SKIPPED: u8 = 77;
/// A probe was overwritten or never armed.
pub(crate) const UNARMED: u8 = 122;
/// The guest died, or halted without switching the machine off, or its kernel reported what is not allowed.
pub(crate) const DIED: u8 = 123;
/// The guest took longer than it may.
pub(crate) const TIMEOUT: u8 = 124;
/// What the guest ran in died, which says nothing about the guest.
pub(crate) const INFRASTRUCTURE: u8 = 125;
/// The user asked for something that cannot be done; nothing was run.
pub(crate) const USAGE: u8 = 2;

/// The number that an exit code is.
pub(crate) fn number(code: ExitCode) -> u8 {
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(INFRASTRUCTURE)
}

/// What a run ends with that would end with `code`, of which something could not be written that was asked for: whoever took
/// it for a success would take what is there for all. A reader that has gone away may have seen enough.
pub(crate) fn with_loss(code: ExitCode, loss: Option<&Error>) -> ExitCode {
    match loss {
        Some(error) if code == ExitCode::SUCCESS && error.kind() != ErrorKind::BrokenPipe => {
            ExitCode::from(INFRASTRUCTURE)
        }
        _ => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_code_is_its_number() {
        for code in [0, 1, DIED, 255] {
            assert_eq!(number(ExitCode::from(code)), code);
        }
    }

    #[test]
    fn what_was_lost_is_no_success() {
        let (full, gone) = (Error::from(ErrorKind::StorageFull), Error::from(ErrorKind::BrokenPipe));
        assert_eq!(with_loss(ExitCode::SUCCESS, None), ExitCode::SUCCESS);
        assert_eq!(with_loss(ExitCode::SUCCESS, Some(&full)), ExitCode::from(125));
        assert_eq!(with_loss(ExitCode::from(DIED), Some(&full)), ExitCode::from(DIED));
        assert_eq!(with_loss(ExitCode::SUCCESS, Some(&gone)), ExitCode::SUCCESS);
    }
}
