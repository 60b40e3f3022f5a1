//! A guest that says where the system calls begin and end that count.

use crate::ptrace;
use std::io::{self, Write};

/// It prints this where they begin.
pub(crate) const BEGIN: u8 = b'b';
/// And this where they end.
pub(crate) const END: u8 = b'e';

/// Its console, which is written to on the vCPU's thread.
pub(crate) struct Marker;

impl Write for Marker {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            match *byte {
                BEGIN => ptrace::begin(),
                END => ptrace::end(),
                other => return Err(io::Error::other(format!("the guest prints {other:#x}"))),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
