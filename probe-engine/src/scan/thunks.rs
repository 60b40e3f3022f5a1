//! The thunks by which a kernel branches where a processor may guess wrong: since 6.15 it makes pages of these itself
//! (`its_init_thunk`, arch/x86/kernel/alternative.c), and keeps no list of the pages.

use crate::insn::INT3;

/// The longest one, in bytes.
pub(super) const THUNK: usize = 4;

/// Whether code is one thunk: `jmp reg; int3`.
pub(super) fn is_thunk(code: &[u8]) -> bool {
    matches!(code, [0xff, 0xe0..=0xe7, INT3, ..] | [0x41, 0xff, 0xe0..=0xe7, INT3, ..])
}

/// Whether there is nothing but thunks and breakpoints.
pub(super) fn are_thunks(code: &[u8]) -> bool {
    let mut rest = code;
    loop {
        rest = match rest {
            [] => return true,
            [INT3, rest @ ..] => rest,
            [0xff, 0xe0..=0xe7, INT3, rest @ ..] | [0x41, 0xff, 0xe0..=0xe7, INT3, rest @ ..] => rest,
            _ => return false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thunks_are_told_from_all_other_code() {
        for code in [&[0xff, 0xe0, 0xcc][..], &[0x41, 0xff, 0xe7, 0xcc]] {
            assert!(is_thunk(code) && are_thunks(&[&[0xcc, 0xcc], code, &[0xcc], code].concat()));
        }
        for code in
            [&[0xff, 0xe0][..], &[0xff, 0xd0, 0xcc], &[0xff, 0x25, 0xcc], &[0x90], &[0x42, 0xff, 0xe0, 0xcc]]
        {
            assert!(!is_thunk(code) && !are_thunks(code), "{code:x?}");
        }
        assert!(!is_thunk(&[0xcc]) && are_thunks(&[0xcc; 64]) && !are_thunks(&[0xcc, 0xc3, 0xcc]));
    }
}
