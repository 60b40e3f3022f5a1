//! The fields that filters and histograms name.

use super::ast::{Definition, DefinitionKind, FilterExpr, Spanned};
use super::error::{Error, Mistake, nearest};

/// What a filter calls the value that a function returns.
pub(super) const RETURN_VALUE: &str = "$retval";

/// What every event has.
const COMMON: [&str; 12] = [
    "common_type",
    "common_flags",
    "common_preempt_count",
    "common_pid",
    "common_cpu",
    "common_timestamp",
    "common_stacktrace",
    "comm",
    "COMM",
    "cpu",
    "CPU",
    "__probe_ip",
];

/// Checks that every field that the filter and the histogram of `definition` name is there: one of `names`, which are
/// those of all arguments that it has in the end, or one that every event has; in the filter also one of `parameters`.
///
/// # Errors
/// The first [`Mistake::UnknownField`].
pub fn check_fields(definition: &Definition, names: &[&str], parameters: &[&str]) -> Result<(), Error> {
    if let Some(filter) = &definition.filter {
        check_filter(definition.kind, &filter.value, &[names, parameters].concat())?;
    }
    let hist = definition.hist.iter().map(|hist| &hist.value);
    let fields = hist.flat_map(|hist| hist.keys.iter().map(|key| &key.field).chain(&hist.values));
    check(definition.kind, fields.collect(), names)
}

/// As [`check_fields`], of a filter that was written elsewhere.
pub(super) fn check_filter(kind: DefinitionKind, filter: &FilterExpr, names: &[&str]) -> Result<(), Error> {
    let mut fields = Vec::new();
    collect(filter, &mut fields);
    check(kind, fields, names)
}

fn check(kind: DefinitionKind, fields: Vec<&Spanned<String>>, names: &[&str]) -> Result<(), Error> {
    let own: &[&str] = match kind {
        DefinitionKind::Return => &["__probe_func", "__probe_ret_ip"],
        DefinitionKind::Instruction | DefinitionKind::Entry | DefinitionKind::Tracepoint => &[],
    };
    // The instruction of a return is called otherwise.
    let common = COMMON.iter().filter(|name| kind != DefinitionKind::Return || **name != "__probe_ip");
    let known: Vec<&str> = names.iter().chain(common).chain(own).copied().collect();
    match fields.into_iter().find(|field| !known.contains(&field.value.as_str())) {
        None => Ok(()),
        Some(field) if field.value == RETURN_VALUE && kind != DefinitionKind::Return => {
            Err(Error { span: field.span.clone(), mistake: Mistake::NotAReturn })
        }
        Some(field) => {
            let name = field.value.clone();
            let nearest = nearest(known, &name);
            let fields = names.iter().copied().collect();
            let mistake = Mistake::UnknownField { name, nearest, fields };
            Err(Error { span: field.span.clone(), mistake })
        }
    }
}

/// All fields of a filter, which is as deep as [`parse`](super::parse()) lets it be.
fn collect<'a>(filter: &'a FilterExpr, fields: &mut Vec<&'a Spanned<String>>) {
    match filter {
        FilterExpr::And(left, right) | FilterExpr::Or(left, right) => {
            collect(left, fields);
            collect(right, fields);
        }
        FilterExpr::Not(inner) => collect(inner, fields),
        FilterExpr::Compare { field, .. } => fields.push(field),
    }
}
