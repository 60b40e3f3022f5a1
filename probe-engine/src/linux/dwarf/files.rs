//! Names of source files, each once: relative to where the kernel's source is.

use std::collections::HashMap;

use gimli::{LineProgramHeader, UnitRef};

use super::Slice;
use crate::guest_text::{Escaped, is_plain};

/// A file that every kernel is made of: where it is, the source is.
const LANDMARK: &str = "init/main.c";
/// Longest name that is kept, in bytes (PATH_MAX).
const LONGEST: usize = 4096;

/// The number of a file that is not known.
pub(super) const UNKNOWN: u32 = 0;

/// Names of files, numbered from 1 on.
#[derive(Debug, Default)]
pub(super) struct Files {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Files {
    fn number(&mut self, name: String) -> u32 {
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let number = self.names.len() as u32 + 1;
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    /// The names by number, that of [`UNKNOWN`] first, and the folder that they are relative to, where it is known.
    pub(super) fn finish(self) -> (Vec<String>, Option<String>) {
        let root = self.names.iter().filter(|name| name.starts_with('/')).find_map(|name| {
            name.strip_suffix(LANDMARK).filter(|root| root.ends_with('/')).map(str::to_owned)
        });
        let relative = |name: String| match root.as_deref().and_then(|root| name.strip_prefix(root)) {
            Some(relative) => relative.to_owned(),
            None => name,
        };
        let names = std::iter::once(String::new()).chain(self.names.into_iter().map(relative)).collect();
        (names, root)
    }
}

/// The files of one unit.
pub(super) struct UnitFiles<'u, 'a> {
    unit: UnitRef<'u, Slice<'a>>,
    /// Of those that were asked for.
    numbers: HashMap<u64, u32>,
}

impl<'u, 'a> UnitFiles<'u, 'a> {
    pub(super) fn new(unit: UnitRef<'u, Slice<'a>>) -> Self {
        Self { unit, numbers: HashMap::new() }
    }

    /// The number among `files` of the one that the unit calls `index`.
    pub(super) fn number(&mut self, index: u64, files: &mut Files) -> u32 {
        let unit = self.unit;
        *self.numbers.entry(index).or_insert_with(|| {
            let header = unit.line_program.as_ref().map(|program| program.header());
            match header.and_then(|header| path(unit, header, index)) {
                Some(path) => files.number(path),
                None => UNKNOWN,
            }
        })
    }
}

/// The path of a file, without the folder of the compilation where that is a part of it.
fn path<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    header: &LineProgramHeader<Slice<'a>>,
    index: u64,
) -> Option<String> {
    let file = header.file(index)?;
    let text = |value| Some(String::from_utf8_lossy(unit.attr_string(value).ok()?.slice()).into_owned());
    let name = text(file.path_name())?;
    let mut path = String::new();
    if !name.starts_with('/') && file.directory_index() != 0 {
        path = text(file.directory(header)?)? + "/";
    }
    path.push_str(&name);
    let folder = unit.comp_dir.map(|folder| String::from_utf8_lossy(folder.slice()).into_owned());
    let folder = folder.unwrap_or_default();
    if path.starts_with("..") && folder.starts_with('/') {
        path = format!("{folder}/{path}");
    }
    let path = normal(&path);
    let path = match path.strip_prefix(&*folder).and_then(|path| path.strip_prefix('/')) {
        Some(inside) if !folder.is_empty() => inside.to_owned(),
        _ => path,
    };
    let path = if is_plain(&path) { path } else { Escaped(path.as_bytes()).to_string() };
    (path.len() <= LONGEST).then_some(path)
}

/// The same path without `.` and, where they can be taken out, `..`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match (part, parts.last()) {
            ("." | "", Some(_)) | (".", None) => {}
            ("..", Some(&last)) if last != ".." && !last.is_empty() => {
                parts.pop();
            }
            ("..", Some(&"")) => {}
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_simple() {
        for (path, expected) in [
            ("fs/open.c", "fs/open.c"),
            ("./fs//open.c", "fs/open.c"),
            ("/a/b/../../c/./open.c", "/c/open.c"),
            ("/../a", "/a"),
            ("../../fs/open.c", "../../fs/open.c"),
            ("a/../../b", "../b"),
            ("", ""),
        ] {
            assert_eq!(normal(path), expected, "{path}");
        }
    }

    #[test]
    fn names_are_relative_to_the_source() {
        let mut files = Files::default();
        let numbers = ["/src/fs/open.c", "/src/init/main.c", "gen/a.h", "/src/fs/open.c", "/usr/lib/a.h"]
            .map(|name| files.number(name.to_owned()));
        assert_eq!(numbers, [1, 2, 3, 1, 4]);
        let (names, root) = files.finish();
        assert_eq!(names, ["", "fs/open.c", "init/main.c", "gen/a.h", "/usr/lib/a.h"]);
        assert_eq!(root.as_deref(), Some("/src/"));
    }
}
