//! The registers of a CPU as gdb knows them: their names, sizes and order are in the description that gdb is sent.
//!
//! Those of the FPU have to be there for gdb to take the description (gdb's manual, "i386 Features"), and are not known: the kernel
//! uses none.

use gdbstub::arch::{Arch, RegId, Registers};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// A register of the description.
struct Described {
    name: &'static str,
    bytes: usize,
    /// Whether it is a general one, which can be set.
    is_general: bool,
}

/// Registers of gdb's core feature, then those of its segments, then ours, in the order of the description.
const ALL: [Described; 49] = [
    general("rax", 8),
    general("rbx", 8),
    general("rcx", 8),
    general("rdx", 8),
    general("rsi", 8),
    general("rdi", 8),
    general("rbp", 8),
    general("rsp", 8),
    general("r8", 8),
    general("r9", 8),
    general("r10", 8),
    general("r11", 8),
    general("r12", 8),
    general("r13", 8),
    general("r14", 8),
    general("r15", 8),
    general("rip", 8),
    general("rflags", 4),
    other("cs", 4),
    other("ss", 4),
    other("ds", 4),
    other("es", 4),
    other("fs", 4),
    other("gs", 4),
    other("st0", 10),
    other("st1", 10),
    other("st2", 10),
    other("st3", 10),
    other("st4", 10),
    other("st5", 10),
    other("st6", 10),
    other("st7", 10),
    other("fctrl", 4),
    other("fstat", 4),
    other("ftag", 4),
    other("fiseg", 4),
    other("fioff", 4),
    other("foseg", 4),
    other("fooff", 4),
    other("fop", 4),
    other("fs_base", 8),
    other("gs_base", 8),
    other("k_gs_base", 8),
    other("cr0", 8),
    other("cr2", 8),
    other("cr3", 8),
    other("cr4", 8),
    other("cr8", 8),
    other("efer", 8),
];

const fn general(name: &'static str, bytes: usize) -> Described {
    Described { name, bytes, is_general: true }
}

const fn other(name: &'static str, bytes: usize) -> Described {
    Described { name, bytes, is_general: false }
}

/// A processor of 64 bits, as gdb sees one that runs a kernel.
#[derive(Debug)]
pub(super) enum X86_64 {}

impl Arch for X86_64 {
    type Usize = u64;
    type Registers = Cpu;
    type BreakpointKind = usize;
    type RegId = Register;

    fn target_description_xml() -> Option<&'static str> {
        Some(include_str!("target.xml"))
    }
}

/// The registers of a CPU by their names. Those that are not there are not known.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Cpu(pub(super) BTreeMap<String, u64>);

impl Registers for Cpu {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.0.get("rip").copied().unwrap_or_default()
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        for Described { name, bytes, .. } in &ALL {
            let value = self.0.get(*name).map(|value| value.to_le_bytes());
            let all = (0..*bytes).map(|n| value.map(|value| value.get(n).copied().unwrap_or_default()));
            all.for_each(&mut write_byte);
        }
    }

    fn gdb_deserialize(&mut self, mut bytes: &[u8]) -> Result<(), ()> {
        for described in &ALL {
            let (own, rest) = bytes.split_at_checked(described.bytes).ok_or(())?;
            if described.is_general {
                self.0.insert(described.name.to_owned(), value(own));
            }
            bytes = rest;
        }
        Ok(())
    }
}

/// The number that its little-endian bytes are.
pub(super) fn value(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// A register by its number in the description.
#[derive(Debug, Clone, Copy)]
pub(super) struct Register(usize);

impl Register {
    /// Its name, and how long it is.
    pub(super) fn known(self) -> Option<(&'static str, usize)> {
        ALL.get(self.0).map(|described| (described.name, described.bytes))
    }

    /// Its name, if it is one that can be set.
    pub(super) fn general(self) -> Option<&'static str> {
        ALL.get(self.0).filter(|described| described.is_general).map(|described| described.name)
    }
}

impl RegId for Register {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        ALL.get(id).map(|described| (Self(id), NonZeroUsize::new(described.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_has_the_registers_in_their_order() {
        let xml = X86_64::target_description_xml().unwrap();
        let named: Vec<&str> =
            xml.split("<reg name=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let ours: Vec<&str> =
            ALL.iter().map(|own| if own.name == "rflags" { "eflags" } else { own.name }).collect();
        assert_eq!(named, ours);
        for (reg, own) in xml.split("<reg ").skip(1).zip(&ALL) {
            assert!(reg.contains(&format!("bitsize=\"{}\"", own.bytes * 8)), "{reg}");
        }
    }

    #[test]
    fn what_is_not_known_is_said_to_be_so_and_what_is_general_comes_back() {
        let cpu =
            Cpu([("rax", 0x1122), ("rip", u64::MAX), ("cs", 0x10)].map(|(n, v)| (n.to_owned(), v)).into());
        let mut sent = Vec::new();
        cpu.gdb_serialize(|byte| sent.push(byte));
        assert_eq!(sent.len(), ALL.iter().map(|own| own.bytes).sum::<usize>());
        assert_eq!(sent[..3], [Some(0x22), Some(0x11), Some(0)]);
        assert_eq!(sent[8], None);
        let bytes: Vec<u8> = sent.into_iter().map(Option::unwrap_or_default).collect();
        let mut back = Cpu::default();
        back.gdb_deserialize(&bytes).unwrap();
        assert_eq!((back.0["rax"], back.pc(), back.0.get("cs")), (0x1122, u64::MAX, None));
        assert!(back.gdb_deserialize(&bytes[1..]).is_err());
    }
}
