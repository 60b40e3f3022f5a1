//! What has a name at an address: variables and parameters of the function around it, and of those that are inlined there.
//!
//! A function that is inlined has an abstract entry with all that it declares, and a concrete one at each place, which leaves
//! out what the compiler has optimized out there. Its names are in scope all the same, and hide those of whoever calls it
//! (DWARF 5, 3.3.8).

use std::collections::HashSet;

use gimli::{
    AttributeValue, DebugInfoOffset, DebuggingInformationEntry, UnitOffset, UnitRef, constants as dw,
};

use super::code::CodeAttributes;
use super::units::Units;
use super::{DwarfError, Slice};
use crate::guest_text::is_plain;
use crate::linux::symbols::LONGEST_NAME;

/// Most pieces of code and abstract entries that are looked at for one address; units of Debian's kernels have 100,000.
const MOST_STEPS: usize = 16 << 20;
/// From an entry to the one that has its name: of an inlined function, of that function, of its declaration.
const LONGEST_CHAIN: usize = 4;

type DwarfValue<'a> = AttributeValue<Slice<'a>>;
type Die<'a> = DebuggingInformationEntry<Slice<'a>>;

/// A variable or a parameter, as its entries describe it.
#[derive(Debug, Default, Clone)]
pub(super) struct Declared<'a> {
    pub(super) name: String,
    /// Where in the unit its type is described; `None` where that is in another unit, or nowhere.
    pub(super) ty: Option<usize>,
    pub(super) location: Option<DwarfValue<'a>>,
    pub(super) constant: Option<DwarfValue<'a>>,
    /// It is a variable of the whole kernel, which is only declared here.
    pub(super) is_elsewhere: bool,
}

/// What has a name at an address.
#[derive(Debug, Default)]
pub(super) struct Scopes<'a> {
    /// Those of the innermost block first, each name once.
    pub(super) variables: Vec<Declared<'a>>,
    /// From where the function counts its stack slots.
    pub(super) frame_base: Option<DwarfValue<'a>>,
}

/// Finds them in the unit that has the code at `at`.
pub(super) fn scopes_at<'a>(unit: UnitRef<'_, Slice<'a>>, at: u64) -> Result<Scopes<'a>, DwarfError> {
    let mut walk = ScopeWalk {
        unit,
        at,
        units: Units::of(unit.dwarf)?,
        steps: 0,
        frame_base: None,
        variables: Vec::new(),
        origins: Vec::new(),
        known: HashSet::new(),
    };
    walk.concrete()?;
    walk.left_out()?;
    let mut variables = walk.variables;
    variables.sort_by_key(|(blocks, _)| std::cmp::Reverse(*blocks));
    let mut names = HashSet::new();
    variables.retain(|(_, declared)| names.insert(declared.name.clone()));
    let variables = variables.into_iter().map(|(_, declared)| declared).collect();
    Ok(Scopes { variables, frame_base: walk.frame_base })
}

/// A walk through the entries of a unit.
struct ScopeWalk<'u, 'a> {
    unit: UnitRef<'u, Slice<'a>>,
    at: u64,
    units: Units<'a>,
    steps: usize,
    frame_base: Option<DwarfValue<'a>>,
    /// Each with the number of blocks with code around it.
    variables: Vec<(usize, Declared<'a>)>,
    /// The abstract entries of the blocks that have the address, with the same number.
    origins: Vec<(usize, DebugInfoOffset)>,
    /// The abstract entries that have a concrete one.
    known: HashSet<usize>,
}

impl<'a> ScopeWalk<'_, 'a> {
    /// Looks at the concrete entries.
    fn concrete(&mut self) -> Result<(), DwarfError> {
        let unit = self.unit;
        // The blocks that have the address, the innermost last: the depth in the tree, and how many of them have code.
        let mut around: Vec<(isize, usize)> = Vec::new();
        let mut entries = unit.entries_raw(None)?;
        let mut entry = Die::null();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            if !entries.read_entry(&mut entry)? {
                continue;
            }
            while around.last().is_some_and(|(outer, _)| *outer >= depth) {
                around.pop();
            }
            let outer = around.last().filter(|(outer, _)| outer + 1 == depth).map(|(_, blocks)| *blocks);
            let has_code = match (entry.tag(), outer) {
                (dw::DW_TAG_subprogram, _)
                | (dw::DW_TAG_lexical_block | dw::DW_TAG_inlined_subroutine, Some(_)) => {
                    self.has_code(&entry)?
                }
                _ => None,
            };
            let origin = origin(unit, &entry);
            if outer.is_some() {
                self.known.extend(origin.map(|origin| origin.0));
            }
            let blocks = match (entry.tag(), outer, has_code) {
                (dw::DW_TAG_subprogram, _, Some(true)) => {
                    around.clear();
                    self.variables.clear();
                    self.origins.clear();
                    self.frame_base = entry.attr_value(dw::DW_AT_frame_base);
                    0
                }
                (dw::DW_TAG_lexical_block | dw::DW_TAG_inlined_subroutine, Some(blocks), Some(true)) => {
                    blocks + 1
                }
                // What is in a block without code belongs to the block around it.
                (dw::DW_TAG_lexical_block, Some(blocks), None) => blocks,
                (dw::DW_TAG_variable | dw::DW_TAG_formal_parameter, Some(blocks), _) => {
                    if let Some(own) = entry.offset().to_debug_info_offset(&unit.header) {
                        self.declare(blocks, own)?;
                    }
                    continue;
                }
                _ => continue,
            };
            around.push((depth, blocks));
            self.origins.extend(origin.map(|origin| (blocks, origin)));
        }
        Ok(())
    }

    /// Looks at the abstract entries of what is around the address, for what concrete ones leave out.
    fn left_out(&mut self) -> Result<(), DwarfError> {
        for (blocks, block) in std::mem::take(&mut self.origins) {
            let mut found = Vec::new();
            let Some((unit, inside)) = self.units.find(self.unit.dwarf, block)? else { continue };
            let mut entries = unit.entries_raw(Some(inside))?;
            let mut entry = Die::null();
            entries.read_entry(&mut entry)?;
            // The depth of an entry whose children are not looked at.
            let mut closed = isize::MAX;
            while !entries.is_empty() && entries.next_depth() > 0 {
                let depth = entries.next_depth();
                if !entries.read_entry(&mut entry)? || depth > closed {
                    continue;
                }
                closed = isize::MAX;
                self.steps += 1;
                if self.steps > MOST_STEPS {
                    return Err(DwarfError::TooMuch);
                }
                let own = entry.offset().to_debug_info_offset(&unit.header);
                let own = own.filter(|own| !self.known.contains(&own.0));
                match (entry.tag(), own) {
                    (dw::DW_TAG_variable | dw::DW_TAG_formal_parameter, Some(own)) => found.push(own),
                    (dw::DW_TAG_lexical_block, Some(_)) => {}
                    _ => closed = depth,
                }
            }
            for own in found {
                self.declare(blocks, own)?;
            }
        }
        Ok(())
    }

    /// Whether code of an entry is at the address; `None` for one that says nothing of its code.
    fn has_code(&mut self, entry: &Die<'a>) -> Result<Option<bool>, DwarfError> {
        let code = CodeAttributes::of(entry);
        if !code.is_said() {
            return Ok(None);
        }
        let mut has = false;
        code.pieces(self.unit, |low, high| {
            self.steps += 1;
            has |= (low..high).contains(&self.at);
            if self.steps > MOST_STEPS { Err(DwarfError::TooMuch) } else { Ok(()) }
        })?;
        Ok(Some(has))
    }

    /// Adds the variable at `own`, as its entry and those that it is an instance of describe it together.
    fn declare(&mut self, blocks: usize, own: DebugInfoOffset) -> Result<(), DwarfError> {
        let mut found = Declared::default();
        let mut next = Some(own);
        for _ in 0..LONGEST_CHAIN {
            let Some((unit, inside)) =
                next.map(|next| self.units.find(self.unit.dwarf, next)).transpose()?.flatten()
            else {
                break;
            };
            let unit = unit.unit_ref(self.unit.dwarf);
            let entry = unit.entry(inside)?;
            found.add(unit, &entry, unit.header.offset() == self.unit.header.offset())?;
            next = origin(unit, &entry);
            self.known.extend(next.map(|next| next.0));
        }
        if is_plain(&found.name) && (1..=LONGEST_NAME).contains(&found.name.len()) {
            self.variables.push((blocks, found));
        }
        Ok(())
    }
}

/// The entry that another one is an instance of. Link-time optimisation inlines functions of other units.
fn origin(unit: UnitRef<'_, Slice<'_>>, entry: &Die<'_>) -> Option<DebugInfoOffset> {
    let value = |name| entry.attr_value(name);
    match value(dw::DW_AT_abstract_origin).or(value(dw::DW_AT_specification))? {
        AttributeValue::UnitRef(offset) => UnitOffset::to_debug_info_offset(&offset, &unit.header),
        AttributeValue::DebugInfoRef(offset) => Some(offset),
        _ => None,
    }
}

impl<'a> Declared<'a> {
    /// Adds what `entry` says that was not said before. `is_own`: it is of the unit in which types are looked up.
    fn add(&mut self, unit: UnitRef<'_, Slice<'a>>, entry: &Die<'a>, is_own: bool) -> Result<(), DwarfError> {
        let value = |name| entry.attr_value(name);
        if let Some(name) = value(dw::DW_AT_name).filter(|_| self.name.is_empty()) {
            self.name = String::from_utf8_lossy(unit.attr_string(name)?.slice()).into_owned();
        }
        if is_own {
            if let Some(AttributeValue::UnitRef(offset)) = value(dw::DW_AT_type) {
                self.ty = self.ty.or(Some(offset.0));
            }
            self.location = self.location.or(value(dw::DW_AT_location));
        }
        self.constant = self.constant.or(value(dw::DW_AT_const_value));
        self.is_elsewhere |= value(dw::DW_AT_declaration) == Some(AttributeValue::Flag(true));
        Ok(())
    }
}
