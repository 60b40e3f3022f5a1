//! Interrupts by messages: the table that says where each goes (PCI Local Bus Specification 3.0, 6.8.2).

use crate::kvm::MessageSender;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sends an interrupt message: a store of `data` to `address` (GPA) that a local APIC takes.
pub trait Messages: Send + Sync {
    /// A message that goes nowhere is lost, as on a bus.
    fn send(&self, address: u64, data: u32);
}

impl Messages for MessageSender {
    fn send(&self, address: u64, data: u32) {
        self.send(address, data);
    }
}

/// Bytes of one entry of the table.
pub const TABLE_ENTRY: u64 = 16;
/// An entry's last word: its message is held back.
const MASKED: u32 = 1;
/// Message control: messages are sent at all, and none is.
const ENABLED: u16 = 1 << 15;
const ALL_MASKED: u16 = 1 << 14;

/// A function's interrupts. What is raised while it is masked is sent when it no longer is.
pub struct Msix {
    messages: Box<dyn Messages>,
    state: Mutex<MsixState>,
}

struct MsixState {
    control: u16,
    entries: Vec<MsixVector>,
}

#[derive(Clone, Copy)]
struct MsixVector {
    words: [u32; 4],
    is_pending: bool,
}

impl Msix {
    /// So many interrupts, all masked.
    #[must_use]
    pub fn new(vectors: u16, messages: Box<dyn Messages>) -> Self {
        let entry = MsixVector { words: [0, 0, 0, MASKED], is_pending: false };
        let state = MsixState { control: 0, entries: vec![entry; vectors.into()] };
        Self { messages, state: Mutex::new(state) }
    }

    /// How many there are.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.lock().entries.len() as u16
    }

    /// Raises interrupt `vector`, if there is one of that number.
    pub fn raise(&self, vector: u16) {
        let mut state = self.lock();
        if let Some(entry) = state.entries.get_mut(usize::from(vector)) {
            entry.is_pending = true;
        }
        self.send(state);
    }

    /// The guest has written message control.
    pub fn set_control(&self, control: u16) {
        let mut state = self.lock();
        state.control = control;
        self.send(state);
    }

    /// The guest reads `data` from `offset` on in the table.
    pub fn read_table(&self, offset: u64, data: &mut [u8]) {
        let state = self.lock();
        let bytes = state.entries.iter().flat_map(|entry| entry.words).flat_map(u32::to_le_bytes);
        let bytes = bytes.skip(offset as usize).chain(std::iter::repeat(0xff));
        data.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    }

    /// The guest writes `data` to `offset` in the table: whole words.
    pub fn write_table(&self, offset: u64, data: &[u8]) {
        let mut state = self.lock();
        let words = state.entries.iter_mut().flat_map(|entry| &mut entry.words).skip((offset / 4) as usize);
        if offset.is_multiple_of(4) {
            words.zip(data.as_chunks().0).for_each(|(word, bytes)| *word = u32::from_le_bytes(*bytes));
        }
        self.send(state);
    }

    /// The guest reads `data` from `offset` on in the bits of what is pending.
    pub fn read_pending(&self, offset: u64, data: &mut [u8]) {
        let state = self.lock();
        let bits = |entries: &[MsixVector]| {
            entries.iter().rev().fold(0, |bits, e| bits << 1 | u8::from(e.is_pending))
        };
        let bytes = state.entries.chunks(8).map(bits).skip(offset as usize).chain(std::iter::repeat(0));
        data.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    }

    /// Sends what is pending and may be sent.
    fn send(&self, mut state: MutexGuard<'_, MsixState>) {
        if state.control & (ENABLED | ALL_MASKED) != ENABLED {
            return;
        }
        for entry in &mut state.entries {
            let [low, high, data, control] = entry.words;
            if entry.is_pending && control & MASKED == 0 {
                entry.is_pending = false;
                self.messages.send(u64::from(high) << 32 | u64::from(low), data);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, MsixState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Sent(Arc<Mutex<Vec<(u64, u32)>>>);

    impl Messages for Sent {
        fn send(&self, address: u64, data: u32) {
            self.0.lock().unwrap().push((address, data));
        }
    }

    fn entry(n: u32) -> Vec<u8> {
        [0xfee0_0000 + n, n, 0x4020 + n, 0].map(u32::to_le_bytes).concat()
    }

    fn pending(msix: &Msix) -> u8 {
        let mut bits = [0];
        msix.read_pending(0, &mut bits);
        bits[0]
    }

    #[test]
    fn a_masked_interrupt_is_sent_when_it_no_longer_is() {
        let sent = Sent::default();
        let msix = Msix::new(3, Box::new(sent.clone()));
        for n in 0..3 {
            msix.write_table(u64::from(n) * TABLE_ENTRY, &entry(n));
        }
        msix.raise(1);
        assert_eq!((pending(&msix), sent.0.lock().unwrap().len()), (2, 0), "not enabled");
        msix.set_control(ENABLED | ALL_MASKED);
        msix.raise(2);
        assert_eq!((pending(&msix), sent.0.lock().unwrap().len()), (6, 0), "all masked");
        msix.write_table(2 * TABLE_ENTRY + 12, &MASKED.to_le_bytes());
        msix.set_control(ENABLED);
        assert_eq!((pending(&msix), sent.0.lock().unwrap().clone()), (4, vec![(0x1_fee0_0001, 0x4021)]));
        msix.write_table(2 * TABLE_ENTRY + 12, &[0; 4]);
        assert_eq!((pending(&msix), sent.0.lock().unwrap().len()), (0, 2));
        msix.raise(7);
        assert_eq!(sent.0.lock().unwrap().len(), 2);
    }

    #[test]
    fn the_table_reads_as_written_and_ends() {
        let msix = Msix::new(2, Box::new(Sent::default()));
        msix.write_table(TABLE_ENTRY, &entry(5));
        let mut read = [0; 24];
        msix.read_table(TABLE_ENTRY, &mut read);
        assert_eq!(read[..16], entry(5));
        assert_eq!(read[16..], [0xff; 8]);
        for offset in [0, 1, 30, 31, 32, 4096, u64::MAX] {
            msix.write_table(offset, &[0xff; 8]);
            msix.read_table(offset, &mut read);
            msix.read_pending(offset, &mut read);
        }
    }
}
