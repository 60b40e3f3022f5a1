//! Writing an ELF core of a guest, as QEMU's `dump-guest-memory` does: what readers of such files expect.

use super::DumpError;
use object::elf::{
    ELFCLASS64, ELFDATA2LSB, ELFMAG, EM_X86_64, ET_CORE, EV_CURRENT, FileHeader64, Ident, NT_PRSTATUS,
    NoteHeader64, PT_LOAD, PT_NOTE, ProgramHeader64,
};
use object::pod::bytes_of;
use object::{LittleEndian as Little, U16, U32, U64};
use probe_engine::addr::Gpa;
use probe_engine::regs::Register;
use std::collections::BTreeMap;
use std::ops::Range;

/// Memory begins at such a place in the file, so that its pages are pages of the file.
const ALIGNMENT: u64 = 4096;

/// The registers of a processor by the processor's names, as [`Register::processor_name`] and
/// [`SystemRegs::by_name`](probe_engine::system_regs::SystemRegs::by_name) have them. One that is missing is zero.
pub type NamedRegs = BTreeMap<String, u64>;

/// All of a core but the memory, which lies behind this in the file.
pub struct CoreHead {
    /// With what the file begins.
    pub bytes: Vec<u8>,
    /// Where the memory of each range begins in the file.
    pub offsets: Vec<u64>,
    /// How long the file is.
    pub length: u64,
}

impl CoreHead {
    /// That of a guest with memory in these `ranges`, with these notes.
    ///
    /// # Errors
    /// Where no file has so many ranges, or such long ones.
    pub fn new(ranges: &[Range<Gpa>], notes: &Notes) -> Result<Self, DumpError> {
        let headers = ranges.len() + 1;
        let count = u16::try_from(headers).ok().filter(|_| headers <= super::MOST_RANGES);
        let count = count.ok_or(DumpError::Ranges)?;
        let notes_at = size_of::<FileHeader64<Little>>() + headers * size_of::<ProgramHeader64<Little>>();
        let noted = notes.0.len();
        let mut next = ((notes_at + noted) as u64).next_multiple_of(ALIGNMENT);
        let mut bytes = bytes_of(&file_header(count)).to_vec();
        bytes.extend_from_slice(bytes_of(&segment(PT_NOTE, notes_at as u64, 0, noted as u64)));
        let mut offsets = Vec::new();
        for range in ranges {
            let size = range.end.0.checked_sub(range.start.0).ok_or(DumpError::Ranges)?;
            bytes.extend_from_slice(bytes_of(&segment(PT_LOAD, next, range.start.0, size)));
            offsets.push(next);
            next = next.checked_add(size).ok_or(DumpError::Ranges)?;
        }
        bytes.extend_from_slice(&notes.0);
        Ok(Self { bytes, offsets, length: next })
    }
}

fn file_header(segments: u16) -> FileHeader64<Little> {
    let half = |value| U16::new(Little, value);
    FileHeader64 {
        e_ident: Ident {
            magic: ELFMAG,
            class: ELFCLASS64,
            data: ELFDATA2LSB,
            version: EV_CURRENT,
            os_abi: 0,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: half(ET_CORE),
        e_machine: half(EM_X86_64),
        e_version: U32::new(Little, EV_CURRENT.into()),
        e_entry: U64::new(Little, 0),
        e_phoff: U64::new(Little, size_of::<FileHeader64<Little>>() as u64),
        e_shoff: U64::new(Little, 0),
        e_flags: U32::new(Little, 0),
        e_ehsize: half(size_of::<FileHeader64<Little>>() as u16),
        e_phentsize: half(size_of::<ProgramHeader64<Little>>() as u16),
        e_phnum: half(segments),
        e_shentsize: half(0),
        e_shnum: half(0),
        e_shstrndx: half(0),
    }
}

/// A segment of the file, which has memory at `physical`.
fn segment(kind: u32, offset: u64, physical: u64, size: u64) -> ProgramHeader64<Little> {
    let word = |value| U64::new(Little, value);
    ProgramHeader64 {
        p_type: U32::new(Little, kind),
        p_flags: U32::new(Little, 0),
        p_offset: word(offset),
        // Nobody says where the guest has it: that is in its page tables.
        p_vaddr: word(0),
        p_paddr: word(physical),
        p_filesz: word(size),
        p_memsz: word(size),
        p_align: word(0),
    }
}

/// The notes of a core.
#[derive(Default)]
pub struct Notes(Vec<u8>);

impl Notes {
    /// What processor number `cpu` had in its registers, for those who follow calls (`struct elf_prstatus` of
    /// include/uapi/linux/elfcore.h). As QEMU does it, the number is one less than that of the process.
    pub fn add_status(&mut self, cpu: u32, regs: &NamedRegs) {
        const SIZE: usize = 336;
        const PROCESS: usize = 32;
        const REGISTERS: usize = 112;
        /// Beside those whose places [`Register::saved`] knows (`struct user_regs_struct`).
        const SYSTEM: [(&str, usize); 8] = [
            ("cs", 136),
            ("ss", 160),
            ("fs_base", 168),
            ("gs_base", 176),
            ("ds", 184),
            ("es", 192),
            ("fs", 200),
            ("gs", 208),
        ];
        let mut status = [0; SIZE];
        put(&mut status, PROCESS, &cpu.saturating_add(1).to_le_bytes());
        let general = Register::ALL.map(|register| (register.processor_name(), register.saved().into()));
        for (name, at) in general.into_iter().chain(SYSTEM) {
            put(&mut status, REGISTERS + at, &value(regs, name).to_le_bytes());
        }
        self.add(b"CORE", NT_PRSTATUS, &status);
    }

    /// The same with its system registers, for those who look at the processor (`QEMUCPUState` of QEMU's target/i386/arch_dump.c, version 1).
    pub fn add_processor(&mut self, regs: &NamedRegs) {
        const SIZE: u32 = 0x1b8;
        const SEGMENTS: usize = 0x98;
        const CONTROL: usize = 0x188;
        const GENERAL: [&str; 18] = [
            "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", "r8", "r9", "r10", "r11", "r12", "r13",
            "r14", "r15", "rip", "rflags",
        ];
        const DESCRIBED: [&str; 10] = ["cs", "ds", "es", "fs", "gs", "ss", "ldt", "tr", "gdt", "idt"];
        let mut state = [0; SIZE as usize];
        put(&mut state, 0, &1u32.to_le_bytes());
        put(&mut state, 4, &SIZE.to_le_bytes());
        for (name, at) in GENERAL.iter().zip((8..).step_by(8)) {
            put(&mut state, at, &value(regs, name).to_le_bytes());
        }
        for (name, at) in DESCRIBED.iter().zip((SEGMENTS..).step_by(24)) {
            let of = |what: &str| value(regs, &format!("{name}{what}"));
            for (n, word) in [of(""), of("_limit"), of("_attributes")].into_iter().enumerate() {
                put(&mut state, at + 4 * n, &(word as u32).to_le_bytes());
            }
            put(&mut state, at + 16, &of("_base").to_le_bytes());
        }
        for (name, at) in ["cr0", "cr1", "cr2", "cr3", "cr4"].iter().zip((CONTROL..).step_by(8)) {
            put(&mut state, at, &value(regs, name).to_le_bytes());
        }
        // Behind them is what GS's base is while a program runs, or the kernel: nobody knows.
        self.add(b"QEMU", 0, &state);
    }

    /// What the kernel says for those who read its memory.
    pub fn add_vmcoreinfo(&mut self, text: &[u8]) {
        self.add(b"VMCOREINFO", 0, text);
    }

    /// Behind the header come the name, which ends with a zero, and what it is, in words of four bytes each.
    fn add(&mut self, name: &[u8], kind: u32, what: &[u8]) {
        let word = |length: usize| U32::new(Little, length as u32);
        let header = NoteHeader64 {
            n_namesz: word(name.len() + 1),
            n_descsz: word(what.len()),
            n_type: word(kind as usize),
        };
        let padded = |mut bytes: Vec<u8>| {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        self.0.extend_from_slice(bytes_of(&header));
        self.0.extend(padded([name, &[0]].concat()));
        self.0.extend(padded(what.to_vec()));
    }
}

fn value(regs: &NamedRegs, name: &str) -> u64 {
    regs.get(name).copied().unwrap_or(0)
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = to.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dump;
    use super::*;
    use probe_engine::memory::PhysMemory;
    use std::io::Write;

    fn regs(all: &[(&str, u64)]) -> NamedRegs {
        all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_core_that_is_written_is_read() {
        let first = regs(&[("rip", 0xffff_ffff_8100_0000), ("cr0", 0x8005_0033), ("cr4", 0x30_06f0)]);
        let second = regs(&[("idt_base", 0xffff_fe00_0000_0000), ("idt_limit", 0xfff), ("rip", 5)]);
        let mut notes = Notes::default();
        for (cpu, regs) in (0..).zip([&first, &second]) {
            notes.add_status(cpu, regs);
            notes.add_processor(regs);
        }
        notes.add_vmcoreinfo(b"OSRELEASE=6.12\n");
        let ranges = [Gpa(0)..Gpa(0x2000), Gpa(1 << 32)..Gpa((1 << 32) + 0x1000)];
        let head = CoreHead::new(&ranges, &notes).unwrap();
        assert!(head.offsets.iter().all(|at| at % ALIGNMENT == 0));
        let mut bytes = head.bytes;
        bytes.resize(head.length as usize, 0);
        for (n, at) in (1..).zip(&head.offsets) {
            bytes[*at as usize] = n;
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let dump = Dump::open(file.path()).unwrap();
        assert_eq!(dump.ranges(), ranges);
        for (n, range) in (1..).zip(&ranges) {
            let mut start = [0; 2];
            dump.read(range.start, &mut start).unwrap();
            assert_eq!(start, [n, 0]);
        }
        let processors = dump.processors();
        assert_eq!(processors.len(), 2);
        let own = &processors[0];
        assert_eq!((own.rip, own.cr0, own.cr4), (0xffff_ffff_8100_0000, 0x8005_0033, 0x30_06f0));
        assert_eq!((processors[1].interrupts, processors[1].rip), ((0xffff_fe00_0000_0000, 0xfff), 5));
    }

    #[test]
    fn registers_are_where_the_kernel_has_them() {
        let mut notes = Notes::default();
        notes.add_status(1, &regs(&[("rip", 7), ("r15", 1), ("rsp", 9), ("cs", 0x10), ("gs", 0x2b)]));
        let status = &notes.0[12 + 8..];
        let word = |at: usize| u64::from_le_bytes(status[at..at + 8].try_into().unwrap());
        assert_eq!(status.len(), 336);
        assert_eq!(status[32], 2, "as QEMU numbers them");
        assert_eq!([112, 240, 248, 264, 320].map(word), [1, 7, 0x10, 9, 0x2b]);
    }

    #[test]
    fn what_no_guest_has_makes_no_file() {
        let backwards = Range { start: Gpa(2), end: Gpa(1) };
        for ranges in [vec![backwards], vec![Gpa(0)..Gpa(u64::MAX)], vec![Gpa(0)..Gpa(1); 1 << 14]] {
            assert!(matches!(CoreHead::new(&ranges, &Notes::default()), Err(DumpError::Ranges)));
        }
    }
}
