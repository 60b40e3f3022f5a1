//! `vmm scan`: the integrity of a kernel, by the memory that it runs in.

mod line;

use self::line::ScanLine;
use crate::args::{Format, Scan};
use crate::exit_codes;
use crate::file::read;
use crate::json::json;
use crate::listing::list;
use crate::say::note;
use crate::symbol_file::KernelSource;
use anyhow::{Context, Result, bail};
use probe_engine::guest_text::Escaped;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::names::Names;
use probe_engine::linux::running::RunningKernel;
use probe_engine::scan::{Checked, is_whole, scan};
use std::path::Path;
use std::process::ExitCode;
use vmm::dump::{Dump, layouts};

/// By which words a kernel in memory says which one it is.
const BANNER: &[u8] = b"Linux version ";
/// So many bytes of these are shown.
const LONGEST_BANNER: usize = 160;

pub(crate) fn main(args: &Scan) -> Result<ExitCode> {
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
    let (memory, running) = running(&kernel, memory).with_context(|| format!("cannot scan {shown}"))?;
    let mut found = scan(&kernel, &running, &memory)?;
    if process(args).is_some() && found.checks.iter().any(|made| !made.findings.is_empty()) {
        // What was changed while it was read is no finding: one that is there twice is.
        let again = scan(&kernel, &running, &memory)?;
        let mut passed = 0;
        for (first, second) in found.checks.iter_mut().zip(&again.checks) {
            let before = first.findings.len();
            first.findings.retain(|finding| second.findings.contains(finding));
            passed += before - first.findings.len();
        }
        if passed > 0 {
            note(format_args!(
                "{passed} findings were gone when the memory was read again, which a guest that runs may bring about"
            ));
        }
    }
    let names = Names { kernel: kernel.symbols(), slide: running.map.slide(), modules: &found.names };
    let lines: Vec<ScanLine> = if args.ps || args.modules || args.hooks || args.kallsyms {
        let mut lines = Vec::new();
        if args.ps {
            lines.extend(found.processes.iter().map(ScanLine::process));
        }
        if args.modules {
            lines.extend(found.modules.iter().map(ScanLine::module));
        }
        if args.hooks {
            lines.extend(found.hooks.iter().map(|hook| ScanLine::hook(hook, &names)));
        }
        if args.kallsyms {
            lines.extend(kernel.symbols().iter().map(|symbol| ScanLine::symbol(&symbol, running.map)));
        }
        lines
    } else {
        let kernel = ScanLine::kernel(kernel.release(), &running);
        let checks = found.checks.iter().flat_map(|made| {
            let findings = made.findings.iter().map(|finding| ScanLine::finding(made.check, finding, &names));
            findings.chain([ScanLine::check(made)]).collect::<Vec<_>>()
        });
        std::iter::once(kernel).chain(checks).collect()
    };
    list(|mut out| {
        for line in &lines {
            match args.format {
                Format::Text => writeln!(out, "{line}")?,
                Format::Json => json(&mut out, line)?,
            }
        }
        Ok(())
    })?;
    Ok(exit_code(&found.checks))
}

/// The process that is meant, if one is.
fn process(args: &Scan) -> Option<u32> {
    args.memory.to_str()?.parse().ok()
}

/// Finds `kernel` in the first of these that has it.
fn running(kernel: &Kernel, memory: Vec<Dump>) -> Result<(Dump, RunningKernel)> {
    let mut banner = None;
    for memory in memory {
        let found = RunningKernel::find(kernel, &memory, &memory.ranges());
        let whole: Vec<_> =
            found.iter().filter(|running| is_whole(kernel, running, &memory)).copied().collect();
        match *whole.as_slice() {
            [running] => return Ok((memory, running)),
            [first, ..] => {
                let places: Vec<_> = whole.iter().map(|running| running.map.text().1.to_string()).collect();
                note(format_args!(
                    "the kernel seems to run at {}; the first is looked at, and somebody may have made the others",
                    places.join(" and at ")
                ));
                return Ok((memory, first));
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

fn exit_code(checks: &[Checked]) -> ExitCode {
    if checks.iter().any(|made| !made.findings.is_empty()) {
        ExitCode::from(exit_codes::DIED)
    } else if checks.iter().any(|made| made.failure.is_some()) {
        ExitCode::from(exit_codes::INFRASTRUCTURE)
    } else {
        ExitCode::SUCCESS
    }
}
