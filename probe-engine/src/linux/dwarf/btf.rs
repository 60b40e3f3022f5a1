//! A `.BTF` section in the making: types are added as they are found, and the same ones become one.
//!
//! Every unit describes anew what the headers declare. Structures, unions and enumerations are the same when they are called
//! the same, have the same size and are declared at the same place; what is made of others is the same when those are.

use std::collections::HashMap;

use super::DwarfError;
use crate::guest_text::is_plain;
use crate::linux::btf::kind;

/// Most types; one more than [`Btf`](crate::linux::btf::Btf) reads would be of no use.
const MOST_TYPES: usize = 1 << 20;
/// Most bytes of all names.
const MOST_NAME_BYTES: usize = 64 << 20;
/// Longest name (KSYM_NAME_LEN).
const LONGEST_NAME: usize = 512;
/// Most members, enumerators or parameters: their number has 16 bits.
pub(super) const MOST_PARTS: usize = 0xffff;

/// `struct btf_type`, and what follows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct BtfRecord {
    /// The offset of its name.
    pub(super) name: u32,
    pub(super) kind: u8,
    pub(super) flag: bool,
    /// How many parts it has, or the linkage of a function.
    pub(super) count: u32,
    /// Its size, or the type that it refers to.
    pub(super) size_or_type: u32,
    pub(super) rest: Vec<u32>,
}

/// What a structure, a union or an enumeration is told by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TypeIdentity {
    pub(super) kind: u8,
    pub(super) name: u32,
    pub(super) size: u32,
    pub(super) file: u32,
    pub(super) line: u64,
    /// Of one without a name: its members, as macros declare several in one line.
    pub(super) members: u64,
}

/// The members of a structure or a union, or the enumerators of an enumeration.
pub(super) struct TypeParts {
    /// There are bit-fields among the members, or negative values among the enumerators.
    pub(super) flag: bool,
    pub(super) count: usize,
    /// What follows the type's record.
    pub(super) words: Vec<u32>,
    /// Enumerators have 64 bits.
    pub(super) is_wide: bool,
}

/// All types so far, numbered from 1 on.
#[derive(Default)]
pub(super) struct TypePool {
    strings: Vec<u8>,
    names: HashMap<Vec<u8>, u32>,
    records: Vec<BtfRecord>,
    declared: HashMap<TypeIdentity, u32>,
    made: HashMap<BtfRecord, u32>,
}

impl TypePool {
    /// The offset of a name; 0 for none, and for one that cannot be shown.
    pub(super) fn name(&mut self, name: &[u8]) -> Result<u32, DwarfError> {
        if let Some(known) = self.names.get(name) {
            return Ok(*known);
        }
        let is_shown = std::str::from_utf8(name).is_ok_and(is_plain) && name.len() <= LONGEST_NAME;
        if !is_shown || name.is_empty() {
            return Ok(0);
        }
        if self.strings.len() > MOST_NAME_BYTES {
            return Err(DwarfError::TooMuch);
        }
        if self.strings.is_empty() {
            self.strings.push(0);
        }
        let at = self.strings.len() as u32;
        self.strings.extend(name);
        self.strings.push(0);
        self.names.insert(name.to_vec(), at);
        Ok(at)
    }

    /// The number of a type that is told by its declaration, and whether it is new: its parts are then to be
    /// [filled in](Self::fill).
    pub(super) fn declare(&mut self, declared: TypeIdentity) -> Result<(u32, bool), DwarfError> {
        if let Some(known) = self.declared.get(&declared) {
            return Ok((*known, false));
        }
        let TypeIdentity { kind, name, size, .. } = declared;
        let number = self.push(BtfRecord { name, kind, size_or_type: size, ..BtfRecord::default() })?;
        self.declared.insert(declared, number);
        Ok((number, true))
    }

    /// The number of a type that is told by what it is made of.
    pub(super) fn make(&mut self, record: BtfRecord) -> Result<u32, DwarfError> {
        if let Some(known) = self.made.get(&record) {
            return Ok(*known);
        }
        let number = self.push(record.clone())?;
        self.made.insert(record, number);
        Ok(number)
    }

    fn push(&mut self, record: BtfRecord) -> Result<u32, DwarfError> {
        if self.records.len() == 4 * MOST_TYPES {
            return Err(DwarfError::TooMuch);
        }
        self.records.push(record);
        Ok(self.records.len() as u32)
    }

    /// Gives a declared type its parts.
    pub(super) fn fill(&mut self, number: u32, parts: TypeParts) {
        if let Some(record) = (number as usize).checked_sub(1).and_then(|index| self.records.get_mut(index)) {
            (record.flag, record.count, record.rest) = (parts.flag, parts.count as u32, parts.words);
            if parts.is_wide {
                record.kind = kind::ENUM64;
            }
        }
    }

    /// The section, and which number in it each type has whose number here is the index. Structures that one unit only names
    /// are those that another unit describes, where there is one.
    pub(super) fn finish(self) -> Result<(Vec<u8>, Vec<u32>), DwarfError> {
        let Self { strings, mut records, .. } = self;
        let mut whole: HashMap<(u32, bool), u32> = HashMap::new();
        for (record, number) in records.iter().zip(1..) {
            if let kind::STRUCT | kind::UNION = record.kind {
                whole.entry((record.name, record.kind == kind::UNION)).or_insert(number);
            }
        }
        // From the number that each has to the one that it gets. Structures come first: they may refer to whatever is made
        // of them, and that refers to them.
        let mut renumbered = vec![0u32; records.len() + 1];
        let mut order: Vec<usize> = Vec::new();
        let is_declared = |record: &BtfRecord| {
            matches!(record.kind, kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64)
        };
        let place = |slot: Option<&mut u32>, number: usize| {
            if let Some(slot) = slot {
                *slot = number as u32;
            }
        };
        for (index, _) in records.iter().enumerate().filter(|(_, record)| is_declared(record)) {
            order.push(index);
            place(renumbered.get_mut(index + 1), order.len());
        }
        let mut same: HashMap<BtfRecord, u32> = HashMap::new();
        for (index, record) in records.iter_mut().enumerate() {
            if is_declared(record) {
                continue;
            }
            if record.kind == kind::FWD
                && let Some(whole) = whole.get(&(record.name, record.flag))
            {
                let number = renumbered.get(*whole as usize).copied().unwrap_or(0);
                place(renumbered.get_mut(index + 1), number as usize);
                continue;
            }
            record.renumber(&renumbered);
            let number = *same.entry(record.clone()).or_insert_with(|| {
                order.push(index);
                order.len() as u32
            });
            place(renumbered.get_mut(index + 1), number as usize);
        }
        for record in records.iter_mut().filter(|record| is_declared(record)) {
            record.renumber(&renumbered);
        }
        if order.len() > MOST_TYPES {
            return Err(DwarfError::TooMuch);
        }
        Ok((section(&strings, order.iter().filter_map(|index| records.get(*index))), renumbered))
    }
}

impl BtfRecord {
    /// Puts the new numbers of types in place of those that it refers to.
    fn renumber(&mut self, renumbered: &[u32]) {
        let new = |word: &mut u32| *word = renumbered.get(*word as usize).copied().unwrap_or(0);
        match self.kind {
            kind::PTR | kind::TYPEDEF | kind::CONST | kind::VOLATILE | kind::RESTRICT | kind::FUNC => {
                new(&mut self.size_or_type);
            }
            kind::ARRAY => self.rest.iter_mut().take(2).for_each(new),
            kind::FUNC_PROTO => {
                new(&mut self.size_or_type);
                self.rest.iter_mut().skip(1).step_by(2).for_each(new);
            }
            kind::STRUCT | kind::UNION => self.rest.iter_mut().skip(1).step_by(3).for_each(new),
            _ => {}
        }
    }
}

/// A section of these types (Documentation/bpf/btf.rst, "BTF Type and String Encoding").
fn section<'r>(strings: &[u8], records: impl Iterator<Item = &'r BtfRecord>) -> Vec<u8> {
    let mut types: Vec<u8> = Vec::new();
    for record in records {
        let info = record.count | u32::from(record.kind) << 24 | u32::from(record.flag) << 31;
        let head = [record.name, info, record.size_or_type];
        types.extend(head.iter().chain(&record.rest).flat_map(|word| word.to_le_bytes()));
    }
    let strings = if strings.is_empty() { &[0] } else { strings };
    let (types_len, strings_len) = (types.len() as u32, strings.len() as u32);
    let mut section = vec![0x9f, 0xeb, 1, 0];
    section.extend([24, 0, types_len, types_len, strings_len].into_iter().flat_map(u32::to_le_bytes));
    section.extend(types);
    section.extend(strings);
    section
}
