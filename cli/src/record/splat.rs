//! A report of the kernel.

use super::bounded::{name, some_name};
use probe_engine::linux::splat::{Splat, SplatFrame};
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// A line of type `splat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "splat")]
pub(crate) struct SplatLine {
    /// How many there were with it.
    pub(crate) number: u64,
    /// When it began, by the host's clock.
    pub(crate) time_ns: u64,
    /// When it began, by the guest's clock.
    pub(crate) guest_ns: u64,
    #[serde(deserialize_with = "name")]
    pub(crate) kind: String,
    #[serde(deserialize_with = "name")]
    pub(crate) title: String,
    /// What tells it from others, in all runs.
    #[serde(deserialize_with = "name")]
    pub(crate) fingerprint: String,
    pub(crate) task: Option<NamedTask>,
    pub(crate) cpu: Option<u32>,
    /// In the kernel's letters.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) taint: Option<String>,
    /// The line of the source that its text names.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) at: Option<String>,
    #[serde(deserialize_with = "few")]
    pub(crate) frames: Vec<NamedFrame>,
    /// Why it is allowed, where it is.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) allowed: Option<String>,
    /// Whether it was allowed until a day that is over.
    pub(crate) expired: bool,
    /// Until when it is allowed, or was.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) until: Option<String>,
    /// How many there were before it with this fingerprint.
    pub(crate) repeats: u64,
    /// The entry of an interrupt in it that no processor takes: the emulated one is at fault.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) impossible: Option<String>,
    /// Its lines, of the first one with this fingerprint.
    #[serde(deserialize_with = "few")]
    pub(crate) text: Vec<String>,
}

/// The task that a report names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedTask {
    #[serde(deserialize_with = "name")]
    pub(crate) comm: String,
    pub(crate) pid: u32,
}

/// A frame, as the kernel has written it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedFrame {
    /// `function+offset/length`, and the module in brackets.
    #[serde(deserialize_with = "name")]
    pub(crate) name: String,
    /// Where it is in the source, where that is known.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
}

impl NamedFrame {
    pub(crate) fn of(frame: &SplatFrame, source: Option<(String, u32)>) -> Self {
        let place =
            frame.place.map(|(offset, length)| format!("+{offset:#x}/{length:#x}")).unwrap_or_default();
        let module = frame.module.as_ref().map(|module| format!(" [{module}]")).unwrap_or_default();
        let (file, line) = source.unzip();
        Self { name: format!("{}{place}{module}", frame.function), file, line }
    }
}

impl SplatLine {
    /// The line of `splat`, which is the first one of its kind and was not judged.
    pub(crate) fn of(splat: &Splat, time_ns: u64, frames: Vec<NamedFrame>) -> Self {
        Self {
            number: 1,
            time_ns,
            guest_ns: splat.nanos,
            kind: splat.kind.name().to_owned(),
            title: splat.title.clone(),
            fingerprint: splat.fingerprint(),
            task: splat.task.as_ref().map(|task| NamedTask { comm: task.comm.clone(), pid: task.pid }),
            cpu: splat.cpu,
            taint: splat.taint.clone(),
            at: splat.at.clone(),
            frames,
            allowed: None,
            expired: false,
            until: None,
            repeats: 0,
            impossible: splat.impossible.clone(),
            text: splat.text.clone(),
        }
    }

    /// Whether it tells of a fault of the guest's kernel that is not allowed.
    pub(crate) fn is_fault(&self) -> bool {
        self.allowed.is_none() && self.impossible.is_none()
    }

    /// The same, where its text names no line of the source, at this one.
    pub(crate) fn or_at(self, at: Option<String>) -> Self {
        Self { at: self.at.or(at), ..self }
    }
}

/// As it is said, in one line.
impl fmt::Display for SplatLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.guest_ns / 1_000_000_000, self.guest_ns % 1_000_000_000);
        write!(f, "splat at {seconds}.{nanos:09}: {}", self.title)?;
        if let Some(NamedTask { comm, pid }) = &self.task {
            write!(f, "; task {comm}-{pid}")?;
        }
        if let Some(cpu) = self.cpu {
            write!(f, "; cpu{cpu}")?;
        }
        // Many titles have it.
        if let Some(at) = self.at.as_ref().filter(|at| !self.title.contains(at.as_str())) {
            write!(f, "; at {at}")?;
        }
        write!(f, "; fingerprint {}", self.fingerprint)?;
        if let Some(entry) = &self.impossible {
            write!(f, "; it has {entry} taken while interrupts were off, which no processor does")?;
        }
        let until = self.until.as_deref().unwrap_or_default();
        match &self.allowed {
            Some(reason) => write!(f, "; allowed: {reason}"),
            None if self.expired => write!(f, "; it was allowed until {until}"),
            None => Ok(()),
        }
    }
}

/// What is kept of frames and lines: a run records no more.
fn few<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    const MOST: usize = 256;
    let mut all = Vec::<T>::deserialize(deserializer)?;
    all.truncate(MOST);
    Ok(all)
}
