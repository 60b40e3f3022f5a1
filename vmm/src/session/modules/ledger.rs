//! What is loaded: each module once, with all that the session knows of it.

use crate::kernel_view::KernelView;
use crate::session::report::Unread;
use probe_engine::addr::Gva;
use probe_engine::linux::modules::{Module, ModuleError, ModuleLayout};
use probe_engine::linux::names::ModuleNames;
use probe_engine::linux::orc::{OrcLayout, OrcTable};
use probe_engine::linux::symbols::SymbolTable;
use probe_engine::linux::unwind::ModuleCode;
use probe_engine::memory::PhysMemory;
use probe_engine::virt_memory::VirtMemory;
use std::ops::Range;
use std::sync::Arc;

/// Most modules: one without tables takes memory as well. What a guest loads beyond that is not known.
const MOST_MODULES: usize = 1 << 12;
/// Most rows of all modules' tables: a desktop has a million. What a guest loads beyond that has no table.
const MOST_ROWS: usize = 4 << 20;
/// Most memory that names take, in bytes: some hundred modules have 10 MB of them. What a guest loads beyond that has
/// none.
const MOST_BYTES: usize = 64 << 20;
/// Of so many modules it is said that their tables cannot be read.
const MOST_UNREAD: usize = 64;

/// The modules that the guest has loaded.
pub(in crate::session) struct Ledger {
    entries: Vec<Entry>,
    /// How ORC tables are written, where stacks are walked.
    orc_layout: Option<OrcLayout>,
    /// Whether names are wanted.
    has_names: bool,
    unread: Vec<Unread>,
}

/// One module.
struct Entry {
    module: Module,
    orc: Option<Arc<OrcTable>>,
    symbols: Option<Arc<SymbolTable>>,
}

/// What is read of a module for those who look at stacks and addresses.
#[derive(Default)]
pub(super) struct ModuleTables {
    /// How its stacks are walked, where that is wanted.
    orc: Option<Result<OrcTable, ModuleError>>,
    /// Its functions, where names are wanted and it has such.
    symbols: Option<SymbolTable>,
}

impl Ledger {
    /// Nothing is loaded. `orc_layout`: how ORC tables are written, where stacks are walked.
    pub(in crate::session) fn new(orc_layout: Option<OrcLayout>, has_names: bool) -> Self {
        Self { entries: Vec::new(), orc_layout, has_names, unread: Vec::new() }
    }

    /// Whether names are wanted.
    pub(in crate::session) fn has_names(&self) -> bool {
        self.has_names
    }

    /// The modules whose tables could not be read.
    pub(in crate::session) fn unread(&self) -> &[Unread] {
        &self.unread
    }

    /// Tells `view` what is known.
    pub(in crate::session) fn publish(&self, view: &mut KernelView) {
        view.modules = self.entries.iter().filter_map(Entry::code).collect();
        view.names = self.entries.iter().filter_map(Entry::names).map(Arc::new).collect();
    }

    /// Reads what is wanted of `module`, of which nothing has run.
    pub(super) fn read<M: PhysMemory + ?Sized>(
        &self,
        module: &Module,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
    ) -> ModuleTables {
        let symbols = self.has_names.then(|| module.symbols(layout, memory));
        ModuleTables {
            orc: self.orc_layout.map(|written| module.orc(layout, written, memory)),
            // What cannot be read has no names.
            symbols: symbols.and_then(Result::ok),
        }
    }

    /// `module` is loaded, and has these tables. What lay in its place before is gone. Returns whether there was room.
    pub(super) fn enter(&mut self, module: Module, tables: ModuleTables) -> bool {
        for range in [&module.text, &module.init_text] {
            self.init_done(range);
            self.entries.retain(|old| old.module.at != module.at && !overlap(&old.module.text, range));
        }
        let has_room = self.entries.len() < MOST_MODULES;
        let orc = match tables.orc {
            Some(Ok(orc)) if has_room && self.rows() + orc.len() <= MOST_ROWS => Some(orc.into()),
            Some(Ok(_)) => {
                let reason = "there are too many modules, or their tables are too large together";
                self.note_unread(&module, reason.to_owned());
                None
            }
            Some(Err(error)) => {
                self.note_unread(&module, error.to_string());
                None
            }
            None => None,
        };
        let fits = |symbols: &SymbolTable| self.bytes().saturating_add(bytes(&module, symbols)) <= MOST_BYTES;
        let symbols = tables.symbols.filter(fits).map(Arc::new);
        if has_room {
            self.entries.push(Entry { module, orc, symbols });
        }
        has_room
    }

    /// `module` was loaded before anyone asked. Returns whether it is known.
    pub(super) fn enter_unless_known(&mut self, module: &Module) -> bool {
        self.entries.iter().any(|entry| entry.is(module))
            || self.enter(module.clone(), ModuleTables::default())
    }

    /// The guest has `loaded` these modules, and no others.
    pub(super) fn keep(&mut self, loaded: &[Module]) {
        self.entries.retain(|entry| loaded.iter().any(|module| entry.is(module)));
    }

    /// The text in `range`, of a module whose init has run, is about to be freed.
    pub(super) fn init_done(&mut self, range: &Range<Gva>) {
        let modules = self.entries.iter_mut().map(|entry| &mut entry.module);
        for module in modules.filter(|module| overlap(&module.init_text, range)) {
            module.init_text.end = module.init_text.start;
        }
    }

    /// The module at `at`.
    pub(super) fn get(&self, at: Gva) -> Option<&Module> {
        self.entries.iter().map(|entry| &entry.module).find(|module| module.at == at)
    }

    /// The module at `at` is about to be freed.
    pub(super) fn remove(&mut self, at: Gva) -> Option<Module> {
        let index = self.entries.iter().position(|entry| entry.module.at == at)?;
        Some(self.entries.remove(index).module)
    }

    fn rows(&self) -> usize {
        self.entries.iter().filter_map(|entry| entry.orc.as_ref()).map(|orc| orc.len()).sum()
    }

    fn bytes(&self) -> usize {
        let of = |entry: &Entry| entry.symbols.as_ref().map(|symbols| bytes(&entry.module, symbols));
        self.entries.iter().filter_map(of).sum()
    }

    fn note_unread(&mut self, module: &Module, reason: String) {
        if self.unread.len() < MOST_UNREAD && self.unread.iter().all(|known| known.module != module.name) {
            self.unread.push(Unread { module: module.name.clone(), reason });
        }
    }
}

impl Entry {
    /// Whether it is this load of `module`, whether or not its init has run since.
    fn is(&self, module: &Module) -> bool {
        let known = &self.module;
        (known.at, &known.name, &known.text) == (module.at, &module.name, &module.text)
    }

    fn code(&self) -> Option<ModuleCode> {
        let Module { text, init_text, .. } = self.module.clone();
        Some(ModuleCode { text, init_text, orc: self.orc.clone()? })
    }

    fn names(&self) -> Option<ModuleNames> {
        let Module { name, text, init_text, .. } = self.module.clone();
        Some(ModuleNames { name, text, init_text, symbols: self.symbols.clone()? })
    }
}

/// How much memory the names of `module` take, in bytes: not nothing where it has no symbols.
fn bytes(module: &Module, symbols: &SymbolTable) -> usize {
    size_of::<ModuleNames>() + module.name.len() + symbols.bytes()
}

/// Whether two ranges have an address in common.
fn overlap(one: &Range<Gva>, other: &Range<Gva>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::modules::ModuleState;
    use probe_engine::linux::symbols::SymbolTableBuilder;

    fn ledger() -> Ledger {
        Ledger::new(Some(OrcLayout::SinceSixFour), true)
    }

    fn module(name: &str, text: Range<u64>, init: Range<u64>) -> Module {
        let range = |range: Range<u64>| Gva(range.start)..Gva(range.end);
        let (name, state) = (name.to_owned(), ModuleState::Coming);
        Module {
            at: Gva(0x10_0000_0000 + text.start),
            name,
            state,
            text: range(text),
            init_text: range(init),
        }
    }

    fn orc(rows: usize) -> OrcTable {
        let ips: Vec<u8> = (0..rows).flat_map(|_| [0; 4]).collect();
        OrcTable::from_parts(OrcLayout::SinceSixFour, &ips, Gva(0), &vec![0; 6 * rows]).unwrap()
    }

    /// ModuleTables with names of so many bytes.
    fn tables(name_bytes: usize) -> ModuleTables {
        let mut symbols = SymbolTableBuilder::default();
        for _ in 0..name_bytes / 512 {
            symbols.push(Gva(0), b't', &"x".repeat(512)).unwrap();
        }
        ModuleTables { orc: Some(Ok(orc(0))), symbols: Some(symbols.finish()) }
    }

    fn published(ledger: &Ledger) -> KernelView {
        let mut view = KernelView::default();
        ledger.publish(&mut view);
        view
    }

    /// The modules that have both tables.
    fn known(ledger: &Ledger) -> Vec<String> {
        let view = published(ledger);
        let texts: Vec<_> = view.names.iter().map(|module| (&module.text, &module.init_text)).collect();
        let walked: Vec<_> = view.modules.iter().map(|module| (&module.text, &module.init_text)).collect();
        assert_eq!(texts, walked);
        view.names.iter().map(|module| module.name.clone()).collect()
    }

    #[test]
    fn what_comes_takes_the_place_of_what_was_there() {
        let mut ledger = ledger();
        for module in [
            module("a", 0x1000..0x2000, 0x2000..0x3000),
            module("b", 0x4000..0x5000, 0..0),
            module("c", 0..0, 0..0),
        ] {
            assert!(ledger.enter(module, tables(0)));
        }
        assert_eq!(known(&ledger), ["a", "b", "c"]);
        ledger.enter(module("d", 0x1800..0x3800, 0..0), tables(0));
        assert_eq!(known(&ledger), ["b", "c", "d"]);
        ledger.enter(module("e", 0x6000..0x7000, 0x4fff..0x5000), tables(0));
        assert_eq!(known(&ledger), ["c", "d", "e"]);
        // The same `struct module`, and text elsewhere.
        let c = module("c", 0..0, 0..0).at;
        ledger.enter(Module { at: c, ..module("f", 0x8000..0x9000, 0..0) }, tables(0));
        assert_eq!(known(&ledger), ["d", "e", "f"]);
        assert_eq!(ledger.remove(c).unwrap().name, "f");
        assert_eq!((ledger.remove(c), known(&ledger)), (None, vec!["d".to_owned(), "e".to_owned()]));
    }

    #[test]
    fn init_text_that_is_freed_is_nobodys_any_more() {
        let mut ledger = ledger();
        ledger.enter(module("a", 0x1000..0x2000, 0x2000..0x3000), tables(0));
        ledger.enter(module("b", 0x4000..0x5000, 0x5000..0x6000), tables(0));
        let seen = published(&ledger);
        ledger.init_done(&(Gva(0x2000)..Gva(0x3000)));
        // Not every kernel says so.
        ledger.enter(module("c", 0x5800..0x6800, 0x2000..0x3000), tables(0));
        assert_eq!(known(&ledger), ["a", "b", "c"]);
        let are_empty = |view: &KernelView| -> Vec<bool> {
            view.names.iter().map(|module| module.init_text.is_empty()).collect()
        };
        assert_eq!(are_empty(&published(&ledger)), [true, true, false]);
        assert_eq!(are_empty(&seen), [false, false], "who has them keeps them as they were");
    }

    #[test]
    fn a_module_that_comes_copies_no_table_of_the_others() {
        let mut ledger = ledger();
        ledger.enter(module("a", 0x1000..0x2000, 0x2000..0x3000), tables(0));
        let before = published(&ledger);
        ledger.init_done(&(Gva(0x2000)..Gva(0x3000)));
        ledger.enter(module("b", 0x4000..0x5000, 0..0), tables(0));
        let after = published(&ledger);
        assert!(Arc::ptr_eq(&before.modules[0].orc, &after.modules[0].orc));
        assert!(Arc::ptr_eq(&before.names[0].symbols, &after.names[0].symbols));
    }

    #[test]
    fn what_was_loaded_before_anyone_asked_is_known_once() {
        let mut ledger = ledger();
        let (a, b) = (module("a", 0x1000..0x2000, 0x2000..0x3000), module("b", 0x4000..0x5000, 0..0));
        ledger.enter(a.clone(), tables(0));
        ledger.enter(module("gone", 0x6000..0x7000, 0..0), tables(0));
        let a = Module { state: ModuleState::Live, init_text: Gva(0)..Gva(0), ..a };
        ledger.keep(&[a.clone(), b.clone()]);
        assert_eq!(known(&ledger), ["a"]);
        for module in [&a, &b, &b] {
            assert!(ledger.enter_unless_known(module));
        }
        assert_eq!(known(&ledger), ["a"], "b has no tables");
        assert_eq!(ledger.entries.len(), 2);
        assert_eq!(ledger.remove(b.at), Some(b));
    }

    #[test]
    fn a_guest_that_never_stops_loading_fills_no_memory() {
        let mut ledger = ledger();
        for n in 0..20 {
            ledger.enter(module("large", n << 12..(n + 1) << 12, 0..0), tables(8 << 20));
        }
        assert_eq!(published(&ledger).names.len(), 7);
        ledger.enter(module("small", 0x100_0000..0x100_1000, 0..0), tables(0));
        assert_eq!(published(&ledger).names.len(), 8);
        assert_eq!(published(&ledger).modules.len(), 21, "names are not all");
    }

    #[test]
    fn nor_does_one_that_loads_modules_without_symbols() {
        let mut ledger = ledger();
        let name = "m".repeat(1 << 20);
        for n in 0..100 {
            ledger.enter(module(&name, n << 12..(n + 1) << 12, 0..0), tables(0));
        }
        assert_eq!(published(&ledger).names.len(), 63);
    }

    #[test]
    fn nor_does_one_with_large_tables_or_without_any() {
        let mut ledger = ledger();
        let rows = |rows| ModuleTables { orc: Some(Ok(orc(rows))), symbols: None };
        for n in 0..5 {
            ledger.enter(module(&format!("large{n}"), n << 12..(n + 1) << 12, 0..0), rows(MOST_ROWS / 4));
        }
        assert_eq!(published(&ledger).modules.len(), 4);
        for n in 5..1 << 13 {
            let name = format!("m{n}");
            assert_eq!(
                ledger.enter(module(&name, n << 12..(n + 1) << 12, 0..0), rows(0)),
                n < 1 << 12,
                "{n}"
            );
        }
        assert_eq!(ledger.entries.len(), MOST_MODULES);
        let unread: Vec<_> = ledger.unread().iter().map(|unread| unread.module.as_str()).collect();
        assert_eq!((unread.len(), unread[0], unread[1]), (MOST_UNREAD, "large4", "m4096"));
    }
}
