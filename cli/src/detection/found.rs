//! When something was found, and by which number it is known.

use super::Detection;
use crate::record::{Header, KernelIdentity};

/// In which guest it was found, and by whom.
pub(crate) struct Source {
    /// The version of the program that has found it.
    pub(crate) vmm: String,
    pub(crate) kernel: KernelIdentity,
    /// When the guest was started, or its memory was looked at, in nanoseconds since 1970 (UTC).
    pub(crate) wall_ns: u64,
}

impl From<&Header> for Source {
    fn from(header: &Header) -> Self {
        Self { vmm: header.vmm.clone(), kernel: header.kernel.clone(), wall_ns: header.wall_ns }
    }
}

/// A detection with its time and its name.
pub(crate) struct Found {
    pub(crate) detection: Detection,
    /// In nanoseconds since 1970 (UTC).
    pub(crate) wall_ns: u64,
    /// No other detection of any guest has the same.
    pub(crate) uid: String,
}

/// Gives detections their times and numbers, in the order in which they are told.
pub(crate) struct Numbering {
    wall_ns: u64,
    /// The latest time that is known, in nanoseconds from there.
    last: u64,
    number: u64,
}

impl Numbering {
    /// For the detections of `source`.
    pub(crate) fn of(source: &Source) -> Self {
        Self { wall_ns: source.wall_ns, last: 0, number: 0 }
    }

    /// It is so many nanoseconds later than the start.
    pub(crate) fn passed(&mut self, nanos: u64) {
        self.last = self.last.max(nanos);
    }

    /// The next detection, so many nanoseconds from the start. What is found at the end has no time of its own: it has the latest one
    /// that is known.
    pub(crate) fn found(&mut self, detection: Detection, nanos: Option<u64>) -> Found {
        self.number += 1;
        let nanos = nanos.unwrap_or(self.last);
        self.passed(nanos);
        Found {
            detection,
            wall_ns: self.wall_ns.saturating_add(nanos),
            uid: format!("{}-{}", self.wall_ns, self.number),
        }
    }
}
