//! `vmm list`: what can be probed.

use crate::args::{Format, List, ListKind};
use crate::file::read;
use crate::listing::list;
use crate::output::{by_kind, json};
use crate::say::{note, standard_error};
use crate::source_listing;
use crate::symbol_file::KernelSource;
use crate::{program_listing, system_calls, tracepoints};
use anyhow::{Context, Result, bail};
use probe_engine::linux::btf::{Btf, c};
use probe_engine::linux::glob::Glob;
use probe_engine::linux::kernel::{Kernel, UNPACK};
use probe_engine::linux::symbols::{Symbol, is_changed};
use probe_engine::probe::place::in_kernel;
use serde::Serialize;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub(crate) fn main(args: &List) -> Result<ExitCode> {
    if args.kind == ListKind::User {
        program_listing::show(args, args.pattern.as_deref())?;
        return Ok(ExitCode::SUCCESS);
    }
    let files = args.kernel.which.files()?;
    let mut timing = Timing::start();
    let file = read(&files.image)?;
    timing.done("read");
    let source = KernelSource::of(&files, &args.symbols);
    let kernel = source.kernel_with(&file, &mut |step| timing.done(step))?;
    if let Some(name) = &args.lines {
        source_listing::show(args, name, &kernel, &source)?;
        return Ok(ExitCode::SUCCESS);
    }
    let btf = kernel.btf();
    timing.done("types");
    if args.timing {
        // Nobody may be there to read it.
        let _ = write!(standard_error(), "{timing}");
    }
    let btf = args.verbose.then(|| btf.context("cannot say what functions take")).transpose()?;
    let pattern = args.pattern.as_deref().unwrap_or("*");
    if args.kind == ListKind::Tracepoints {
        tracepoints::show(args, &kernel, pattern)?;
        return Ok(ExitCode::SUCCESS);
    }
    let glob = Glob::new(pattern).with_context(|| format!("`{pattern}` cannot be used as a pattern"))?;
    if args.kind == ListKind::Syscalls {
        system_calls::show(args, &kernel, pattern, &glob)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (mut found, mut refused) = (0, Vec::new());
    list(|mut out| {
        for symbol in kernel.symbols().matching(&glob) {
            found += 1;
            let row = SymbolRow::of(&symbol, &kernel, btf.as_ref());
            refused.extend(row.refused.clone().map(|reason| (reason, row.name.clone())));
            let is_listed = match (args.kind, &row.refused) {
                (ListKind::Refused, refused) => refused.is_some(),
                (_, refused) => refused.is_none() || args.all,
            };
            match args.format {
                _ if !is_listed => {}
                Format::Text => writeln!(out, "{row}")?,
                Format::Json => json(&mut out, &row)?,
            }
        }
        Ok(())
    })?;
    if !refused.is_empty() && args.format == Format::Text {
        note(format_args!("{} of {found} functions that match `{pattern}` cannot be probed:", refused.len()));
        let reasons = refused.iter().map(|(reason, name)| (reason.as_str(), name.as_str()));
        by_kind(reasons).iter().for_each(note);
        if !args.all && args.kind == ListKind::Functions {
            note("--all lists these functions, too");
        }
    }
    if found > 0 && refused.is_empty() && args.kind == ListKind::Refused {
        note(format_args!("all that matches `{pattern}` can be probed"));
    }
    if found == 0 {
        match kernel.symbols().nearest(pattern, 3).as_slice() {
            [] => bail!(
                "no function matches `{pattern}`, and none has a like name; `vmm list '*PART*'` lists functions by a pattern"
            ),
            nearest => {
                bail!("no function matches `{pattern}`; the nearest names are `{}`", nearest.join("`, `"))
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is said of one symbol.
#[derive(Debug, Serialize)]
struct SymbolRow {
    /// As linked.
    address: String,
    /// By which a probe can be put there.
    name: String,
    /// Up to the next symbol, in bytes; unknown of the last.
    size: Option<u64>,
    /// The first symbol there, where that is another.
    alias_of: Option<String>,
    prototype: Option<String>,
    /// Why it cannot be probed.
    refused: Option<String>,
}

impl SymbolRow {
    fn of(symbol: &Symbol<'_>, kernel: &Kernel, btf: Option<&Btf<'_>>) -> Self {
        let function = kernel.symbols().function_at(symbol.at);
        let first = function.map(|function| function.symbol).filter(|first| first.name != symbol.name);
        let refused = in_kernel(symbol.at, kernel).err();
        Self {
            address: symbol.at.to_string(),
            name: kernel.symbols().written(symbol),
            size: function.and_then(|function| function.end.offset_from(symbol.at)),
            alias_of: first.map(|first| kernel.symbols().written(&first)),
            prototype: btf.filter(|_| refused.is_none()).and_then(|btf| prototype(btf, symbol.name)),
            refused: refused.map(|reason| reason.to_string()),
        }
    }
}

impl fmt::Display for SymbolRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size {
            Some(size) => write!(f, "{} {size:>6} {}", self.address, self.name)?,
            None => write!(f, "{} {:>6} {}", self.address, "?", self.name)?,
        }
        if let Some(prototype) = &self.prototype {
            write!(f, " {prototype}")?;
        }
        if let Some(first) = &self.alias_of {
            write!(f, " (alias of {first})")?;
        }
        match &self.refused {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// What the function of that name takes and returns, as far as it is known.
fn prototype(btf: &Btf<'_>, name: &str) -> Option<String> {
    if is_changed(name) {
        return Some("(parameters changed by the compiler)".to_owned());
    }
    let function = btf.function(name)?;
    let prototype = c::prototype(btf, function);
    Some(match function.others {
        0 => prototype,
        others => format!("{prototype} (one of {})", others + 1),
    })
}

/// What each step took.
struct Timing {
    last: Instant,
    steps: Vec<(&'static str, Duration)>,
}

impl Timing {
    fn start() -> Self {
        Self { last: Instant::now(), steps: Vec::new() }
    }

    fn done(&mut self, step: &'static str) {
        let now = Instant::now();
        self.steps.push((step, now - self.last));
        self.last = now;
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
        for (step, time) in &self.steps {
            writeln!(f, "{step:<14}{:>8.1} ms", milliseconds(*time))?;
        }
        let total: Duration = self.steps.iter().map(|(_, time)| *time).sum();
        write!(f, "{:<14}{:>8.1} ms", "total", milliseconds(total))?;
        match self.steps.iter().find(|(step, _)| *step == UNPACK) {
            Some((_, unpack)) => {
                writeln!(f, ", {:.2} times {UNPACK}", total.as_secs_f64() / unpack.as_secs_f64())
            }
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_what_is_known() {
        let row = |size, alias_of: Option<&str>, prototype: Option<&str>, refused: Option<&str>| SymbolRow {
            address: "0xffffffff81000000".to_owned(),
            name: "show#2".to_owned(),
            size,
            alias_of: alias_of.map(str::to_owned),
            prototype: prototype.map(str::to_owned),
            refused: refused.map(str::to_owned),
        };
        for (row, text) in [
            (row(Some(64), None, None, None), "     64 show#2"),
            (row(None, None, None, Some("no symbol covers it")), "      ? show#2: no symbol covers it"),
            (
                row(Some(7), Some("first"), Some("int (void)"), None),
                "      7 show#2 int (void) (alias of first)",
            ),
        ] {
            assert_eq!(row.to_string(), format!("0xffffffff81000000{text}"));
        }
        let json = serde_json::to_value(row(Some(64), None, None, None)).unwrap();
        assert_eq!((json["size"].as_u64(), json["alias_of"].is_null()), (Some(64), true));
    }
}
