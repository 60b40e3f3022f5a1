//! From a source line to places: `do_sys_openat2:1420`, `fs/open.c:1420`.

use std::collections::BTreeSet;

use super::super::place::{Place, in_kernel};
use super::super::spec::{LineOf, Location, ProbeSpec};
use super::{Refused, ResolveError, Resolved, name_of, resolve, resolve_symbol};
use crate::linux::dwarf::{LinePlace, SourceMap};
use crate::linux::kernel::Kernel;

/// As [`resolve`], with the source of `kernel` at hand, by which lines have places.
///
/// # Errors
/// [`ResolveError`], a sentence for the user.
pub fn resolve_in_source(
    spec: &ProbeSpec,
    kernel: &Kernel,
    source: &SourceMap,
) -> Result<Resolved, ResolveError> {
    let Location::Line { of, line } = spec.location() else { return resolve(spec, kernel) };
    let (file, within) = match of {
        LineOf::File(name) => (one_file(name, *line, source)?, None),
        LineOf::Function(name) => {
            let entry = resolve_symbol(name, 0, kernel)?;
            let file = source.file_of(entry).ok_or_else(|| ResolveError::NoSource(name.clone()))?;
            (file, kernel.function(entry))
        }
    };
    let places = source.places(file, *line, within.as_ref(), kernel.symbols());
    if places.is_empty() {
        return Err(no_code(spec, of, *line, file, &source.lines_with_code(file, within.as_ref())));
    }
    let mut resolved = Resolved::default();
    for place in places {
        let name = name(&place, kernel);
        match in_kernel(place.at, kernel) {
            Ok(info) => resolved.places.push(Place::Kernel { name, info }),
            Err(reason) => resolved.refused.push(Refused { name, reason }),
        }
    }
    match (resolved.places.is_empty(), resolved.refused.first()) {
        (true, Some(Refused { name, reason })) => {
            Err(ResolveError::Unprobeable { name: name.clone(), reason: reason.clone() })
        }
        _ => Ok(resolved),
    }
}

/// The only file of that name with code of the line, or the only one of that name.
fn one_file<'s>(name: &str, line: u32, source: &'s SourceMap) -> Result<&'s str, ResolveError> {
    let mut files = source.files_called(name);
    if files.len() > 1 {
        let has_line = |file: &&str| source.lines_with_code(file, None).contains(&line);
        let with_code: Vec<&str> = files.iter().copied().filter(has_line).collect();
        if with_code.len() == 1 {
            files = with_code;
        }
    }
    match files.as_slice() {
        [file] => Ok(file),
        [] => Err(ResolveError::NoFile(name.to_owned())),
        several => Err(ResolveError::SeveralFiles {
            name: name.to_owned(),
            files: several.iter().map(|file| (*file).to_owned()).collect(),
        }),
    }
}

/// What is said of a line without code: which `lines` have some.
fn no_code(spec: &ProbeSpec, of: &LineOf, line: u32, file: &str, lines: &BTreeSet<u32>) -> ResolveError {
    let nearest = lines.range(line..).next().or(lines.range(..line).next_back()).copied();
    match of {
        LineOf::File(_) => ResolveError::NoCode { file: file.to_owned(), line, nearest },
        LineOf::Function(function) => ResolveError::NotOfFunction {
            spec: spec.to_string(),
            function: function.clone(),
            file: file.to_owned(),
            nearest,
        },
    }
}

/// `do_filp_open`, or where in it, from which line, and of which inlined function.
fn name(place: &LinePlace, kernel: &Kernel) -> String {
    let name = name_of(place.at, kernel);
    let LinePlace { file, line, inlined, .. } = place;
    let is_entry = kernel.function(place.at).is_some_and(|function| function.start == place.at);
    match inlined {
        // A function's entry is known by its name, and so are its parameters.
        None if is_entry => name,
        None => format!("{name} ({file}:{line})"),
        Some(function) => format!("{name} ({file}:{line}, {function} inlined)"),
    }
}
