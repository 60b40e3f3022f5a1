//! From what a user asks for to places at link-time addresses, before the guest runs: a typo costs no boot.

use super::place::{Place, ProbedText, SiteInfo, Unprobeable, in_kernel};
use super::spec::{Location, ProbeSpec, SYSTEM_CALL};
use crate::addr::Gva;
use crate::linux::ftrace_site::FTRACE_NOP;
use crate::linux::glob::Glob;
use crate::linux::kernel::Kernel;
use crate::linux::modules::{Module, ModuleError, ModuleLayout};
use crate::linux::nearest::suggestion;
use crate::linux::patched::PatchedText;
use crate::linux::symbols::SymbolTable;
use crate::linux::symbols::named::NotOne;
use crate::linux::syscalls::{NoSystemCall, SystemCalls};
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;
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

mod line;

pub use line::resolve_in_source;

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
    /// Several functions share the name, and it is not said which.
    #[error("in {owner}, {which}")]
    NotOne {
        /// The kernel or a module.
        owner: String,
        /// Which there are.
        which: NotOne,
    },
    /// No such system call.
    #[error(transparent)]
    SystemCall(#[from] NoSystemCall),
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
    /// A line, and nothing is known of the source.
    #[error("`{0}` is a line of the source, which takes debugging information")]
    NeedsSource(String),
    /// A function without source.
    #[error("from which file `{0}` is, the debugging information does not say")]
    NoSource(String),
    /// No such file.
    #[error("the kernel has no code of a file `{0}`")]
    NoFile(String),
    /// The name does not say which file.
    #[error("the kernel has code of {} files `{name}`: write `{}`", .files.len(), .files.join("` or `"))]
    SeveralFiles {
        /// What was written.
        name: String,
        /// Which there are.
        files: Vec<String>,
    },
    /// A line without code.
    #[error("the kernel has no code of line {line} of {file}{}", next(*.nearest))]
    NoCode {
        /// The file.
        file: String,
        /// The line.
        line: u32,
        /// The nearest that has some.
        nearest: Option<u32>,
    },
    /// A line of which a function has no code.
    #[error(
        "`{spec}` is a line of {file}, counted from the start of the file, of which `{function}` has no code{}",
        next(*.nearest)
    )]
    NotOfFunction {
        /// What was written.
        spec: String,
        /// The function.
        function: String,
        /// Its file.
        file: String,
        /// The nearest line of which it has some.
        nearest: Option<u32>,
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

fn next(nearest: Option<u32>) -> String {
    nearest.map(|line| format!("; the nearest line with code is {line}")).unwrap_or_default()
}

/// Finds what `spec` means in `kernel`.
///
/// # Errors
/// [`ResolveError`], a sentence for the user.
pub fn resolve(spec: &ProbeSpec, kernel: &Kernel) -> Result<Resolved, ResolveError> {
    match spec.location() {
        Location::Glob(glob) => resolve_pattern(spec, glob, kernel),
        Location::Address(at) => one(name_of(*at, kernel), *at, kernel),
        Location::Symbol { name, offset } => {
            let at = resolve_symbol(name, *offset, kernel)?;
            one(with_offset(name, *offset), at, kernel)
        }
        Location::Module { module, symbol, offset } => {
            let place =
                Place::Module { module: module.replace('-', "_"), symbol: symbol.clone(), offset: *offset };
            Ok(Resolved { places: vec![place], refused: Vec::new() })
        }
        Location::SystemCall(name) => {
            let at = SystemCalls::of(kernel).find(name)?.handler.at;
            one(format!("{SYSTEM_CALL}:{name}"), at, kernel)
        }
        Location::Line { .. } => Err(ResolveError::NeedsSource(spec.to_string())),
    }
}

fn with_offset(name: &str, offset: u64) -> String {
    match offset {
        0 => name.to_owned(),
        _ => format!("{name}+{offset:#x}"),
    }
}

/// How a user can ask for what is at `at` by name.
fn name_of(at: Gva, kernel: &Kernel) -> String {
    let function = kernel.symbols().function_at(at);
    let named = function.and_then(|function| {
        let name = kernel.symbols().written(&function.symbol);
        Some(with_offset(&name, at.offset_from(function.symbol.at)?))
    });
    named.unwrap_or_else(|| at.to_string())
}

fn one(name: String, link: Gva, kernel: &Kernel) -> Result<Resolved, ResolveError> {
    match in_kernel(link, kernel) {
        Ok(info) => Ok(Resolved { places: vec![Place::Kernel { name, info }], refused: Vec::new() }),
        Err(reason) => Err(ResolveError::Unprobeable { name, reason }),
    }
}

fn resolve_symbol(name: &str, offset: u64, kernel: &Kernel) -> Result<Gva, ResolveError> {
    choose("the kernel", name, offset, kernel.symbols(), |at| kernel.function(at))
}

/// The place `offset` bytes into the function that `name` means.
fn choose(
    owner: &str,
    name: &str,
    offset: u64,
    symbols: &SymbolTable,
    function: impl Fn(Gva) -> Option<Range<Gva>>,
) -> Result<Gva, ResolveError> {
    /// How many names are offered for one that is unknown.
    const SUGGESTIONS: usize = 3;
    let start = match symbols.find(name, |symbol| symbol.is_text()) {
        Ok(symbol) => symbol.at,
        Err(NotOne { name, found, .. }) if found.is_empty() => {
            let nearest = symbols.nearest(&name, SUGGESTIONS).into_iter().map(str::to_owned).collect();
            return Err(ResolveError::Unknown { owner: owner.to_owned(), name, nearest });
        }
        Err(which) => return Err(ResolveError::NotOne { owner: owner.to_owned(), which }),
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
        let name = kernel.symbols().written(&symbol);
        match in_kernel(symbol.at, kernel) {
            Ok(info) => resolved.places.push(Place::Kernel { name, info }),
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
    ) -> Result<SiteInfo, InModuleError> {
        /// No function is longer; a symbol table that says so is wrong.
        const LONGEST: u64 = 1 << 20;
        let function = |at| self.symbols.function_at(at).map(|function| function.range());
        let owner = format!("the module `{}`", self.name);
        let at = choose(&owner, symbol, offset, &self.symbols, function)?;
        let range = function(at).ok_or(Unprobeable::NoFunction)?;
        let mut bytes = vec![0; range.end.offset_from(range.start).unwrap_or(0).min(LONGEST) as usize];
        memory.read(range.start, &mut bytes).map_err(|_| InModuleError::Text)?;
        for site in self.ftrace.range(range.clone()) {
            // Whatever ftrace is just making of it, a breakpoint of its own included, it is as long as its nop.
            let offset = site.offset_from(range.start).unwrap_or(0) as usize;
            bytes.iter_mut().skip(offset).zip(FTRACE_NOP).for_each(|(byte, nop)| *byte = nop);
        }
        let text = ProbedText { range, bytes: &bytes, patched: &self.patched, knows_locks: false };
        Ok(text.info(at, |at, _| self.ftrace.contains(&at))?)
    }
}

#[cfg(test)]
mod tests;
