//! `vmm scan`: the integrity of a kernel, by the memory that it runs in.

mod events;
mod guarded;
mod late_kernel;
mod made;
mod row;
mod sightings;

pub(crate) use guarded::GuardedScans;
pub(crate) use late_kernel::LateKernel;
pub(crate) use made::ScanLines;

use self::row::ScanRow;
use crate::args::{Scan as Args, ScanFormat};
use crate::detection::Source;
use crate::exit_codes;
use crate::file::read;
use crate::json::json;
use crate::listing::list;
use crate::record::KernelIdentity;
use crate::say::{note, say};
use crate::symbol_file::KernelSource;
use crate::wall_clock;
use anyhow::{Context, Result, bail};
use probe_engine::guest_text::Escaped;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::names::Names;
use probe_engine::linux::running::RunningKernel;
use probe_engine::scan::finding::Finding;
use probe_engine::scan::{Checked, Scan, Scanner, is_whole};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use vmm::dump::{Dump, layouts};

/// By which words a kernel in memory says which one it is.
const BANNER: &[u8] = b"Linux version ";
/// So many bytes of these are shown.
const LONGEST_BANNER: usize = 160;

/// So often is memory read that changes meanwhile.
const TRIES: u32 = 4;

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let is_listing = args.ps || args.modules || args.hooks || args.kallsyms;
    if is_listing && args.format == ScanFormat::Ocsf {
        bail!(
            "what is listed is no finding: --format ocsf goes with no --ps, --modules, --hooks or --kallsyms"
        );
    }
    let files = args.kernel.which.files()?;
    let kernel = KernelSource::of(&files, &args.symbols).kernel(&read(&files.image)?)?;
    let shown = args.memory.display();
    let memory = match process(args) {
        Some(pid) => layouts(pid).with_context(|| format!("cannot read the memory of process {pid}"))?,
        None => {
            vec![
                Dump::open(Path::new(&args.memory))
                    .with_context(|| format!("cannot read memory from {shown}"))?,
            ]
        }
    };
    let (memory, running, is_alone) =
        running(&kernel, memory).with_context(|| format!("cannot scan {shown}"))?;
    let mut scanner = Scanner::new(&kernel, &running)?;
    let scanned_at = wall_clock::now();
    let mut found = scanner.scan(&memory, memory.processors(), None);
    let is_live = process(args).is_some();
    for _ in 1..TRIES {
        // A list that changes while it is read may lead nowhere.
        if !is_live || found.checks.iter().all(|made| made.failure.is_none()) {
            break;
        }
        found = scanner.scan(&memory, memory.processors(), None);
    }
    if is_live && found.checks.iter().any(|made| !made.findings.is_empty()) {
        // What was changed while it was read is no finding: one that is there twice is.
        let again = scanner.scan(&memory, memory.processors(), None);
        let mut passed = 0;
        for (first, second) in found.checks.iter_mut().zip(&again.checks) {
            let before = first.findings.len();
            let is_there = |finding: &Finding| second.findings.iter().any(|again| again.is_still(finding));
            // Where not all are told, others may be.
            if first.untold == 0 && second.untold == 0 {
                first.findings.retain(is_there);
            }
            passed += before - first.findings.len();
        }
        if passed > 0 {
            note(format_args!(
                "{passed} findings were gone when the memory was read again, which a guest that runs may bring about"
            ));
        }
    }
    if is_listing {
        let rows = listed(args, &kernel, &running, &found);
        list(|out| rows.iter().try_for_each(|row| write_line(out, args.format, row)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines = ScanLines::of(&found, &kernel, &running, None);
    if args.format == ScanFormat::Ocsf {
        let source = Source {
            vmm: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: KernelIdentity::of(&kernel),
            wall_ns: scanned_at,
        };
        list(|out| events::write(out, &source, &lines))?;
        // A check that was not made is no finding.
        lines.checks.iter().filter(|check| check.has_failed()).for_each(say);
    } else {
        list(|out| {
            write_line(out, args.format, &ScanRow::kernel(kernel.release(), &running))?;
            lines.findings.iter().try_for_each(|line| write_line(out, args.format, line))?;
            lines.checks.iter().try_for_each(|line| write_line(out, args.format, line))
        })?;
    }
    Ok(exit_code(&found.checks, is_alone))
}

/// Writes `line` as text, or as an object.
fn write_line(
    mut out: &mut dyn Write,
    format: ScanFormat,
    line: &(impl Display + Serialize),
) -> io::Result<()> {
    match format {
        ScanFormat::Text => writeln!(out, "{line}"),
        ScanFormat::Json | ScanFormat::Ocsf => json(&mut out, line),
    }
}

/// What is listed instead of what was found.
fn listed(args: &Args, kernel: &Kernel, running: &RunningKernel, found: &Scan) -> Vec<ScanRow> {
    let names = Names { kernel: kernel.symbols(), slide: running.map.slide(), modules: &found.names };
    let mut rows = Vec::new();
    if args.ps {
        rows.extend(found.processes.iter().map(ScanRow::process));
    }
    if args.modules {
        rows.extend(found.modules.iter().map(ScanRow::module));
    }
    if args.hooks {
        rows.extend(found.hooks.iter().map(|hook| ScanRow::hook(hook, &names)));
    }
    if args.kallsyms {
        rows.extend(kernel.symbols().iter().map(|symbol| ScanRow::symbol(&symbol, running.map)));
    }
    rows
}

/// The process that is meant, if one is.
fn process(args: &Args) -> Option<u32> {
    args.memory.to_str()?.parse().ok()
}

/// Finds `kernel` in the first of these that has it, and says whether only one place seems to be it.
fn running(kernel: &Kernel, memory: Vec<Dump>) -> Result<(Dump, RunningKernel, bool)> {
    let mut banner = None;
    for memory in memory {
        let found = RunningKernel::find(kernel, &memory, &memory.ranges());
        let whole: Vec<_> =
            found.iter().filter(|running| is_whole(kernel, running, &memory)).copied().collect();
        match *whole.as_slice() {
            [running] => return Ok((memory, running, true)),
            [first, ..] => {
                let places: Vec<_> = whole.iter().map(|running| running.map.text().1.to_string()).collect();
                note(format_args!(
                    "the kernel seems to run at {}; the first is looked at, and somebody may have made the others",
                    places.join(" and at ")
                ));
                return Ok((memory, first, false));
            }
            [] => banner = banner.or_else(|| memory.words(BANNER, LONGEST_BANNER)),
        }
    }
    let named = kernel.release().unwrap_or("without a name");
    match banner {
        Some(banner) => bail!(
            "the kernel {named} does not run in this memory, which says \"{}\"; --kernel names the guest's",
            Escaped(&banner)
        ),
        None => bail!("neither the kernel {named} nor another Linux runs in this memory"),
    }
}

/// `is_alone`: there was no other that seemed to be the kernel.
fn exit_code(checks: &[Checked], is_alone: bool) -> ExitCode {
    if checks.iter().any(|made| !made.findings.is_empty() || made.untold > 0) {
        ExitCode::from(exit_codes::DIED)
    } else if !is_alone || checks.iter().any(|made| made.failure.is_some()) {
        ExitCode::from(exit_codes::INFRASTRUCTURE)
    } else {
        ExitCode::SUCCESS
    }
}
