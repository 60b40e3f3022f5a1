//! A virtio device as a PCI function (Virtio 1.2, 4.1): its registers, and how its driver sets it up.

use super::super::pci::{ConfigSpace, Function, Identity, Messages, Msix, TABLE_ENTRY};
use super::super::{Device, PowerEvent};
use super::{Interrupt, Memory, Virtio, Virtqueue};
use crate::kvm::Machine;
use probe_engine::addr::Gpa;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_queue::{Queue, QueueT};
use vmm_sys_util::eventfd::EventFd;

/// Has a store of the guest ring an eventfd without an exit to us.
pub trait Doorbells {
    /// From now on a store to `at` rings `event`. Says whether that can be had: if not, the store comes to us.
    fn connect(&self, at: Gpa, event: &EventFd) -> bool;
}

impl Doorbells for Machine {
    fn connect(&self, at: Gpa, event: &EventFd) -> bool {
        self.ring_at_store(at, event)
    }
}

/// Where its registers are, from its base address on.
const COMMON: u64 = 0;
const INTERRUPT_STATUS: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
const DOORBELLS: u64 = 0x3000;
const TABLE: u64 = 0x4000;
const PENDING: u64 = 0x5000;
/// Bytes from one queue's doorbell to the next.
const DOORBELL: u64 = 4;
/// How far apart they are.
const AREA: u64 = 0x1000;

/// Device status (2.1).
mod status {
    pub(super) const FEATURES_OK: u8 = 8;
    pub(super) const DRIVER_OK: u8 = 4;
}

/// Features of the transport and of the queues (chapter 6): indirect descriptors, notifications by index, version 1.
const FEATURES: u64 = 1 << 28 | EVENT_INDEX | VERSION_1;
const EVENT_INDEX: u64 = 1 << 29;
const VERSION_1: u64 = 1 << 32;
/// No interrupt.
const NO_VECTOR: u16 = 0xffff;

/// A device on the bus.
pub struct Transport {
    device: Arc<dyn Virtio>,
    memory: Memory,
    msix: Arc<Msix>,
    config: Mutex<ConfigSpace>,
    /// Where message control is in it.
    msix_control: usize,
    /// The interrupt of each queue.
    interrupts: Vec<Interrupt>,
    driver: Mutex<Driver>,
}

/// What the driver has set up.
#[derive(Default)]
struct Driver {
    status: u8,
    features: u64,
    device_feature_select: u32,
    driver_feature_select: u32,
    config_vector: u16,
    queue_select: u16,
    queues: Vec<Setting>,
}

/// A queue before it is live.
#[derive(Clone, Copy)]
struct Setting {
    size: u16,
    is_enabled: bool,
    /// Addresses of the descriptors, of the driver's ring and of the device's (GPA).
    areas: [u64; 3],
}

const UNSET: Setting = Setting { size: Virtqueue::SIZE, is_enabled: false, areas: [0; 3] };

impl Transport {
    /// Addresses that a device takes.
    pub const SIZE: u64 = 0x8000;

    /// Puts `device` on the bus, at `base`.
    #[must_use]
    pub fn new(
        device: Arc<dyn Virtio>,
        base: u32,
        memory: Memory,
        messages: Box<dyn Messages>,
        doorbells: &dyn Doorbells,
    ) -> Self {
        let count = device.queues().len();
        let msix = Arc::new(Msix::new(count as u16 + 1, messages));
        for (n, queue) in (0..).zip(device.queues()) {
            // Otherwise the store comes to us, and we ring.
            doorbells.connect(Gpa(u64::from(base) + DOORBELLS + n * DOORBELL), queue.kick());
        }
        let interrupt = || Interrupt { msix: msix.clone(), vector: Arc::new(AtomicU16::new(NO_VECTOR)) };
        let interrupts = (0..count).map(|_| interrupt()).collect();
        let mut config = ConfigSpace::new(&identity(device.kind()));
        config.set_base_address(base, Self::SIZE as u32);
        let areas = [(1, COMMON, 0x38), (3, INTERRUPT_STATUS, 1), (4, DEVICE, AREA), (2, DOORBELLS, AREA)];
        for (kind, offset, length) in areas {
            config.add_capability(VENDOR_SPECIFIC, &capability(kind, offset, length), &[]);
        }
        let msix_control = config.add_capability(MSIX, &msix_capability(msix.vectors()), &[0, 0xc0]) + 2;
        let driver =
            Mutex::new(Driver { queues: vec![UNSET; count], config_vector: NO_VECTOR, ..Driver::default() });
        Self { device, memory, msix, config: Mutex::new(config), msix_control, interrupts, driver }
    }

    fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self) -> MutexGuard<'_, ConfigSpace> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn offered(&self) -> u64 {
        self.device.features() | FEATURES
    }

    /// Reads the register of the common configuration (4.1.4.3) at `offset`.
    fn read_common(&self, offset: u64) -> u64 {
        let driver = self.driver();
        let queue = driver.queues.get(usize::from(driver.queue_select));
        let half = |features: u64, select: u32| match select {
            0 => features & 0xffff_ffff,
            1 => features >> 32,
            _ => 0,
        };
        match offset {
            0x00 => driver.device_feature_select.into(),
            0x04 => half(self.offered(), driver.device_feature_select),
            0x08 => driver.driver_feature_select.into(),
            0x0c => half(driver.features, driver.driver_feature_select),
            0x10 => driver.config_vector.into(),
            0x12 => driver.queues.len() as u64,
            0x14 => driver.status.into(),
            0x16 => driver.queue_select.into(),
            0x18 => queue.map_or(0, |queue| queue.size.into()),
            0x1a => self.interrupt(&driver).map_or(NO_VECTOR, |i| i.vector.load(Ordering::Relaxed)).into(),
            0x1c => queue.map_or(0, |queue| queue.is_enabled.into()),
            0x1e => driver.queue_select.into(),
            0x20..0x38 => queue.map_or(0, |queue| {
                let area = queue.areas.get(((offset - 0x20) / 8) as usize).copied().unwrap_or(0);
                if offset % 8 == 4 { area >> 32 } else { area }
            }),
            _ => 0,
        }
    }

    /// Writes `value` to the register at `offset`.
    fn write_common(&self, offset: u64, value: u64, size: usize) {
        let mut driver = self.driver();
        if offset == 0x14 {
            return self.set_status(&mut driver, value as u8);
        }
        match offset {
            0x00 => driver.device_feature_select = value as u32,
            0x08 => driver.driver_feature_select = value as u32,
            0x0c if driver.status & status::FEATURES_OK == 0 => {
                let (value, low) = (value & 0xffff_ffff, driver.features & 0xffff_ffff);
                match driver.driver_feature_select {
                    0 => driver.features = driver.features & !0xffff_ffff | value,
                    1 => driver.features = value << 32 | low,
                    _ => {}
                }
            }
            0x10 => driver.config_vector = self.vector(value),
            0x16 => driver.queue_select = value as u16,
            0x1a => {
                if let Some(interrupt) = self.interrupt(&driver) {
                    interrupt.vector.store(self.vector(value), Ordering::Relaxed);
                }
            }
            0x18 | 0x1c | 0x20..0x38 => {
                let is_live = driver.status & status::DRIVER_OK != 0;
                let select = usize::from(driver.queue_select);
                if let Some(queue) =
                    driver.queues.get_mut(select).filter(|queue| !is_live && !queue.is_enabled)
                {
                    queue.set(offset, value, size);
                }
            }
            _ => {}
        }
    }

    /// The number of an interrupt that there is, or none.
    fn vector(&self, value: u64) -> u16 {
        u16::try_from(value).ok().filter(|vector| *vector < self.msix.vectors()).unwrap_or(NO_VECTOR)
    }

    fn interrupt(&self, driver: &Driver) -> Option<&Interrupt> {
        self.interrupts.get(usize::from(driver.queue_select))
    }

    fn set_status(&self, driver: &mut Driver, new: u8) {
        if new == 0 {
            return self.reset(driver);
        }
        let acceptable = driver.features & !self.offered() == 0 && driver.features & VERSION_1 != 0;
        let began = new & !driver.status;
        driver.status = if acceptable { new } else { new & !status::FEATURES_OK };
        if began & status::DRIVER_OK != 0 && driver.status & status::FEATURES_OK != 0 {
            let queues = self.device.queues().iter().zip(&driver.queues).zip(&self.interrupts);
            for ((queue, setting), interrupt) in queues.filter(|((_, setting), _)| setting.is_enabled) {
                if let Some(ready) = setting.ready(driver.features & EVENT_INDEX != 0, &self.memory) {
                    queue.start(ready, self.memory.clone(), interrupt.clone());
                }
            }
        }
    }

    fn reset(&self, driver: &mut Driver) {
        self.device.queues().iter().for_each(|queue| queue.reset());
        for interrupt in &self.interrupts {
            interrupt.vector.store(NO_VECTOR, Ordering::Relaxed);
        }
        let queues = vec![UNSET; driver.queues.len()];
        *driver = Driver { queues, config_vector: NO_VECTOR, ..Driver::default() };
    }
}

impl Setting {
    fn set(&mut self, offset: u64, value: u64, size: usize) {
        match offset {
            0x18 => self.size = value as u16,
            0x1c => self.is_enabled = value == 1,
            _ => {
                if let Some(area) = self.areas.get_mut(((offset - 0x20) / 8) as usize) {
                    *area = match (offset % 8, size) {
                        (0, 8) => value,
                        (0, _) => *area & !0xffff_ffff | value & 0xffff_ffff,
                        _ => *area & 0xffff_ffff | value << 32,
                    };
                }
            }
        }
    }

    /// The queue as it is to be used, if that makes sense.
    fn ready(&self, event_index: bool, memory: &Memory) -> Option<Queue> {
        let mut queue = Queue::new(Virtqueue::SIZE).ok()?;
        queue.try_set_size(self.size).ok()?;
        let [descriptors, driver, device] = self.areas.map(vm_memory::GuestAddress);
        queue.try_set_desc_table_address(descriptors).ok()?;
        queue.try_set_avail_ring_address(driver).ok()?;
        queue.try_set_used_ring_address(device).ok()?;
        queue.set_event_idx(event_index);
        queue.set_ready(true);
        queue.is_valid(&*memory.of_devices()).then_some(queue)
    }
}

impl Function for Transport {
    fn read_config(&self, at: u8, data: &mut [u8]) {
        self.config().read(at, data);
    }

    fn write_config(&self, at: u8, data: &[u8]) {
        let mut config = self.config();
        config.write(at, data);
        let control = u16::from_le_bytes(config.get(self.msix_control));
        drop(config);
        self.msix.set_control(control);
    }
}

impl Device for Transport {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let at = offset % AREA;
        match offset - at {
            COMMON => fill(data, &self.read_common(at).to_le_bytes(), 0),
            DEVICE => fill(data, self.device.config(), at),
            TABLE if at < u64::from(self.msix.vectors()) * TABLE_ENTRY => self.msix.read_table(at, data),
            PENDING => self.msix.read_pending(at, data),
            // Nothing is ever in the interrupt status, as interrupts are messages.
            _ => data.fill(0),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Option<PowerEvent> {
        let at = offset % AREA;
        match offset - at {
            COMMON => {
                let mut value = [0; 8];
                value.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
                self.write_common(at, u64::from_le_bytes(value), data.len());
            }
            DOORBELLS => {
                if let Some(queue) = self.device.queues().get((at / DOORBELL) as usize) {
                    queue.ring();
                }
            }
            TABLE => self.msix.write_table(at, data),
            _ => {}
        }
        None
    }
}

/// Fills `data` with `bytes` from `from` on, and with zeros behind these.
fn fill(data: &mut [u8], bytes: &[u8], from: u64) {
    let bytes = bytes.iter().skip(from as usize).chain(std::iter::repeat(&0));
    data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

/// Of a device of this kind, without the registers of older versions (4.1.2).
fn identity(kind: u16) -> Identity {
    const VENDOR: u16 = 0x1af4;
    const FIRST: u16 = 0x1040;
    /// Of no class that is defined.
    const OTHER: [u8; 3] = [0xff, 0, 0];
    Identity {
        vendor: VENDOR,
        device: FIRST + kind,
        class: OTHER,
        revision: 1,
        subsystem: (VENDOR, FIRST + kind),
    }
}

const VENDOR_SPECIFIC: u8 = 0x09;
const MSIX: u8 = 0x11;

/// `struct virtio_pci_cap` (4.1.4) behind its first two bytes. That of the doorbells has one word more.
fn capability(kind: u8, offset: u64, length: u64) -> Vec<u8> {
    let is_doorbells = offset == DOORBELLS;
    let size = if is_doorbells { 20 } else { 16 };
    // In base address register 0.
    let mut body = vec![size, kind, 0, 0, 0, 0];
    body.extend((offset as u32).to_le_bytes());
    body.extend((length as u32).to_le_bytes());
    if is_doorbells {
        body.extend((DOORBELL as u32).to_le_bytes());
    }
    body
}

/// The MSI-X capability behind its first two bytes: the table's size less one, and where table and pending bits are.
fn msix_capability(vectors: u16) -> Vec<u8> {
    let mut body = (vectors - 1).to_le_bytes().to_vec();
    body.extend((TABLE as u32).to_le_bytes());
    body.extend((PENDING as u32).to_le_bytes());
    body
}
