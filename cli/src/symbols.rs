//! `vmm symbols`: what can be probed.

use crate::args::Symbols;
use crate::target::{kernel_path, read, read_kernel_with};
use anyhow::{Context, Result, bail};
use probe_engine::linux::btf::{Btf, c};
use probe_engine::linux::glob::Glob;
use probe_engine::linux::kernel::UNPACK;
use probe_engine::probe::place::in_kernel;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub(crate) fn main(args: &Symbols) -> Result<ExitCode> {
    let path = kernel_path(args.kernel.as_deref())?;
    let mut timing = Timing::start();
    let file = read(&path)?;
    timing.done("read");
    let kernel = read_kernel_with(&path, &file, &args.symbols, &mut |step| timing.done(step))?;
    let btf = kernel.btf();
    timing.done("types");
    if args.timing {
        // Nobody may be there to read it.
        let _ = write!(io::stderr().lock(), "{timing}");
    }
    let btf = args.proto.then(|| btf.context("cannot say what functions take")).transpose()?;
    let pattern = args.pattern.as_deref().unwrap_or("*");
    let glob = Glob::new(pattern).with_context(|| format!("`{pattern}` cannot be used as a pattern"))?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut found = false;
    for symbol in kernel.symbols().matching(&glob) {
        found = true;
        let line = match in_kernel(symbol.at, &kernel) {
            Ok(_) => {
                let prototype = btf.as_ref().and_then(|btf| prototype(btf, symbol.name));
                let gap = if prototype.is_some() { " " } else { "" };
                writeln!(out, "{} {}{gap}{}", symbol.at, symbol.name, prototype.unwrap_or_default())
            }
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

/// What the function of that name takes and returns, as far as it is known.
fn prototype(btf: &Btf<'_>, name: &str) -> Option<String> {
    if [".isra.", ".constprop.", ".part."].iter().any(|mark| name.contains(mark)) {
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
