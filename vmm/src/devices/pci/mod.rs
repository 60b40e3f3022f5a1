//! PCI: one root bus, reached by the two ports of configuration mechanism #1 (PCI Local Bus Specification 3.0, 3.2.2.3.2).

mod config;
mod msix;

use super::{Device, PowerEvent};
use crate::layout;
pub use config::{ConfigSpace, Identity};
pub use msix::{Messages, Msix, TABLE_ENTRY};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What answers the accesses to a function's configuration space.
pub trait Function: Send + Sync {
    /// The guest reads `data` from `at` on. The access may reach beyond the 256 bytes.
    fn read_config(&self, at: u8, data: &mut [u8]);

    /// The guest writes `data` to `at`, likewise.
    fn write_config(&self, at: u8, data: &[u8]);
}

/// The root bus. Its device 0 is the host bridge; each other one has one function, and an address range of its own.
pub struct RootBus {
    /// What CONFIG_ADDRESS holds.
    selected: AtomicU32,
    devices: Vec<Arc<dyn Function>>,
    free: Range<u64>,
}

/// As many as the bus has.
const DEVICES: usize = 32;
/// CONFIG_ADDRESS: an access to CONFIG_DATA is one to the configuration space.
const ENABLE: u32 = 1 << 31;
/// Where CONFIG_DATA is, behind CONFIG_ADDRESS.
const CONFIG_DATA: u64 = 4;

impl Default for RootBus {
    fn default() -> Self {
        // What other small machines have as their host bridge.
        let bridge =
            Identity { vendor: 0x8086, device: 0x0d57, class: [0x06, 0, 0], revision: 0, subsystem: (0, 0) };
        let bridge: Arc<dyn Function> = Arc::new(Bridge(ConfigSpace::new(&bridge)));
        Self { selected: AtomicU32::new(0), devices: vec![bridge], free: layout::PCI_MEMORY }
    }
}

impl RootBus {
    /// Addresses (GPA) for a device: `size` of them, a power of two, of which the first is a multiple. `None` when there
    /// are no more.
    pub fn allocate(&mut self, size: u64) -> Option<Range<u64>> {
        let start = self.free.start.checked_next_multiple_of(size)?;
        let end = start.checked_add(size).filter(|end| *end <= self.free.end)?;
        self.free.start = end;
        Some(start..end)
    }

    /// Plugs the next device in. Says whether there was room for it.
    #[must_use]
    pub fn add(&mut self, device: Arc<dyn Function>) -> bool {
        let has_room = self.devices.len() < DEVICES;
        if has_room {
            self.devices.push(device);
        }
        has_room
    }

    /// Whose configuration space is selected, and from where on `offset` in CONFIG_DATA reads it.
    fn selected(&self, offset: u64) -> Option<(&dyn Function, u8)> {
        let address = self.selected.load(Ordering::Relaxed);
        let [register, function, bus, _] = address.to_le_bytes();
        let is_there = address & ENABLE != 0 && bus == 0 && function & 7 == 0;
        let device = self.devices.get(usize::from(function >> 3)).filter(|_| is_there)?;
        Some((&**device, (register & !3) + (offset - CONFIG_DATA) as u8))
    }
}

impl Device for RootBus {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        match (offset, self.selected(offset.max(CONFIG_DATA))) {
            (0, _) if data.len() == 4 => {
                data.copy_from_slice(&self.selected.load(Ordering::Relaxed).to_le_bytes());
            }
            (CONFIG_DATA.., Some((device, at))) => device.read_config(at, data),
            _ => {}
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Option<PowerEvent> {
        match (offset, self.selected(offset.max(CONFIG_DATA))) {
            (0, _) => {
                if let Ok(address) = data.try_into() {
                    self.selected.store(u32::from_le_bytes(address), Ordering::Relaxed);
                }
            }
            (CONFIG_DATA.., Some((device, at))) => device.write_config(at, data),
            _ => {}
        }
        None
    }
}

/// A host bridge, which is there to be found.
struct Bridge(ConfigSpace);

impl Function for Bridge {
    fn read_config(&self, at: u8, data: &mut [u8]) {
        self.0.read(at, data);
    }

    fn write_config(&self, _: u8, _: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bus: &RootBus, address: u32, offset: u64, size: usize) -> Vec<u8> {
        bus.write(0, &address.to_le_bytes());
        let mut data = vec![0; size];
        bus.read(CONFIG_DATA + offset, &mut data);
        data
    }

    #[test]
    fn the_bridge_is_found_and_nothing_else() {
        let bus = RootBus::default();
        assert_eq!(read(&bus, ENABLE, 0, 4), [0x86, 0x80, 0x57, 0x0d]);
        assert_eq!(read(&bus, ENABLE | 8, 3, 1), [0x06]);
        for absent in [0, ENABLE | 1 << 8, ENABLE | 1 << 11, ENABLE | 1 << 16, ENABLE | 0xff_ff00] {
            assert_eq!(read(&bus, absent, 0, 4), [0xff; 4], "{absent:#x}");
        }
        let mut address = [0; 4];
        bus.read(0, &mut address);
        assert_eq!(u32::from_le_bytes(address), ENABLE | 0xff_ff00);
    }

    #[test]
    fn accesses_of_any_size_at_any_place_do_no_harm() {
        let bus = RootBus::default();
        for (offset, size) in (0..8).flat_map(|offset| [0, 1, 2, 3, 4, 8, 4096].map(|size| (offset, size))) {
            bus.write(0, &(ENABLE | 0xfc).to_le_bytes());
            let mut data = vec![0; size];
            bus.read(offset, &mut data);
            bus.write(offset, &data);
        }
    }

    #[test]
    fn addresses_are_multiples_of_their_number_until_there_are_no_more() {
        let mut bus = RootBus::default();
        let first = bus.allocate(0x1000).unwrap();
        let second = bus.allocate(0x8000).unwrap();
        assert!(
            first.end <= second.start && second.start % 0x8000 == 0 && second.end - second.start == 0x8000
        );
        assert_eq!(bus.allocate(1 << 40), None);
        let all = std::iter::from_fn(|| bus.allocate(1 << 24)).last().unwrap();
        assert!(all.end <= layout::PCI_MEMORY.end);
    }

    #[test]
    fn there_is_room_for_31_devices() {
        let mut bus = RootBus::default();
        let added = (0..40).filter(|_| {
            let identity = Identity { vendor: 1, device: 2, class: [0; 3], revision: 0, subsystem: (0, 0) };
            bus.add(Arc::new(Bridge(ConfigSpace::new(&identity))))
        });
        assert_eq!(added.count(), 31);
        assert_eq!(read(&bus, ENABLE | 31 << 11, 0, 4), [1, 0, 2, 0]);
    }
}
