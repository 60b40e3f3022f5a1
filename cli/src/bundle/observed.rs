//! What a recording tells by which two runs are compared: the order of hits, and the kernel's reports.

use crate::record::{HostKind, KernelIdentity, Line, OrderLine, Reader};
use anyhow::{Context as _, Result};
use probe_engine::linux::task::{Context, Task};
use probe_engine::probe::turns::{KnownTasks, ObservedTurns, name_in_all_runs};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use vmm::events::{Event, What};

/// So many hits have turns; what comes behind them is free.
const MOST_TURNS: usize = 1 << 16;
/// So many hits are compared.
const MOST_HITS: usize = 1 << 20;

/// What was observed.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) kernel: KernelIdentity,
    pub(super) host: HostKind,
    pub(super) order: ObservedOrder,
    /// The same of hits that can have [turns](probe_engine::probe::turns), as far as they are kept.
    pub(super) turns: ObservedTurns,
    /// What became of the order that was imposed, if one was.
    pub(super) imposed: Option<OrderLine>,
    /// The fingerprints of the kernel's reports.
    pub(super) splats: BTreeSet<String>,
}

/// In which order tasks came to probes.
#[derive(Debug, Default)]
pub(super) struct ObservedOrder {
    probes: BTreeMap<u32, String>,
    /// By what tasks are known in all runs: their names, and their numbers among those of one name, in the order in which they first
    /// came to a probe.
    tasks: Vec<(String, usize)>,
    /// Each hit: its probe and its task, by their numbers.
    hits: Vec<(u32, usize)>,
}

/// A hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ObservedHit<'a> {
    probe: &'a str,
    task: &'a (String, usize),
}

/// The first hit that is not the same in two runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference<'a> {
    /// Its number, from 1 on.
    pub(super) number: usize,
    /// What it was in the first run, if it had so many.
    pub(super) was: Option<ObservedHit<'a>>,
    /// What it is in the second one.
    pub(super) is: Option<ObservedHit<'a>>,
}

/// Whether a recording was not even begun.
pub(super) fn is_empty(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|recording| recording.is_file() && recording.len() == 0)
}

/// Reads a recording.
pub(super) fn read(path: &Path) -> Result<Observed> {
    let unreadable = || format!("cannot read the recording {}", path.display());
    let mut reader =
        Reader::open(BufReader::new(File::open(path).with_context(unreadable)?)).with_context(unreadable)?;
    let (mut hits, mut splats, mut imposed) = (Vec::new(), BTreeSet::new(), None);
    let mut order = ObservedOrder::default();
    while let Some(line) = reader.next().with_context(unreadable)? {
        match line {
            Line::Hit(hit) if hits.len() < MOST_HITS => {
                let Event { nanos, probe, task, what, .. } = hit.event;
                if let Some(known) = reader.probe(probe.0) {
                    order.probes.entry(probe.0).or_insert_with(|| known.probe.clone());
                    hits.push((nanos, probe.0, task, matches!(what, What::Hit { .. })));
                }
            }
            Line::Splat(splat) => drop(splats.insert(splat.fingerprint)),
            Line::Order(line) => imposed = Some(line),
            _ => {}
        }
    }
    // Of two CPUs, the later hit may be written first.
    hits.sort_by_key(|(nanos, ..)| *nanos);
    let (mut turns, mut tasks) = (ObservedTurns::default(), KnownTasks::default());
    let (mut known, mut named) = (BTreeMap::new(), BTreeMap::<String, usize>::new());
    for (_, probe, task, is_pass) in hits {
        let number = *known.entry(task.map(|task| (task.at, task.pid))).or_insert_with(|| {
            let name = |task: Task| {
                let comm = name_in_all_runs(task.comm);
                String::from_utf8_lossy(Task { comm, ..task }.comm()).into_owned()
            };
            let name = task.map_or_else(|| "?".to_owned(), name);
            let number = named.entry(name.clone()).or_default();
            *number += 1;
            order.tasks.push((name, *number));
            order.tasks.len() - 1
        });
        order.hits.push((probe, number));
        let task = task.filter(|task| is_pass && task.context == Context::Task);
        if let Some(task) = task.filter(|_| turns.turns.len() < MOST_TURNS) {
            turns.push(&mut tasks, probe, &task);
        }
    }
    let header = reader.header();
    Ok(Observed { kernel: header.kernel.clone(), host: header.host, order, turns, imposed, splats })
}

impl ObservedOrder {
    /// What its probes were called, by their numbers.
    pub(super) fn probes(&self) -> &BTreeMap<u32, String> {
        &self.probes
    }

    /// How many hits there are.
    pub(super) fn count(&self) -> usize {
        self.hits.len()
    }

    fn hits(&self) -> impl Iterator<Item = ObservedHit<'_>> {
        self.hits.iter().filter_map(|(probe, task)| {
            Some(ObservedHit { probe: self.probes.get(probe)?, task: self.tasks.get(*task)? })
        })
    }

    /// The first hit of `other`, a later run, that is not the same.
    pub(super) fn difference<'a>(&'a self, other: &'a Self) -> Option<Difference<'a>> {
        let (mut was, mut is) = (self.hits(), other.hits());
        (1..=self.count().max(other.count())).find_map(|number| {
            let (was, is) = (was.next(), is.next());
            (was != is).then_some(Difference { number, was, is })
        })
    }
}

impl fmt::Display for ObservedHit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, number) = self.task;
        write!(f, "{} by {name}", self.probe)?;
        if *number > 1 { write!(f, " (number {number} of that name)") } else { Ok(()) }
    }
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, was, is } = self;
        match (was, is) {
            (Some(was), Some(is)) => write!(f, "hit {number} is {is}, and was {was}"),
            (Some(was), None) => write!(f, "there is no hit {number}, which was {was}"),
            (None, Some(is)) => write!(f, "hit {number} is one more: {is}"),
            (None, None) => write!(f, "hit {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;

    /// Hits of probes by tasks.
    fn order(hits: &[(u32, &str, usize)]) -> ObservedOrder {
        let mut order = ObservedOrder::default();
        for (probe, name, number) in hits {
            order.probes.insert(*probe, format!("probe{probe}"));
            let task = ((*name).to_owned(), *number);
            let known = order.tasks.iter().position(|known| *known == task);
            let known = known.unwrap_or_else(|| {
                order.tasks.push(task);
                order.tasks.len() - 1
            });
            order.hits.push((*probe, known));
        }
        order
    }

    #[test]
    fn the_first_difference_is_found() {
        let (a, b, c) = ((1, "sh", 1), (2, "sh", 2), (1, "cat", 1));
        for (was, is, expected) in [
            (&[][..], &[][..], None),
            (&[a, b], &[a, b], None),
            (&[a, b], &[b, a], Some("hit 1 is probe2 by sh (number 2 of that name), and was probe1 by sh")),
            (&[a, c], &[a], Some("there is no hit 2, which was probe1 by cat")),
            (&[a], &[a, c], Some("hit 2 is one more: probe1 by cat")),
        ] {
            let (was, is) = (order(was), order(is));
            let said = was.difference(&is).map(|difference| difference.to_string());
            assert_eq!(said.as_deref(), expected);
        }
    }

    #[test]
    fn a_recording_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), example("json")).unwrap();
        let observed = read(file.path()).unwrap();
        assert!(observed.order.count() > 0 && observed.splats.len() == 1);
        assert_eq!(observed.order.difference(&observed.order), None);
        assert!(observed.order.hits().next().unwrap().to_string().ends_with(" by head"));
    }
}
