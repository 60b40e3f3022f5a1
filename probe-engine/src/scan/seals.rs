//! What a guard has sealed of modules, against what the kernel says of them: whoever has a module unsealed leaves it running, and whoever
//! cannot write to its code may map other code in its place.

use super::finding::{Finding, What};
use crate::addr::{Gpa, Gva};
use crate::linux::modules::{Module, ModuleState};
use crate::memory::PhysMemory;
use crate::paging::Access;
use crate::virt_memory::VirtMemory;
use std::collections::HashSet;
use std::ops::Range;

/// The modules of which a guard knows, at run-time addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seals {
    /// The `struct module` of those that are sealed.
    pub modules: HashSet<Gva>,
    /// Of those that could not be, as was told.
    pub left_out: HashSet<Gva>,
    /// Text that the kernel is freeing, of modules that go and of inits that have run: the kernel waits for all CPUs before, and nothing
    /// says then whose the text is.
    pub freed: Vec<Range<Gva>>,
    /// Where each sealed page was when it was sealed.
    pub pages: Vec<(Gva, Gpa)>,
}

impl Seals {
    /// Calls `tell` with each of these modules, which the kernel lists, that is loaded and of which the guard knows nothing; and with each
    /// sealed one that is not among them.
    pub(super) fn check_modules(&self, modules: &[Module], tell: &mut dyn FnMut(Finding)) {
        let mut unlisted = self.modules.clone();
        modules.iter().for_each(|module| {
            unlisted.remove(&module.at);
        });
        let mut unlisted: Vec<Gva> = unlisted.into_iter().collect();
        unlisted.sort_unstable();
        unlisted.into_iter().for_each(|at| tell(Finding { at, what: What::Unlisted }));
        // One that comes is not sealed yet, and one that goes is no more.
        for module in modules.iter().filter(|module| module.state == ModuleState::Live) {
            if !self.modules.contains(&module.at) && !self.left_out.contains(&module.at) {
                let what = What::NotSealed { name: module.name.clone() };
                tell(Finding { at: module.at, what });
            }
        }
    }

    /// Calls `tell` with each page that is mapped to something else now. Says how many it has looked at.
    pub(super) fn check_pages<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        tell: &mut dyn FnMut(Finding),
    ) -> u64 {
        for (at, own) in &self.pages {
            let to = memory.translate(*at, Access::Read).ok();
            if to != Some(*own) {
                tell(Finding { at: *at, what: What::Remapped { own: *own, to } });
            }
        }
        self.pages.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    #[test]
    fn modules_that_are_loaded_and_not_sealed_are_told() {
        let module = |at: u64, state| Module {
            at: Gva(at),
            name: format!("at{at}"),
            state,
            text: Gva(0)..Gva(0),
            init_text: Gva(0)..Gva(0),
        };
        let modules = [
            module(1, ModuleState::Live),
            module(2, ModuleState::Live),
            module(3, ModuleState::Coming),
            module(4, ModuleState::Going),
        ];
        let known = Seals { modules: [Gva(1)].into(), left_out: [Gva(2)].into(), ..Seals::default() };
        let told = |seals: &Seals| {
            let mut found = Vec::new();
            seals.check_modules(&modules, &mut |finding| found.push(finding));
            found
        };
        assert_eq!(told(&known), []);
        let not_sealed = Finding { at: Gva(2), what: What::NotSealed { name: "at2".to_owned() } };
        assert_eq!(told(&Seals { left_out: HashSet::new(), ..known.clone() }), [not_sealed]);
        let unlisted = Finding { at: Gva(9), what: What::Unlisted };
        assert_eq!(told(&Seals { modules: [Gva(1), Gva(3), Gva(9)].into(), ..known }), [unlisted]);
    }

    #[test]
    fn pages_that_lead_elsewhere_are_told() {
        let ram = Ram::new();
        let memory = ram.memory();
        let own = memory.translate(Ram::BASE, Access::Read).unwrap();
        let (there, nowhere) = (Ram::BASE.add(0x1000), Gva(0x1000));
        let seals = Seals { pages: vec![(Ram::BASE, own), (there, own), (nowhere, own)], ..Seals::default() };
        let mut found = Vec::new();
        assert_eq!(seals.check_pages(&memory, &mut |finding| found.push(finding)), 3);
        let remapped = |at, to| Finding { at, what: What::Remapped { own, to } };
        assert_eq!(found, [remapped(there, Some(own.add(0x1000))), remapped(nowhere, None)]);
    }
}
