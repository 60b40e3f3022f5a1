//! The guest's modules, read from outside: `struct module` and what it points to (include/linux/module.h).
//!
//! Where the members lie is told by the kernel's BTF. Until 6.3 a module has two areas, `core_layout` and
//! `init_layout`, each with its text at the start; since 6.4 it has one `mem` for each `enum mod_mem_type`. The text
//! is final, and all the tables are filled, when `do_init_module` is entered. Addresses of modules are run-time
//! addresses.

use std::ops::Range;

use super::module_layout::SYMBOL_LEN;
pub use super::module_layout::{CountedArray, ModuleLayout, ModuleTableFields, ReadOnlyFields};
use super::orc::OrcError;
use super::read::{u16_at, u32_at, u64_at};
use super::symbols::{SymbolTable, SymbolTableBuilder};
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::virt_memory::VirtMemory;

/// Most modules; a desktop has 200.
pub(super) const MOST_MODULES: usize = 1 << 12;
/// Most tracepoints of one.
const MOST_TRACEPOINTS: u32 = 1 << 14;
/// Most symbols of one module; `amdgpu` has some 40,000.
const MOST_SYMBOLS: u32 = 1 << 18;
/// Most bytes of all names of one module's symbols.
const MOST_NAME_BYTES: usize = 16 << 20;
/// Largest text of one module, in bytes.
const LARGEST_TEXT: u64 = 256 << 20;
/// Longest name of a module, in bytes (MODULE_NAME_LEN).
const LONGEST_MODULE_NAME: usize = 64;
/// Longest name of a symbol, in bytes (KSYM_NAME_LEN).
const LONGEST_NAME: usize = super::symbols::LONGEST_NAME;

/// How far a module has come (`enum module_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModuleState {
    /// Its init has run.
    Live,
    /// Its init is about to run, or running.
    Coming,
    /// It is being removed.
    Going,
    /// It is being put together: only its name is valid.
    Unformed,
}

/// A module of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its `struct module`.
    pub at: Gva,
    /// Its name.
    pub name: String,
    /// How far it has come.
    pub state: ModuleState,
    /// Its text; empty when it has none.
    pub text: Range<Gva>,
    /// Its text that is freed when its init has run; empty once it is.
    pub init_text: Range<Gva>,
}

/// Modules that cannot be read: the guest's memory does not hold what a kernel keeps there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ModuleError {
    /// Something points to where no memory is.
    #[error("the guest's module cannot be read")]
    Memory(#[from] PageFault),
    /// The name is empty, does not end, or is not printable.
    #[error("the module at {0} has no proper name")]
    Name(Gva),
    /// No such state.
    #[error("the module at {at} is in the unknown state {state}")]
    State {
        /// Its `struct module`.
        at: Gva,
        /// The number found.
        state: u32,
    },
    /// The text is not in the kernel's half of the address space, or larger than any.
    #[error("the module at {0} has no proper text")]
    Text(Gva),
    /// More symbols, longer names or larger tables than any module has.
    #[error("the module at {0} has more symbols or larger tables than any module")]
    Large(Gva),
    /// Its ORC table is no such table.
    #[error("the module's ORC table cannot be used")]
    Orc(#[from] OrcError),
    /// The list does not end.
    #[error("the guest's list of modules does not end")]
    Endless,
}

impl Module {
    /// Reads the `struct module` at `at`.
    ///
    /// # Errors
    /// [`ModuleError`] when there is none.
    pub fn read<M: PhysMemory + ?Sized>(
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
        at: Gva,
    ) -> Result<Self, ModuleError> {
        let name = c_string(memory, field(at, layout.name), LONGEST_MODULE_NAME)?;
        let name = name.and_then(|name| String::from_utf8(name).ok());
        let name = name.filter(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_graphic()));
        let state = match memory.read_u32(field(at, layout.state))? {
            0 => ModuleState::Live,
            1 => ModuleState::Coming,
            2 => ModuleState::Going,
            3 => ModuleState::Unformed,
            state => return Err(ModuleError::State { at, state }),
        };
        Ok(Self {
            at,
            name: name.ok_or(ModuleError::Name(at))?,
            state,
            text: area(memory, at, layout.text)?,
            init_text: area(memory, at, layout.init_text)?,
        })
    }

    /// Where its data are that nobody writes, and those that nobody writes once its init has run. One of these ranges may have its text
    /// as well, and one the other.
    ///
    /// # Errors
    /// [`ModuleError`] when they are in no memory of the kernel's.
    pub fn read_only<M: PhysMemory + ?Sized>(
        &self,
        fields: ReadOnlyFields,
        memory: &VirtMemory<'_, M>,
    ) -> Result<[Range<Gva>; 2], ModuleError> {
        Ok([area(memory, self.at, fields.constants)?, area(memory, self.at, fields.after_init)?])
    }

    /// Whether `at` is this module's text, init text included.
    #[must_use]
    pub fn is_text(&self, at: Gva) -> bool {
        at.is_in(&self.text) || at.is_in(&self.init_text)
    }

    /// Its functions, by name and by address. Once its init has run those of its init text are gone.
    ///
    /// A function ends where the next one begins, or earlier, where its ELF symbol says: symbols without a name
    /// mark such ends.
    ///
    /// # Errors
    /// [`ModuleError`] when the tables cannot be read.
    pub fn symbols<M: PhysMemory + ?Sized>(
        &self,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
    ) -> Result<SymbolTable, ModuleError> {
        let too_large = ModuleError::Large(self.at);
        let kallsyms = Gva(memory.read_u64(field(self.at, layout.kallsyms))?);
        let (symtab, count) = counted_at(memory, kallsyms, layout.symtab)?;
        let strtab = Gva(memory.read_u64(field(kallsyms, layout.strtab))?);
        let typetab = Gva(memory.read_u64(field(kallsyms, layout.typetab))?);
        if count > MOST_SYMBOLS {
            return Err(too_large);
        }
        let mut builder = SymbolTableBuilder::default();
        let mut name_bytes = 0;
        for index in 0..u64::from(count) {
            let mut kind = [0];
            memory.read(typetab.add(index), &mut kind)?;
            // `elf_type` (kernel/module/kallsyms.c): as nm, but all in lower case, except for weak symbols.
            let [kind @ (b't' | b'T' | b'w' | b'W')] = kind else { continue };
            let mut symbol = [0; SYMBOL_LEN];
            memory.read(symtab.add(index * SYMBOL_LEN as u64), &mut symbol)?;
            let (Some(name), Some(section), Some(at), Some(size)) =
                (u32_at(&symbol, 0), u16_at(&symbol, 6), u64_at(&symbol, 8).map(Gva), u64_at(&symbol, 16))
            else {
                continue;
            };
            let Some(text) = [&self.text, &self.init_text].into_iter().find(|text| at.is_in(text)) else {
                continue;
            };
            let name = c_string(memory, strtab.add(name.into()), LONGEST_NAME)?;
            // Also one that is no name was read.
            name_bytes += name.as_ref().map_or(LONGEST_NAME, Vec::len);
            if name_bytes > MOST_NAME_BYTES {
                return Err(too_large);
            }
            let Some(name) = name.and_then(|name| String::from_utf8(name).ok()) else { continue };
            if section == object::elf::SHN_UNDEF || name.is_empty() || name.starts_with(".L") {
                continue;
            }
            builder.push(at, kind, &name).map_err(|_| too_large)?;
            let rest = text.end.offset_from(at).unwrap_or(0);
            let size = if size == 0 { rest } else { size.min(rest) };
            builder.push(at.add(size), b'?', "").map_err(|_| too_large)?;
        }
        Ok(builder.finish())
    }

    /// Where its tracepoint of this name is (GVA of the `struct tracepoint`, whose first member is its name), if it has that.
    ///
    /// # Errors
    /// [`ModuleError`] when its tracepoints cannot be read.
    pub fn tracepoint<M: PhysMemory + ?Sized>(
        &self,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
        name: &str,
    ) -> Result<Option<Gva>, ModuleError> {
        let Some(pointers) = layout.tracepoints else { return Ok(None) };
        let (start, count) = counted_at(memory, self.at, pointers)?;
        if count > MOST_TRACEPOINTS {
            return Err(ModuleError::Large(self.at));
        }
        for number in 0..u64::from(count) {
            let pointer = start.add(4 * number);
            let tracepoint = pointer.offset(memory.read_u32(pointer)?.cast_signed().into());
            if is_string(memory, Gva(memory.read_u64(tracepoint)?), name) {
                return Ok(Some(tracepoint));
            }
        }
        Ok(None)
    }
}

/// Whether the string at `at` (GVA) is this one.
#[must_use]
pub fn is_string<M: PhysMemory + ?Sized>(memory: &VirtMemory<'_, M>, at: Gva, name: &str) -> bool {
    c_string(memory, at, name.len()).is_ok_and(|found| found.as_deref() == Some(name.as_bytes()))
}

/// All modules of the guest, in the order of its list, those included that are only being put together. `head` is
/// where [`ModuleLayout::head`] is in memory.
///
/// # Errors
/// [`ModuleError`] when the list cannot be read, does not end, or leads to something else.
pub fn modules<M: PhysMemory + ?Sized>(
    layout: &ModuleLayout,
    memory: &VirtMemory<'_, M>,
    head: Gva,
) -> Result<Vec<Module>, ModuleError> {
    let mut found = Vec::new();
    let mut next = Gva(memory.read_u64(head)?);
    while next != head {
        if found.len() == MOST_MODULES {
            return Err(ModuleError::Endless);
        }
        let at = next.offset(-i64::from(layout.list));
        found.push(Module::read(layout, memory, at)?);
        next = Gva(memory.read_u64(next)?);
    }
    Ok(found)
}

/// The address of a member.
pub(super) fn field(structure: Gva, offset: u32) -> Gva {
    structure.add(offset.into())
}

/// A pointer in a structure, and the number of what it points to.
pub(super) fn counted_at<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    structure: Gva,
    place: CountedArray,
) -> Result<(Gva, u32), PageFault> {
    let start = memory.read_u64(field(structure, place.start))?;
    Ok((Gva(start), memory.read_u32(field(structure, place.count))?))
}

/// An area of the module at `at`; empty where it has none of that kind.
fn area<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    at: Gva,
    place: CountedArray,
) -> Result<Range<Gva>, ModuleError> {
    let (start, size) = counted_at(memory, at, place)?;
    match size {
        0 => Ok(start..start),
        _ => kernel_range(start, size.into()).ok_or(ModuleError::Text(at)),
    }
}

/// `len` bytes, for which room is made as they turn out to exist.
pub(super) fn bytes_at<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    at: Gva,
    len: usize,
) -> Result<Vec<u8>, PageFault> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let mut piece = [0; 0x1000];
        let (piece, _) = piece.split_at_mut((len - bytes.len()).min(0x1000));
        memory.read(at.add(bytes.len() as u64), piece)?;
        bytes.extend_from_slice(piece);
    }
    Ok(bytes)
}

/// The range of that size; `None` unless it lies in the kernel's half of the address space.
pub(super) fn kernel_range(start: Gva, size: u64) -> Option<Range<Gva>> {
    let end = start.0.checked_add(size).filter(|_| size <= LARGEST_TEXT && start.0 >> 63 != 0)?;
    Some(start..Gva(end))
}

/// The bytes before the next NUL; `None` when there is none among `longest` and one more.
fn c_string<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    at: Gva,
    longest: usize,
) -> Result<Option<Vec<u8>>, PageFault> {
    /// Divides a page: no piece reaches into one that the string may not reach.
    const PIECE: u64 = 32;
    let mut string = Vec::new();
    while string.len() <= longest {
        let at = at.add(string.len() as u64);
        let mut piece = [0; PIECE as usize];
        let piece = piece.get_mut(..(PIECE - at.0 % PIECE) as usize).unwrap_or_default();
        memory.read(at, piece)?;
        match piece.iter().position(|byte| *byte == 0) {
            Some(end) => {
                string.extend(piece.iter().take(end));
                return Ok(Some(string).filter(|string| string.len() <= longest));
            }
            None => string.extend_from_slice(piece),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
