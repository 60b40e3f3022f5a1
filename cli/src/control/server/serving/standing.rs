//! Who wants the guest to stand still, and who is told that the guest does.

use super::super::super::frame::{Change, Request, Stop};
use super::super::stops;
use super::{Kind, Serving};
use std::time::Instant;

/// What those are told who have paused the guest, when somebody else lets it go on.
pub(super) const RESUMED: &str = "{\"jsonrpc\":\"2.0\",\"method\":\"resumed\"}\n";

impl Serving {
    /// From now on `client` wants the guest to stand still.
    pub(super) fn pauses(&mut self, client: u64) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.pauses = true;
        }
    }

    /// From now on nobody does, as `by` wants it, and the others who did are told. A CPU that has not executed its one instruction yet
    /// goes on like all others.
    pub(super) fn resumes(&mut self, by: u64) {
        let now = Instant::now();
        self.stops.stepper = None;
        for (id, client) in self.clients.iter_mut().filter(|(_, client)| client.pauses) {
            client.pauses = false;
            if *id == by {
                continue;
            }
            // That it has paused the guest is answered before that.
            client.was_resumed = client.is_waiting;
            if !client.is_waiting {
                client.notify(RESUMED, now);
            }
        }
    }

    /// The guest has come to stand still.
    pub(super) fn stopped(&mut self, stop: Stop) {
        let owner = match stop.probe {
            Some(probe) => self.stops.owner(probe),
            None => self.stops.stepper.take(),
        };
        let is_here = |client: &u64| self.clients.get(client).is_some_and(|client| !client.is_gone());
        let owner = owner.filter(is_here);
        // Whose that is is answered soon.
        if owner.is_none() && self.calls.values().any(|call| call.kind == Kind::AddsStops) {
            return self.stops.early.push(stop);
        }
        self.stops.last = stop.number;
        match owner {
            Some(client) => {
                self.pauses(client);
                if let Some(client) = self.clients.get_mut(&client) {
                    client.notify(&stops::notification(&stop.how), Instant::now());
                }
            }
            None => self.resume_unless_paused(),
        }
    }

    /// Nobody wants the guest to stand still any more where `client` did.
    pub(super) fn remove_stops(&mut self, client: u64) {
        let probes = self.stops.leave(client);
        if !probes.is_empty() {
            self.numbers += 1;
            // Nobody waits for the answer.
            self.ask(self.numbers, Request::Change(Change::Forget(probes)));
        }
    }

    /// Somebody does not want any more that the guest stands still: unless others do, it goes on.
    pub(super) fn resume_unless_paused(&mut self) {
        if !self.clients.values().any(|client| client.pauses) {
            self.numbers += 1;
            // Nobody waits for the answer.
            self.ask(self.numbers, Request::LetGo);
        }
    }
}
