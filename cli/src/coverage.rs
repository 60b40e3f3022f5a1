//! `vmm coverage`: which functions of a kernel run, from early boot to the end.

use crate::args::{Coverage, CoverageFormat, Format, word};
use crate::choice::{Choosing, Chosen};
use crate::exit_codes;
use crate::file;
use crate::guest_files::Files;
use crate::host::{self, Inside};
use crate::json::json;
use crate::lcov::{self, Probed};
use crate::output::{FunctionText, GuestNames, Out, PrefixTable, end, say_armed};
use crate::record::{Address, End, Function, FunctionCount, Header, KernelIdentity, Prefix};
use crate::requests::traced;
use crate::run::{self, Machine, Ran, SessionKernel};
use crate::say::{self, note, say, standard_error};
use crate::scan_policy::ScanPolicy;
use crate::splats::SplatPolicy;
use crate::symbol_file::KernelSource;
use crate::target::{self, Serving, Target};
use crate::unarmed;
use crate::wall_clock;
use anyhow::{Context, Result};
use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::lines::LineTable;
use probe_engine::linux::names::ModuleNames;
use probe_engine::probe::place::Place;
use probe_engine::request::ProbeRequest;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use vmm::events::Event;
use vmm::guest::Optimize;
use vmm::probe::Probe;
use vmm::session::{ProbeReport, ProbeState, Sink};

pub(crate) fn main(args: &Coverage) -> Result<ExitCode> {
    run::share_terminal(&args.guest, args.shown().is_some());
    let choosing = Choosing::begin(&args.guest);
    let mut files = Files::read(&args.guest)?;
    file::refuse_an_input(args.output.as_deref(), files.read_from(&args.guest))?;
    let target = match target::resolved(&args.guest)? {
        Some(target) => target,
        None => {
            let source = files.source(&args.guest.symbols);
            let kernel = source.kernel(&files.image)?;
            target::can_work(&files, &kernel)?;
            let lines = match args.format {
                Some(CoverageFormat::Lcov) => Some(lines(&source, &kernel)?),
                _ => None,
            };
            let all = ["*".parse()?];
            let patterns = if args.patterns.is_empty() { &all } else { &args.patterns[..] };
            let mut probes = traced(patterns, &kernel)?;
            let identity = KernelIdentity::of(&kernel);
            let kernel = target::booted(&args.guest, kernel, &mut files)?;
            let scope = target::scope(&args.guest, &kernel, true)?;
            for ProbeRequest { plan, .. } in &mut probes {
                (plan.once, plan.scope) = (true, scope);
            }
            // A detour stays where it is after the first hit.
            let serving = Serving {
                optimize: Optimize::Off,
                fall_back: false,
                allow_pending: false,
                sampling: None,
                from_command: false,
                paused: false,
            };
            Target {
                probes,
                scope,
                kernel,
                identity,
                symbols: None,
                lines,
                unwind: None,
                serving,
                order: None,
                guard: None,
                scans: ScanPolicy::default(),
                splats: SplatPolicy::default(),
            }
        }
    };
    let code = match choosing.chosen()? {
        Chosen::Emulated(begun) => {
            let (format, output) = (args.format.map(|format| word(&format)), args.output.as_deref());
            let inside =
                Inside { verb: "coverage", format, output, assisted: None, keeping: None, control: None };
            host::run_emulated(begun, &args.guest, &files, &target, inside)
        }
        Chosen::Kvm(here) => {
            let shown = args.shown().filter(|_| !args.is_table_only());
            let plain = match shown {
                Some(CoverageFormat::Text) => Some(Format::Text),
                Some(CoverageFormat::Json) => Some(Format::Json),
                Some(CoverageFormat::Lcov) | None => None,
            };
            let is_lcov = shown == Some(CoverageFormat::Lcov);
            let places = run::places(args.output.as_deref(), plain)?;
            let tracefile = is_lcov.then(run::reserved_standard_output).transpose()?;
            let mut calls =
                FirstCalls { header: run::header(&args.guest, &files, &target), events: Vec::new() };
            let patterns = unarmed::patterns(&target.probes);
            let (late, image) = (target.is_late(), std::mem::take(&mut files.image));
            let Target { kernel, probes, lines, unwind, serving, .. } = target;
            let entries: Vec<Gva> = probes.iter().map(|asked| entry(&asked.place)).collect();
            let probes = probes.into_iter().map(|asked| Probe::of_plan(asked.place, asked.plan));
            let kernel = SessionKernel {
                image,
                landmarks: kernel,
                names: false,
                unwind,
                serving,
                late,
                splats: false,
                order: None,
                guard: None,
                before_splats: false,
                stops_at_splats: false,
            };
            let machine = Machine {
                guest: &args.guest,
                files: &files,
                kernel,
                host: &here,
                has_splatted: std::sync::Arc::default(),
                asked: None,
                dropped: None,
                control: None,
            };
            let ran = run::session(machine, probes.collect(), &mut calls)?;
            // Each batch is in order; a vCPU may have been interrupted between taking the time and noting it down.
            calls.events.sort_by_key(|call| call.nanos);
            let mut loss = None;
            let mut lost = |error| {
                say(format_args!("the functions that ran could not be written: {error}"));
                loss = Some(error);
            };
            for (out, format) in places {
                let mut out = BufWriter::new(out);
                let written = calls.write(&mut out, format, &ran);
                written.and_then(|()| out.flush()).unwrap_or_else(&mut lost);
            }
            if let Some((out, lines)) = tracefile.zip(lines) {
                write_lcov(out, &ran.report.probes, &entries, &lines).unwrap_or_else(&mut lost);
            }
            if args.is_table_only() || !say::is_quiet() {
                // Nobody may be there to read it.
                let mut table = PrefixTable::default();
                prefixes(&ran.report.probes).into_iter().for_each(|row| table.push(row));
                let _ = standard_error().write_all(table.to_string().as_bytes());
            }
            // None of them is in a module.
            let asked = run::Asked { patterns, gates: &[], ..run::Asked::default() };
            let code = run::exit_code(&ran, &asked, &GuestNames::default());
            Ok(exit_codes::with_loss(code, loss.as_ref()))
        }
    }?;
    run::note_recording(&args.guest, args.output.as_deref());
    Ok(code)
}

/// The source of the kernel's functions.
fn lines(source: &KernelSource, kernel: &Kernel) -> Result<LineTable> {
    let debug = source.debug_info(kernel);
    let lines = debug.lines()?.context(
        "--format lcov takes debugging information, and the kernel's is not known: name its vmlinux with --symbols",
    )?;
    Ok(lines.line_table())
}

/// Writes all functions that were probed as a tracefile of lcov.
fn write_lcov(out: Out<'_>, probes: &[ProbeReport], entries: &[Gva], lines: &LineTable) -> io::Result<()> {
    let armed = probes.iter().zip(entries).filter(|(probe, _)| was_armed(probe));
    let functions =
        armed.map(|(probe, entry)| Probed { name: &probe.name, entry: *entry, has_run: probe.hits > 0 });
    let mut out = BufWriter::new(out);
    let left_out = lcov::write(&mut out, functions, lines)?;
    out.flush()?;
    if left_out > 0 {
        note(format_args!("the source of {left_out} functions is not known: lcov gets none of them"));
    }
    Ok(())
}

/// Where a probed function begins, as linked.
fn entry(place: &Place) -> Gva {
    match place {
        Place::Kernel { info, .. } => info.function.start,
        // Only functions of the kernel itself are traced.
        Place::Module { .. } | Place::Watch(_) => Gva(0),
    }
}

/// The first calls, as they come in.
struct FirstCalls {
    header: Header,
    events: Vec<Event>,
}

/// The end of the run as JSON.
#[derive(Serialize)]
struct JsonEnd {
    #[serde(flatten)]
    end: End,
    #[serde(flatten)]
    count: FunctionCount,
}

impl Sink for FirstCalls {
    fn started(&mut self) {
        self.header.wall_ns = wall_clock::now_outside();
    }

    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        self.events.extend_from_slice(events);
        Ok(())
    }

    fn names(&mut self, slide: u64, _: &[Arc<ModuleNames>]) {
        self.header.slide = Some(Address(slide));
    }

    fn armed(&mut self, probes: &[ProbeReport], stopped: Duration) {
        say_armed(probes, stopped);
    }
}

impl FirstCalls {
    /// Writes the functions that ran in order of their first calls, and as JSON the table too.
    fn write(&self, out: &mut impl Write, format: Format, ran: &Ran) -> io::Result<()> {
        let report = &ran.report;
        if format == Format::Json {
            json(out, &self.header)?;
        }
        for event in &self.events {
            let probe = report.probes.get(event.probe.0 as usize);
            let function = Function {
                time_ns: event.nanos,
                guest_ns: event.guest_nanos,
                vcpu: event.vcpu as u32,
                function: probe.map_or_else(String::new, |probe| probe.name.clone()),
                address: Address(event.rip.0),
            };
            match format {
                Format::Text => writeln!(out, "{}", FunctionText(&function))?,
                Format::Json => json(out, &function)?,
            }
        }
        if format == Format::Json {
            let mut count = FunctionCount::default();
            for prefix in prefixes(&report.probes) {
                json(out, &prefix)?;
                count += prefix.count;
            }
            json(out, &JsonEnd { end: end(report, ran.exit_code(), Duration::ZERO), count })?;
        }
        Ok(())
    }
}

/// Whether its function was seen at some time.
fn was_armed(probe: &ProbeReport) -> bool {
    !matches!(probe.state, ProbeState::Waiting | ProbeState::Disabled | ProbeState::Refused(_))
}

/// How many functions ran by the prefixes of their names, most of them first.
fn prefixes(probes: &[ProbeReport]) -> Vec<Prefix> {
    let mut rows = BTreeMap::<&str, FunctionCount>::new();
    for probe in probes {
        let was_armed = was_armed(probe);
        let one = FunctionCount {
            ran: usize::from(probe.hits > 0),
            armed: usize::from(was_armed),
            unarmed: usize::from(!was_armed),
        };
        *rows.entry(prefix(&probe.name)).or_default() += one;
    }
    let row = |(prefix, count): (&str, FunctionCount)| Prefix { prefix: prefix.to_owned(), count };
    let mut rows: Vec<_> = rows.into_iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.count.ran, row.count.armed)));
    rows
}

/// The first word of a function's name: `vfs` of `__vfs_getxattr`.
pub(crate) fn prefix(name: &str) -> &str {
    let word = name.trim_start_matches('_').split(['_', '.', '#']).next();
    word.filter(|word| !word.is_empty()).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::probe::table::ProbeId;
    use vmm::session::Missed;

    fn report(name: &str, hits: u64, state: ProbeState) -> ProbeReport {
        ProbeReport {
            id: ProbeId(0),
            name: name.to_owned(),
            kind: vmm::session::ProbeKind::Instruction,
            module: None,
            enabled: true,
            address: Gva(0),
            hits,
            outside: 0,
            missed: Missed::default(),
            outstanding: 0,
            trapped: None,
            places: Vec::new(),
            has_stood: true,
            state,
        }
    }

    #[test]
    fn the_prefix_is_the_first_word() {
        for (name, expected) in [
            ("vfs_read", "vfs"),
            ("__vfs_getxattr", "vfs"),
            ("__x64_sys_read", "x64"),
            ("schedule", "schedule"),
            ("show#2", "show"),
            ("memcmp.part.0", "memcmp"),
            ("__", "__"),
        ] {
            assert_eq!(prefix(name), expected, "{name}");
        }
    }

    #[test]
    fn prefixes_of_which_most_ran_come_first() {
        let spent = || ProbeState::Spent(Gva(0));
        let probes = [
            report("a_one", 0, ProbeState::Armed(Gva(0))),
            report("b_one", 1, spent()),
            report("__b_two", 1, ProbeState::Gone(Gva(0))),
            report("b_three", 0, ProbeState::Waiting),
            report("c", 1, spent()),
        ];
        let rows: Vec<_> = prefixes(&probes)
            .into_iter()
            .map(|Prefix { prefix, count: FunctionCount { ran, armed, unarmed } }| {
                (prefix, ran, armed, unarmed)
            })
            .collect();
        let expected = [("b", 2, 2, 1), ("c", 1, 1, 0), ("a", 0, 1, 0)];
        assert_eq!(
            rows,
            expected.map(|(prefix, ran, armed, unarmed)| (prefix.to_owned(), ran, armed, unarmed))
        );
    }
}
