//! Where the machine's apt gets packages from, so that a suite can be added from the same place.
//!
//! Formats: `sources.list(5)`; one-line entries in `*.list`, paragraphs of fields in `*.sources`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The directory of source files beside `/etc/apt/sources.list`.
const SOURCES_DIR: &str = "/etc/apt/sources.list.d";

/// Why a suite cannot be taken from where the machine's packages come from.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file of the machine cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The machine does not say which Debian release it is.
    #[error("/etc/os-release names no release")]
    NoRelease,
    /// The machine's release comes from no source of apt.
    #[error("no apt source of this machine has the suite {0}")]
    NoSuite(String),
}

/// A place with packages, and the suites that are taken from it.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    uris: String,
    suites: Vec<String>,
    components: String,
    /// Fields that say whom to trust and how, in the syntax of `*.sources`.
    options: Vec<(String, String)>,
}

/// Every source of binary packages.
#[derive(Debug, Default)]
pub struct Sources(Vec<Source>);

impl Sources {
    /// Reads `/etc/apt/sources.list` and `/etc/apt/sources.list.d`.
    ///
    /// # Errors
    /// [`SourceError::Unreadable`].
    pub fn of_this_machine() -> Result<Self, SourceError> {
        let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
        let mut list = || -> io::Result<()> {
            for entry in fs::read_dir(SOURCES_DIR)? {
                files.push(entry?.path());
            }
            Ok(())
        };
        list().map_err(|source| SourceError::Unreadable { path: SOURCES_DIR.into(), source })?;
        files.sort();
        let mut sources = Self::default();
        for file in files.iter().filter(|file| file.is_file()) {
            sources.add(file)?;
        }
        Ok(sources)
    }

    fn add(&mut self, file: &Path) -> Result<(), SourceError> {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => self.0.extend(read(file)?.lines().filter_map(one_line)),
            Some("sources") => self.0.extend(paragraphs(&read(file)?).filter_map(|text| paragraph(&text))),
            _ => {}
        }
        Ok(())
    }

    /// Whether a suite is already among them.
    #[must_use]
    pub fn name(&self, suite: &str) -> bool {
        self.suite(suite).is_some()
    }

    /// The source that has the machine's own release.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn of_this_release(&self) -> Result<&Source, SourceError> {
        let release = release()?;
        self.suite(&release).ok_or(SourceError::NoSuite(release))
    }

    /// The source that has a suite.
    fn suite(&self, suite: &str) -> Option<&Source> {
        self.0.iter().find(|source| source.suites.iter().any(|name| name == suite))
    }
}

impl Source {
    /// The text of a `.sources` file that takes another suite from the same place.
    #[must_use]
    pub fn with_suite(&self, suite: &str) -> String {
        let mut text = format!(
            "# Written by vmm.\nTypes: deb\nURIs: {}\nSuites: {suite}\nComponents: {}\n",
            self.uris, self.components
        );
        for (name, value) in &self.options {
            text += &format!("{name}: {value}\n");
        }
        text
    }
}

/// Reads `deb [signed-by=KEYRING] URI SUITE COMPONENT...`.
fn one_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim().strip_prefix("deb")?;
    let rest = line.strip_prefix(char::is_whitespace)?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    Some(Source {
        uris: words.next()?.to_owned(),
        suites: vec![words.next()?.to_owned()],
        components: words.collect::<Vec<_>>().join(" "),
        options: options
            .split_whitespace()
            .filter_map(|option| option.split_once('='))
            .filter_map(|(name, value)| trust(name, &value.replace(',', " ")))
            .collect(),
    })
}

/// The paragraphs of a `*.sources` file, without comments.
fn paragraphs(text: &str) -> impl Iterator<Item = String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let paragraphs: Vec<String> =
        lines.split(|line| line.trim().is_empty()).map(|lines| lines.join("\n")).collect();
    paragraphs.into_iter()
}

/// Reads one paragraph of fields; a disabled one is no source.
fn paragraph(text: &str) -> Option<Source> {
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        // A line that begins with a space belongs to the field before it.
        match line.split_once(':').filter(|_| !line.starts_with([' ', '\t'])) {
            Some((name, value)) => fields.push((name.to_lowercase(), value.trim().to_owned())),
            None => fields.last_mut()?.1 += &format!("\n{line}"),
        }
    }
    let field = |name| fields.iter().find(|field| field.0 == name).map(|field| field.1.as_str());
    let binary = field("types")?.split_whitespace().any(|kind| kind == "deb");
    if !binary || field("enabled").is_some_and(|value| value == "no") {
        return None;
    }
    Some(Source {
        uris: field("uris")?.to_owned(),
        suites: field("suites")?.split_whitespace().map(str::to_owned).collect(),
        components: field("components").unwrap_or_default().to_owned(),
        options: fields.iter().filter_map(|(name, value)| trust(name, value)).collect(),
    })
}

/// An option that says whom to trust, under its name in `*.sources`.
fn trust(name: &str, value: &str) -> Option<(String, String)> {
    let name = match name {
        "signed-by" => "Signed-By",
        "trusted" => "Trusted",
        _ => return None,
    };
    Some((name.to_owned(), value.to_owned()))
}

/// The code name of the machine's Debian release.
///
/// # Errors
/// [`SourceError`].
pub fn release() -> Result<String, SourceError> {
    let text = read("/etc/os-release".as_ref())?;
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.ok_or(SourceError::NoRelease)?.trim_matches('"').to_owned())
}

fn read(file: &Path) -> Result<String, SourceError> {
    fs::read_to_string(file).map_err(|source| SourceError::Unreadable { path: file.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAGRAPHS: &str = "Types: deb deb-src\n# a comment\nURIs: mirror:/etc/mirrors/debian\n\
        Suites: bookworm bookworm-updates\nComponents: main contrib\nSigned-By: /keys/debian.gpg\n\n\
        Types: deb\nURIs: file:/off\nSuites: off\nEnabled: no\n\n\
        Types: deb-src\nURIs: file:/src\nSuites: source-only\nComponents: main\n";

    #[test]
    fn a_suite_is_added_from_the_place_of_another() {
        let sources = Sources(paragraphs(PARAGRAPHS).filter_map(|text| paragraph(&text)).collect());
        assert_eq!(sources.0.len(), 1);
        assert!(sources.name("bookworm-updates") && !sources.name("off") && !sources.name("source-only"));
        let text = sources.suite("bookworm").unwrap().with_suite("bookworm-backports");
        assert!(text.ends_with(
            "Types: deb\nURIs: mirror:/etc/mirrors/debian\nSuites: bookworm-backports\n\
             Components: main contrib\nSigned-By: /keys/debian.gpg\n"
        ));
    }

    #[test]
    fn one_line_entries_mean_the_same() {
        let source =
            one_line("deb [arch=amd64 signed-by=/a.gpg,/b.gpg] file:/debian bookworm main contrib # x");
        let expected = Source {
            uris: "file:/debian".to_owned(),
            suites: vec!["bookworm".to_owned()],
            components: "main contrib".to_owned(),
            options: vec![("Signed-By".to_owned(), "/a.gpg /b.gpg".to_owned())],
        };
        assert_eq!(source, Some(expected));
        assert_eq!(one_line("# deb file:/debian bookworm main"), None);
        assert_eq!(one_line("deb-src file:/debian bookworm main"), None);
    }
}
