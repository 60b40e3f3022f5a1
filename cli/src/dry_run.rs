//! `vmm run --dry-run`: what would be armed, and how, from the kernel's file alone.

use crate::args::{Format, HostChoice, Optimize, Run};
use crate::assisted;
use crate::file;
use crate::listing::list;
use crate::output::{FEW, by_kind, json};
use crate::requests::requests;
use crate::symbol_file::KernelSource;
use anyhow::Result;
use probe_engine::detour::verdict::{FunctionText, verdict};
use probe_engine::detour::work::Work;
use probe_engine::insn::plan::StepPlan;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::thunks::Thunks;
use probe_engine::probe::place::{self, Place, SiteInfo};
use probe_engine::probe::resolve::Refused;
use probe_engine::request::{Found, KernelConstraints, ProbeRequest, Style};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use vmm::session::RegisterError;
use vmm::trap::Delivery;

pub(crate) fn main(args: &Run) -> Result<ExitCode> {
    assisted::check(&args.assisted)?;
    let files = args.guest.kernel.which.files()?;
    let source = KernelSource::of(&files, &args.guest.symbols);
    let kernel = source.kernel(&file::read(&files.image)?)?;
    let found = requests(args, &kernel, &source.debug_info(&kernel))?;
    let watches = found.probes.iter().filter(|asked| matches!(asked.place, Place::Watch(_))).count();
    // Which host it will be is not known without a look at this machine.
    let most = match args.guest.place.host {
        HostChoice::Emulated => Delivery::Reflected.watches(),
        HostChoice::Auto | HostChoice::Kvm => Delivery::Intercepted.watches(),
    };
    if watches > most {
        return Err(RegisterError::TooManyWatches(most).into());
    }
    let (constraints, thunks) = (KernelConstraints::new(&kernel), Thunks::of(&kernel));
    let detours = Detours { optimize: args.arming.optimize, kernel: &kernel, constraints, thunks };
    let rows: Vec<ProbeRow<'_>> = found.probes.iter().map(|asked| ProbeRow::of(asked, &detours)).collect();
    let format = args.records.format.unwrap_or(Format::Text);
    list(|out| {
        print(out, format, &rows, &found)?;
        print_assisted(out, format, &assisted::said(&args.assisted, &found.probes))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What begins why no detour would serve a probe.
const NO_DETOUR: &str = "no detour: ";

/// What is said of one probe.
#[derive(Debug, Serialize)]
struct ProbeRow<'a> {
    r#type: &'static str,
    kind: char,
    probe: String,
    event: Option<&'a str>,
    /// As linked; unknown in a module.
    address: Option<String>,
    how: String,
    /// Whether a detour would serve it, or why not; nothing is known of modules.
    #[serde(skip_serializing_if = "Option::is_none")]
    detour: Option<String>,
    module: Option<&'a str>,
    fields: Vec<FieldRow<'a>>,
    conditions: &'a [String],
    /// What is to be known of the place.
    #[serde(skip_serializing_if = "Option::is_none")]
    remark: Option<&'a str>,
}

/// A value that is read.
#[derive(Debug, Serialize)]
struct FieldRow<'a> {
    name: &'a str,
    r#type: String,
    fetch: String,
}

/// A match of a pattern that is left out.
#[derive(Serialize)]
struct RefusedRow<'a> {
    r#type: &'static str,
    pattern: &'a str,
    function: &'a str,
    reason: String,
}

/// What is no probe: something that the guest's own kernel does for us.
#[derive(Serialize)]
struct AssistedRow<'a> {
    r#type: &'static str,
    /// As it is said.
    what: &'a str,
}

impl<'a> ProbeRow<'a> {
    fn of(asked: &'a ProbeRequest, detours: &Detours<'_>) -> Self {
        let mut row = Self {
            r#type: "probe",
            kind: match &asked.plan.tracepoint {
                Some(_) => 't',
                None if asked.returns() => 'r',
                None => 'p',
            },
            probe: asked.name(),
            event: match &asked.style {
                Style::Event(name) if *name != asked.place_name() => Some(name),
                Style::Event(_) | Style::Registers | Style::Call | Style::Graph => None,
            },
            address: None,
            how: String::new(),
            detour: None,
            module: None,
            fields: Vec::new(),
            conditions: &asked.written,
            remark: asked.remark.as_deref(),
        };
        row.fields.extend(asked.plan.capture.fields.iter().map(|field| FieldRow {
            name: &field.name,
            r#type: field.type_name(),
            fetch: field.source(asked.returns()),
        }));
        match &asked.place {
            Place::Kernel { info, .. } => {
                // In a program, that is where the kernel is.
                row.address = asked.plan.program.is_none().then(|| info.at.to_string());
                row.how = match place::plan_of(info, detours.kernel) {
                    Ok(_) if asked.plan.once => "put back".to_owned(),
                    Ok(StepPlan::Emulate(_)) => "emulate".to_owned(),
                    Ok(StepPlan::OutOfLine(_)) => "copy".to_owned(),
                    Err(reason) => format!("refused: {reason}"),
                };
                row.detour = Some(detours.of(asked, info));
            }
            Place::Module { module, .. } => {
                row.how = format!("pending (module {module})");
                row.module = Some(module);
            }
            Place::Watch(watch) => {
                row.kind = 'w';
                row.address = Some(watch.at.to_string());
                row.how = "debug register".to_owned();
            }
        }
        row
    }
}

/// Which probes would be served by detours.
struct Detours<'a> {
    optimize: Optimize,
    kernel: &'a Kernel,
    constraints: KernelConstraints<&'a Kernel>,
    thunks: Thunks,
}

impl Detours<'_> {
    /// `detour`, or why there would be none: because of what the probe does, or of where it is.
    fn of(&self, asked: &ProbeRequest, info: &SiteInfo) -> String {
        if self.optimize == Optimize::Off {
            return format!("{NO_DETOUR}--optimize=off");
        }
        let served = Work::of(0, &asked.plan).map_err(|reason| reason.to_string());
        match served.and_then(|_| self.moved_instructions(info)) {
            Ok(None) => "detour".to_owned(),
            Ok(Some(1)) => "detour: 1 instruction would be moved".to_owned(),
            Ok(Some(instructions)) => format!("detour: {instructions} instructions would be moved"),
            Err(reason) => format!("{NO_DETOUR}{reason}"),
        }
    }

    /// How many instructions a jump would take the place of, where they are not ftrace's own.
    fn moved_instructions(&self, info: &SiteInfo) -> Result<Option<usize>, String> {
        if info.is_entry() && info.ftrace.is_some() {
            return Ok(None);
        }
        let start = info.function.start;
        let bytes = self.kernel.image().bytes(&info.function).ok_or("it is not in the kernel's file")?;
        let constraints = &self.constraints.of(info).ok_or("it is not in the kernel's file")?;
        let function = FunctionText { start, bytes, slide: 0, constraints, thunks: &self.thunks };
        let region = verdict(&function).map_err(|reason| reason.to_string())?;
        Ok(Some(region.instructions().count()))
    }
}

fn print(mut out: &mut dyn Write, format: Format, rows: &[ProbeRow<'_>], found: &Found) -> io::Result<()> {
    match format {
        Format::Text => {
            out.write_all(table(rows).as_bytes())?;
            out.write_all(on_traps(rows).as_bytes())?;
            for (pattern, refused) in &found.refused {
                out.write_all(refusals(pattern, refused).as_bytes())?;
            }
            writeln!(out, "\nThis is what the kernel's file says: its live text decides again.")?;
        }
        Format::Json => {
            rows.iter().try_for_each(|row| json(&mut out, row))?;
            for (pattern, refused) in &found.refused {
                for Refused { name, reason } in refused {
                    let reason = reason.to_string();
                    json(&mut out, &RefusedRow { r#type: "refused", pattern, function: name, reason })?;
                }
            }
        }
    }
    Ok(())
}

/// What the guest's own kernel would do, which it can notice.
fn print_assisted(mut out: &mut dyn Write, format: Format, asked: &[String]) -> io::Result<()> {
    match format {
        Format::Text if asked.is_empty() => Ok(()),
        Format::Text => writeln!(out, "\nAssisted, which the guest can notice: {}", asked.join(", ")),
        Format::Json => {
            asked.iter().try_for_each(|what| json(&mut out, &AssistedRow { r#type: "assisted", what }))
        }
    }
}

fn table(rows: &[ProbeRow<'_>]) -> String {
    let names: Vec<String> = rows
        .iter()
        .map(|row| row.event.map_or_else(|| row.probe.clone(), |event| format!("{event}: {}", row.probe)))
        .collect();
    let width = names.iter().map(String::len).max().unwrap_or(0).max("probe".len());
    let mut table = format!("kind  {:width$}  {:18}  how\n", "probe", "address");
    for (row, name) in rows.iter().zip(names) {
        let detour = row.detour.as_ref().map(|detour| format!(" ({detour})")).unwrap_or_default();
        let address = row.address.as_deref().unwrap_or("-");
        let _ = writeln!(table, "{:4}  {name:width$}  {address:18}  {}{detour}", row.kind, row.how);
        for FieldRow { name, r#type, fetch } in &row.fields {
            let _ = writeln!(table, "        {name}: {type} = {fetch}");
        }
        for line in row.conditions.iter().map(String::as_str).chain(row.remark) {
            let _ = writeln!(table, "        {line}");
        }
    }
    table
}

/// Why functions cannot be probed, a line for each kind of reason.
pub(crate) fn kinds(refused: &[Refused]) -> Vec<String> {
    let reasons: Vec<String> = refused.iter().map(|Refused { reason, .. }| reason.to_string()).collect();
    by_kind(reasons.iter().map(String::as_str).zip(refused.iter().map(|refused| refused.name.as_str())))
}

/// How many of the probes no detour would serve, and why, where these are many.
fn on_traps(rows: &[ProbeRow<'_>]) -> String {
    let reason = |row: &'_ ProbeRow<'_>| row.detour.as_deref()?.strip_prefix(NO_DETOUR).map(str::to_owned);
    let reasons: Vec<(String, &str)> =
        rows.iter().filter_map(|row| Some((reason(row)?, row.probe.as_str()))).collect();
    if reasons.len() <= FEW {
        return String::new();
    }
    let lines = by_kind(reasons.iter().map(|(reason, name)| (reason.as_str(), *name)));
    format!("\n{} of {} probes would stand on traps\n{}\n", reasons.len(), rows.len(), lines.join("\n"))
}

/// The functions that match `pattern` and cannot be probed, by reason, the most frequent first.
fn refusals(pattern: &str, refused: &[Refused]) -> String {
    format!(
        "\n{pattern}: {} matching functions cannot be probed\n{}\n",
        refused.len(),
        kinds(refused).join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::left_alone::Why;
    use probe_engine::probe::place::Unprobeable;

    #[test]
    fn the_table_has_what_is_read_below_each_probe() {
        let conditions = ["if dfd == -100".to_owned()];
        let row = |kind, probe: &str| ProbeRow {
            r#type: "probe",
            kind,
            probe: probe.to_owned(),
            event: None,
            address: Some("0xffffffff81000000".to_owned()),
            how: "emulate".to_owned(),
            detour: None,
            module: None,
            fields: Vec::new(),
            conditions: &[],
            remark: None,
        };
        let dfd = FieldRow { name: "dfd", r#type: "s32".to_owned(), fetch: "%di".to_owned() };
        let pending = "pending (module dummy)".to_owned();
        let rows = [
            ProbeRow {
                event: Some("opens"),
                detour: Some("detour".to_owned()),
                fields: vec![dfd],
                conditions: &conditions,
                ..row('p', "openat2")
            },
            ProbeRow {
                how: pending,
                address: None,
                module: Some("dummy"),
                ..row('r', "dummy:dummy_xmit%return")
            },
            ProbeRow { how: "debug register".to_owned(), ..row('w', "jiffies:8:w") },
        ];
        assert_eq!(
            table(&rows),
            "kind  probe                    address             how\n\
             p     opens: openat2           0xffffffff81000000  emulate (detour)\n        \
                     dfd: s32 = %di\n        \
                     if dfd == -100\n\
             r     dummy:dummy_xmit%return  -                   pending (module dummy)\n\
             w     jiffies:8:w              0xffffffff81000000  debug register\n"
        );
        let json = serde_json::to_value(&rows[0]).unwrap();
        assert_eq!((&json["kind"], &json["fields"][0]["fetch"]), (&"p".into(), &"%di".into()));
    }

    #[test]
    fn refusals_come_by_reason() {
        let refused =
            |name: &str, why| Refused { name: name.to_owned(), reason: Unprobeable::LeftAlone(why) };
        let refused = [refused("a", Why::Entry), refused("b", Why::Noinstr), refused("c", Why::Noinstr)];
        let text = refusals("*", &refused);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "*: 3 matching functions cannot be probed");
        assert!(lines[2].ends_with(": b, c") && lines[3].ends_with(": a"), "{text}");
    }
}
