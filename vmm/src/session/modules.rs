//! The modules of a running guest: what it loads and frees changes what is known of them, and where probes in them are.

mod ledger;
mod places;

pub(super) use ledger::Ledger;

use super::registry::Registry;
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::linux::modules::{Module, ModuleLayout, ModuleState, modules};
use probe_engine::virt_memory::VirtMemory;
use std::collections::HashSet;
use std::ops::Range;

/// The modules of a guest that stands still.
pub(super) struct Modules<'a> {
    pub(super) layout: &'a ModuleLayout,
    /// Of its kernel.
    pub(super) memory: VirtMemory<'a, GuestRam>,
    pub(super) ledger: &'a mut Ledger,
    pub(super) registry: &'a mut Registry,
}

impl Modules<'_> {
    /// The module at `at` is ready: its text is final, and none of it has run. Returns where traps stood (GVA) that
    /// went with what was there before: a module that fails ends without a word.
    pub(super) fn ready(&mut self, at: Gva) -> Vec<Gva> {
        // What is no module to us has no probes either.
        let Ok(module) = Module::read(self.layout, &self.memory, at) else { return Vec::new() };
        let lost = places::lost(&module, &self.memory, self.registry);
        let tables = self.ledger.read(&module, self.layout, &self.memory);
        if self.ledger.enter(module.clone(), tables) {
            places::find(&module, self.layout, &self.memory, self.registry);
        }
        lost
    }

    /// The text in `range`, of a module whose init has run, is about to be freed.
    pub(super) fn init_done(&mut self, range: &Range<Gva>) {
        self.ledger.init_done(range);
        places::retire(range, self.registry);
    }

    /// The module at `at` goes: its tracepoints are about to be looked at, whether anybody still wants to be called there. Returns those
    /// (GVA) of which anybody did.
    pub(super) fn going(&mut self, at: Gva) -> Vec<Gva> {
        let module = self.ledger.get(at);
        module.map(|module| places::retire_tracepoints(module, self.registry)).unwrap_or_default()
    }

    /// The module at `at` is about to be freed.
    pub(super) fn gone(&mut self, at: Gva) {
        if let Some(module) = self.ledger.remove(at) {
            places::retire(&module.text, self.registry);
            places::retire(&module.init_text, self.registry);
        }
    }

    /// Looks for places in modules that were loaded before anyone asked. `head` is that of the guest's list (GVA).
    pub(super) fn look_around(&mut self, head: Gva) {
        let Ok(listed) = modules(self.layout, &self.memory, head) else { return };
        self.ledger.keep(&listed);
        let mut seen = HashSet::new();
        for module in &listed {
            let is_loaded = matches!(module.state, ModuleState::Live | ModuleState::Coming);
            // There is one of each name, unless the guest makes fun of us.
            if is_loaded && seen.insert(&module.name) && self.ledger.enter_unless_known(module) {
                places::find(module, self.layout, &self.memory, self.registry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_view::KernelView;
    use crate::probe::Probe;
    use crate::session::registry::tests::registry;
    use crate::session::report::ProbeState;
    use crate::trap::Delivery;
    use probe_engine::addr::Gpa;
    use probe_engine::insn::INT3;
    use probe_engine::linux::module_layout::ModuleOrc;
    use probe_engine::linux::modules::{CountedArray, ModuleTableFields};
    use probe_engine::linux::orc::OrcLayout;
    use probe_engine::memory::PhysMemory;
    use probe_engine::paging::AddressSpace;
    use probe_engine::probe::place::Place;
    use probe_engine::probe::table::ProbeId;

    /// Where the guest's memory is for its kernel.
    const BASE: Gva = Gva(0xffff_ffff_c000_0000);
    const HEAD: u64 = 0x8000;
    const SIZE: u64 = 0x1000;

    /// A `struct module` with what belongs to it, at an offset of the guest's memory.
    struct Loaded {
        name: &'static str,
        module: u64,
        text: u64,
        /// Its only function, at the start of its text.
        function: &'static str,
    }

    fn ram() -> GuestRam {
        let ram = GuestRam::new(2 << 20).unwrap();
        // A page table for 512 GiB, and one with a page of 1 GiB.
        for (at, entry) in [(0x1000, 0x2003_u64), (0x2000, 0x83)] {
            ram.write(Gpa(at + 511 * 8), &entry.to_le_bytes()).unwrap();
        }
        ram
    }

    fn layout() -> ModuleLayout {
        let counted = |start, count, entry| CountedArray { start, count, entry };
        ModuleLayout {
            head: BASE.add(HEAD),
            state: 0,
            list: 8,
            name: 24,
            text: counted(88, 96, 1),
            init_text: counted(104, 112, 1),
            read_only: None,
            kallsyms: 80,
            symtab: counted(0, 8, 24),
            strtab: 16,
            typetab: 24,
            tables: ModuleTableFields::default(),
            tracepoints: None,
            btf: None,
            // No rows.
            orc: Some(ModuleOrc { ips: counted(120, 136, 4), rows: counted(128, 136, 6) }),
        }
    }

    fn put(ram: &GuestRam, at: u64, word: u64) {
        ram.write(Gpa(at), &word.to_le_bytes()).unwrap();
    }

    /// The guest loads it: the only one of its list.
    fn load(ram: &GuestRam, loaded: &Loaded) {
        let Loaded { name, module, text, function } = loaded;
        let (kallsyms, symbol, strings) = (module + 0x400, module + 0x500, module + 0x600);
        put(ram, HEAD, BASE.0 + module + 8);
        put(ram, module + 8, BASE.0 + HEAD);
        ram.write(Gpa(module + 24), name.as_bytes()).unwrap();
        put(ram, module + 80, BASE.0 + kallsyms);
        put(ram, module + 88, BASE.0 + text);
        put(ram, module + 96, SIZE);
        put(ram, kallsyms, BASE.0 + symbol);
        put(ram, kallsyms + 8, 1);
        put(ram, kallsyms + 16, BASE.0 + strings);
        put(ram, kallsyms + 24, BASE.0 + strings + 0x80);
        put(ram, symbol, 1 << 48);
        put(ram, symbol + 8, BASE.0 + text);
        put(ram, symbol + 16, 0x10);
        ram.write(Gpa(strings), function.as_bytes()).unwrap();
        ram.write(Gpa(strings + 0x80), b"t").unwrap();
        ram.write(Gpa(*text), &[0x90; SIZE as usize]).unwrap();
    }

    fn names(ledger: &Ledger) -> Vec<String> {
        let mut view = KernelView::default();
        ledger.publish(&mut view);
        assert!(
            view.names.iter().map(|module| &module.text).eq(view.modules.iter().map(|module| &module.text))
        );
        view.names.iter().map(|module| module.name.clone()).collect()
    }

    #[test]
    fn a_module_that_comes_where_another_was_is_the_only_one_there() {
        let (ram, layout) = (ram(), layout());
        let a = Loaded { name: "a", module: 0x1_0000, text: 0x2_0000, function: "of_a" };
        let b = Loaded { name: "b", module: 0x1_1000, text: 0x1_f800, function: "of_b" };
        let mut registry = registry(1, Delivery::Intercepted);
        let place = |of: &Loaded| Place::Module {
            module: of.name.to_owned(),
            symbol: of.function.to_owned(),
            offset: 0,
        };
        let ids = registry.register([&a, &b].map(|of| Probe::at(place(of)).into()).into()).unwrap();
        let mut ledger = Ledger::new(Some(OrcLayout::SinceSixFour), true);
        let mut modules = Modules {
            layout: &layout,
            memory: VirtMemory::new(&ram, AddressSpace::new(0x1000, 0)),
            ledger: &mut ledger,
            registry: &mut registry,
        };
        let state = |modules: &Modules<'_>, id: ProbeId| modules.registry.get(id).unwrap().state.clone();
        let at = |loaded: &Loaded| BASE.add(loaded.text);

        load(&ram, &a);
        assert_eq!(modules.ready(BASE.add(a.module)), []);
        assert_eq!((state(&modules, ids[0]), names(modules.ledger)), (ProbeState::Waiting, vec!["a".into()]));
        assert_eq!(modules.registry.get(ids[0]).unwrap().info.as_ref().unwrap().at, at(&a));

        // Its trap stands. Whoever is told twice of one load forgets nothing.
        modules.registry.set_state(ids[0], ProbeState::Armed(at(&a)));
        ram.write(Gpa(a.text), &[INT3]).unwrap();
        assert_eq!(modules.ready(BASE.add(a.module)), []);
        assert_eq!(state(&modules, ids[0]), ProbeState::Armed(at(&a)));

        // It has gone without a word.
        load(&ram, &b);
        assert_eq!(modules.ready(BASE.add(b.module)), [at(&a)]);
        assert_eq!(state(&modules, ids[0]), ProbeState::Gone(at(&a)));
        assert_eq!((state(&modules, ids[1]), names(modules.ledger)), (ProbeState::Waiting, vec!["b".into()]));
        modules.gone(BASE.add(a.module));
        assert_eq!(names(modules.ledger), ["b"]);
        modules.gone(BASE.add(b.module));
        assert_eq!((state(&modules, ids[1]), names(modules.ledger)), (ProbeState::Gone(at(&b)), vec![]));

        // As where nobody asked before: places are found, and lost again.
        modules.look_around(BASE.add(HEAD));
        assert_eq!((state(&modules, ids[1]), names(modules.ledger)), (ProbeState::Waiting, vec![]));
        modules.gone(BASE.add(b.module));
        assert_eq!(state(&modules, ids[1]), ProbeState::Gone(at(&b)));
    }
}
