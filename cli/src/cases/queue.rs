//! Runs cases side by side.

use std::collections::VecDeque;
use std::fs;
use std::num::NonZero;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// Does each of `tasks` by `work`, `jobs` of them at a time, and hands each result to `done` as it comes.
pub(crate) fn side_by_side<T: Send, R: Send>(
    tasks: Vec<T>,
    jobs: usize,
    work: impl Fn(T) -> R + Sync,
    mut done: impl FnMut(R),
) {
    let waiting = Mutex::new(VecDeque::from(tasks));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (results, all) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..jobs {
            let (results, next, work) = (results.clone(), &next, &work);
            scope.spawn(move || {
                while let Some(task) = next() {
                    // Nobody stops listening before all have ended.
                    let _ = results.send(work(task));
                }
            });
        }
        drop(results);
        all.into_iter().for_each(&mut done);
    });
}

/// How many guests with `memory` bytes each fit this machine side by side, of which each takes `cpus` cores.
pub(crate) fn fitting(memory: u64, cpus: u8) -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get) / usize::from(cpus.max(1));
    let free = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let by_memory = free.map_or(1, |free| free / memory.max(1));
    cores.min(usize::try_from(by_memory).unwrap_or(usize::MAX)).max(1)
}

/// The bytes that can be had, by the kernel's own list.
fn available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_is_done_once() {
        for jobs in [1, 3, 20] {
            let mut all = Vec::new();
            side_by_side((0..10).collect(), jobs, |n: u32| n * n, |square| all.push(square));
            all.sort_unstable();
            assert_eq!(all, (0..10).map(|n| n * n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn memory_that_can_be_had_limits_what_runs_side_by_side() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!((available(""), available("MemAvailable: many")), (None, None));
        assert_eq!((fitting(u64::MAX, 1), fitting(1, u8::MAX)), (1, 1));
    }
}
