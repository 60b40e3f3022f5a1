//! What others ask that takes no stop of the guest: whether it stands still, and its memory by physical addresses.
//!
//! Bytes of ours come and go by the thread alone that reads here, and what the guest changes meanwhile it changes as under any other
//! monitor. Who wants all of the memory at one moment pauses the guest.

use super::control::{Control, PauseCause};
use super::guests_own::GuestsOwn;
use super::handle::{Message, PhysicalError, StandsFor, Unstopped};
use probe_engine::addr::Gpa;
use probe_engine::memory::PhysMemory;

impl Control<'_> {
    /// Answers those of `messages` that take no stop, and gives the others.
    pub(super) fn serve_unstopped(&self, messages: impl Iterator<Item = Message>) -> Vec<Message> {
        let serve = |message| match message {
            Message::Unstopped(asked) => {
                self.answer_unstopped(asked);
                None
            }
            other => Some(other),
        };
        messages.filter_map(serve).collect()
    }

    /// Whoever does not wait any more gets nothing.
    fn answer_unstopped(&self, asked: Unstopped) {
        match asked {
            Unstopped::State(answer) => drop(answer.send(self.stands_for())),
            Unstopped::Ranges(answer) => drop(answer.send(self.ram.ranges())),
            Unstopped::Read(at, length, answer) => drop(answer.send(self.read_physical(at, length))),
        }
    }

    fn stands_for(&self) -> Option<StandsFor> {
        self.paused.map(|_| match self.pause_cause {
            PauseCause::Report => StandsFor::Splat,
            PauseCause::Commands | PauseCause::Start => StandsFor::Command,
        })
    }

    fn read_physical(&self, at: Gpa, length: usize) -> Result<Vec<u8>, PhysicalError> {
        let end = at.0.checked_add(length as u64).ok_or(PhysicalError::None(at))?;
        let memory = GuestsOwn { ram: &self.ram, hidden: self.arming.hidden_in(&(at..Gpa(end))) };
        let mut bytes = vec![0; length];
        memory.read(at, &mut bytes).map_err(|_| PhysicalError::None(at))?;
        Ok(bytes)
    }
}
