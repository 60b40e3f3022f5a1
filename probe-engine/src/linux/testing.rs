//! Small kernel images for tests.

use object::elf::{SHF_ALLOC, SHF_EXECINSTR};

/// One section, which becomes a segment of its own.
pub(crate) struct Part {
    name: &'static str,
    at: u64,
    executable: bool,
    bytes: Vec<u8>,
}

impl Part {
    pub(crate) fn text(name: &'static str, at: u64, bytes: Vec<u8>) -> Self {
        Self { name, at, executable: true, bytes }
    }

    pub(crate) fn data(name: &'static str, at: u64, bytes: Vec<u8>) -> Self {
        Self { name, at, executable: false, bytes }
    }
}

/// What one more section of another kind is made of: name, `sh_type`, `sh_link`, entry size, bytes.
pub(crate) type Extra = (&'static str, u32, u32, u64, Vec<u8>);

/// An ELF file of these parts. Physical addresses are those of linking without `__START_KERNEL_map`.
pub(crate) fn elf(parts: &[Part]) -> Vec<u8> {
    elf_with(parts, &[])
}

/// As [`elf`], with sections that are not loaded; their indices follow those of the parts, which begin at 1.
pub(crate) fn elf_with(parts: &[Part], extra: &[Extra]) -> Vec<u8> {
    let mut names = vec![0];
    let mut headers = vec![0; 64];
    let mut segments = Vec::new();
    let mut bytes = Vec::new();
    let body = 64 + 56 * parts.len();
    let mut section = |name: &str, kind: u32, flags: u64, at: u64, link: u32, entry: u64, content: &[u8]| {
        while !(body + bytes.len()).is_multiple_of(8) {
            bytes.push(0);
        }
        let offset = (body + bytes.len()) as u64;
        headers.extend((names.len() as u32).to_le_bytes());
        headers.extend(kind.to_le_bytes());
        for word in [flags, at, offset, content.len() as u64] {
            headers.extend(word.to_le_bytes());
        }
        headers.extend(link.to_le_bytes());
        headers.extend([0; 4]);
        headers.extend(8u64.to_le_bytes());
        headers.extend(entry.to_le_bytes());
        names.extend(name.bytes().chain([0]));
        bytes.extend(content);
        offset
    };
    for part in parts {
        let flags = u64::from(SHF_ALLOC) | if part.executable { u64::from(SHF_EXECINSTR) } else { 0 };
        let offset = section(part.name, 1, flags, part.at, 0, 0, &part.bytes);
        segments.extend(1u32.to_le_bytes());
        segments.extend(if part.executable { 5u32 } else { 4 }.to_le_bytes());
        let len = part.bytes.len() as u64;
        for word in [offset, part.at, part.at & 0x7fff_ffff, len, len, 8] {
            segments.extend(word.to_le_bytes());
        }
    }
    for (name, kind, link, entry, content) in extra {
        section(name, *kind, 0, 0, *link, *entry, content);
    }
    // The table of names comes last and has no name itself: what it holds is complete only then.
    section("", 3, 0, 0, 0, 0, &[]);
    let count = parts.len() + extra.len() + 2;
    let names_offset = body + bytes.len();
    let at = headers.len() - 64 + 24;
    headers[at..at + 8].copy_from_slice(&(names_offset as u64).to_le_bytes());
    headers[at + 8..at + 16].copy_from_slice(&(names.len() as u64).to_le_bytes());
    bytes.extend(&names);
    while !(body + bytes.len()).is_multiple_of(8) {
        bytes.push(0);
    }

    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend(2u16.to_le_bytes());
    file.extend(62u16.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    for word in [0x100_0000, 64, (body + bytes.len()) as u64] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64, 56, parts.len(), 64, count, count - 1] {
        file.extend((half as u16).to_le_bytes());
    }
    file.extend(segments);
    file.extend(bytes);
    file.extend(headers);
    file
}
