//! The text of a module that is not to be probed, from the tables that its `struct module` points to.
//!
//! The formats are those of the kernel's own tables, see [`super::patch_tables`]. Alternatives, returns and calls of
//! a module are patched before `do_init_module`, and need no entry here. Lock prefixes are in none of these tables.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions};

use super::left_alone::Why;
use super::modules::{CountedArray, Module, ModuleError, ModuleLayout, counted_at, kernel_range};
use super::patch_tables;
use super::patched::PatchedText;
use super::read::{u32_at, u64_at};
use super::symbols::SymbolTable;
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;

/// Most entries of one table.
const MOST_ENTRIES: u32 = 1 << 20;
/// Most bytes of an entry that are read.
const LARGEST_ENTRY: usize = 16;
/// Bytes by which an instruction that reports a bug is known.
const LONGEST_BUG: usize = 5;
/// The guest's own breakpoint, while it rewrites an instruction.
const INT3: u8 = 0xcc;
/// `jmp rel32`, the trampoline of a static call.
const TRAMPOLINE: u64 = 5;

impl Module {
    /// The text of this module that must be left alone, `symbols` being its own: at run-time addresses, and right
    /// from `do_init_module` on.
    ///
    /// # Errors
    /// [`ModuleError`] when a table cannot be read.
    pub fn patched<M: PhysMemory + ?Sized>(
        &self,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
        symbols: &SymbolTable,
    ) -> Result<PatchedText, ModuleError> {
        let tables = ModuleTables { module: self, memory };
        let mut found = Vec::new();
        let mut missing = Vec::new();
        let places = &layout.tables;
        for (place, why) in [
            (places.jump_labels, Why::JumpLabel),
            (places.static_calls, Why::StaticCall),
            (places.bugs, Why::Bug),
        ] {
            let Some(place) = place else {
                missing.push(why);
                continue;
            };
            for at in tables.targets(place)? {
                if why != Why::Bug || tables.is_bug(at) {
                    found.push((tables.instruction(at), why));
                }
            }
        }
        match places.blacklist {
            Some(place) => {
                let functions = tables.functions(place)?.into_iter().filter_map(|at| symbols.function_at(at));
                found.extend(functions.map(|function| (function.range(), Why::Blacklisted)));
            }
            None => missing.push(Why::Blacklisted),
        }
        for (place, why) in [(places.noinstr, Why::Noinstr), (places.kprobes_text, Why::Blacklisted)] {
            match place {
                Some(place) => found.extend(tables.range(place)?.map(|range| (range, why))),
                None => missing.push(why),
            }
        }
        found.extend(trampolines(symbols).map(|range| (range, Why::StaticCall)));
        for symbol in symbols.text() {
            if symbol.is_padding()
                && let Some(function) = symbols.function_at(symbol.at)
            {
                found.push((function.range(), Why::Padding));
            }
        }
        let fixups = places.fixups.map(|place| tables.targets(place)).transpose()?;
        Ok(PatchedText::new(found, fixups.unwrap_or_default(), missing))
    }

    /// Where this module has calls of `__fentry__`, or what ftrace has made of them: at run-time addresses, and
    /// right from `do_init_module` on.
    ///
    /// # Errors
    /// [`ModuleError`] when the table cannot be read.
    pub fn ftrace_sites<M: PhysMemory + ?Sized>(
        &self,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
    ) -> Result<Vec<Gva>, ModuleError> {
        let sites = layout.tables.ftrace.map(|place| ModuleTables { module: self, memory }.functions(place));
        Ok(sites.transpose()?.unwrap_or_default())
    }

    /// Its jump labels: where each is, and where it leads once it is enabled. At run-time addresses, and right from `do_init_module` on.
    ///
    /// # Errors
    /// [`ModuleError`] when the table cannot be read.
    pub fn jump_labels<M: PhysMemory + ?Sized>(
        &self,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
    ) -> Result<Vec<(Range<Gva>, Gva)>, ModuleError> {
        let tables = ModuleTables { module: self, memory };
        let Some(place) = layout.tables.jump_labels else { return Ok(Vec::new()) };
        let label = |at, bytes: &[u8]| Some((distant(at, bytes, 0)?, distant(at, bytes, 4)?));
        let labels = tables.entries(place, label)?.into_iter().filter(|(at, _)| self.is_text(*at));
        Ok(labels.map(|(at, to)| (tables.jump_label(at, to), to)).collect())
    }

    /// Its static calls, and the trampolines of those that it has, `symbols` being its own: at run-time addresses, and right from
    /// `do_init_module` on.
    ///
    /// # Errors
    /// [`ModuleError`] when the table cannot be read.
    pub fn static_calls<M: PhysMemory + ?Sized>(
        &self,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
        symbols: &SymbolTable,
    ) -> Result<Vec<Range<Gva>>, ModuleError> {
        let tables = ModuleTables { module: self, memory };
        let calls = layout.tables.static_calls.map(|place| tables.targets(place)).transpose()?;
        let calls = calls.unwrap_or_default().into_iter().map(|at| tables.static_call(at));
        Ok(calls.chain(trampolines(symbols)).collect())
    }
}

/// The trampolines of a module's static calls (`__SCT__NAME`, include/linux/static_call_types.h).
fn trampolines(symbols: &SymbolTable) -> impl Iterator<Item = Range<Gva>> {
    let trampolines = symbols.text().filter(|symbol| symbol.name.starts_with("__SCT__"));
    trampolines.map(|symbol| symbol.at..symbol.at.add(TRAMPOLINE))
}

/// Where the 32-bit distance leads that is `field` bytes into an entry at `at`.
fn distant(at: Gva, entry: &[u8], field: usize) -> Option<Gva> {
    Some(at.add(field as u64).offset((u32_at(entry, field)? as i32).into()))
}

/// The tables of one module, in the guest's memory.
struct ModuleTables<'a, M: PhysMemory + ?Sized> {
    module: &'a Module,
    memory: &'a VirtMemory<'a, M>,
}

impl<M: PhysMemory + ?Sized> ModuleTables<'_, M> {
    /// What `of` makes of each entry's address and first bytes.
    fn entries<T>(
        &self,
        place: CountedArray,
        of: impl Fn(Gva, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, ModuleError> {
        let (start, count) = counted_at(self.memory, self.module.at, place)?;
        if count > MOST_ENTRIES {
            return Err(ModuleError::Large(self.module.at));
        }
        let mut found = Vec::new();
        for index in 0..count {
            let at = start.add(u64::from(index) * u64::from(place.entry));
            let mut bytes = [0; LARGEST_ENTRY];
            let bytes = bytes.get_mut(..(place.entry as usize).min(LARGEST_ENTRY)).unwrap_or_default();
            self.memory.read(at, bytes)?;
            found.extend(of(at, bytes));
        }
        Ok(found)
    }

    /// What the 32-bit distance at the start of each entry points to, as far as it is text of the module.
    fn targets(&self, place: CountedArray) -> Result<Vec<Gva>, ModuleError> {
        let is_text = |at: &Gva| self.module.is_text(*at);
        self.entries(place, |at, bytes| distant(at, bytes, 0).filter(is_text))
    }

    /// The 64-bit addresses in a table, as far as they are text of the module.
    fn functions(&self, place: CountedArray) -> Result<Vec<Gva>, ModuleError> {
        let is_text = |at: &Gva| self.module.is_text(*at);
        self.entries(place, |_, bytes| u64_at(bytes, 0).map(Gva).filter(is_text))
    }

    /// The jump label at `at` that leads `to`. Where the guest is just rewriting that, it is as long as the assembler makes a jump over such a
    /// distance.
    fn jump_label(&self, at: Gva, to: Gva) -> Range<Gva> {
        /// `jmp rel8`, `jmp rel32`
        const LENGTHS: [u64; 2] = [2, 5];
        let range = self.instruction(at);
        if range.end.offset_from(at).is_some_and(|length| LENGTHS.contains(&length)) {
            return range;
        }
        let [short, near] = LENGTHS;
        let distance = to.0.wrapping_sub(at.add(short).0).cast_signed();
        at..at.add(if i8::try_from(distance).is_ok() { short } else { near })
    }

    /// The static call at `at`. Where the guest is just rewriting that, the condition of a conditional jump tells that from a call.
    fn static_call(&self, at: Gva) -> Range<Gva> {
        let mut bytes = [0; 2];
        match self.memory.read(at, &mut bytes) {
            Ok(()) if matches!(bytes, [INT3 | 0x0f, 0x80..=0x8f]) => at..at.add(TRAMPOLINE + 1),
            _ => at..at.add(TRAMPOLINE),
        }
    }

    /// A range of text that is not empty.
    fn range(&self, place: CountedArray) -> Result<Option<Range<Gva>>, ModuleError> {
        let (start, size) = counted_at(self.memory, self.module.at, place)?;
        match size {
            0 => Ok(None),
            _ => kernel_range(start, size.into()).map(Some).ok_or(ModuleError::Text(self.module.at)),
        }
    }

    /// Whether the instruction at `at` reports a bug, or cannot be read: not every entry of the table leads to one.
    fn is_bug(&self, at: Gva) -> bool {
        let mut bytes = [0; LONGEST_BUG];
        let length = self.rest(at).min(LONGEST_BUG as u64) as usize;
        let Some(bytes) = bytes.get_mut(..length) else { return true };
        self.memory.read(at, bytes).is_err() || bytes.first() == Some(&INT3) || patch_tables::is_bug(bytes)
    }

    /// How many bytes there are from `at` to the end of the text that it is in.
    fn rest(&self, at: Gva) -> u64 {
        let text = if at.is_in(&self.module.text) { &self.module.text } else { &self.module.init_text };
        text.end.offset_from(at).unwrap_or(0)
    }

    /// The bytes of the instruction at `at`. Where the guest is just rewriting it, and an int3 of its own stands
    /// there, they are as many as such an instruction can have.
    fn instruction(&self, at: Gva) -> Range<Gva> {
        const LONGEST: usize = 6;
        let rest = self.rest(at).min(LONGEST as u64) as usize;
        let mut bytes = [0; LONGEST];
        let bytes = bytes.get_mut(..rest).unwrap_or_default();
        let is_read = self.memory.read(at, bytes).is_ok();
        let len = match bytes.first() {
            Some(first) if is_read && *first != INT3 => {
                match Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).decode() {
                    instruction if instruction.is_invalid() => LONGEST,
                    instruction => instruction.len(),
                }
            }
            _ => LONGEST,
        };
        at..at.add(len as u64)
    }
}
