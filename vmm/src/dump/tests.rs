use super::*;
use std::io::Write;
use tempfile::NamedTempFile;

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn open(bytes: &[u8]) -> Result<Dump, DumpError> {
    Dump::open(file(bytes).path())
}

fn bytes_at(dump: &Dump, at: u64) -> Option<[u8; 4]> {
    let mut bytes = [0; 4];
    dump.read(Gpa(at), &mut bytes).ok().map(|()| bytes)
}

/// An ELF core of these ranges, each of which is filled with its number.
fn core_of(ranges: &[(u64, u64)]) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let word = |header: &mut Vec<u8>, value: u64| header.extend(value.to_le_bytes());
    header.extend([4, 0, 62, 0, 1, 0, 0, 0]);
    for value in [0, 64, 0] {
        word(&mut header, value);
    }
    header.extend([0, 0, 0, 0, 64, 0, 56, 0, ranges.len() as u8, 0, 0, 0, 0, 0, 0, 0]);
    let mut contents = Vec::new();
    for (number, (start, size)) in ranges.iter().enumerate() {
        header.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        let offset = (64 + 56 * ranges.len() + contents.len()) as u64;
        for value in [offset, 0, *start, *size, *size, 0] {
            word(&mut header, value);
        }
        contents.extend(vec![number as u8 + 1; *size as usize]);
    }
    [header, contents].concat()
}

#[test]
fn a_core_has_its_ranges_where_its_headers_say() {
    let bytes = core_of(&[(0x10_0000, 0x100), (0, 0x80)]);
    let dump = open(&bytes).unwrap();
    assert_eq!(dump.ranges(), [Gpa(0)..Gpa(0x80), Gpa(0x10_0000)..Gpa(0x10_0100)]);
    assert_eq!(
        [0, 0x7c, 0x10_0000].map(|at| bytes_at(&dump, at)),
        [Some([2; 4]), Some([2; 4]), Some([1; 4])]
    );
    assert_eq!([0x7d, 0x80, 0x10_00fd, u64::MAX - 1].map(|at| bytes_at(&dump, at)), [None; 4]);
    assert!(dump.write(Gpa(0), &[0]).is_err() && dump.compare_exchange(Gpa(0), 0, 0).is_err());
    // What was cut off would be taken for what the guest does not have.
    let cut = open(&bytes[..bytes.len() - 0x90]).unwrap_err().to_string();
    assert_eq!(cut, "it has been cut off: its headers tell of 432 bytes, and 416 are there");
}

/// What QEMU writes of processors (`QEMUCPUState`), among notes of others.
#[test]
fn a_core_says_what_processors_were_set_to() {
    let mut core = core_of(&[(0, 0x1000), (0, 0x80)]);
    let note = |name: &[u8; 8], desc: &[u8]| {
        let length = |bytes: usize| (bytes as u32).to_le_bytes();
        [&length(5)[..], &length(desc.len()), &[0; 4], name, desc].concat()
    };
    let mut state = vec![0; 0x1b8];
    let mut put = |at: usize, bytes: &[u8]| state[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[1]);
    put(0x88, &0x1111_u64.to_le_bytes());
    put(0x174, &0xfff_u32.to_le_bytes());
    put(0x180, &0xffff_fe00_0000_0000_u64.to_le_bytes());
    put(0x188, &0x8005_0033_u64.to_le_bytes());
    put(0x1a8, &0x30_06f0_u64.to_le_bytes());
    let notes =
        [note(b"CORE\0\0\0\0", &[1; 8]), note(b"QEMU\0\0\0\0", &state), note(b"QEMU\0\0\0\0", &[1, 0])];
    let notes = notes.concat();
    // The first segment becomes one of notes.
    let at = 64 + 2 * 56;
    core[64] = 4;
    core[64 + 32..64 + 40].copy_from_slice(&(notes.len() as u64).to_le_bytes());
    core[at..at + notes.len()].copy_from_slice(&notes);
    let dump = open(&core).unwrap();
    let processor = ProcessorState {
        rip: 0x1111,
        cr0: 0x8005_0033,
        cr4: 0x30_06f0,
        interrupts: (0xffff_fe00_0000_0000, 0xfff),
        calls: None,
    };
    assert_eq!(dump.processors(), [processor]);
    assert_eq!(dump.ranges(), [Gpa(0)..Gpa(0x80)]);
}

#[test]
fn limes_ranges_have_headers() {
    let header = |start: u64, last: u64| {
        [&b"EMiL\x01\0\0\0"[..], &start.to_le_bytes(), &last.to_le_bytes(), &[0; 8]].concat()
    };
    let bytes = [header(0x1000, 0x100f), vec![7; 16], header(0x8000, 0x8007), vec![9; 8]].concat();
    let dump = open(&bytes).unwrap();
    assert_eq!([0x1000, 0x8004, 0x100d].map(|at| bytes_at(&dump, at)), [Some([7; 4]), Some([9; 4]), None]);
    for wrong in
        [&bytes[..40], &[header(16, 8), vec![0; 16]].concat(), &[header(0, u64::MAX), vec![0; 9]].concat()]
    {
        assert!(matches!(open(wrong), Err(DumpError::Damaged | DumpError::Read(_))));
    }
}

#[test]
fn ranges_that_no_guest_has_are_refused() {
    for ranges in [
        &[(0, 0x100), (0x80, 0x100)][..],
        &[(0xffff_ffff_ffff_f000, 0xfff)],
        &[(1 << 46, 16)],
        &[(0, 16), (0, 32)],
    ] {
        assert!(matches!(open(&core_of(ranges)), Err(DumpError::Ranges)), "{ranges:x?}");
    }
    // A file may have one twice, as a kernel's own text in /proc/vmcore.
    assert_eq!(open(&core_of(&[(0, 16), (0, 16)])).unwrap().ranges(), [Gpa(0)..Gpa(16)]);
    let mut many = core_of(&[(0, 16)]);
    many[56..58].copy_from_slice(&[0xff, 0xff]);
    assert!(matches!(open(&many), Err(DumpError::Ranges)));
}

#[test]
fn all_else_is_memory_from_address_0_on() {
    let dump = open(&[5; 64]).unwrap();
    assert_eq!([0, 60, 61].map(|at| bytes_at(&dump, at)), [Some([5; 4]), Some([5; 4]), None]);
    let words = [&[0; 100][..], b"Linux version 1.2\n.."].concat();
    assert_eq!(
        open(&words).unwrap().words(b"Linux version ", 64).as_deref(),
        Some(&b"Linux version 1.2"[..])
    );
    assert_eq!(dump.words(b"Linux version ", 64), None);
}

#[test]
fn what_is_not_read_is_refused_in_words() {
    for (bytes, words) in [
        (&b"KDUMP   and more"[..], "compressed"),
        (b"QEVM............", "dump-guest-memory"),
        (b"", "no memory"),
        (b"\x7fELF", "damaged"),
    ] {
        let refused = open(bytes).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let mut executable = core_of(&[(0, 16)]);
    executable[16] = 2;
    assert!(open(&executable).unwrap_err().to_string().contains("no core"));
    assert!(matches!(Dump::open(Path::new("/")), Err(DumpError::NoFile)));
}
