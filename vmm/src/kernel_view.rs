//! What is known of the guest's kernel: the tables by which its stacks are walked, the names of its functions, and how
//! its tasks are found. Modules bring their tables and names, and take them away.

use probe_engine::addr::Gva;
use probe_engine::linux::current::CurrentTask;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::modules::{Module, ModuleLayout};
use probe_engine::linux::names::{ModuleNames, Names};
use probe_engine::linux::task::TaskLayout;
use probe_engine::linux::unwind::{KernelCode, ModuleCode};
use probe_engine::memory::PhysMemory;
use probe_engine::virt_memory::VirtMemory;
use std::ops::Range;
use std::sync::Arc;

/// Most rows of all modules' tables: a desktop has a million. What a guest loads beyond that has no table.
const MOST_ROWS: usize = 4 << 20;
/// Most modules: one without rows takes memory as well.
const MOST_MODULES: usize = 1 << 12;
/// Of so many modules it is said that they cannot be read.
const MOST_UNREAD: usize = 64;

/// The guest's kernel, as vCPUs know it.
#[derive(Clone, Default)]
pub struct KernelView {
    /// How the kernel's stacks are walked, if they are.
    pub unwind: Option<Arc<KernelCode>>,
    /// How those of its modules are, as far as it could be read.
    pub modules: Arc<Vec<ModuleCode>>,
    /// The kernel's symbols, where the session has them.
    pub symbols: Option<Arc<Kernel>>,
    /// Its modules', where the session has them.
    pub names: Arc<[Arc<ModuleNames>]>,
    /// What KASLR added to its link-time addresses.
    pub slide: u64,
    /// How the task of a vCPU is found.
    pub current: Option<CurrentTask>,
    /// How to read about it.
    pub task: Option<TaskLayout>,
}

/// A module whose table cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Its name.
    pub module: String,
    /// Why.
    pub reason: String,
}

impl KernelView {
    /// Names for run-time addresses, where the session has the kernel's symbols.
    #[must_use]
    pub fn names(&self) -> Option<Names<'_>> {
        let kernel = self.symbols.as_ref()?.symbols();
        Some(Names { kernel, slide: self.slide, modules: &self.names })
    }

    /// Learns the table of `module`, of which nothing has run, or notes down that it is `unread`. What lay in its place
    /// before is gone.
    pub(crate) fn add<M: PhysMemory + ?Sized>(
        &mut self,
        module: &Module,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
        unread: &mut Vec<Unread>,
    ) {
        let Some(kernel) = &self.unwind else { return };
        let modules = Arc::make_mut(&mut self.modules);
        forget(modules, module);
        let rows: usize = modules.iter().map(|module| module.orc.len()).sum();
        let reason = match module.orc(layout, kernel.orc().layout(), memory) {
            Ok(orc) if rows + orc.len() <= MOST_ROWS && modules.len() < MOST_MODULES => {
                let (text, init_text) = (module.text.clone(), module.init_text.clone());
                return modules.push(ModuleCode { text, init_text, orc });
            }
            Ok(_) => "there are too many modules, or their tables are too large together".to_owned(),
            Err(error) => error.to_string(),
        };
        if unread.len() < MOST_UNREAD && unread.iter().all(|known| known.module != module.name) {
            unread.push(Unread { module: module.name.clone(), reason });
        }
    }

    /// `module` is about to go.
    pub(crate) fn remove(&mut self, module: &Module) {
        forget(Arc::make_mut(&mut self.modules), module);
    }

    /// The text in `range`, of a module whose init has run, is about to be freed.
    pub(crate) fn init_done(&mut self, range: &Range<Gva>) {
        let modules = Arc::make_mut(&mut self.modules).iter_mut();
        for module in modules.filter(|module| overlap(&module.init_text, range)) {
            module.init_text.end = module.init_text.start;
        }
    }
}

/// Forgets what lies where `module` does.
fn forget(modules: &mut Vec<ModuleCode>, module: &Module) {
    let is_there = |text: &Range<Gva>| overlap(&module.text, text) || overlap(&module.init_text, text);
    modules.retain(|old| !is_there(&old.text) && !is_there(&old.init_text));
}

/// Whether two ranges have an address in common.
fn overlap(one: &Range<Gva>, other: &Range<Gva>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::modules::ModuleState;
    use probe_engine::linux::orc::{OrcLayout, OrcTable};

    fn range(start: u64, len: u64) -> Range<Gva> {
        Gva(start)..Gva(start + len)
    }

    #[test]
    fn what_lies_where_a_module_goes_is_forgotten() {
        let module = |start| {
            let orc = OrcTable::from_parts(OrcLayout::SinceSixFour, &[], Gva(0), &[]).unwrap();
            ModuleCode { text: range(start, 0x1000), init_text: range(0x1_0000 + start, 0x1000), orc }
        };
        let modules = Arc::new(vec![module(0x1000), module(0x2000), module(0x3000)]);
        let mut code = KernelView { modules, ..KernelView::default() };
        let gone = |text, init_text| {
            let (name, state) = ("gone".to_owned(), ModuleState::Going);
            Module { at: Gva(0), name, state, text, init_text }
        };
        let known = |code: &KernelView| -> Vec<u64> {
            code.modules.iter().map(|module| module.text.start.0).collect()
        };
        code.remove(&gone(range(0x2800, 0x100), range(0, 0)));
        assert_eq!(known(&code), [0x1000, 0x3000]);
        code.init_done(&range(0x1_1000, 0x1000));
        code.remove(&gone(range(0x1_1000, 0x1000), range(0, 0)));
        assert_eq!(known(&code), [0x1000, 0x3000], "its init text was freed");
        code.remove(&gone(range(0x7000, 0x100), range(0x1fff, 0x1001)));
        assert_eq!(known(&code), [0x3000]);
        code.remove(&gone(range(0x1_3000, 0x1000), range(0, 0)));
        assert!(known(&code).is_empty());
    }
}
