//! The modules of a running kernel, by each of its lists: a module that hides takes itself from some of them.

use super::finding::{Finding, What};
use super::subject::{Subject, around};
use super::walk::{Unreadable, tree};
use crate::addr::Gva;
use crate::linux::modules::{Module, ModuleLayout, ModuleState};
use crate::linux::names::ModuleNames;
use crate::linux::symbols::SymbolTable;
use crate::memory::PhysMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most modules of a list.
const MOST_MODULES: usize = 1 << 12;
/// The list that users see.
const SHOWN: &str = "/sys/module";
/// So many modules' functions have names; a desktop has 200 modules.
const MOST_NAMED: usize = 512;
/// Most bytes of all modules' symbols.
const MOST_NAME_BYTES: usize = 256 << 20;

/// A list of modules that a kernel has, by their `struct module`.
struct Listed {
    /// As it is told.
    name: &'static str,
    modules: BTreeSet<Gva>,
}

/// What is known of the modules.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Those that any list has.
    pub(super) modules: Vec<Module>,
    pub(super) findings: Vec<Finding>,
}

pub(super) fn read<M: PhysMemory + ?Sized>(subject: &Subject<'_, M>) -> Result<Found, Unreadable> {
    let layout = ModuleLayout::find(subject.kernel.symbols(), subject.btf);
    let layout = layout.ok_or(Unreadable::Unknown("modules"))?;
    let lists = lists(subject, &layout)?;
    let mut missing: BTreeMap<Gva, Vec<&'static str>> = BTreeMap::new();
    if lists.iter().any(|list| list.modules.len() > MOST_MODULES) {
        return Err(Unreadable::Endless);
    }
    for at in lists.iter().flat_map(|list| &list.modules) {
        let without = lists.iter().filter(|list| !list.modules.contains(at)).map(|list| list.name);
        missing.entry(*at).or_insert_with(|| without.collect());
    }
    let mut found = Found::default();
    for (at, missing) in missing {
        let Ok(module) = Module::read(&layout, &subject.memory, at) else {
            found.findings.push(Finding { at, what: What::Disguised });
            continue;
        };
        // One that comes or goes is known by its addresses, and not shown to users.
        let is_shown = module.state == ModuleState::Live;
        let missing: Vec<_> = missing.into_iter().filter(|list| is_shown || *list != SHOWN).collect();
        if !missing.is_empty() {
            let what = What::Hidden { name: module.name.clone(), missing };
            found.findings.push(Finding { at, what });
        }
        if module.state != ModuleState::Unformed {
            found.modules.push(module);
        }
    }
    Ok(found)
}

/// What the functions of these modules are called, as far as that can be read.
pub(super) fn names<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    modules: &[Module],
) -> Vec<Arc<ModuleNames>> {
    let Some(layout) = ModuleLayout::find(subject.kernel.symbols(), subject.btf) else { return Vec::new() };
    let mut bytes = 0;
    let names = |module: &Module| {
        let symbols: Arc<SymbolTable> = module.symbols(&layout, &subject.memory).ok()?.into();
        bytes += symbols.bytes();
        if bytes > MOST_NAME_BYTES {
            return None;
        }
        let (text, init_text) = (module.text.clone(), module.init_text.clone());
        Some(Arc::new(ModuleNames { name: module.name.clone(), text, init_text, symbols }))
    };
    modules.iter().take(MOST_NAMED).filter_map(names).collect()
}

fn lists<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    layout: &ModuleLayout,
) -> Result<Vec<Listed>, Unreadable> {
    let symbol = |name| subject.symbol(name);
    let offset = |structure, path| subject.offset(structure, path);
    let own = subject.listed(subject.running.map.gva(layout.head), layout.list.into())?;
    let mut lists = vec![Listed { name: "the list of modules", modules: own.into_iter().collect() }];
    // struct kset *module_kset, kernel/params.c; struct module_kobject, include/linux/module.h
    if let (Some(kset), Some(head), Some(node), Some(object), Some(module)) = (
        symbol("module_kset"),
        offset("kset", "list"),
        offset("kobject", "entry"),
        offset("module_kobject", "kobj"),
        offset("module_kobject", "mod"),
    ) {
        let kset = subject.pointer(kset)?;
        let mut modules = BTreeSet::new();
        for found in subject.listed(kset.add(head), node)? {
            // What is built in has none.
            let module = subject.pointer(around(found, object).add(module))?;
            modules.extend(Some(module).filter(|at| at.0 != 0));
        }
        lists.push(Listed { name: SHOWN, modules });
    }
    // struct mod_tree_root, kernel/module/tree_lookup.c
    if let (Some(root), Some(trees), Some(node), Some(module)) = (
        symbol("mod_tree"),
        offset("mod_tree_root", "root.tree"),
        offset("mod_tree_node", "node.node"),
        offset("mod_tree_node", "mod"),
    ) {
        let mut modules = BTreeSet::new();
        for found in tree(&subject.memory, root.add(trees))? {
            modules.insert(subject.pointer(around(found, node).add(module))?);
        }
        lists.push(Listed { name: "the tree by which addresses are looked up", modules });
    }
    if lists.len() == 1 {
        return Err(Unreadable::Unknown("other lists of modules"));
    }
    Ok(lists)
}
