//! What the decompressor moves when it moves the kernel: the list of relocations behind the kernel's ELF file.
//!
//! Format: arch/x86/tools/relocs.c (`emit_relocs`), arch/x86/boot/compressed/misc.c (`handle_relocations`). The build
//! appends to the ELF file lists of 32-bit words, which are the low halves of link-time addresses, each behind a zero:
//! first the places of 64-bit addresses, last those of 32-bit ones, and up to 6.14 those of negated 32-bit ones between
//! the two. A kernel without CONFIG_RANDOMIZE_BASE has no such lists, and runs where it was linked.

use serde::{Deserialize, Serialize};

use super::read::u64_at;
use super::vmlinux::Vmlinux;
use crate::addr::{Gpa, Gva};

/// Where physical memory begins in the mapping of the kernel's image (`__START_KERNEL_map`), before it is moved.
const KERNEL_MAP: Gva = Gva(0xffff_ffff_8000_0000);

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

/// What the three lists say, as they are in the file.
struct Lists<'a> {
    /// Places of 64-bit addresses.
    wide: &'a [[u8; 4]],
    /// Places of negated 32-bit addresses.
    negated: &'a [[u8; 4]],
    /// Places of 32-bit addresses.
    narrow: &'a [[u8; 4]],
}

impl<'a> Lists<'a> {
    /// Reads what follows an ELF file; `None` where nothing does.
    fn read(trailer: &'a [u8]) -> Result<Option<Self>, RelocationsError> {
        let (words, rest) = trailer.as_chunks::<4>();
        if words.is_empty() {
            return Ok(None);
        }
        let mut lists = words.split(|word| *word == [0; 4]);
        match (lists.next(), lists.next(), lists.next(), lists.next(), lists.next()) {
            (Some([]), Some(wide), Some(narrow), None, None) if rest.is_empty() => {
                Ok(Some(Self { wide, negated: &[], narrow }))
            }
            (Some([]), Some(wide), Some(negated), Some(narrow), None) if rest.is_empty() => {
                Ok(Some(Self { wide, negated, narrow }))
            }
            _ => Err(RelocationsError),
        }
    }
}

/// The link-time address that a word of a list stands for.
fn address(word: [u8; 4]) -> Gva {
    Gva(i64::from(i32::from_le_bytes(word)).cast_unsigned())
}

/// The first pointer to the image itself that the decompressor of `image` relocates; `None` for a kernel that is never moved virtually.
///
/// # Errors
/// [`RelocationsError`] when what follows the ELF file is not understood.
pub fn first_pointer(image: &Vmlinux) -> Result<Option<RelocatedPointer>, RelocationsError> {
    let Some(lists) = Lists::read(image.trailer())? else { return Ok(None) };
    let mut pointers = lists.wide.iter().filter_map(|word| {
        let at = address(*word);
        let value = Gva(u64_at(image.bytes_at(at, 8)?, 0)?);
        // Physical addresses are among them, to 6.14.
        let is_in_image = image.segments().iter().any(|segment| value.is_in(&segment.range));
        is_in_image.then_some(RelocatedPointer { at, value })
    });
    pointers.next().map(Some).ok_or(RelocationsError)
}

/// Changes the addresses in `image` to those of a kernel that runs `slide` bytes behind where it was linked, as
/// `handle_relocations` does. The lists stay as they are.
///
/// # Errors
/// [`RelocationsError`] when there are no lists, or one that names a place outside of the image.
pub fn relocate(image: &mut Vmlinux, slide: u64) -> Result<(), RelocationsError> {
    let trailer = image.trailer().to_vec();
    let lists = Lists::read(&trailer)?.ok_or(RelocationsError)?;
    for word in lists.wide {
        let place = loaded(image, *word)?;
        *place = u64::from_le_bytes(*place).wrapping_add(slide).to_le_bytes();
    }
    for (words, slide) in [(lists.negated, slide.wrapping_neg() as u32), (lists.narrow, slide as u32)] {
        for word in words {
            let place = loaded(image, *word)?;
            *place = u32::from_le_bytes(*place).wrapping_add(slide).to_le_bytes();
        }
    }
    Ok(())
}

/// The bytes of `image` for which `word` stands. A list says where the kernel's first page table maps them, which is not
/// where per-CPU variables are linked.
fn loaded<const LEN: usize>(image: &mut Vmlinux, word: [u8; 4]) -> Result<&mut [u8; LEN], RelocationsError> {
    let at = address(word).offset_from(KERNEL_MAP).ok_or(RelocationsError)?;
    image.loaded_mut(Gpa(at)).ok_or(RelocationsError)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::{Part, elf};

    const TEXT: u64 = 0xffff_ffff_8100_0000;
    const DATA: u64 = TEXT + 0x1000;

    /// A kernel that is followed by these words.
    fn followed_by(words: &[u64]) -> Vec<u8> {
        let data = [0, TEXT + 8, 0x40].map(u64::to_le_bytes).concat();
        let mut file = elf(&[Part::text(".text", TEXT, vec![0x90; 64]), Part::data(".data", DATA, data)]);
        file.extend(words.iter().flat_map(|word| (*word as u32).to_le_bytes()));
        file
    }

    /// What is found there.
    fn found(words: &[u64]) -> Result<Option<RelocatedPointer>, RelocationsError> {
        first_pointer(&Vmlinux::parse(followed_by(words)).unwrap())
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
    fn every_address_is_moved_as_its_list_says() {
        let data = [TEXT + 8, TEXT + 16, 7].map(u64::to_le_bytes).concat();
        let per_cpu = [TEXT + 24, 0x1000].map(u64::to_le_bytes).concat();
        let parts = [
            Part::text(".text", TEXT, vec![0x90; 64]),
            Part::data(".data", DATA, data),
            Part::per_cpu(".data..percpu", TEXT + 0x2000, per_cpu),
        ];
        let words = [0, DATA, TEXT + 0x2000, 0, DATA + 16, 0, DATA + 8];
        let mut file = elf(&parts);
        file.extend(words.iter().flat_map(|word| (*word as u32).to_le_bytes()));
        let mut image = Vmlinux::parse(file).unwrap();
        relocate(&mut image, 0x1240_0000).unwrap();
        let bytes = |at: u64| u64_at(image.bytes_at(Gva(at), 8).unwrap(), 0).unwrap();
        assert_eq!([bytes(DATA), bytes(0)], [TEXT + 0x1240_0008, TEXT + 0x1240_0018]);
        assert_eq!([bytes(DATA + 8), bytes(8)], [0xffff_ffff_9340_0010, 0x1000]);
        assert_eq!(bytes(DATA + 16), 0xedc0_0007, "the upper half stays");
    }

    #[test]
    fn a_place_outside_of_the_image_is_an_error() {
        for words in [&[][..], &[0, DATA + 1, 0, 0x1000], &[0, DATA + 20, 0, DATA], &[0, DATA, 0, DATA + 21]]
        {
            let mut image = Vmlinux::parse(followed_by(words)).unwrap();
            assert_eq!(relocate(&mut image, 0x20_0000), Err(RelocationsError), "{words:x?}");
        }
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
        for words in [
            &[DATA + 8][..],
            &[0],
            &[0, DATA + 8],
            &[0, 0, DATA + 8],
            &[0, DATA + 16, 0],
            &[0, DATA + 20, 0],
            &[0, 8, 0],
            &[0, DATA + 8, 0, 0, 0],
        ] {
            assert_eq!(found(words), Err(RelocationsError), "{words:x?}");
        }
    }
}
