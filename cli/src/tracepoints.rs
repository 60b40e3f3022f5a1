//! `vmm list --kind tracepoints`: the tracepoints of a kernel.

use crate::args::{Format, List};
use crate::json::json;
use crate::listing::list;
use anyhow::{Context, Result, bail};
use probe_engine::linux::btf::{Btf, c};
use probe_engine::linux::event_fields::{EventField, event_fields};
use probe_engine::linux::glob::Glob;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::nearest::suggestion;
use probe_engine::linux::tracepoints::{Tracepoint, Tracepoints};
use probe_engine::probe::place::in_kernel;
use serde::Serialize;

/// What is said of one as JSON.
#[derive(Serialize)]
struct TracepointRow<'a> {
    system: &'a str,
    name: &'a str,
    /// At which the probe stands.
    function: &'a str,
    /// Why it cannot be probed.
    refused: Option<String>,
    /// What a probe there has, as C.
    arguments: Option<Vec<String>>,
    /// What the guest's own event has.
    fields: Option<Vec<FieldRow>>,
}

/// A field of the guest's own event.
#[derive(Serialize)]
struct FieldRow {
    /// As C.
    declaration: String,
    /// Why a probe cannot read it.
    refused: Option<String>,
}

/// Lists those that match `pattern`: names, or systems and names.
pub(crate) fn show(args: &List, kernel: &Kernel, pattern: &str) -> Result<()> {
    let btf = kernel.btf().ok();
    let all = Tracepoints::of(kernel, btf.as_ref())?;
    let glob = |text: &str| Glob::new(text).with_context(|| format!("`{text}` cannot be used as a pattern"));
    let (system, name) = match pattern.split_once([':', '/']) {
        Some((system, name)) => (Some(glob(system)?), name),
        None => (None, pattern),
    };
    let name_glob = glob(name)?;
    let matching: Vec<_> = all.matching(system.as_ref(), &name_glob).collect();
    if matching.is_empty() {
        bail!("no tracepoint matches `{pattern}`{}", suggestion(&all.nearest(name, 3)));
    }
    let types = args.verbose.then(|| btf.as_ref().context("the kernel's types are not known")).transpose()?;
    list(|mut out| {
        for tracepoint in &matching {
            let row = TracepointRow::of(tracepoint, kernel, types);
            match args.format {
                Format::Json => json(&mut out, &row)?,
                Format::Text => {
                    let arguments = row.arguments.map(|all| format!(" ({})", all.join(", ")));
                    let refused = row.refused.map(|reason| format!(": {reason}"));
                    let [arguments, refused] = [arguments, refused].map(Option::unwrap_or_default);
                    writeln!(out, "{}{arguments}{refused}", tracepoint.written())?;
                    for FieldRow { declaration, refused } in row.fields.into_iter().flatten() {
                        let refused = refused.map(|reason| format!(": {reason}")).unwrap_or_default();
                        writeln!(out, "        {declaration}{refused}")?;
                    }
                }
            }
        }
        Ok(())
    })
}

impl<'a> TracepointRow<'a> {
    fn of(tracepoint: &'a Tracepoint, kernel: &Kernel, btf: Option<&Btf<'_>>) -> Self {
        let Tracepoint { system, name, function, .. } = tracepoint;
        let refused = match kernel.symbol(function) {
            Some(at) => in_kernel(at, kernel).err().map(|reason| reason.to_string()),
            None => Some("the kernel has several functions of its name".to_owned()),
        };
        Self {
            system,
            name,
            function,
            refused,
            arguments: btf.and_then(|btf| arguments(tracepoint, btf)),
            fields: btf.and_then(|btf| fields(tracepoint, kernel, btf)),
        }
    }
}

/// What it is called with, but for what tells whose call it is.
fn arguments(tracepoint: &Tracepoint, btf: &Btf<'_>) -> Option<Vec<String>> {
    let parameters = btf.function(&tracepoint.function)?.prototype.parameters();
    Some(parameters.skip(1).map(|(name, ty)| c::declaration(btf, ty, name)).collect())
}

/// The fields of its own event, if it has one.
fn fields(tracepoint: &Tracepoint, kernel: &Kernel, btf: &Btf<'_>) -> Option<Vec<FieldRow>> {
    let fields = event_fields(kernel, btf, tracepoint.class.as_ref()?);
    let row = |field: EventField| FieldRow {
        declaration: c::declaration(btf, field.ty, &field.name),
        refused: field.source.err().map(|reason| reason.to_string()),
    };
    Some(fields.into_iter().map(row).collect())
}
