//! Which of this machine's processors an emulated host runs on: hosts that run side by side take different ones.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A processor, taken until this is dropped.
pub(super) struct Processor {
    number: usize,
    /// Held by whoever runs there; `None` where all are taken.
    _lock: Option<File>,
}

impl Processor {
    /// One that no other host runs on, if there is one, by locks on files in `folder`.
    pub(super) fn take(folder: &Path) -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        let here = sched_getcpu();
        // From here on: what is near is warm.
        let numbers = (here..CpuSet::MAX_CPU).chain(0..here).filter(|number| allowed.is_set(*number));
        for number in numbers.clone() {
            if let Some(lock) = lock(folder, number) {
                return Self { number, _lock: Some(lock) };
            }
        }
        let count = numbers.clone().count().max(1);
        let number = numbers.clone().nth(std::process::id() as usize % count).unwrap_or(here);
        Self { number, _lock: None }
    }

    /// Its number.
    pub(super) fn number(&self) -> usize {
        self.number
    }
}

/// The name of the file that stands for a processor.
fn name(number: usize) -> String {
    format!("processor-{number}")
}

/// Whether a file of this name is one of those.
pub(super) fn is_lock(name: &[u8]) -> bool {
    name.starts_with(b"processor-")
}

fn lock(folder: &Path, number: usize) -> Option<File> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(folder.join(name(number)));
    file.ok().filter(|file| file.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn hosts_take_different_processors_while_there_are_free_ones() {
        let folder = tempfile::tempdir().unwrap();
        let there = sched_getaffinity(None).unwrap().count() as usize;
        let taken: Vec<_> = (0..there).map(|_| Processor::take(folder.path())).collect();
        let numbers: BTreeSet<_> = taken.iter().map(Processor::number).collect();
        assert_eq!(numbers.len(), there);
        // All are taken: any will do.
        let more = Processor::take(folder.path());
        assert!(numbers.contains(&more.number()) && more._lock.is_none());
        let mut taken = taken;
        let freed = taken.pop().unwrap().number();
        assert_eq!(Processor::take(folder.path()).number(), freed);
    }

    #[test]
    fn without_a_folder_there_is_a_processor() {
        let allowed = sched_getaffinity(None).unwrap();
        assert!(allowed.is_set(Processor::take(Path::new("/nonexistent")).number()));
    }
}
