//! The escape key of the interactive console: Ctrl-A x ends the run, Ctrl-A Ctrl-A types one Ctrl-A.

const CTRL_A: u8 = 0x01;

/// Filters what the user types.
#[derive(Default)]
pub(crate) struct Keys {
    escaped: bool,
}

/// What the typed bytes come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Typed {
    /// For the guest.
    Bytes(Vec<u8>),
    /// The user quits.
    Quit,
}

impl Keys {
    pub(crate) fn filter(&mut self, bytes: &[u8]) -> Typed {
        let mut through = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            match (std::mem::take(&mut self.escaped), byte) {
                (false, CTRL_A) => self.escaped = true,
                (true, b'x' | b'X') => return Typed::Quit,
                (true, CTRL_A) | (false, _) => through.push(byte),
                (true, _) => through.extend([CTRL_A, byte]),
            }
        }
        Typed::Bytes(through)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_is_found_across_reads() {
        let mut keys = Keys::default();
        assert_eq!(keys.filter(b"ls\n\x01"), Typed::Bytes(b"ls\n".to_vec()));
        assert_eq!(keys.filter(b"\x01b\x01"), Typed::Bytes(b"\x01b".to_vec()));
        assert_eq!(keys.filter(b"k"), Typed::Bytes(b"\x01k".to_vec()));
        assert_eq!(keys.filter(b"\x01x"), Typed::Quit);
    }
}
