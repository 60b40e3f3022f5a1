//! Sends records in batches, again where a receiver does not take them, and counts what is not delivered.

use super::logs::{self, Envelope};
use super::queue::Queue;
use super::receiver::{Answer, Receiver};
use crate::say::{note, say};
use crate::wall_clock;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// So long is waited for an answer to the last record, when there is no time left.
const LAST_ANSWER: Duration = Duration::from_secs(1);
/// So long is waited before a batch is sent again, and twice as long each time, up to the longest.
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(2);

/// What has come of all records.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    /// Why some were lost that have been sent.
    pub(crate) why: Option<String>,
}

pub(super) struct Sender<'a> {
    queue: &'a Queue,
    receiver: Receiver,
    envelope: Envelope,
    delivery: Delivery,
    /// How many lost records the receiver was told of.
    told: u64,
    /// It is known that the receiver takes nothing.
    is_away: bool,
    /// What the receiver has said last of what it took.
    remark: String,
}

impl<'a> Sender<'a> {
    pub(super) fn new(queue: &'a Queue, receiver: Receiver, envelope: Envelope) -> Self {
        let (delivery, remark) = (Delivery::default(), String::new());
        Self { queue, receiver, envelope, delivery, told: 0, is_away: false, remark }
    }

    /// Sends what comes until no more comes, and tells the receiver what it did not get.
    pub(super) fn run(mut self) -> Delivery {
        while let Some(batch) = self.queue.batch() {
            let records = batch.len() as u64;
            let rejected = self.deliver(batch).min(records);
            self.delivery.delivered += records - rejected;
            self.delivery.lost += rejected;
        }
        let lost = self.lost();
        if lost > self.told {
            let request = self.envelope.request(&[logs::loss(wall_clock::now(), lost)]);
            // Nothing follows from its answer.
            let _ = self.receiver.post(&request, self.queue.left_for_answer().max(LAST_ANSWER));
        }
        Delivery { lost, ..self.delivery }
    }

    /// How many records were not delivered so far.
    fn lost(&self) -> u64 {
        self.delivery.lost + self.queue.lost()
    }

    /// Sends a batch until it is taken, or refused, or no time is left. Says how many of its records were not taken.
    fn deliver(&mut self, mut batch: Vec<String>) -> u64 {
        let (records, lost) = (batch.len() as u64, self.lost());
        if lost > self.told {
            batch.push(logs::loss(wall_clock::now(), lost));
        }
        let request = self.envelope.request(&batch);
        let mut delay = FIRST_DELAY;
        loop {
            let left = self.queue.left_for_answer();
            if left.is_zero() {
                return records;
            }
            match self.receiver.post(&request, left) {
                Answer::Taken { rejected, words } => {
                    self.queue.progress();
                    self.is_away = false;
                    self.told = lost;
                    if rejected > 0 {
                        let why = if words.is_empty() { "it rejects them".to_owned() } else { words };
                        self.delivery.why = Some(why);
                    } else if !words.is_empty() && words != self.remark {
                        note(format_args!("the receiver says: {words}"));
                        self.remark = words;
                    }
                    return rejected;
                }
                Answer::Never { why } => {
                    self.is_away = false;
                    self.delivery.why = Some(why);
                    return records;
                }
                Answer::Later { why, after } => {
                    if !std::mem::replace(&mut self.is_away, true) {
                        say(format_args!("the receiver does not take events: {why}; they are sent again"));
                    }
                    self.delivery.why = Some(why);
                    if !self.queue.pause(after.unwrap_or_else(|| jittered(delay))) {
                        return records;
                    }
                    delay = (2 * delay).min(LONGEST_DELAY);
                }
            }
        }
    }
}

/// Between half of `delay` and all of it: those who were sent away together do not come back together.
fn jittered(delay: Duration) -> Duration {
    let part = (RandomState::new().hash_one(()) % 1024) as u32;
    delay / 2 + delay / 2 * part / 1024
}
