//! Records on their way from who reads them to who sends them. It has bounds: what does not fit is lost, and counted.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much waits, how much is sent at once, and for how long.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// So many records wait at most.
    pub(super) records: usize,
    /// So many bytes of them, of which the last record may be more.
    pub(super) bytes: usize,
    /// So many records are sent at once at most.
    pub(super) batch_records: usize,
    /// So many bytes of them, of which the last record may be more.
    pub(super) batch_bytes: usize,
    /// For so long the first record of a batch waits for others.
    pub(super) linger: Duration,
    /// For so long an answer is waited for.
    pub(super) answer: Duration,
    /// For so long who may wait waits for room.
    pub(super) patience: Duration,
    /// For so long is sent what is left at the end, from when something was taken last.
    pub(super) grace: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            records: 8192,
            bytes: 32 << 20,
            batch_records: 512,
            batch_bytes: 1 << 20,
            linger: Duration::from_millis(200),
            answer: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            grace: Duration::from_secs(10),
        }
    }
}

/// Whether who puts records in waits for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// What does not fit is lost: a guest would wait.
    Lose,
    /// They wait, until the receiver has taken nothing for a while.
    Wait,
}

pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    bounds: Bounds,
}

#[derive(Default)]
struct State {
    records: VecDeque<String>,
    bytes: usize,
    /// How many records did not fit.
    lost: u64,
    /// Somebody has waited for room in vain, and there has been none since.
    has_waited: bool,
    /// Until when what is left is sent, once no more records come.
    end: Option<Instant>,
}

impl Queue {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), bounds }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, until `time` at most.
    fn wait_until<'a>(&'a self, state: MutexGuard<'a, State>, time: Instant) -> MutexGuard<'a, State> {
        let left = time.saturating_duration_since(Instant::now());
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Puts `record` in, or counts it as lost.
    pub(super) fn push(&self, record: String, when_full: WhenFull) {
        let is_full =
            |state: &State| state.records.len() >= self.bounds.records || state.bytes >= self.bounds.bytes;
        let mut state = self.lock();
        let until = Instant::now() + self.bounds.patience;
        while is_full(&state) && when_full == WhenFull::Wait && !state.has_waited {
            state = self.wait_until(state, until);
            state.has_waited |= is_full(&state) && Instant::now() >= until;
        }
        if is_full(&state) {
            state.lost += 1;
            return;
        }
        state.bytes += record.len();
        state.records.push_back(record);
        self.changed.notify_all();
    }

    /// No more records come.
    pub(super) fn close(&self) {
        self.lock().end = Some(Instant::now() + self.bounds.grace);
        self.changed.notify_all();
    }

    /// The next records, as soon as there are many, or some that have waited for others. None when there are no more.
    pub(super) fn batch(&self) -> Option<Vec<String>> {
        let Bounds { batch_records, batch_bytes, linger, .. } = self.bounds;
        let mut state = self.lock();
        while state.records.is_empty() {
            if state.end.is_some() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let until = Instant::now() + linger;
        while state.end.is_none()
            && state.records.len() < batch_records
            && state.bytes < batch_bytes
            && Instant::now() < until
        {
            state = self.wait_until(state, until);
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < batch_records && bytes < batch_bytes {
            let Some(record) = state.records.pop_front() else { break };
            bytes += record.len();
            batch.push(record);
        }
        state.bytes -= bytes;
        state.has_waited = false;
        self.changed.notify_all();
        Some(batch)
    }

    /// Waits for so long, but not beyond the end. Whether there is time left.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            match state.end {
                Some(end) if end <= until.max(now) => return false,
                _ if until <= now => return true,
                _ => state = self.wait_until(state, until),
            }
        }
    }

    /// For how long an answer to what is sent now is waited for.
    pub(super) fn left_for_answer(&self) -> Duration {
        let (end, most) = (self.lock().end, self.bounds.answer);
        end.map_or(most, |end| most.min(end.saturating_duration_since(Instant::now())))
    }

    /// Something was taken: at the end there is time for more.
    pub(super) fn progress(&self) {
        if let Some(end) = &mut self.lock().end {
            *end = Instant::now() + self.bounds.grace;
        }
    }

    /// How many records did not fit so far.
    pub(super) fn lost(&self) -> u64 {
        self.lock().lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const SHORT: Duration = Duration::from_millis(20);

    fn bounds() -> Bounds {
        Bounds {
            records: 3,
            bytes: 100,
            batch_records: 2,
            batch_bytes: 50,
            linger: Duration::ZERO,
            answer: Duration::from_secs(600),
            patience: SHORT,
            grace: SHORT,
        }
    }

    fn filled(bounds: Bounds, lengths: &[usize]) -> Queue {
        let queue = Queue::new(bounds);
        lengths.iter().for_each(|length| queue.push("x".repeat(*length), WhenFull::Lose));
        queue
    }

    fn lengths(batch: Option<Vec<String>>) -> Option<Vec<usize>> {
        batch.map(|batch| batch.iter().map(String::len).collect())
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let queue = filled(bounds(), &[1, 2, 3, 4, 5]);
        assert_eq!(queue.lost(), 2);
        assert_eq!(lengths(queue.batch()), Some(vec![1, 2]));
        assert_eq!(lengths(queue.batch()), Some(vec![3]));
        queue.close();
        assert_eq!(queue.batch(), None);
        // The same by bytes, of which the last record may have more.
        let queue = filled(bounds(), &[99, 1000, 1]);
        assert_eq!(queue.lost(), 1);
        assert_eq!(lengths(queue.batch()), Some(vec![99]));
        assert_eq!(lengths(queue.batch()), Some(vec![1000]));
    }

    #[test]
    fn who_may_wait_waits_for_room_but_not_twice_in_vain() {
        let queue = filled(bounds(), &[1, 2, 3]);
        let begun = Instant::now();
        (0..1000).for_each(|_| queue.push(String::new(), WhenFull::Wait));
        assert!((SHORT..1000 * SHORT).contains(&begun.elapsed()));
        assert_eq!(queue.lost(), 1000);
        let queue = filled(Bounds { patience: Duration::from_secs(600), ..bounds() }, &[1, 2, 3]);
        thread::scope(|scope| {
            scope.spawn(|| queue.push("x".repeat(4), WhenFull::Wait));
            thread::sleep(SHORT);
            assert_eq!(lengths(queue.batch()), Some(vec![1, 2]));
        });
        assert_eq!(lengths(queue.batch()), Some(vec![3, 4]));
        assert_eq!(queue.lost(), 0);
    }

    #[test]
    fn a_pause_ends_with_the_time_that_is_left() {
        let queue = filled(bounds(), &[]);
        assert!(queue.pause(Duration::ZERO) && queue.pause(SHORT));
        thread::scope(|scope| {
            let pause = scope.spawn(|| queue.pause(Duration::from_secs(600)));
            queue.close();
            assert!(!pause.join().unwrap());
        });
        assert!(queue.left_for_answer() <= SHORT);
        thread::sleep(SHORT);
        assert!(!queue.pause(Duration::ZERO));
    }
}
