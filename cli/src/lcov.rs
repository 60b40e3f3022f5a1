//! Which functions ran as a tracefile of lcov (geninfo(1)), for the tools that read these.

use probe_engine::addr::Gva;
use probe_engine::guest_text::Escaped;
use probe_engine::linux::lines::LineTable;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// A function that was probed.
pub(crate) struct Probed<'a> {
    pub(crate) name: &'a str,
    /// Where it begins, as linked.
    pub(crate) entry: Gva,
    pub(crate) has_run: bool,
}

/// Writes `functions` by the files of their source. Those of which `lines` knows no source are left out, and counted.
pub(crate) fn write<'a>(
    out: &mut impl Write,
    functions: impl Iterator<Item = Probed<'a>>,
    lines: &LineTable,
) -> io::Result<usize> {
    let mut files = BTreeMap::<String, Vec<(u32, Probed<'_>)>>::new();
    let mut left_out = 0;
    for function in functions {
        // The function itself is the outermost one of what its entry is from.
        match lines.at(function.entry).last() {
            Some(at) => files.entry(at.file.to_owned()).or_default().push((at.line, function)),
            None => left_out += 1,
        }
    }
    for (file, mut functions) in files {
        functions.sort_by_key(|(line, function)| (*line, function.entry));
        writeln!(out, "TN:\nSF:{}", Escaped(file.as_bytes()))?;
        for (line, function) in &functions {
            writeln!(out, "FN:{line},{}", Escaped(function.name.as_bytes()))?;
        }
        for (_, function) in &functions {
            writeln!(out, "FNDA:{},{}", u8::from(function.has_run), Escaped(function.name.as_bytes()))?;
        }
        let ran = functions.iter().filter(|(_, function)| function.has_run).count();
        writeln!(out, "FNF:{}\nFNH:{ran}", functions.len())?;
        write_lines(out, &functions)?;
        writeln!(out, "end_of_record")?;
    }
    Ok(left_out)
}

/// The lines at which functions begin: lcov leaves out a file of which it knows no line.
fn write_lines(out: &mut impl Write, functions: &[(u32, Probed<'_>)]) -> io::Result<()> {
    let mut lines = BTreeMap::new();
    for (line, function) in functions {
        *lines.entry(line).or_insert(false) |= function.has_run;
    }
    for (line, has_run) in &lines {
        writeln!(out, "DA:{line},{}", u8::from(*has_run))?;
    }
    writeln!(out, "LF:{}\nLH:{}", lines.len(), lines.values().filter(|has_run| **has_run).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::lines::LineTableBuilder;

    #[test]
    fn functions_are_grouped_by_files_and_what_has_no_source_is_counted() {
        let (files, functions) =
            (["".to_owned(), "fs/read.c".to_owned(), "fs/open.c".to_owned()], ["".to_owned()]);
        let mut lines = LineTableBuilder::new(Gva(0x1000), &files, &functions);
        for (at, file, line) in [(0, 1, 20), (0x10, 2, 7), (0x20, 1, 10), (0x30, 0, 0)] {
            lines.push(at, file, line, 0);
        }
        let probed = |name, entry, has_run| Probed { name, entry: Gva(entry), has_run };
        let functions = [
            probed("late", 0x1000, true),
            probed("open\n", 0x1010, false),
            probed("early", 0x1020, false),
            probed("assembly", 0x1030, true),
        ];
        let mut out = Vec::new();
        assert_eq!(write(&mut out, functions.into_iter(), &lines.finish()).unwrap(), 1);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "TN:\nSF:fs/open.c\nFN:7,open\\n\nFNDA:0,open\\n\nFNF:1\nFNH:0\nDA:7,0\nLF:1\nLH:0\nend_of_record\n\
             TN:\nSF:fs/read.c\nFN:10,early\nFN:20,late\nFNDA:0,early\nFNDA:1,late\nFNF:2\nFNH:1\nDA:10,0\nDA:20,1\nLF:2\nLH:1\nend_of_record\n"
        );
    }
}
