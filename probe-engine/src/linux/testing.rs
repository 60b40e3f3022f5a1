//! Small kernel images, type information and guest memory for tests.

use object::elf::{SHF_ALLOC, SHF_EXECINSTR};

use super::btf::Btf;
use crate::addr::{Gpa, Gva};
use crate::memory::{self, PhysMemory};
use crate::paging::AddressSpace;
use crate::virt_memory::VirtMemory;
use std::path::Path;
use std::{env, fs};

/// One section, which becomes a segment of its own.
pub(crate) struct Part {
    name: &'static str,
    at: u64,
    /// Where it is loaded, in the mapping of the kernel's image.
    loaded: u64,
    executable: bool,
    bytes: Vec<u8>,
}

impl Part {
    pub(crate) fn text(name: &'static str, at: u64, bytes: Vec<u8>) -> Self {
        Self { name, at, loaded: at, executable: true, bytes }
    }

    pub(crate) fn data(name: &'static str, at: u64, bytes: Vec<u8>) -> Self {
        Self { name, at, loaded: at, executable: false, bytes }
    }

    /// Variables that are linked at 0 and loaded elsewhere.
    pub(crate) fn per_cpu(name: &'static str, loaded: u64, bytes: Vec<u8>) -> Self {
        Self { name, at: 0, loaded, executable: false, bytes }
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
        for word in [offset, part.at, part.loaded & 0x7fff_ffff, len, len, 8] {
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

/// A `.BTF` section, type by type.
#[derive(Default)]
pub(crate) struct BtfBuilder {
    strings: Vec<u8>,
    types: Vec<u8>,
    count: u32,
    /// Where its strings begin: behind those of the kernel, when it is a module's.
    strings_start: u32,
}

impl BtfBuilder {
    /// One of a module.
    pub(crate) fn on_top_of(base: &Btf<'_>) -> Self {
        Self { count: base.type_count(), strings_start: base.strings_len(), ..Self::default() }
    }

    /// The offset of a name.
    pub(crate) fn name(&mut self, name: &str) -> u32 {
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        if name.is_empty() {
            return 0;
        }
        let at = self.strings_start + self.strings.len() as u32;
        self.strings.extend(name.bytes().chain([0]));
        at
    }

    /// Any type; `rest` is what follows `struct btf_type`.
    pub(crate) fn add(
        &mut self,
        name: &str,
        kind: u8,
        count: u32,
        flag: bool,
        size_or_type: u32,
        rest: &[u32],
    ) -> u32 {
        let name = self.name(name);
        self.add_named(name, kind, count, flag, size_or_type, rest)
    }

    /// As [`add`](Self::add), by the offset of its name.
    pub(crate) fn add_named(
        &mut self,
        name: u32,
        kind: u8,
        count: u32,
        flag: bool,
        size_or_type: u32,
        rest: &[u32],
    ) -> u32 {
        let info = count | u32::from(kind) << 24 | u32::from(flag) << 31;
        let head = [name, info, size_or_type];
        self.types.extend(head.iter().chain(rest).flat_map(|word| word.to_le_bytes()));
        self.count += 1;
        self.count
    }

    pub(crate) fn int(&mut self, name: &str, size: u32) -> u32 {
        self.add(name, 1, 0, false, size, &[size * 8])
    }

    pub(crate) fn pointer(&mut self, to: u32) -> u32 {
        self.add("", 2, 0, false, to, &[])
    }

    pub(crate) fn array(&mut self, of: u32, count: u32) -> u32 {
        self.add("", 3, 0, false, 0, &[of, 1, count])
    }

    /// A structure of `(name, type, offset in bytes)`.
    pub(crate) fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
        let mut rest = Vec::new();
        for (member, ty, at) in members {
            rest.extend([self.name(member), *ty, at * 8]);
        }
        self.add(name, 4, members.len() as u32, false, size, &rest)
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.name("");
        let lens = [self.types.len() as u32, self.strings.len() as u32];
        let mut section = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, lens[0], lens[0], lens[1]] {
            section.extend(word.to_le_bytes());
        }
        section.extend(self.types);
        section.extend(self.strings);
        section
    }
}

/// Both parts of an ORC table, of rows for these addresses: the one with the addresses lies at `ips_at`. A row is
/// `sp_offset`, `bp_offset` and flags.
pub(crate) fn orc(ips_at: Gva, rows: &[(Gva, (i16, i16, u16))]) -> (Vec<u8>, Vec<u8>) {
    let (mut ips, mut bytes) = (Vec::new(), Vec::new());
    for (at, (sp_offset, bp_offset, flags)) in rows {
        let distance = at.0.wrapping_sub(ips_at.0 + ips.len() as u64) as i32;
        ips.extend(distance.to_le_bytes());
        for half in [*sp_offset as u16, *bp_offset as u16, *flags] {
            bytes.extend(half.to_le_bytes());
        }
    }
    (ips, bytes)
}

/// A little RAM with page tables of its own: [`Ram::LEN`] bytes mapped at [`Ram::BASE`], in pages of 4 KiB.
pub(crate) struct Ram(memory::testing::Ram);

impl Ram {
    /// Where it is mapped: where Linux maps its modules.
    pub(crate) const BASE: Gva = Gva(0xffff_ffff_c000_0000);
    /// Where it is mapped once more, in a process.
    pub(crate) const USER: Gva = Gva(0x7ffe_0000_0000);
    /// How much is mapped.
    pub(crate) const LEN: u64 = 0x2_0000;

    pub(crate) fn new() -> Self {
        let ram = memory::testing::Ram::new(0x4000 + Self::LEN as usize);
        ram.set(0, 511, 0x1003);
        ram.set(0x1000, 511, 0x2003);
        ram.set(0x2000, 0, 0x3003);
        ram.set(0, Self::USER.0 >> 39, 0x1003);
        ram.set(0x1000, Self::USER.0 >> 30 & 0x1ff, 0x2003);
        for page in 0..Self::LEN / 0x1000 {
            ram.set(0x3000, page, 0x4003 + page * 0x1000);
        }
        Self(ram)
    }

    pub(crate) fn memory(&self) -> VirtMemory<'_, memory::testing::Ram> {
        VirtMemory::new(&self.0, AddressSpace::new(0, 0))
    }

    /// What is not zero, in pieces of up to 255 bytes: an offset as u16, a length as u8, and so many bytes.
    pub(crate) fn pieces(&self) -> Vec<u8> {
        /// As many zeros cost less than another head.
        const GAP: usize = 4;
        let mut bytes = vec![0; 0x1_0000];
        self.0.read(Gpa(0x4000), &mut bytes).unwrap();
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(skipped) = bytes[at..].iter().position(|byte| *byte != 0) {
            at += skipped;
            let rest = &bytes[at..bytes.len().min(at + 255)];
            let len = rest.windows(GAP).position(|window| window == [0; GAP]).unwrap_or(rest.len());
            pieces.extend((at as u16).to_le_bytes());
            pieces.push(len as u8);
            pieces.extend(&rest[..len]);
            at += len;
        }
        pieces
    }

    pub(crate) fn put(&self, at: Gva, bytes: &[u8]) {
        self.0.write(Gpa(0x4000 + at.offset_from(Self::BASE).unwrap()), bytes).unwrap();
    }
}

/// Holds a seed of the fuzz targets (`fuzz`) to what is made here; writes it when `WRITE_SEEDS` is set.
pub(crate) fn seed(path: &str, bytes: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz").join(path);
    if env::var_os("WRITE_SEEDS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    let written = fs::read(&path).unwrap();
    assert!(written == bytes, "{} is not as it is made here: set WRITE_SEEDS=1", path.display());
}
