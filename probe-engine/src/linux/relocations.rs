//! What the decompressor moves when it moves the kernel: the list of relocations behind the kernel's ELF file.
//!
//! Format: arch/x86/tools/relocs.c (`emit_relocs`), arch/x86/boot/compressed/misc.c (`handle_relocations`). The build
//! appends to the ELF file lists of 32-bit words, which are the low halves of link-time addresses, each behind a zero:
//! first the places of 64-bit addresses, last those of 32-bit ones, and up to 6.14 those of negated 32-bit ones between
//! the two. A kernel without CONFIG_RANDOMIZE_BASE has no such lists, and runs where it was linked.

use serde::{Deserialize, Serialize};

use super::read::u64_at;
use super::vmlinux::Vmlinux;
use crate::addr::Gva;

/// A pointer in the kernel's image to which the decompressor adds the slide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelocatedPointer {
    /// The pointer's own link-time address.
    pub at: Gva,
    /// What the image holds there: a link-time address in the image.
    pub value: Gva,
}

/// Something follows the ELF file, and it is no list of relocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kernel's relocations are of an unknown layout: it cannot be told by them where the kernel runs")]
pub struct RelocationsError;

/// The first pointer to the image itself that the decompressor of `image` relocates; `None` for a kernel that is never moved virtually.
///
/// # Errors
/// [`RelocationsError`] when what follows the ELF file is not understood.
pub fn first_pointer(image: &Vmlinux) -> Result<Option<RelocatedPointer>, RelocationsError> {
    if image.trailer().is_empty() {
        return Ok(None);
    }
    let (words, _) = image.trailer().as_chunks::<4>();
    let mut words = words.iter().map(|word| i32::from_le_bytes(*word));
    if words.next() != Some(0) {
        return Err(RelocationsError);
    }
    let mut pointers = words.take_while(|word| *word != 0).filter_map(|word| {
        let at = Gva(i64::from(word).cast_unsigned());
        let value = Gva(u64_at(image.bytes_at(at, 8)?, 0)?);
        // Physical addresses are among them, to 6.14.
        let is_in_image = image.segments().iter().any(|segment| value.is_in(&segment.range));
        is_in_image.then_some(RelocatedPointer { at, value })
    });
    pointers.next().map(Some).ok_or(RelocationsError)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::{Part, elf};

    const TEXT: u64 = 0xffff_ffff_8100_0000;
    const DATA: u64 = TEXT + 0x1000;

    /// What is found in a kernel that is followed by these words.
    fn found(words: &[u64]) -> Result<Option<RelocatedPointer>, RelocationsError> {
        let data = [0, TEXT + 8, 0x40].map(u64::to_le_bytes).concat();
        let mut file = elf(&[Part::text(".text", TEXT, vec![0x90; 64]), Part::data(".data", DATA, data)]);
        file.extend(words.iter().flat_map(|word| (*word as u32).to_le_bytes()));
        first_pointer(&Vmlinux::parse(file).unwrap())
    }

    #[test]
    fn the_first_pointer_into_the_image_is_found() {
        let pointer = Some(RelocatedPointer { at: Gva(DATA + 8), value: Gva(TEXT + 8) });
        // With and without a list of negated places.
        assert_eq!(found(&[0, DATA + 8, DATA + 16, 0, TEXT + 1]), Ok(pointer));
        assert_eq!(found(&[0, DATA + 8, 0, TEXT + 5, 0, TEXT + 1]), Ok(pointer));
        // Behind one to elsewhere, and behind one that is not in the image.
        assert_eq!(found(&[0, DATA + 16, DATA + 20, DATA + 8, 0, TEXT + 1]), Ok(pointer));
    }

    #[test]
    fn the_list_ends_at_its_zero() {
        assert_eq!(found(&[0, DATA + 16, 0, DATA + 8]), Err(RelocationsError));
    }

    #[test]
    fn a_kernel_without_relocations_is_not_moved() {
        assert_eq!(found(&[]), Ok(None));
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        for words in [&[DATA + 8][..], &[0], &[0, 0, DATA + 8], &[0, DATA + 16], &[0, DATA + 20], &[0, 8]] {
            assert_eq!(found(words), Err(RelocationsError), "{words:x?}");
        }
    }
}
