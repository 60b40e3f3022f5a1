//! Files that a command has left in its guest.

use super::bounded::{name, some_name, write_bounded};
use super::moment::Time;
use probe_engine::guest_text::Escaped;
use serde::{Deserialize, Serialize};
use std::fmt;
use vmm::dropped::{FileKind, LeftFile, Sent};

/// A file that the command has made, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "dropped")]
pub(crate) struct DroppedLine {
    /// When the guest began to send it.
    time_ns: u64,
    /// Which of all it is, in the order in which they came.
    #[serde(default)]
    number: u64,
    #[serde(deserialize_with = "name")]
    path: String,
    kind: DroppedKind,
    /// Whether nothing was there before.
    #[serde(default)]
    new: Option<bool>,
    /// In octal.
    #[serde(deserialize_with = "name")]
    mode: String,
    /// What has come of it, or what the guest says where that is not all.
    size: u64,
    /// By the guest's word.
    modified_ns: u64,
    /// Of one that is kept.
    #[serde(default, deserialize_with = "some_name")]
    sha256: Option<String>,
    /// Where a link leads.
    #[serde(default, deserialize_with = "some_name")]
    target: Option<String>,
    /// Whether it was sent as a whole, to be kept.
    kept: bool,
    /// Why a file with contents was not.
    #[serde(default, deserialize_with = "some_name")]
    why: Option<String>,
}

/// What it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DroppedKind {
    File,
    Link,
    Fifo,
    Socket,
    Device,
    Removed,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "dropped_end")]
pub(crate) struct DroppedEnd {
    files: u64,
    kept: u64,
    /// Whether there were more than are told.
    has_more: bool,
    /// Why the guest has not sent all.
    #[serde(default, deserialize_with = "some_name")]
    failure: Option<String>,
}

impl DroppedLine {
    /// What came of `file` of this `number`, of which the guest began to send so many bytes at `wall_ns`.
    pub(crate) fn of(
        file: &LeftFile,
        number: u64,
        sent: Sent,
        wall_ns: u64,
        came: u64,
        digest: &[u8],
        target: &[u8],
    ) -> Self {
        let (is_regular, is_link) = (file.kind == FileKind::Regular, file.kind == FileKind::Link);
        let is_whole = sent == Sent::Whole;
        let kept = is_regular && is_whole;
        Self {
            time_ns: wall_ns,
            number,
            path: Escaped(&file.path).to_string(),
            kind: match file.kind {
                FileKind::Regular => DroppedKind::File,
                FileKind::Link => DroppedKind::Link,
                FileKind::Fifo => DroppedKind::Fifo,
                FileKind::Socket => DroppedKind::Socket,
                FileKind::Device => DroppedKind::Device,
                FileKind::Removed => DroppedKind::Removed,
            },
            new: Some(file.is_new),
            mode: format!("{:04o}", file.mode),
            size: if is_whole { came } else { file.size },
            modified_ns: file.modified_ns,
            sha256: kept.then(|| digest.iter().map(|byte| format!("{byte:02x}")).collect()),
            target: (is_link && is_whole).then(|| Escaped(target).to_string()),
            kept,
            why: (!is_whole).then(|| sent.to_string()),
        }
    }

    /// The same of a guest that was started at `started`.
    pub(crate) fn since(self, started: u64) -> Self {
        Self { time_ns: self.time_ns.saturating_sub(started), ..self }
    }

    /// Where it was, below the guest's root.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Nanoseconds since the guest was started.
    pub(crate) fn nanos(&self) -> u64 {
        self.time_ns
    }
}

impl DroppedEnd {
    pub(crate) fn of(lines: &[DroppedLine], has_more: bool, failure: Option<String>) -> Self {
        let kept = lines.iter().filter(|line| line.kept).count() as u64;
        Self { files: lines.len() as u64, kept, has_more, failure }
    }

    /// Whether the guest has sent all that it was to send.
    pub(crate) fn is_whole(&self) -> bool {
        self.failure.is_none()
    }

    /// Whether that is all that there was.
    pub(crate) fn has_all(&self) -> bool {
        self.is_whole() && !self.has_more
    }
}

/// As a line of text, without its end.
impl fmt::Display for DroppedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} DROPPED: {}", Time { nanos: self.time_ns, guest_nanos: None }, LeftBehind(self))
    }
}

/// So much is shown of a path, in bytes.
const MOST_OF_A_PATH: usize = 1024;

/// Which file, what it is, and whether it is kept.
pub(crate) struct LeftBehind<'a>(pub(crate) &'a DroppedLine);

impl fmt::Display for LeftBehind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DroppedLine { path, kind, new, mode, size, sha256, target, why, .. } = self.0;
        write_bounded(f, MOST_OF_A_PATH, path)?;
        f.write_str(": ")?;
        if *new == Some(false) && *kind != DroppedKind::Removed {
            f.write_str("changed, ")?;
        }
        match kind {
            DroppedKind::File => write!(f, "{size} bytes, mode {mode}")?,
            DroppedKind::Link => {
                f.write_str("a link to ")?;
                write_bounded(f, MOST_OF_A_PATH, &target.as_deref().unwrap_or("?")).map(drop)?;
            }
            DroppedKind::Fifo => write!(f, "a named pipe, mode {mode}")?,
            DroppedKind::Socket => write!(f, "a socket, mode {mode}")?,
            DroppedKind::Device => write!(f, "a device node, mode {mode}")?,
            DroppedKind::Removed => f.write_str("removed")?,
        }
        sha256.iter().try_for_each(|digest| write!(f, ", sha256 {digest}"))?;
        why.iter().try_for_each(|why| write!(f, "; not kept: {why}"))
    }
}

/// As a line of text, without its end.
impl fmt::Display for DroppedEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { files, kept, has_more, failure } = self;
        write!(f, "dropped: {files} files, of which {kept} are kept")?;
        if *has_more {
            f.write_str("; there are more than are told")?;
        }
        failure.iter().try_for_each(|failure| write!(f, "; NOT TO THE END: {failure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Line, Reader, example};
    use vmm::dropped::LONGEST_PATH;

    #[test]
    fn the_dropped_files_of_the_docs_are_read() {
        let lines = example("jsonl dropped");
        let text = format!("{}\n{lines}", example("json").lines().next().unwrap());
        let mut reader = Reader::open(text.as_bytes()).unwrap();
        let (mut shown, mut again) = (Vec::new(), Vec::new());
        while let Some(line) = reader.next().unwrap() {
            match line {
                Line::Dropped(file) => {
                    shown.push(file.to_string());
                    again.push(serde_json::to_string(&file).unwrap());
                }
                Line::DroppedEnd(end) => {
                    shown.push(end.to_string());
                    again.push(serde_json::to_string(&end).unwrap());
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(again, lines.lines().collect::<Vec<_>>());
        let expected = [
            "[    9.100000000 host] DROPPED: etc/motd: changed, 8 bytes, mode 0644, sha256 \
             7f8b1dfc466b6249f06cbe55c9174df2578e7754da793fded244ef5cba2a38f1",
            "[    9.100000000 host] DROPPED: tmp/shadow: a link to /etc/shadow",
            "[    9.100000000 host] DROPPED: var/tmp/swap: 1099511627776 bytes, mode 0600; not kept: larger than 256 MiB",
            "dropped: 3 files, of which 1 are kept",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn no_path_fills_a_terminal() {
        let [path, target] = [b"p", b"t"].map(|name| name.repeat(LONGEST_PATH));
        let file =
            LeftFile { path, kind: FileKind::Link, is_new: true, mode: 0o777, size: 0, modified_ns: 0 };
        let line = DroppedLine::of(&file, 1, Sent::Whole, 0, 0, &[], &target);
        let [path, target] = ["p", "t"].map(|name| name.repeat(MOST_OF_A_PATH));
        assert_eq!(LeftBehind(&line).to_string(), format!("{path}...: a link to {target}..."));
        // The recording has all of it.
        assert_eq!(line.path().len(), LONGEST_PATH);
    }
}
