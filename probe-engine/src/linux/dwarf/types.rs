//! The types and functions of a kernel as a `.BTF` section, for a kernel that has none of its own: what `pahole -J` does.
//!
//! Not in it are variables: which of them are per-CPU is not said by their types.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use gimli::{UnitRef, constants as dw};

use super::attributes::{Attributes, Constant};
use super::btf::{BtfRecord, MOST_PARTS, TypeIdentity, TypeParts, TypePool};
use super::files::{Files, UnitFiles};
use super::type_dies::{DieState, TypeDie};
use super::units::Units;
use super::{DebugFile, DwarfError, Slice};
use crate::linux::btf::{TypeId, kind};

/// Most types between one and what it is made of in the end, such as pointers to pointers.
pub(super) const DEEPEST: usize = 256;
/// From a function's code to the entry that says what it takes.
pub(super) const LONGEST_CHAIN: usize = 4;

/// Makes the section of a kernel's debugging information.
///
/// # Errors
/// [`DwarfError`] for a damaged file, and for one whose units refer to each other's types.
pub fn btf(file: &DebugFile<'_>) -> Result<Vec<u8>, DwarfError> {
    let dwarf = file.dwarf()?;
    let (mut pool, mut files) = (TypePool::default(), Files::default());
    for header in Units::of(&dwarf)?.headers {
        let unit = dwarf.unit(header)?;
        let mut types = UnitTypes::read(unit.unit_ref(&dwarf))?;
        if types.has_foreign() {
            return Err(DwarfError::ForeignType);
        }
        types.add(&mut pool, &mut files)?;
    }
    Ok(pool.finish()?.0)
}

/// Makes the section of one unit, and says which of its types are those at these places in the unit.
pub(super) fn btf_of(
    unit: UnitRef<'_, Slice<'_>>,
    wanted: &[usize],
) -> Result<(Vec<u8>, Vec<TypeId>), DwarfError> {
    let (mut pool, mut files) = (TypePool::default(), Files::default());
    let mut types = UnitTypes::read(unit)?;
    types.add(&mut pool, &mut files)?;
    let numbers: Vec<u32> = wanted.iter().map(|offset| types.number(Some(*offset))).collect();
    let (section, renumbered) = pool.finish()?;
    let number = |number: u32| TypeId(renumbered.get(number as usize).copied().unwrap_or(0));
    Ok((section, numbers.into_iter().map(number).collect()))
}

/// The types of one unit.
pub(super) struct UnitTypes<'u, 'a> {
    unit: UnitRef<'u, Slice<'a>>,
    /// By offset.
    pub(super) entries: Vec<TypeDie<'a>>,
}

impl<'u, 'a> UnitTypes<'u, 'a> {
    pub(super) fn read(unit: UnitRef<'u, Slice<'a>>) -> Result<Self, DwarfError> {
        Ok(Self { unit, entries: TypeDie::all_of(unit)? })
    }

    /// Whether anything of it is described in another unit.
    fn has_foreign(&self) -> bool {
        let is_foreign = |entry: &TypeDie<'_>| {
            entry.attributes.is_foreign || entry.parts.iter().any(|part| part.is_foreign)
        };
        self.entries.iter().any(is_foreign)
    }

    /// Adds all to the pool.
    pub(super) fn add(&mut self, pool: &mut TypePool, files: &mut Files) -> Result<(), DwarfError> {
        self.declare(pool, files)?;
        self.make(pool)?;
        self.fill(pool)
    }

    pub(super) fn index(&self, offset: usize) -> Option<usize> {
        self.entries.binary_search_by_key(&offset, |entry| entry.offset).ok()
    }

    fn name(&self, attributes: &Attributes<'a>, pool: &mut TypePool) -> Result<u32, DwarfError> {
        let Some(name) = attributes.name else { return Ok(0) };
        pool.name(self.unit.attr_string(name)?.slice())
    }

    /// Gives numbers to what is told by its declaration.
    fn declare(&mut self, pool: &mut TypePool, files: &mut Files) -> Result<(), DwarfError> {
        let mut unit_files = UnitFiles::new(self.unit);
        for index in 0..self.entries.len() {
            let Some(entry) = self.entries.get(index) else { break };
            let kind = match entry.tag {
                dw::DW_TAG_structure_type | dw::DW_TAG_class_type => kind::STRUCT,
                dw::DW_TAG_union_type => kind::UNION,
                dw::DW_TAG_enumeration_type => kind::ENUM,
                _ => continue,
            };
            let attributes = entry.attributes;
            let name = self.name(&attributes, pool)?;
            let state = if attributes.is_declaration && kind == kind::ENUM {
                DieState::Known(pool.make(BtfRecord {
                    name,
                    kind,
                    size_or_type: 4,
                    ..BtfRecord::default()
                })?)
            } else if attributes.is_declaration {
                let flag = kind == kind::UNION;
                DieState::Known(pool.make(BtfRecord {
                    name,
                    kind: kind::FWD,
                    flag,
                    ..BtfRecord::default()
                })?)
            } else {
                let members = if name == 0 { self.members_hash(entry)? } else { 0 };
                let size = attributes.byte_size.and_then(|size| size.try_into().ok()).unwrap_or(0);
                let file = unit_files.number(attributes.file, files);
                let line = attributes.line;
                match pool.declare(TypeIdentity { kind, name, size, file, line, members })? {
                    (number, true) => DieState::New(number),
                    (number, false) => DieState::Known(number),
                }
            };
            if let Some(entry) = self.entries.get_mut(index) {
                entry.state = state;
            }
        }
        Ok(())
    }

    fn members_hash(&self, entry: &TypeDie<'a>) -> Result<u64, DwarfError> {
        let mut hasher = DefaultHasher::new();
        for part in &entry.parts {
            let name = part.name.map(|name| self.unit.attr_string(name)).transpose()?;
            name.map(|name| name.slice()).hash(&mut hasher);
            (part.member_location, part.data_bit_offset, part.bit_size).hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    /// Gives numbers to what is made of others, those others first.
    fn make(&mut self, pool: &mut TypePool) -> Result<(), DwarfError> {
        let mut open: Vec<usize> = Vec::new();
        for index in 0..self.entries.len() {
            open.push(index);
            while let Some(next) = open.last().copied() {
                let Some(entry) = self.entries.get_mut(next) else { break };
                let is_first = entry.state == DieState::Unknown;
                if !is_first && entry.state != DieState::Open {
                    open.pop();
                    continue;
                }
                entry.state = DieState::Open;
                let before = open.len();
                // What waits for itself, or for too much, is made without that.
                if is_first && before < DEEPEST {
                    let needed = self.needed(next);
                    open.extend(needed.filter(|index| {
                        self.entries.get(*index).is_some_and(|entry| entry.state == DieState::Unknown)
                    }));
                }
                if open.len() == before {
                    open.pop();
                    let number = self.made(next, pool)?;
                    if let Some(entry) = self.entries.get_mut(next) {
                        entry.state = DieState::Known(number);
                    }
                }
            }
        }
        Ok(())
    }

    /// The entries that one is made of.
    fn needed(&self, index: usize) -> impl Iterator<Item = usize> + use<> {
        let entry = self.entries.get(index);
        let own = entry.into_iter().flat_map(|entry| [entry.attributes.ty, entry.attributes.origin]);
        let has_parameters =
            |entry: &&TypeDie<'_>| matches!(entry.tag, dw::DW_TAG_subroutine_type | dw::DW_TAG_subprogram);
        let parts =
            entry.filter(has_parameters).into_iter().flat_map(|entry| &entry.parts).map(|part| part.ty);
        let needed: Vec<usize> = own.chain(parts).flatten().filter_map(|offset| self.index(offset)).collect();
        needed.into_iter()
    }

    /// The number of the type at an offset; 0 (`void`) where there is none.
    pub(super) fn number(&self, offset: Option<usize>) -> u32 {
        let entry = offset.and_then(|offset| self.index(offset)).and_then(|index| self.entries.get(index));
        match entry.map(|entry| entry.state) {
            Some(DieState::Known(number) | DieState::New(number)) => number,
            _ => 0,
        }
    }

    /// Makes a type whose parts are made.
    fn made(&self, index: usize, pool: &mut TypePool) -> Result<u32, DwarfError> {
        let Some(entry) = self.entries.get(index) else { return Ok(0) };
        let attributes = &entry.attributes;
        let ty = self.number(attributes.ty);
        let size = attributes.byte_size.and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
        let of = |kind| BtfRecord { kind, size_or_type: ty, ..BtfRecord::default() };
        let record = match entry.tag {
            dw::DW_TAG_base_type => {
                let name = self.name(attributes, pool)?;
                base(name, size, attributes.encoding)
            }
            dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type => {
                of(kind::PTR)
            }
            dw::DW_TAG_const_type => of(kind::CONST),
            dw::DW_TAG_volatile_type => of(kind::VOLATILE),
            dw::DW_TAG_restrict_type => of(kind::RESTRICT),
            dw::DW_TAG_typedef => BtfRecord { name: self.name(attributes, pool)?, ..of(kind::TYPEDEF) },
            // Others qualify what they are made of in ways that C of the kernel has no words for.
            dw::DW_TAG_atomic_type => return Ok(ty),
            dw::DW_TAG_array_type => return self.array(entry, ty, pool),
            dw::DW_TAG_subroutine_type => self.prototype(entry, pool)?,
            dw::DW_TAG_subprogram => return self.function(index, pool),
            _ => return Ok(0),
        };
        pool.make(record)
    }

    /// An array of arrays has one entry.
    fn array(&self, entry: &TypeDie<'a>, element: u32, pool: &mut TypePool) -> Result<u32, DwarfError> {
        let int = pool.name(b"__ARRAY_SIZE_TYPE__")?;
        let index = pool.make(base(int, 4, Some(dw::DW_ATE_unsigned)))?;
        let mut ty = element;
        for dimension in entry.parts.iter().rev() {
            let count =
                dimension.count.or(dimension.upper_bound.map(|last| last.wrapping_add(1))).unwrap_or(0);
            let rest = vec![ty, index, count.try_into().unwrap_or(0)];
            ty = pool.make(BtfRecord { kind: kind::ARRAY, rest, ..BtfRecord::default() })?;
        }
        Ok(ty)
    }

    fn prototype(&self, entry: &TypeDie<'a>, pool: &mut TypePool) -> Result<BtfRecord, DwarfError> {
        let mut rest = Vec::new();
        for part in &entry.parts {
            rest.extend([self.name(part, pool)?, self.number(part.ty)]);
        }
        if entry.is_variadic {
            rest.extend([0, 0]);
        }
        let count = (rest.len() / 2) as u32;
        let size_or_type = self.number(entry.attributes.ty);
        Ok(BtfRecord { kind: kind::FUNC_PROTO, count, size_or_type, rest, ..BtfRecord::default() })
    }

    /// A function that has code of its own, or that of another one that does the same.
    fn function(&self, index: usize, pool: &mut TypePool) -> Result<u32, DwarfError> {
        let Some(entry) = self.entries.get(index) else { return Ok(0) };
        let Attributes { has_code, is_declaration, is_inline, .. } = entry.attributes;
        if !has_code && (is_declaration || is_inline) {
            return Ok(0);
        }
        let Some(entry) = self.declared(index) else { return Ok(0) };
        let name = self.name(&entry.attributes, pool)?;
        if name == 0 {
            return Ok(0);
        }
        let prototype = self.prototype(entry, pool)?;
        let size_or_type =
            pool.make(BtfRecord { count: prototype.count.min(MOST_PARTS as u32), ..prototype })?;
        let count = entry.attributes.is_external.into();
        pool.make(BtfRecord { name, kind: kind::FUNC, count, size_or_type, ..BtfRecord::default() })
    }

    /// The entry with the parameters of a function: its own, or that of which it is an instance. The declaration of a method comes
    /// last, and has no names of them.
    pub(super) fn declared(&self, index: usize) -> Option<&TypeDie<'a>> {
        let mut entry = self.entries.get(index)?;
        for _ in 0..LONGEST_CHAIN {
            let origin = entry.attributes.origin.and_then(|origin| self.index(origin));
            let Some(origin) = origin.and_then(|origin| self.entries.get(origin)) else { break };
            if origin.attributes.is_declaration {
                break;
            }
            entry = origin;
        }
        Some(entry)
    }

    /// Fills in what has got its number by its declaration.
    fn fill(&self, pool: &mut TypePool) -> Result<(), DwarfError> {
        for entry in &self.entries {
            let DieState::New(number) = entry.state else { continue };
            if entry.tag == dw::DW_TAG_enumeration_type {
                self.fill_enumeration(entry, number, pool)?;
                continue;
            }
            let has_bits = entry.parts.iter().any(|part| part.bit_size.is_some());
            let mut rest = Vec::new();
            for part in &entry.parts {
                let bits = part.bit_size.unwrap_or(0) as u32;
                let place = self.place(part).unwrap_or(0);
                let place =
                    if has_bits { (bits & 0xff) << 24 | (place as u32 & 0xff_ffff) } else { place as u32 };
                rest.extend([self.name(part, pool)?, self.number(part.ty), place]);
            }
            let count = entry.parts.len();
            pool.fill(number, TypeParts { flag: has_bits, count, words: rest, is_wide: false });
        }
        Ok(())
    }

    /// Bits from the start of the structure to a member.
    fn place(&self, part: &Attributes<'a>) -> Option<u64> {
        let start = part.member_location.unwrap_or(0).checked_mul(8)?;
        if let Some(bits) = part.data_bit_offset {
            return start.checked_add(bits);
        }
        let (Some(above), Some(size)) = (part.bit_offset, part.bit_size) else { return Some(start) };
        let storage = part.byte_size.or_else(|| {
            let index = part.ty.and_then(|ty| self.index(ty))?;
            self.entries.get(index)?.attributes.byte_size
        });
        start.checked_add(storage?.checked_mul(8)?)?.checked_sub(above)?.checked_sub(size)
    }

    fn fill_enumeration(
        &self,
        entry: &TypeDie<'a>,
        number: u32,
        pool: &mut TypePool,
    ) -> Result<(), DwarfError> {
        let is_wide = entry.attributes.byte_size == Some(8);
        let is_negative =
            |part: &Attributes<'_>| matches!(part.constant, Some(Constant::Signed(value)) if value < 0);
        let is_signed = entry.parts.iter().any(is_negative);
        let mut rest = Vec::new();
        for part in &entry.parts {
            let value = match part.constant {
                Some(Constant::Signed(value)) => value.cast_unsigned(),
                Some(Constant::Unsigned(value)) => value,
                None => 0,
            };
            rest.extend([self.name(part, pool)?, value as u32]);
            if is_wide {
                rest.push((value >> 32) as u32);
            }
        }
        pool.fill(number, TypeParts { flag: is_signed, count: entry.parts.len(), words: rest, is_wide });
        Ok(())
    }
}

/// A number, whose width follows what it is.
fn base(name: u32, size: u32, encoding: Option<gimli::DwAte>) -> BtfRecord {
    // Complex numbers are kept where others with a point are.
    if let Some(dw::DW_ATE_float | dw::DW_ATE_complex_float | dw::DW_ATE_decimal_float) = encoding {
        return BtfRecord { name, kind: kind::FLOAT, size_or_type: size, ..BtfRecord::default() };
    }
    // GCC marks none as a character in BTF, and so does pahole.
    let what = match encoding {
        Some(dw::DW_ATE_signed | dw::DW_ATE_signed_char) => 1,
        Some(dw::DW_ATE_boolean) => 4,
        _ => 0u32,
    };
    let rest = vec![what << 24 | (size.wrapping_mul(8) & 0xff)];
    BtfRecord { name, kind: kind::INT, size_or_type: size, rest, ..BtfRecord::default() }
}
