//! The names of what the guest has loaded, for whoever shows addresses.

use super::modules::Modules;
use probe_engine::addr::Gva;
use probe_engine::linux::modules::Module;
use probe_engine::linux::names::ModuleNames;
use std::ops::Range;
use std::sync::Arc;

/// Most memory that names take, in bytes: some hundred modules have 10 MB of them. What the guest loads beyond that has
/// none.
const MOST_BYTES: usize = 64 << 20;

/// The modules that are loaded, as far as they could be read.
#[derive(Default)]
pub(super) struct Names {
    modules: Vec<Arc<ModuleNames>>,
}

impl Names {
    pub(super) fn modules(&self) -> &[Arc<ModuleNames>] {
        &self.modules
    }

    /// The module at `at` is about to run for the first time.
    pub(super) fn loaded(&mut self, at: Gva, modules: &Modules<'_>) {
        // What cannot be read has no names.
        let names = Module::read(modules.layout, &modules.memory(), at)
            .and_then(|module| ModuleNames::read(&module, modules.layout, &modules.memory()));
        if let Ok(names) = names {
            self.add(names);
        }
    }

    /// The module at `at` is about to be freed.
    pub(super) fn gone(&mut self, at: Gva, modules: &Modules<'_>) {
        if let Ok(module) = Module::read(modules.layout, &modules.memory(), at) {
            self.forget(&module.text);
            self.forget(&module.init_text);
        }
    }

    /// The text in `range`, of a module whose init has run, is about to be freed.
    pub(super) fn init_done(&mut self, range: &Range<Gva>) {
        for module in self.modules.iter_mut().filter(|module| overlap(&module.init_text, range)) {
            let module = Arc::make_mut(module);
            module.init_text = module.init_text.end..module.init_text.end;
        }
    }

    fn add(&mut self, names: ModuleNames) {
        // Whatever was there has gone without a word.
        self.forget(&names.text);
        self.forget(&names.init_text);
        let taken: usize = self.modules.iter().map(|module| bytes(module)).sum();
        if taken.saturating_add(bytes(&names)) <= MOST_BYTES {
            self.modules.push(Arc::new(names));
        }
    }

    fn forget(&mut self, range: &Range<Gva>) {
        self.modules.retain(|module| !overlap(&module.text, range) && !overlap(&module.init_text, range));
    }
}

/// How much memory it takes, in bytes: not nothing where it has no symbols.
fn bytes(names: &ModuleNames) -> usize {
    size_of::<ModuleNames>() + names.name.len() + names.symbols.bytes()
}

fn overlap(a: &Range<Gva>, b: &Range<Gva>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::symbols::SymbolTableBuilder;

    fn module(name: &str, text: Range<u64>, init: Range<u64>, name_bytes: usize) -> ModuleNames {
        let mut symbols = SymbolTableBuilder::default();
        for _ in 0..name_bytes / 512 {
            symbols.push(Gva(text.start), b't', &"x".repeat(512)).unwrap();
        }
        let range = |range: Range<u64>| Gva(range.start)..Gva(range.end);
        let symbols = symbols.finish();
        ModuleNames { name: name.to_owned(), text: range(text), init_text: range(init), symbols }
    }

    fn loaded(names: &Names) -> Vec<&str> {
        names.modules().iter().map(|module| module.name.as_str()).collect()
    }

    #[test]
    fn what_comes_takes_the_place_of_what_was_there() {
        let mut names = Names::default();
        names.add(module("a", 0x1000..0x2000, 0x2000..0x3000, 0));
        names.add(module("b", 0x4000..0x5000, 0..0, 0));
        assert_eq!(loaded(&names), ["a", "b"]);
        names.add(module("c", 0x2800..0x3800, 0..0, 0));
        assert_eq!(loaded(&names), ["b", "c"]);
        names.forget(&(Gva(0x4fff)..Gva(0x5000)));
        assert_eq!(loaded(&names), ["c"]);
    }

    #[test]
    fn init_text_that_is_freed_names_nothing_any_more() {
        let mut names = Names::default();
        names.add(module("a", 0x1000..0x2000, 0x2000..0x3000, 0));
        let seen = names.modules().to_vec();
        names.init_done(&(Gva(0x2000)..Gva(0x3000)));
        assert!(names.modules().iter().all(|module| module.init_text.is_empty()));
        assert!(!seen[0].init_text.is_empty(), "who has them keeps them as they were");
        names.add(module("b", 0x2000..0x3000, 0..0, 0));
        assert_eq!(loaded(&names), ["a", "b"]);
    }

    #[test]
    fn a_guest_that_never_stops_loading_fills_no_memory() {
        let mut names = Names::default();
        for n in 0..20 {
            names.add(module("large", n << 12..(n + 1) << 12, 0..0, 8 << 20));
        }
        assert_eq!(names.modules().len(), 7);
        names.add(module("small", 0x100_0000..0x100_1000, 0..0, 0));
        assert_eq!(names.modules().len(), 8);
    }

    #[test]
    fn nor_does_one_that_loads_modules_without_symbols() {
        let mut names = Names::default();
        let name = "m".repeat(1 << 20);
        for n in 0..100 {
            names.add(module(&name, n << 12..(n + 1) << 12, 0..0, 0));
        }
        assert_eq!(names.modules().len(), 63);
    }
}
