//! The stack at a hit, with names: as it is written, and as text.

use super::bounded::{name, some_name};
use super::{Address, UserFrame};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a stack ends that has nothing behind it.
pub(crate) const BOTTOM: &str = "bottom";
/// How that of the kernel ends where it was entered from user mode.
pub(crate) const USER: &str = "user";

/// A stack with the names of its frames, the innermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stack {
    /// Those of the kernel.
    pub(crate) frames: Vec<Frame>,
    /// [`BOTTOM`], [`USER`], or why it goes on.
    pub(crate) end: String,
    /// Those of the process, where the kernel was entered from user mode.
    pub(crate) user: Option<UserStack>,
}

/// The frames of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserStack {
    pub(crate) frames: Vec<UserFrame>,
    /// [`BOTTOM`], or why it goes on.
    pub(crate) end: String,
}

/// A frame of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub(crate) address: Address,
    /// The function, as the kernel's `%pS` writes it, and its module.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The file of the source that it is from, if that is known.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    /// The line there, unless none is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u32>,
    /// Whether an interrupt or an exception has come there.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) interrupted: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) guessed: bool,
    /// The functions that are inlined there, the innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) inlined: Vec<Inlined>,
}

/// An inlined function, and the line of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inlined {
    #[serde(deserialize_with = "name")]
    pub(crate) name: String,
    #[serde(deserialize_with = "name")]
    pub(crate) file: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u32>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl Frame {
    /// The function's name without offset and module; an address where it has none.
    pub(crate) fn function(&self) -> String {
        match &self.name {
            Some(name) => name.split('+').next().unwrap_or_default().to_owned(),
            None => self.address.to_string(),
        }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for frame in &self.frames {
            if frame.interrupted {
                writeln!(f, "  <interrupt>")?;
            }
            let guess = if frame.guessed { "? " } else { "" };
            for Inlined { name, file, line } in &frame.inlined {
                writeln!(f, "  {guess}{name} (inlined) {}", SourcePlace(file, *line))?;
            }
            write!(f, "  {guess}")?;
            match &frame.name {
                Some(name) => f.write_str(name)?,
                None => write!(f, "{}", frame.address)?,
            }
            match &frame.file {
                Some(file) => writeln!(f, " {}", SourcePlace(file, frame.line))?,
                None => writeln!(f)?,
            }
        }
        if ![BOTTOM, USER].contains(&self.end.as_str()) {
            writeln!(f, "  ... and goes on: {}", self.end)?;
        }
        let Some(user) = &self.user else { return Ok(()) };
        for frame in &user.frames {
            writeln!(f, "  user: {frame}")?;
        }
        if user.end != BOTTOM {
            writeln!(f, "  user: ... and goes on: {}", user.end)?;
        }
        Ok(())
    }
}

/// A file of the source, and a line there unless none is to blame.
struct SourcePlace<'a>(&'a str, Option<u32>);

impl fmt::Display for SourcePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(line) => write!(f, "{}:{line}", self.0),
            None => write!(f, "{}:?", self.0),
        }
    }
}
