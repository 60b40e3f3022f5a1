//! `vmm list --lines`: the source of a function, and where in it probes can stand.

use crate::args::{Format, List};
use crate::listing::list;
use crate::output::json;
use crate::say::say;
use crate::symbol_file::KernelSource;
use anyhow::{Context, Result, bail};
use probe_engine::addr::Gva;
use probe_engine::guest_text::Escaped;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::dwarf::{LinePlace, SourceMap};
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::in_kernel;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines around a function's own that are shown with it, where only these have code between them.
const LONGEST: u32 = 10_000;

/// Lists the source of the function `name`.
pub(crate) fn show(args: &List, name: &str, kernel: &Kernel, source: &KernelSource) -> Result<()> {
    let debug = source.debug_info(kernel);
    let map = debug.lines()?.context(
        "--lines takes debugging information, and the kernel's is not known: name its vmlinux with --symbols",
    )?;
    let function = kernel.symbols().find(name, |symbol| symbol.is_text());
    let entry = function.map_err(|which| anyhow::anyhow!("in the kernel, {which}"))?.at;
    let file = map.file_of(entry).with_context(|| format!("from which file `{name}` is, is not known"))?;
    // Variables are for programs alone.
    let rows = rows(map, file, entry, kernel, (args.format == Format::Json).then_some(&debug))?;
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        bail!("no line of {file} has code of `{name}`");
    };
    let text = source_text(args, map, file, source);
    if text.is_none() {
        say(format_args!(
            "the source of {file} is not here: name the folder of the kernel's source with --source"
        ));
    }
    let text: Vec<&str> = text.as_deref().map(|text| text.lines().collect()).unwrap_or_default();
    let range = first.line..=last.line.min(first.line.saturating_add(LONGEST));
    list(|mut out| {
        if args.format == Format::Text {
            writeln!(out, "{file}")?;
        }
        for line in range {
            let text = text.get(line as usize - 1).copied();
            let mut places = rows.iter().filter(|row| row.line == line).peekable();
            if args.format == Format::Text && places.peek().is_none() && text.is_some() {
                writeln!(out, "{}", Listed { line, text, row: None })?;
            }
            for (index, row) in places.enumerate() {
                match args.format {
                    Format::Json => json(&mut out, &JsonRow { file, text, row })?,
                    Format::Text => {
                        let text = text.filter(|_| index == 0);
                        writeln!(out, "{}", Listed { line, text, row: Some(row) })?;
                    }
                }
            }
        }
        Ok(())
    })
}

/// A place of a line.
#[derive(Debug, Serialize)]
struct LineRow {
    line: u32,
    /// As linked.
    address: String,
    /// The function that the line is of, where it is inlined there.
    inlined: Option<String>,
    /// Why it cannot be probed.
    refused: Option<String>,
    /// The names of the variables that can be read there.
    variables: Vec<String>,
}

/// The same as JSON.
#[derive(Serialize)]
struct JsonRow<'a> {
    file: &'a str,
    text: Option<&'a str>,
    #[serde(flatten)]
    row: &'a LineRow,
}

/// By line, with the variables that `debug` knows, where there is one.
fn rows(
    map: &SourceMap,
    file: &str,
    entry: Gva,
    kernel: &Kernel,
    debug: Option<&DebugInfo<'_>>,
) -> Result<Vec<LineRow>> {
    let within = kernel.function(entry);
    let numbers = map.lines_with_code(file, within.as_ref());
    let places = numbers.iter().flat_map(|line| map.places(file, *line, within.as_ref(), kernel.symbols()));
    let row = |LinePlace { at, line, inlined, .. }| {
        let variables = match debug {
            Some(debug) => debug.variables_at(at)?.unwrap_or_default().variables,
            None => Vec::new(),
        };
        let readable = variables.into_iter().filter(|variable| variable.place.is_ok());
        Ok(LineRow {
            line,
            address: at.to_string(),
            inlined,
            refused: in_kernel(at, kernel).err().map(|reason| reason.to_string()),
            variables: readable.map(|variable| variable.name).collect(),
        })
    };
    places.map(row).collect()
}

/// The text of a file: below --source, where it was compiled, or in the folder of the kernel's build.
fn source_text(args: &List, map: &SourceMap, file: &str, source: &KernelSource) -> Option<String> {
    let folders = [args.source.as_deref(), map.root().map(Path::new), source.folder()];
    let paths = folders.into_iter().flatten().map(|folder| folder.join(file));
    paths.chain([PathBuf::from(file)].into_iter().filter(|path| path.is_absolute())).find_map(|path| {
        let text = fs::read(path).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    })
}

/// A line of the listing.
struct Listed<'a> {
    line: u32,
    text: Option<&'a str>,
    row: Option<&'a LineRow>,
}

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.row.map_or("", |row| &row.address);
        write!(f, "{address:18} {:>6}", self.line)?;
        if let Some(row) = self.row {
            if let Some(function) = &row.inlined {
                write!(f, " [{function} inlined]")?;
            }
            if let Some(reason) = &row.refused {
                write!(f, " [cannot be probed: {reason}]")?;
            }
        }
        match self.text {
            // Tabs are what the kernel's source is indented by.
            Some(text) => write!(f, "  {}", Escaped(text.replace('\t', "        ").as_bytes())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_place_and_its_text() {
        let row = |inlined: Option<&str>, refused: Option<&str>| LineRow {
            line: 30,
            address: "0xffffffff81000020".to_owned(),
            inlined: inlined.map(str::to_owned),
            refused: refused.map(str::to_owned),
            variables: Vec::new(),
        };
        let shown = |text, row: Option<&LineRow>| Listed { line: 30, text, row }.to_string();
        assert_eq!(shown(Some("{"), None), "                       30  {");
        assert_eq!(
            shown(Some("\treturn;"), Some(&row(None, None))),
            "0xffffffff81000020     30          return;"
        );
        assert_eq!(
            shown(None, Some(&row(Some("check"), Some("a lock prefix")))),
            "0xffffffff81000020     30 [check inlined] [cannot be probed: a lock prefix]"
        );
        let json = serde_json::to_value(JsonRow { file: "a.c", text: None, row: &row(None, None) }).unwrap();
        assert_eq!((&json["line"], &json["file"]), (&30.into(), &"a.c".into()));
    }
}
