//! What the folder of a part has kept of a case that has not passed, as far as people look at it. A guest has made it.

use super::kept::MergedResult;
use super::known;
use crate::record::{Line, Reader, SplatLine};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// So much of the end of a console is shown, in bytes,
const CONSOLE_TAIL: u64 = 64 << 10;
/// and so many lines of that.
const CONSOLE_LINES: usize = 100;
/// So many reports of the kernel are shown.
const MOST_SPLATS: usize = 20;

/// What is left of a case.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Evidence {
    /// Reports of the kernel.
    pub(crate) splats: Vec<SplatLine>,
    /// The last lines of the console.
    pub(crate) console: Vec<String>,
}

impl Evidence {
    /// What the part has kept whose result this is. What is not there is not shown.
    pub(crate) fn of(merged: &MergedResult) -> Self {
        let Some(part) = merged.parts.first() else { return Self::default() };
        let result = &merged.result;
        let folder = part.join(known::folder(result.number, &result.kernel, &result.name));
        Self {
            splats: splats(&folder.join("recording.json")).unwrap_or_default(),
            console: tail(&folder.join("console")).unwrap_or_default(),
        }
    }
}

/// The reports in a recording, up to what is damaged in it.
fn splats(path: &Path) -> io::Result<Vec<SplatLine>> {
    let mut splats = Vec::new();
    let Ok(mut recording) = Reader::open(BufReader::new(File::open(path)?)) else { return Ok(splats) };
    while let Ok(Some(line)) = recording.next() {
        if let Line::Splat(splat) = line {
            splats.push(*splat);
        }
        if splats.len() == MOST_SPLATS {
            break;
        }
    }
    Ok(splats)
}

/// The last lines of a file.
fn tail(path: &Path) -> io::Result<Vec<String>> {
    let mut file = File::open(path)?;
    let begin = file.metadata()?.len().saturating_sub(CONSOLE_TAIL);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    file.take(CONSOLE_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // Where the beginning was left out, the first line is a part of one.
    let lines: Vec<&str> = text.lines().skip(usize::from(begin > 0)).collect();
    let left_out = lines.len().saturating_sub(CONSOLE_LINES);
    Ok(lines.into_iter().skip(left_out).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::super::results::testing::results;
    use super::*;
    use crate::record::example;
    use std::fs;

    #[test]
    fn reports_and_the_end_of_the_console_are_found_and_nothing_else_is_needed() {
        let part = tempfile::tempdir().unwrap();
        let merged = MergedResult { result: results().swap_remove(1), parts: vec![part.path().to_owned()] };
        assert_eq!(Evidence::of(&merged), Evidence::default());
        let folder = part.path().join("001-debian-6.12-case-1");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("recording.json"), example("json")).unwrap();
        let lines: Vec<String> = (0..20_000).map(|n| format!("line {n}")).collect();
        fs::write(folder.join("console"), lines.join("\r\n")).unwrap();
        let found = Evidence::of(&merged);
        assert_eq!(found.splats.len(), 1);
        assert_eq!(found.console, lines[lines.len() - CONSOLE_LINES..]);
        assert_eq!(Evidence::of(&MergedResult { parts: Vec::new(), ..merged }), Evidence::default());
    }
}
