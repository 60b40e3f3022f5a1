use super::*;
use crate::linux::symbols::SymbolTableBuilder;
use crate::linux::testing::{Part, elf};
use proptest::prelude::*;

const TEXT: u64 = 0xffff_ffff_8100_0000;
const TABLES: u64 = TEXT + 0x10_0000;

/// A table of `(distance field, rest of the entry)`, for targets in `.text`.
fn prel32(at: u64, entries: &[(u64, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (target, rest) in entries {
        let field = at + bytes.len() as u64;
        bytes.extend(((TEXT + target).wrapping_sub(field) as i32).to_le_bytes());
        bytes.extend(*rest);
    }
    bytes
}

/// Text with one site of each kind, every 0x10 bytes, and the tables that list them.
fn parts() -> (Vec<Part>, SymbolTable) {
    let mut text = vec![0x90; 0x200];
    for (at, code) in [
        (0x10, &[0x0f, 0x0b][..]),               // ud2
        (0x20, &[0xe9, 0, 0, 0, 0]),             // jump label
        (0x30, &[0x66, 0x90]),                   // short jump label
        (0x40, &[0xe8, 0, 0, 0, 0]),             // static call
        (0x50, &[0x2e, 0xe8, 0, 0, 0, 0]),       // call of a thunk, with its prefix
        (0x60, &[0xe9, 0, 0, 0, 0]),             // return thunk
        (0x70, &[0xe8, 0x8b, 0, 0, 0]),          // call of __fentry__ at 0x100
        (0x80, &[0xe8, 0, 0, 0, 0]),             // another call
        (0x90, &[0xf0, 0x48, 0x0f, 0xc1, 0x07]), // lock xadd
        (0x1a0, &[0xe8, 0, 0, 0, 0]),
        (0xa0, &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8]), // movabs with a run-time constant
    ] {
        text[at..at + code.len()].copy_from_slice(code);
    }
    let mut parts = Vec::new();
    let mut builder = SymbolTableBuilder::default();
    let mut at = TABLES;
    let mut add = |name: &'static str, entries: &[(u64, &[u8])]| {
        let bytes = prel32(at, entries);
        let range = at..at + bytes.len() as u64;
        parts.push(Part::data(name, at, bytes));
        at += 0x1000;
        range
    };
    // The second warns by a call.
    add("__bug_table", &[(0x10, &[0; 12]), (0xe0, &[0; 12])]);
    let labels = add(".jumps", &[(0x20, &[0; 12]), (0x30, &[0; 12])]);
    let calls = add(".static_calls", &[(0x40, &[0; 4])]);
    add(".retpoline_sites", &[(0x50, &[])]);
    add(".return_sites", &[(0x60, &[])]);
    add(".call_sites", &[(0x70, &[]), (0x80, &[])]);
    add(".smp_locks", &[(0x90, &[])]);
    add("runtime_ptr_x", &[(0xa2, &[])]);
    add("__ex_table", &[(0x93, &[0; 8]), (0x91, &[0; 8])]);
    let blacklist = add(".blacklist", &[]);
    for (name, at) in [
        ("__start___jump_table", labels.start),
        ("__stop___jump_table", labels.end),
        ("__start_static_call_sites", calls.start),
        ("__stop_static_call_sites", calls.end),
        ("__start_kprobe_blacklist", blacklist.start),
        ("__stop_kprobe_blacklist", blacklist.start + 8),
    ] {
        builder.push(Gva(at), b'D', name).unwrap();
    }
    for (offset, name) in [
        (0, "_text"),
        (0x100, "__fentry__"),
        (0x110, "nokprobe"),
        (0x120, "__entry_text_start"),
        (0x130, "__entry_text_end"),
        (0x140, "__noinstr_text_start"),
        (0x150, "__noinstr_text_end"),
        (0x150, "__kprobes_text_start"),
        (0x150, "__kprobes_text_end"),
        (0x160, "__pfx_f"),
        (0x170, "f"),
        (0x180, "__SCT__f"),
        (0x190, "exc_int3"),
        (0x1a0, "ftrace_call"),
        (0x1b0, "end"),
    ] {
        builder.push(Gva(TEXT + offset), b'T', name).unwrap();
    }
    parts.pop();
    parts.push(Part::data(".blacklist", blacklist.start, (TEXT + 0x110).to_le_bytes().to_vec()));
    let replacement = TEXT + 0x8000;
    parts.insert(0, Part::text(".text", TEXT, text));
    parts.push(Part::text(".altinstr_replacement", replacement, vec![0x90; 16]));
    (parts, builder.finish())
}

/// `.altinstructions` with entries of `size` bytes for 3 bytes at 0xb0 and 7 bytes at 0xc0.
fn alternatives(size: usize) -> Part {
    let at = TEXT + 0x9000;
    let mut bytes = Vec::new();
    for (target, len) in [(0xb0u64, 3), (0xc0, 7)] {
        let field = at + bytes.len() as u64;
        bytes.extend(((TEXT + target).wrapping_sub(field) as i32).to_le_bytes());
        bytes.extend(((TEXT + 0x8000).wrapping_sub(field + 4) as i32).to_le_bytes());
        bytes.resize(bytes.len() + size - 10, 0xee);
        bytes.extend([len, 3]);
    }
    Part::data(".altinstructions", at, bytes)
}

fn read(size: usize) -> PatchedText {
    let (mut parts, symbols) = parts();
    parts.push(alternatives(size));
    PatchedText::from_image(&Vmlinux::parse(elf(&parts)).unwrap(), &symbols)
}

#[test]
fn every_table_is_read() {
    for size in [12, 14] {
        let patched = read(size);
        assert_eq!(patched.missing(), [], "{size}");
        for (start, end, why) in [
            (0x10, 0x12, Why::Bug),
            (0x20, 0x25, Why::JumpLabel),
            (0x30, 0x32, Why::JumpLabel),
            (0x40, 0x45, Why::StaticCall),
            (0x50, 0x56, Why::IndirectBranch),
            (0x60, 0x65, Why::Return),
            (0x80, 0x85, Why::Call),
            (0x90, 0x91, Why::LockPrefix),
            (0xa2, 0xaa, Why::RuntimeConstant),
            (0xb0, 0xb3, Why::Alternative),
            (0xc0, 0xc7, Why::Alternative),
            (0x110, 0x120, Why::Blacklisted),
            (0x120, 0x130, Why::Entry),
            (0x140, 0x150, Why::Noinstr),
            (0x160, 0x170, Why::Padding),
            (0x180, 0x185, Why::StaticCall),
            (0x190, 0x1a0, Why::BreakpointPath),
            (0x1a0, 0x1a5, Why::FtraceCall),
            (0x8000, 0x8010, Why::Replacement),
        ] {
            let covers = |range: Range<u64>| patched.covers(Gva(TEXT + range.start)..Gva(TEXT + range.end));
            assert_ne!(covers(start - 1..start), Some(why), "before {start:#x}");
            assert_eq!(covers(start..start + 1), Some(why), "{start:#x}");
            assert_eq!(covers(end - 1..end + 9), Some(why), "{end:#x}");
            assert_ne!(covers(end..end + 1), Some(why), "after {end:#x}");
        }
    }
}

#[test]
fn the_call_of_fentry_is_no_patched_call() {
    assert_eq!(read(14).covers(Gva(TEXT + 0x70)..Gva(TEXT + 0x75)), None);
}

#[test]
fn a_warning_that_is_a_call_is_no_bug() {
    assert_eq!(read(14).covers(Gva(TEXT + 0xe0)..Gva(TEXT + 0xe1)), None);
}

#[test]
fn every_instruction_that_reports_a_bug_is_known() {
    use super::super::patch_tables::is_bug;
    for bytes in [
        &[0x0f, 0x0b][..],
        &[0x0f, 0xb9, 0x40, 1],
        &[0x67, 0x0f, 0xb9, 0x40, 1],
        &[0x67, 0x48, 0x0f, 0xb9, 0x3a],
        &[0xd6],
        &[0xf0, 0x75, 0x10],
    ] {
        assert!(is_bug(bytes), "{bytes:02x?}");
    }
    for bytes in
        [&[][..], &[0x0f], &[0x90], &[0x75, 0x10], &[0x48, 0xc7, 0xc6], &[0x67; 8], &[0xf0, 0x0f, 0xc1]]
    {
        assert!(!is_bug(bytes), "{bytes:02x?}");
    }
}

#[test]
fn fixups_are_found_by_the_start_of_an_instruction() {
    let patched = read(14);
    assert!(patched.has_fixup(Gva(TEXT + 0x91)..Gva(TEXT + 0x92)));
    assert!(patched.has_fixup(Gva(TEXT + 0x92)..Gva(TEXT + 0x94)));
    assert!(!patched.has_fixup(Gva(TEXT + 0x92)..Gva(TEXT + 0x93)));
    assert!(!patched.has_fixup(Gva(TEXT + 0x94)..Gva(TEXT + 0xff)));
}

#[test]
fn landings_are_the_second_field_of_fixups_and_jump_labels() {
    let (parts, symbols) = parts();
    let image = Vmlinux::parse(elf(&parts)).unwrap();
    let labels = symbols.address_of("__start___jump_table").unwrap();
    let fixups = image.section("__ex_table").unwrap().range.start;
    // All of these fields are zero, and so lead to themselves.
    let fields = [fixups.add(4), fixups.add(16), labels.add(4), labels.add(20)];
    assert_eq!(super::super::patch_tables::landings(&image, &symbols), fields);
}

#[test]
fn a_lasting_reason_comes_before_one_of_booting() {
    let range = |start, end| Gva(start)..Gva(end);
    let both =
        vec![(range(0, 8), Why::Alternative), (range(4, 5), Why::JumpLabel), (range(2, 20), Why::Return)];
    let patched = PatchedText::new(both, Vec::new(), Vec::new());
    assert_eq!(patched.covers(range(0, 8)), Some(Why::JumpLabel));
    assert_eq!(patched.covers(range(0, 3)), Some(Why::Alternative));
    assert_eq!(patched.covers(range(8, 9)), Some(Why::Return));
    assert_eq!(patched.covers(range(20, 21)), None);
}

#[test]
fn missing_tables_are_named() {
    let symbols = SymbolTableBuilder::default().finish();
    let image = Vmlinux::parse(elf(&[Part::text(".text", TEXT, vec![0x90])])).unwrap();
    let patched = PatchedText::from_image(&image, &symbols);
    for why in [Why::Entry, Why::Noinstr, Why::Blacklisted, Why::Bug, Why::JumpLabel, Why::StaticCall] {
        assert!(patched.missing().contains(&why), "{why:?}");
    }
}

proptest! {
    #[test]
    fn no_corruption_panics(at in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..16)) {
        let (mut parts, symbols) = parts();
        parts.push(alternatives(14));
        let mut file = elf(&parts);
        let at = at.index(file.len());
        for (byte, new) in file.iter_mut().skip(at).zip(&bytes) {
            *byte = *new;
        }
        if let Ok(image) = Vmlinux::parse(file) {
            let _ = PatchedText::from_image(&image, &symbols).covers(Gva(0)..Gva(u64::MAX));
        }
    }
}

/// Text with an indirect call that clang checks, and with an entry that such calls come to.
#[test]
fn what_clang_makes_of_indirect_calls_is_rewritten_at_boot() {
    let mut text = vec![0x90; 0x80];
    let check = [0x41, 0xba, 1, 2, 3, 4, 0x45, 0x03, 0x53, 0xf1, 0x74, 0x02, 0x0f, 0x0b];
    text[0x10..0x1e].copy_from_slice(&check);
    text[0x1e..0x24].copy_from_slice(&[0x2e, 0xe8, 0, 0, 0, 0]);
    text[0x40..0x45].copy_from_slice(&[0xb8, 1, 2, 3, 4]);
    text[0x50..0x54].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
    let parts = [
        Part::text(".text", TEXT, text),
        // A call that is not checked has no such bytes before it.
        Part::data(".retpoline_sites", TABLES, prel32(TABLES, &[(0x1e, &[]), (0x60, &[])])),
        Part::data(".cfi_sites", TABLES + 0x1000, prel32(TABLES + 0x1000, &[(0x40, &[]), (0x60, &[])])),
    ];
    let mut symbols = SymbolTableBuilder::default();
    symbols.push(Gva(TEXT), b'T', "_text").unwrap();
    let patched = PatchedText::from_image(&Vmlinux::parse(elf(&parts)).unwrap(), &symbols.finish());
    let covers = |at: u64| patched.covers(Gva(TEXT + at)..Gva(TEXT + at + 1));
    assert_eq!([0xf, 0x10, 0x1d].map(covers), [None, Some(Why::CallCheck), Some(Why::CallCheck)]);
    assert_eq!(covers(0x1e), Some(Why::IndirectBranch));
    assert_eq!(
        [0x4f, 0x50, 0x53, 0x54, 0x70].map(covers),
        [None, Some(Why::Endbr), Some(Why::Endbr), None, None]
    );
    assert!(Why::CallCheck.is_final_after_boot());
}

/// A kernel whose symbols are of functions alone does not tell where its tables of jump labels and static calls are.
#[test]
fn without_symbols_of_data_all_that_may_be_a_jump_label_is_left_alone() {
    const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
    let patched = |named: &[(u64, &str)]| {
        let mut text = vec![0x90; 0x80];
        text[0x10..0x15].copy_from_slice(&NOP5); // at an entry
        text[0x20..0x25].copy_from_slice(&NOP5);
        text[0x28..0x2a].copy_from_slice(&[0x66, 0x90]);
        text[0x30..0x32].copy_from_slice(&[0xeb, 0x10]);
        text[0x38..0x3d].copy_from_slice(&[0xe8, 0x23, 0, 0, 0]); // of 0x60
        text[0x40..0x42].copy_from_slice(&[0x74, 0x10]);
        let mut symbols = SymbolTableBuilder::default();
        for (at, name) in [(0, "_text"), (0x10, "f"), (0x78, "end")].iter().chain(named) {
            symbols.push(Gva(TEXT + at), b'T', name).unwrap();
        }
        let image = Vmlinux::parse(elf(&[Part::text(".text", TEXT, text)])).unwrap();
        PatchedText::from_image(&image, &symbols.finish())
    };
    let covers = |patched: &PatchedText| {
        [0x10, 0x20, 0x28, 0x30, 0x38, 0x40].map(|at| patched.covers(Gva(TEXT + at)..Gva(TEXT + at + 1)))
    };
    let [label, call] = [Why::PossibleLabel, Why::StaticCall].map(Some);
    let both = patched(&[(0x60, "__SCT__f"), (0x70, "static_key_enable"), (0x74, "__fentry__")]);
    assert_eq!(covers(&both), [None, label, label, label, call, None]);
    let untraced = patched(&[(0x70, "static_key_enable")]);
    assert_eq!(covers(&untraced), [label, label, label, label, None, None]);
    assert_eq!(covers(&patched(&[])), [None; 6], "a kernel without jump labels");
}
