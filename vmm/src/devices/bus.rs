//! What is at which port and at which address.

use crate::kvm::{Data, DeviceAccess, Space};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The guest asks for the end of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerEvent {
    /// ACPI S5.
    Off,
    /// A reset through the i8042.
    Reset,
}

/// Something that answers a guest's accesses. Shared by all vCPU threads.
pub trait Device: Send + Sync {
    /// The guest reads `data` from `offset` on in the device's range. The access may reach beyond its end.
    fn read(&self, offset: u64, data: &mut [u8]);

    /// The guest writes `data` to `offset`, likewise. A change of power state is for the caller to carry out.
    fn write(&self, offset: u64, data: &[u8]) -> Option<PowerEvent>;
}

/// The ports and the addresses (GPA) of a machine's devices.
#[derive(Default)]
pub struct Bus {
    ports: Ranges,
    memory: Ranges,
}

/// Devices by the start of their ranges, with the ranges' ends. No range overlaps another.
type Ranges = BTreeMap<u64, (u64, Arc<dyn Device>)>;

impl Bus {
    /// Has `device` answer at `range`. Of devices that would answer at one address, the first stays.
    pub fn add(&mut self, space: Space, range: Range<u64>, device: Arc<dyn Device>) {
        let ranges = match space {
            Space::Port => &mut self.ports,
            Space::Memory => &mut self.memory,
        };
        let before = ranges.range(..range.end).next_back();
        if range.is_empty() || before.is_some_and(|(_, (end, _))| *end > range.start) {
            return;
        }
        ranges.insert(range.start, (range.end, device));
    }

    /// Carries out an access. Where no device is, reads give all ones and writes vanish, as on a PC's empty bus.
    pub fn serve(&self, access: DeviceAccess<'_>) -> Option<PowerEvent> {
        let DeviceAccess { space, at, data } = access;
        let ranges = match space {
            Space::Port => &self.ports,
            Space::Memory => &self.memory,
        };
        let found = ranges.range(..=at).next_back();
        let found = found.filter(|(_, (end, _))| at < *end).map(|(start, (_, device))| (at - start, device));
        match (found, data) {
            (Some((offset, device)), Data::Read(data)) => {
                device.read(offset, data);
                None
            }
            (Some((offset, device)), Data::Write(data)) => device.write(offset, data),
            (None, Data::Read(data)) => {
                data.fill(0xff);
                None
            }
            (None, Data::Write(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Note(Mutex<Vec<(u64, Vec<u8>)>>);

    impl Device for Note {
        fn read(&self, offset: u64, data: &mut [u8]) {
            data.fill(offset as u8);
        }

        fn write(&self, offset: u64, data: &[u8]) -> Option<PowerEvent> {
            self.0.lock().unwrap().push((offset, data.to_vec()));
            None
        }
    }

    fn read(bus: &Bus, space: Space, at: u64) -> u8 {
        let mut data = [0];
        bus.serve(DeviceAccess { space, at, data: Data::Read(&mut data) });
        data[0]
    }

    #[test]
    fn an_access_reaches_the_device_at_its_address_and_no_other() {
        let (one, other) = (Arc::new(Note::default()), Arc::new(Note::default()));
        let mut bus = Bus::default();
        bus.add(Space::Port, 0x10..0x18, one.clone());
        bus.add(Space::Port, 0x18..0x19, other.clone());
        bus.add(Space::Memory, 0x10..0x14, other.clone());
        let ports = [0xf, 0x10, 0x17, 0x18, 0x19].map(|at| read(&bus, Space::Port, at));
        assert_eq!(ports, [0xff, 0, 7, 0, 0xff]);
        let addresses = [0xf, 0x13, 0x14, u64::MAX].map(|at| read(&bus, Space::Memory, at));
        assert_eq!(addresses, [0xff, 3, 0xff, 0xff]);
        for at in [0x12, 0x18, 0x20] {
            bus.serve(DeviceAccess { space: Space::Port, at, data: Data::Write(&[at as u8; 2]) });
        }
        assert_eq!(*one.0.lock().unwrap(), [(2, vec![0x12; 2])]);
        assert_eq!(*other.0.lock().unwrap(), [(0, vec![0x18; 2])]);
    }

    #[test]
    fn a_range_that_is_taken_stays_taken() {
        let mut bus = Bus::default();
        bus.add(Space::Port, 0x10..0x18, Arc::new(Note::default()));
        for range in [0x17..0x20, 0x8..0x11, 0x10..0x18, 0x12..0x13, 0x0..0x40, 0x30..0x30] {
            bus.add(Space::Port, range, Arc::new(Note::default()));
        }
        assert_eq!([0xf, 0x12, 0x18, 0x30].map(|at| read(&bus, Space::Port, at)), [0xff, 2, 0xff, 0xff]);
    }
}
