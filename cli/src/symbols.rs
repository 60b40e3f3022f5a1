//! `vmm symbols`: what can be probed.

use crate::args::Symbols;
use crate::target::{kernel_path, read, read_kernel};
use anyhow::{Context, Result, bail};
use probe_engine::linux::glob::Glob;
use probe_engine::probe::place::in_kernel;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

pub(crate) fn main(args: &Symbols) -> Result<ExitCode> {
    let path = kernel_path(args.kernel.as_deref())?;
    let kernel = read_kernel(&path, &read(&path)?, &args.symbols)?;
    let pattern = args.pattern.as_deref().unwrap_or("*");
    let glob = Glob::new(pattern).with_context(|| format!("`{pattern}` cannot be used as a pattern"))?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut found = false;
    for symbol in kernel.symbols().matching(&glob) {
        found = true;
        let line = match in_kernel(symbol.at, &kernel) {
            Ok(_) => writeln!(out, "{} {}", symbol.at, symbol.name),
            Err(reason) if args.all => writeln!(out, "{} {}: {reason}", symbol.at, symbol.name),
            Err(_) => Ok(()),
        };
        // Whoever reads has seen enough.
        if line.is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let _ = out.flush();
    if !found {
        let nearest = kernel.symbols().nearest(pattern, 3).join("`, `");
        bail!("no function matches `{pattern}`; the nearest names are `{nearest}`");
    }
    Ok(ExitCode::SUCCESS)
}
