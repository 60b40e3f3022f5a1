//! What a guest may not leave in a folder that it may change: files by which others here, who run or open them, get more than
//! their own rights.

use crate::devices::virtio::fs::IN_HEADER;

// Of include/uapi/linux/fuse.h.
const SETATTR: u32 = 4;
const MKNOD: u32 = 8;
const CREATE: u32 = 35;
const RENAME2: u32 = 45;
const TMPFILE: u32 = 51;
/// `FATTR_MODE`: a SETATTR sets the mode.
const SETS_MODE: u32 = 1;

/// Whether the message makes a device node, or a program that runs with the rights of its owner or of its group.
pub(super) fn plants(message: &[u8]) -> bool {
    let body = |at: usize| word(message, IN_HEADER + at).unwrap_or_default();
    match word(message, 4) {
        Some(MKNOD) => is_device(body(0)) || lends_rights(body(0)),
        // What takes the name's place is a device node.
        Some(RENAME2) => body(8) & libc::RENAME_WHITEOUT != 0,
        Some(CREATE | TMPFILE) => lends_rights(body(4)),
        Some(SETATTR) => body(0) & SETS_MODE != 0 && lends_rights(body(68)),
        _ => false,
    }
}

/// The number of 32 bits at `at` of a message.
pub(super) fn word(message: &[u8], at: usize) -> Option<u32> {
    message.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn is_device(mode: u32) -> bool {
    [libc::S_IFBLK, libc::S_IFCHR].contains(&(mode & libc::S_IFMT))
}

fn lends_rights(mode: u32) -> bool {
    mode & (libc::S_ISUID | libc::S_ISGID) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of this kind whose body has `mode` at `at`, behind `first`.
    fn message(opcode: u32, first: u32, at: usize, mode: u32) -> Vec<u8> {
        let mut message = vec![0; IN_HEADER + 88];
        message[4..8].copy_from_slice(&opcode.to_le_bytes());
        message[IN_HEADER..IN_HEADER + 4].copy_from_slice(&first.to_le_bytes());
        message[IN_HEADER + at..IN_HEADER + at + 4].copy_from_slice(&mode.to_le_bytes());
        message
    }

    #[test]
    fn devices_and_lent_rights_are_seen_and_all_else_is_not() {
        for (opcode, first, at, mode, expected) in [
            (MKNOD, 0, 0, libc::S_IFBLK | 0o600, true),
            (MKNOD, 0, 0, libc::S_IFCHR, true),
            (MKNOD, 0, 0, libc::S_IFREG | 0o4755, true),
            (MKNOD, 0, 0, libc::S_IFREG | 0o1777, false),
            (MKNOD, 0, 0, libc::S_IFIFO | 0o600, false),
            (MKNOD, 0, 0, libc::S_IFSOCK | 0o600, false),
            (CREATE, 0o102, 4, 0o2755, true),
            (CREATE, 0o102, 4, 0o755, false),
            (TMPFILE, 0o102, 4, 0o4755, true),
            (SETATTR, SETS_MODE, 68, 0o4755, true),
            (SETATTR, SETS_MODE, 68, libc::S_IFREG | 0o2711, true),
            (SETATTR, SETS_MODE, 68, 0o755, false),
            (RENAME2, 1, 8, libc::RENAME_WHITEOUT, true),
            (RENAME2, 1, 8, libc::RENAME_EXCHANGE, false),
            // The mode is not set, and what stands in its place means nothing.
            (SETATTR, 2, 68, 0o4755, false),
        ] {
            let message = message(opcode, first, at, mode);
            assert_eq!(plants(&message), expected, "{opcode} {first} {mode:o}");
        }
        assert!(!plants(&[]) && !plants(&[8; 7]));
    }
}
