//! From what a user asks for to probes at link-time addresses, before the guest runs: a typo costs no boot.
//!
//! What is decided here from the file is decided again from the live text when a probe is armed: the guest's own
//! alternatives may have moved an instruction's bounds by then.

use super::spec::{Location, ProbeSpec};
use crate::addr::Gva;
use crate::insn::decode::{BoundaryError, instruction_at};
use crate::insn::plan::{Refusal, plan, skip_endbr};
use crate::linux::glob::Glob;
use crate::linux::kernel::Kernel;
use crate::linux::patched::Why;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A probe that can be armed, as far as the file tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// `symbol` or `symbol+0x10`, as the user knows it.
    pub name: String,
    /// The link-time address that was asked for. A probe on a function's entry may stand a few bytes further on.
    pub link: Gva,
    /// The function around it, at link-time addresses.
    pub function: Range<Gva>,
}

/// A probe that cannot be, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// `symbol` or `symbol+0x10`.
    pub name: String,
    /// The reason.
    pub reason: Unprobeable,
}

/// Why an address cannot be probed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unprobeable {
    /// Data, or nothing.
    #[error("it is not in the kernel's text")]
    NotText,
    /// No symbol covers it, so that no instruction can be found for certain.
    #[error("no symbol covers it")]
    NoFunction,
    /// Not the start of an instruction.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// The guest's own code that must not trap, or that the guest rewrites.
    #[error("{0}")]
    LeftAlone(Why),
    /// There is no way past the instruction.
    #[error(transparent)]
    Instruction(#[from] Refusal),
}

/// What a specification came to.
#[derive(Debug, Default)]
pub struct Resolved {
    /// What can be armed, in the order asked for.
    pub probes: Vec<Probe>,
    /// Matches of a pattern that cannot.
    pub refused: Vec<Refused>,
}

/// A specification that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// No such symbol.
    #[error("the kernel has no function `{name}`{}", suggestion(.nearest))]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names like it.
        nearest: Vec<String>,
    },
    /// Several functions share the name.
    #[error("the kernel has several functions `{name}`: choose one by its address, {}", list(.addresses))]
    Ambiguous {
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

fn suggestion(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        [one] => format!("; did you mean `{one}`?"),
        several => format!("; did you mean one of `{}`?", several.join("`, `")),
    }
}

fn list(addresses: &[Gva]) -> String {
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
    }
}

fn one(name: String, link: Gva, kernel: &Kernel) -> Result<Resolved, ResolveError> {
    match check(link, kernel) {
        Ok(function) => Ok(Resolved { probes: vec![Probe { name, link, function }], refused: Vec::new() }),
        Err(reason) => Err(ResolveError::Unprobeable { name, reason }),
    }
}

fn resolve_symbol(name: &str, offset: u64, kernel: &Kernel) -> Result<Gva, ResolveError> {
    /// How many names are offered for one that is unknown.
    const SUGGESTIONS: usize = 3;
    let mut addresses: Vec<Gva> =
        kernel.symbols().lookup(name).filter(|s| s.is_text()).map(|s| s.at).collect();
    addresses.dedup();
    let start = match *addresses {
        [] => {
            let nearest = kernel.symbols().nearest(name, SUGGESTIONS);
            let nearest = nearest.into_iter().map(str::to_owned).collect();
            return Err(ResolveError::Unknown { name: name.to_owned(), nearest });
        }
        [only] => only,
        _ => return Err(ResolveError::Ambiguous { name: name.to_owned(), addresses }),
    };
    let end = kernel.function(start).map_or(start, |function| function.end);
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
        if symbol.name.starts_with("__pfx_") || symbol.name.starts_with("__cfi_") || last == Some(symbol.at) {
            continue;
        }
        last = Some(symbol.at);
        let name = symbol.name.to_owned();
        match check(symbol.at, kernel) {
            Ok(function) => resolved.probes.push(Probe { name, link: symbol.at, function }),
            Err(reason) => resolved.refused.push(Refused { name, reason }),
        }
    }
    match (resolved.probes.first(), resolved.refused.first()) {
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

/// The function around the instruction at `link`, if that can be probed as far as the file tells.
///
/// # Errors
/// [`Unprobeable`], the reason.
pub fn check(link: Gva, kernel: &Kernel) -> Result<Range<Gva>, Unprobeable> {
    let image = kernel.image();
    if !image.is_text(link) {
        return Err(Unprobeable::NotText);
    }
    let function = kernel.function(link).ok_or(Unprobeable::NoFunction)?;
    let length = function.end.offset_from(function.start).unwrap_or(0) as usize;
    let text = image.bytes_at(function.start, length).ok_or(Unprobeable::NotText)?;
    let at = if link == function.start { skip_endbr(text, link) } else { link };
    let start = instruction_at(text, function.start, at)?;
    let end = at.add(start.instruction.len() as u64);
    if let Some(why) = kernel.patched().covers(at..end).filter(|why| !is_settled_late(*why)) {
        return Err(Unprobeable::LeftAlone(why));
    }
    let offset = at.offset_from(function.start).unwrap_or(0) as usize;
    let bytes = text.get(offset..).unwrap_or_default();
    plan(bytes, at, start.previous.as_ref())?;
    Ok(function)
}

/// Whether a site that the guest rewrites may still be probed: it does so once, before sites like it are armed
/// from the live text. Alternatives are not among them: what is one instruction in the file may be several then.
fn is_settled_late(why: Why) -> bool {
    why.is_final_after_boot() && !matches!(why, Why::Alternative | Why::Paravirt)
}
