use super::*;
use crate::linux::testing::{Part, elf};
use proptest::prelude::*;

const TEXT: u64 = 0xffff_ffff_8100_0000;

fn image() -> Vec<u8> {
    elf(&[
        Part::text(".text", TEXT, vec![0x90; 64]),
        Part::data(".rodata", TEXT + 0x1000, b"words".to_vec()),
        Part::text(".init.text", TEXT + 0x2000, vec![0xc3; 16]),
    ])
}

#[test]
fn parts_are_found_by_name_and_by_address() {
    let image = Vmlinux::parse(image()).unwrap();
    assert_eq!(image.text_start(), Gva(TEXT));
    assert_eq!(image.entry(), Gpa(0x100_0000));
    assert_eq!(image.segments()[1].phys, Gpa(0x100_1000));
    assert_eq!(image.section(".rodata").unwrap().bytes, b"words");
    assert_eq!(image.section(".rodata").unwrap().range, Gva(TEXT + 0x1000)..Gva(TEXT + 0x1005));
    assert_eq!(image.bytes_at(Gva(TEXT + 0x1001), 3), Some(&b"ord"[..]));
    assert_eq!(image.bytes_at(Gva(TEXT + 0x1001), 5), None);
    assert_eq!(image.bytes_at(Gva(0), 0), None);
    assert_eq!(image.bytes(&(Gva(TEXT + 0x1001)..Gva(TEXT + 0x1004))), Some(&b"ord"[..]));
    assert_eq!(image.bytes(&(Gva(TEXT + 0x1001)..Gva(TEXT + 0x1006))), None);
    assert!(image.is_text(Gva(TEXT + 63)) && !image.is_text(Gva(TEXT + 64)));
    assert!(image.is_init_text(Gva(TEXT + 0x2000)) && !image.is_init_text(Gva(TEXT)));
    assert!(!image.is_text(Gva(TEXT + 0x1000)));
}

#[test]
fn the_build_id_is_found_among_other_notes() {
    let note = |name: &[u8], kind: u32, contents: &[u8]| {
        let mut note = [name.len() as u32, contents.len() as u32, kind].map(u32::to_le_bytes).concat();
        for part in [name, contents] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    };
    let build_id = |notes: &[Vec<u8>]| {
        let parts =
            [Part::text(".text", TEXT, vec![0x90]), Part::data(".notes", TEXT + 0x1000, notes.concat())];
        Vmlinux::parse(elf(&parts)).unwrap().build_id().map(<[u8]>::to_vec)
    };
    let (xen, own) = (note(b"Xen\0", 3, b"guest"), note(b"GNU\0", 3, &[1; 20]));
    assert_eq!(build_id(&[xen.clone(), note(b"GNU\0", 1, &[2; 16]), own.clone()]), Some(vec![1; 20]));
    assert_eq!(build_id(&[own]), Some(vec![1; 20]));
    assert_eq!(build_id(&[xen]), None);
    assert_eq!(build_id(&[vec![0xff; 40]]), None, "a length that leads out of the section");
    assert_eq!(build_id(&[]), None);
    assert_eq!(Vmlinux::parse(image()).unwrap().build_id(), None);
}

#[test]
fn other_files_are_refused_in_words() {
    let say = |file| Vmlinux::parse(file).unwrap_err().to_string();
    assert_eq!(say(b"#!/bin/sh".to_vec()), "not a kernel image: Invalid ELF header size or alignment");
    let mut arm = image();
    arm[18] = 183;
    assert_eq!(say(arm), "not a kernel image: an ELF file, but not for x86-64");
    let no_text = elf(&[Part::data(".rodata", TEXT, vec![1])]);
    assert_eq!(say(no_text), "not a kernel image: it has no .text section in an executable segment");
    let mut cut = image();
    cut.truncate(cut.len() - 70);
    assert!(Vmlinux::parse(cut).is_err());
    let parts = |count: u64| {
        let part = |n| Part::text(".text", TEXT + 0x1000 * n, vec![0x90]);
        elf(&(0..count).map(part).collect::<Vec<_>>())
    };
    assert!(Vmlinux::parse(parts(MOST_SEGMENTS as u64)).is_ok());
    assert_eq!(say(parts(MOST_SEGMENTS as u64 + 1)), "damaged kernel image: it has more than 64 segments");
}

proptest! {
    #[test]
    fn no_corruption_panics(at in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..16)) {
        let mut file = image();
        let at = at.index(file.len());
        for (byte, new) in file.iter_mut().skip(at).zip(&bytes) {
            *byte = *new;
        }
        if let Ok(image) = Vmlinux::parse(file) {
            for section in image.sections() {
                let _ = image.bytes_at(section.range.start, section.bytes.len());
            }
        }
    }
}
