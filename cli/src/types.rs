//! `vmm types`: what the kernel's types are, as C.

use crate::args::Types;
use crate::file::read;
use crate::listing::list;
use crate::symbol_file::KernelSource;
use anyhow::{Context, Result, bail};
use probe_engine::linux::btf::{Btf, Kind, Type, c};
use probe_engine::linux::glob::Glob;
use std::process::ExitCode;

pub(crate) fn main(args: &Types) -> Result<ExitCode> {
    let files = args.kernel.which.files()?;
    let kernel = KernelSource::of(&files, &args.symbols).kernel(&read(&files.image)?)?;
    let kernel_name = files.image.display();
    let btf = kernel.btf().with_context(|| format!("cannot show types of the kernel {kernel_name}"))?;
    let shown: Vec<String> =
        asked(&args.names)?.iter().map(|asked| show(&btf, asked)).collect::<Result<_>>()?;
    list(|out| writeln!(out, "{}", shown.join("\n\n")))?;
    Ok(ExitCode::SUCCESS)
}

/// What sort of types is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Any,
    Struct,
    Union,
    Enum,
    Typedef,
}

impl Sort {
    fn new(word: &str) -> Option<Self> {
        match word {
            "struct" => Some(Self::Struct),
            "union" => Some(Self::Union),
            "enum" => Some(Self::Enum),
            "typedef" => Some(Self::Typedef),
            _ => None,
        }
    }

    fn has(self, ty: Type<'_>) -> bool {
        match (self, ty.kind) {
            (Self::Any, _) => true,
            (Self::Struct, Kind::Structure(structure)) => !structure.is_union,
            (Self::Union, Kind::Structure(structure)) => structure.is_union,
            (Self::Struct, Kind::Forward { is_union }) => !is_union,
            (Self::Union, Kind::Forward { is_union }) => is_union,
            (Self::Enum, kind) => matches!(kind, Kind::Enumeration(_)),
            (Self::Typedef, kind) => matches!(kind, Kind::Typedef(_)),
            _ => false,
        }
    }
}

/// The names that were asked for: `struct open_how gfp_t` are two, however they were quoted.
fn asked(names: &[String]) -> Result<Vec<(Sort, &str)>> {
    let mut found = Vec::new();
    let mut words = names.iter().flat_map(|name| name.split_whitespace());
    while let Some(word) = words.next() {
        match Sort::new(word) {
            Some(sort) => found.push((sort, words.next().with_context(|| format!("`{word}` of what?"))?)),
            None => found.push((Sort::Any, word)),
        }
    }
    if found.is_empty() {
        bail!("no type is named");
    }
    Ok(found)
}

/// The definitions of all types of that name, or a list of those that match a pattern.
fn show(btf: &Btf<'_>, (sort, name): &(Sort, &str)) -> Result<String> {
    let (shown, between): (Vec<String>, _) = if Glob::is_pattern(name) {
        let glob = Glob::new(name).with_context(|| format!("`{name}` cannot be used as a pattern"))?;
        let named = btf.types().filter(|ty| !ty.name().is_empty() && glob.matches(ty.name()));
        let mut found: Vec<_> =
            named.filter(|ty| sort.has(*ty)).map(|ty| (ty.name(), c::title(btf, ty))).collect();
        found.sort_unstable();
        found.dedup();
        (found.into_iter().map(|(_, title)| title).collect(), "\n")
    } else {
        let found = btf.named(name).filter(|ty| sort.has(*ty));
        (found.map(|ty| c::definition(btf, ty)).collect(), "\n\n")
    };
    if !shown.is_empty() {
        return Ok(shown.join(between));
    }
    match btf.nearest(name, 3) {
        nearest if nearest.is_empty() => {
            bail!(
                "the kernel has no type `{name}`, and none of a like name; `vmm types '*PART*'` lists types by a pattern"
            )
        }
        nearest => bail!("the kernel has no type `{name}`; the nearest names are `{}`", nearest.join("`, `")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_a_sort() {
        let asked = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            asked(&names).map(|found| found.iter().map(|(sort, name)| (*sort, (*name).to_owned())).collect())
        };
        let expected = vec![(Sort::Struct, "open_how".to_owned()), (Sort::Any, "gfp_t".to_owned())];
        for names in
            [&["struct", "open_how", "gfp_t"][..], &["struct open_how", "gfp_t"], &["struct open_how gfp_t"]]
        {
            let found: Vec<_> = asked(names).unwrap();
            assert_eq!(found, expected);
        }
        for names in [&["struct"][..], &["gfp_t", "enum"], &[" "]] {
            let found: Result<Vec<_>> = asked(names);
            assert!(found.is_err(), "{names:?}");
        }
    }
}
