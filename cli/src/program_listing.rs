//! `vmm list --kind user`: what can be probed by its name in the file of a program.

use crate::args::{Format, List};
use crate::demangled::demangled;
use crate::file::read;
use crate::json::json;
use crate::listing::list;
use anyhow::{Context, Result, bail};
use probe_engine::guest_text::Escaped;
use probe_engine::linux::glob::Glob;
use probe_engine::linux::program_file::{self, ListedFunction, ListedTracepoint, Listing};
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// What is said of one as JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Row<'a> {
    Function {
        name: &'a str,
        /// As its source has it, where that is another.
        demangled: Option<String>,
        /// Bytes from the file's start.
        offset: u64,
        size: u64,
        refused: Option<&'static str>,
    },
    Usdt {
        provider: &'a str,
        name: &'a str,
        places: Vec<PlaceRow<'a>>,
    },
}

/// One of the places of a tracepoint.
#[derive(Serialize)]
struct PlaceRow<'a> {
    offset: u64,
    /// Where the arguments are, in the words of the file.
    arguments: &'a str,
}

/// Lists what is in the file that `written` names, with a `:` and a pattern behind it if not all is wanted.
pub(crate) fn show(args: &List, written: Option<&str>) -> Result<()> {
    let Some(written) = written else {
        bail!(
            "--kind user needs the path of a program: `vmm list --kind user /usr/bin/ls`, or `PATH:PATTERN`"
        );
    };
    let is_file = Path::new(written).exists();
    let (path, pattern) = match written.split_once(':') {
        Some((path, pattern)) if !is_file => (path, pattern),
        _ => (written, "*"),
    };
    let glob = Glob::new(pattern).with_context(|| format!("`{pattern}` cannot be used as a pattern"))?;
    let bytes = read(Path::new(path))?;
    let Listing { functions, tracepoints } =
        program_file::list(&bytes).with_context(|| format!("cannot list {path}"))?;
    let functions: Vec<_> = functions.iter().filter(|function| glob.matches(&function.name)).collect();
    let is_meant = |point: &&ListedTracepoint| {
        glob.matches(&point.name) || glob.matches(&format!("{}:{}", point.provider, point.name))
    };
    let tracepoints: Vec<_> = tracepoints.iter().filter(is_meant).collect();
    if functions.is_empty() && tracepoints.is_empty() {
        bail!(
            "{path} has no function and no tracepoint of its own that matches `{pattern}`; without symbols, a place is written as \
             an offset: `p {path}:0x1234`"
        );
    }
    list(|mut out| {
        let demangles = args.verbose || args.format == Format::Json;
        let rows = functions.iter().map(|function| Row::of(function, demangles));
        for row in rows.chain(tracepoints.iter().map(|tracepoint| Row::of_tracepoint(tracepoint))) {
            match args.format {
                Format::Json => json(&mut out, &row)?,
                Format::Text if args.verbose => writeln!(out, "{row:#}")?,
                Format::Text => writeln!(out, "{row}")?,
            }
        }
        Ok(())
    })
}

impl<'a> Row<'a> {
    fn of(function: &'a ListedFunction, demangles: bool) -> Self {
        let ListedFunction { name, offset, size, is_indirect } = function;
        let refused = is_indirect.then_some("it finds another function when the program is linked (IFUNC)");
        let demangled = if demangles { demangled(name) } else { None };
        Self::Function { name, demangled, offset: *offset, size: *size, refused }
    }

    fn of_tracepoint(tracepoint: &'a ListedTracepoint) -> Self {
        let ListedTracepoint { provider, name, places } = tracepoint;
        let place = |(offset, arguments): &'a (u64, String)| PlaceRow { offset: *offset, arguments };
        Self::Usdt { provider, name, places: places.iter().map(place).collect() }
    }
}

/// The file is another's. With `#`, what its source calls a function.
impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function { name, demangled, offset, size, refused } => {
                write!(f, "{offset:#010x} {size:>6} {}", Escaped(name.as_bytes()))?;
                if let Some(demangled) = demangled.as_ref().filter(|_| f.alternate()) {
                    write!(f, "  {}", Escaped(demangled.as_bytes()))?;
                }
                refused.iter().try_for_each(|reason| write!(f, ": {reason}"))
            }
            Self::Usdt { provider, name, places } => {
                let (provider, name) = (Escaped(provider.as_bytes()), Escaped(name.as_bytes()));
                for (n, PlaceRow { offset, arguments }) in places.iter().enumerate() {
                    let arguments = Escaped(arguments.as_bytes());
                    let end = if n == 0 { "" } else { "\n" };
                    write!(f, "{end}{offset:#010x}   usdt {provider}:{name} {arguments}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_line_for_each_place() {
        let function =
            ListedFunction { name: "a\u{1b}b".to_owned(), offset: 0x1234, size: 5, is_indirect: true };
        let shown = Row::of(&function, true).to_string();
        assert_eq!(
            shown,
            "0x00001234      5 a\\x1bb: it finds another function when the program is linked (IFUNC)"
        );
        let places = vec![(0x10, "8@%rdi".to_owned()), (0x20, String::new())];
        let tracepoint = ListedTracepoint { provider: "p".to_owned(), name: "n".to_owned(), places };
        let shown = Row::of_tracepoint(&tracepoint).to_string();
        assert_eq!(shown, "0x00000010   usdt p:n 8@%rdi\n0x00000020   usdt p:n ");
    }
}
