//! From what a user asks for to places at link-time addresses, before the guest runs: a typo costs no boot.

use super::place::{FTRACE_NOP, FunctionText, Place, Spot, Unprobeable, in_kernel};
use super::spec::{Location, ProbeSpec};
use crate::addr::Gva;
use crate::linux::glob::Glob;
use crate::linux::kernel::Kernel;
use crate::linux::modules::{Module, ModuleError, ModuleLayout};
use crate::linux::patched::PatchedText;
use crate::linux::symbols::SymbolTable;
use crate::memory::{PhysMemory, VirtMemory};
use std::collections::BTreeSet;
use std::ops::Range;

/// A match of a pattern that cannot be probed, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// `symbol` or `symbol+0x10`.
    pub name: String,
    /// The reason.
    pub reason: Unprobeable,
}

/// What a specification came to.
#[derive(Debug, Default)]
pub struct Resolved {
    /// What can be armed, in the order asked for.
    pub places: Vec<Place>,
    /// Matches of a pattern that cannot.
    pub refused: Vec<Refused>,
}

/// A specification that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// No such symbol.
    #[error("{owner} has no function `{name}`{}", suggestion(.nearest))]
    Unknown {
        /// The kernel or a module.
        owner: String,
        /// What was asked for.
        name: String,
        /// Names like it.
        nearest: Vec<String>,
    },
    /// Several functions share the name.
    #[error("{owner} has several functions `{name}`: choose one by its address, {}", list(.addresses))]
    Ambiguous {
        /// The kernel or a module.
        owner: String,
        /// What was asked for.
        name: String,
        /// Where they are.
        addresses: Vec<Gva>,
    },
    /// The offset leads out of the function.
    #[error("`{name}` is {size:#x} bytes long, the offset {offset:#x} is behind it")]
    Behind {
        /// The function.
        name: String,
        /// Its length.
        size: u64,
        /// What was asked for.
        offset: u64,
    },
    /// The pattern matches nothing.
    #[error("no function matches `{0}`")]
    NoMatch(String),
    /// The pattern matches only what cannot be probed.
    #[error(
        "none of the {count} functions that match `{pattern}` can be probed; the first is `{name}`: {reason}"
    )]
    AllRefused {
        /// The pattern.
        pattern: String,
        /// How many match.
        count: usize,
        /// The first of them.
        name: String,
        /// Its reason.
        reason: Unprobeable,
    },
    /// The one place asked for cannot be probed.
    #[error("`{name}` cannot be probed: {reason}")]
    Unprobeable {
        /// The place.
        name: String,
        /// Why.
        reason: Unprobeable,
    },
}

pub(super) fn suggestion(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        [one] => format!("; did you mean `{one}`?"),
        several => format!("; did you mean one of `{}`?", several.join("`, `")),
    }
}

pub(super) fn list(addresses: &[Gva]) -> String {
    addresses.iter().map(Gva::to_string).collect::<Vec<_>>().join(" or ")
}

/// Finds what `spec` means in `kernel`.
///
/// # Errors
/// [`ResolveError`], a sentence for the user.
pub fn resolve(spec: &ProbeSpec, kernel: &Kernel) -> Result<Resolved, ResolveError> {
    match spec.location() {
        Location::Glob(glob) => resolve_pattern(spec, glob, kernel),
        Location::Address(at) => one(kernel.symbols().place(*at).to_string(), *at, kernel),
        Location::Symbol { name, offset } => {
            let at = resolve_symbol(name, *offset, kernel)?;
            let place = match offset {
                0 => name.clone(),
                _ => format!("{name}+{offset:#x}"),
            };
            one(place, at, kernel)
        }
        Location::Module { module, symbol, offset } => {
            let place =
                Place::Module { module: module.replace('-', "_"), symbol: symbol.clone(), offset: *offset };
            Ok(Resolved { places: vec![place], refused: Vec::new() })
        }
    }
}

fn one(name: String, link: Gva, kernel: &Kernel) -> Result<Resolved, ResolveError> {
    match in_kernel(link, kernel) {
        Ok(spot) => Ok(Resolved { places: vec![Place::Kernel { name, spot }], refused: Vec::new() }),
        Err(reason) => Err(ResolveError::Unprobeable { name, reason }),
    }
}

fn resolve_symbol(name: &str, offset: u64, kernel: &Kernel) -> Result<Gva, ResolveError> {
    let found = kernel.symbols().lookup(name).filter(|s| s.is_text()).map(|s| s.at).collect();
    let nearest = |count| kernel.symbols().nearest(name, count).into_iter().map(str::to_owned).collect();
    choose("the kernel", name, offset, found, |at| kernel.function(at), nearest)
}

/// The place `offset` bytes into the only one of the functions at `found`.
fn choose(
    owner: &str,
    name: &str,
    offset: u64,
    mut found: Vec<Gva>,
    function: impl Fn(Gva) -> Option<Range<Gva>>,
    nearest: impl Fn(usize) -> Vec<String>,
) -> Result<Gva, ResolveError> {
    /// How many names are offered for one that is unknown.
    const SUGGESTIONS: usize = 3;
    found.dedup();
    let start = match *found {
        [] => {
            let nearest = nearest(SUGGESTIONS);
            return Err(ResolveError::Unknown { owner: owner.to_owned(), name: name.to_owned(), nearest });
        }
        [only] => only,
        _ => {
            let owner = owner.to_owned();
            return Err(ResolveError::Ambiguous { owner, name: name.to_owned(), addresses: found });
        }
    };
    let end = function(start).map_or(start, |function| function.end);
    match end.offset_from(start.add(offset)) {
        Some(1..) => Ok(start.add(offset)),
        _ => {
            let size = end.offset_from(start).unwrap_or(0);
            Err(ResolveError::Behind { name: name.to_owned(), size, offset })
        }
    }
}

fn resolve_pattern(spec: &ProbeSpec, glob: &Glob, kernel: &Kernel) -> Result<Resolved, ResolveError> {
    let mut resolved = Resolved::default();
    let mut last = None;
    for symbol in kernel.symbols().matching(glob) {
        // Padding before a function is no function, and an alias is the same one.
        if symbol.is_padding() || last == Some(symbol.at) {
            continue;
        }
        last = Some(symbol.at);
        let name = symbol.name.to_owned();
        match in_kernel(symbol.at, kernel) {
            Ok(spot) => resolved.places.push(Place::Kernel { name, spot }),
            Err(reason) => resolved.refused.push(Refused { name, reason }),
        }
    }
    match (resolved.places.first(), resolved.refused.first()) {
        (None, None) => Err(ResolveError::NoMatch(spec.to_string())),
        (None, Some(first)) => Err(ResolveError::AllRefused {
            pattern: spec.to_string(),
            count: resolved.refused.len(),
            name: first.name.clone(),
            reason: first.reason.clone(),
        }),
        (Some(_), _) => Ok(resolved),
    }
}

/// A place in a module that cannot be probed.
#[derive(Debug, thiserror::Error)]
pub enum InModuleError {
    /// No such function, or several.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// There is no way.
    #[error(transparent)]
    Unprobeable(#[from] Unprobeable),
    /// Its text cannot be read.
    #[error("its text cannot be read")]
    Text,
}

/// What has to be known about a module that the guest has loaded, to find places in it.
#[derive(Debug)]
pub struct LoadedModule {
    name: String,
    symbols: SymbolTable,
    patched: PatchedText,
    /// Where ftrace's sites are (GVA).
    ftrace: BTreeSet<Gva>,
}

impl LoadedModule {
    /// Reads the tables of `module` through `memory` of the guest's kernel.
    ///
    /// # Errors
    /// [`ModuleError`] when one of them cannot be read.
    pub fn read<M: PhysMemory + ?Sized>(
        module: &Module,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
    ) -> Result<Self, ModuleError> {
        let symbols = module.symbols(layout, memory)?;
        let patched = module.patched(layout, memory, &symbols)?;
        let ftrace = module.ftrace_sites(layout, memory)?.into_iter().collect();
        Ok(Self { name: module.name.clone(), symbols, patched, ftrace })
    }

    /// Finds `symbol` and what is `offset` bytes behind it.
    ///
    /// # Errors
    /// [`InModuleError`], a sentence for the user.
    pub fn place<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        symbol: &str,
        offset: u64,
    ) -> Result<Spot, InModuleError> {
        /// No function is longer; a symbol table that says so is wrong.
        const LONGEST: u64 = 1 << 20;
        let function = |at| self.symbols.function_at(at).map(|function| function.range());
        let nearest = |count| self.symbols.nearest(symbol, count).into_iter().map(str::to_owned).collect();
        let found = self.symbols.lookup(symbol).filter(|s| s.is_text()).map(|s| s.at).collect();
        let owner = format!("the module `{}`", self.name);
        let at = choose(&owner, symbol, offset, found, function, nearest)?;
        let range = function(at).ok_or(Unprobeable::NoFunction)?;
        let mut bytes = vec![0; range.end.offset_from(range.start).unwrap_or(0).min(LONGEST) as usize];
        memory.read(range.start, &mut bytes).map_err(|_| InModuleError::Text)?;
        for site in self.ftrace.range(range.clone()) {
            // Whatever ftrace is just making of it, a breakpoint of its own included, it is as long as its nop.
            let offset = site.offset_from(range.start).unwrap_or(0) as usize;
            bytes.iter_mut().skip(offset).zip(FTRACE_NOP).for_each(|(byte, nop)| *byte = nop);
        }
        let text = FunctionText { range, bytes: &bytes, patched: &self.patched, knows_locks: false };
        Ok(text.spot(at, |at, _| self.ftrace.contains(&at))?)
    }
}
