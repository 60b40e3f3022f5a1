//! What came of one order: a recording, read.

use crate::args::{Between, RaceOrder};
use crate::exit_codes::DIED;
use crate::record::{GateEnd, HoldLine, Line, Reader};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// So many different reports are kept.
const MOST_SPLATS: usize = 1000;

/// An order, and what came of it.
pub(super) struct ForcedOrder {
    pub(super) first: String,
    pub(super) second: String,
    pub(super) runs: ForcedRuns,
}

/// What came of the runs of one guest.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ForcedRuns {
    /// What `vmm run` has ended with.
    pub(super) code: u8,
    /// How often the order was reached, and how often not. A guest that never came so far has none.
    pub(super) gate: Option<GateEnd>,
    /// The first task that nobody came for.
    pub(super) late: Option<HoldLine>,
    /// With which exit codes the command has ended, and how often.
    pub(super) codes: BTreeMap<u8, usize>,
    /// With which one the first run that has failed.
    pub(super) failed: Option<u8>,
    /// Reports that are not allowed by their fingerprints: the title of the first, and how many there were.
    pub(super) splats: BTreeMap<String, (String, usize)>,
    /// How the guest ended.
    pub(super) end: Option<String>,
}

impl ForcedOrder {
    /// The order that `order` is of two places.
    pub(super) fn of(Between { a, b }: &Between, order: RaceOrder, runs: ForcedRuns) -> Self {
        let (first, second) = match order {
            RaceOrder::Ab => (a, b),
            RaceOrder::Ba => (b, a),
        };
        Self { first: first.clone(), second: second.clone(), runs }
    }

    /// How it is called.
    pub(super) fn name(&self) -> String {
        format!("{}, then {}", self.first, self.second)
    }
}

impl ForcedRuns {
    /// Reads what was recorded at `path` of a run that has ended with `code`.
    pub(super) fn read(path: &Path, code: u8) -> Result<Self> {
        let mut runs = Self { code, ..Self::default() };
        // A run that has not begun to record leaves nothing, and has said why.
        let Ok(file) = File::open(path) else { return Ok(runs) };
        if file.metadata().is_ok_and(|file| file.len() == 0) {
            return Ok(runs);
        }
        let context = || format!("{}: the recording cannot be read", path.display());
        let mut reader = Reader::open(BufReader::new(file)).with_context(context)?;
        while let Some(line) = reader.next().with_context(context)? {
            runs.add(line);
        }
        runs.end = reader.end().map(|end| end.end.clone());
        Ok(runs)
    }

    fn add(&mut self, line: Line) {
        match line {
            Line::Gate(gate) => self.gate = Some(gate),
            Line::Hold(hold) if hold.by.is_none() && !hold.released && self.late.is_none() => {
                self.late = Some(*hold)
            }
            Line::Runs(runs) => {
                runs.codes.iter().for_each(|code| *self.codes.entry(*code).or_default() += 1);
                self.failed = runs.codes.into_iter().find(|code| *code != 0);
            }
            Line::Splat(splat) if splat.allowed.is_none() => {
                let is_full = self.splats.len() == MOST_SPLATS;
                match self.splats.get_mut(&splat.fingerprint) {
                    Some((_, count)) => *count += 1,
                    None if is_full => {}
                    None => {
                        self.splats.insert(splat.fingerprint, (splat.title, 1));
                    }
                }
            }
            _ => {}
        }
    }

    /// How often the order was reached.
    pub(super) fn reached(&self) -> u64 {
        self.gate.as_ref().map_or(0, |gate| gate.reached)
    }

    /// Whether a task waited in vain for a lock which the one had that was held.
    pub(super) fn is_blocked(&self) -> bool {
        self.late.as_ref().is_some_and(|late| late.blocked().is_some())
    }

    /// Whether the kernel has reported a bug, or died.
    pub(super) fn has_splats(&self) -> bool {
        !self.splats.is_empty() || (self.code == DIED && self.failed != Some(DIED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{RunsLine, example};

    #[test]
    fn runs_are_read_from_a_recording() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), example("json")).unwrap();
        let runs = ForcedRuns::read(file.path(), 0).unwrap();
        assert_eq!(runs.end.as_deref(), Some("stopped"));
        assert_eq!((runs.reached(), runs.late.is_none(), runs.failed), (1, true, Some(1)));
        assert!(runs.splats.is_empty(), "it is allowed");
        std::fs::write(file.path(), "").unwrap();
        assert_eq!(
            ForcedRuns::read(file.path(), 125).unwrap(),
            ForcedRuns { code: 125, ..ForcedRuns::default() }
        );
        let mut runs = ForcedRuns::default();
        runs.add(Line::Runs(RunsLine { codes: vec![0, 7, 0, 3] }));
        assert_eq!((runs.failed, runs.codes), (Some(7), BTreeMap::from([(0, 2), (3, 1), (7, 1)])));
    }
}
