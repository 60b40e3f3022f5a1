//! What is known of the code that the guest runs: the tables by which its stacks are walked, and the names of its
//! functions. Modules bring theirs and take them away.

use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::modules::{Module, ModuleLayout};
use probe_engine::linux::names::{ModuleNames, Names};
use probe_engine::linux::orc::OrcTable;
use probe_engine::linux::unwind::{KernelCode, ModuleCode};
use probe_engine::memory::{PhysMemory, VirtMemory};
use std::ops::Range;
use std::sync::Arc;

/// Most rows of all modules' tables, and most of their symbols: a desktop has a million of each. What a guest makes
/// beyond that stays unknown.
const MOST: usize = 4 << 20;
/// Of so many modules it is said that they cannot be read.
const MOST_UNREAD: usize = 64;

/// The guest's code, as vCPUs and readers know it.
#[derive(Clone, Default)]
pub struct GuestCode {
    /// How the kernel's stacks are walked, if they are.
    pub unwind: Option<Arc<KernelCode>>,
    /// The kernel's symbols, where the session has them.
    pub symbols: Option<Arc<Kernel>>,
    /// The modules of the moment.
    pub modules: Arc<ModuleTables>,
}

/// What is known of modules. One may be in the one list and not in the other.
#[derive(Clone, Default)]
pub struct ModuleTables {
    /// How their stacks are walked.
    pub code: Vec<ModuleCode>,
    /// Their functions.
    pub names: Vec<ModuleNames>,
}

/// A module whose tables cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Its name.
    pub module: String,
    /// Why.
    pub reason: String,
}

impl GuestCode {
    /// Names for run-time addresses, where the session has the kernel's symbols. KASLR has added `slide`.
    #[must_use]
    pub fn names(&self, slide: u64) -> Option<Names<'_>> {
        let kernel = self.symbols.as_ref()?.symbols();
        Some(Names { kernel, slide, modules: &self.modules.names })
    }

    /// Learns the tables of `module`, of which nothing has run. What lay in its place before is gone.
    pub(crate) fn add<M: PhysMemory + ?Sized>(
        &mut self,
        module: &Module,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
        unread: &mut Vec<Unread>,
    ) {
        let Some(kernel) = &self.unwind else { return };
        let tables = Arc::make_mut(&mut self.modules);
        tables.remove(module);
        let (text, init_text) = (module.text.clone(), module.init_text.clone());
        let mut note = |reason: String| {
            if unread.len() < MOST_UNREAD && unread.iter().all(|known| known.module != module.name) {
                unread.push(Unread { module: module.name.clone(), reason });
            }
        };
        let rows = |orc: &OrcTable| orc.len() + tables.code.iter().map(|code| code.orc.len()).sum::<usize>();
        match module.orc(layout, kernel.orc().layout(), memory) {
            Ok(orc) if rows(&orc) <= MOST => {
                let (text, init_text) = (text.clone(), init_text.clone());
                tables.code.push(ModuleCode { text, init_text, orc });
            }
            Ok(_) => note("the guest's modules have too large tables".to_owned()),
            Err(error) => note(error.to_string()),
        }
        let named: usize = tables.names.iter().map(|module| module.symbols.len()).sum();
        match module.symbols(layout, memory) {
            Ok(symbols) if named + symbols.len() <= MOST => {
                let name = module.name.clone();
                tables.names.push(ModuleNames { name, text, init_text, symbols });
            }
            Ok(_) => note("the guest's modules have too many symbols".to_owned()),
            Err(error) => note(error.to_string()),
        }
    }

    /// `module` is about to go.
    pub(crate) fn remove(&mut self, module: &Module) {
        Arc::make_mut(&mut self.modules).remove(module);
    }

    /// The text of a module's init in `range` is about to be freed.
    pub(crate) fn init_done(&mut self, range: &Range<Gva>) {
        let tables = Arc::make_mut(&mut self.modules);
        let code = tables.code.iter_mut().map(|module| &mut module.init_text);
        let names = tables.names.iter_mut().map(|module| &mut module.init_text);
        for init_text in code.chain(names).filter(|text| text.start.is_in(range)) {
            init_text.end = init_text.start;
        }
    }
}

impl ModuleTables {
    /// Forgets what lies where `module` does.
    fn remove(&mut self, module: &Module) {
        let is_there = |text: &Range<Gva>, init_text: &Range<Gva>| {
            [&module.text, &module.init_text].into_iter().any(|new| meet(new, text) || meet(new, init_text))
        };
        self.code.retain(|old| !is_there(&old.text, &old.init_text));
        self.names.retain(|old| !is_there(&old.text, &old.init_text));
    }
}

/// Whether two ranges have an address in common.
fn meet(one: &Range<Gva>, other: &Range<Gva>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::modules::ModuleState;
    use probe_engine::linux::symbols::SymbolTableBuilder;

    fn range(start: u64, len: u64) -> Range<Gva> {
        Gva(start)..Gva(start + len)
    }

    fn names(name: &str, text: Range<Gva>, init_text: Range<Gva>) -> ModuleNames {
        let symbols = SymbolTableBuilder::default().finish();
        ModuleNames { name: name.to_owned(), text, init_text, symbols }
    }

    #[test]
    fn what_lies_where_a_module_goes_is_forgotten() {
        let names = vec![
            names("first", range(0x1000, 0x1000), range(0x8000, 0x1000)),
            names("second", range(0x2000, 0x1000), range(0, 0)),
            names("third", range(0x3000, 0x1000), range(0, 0)),
        ];
        let modules = Arc::new(ModuleTables { code: Vec::new(), names });
        let mut code = GuestCode { modules, ..GuestCode::default() };
        let known = |code: &GuestCode| -> Vec<String> {
            code.modules.names.iter().map(|module| module.name.clone()).collect()
        };
        let module = |text, init_text| {
            let (name, state) = ("new".to_owned(), ModuleState::Going);
            Module { at: Gva(0), name, state, text, init_text }
        };
        code.remove(&module(range(0x2800, 0x100), range(0, 0)));
        assert_eq!(known(&code), ["first", "third"]);
        code.init_done(&range(0x8000, 0x1000));
        code.remove(&module(range(0x8000, 0x1000), range(0, 0)));
        assert_eq!(known(&code), ["first", "third"], "its init text was freed");
        code.remove(&module(range(0x7000, 0x100), range(0x1fff, 0x1001)));
        assert_eq!(known(&code), ["third"]);
    }
}
