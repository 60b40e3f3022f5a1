//! What is done with input that a hostile guest gives to devices: its stores and loads, what it puts in its memory, its resets,
//! and what comes from outside meanwhile.
//!
//! Each input is a list of steps, each a byte and what that needs behind it. A function returns whether an interrupt came of it.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use vm_memory::{Bytes, GuestAddress};
use vmm::devices::Bus;
use vmm::devices::pci::{ConfigSpace, Function, Identity, Messages, Msix, RootBus};
use vmm::devices::virtio::console::{Console, Port};
use vmm::devices::virtio::fs::{FolderDevice, Server};
use vmm::devices::virtio::{Doorbells, Rng, Transport, Virtio, Virtqueue};
use vmm::kvm::{Data, DeviceAccess, Space};
use vmm::memory::GuestRam;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::poll::PollContext;

/// Bytes of RAM.
pub const RAM: u64 = 1 << 20;
/// Where the device is.
const BASE: u32 = 0xc000_0000;
const PORTS: u64 = 0xcf8;
/// More steps show nothing new.
const MOST: usize = 200;

/// The steps, by the byte that stands for each, modulo their number.
pub mod step {
    /// Sets the device up: the features, queues at fixed places, interrupts, and it may begin.
    pub const START: u8 = 0;
    /// Resets it.
    pub const RESET: u8 = 1;
    /// Stores to its registers: an offset as u16, how many bytes (a power of two) as u8, and a value as u64.
    pub const STORE: u8 = 2;
    /// Loads: an offset, and how many bytes.
    pub const LOAD: u8 = 3;
    /// Writes to RAM: an address in 16 bytes as u16, a length as u8, and bytes.
    pub const RAM: u8 = 4;
    /// Rings the doorbell of a queue, as u8, and waits until the device has looked.
    pub const RING: u8 = 5;
    /// Something comes from outside: a length as u8, and bytes.
    pub const OUTSIDE: u8 = 6;
    /// A store to a port of PCI's configuration: which as u8, how many bytes, and a value.
    pub const PORT: u8 = 7;
    /// How many there are.
    pub const COUNT: u8 = 8;
}

/// What is left of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(|bytes| u16::from_le_bytes(bytes).into())
    }

    /// A length of 1, 2, 4 or 8, and so many bytes of the eight behind it.
    fn value(&mut self) -> Option<Vec<u8>> {
        let length = 1 << (self.byte()? & 3);
        self.take::<8>().map(|bytes| bytes.into_iter().take(length).collect())
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.byte()?);
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

/// Counts the interrupts.
#[derive(Clone, Default)]
struct Interrupts(Arc<AtomicUsize>);

impl Messages for Interrupts {
    fn send(&self, _: u64, _: u32) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Each store comes to us.
struct NoDoorbells;

impl Doorbells for NoDoorbells {
    fn connect(&self, _: probe_engine::addr::Gpa, _: &EventFd) -> bool {
        false
    }
}

/// Random numbers.
pub fn rng(input: &[u8]) -> bool {
    let Ok(rng) = Rng::new() else { return false };
    let is_started = rng.start(false).is_ok();
    is_started && under(Arc::new(rng), None, input)
}

/// A console with two ports, of which the second is read and written outside.
pub fn console(input: &[u8]) -> bool {
    let (Ok(first), Ok(second)) = (UnixStream::pair(), UnixStream::pair()) else { return false };
    let port = |name: &str, socket| Port { name: name.to_owned(), socket };
    let Ok(console) = Console::new(vec![port("first", first.0), port("second", second.0)]) else {
        return false;
    };
    let console = Arc::new(console);
    let is_raised = console.start(false).is_ok() && under(console.clone(), Some(&second.1), input);
    console.end();
    is_raised
}

/// A folder, whose server answers whatever comes from outside.
pub fn fs(input: &[u8]) -> bool {
    let Ok((ours, theirs)) = UnixStream::pair() else { return false };
    let Ok(requests) = ours.try_clone() else { return false };
    let server = Server::new(Box::new(requests));
    let Ok(folder) = FolderDevice::new("folder", 0, server.clone()) else { return false };
    let is_started = server.start(ours, || (), false).is_ok() && folder.start(false).is_ok();
    let is_raised = is_started && under(Arc::new(folder), Some(&theirs), input);
    let _ = theirs.shutdown(Shutdown::Both);
    is_raised
}

/// Where queue `n` has its descriptors; a page on is the driver's ring, and two pages on the device's.
pub fn queue(n: u64) -> u64 {
    0x4000 * (n + 1)
}

/// Requests that a queue holds.
pub const SIZE: u16 = 8;

/// Has a guest carry out `input`.
fn under(device: Arc<dyn Virtio>, outside: Option<&UnixStream>, input: &[u8]) -> bool {
    let Ok(memory) = GuestRam::new(RAM) else { return false };
    let (memory, interrupts) = (Arc::new(memory), Interrupts::default());
    let transport =
        Transport::new(device.clone(), BASE, memory.clone(), Box::new(interrupts.clone()), &NoDoorbells);
    let (transport, mut bus, mut root) = (Arc::new(transport), Bus::default(), RootBus::default());
    bus.add(Space::Memory, BASE.into()..u64::from(BASE) + Transport::SIZE, transport.clone());
    let _ = root.add(transport);
    bus.add(Space::Port, PORTS..PORTS + 8, Arc::new(root));
    let guest = Guest { bus, memory, device };
    let mut input = Input(input);
    for _ in 0..MOST {
        if guest.step(&mut input, outside).is_none() {
            break;
        }
    }
    guest.device.queues().iter().for_each(|queue| settle(queue));
    guest.device.queues().iter().for_each(|queue| queue.end());
    interrupts.0.load(Ordering::Relaxed) > 0
}

struct Guest {
    bus: Bus,
    memory: Arc<GuestRam>,
    device: Arc<dyn Virtio>,
}

impl Guest {
    /// Carries out the next step, if there is one.
    fn step(&self, input: &mut Input<'_>, mut outside: Option<&UnixStream>) -> Option<()> {
        match input.byte()? % step::COUNT {
            step::START => self.start(),
            step::RESET => self.store(0x14, &[0]),
            step::STORE => {
                let offset = input.number()?;
                self.store(offset, &input.value()?);
            }
            step::LOAD => {
                let offset = input.number()?;
                let mut bytes = [0; 8];
                let data = bytes.get_mut(..1 << (input.byte()? & 3))?;
                let at = u64::from(BASE) + offset;
                self.bus.serve(DeviceAccess { space: Space::Memory, at, data: Data::Read(data) });
            }
            step::RAM => {
                let at = input.number()? * 16;
                // What does not fit stays outside.
                let _ = self.memory.of_devices().write(input.bytes()?, GuestAddress(at));
            }
            step::RING => {
                let number = u64::from(input.byte()?);
                self.store(0x3000 + 4 * number, &[0; 2]);
                self.device.queues().get(number as usize).into_iter().for_each(|queue| settle(queue));
            }
            step::OUTSIDE => {
                let bytes = input.bytes()?;
                // It may be closed.
                let _ = outside.as_mut().map(|socket| socket.write_all(bytes));
            }
            _ => {
                let at = PORTS + u64::from(input.byte()? & 7);
                let value = input.value()?;
                self.bus.serve(DeviceAccess { space: Space::Port, at, data: Data::Write(&value) });
                let mut read = [0; 4];
                self.bus.serve(DeviceAccess {
                    space: Space::Port,
                    at: PORTS + 4,
                    data: Data::Read(&mut read),
                });
            }
        }
        Some(())
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        let at = u64::from(BASE) + offset;
        self.bus.serve(DeviceAccess { space: Space::Memory, at, data: Data::Write(bytes) });
    }

    /// As a driver does it that means well.
    fn start(&self) {
        self.store(0x14, &[0]);
        self.store(0x14, &[3]);
        // Version 1 and indirect tables.
        for (half, features) in [(0_u32, 1_u32 << 28), (1, 1)] {
            self.store(0x08, &half.to_le_bytes());
            self.store(0x0c, &features.to_le_bytes());
        }
        self.store(0x14, &[11]);
        for n in 0..self.device.queues().len() as u64 {
            self.store(0x16, &(n as u16).to_le_bytes());
            self.store(0x18, &SIZE.to_le_bytes());
            self.store(0x1a, &(n as u16).to_le_bytes());
            for (register, page) in [(0x20, 0), (0x28, 1), (0x30, 2)] {
                self.store(register, &(queue(n) + page * 0x1000).to_le_bytes());
            }
            self.store(0x1c, &[1, 0]);
            let entry = [0xfee0_0000, 0, n as u32, 0_u32].map(u32::to_le_bytes).concat();
            entry.chunks(4).zip(0..).for_each(|(word, at)| self.store(0x4000 + 16 * n + 4 * at, word));
        }
        // MSI-X is the last capability: behind those of the registers, of 16 bytes, and of the doorbells, of 20.
        for (at, value) in [(PORTS, 0x8000_0800_u32 | 0x84), (PORTS + 4, 0x8000_0011)] {
            self.bus.serve(DeviceAccess { space: Space::Port, at, data: Data::Write(&value.to_le_bytes()) });
        }
        self.store(0x14, &[15]);
    }
}

/// Waits until the thread of `queue` has looked at all that was there. One that waits elsewhere is not waited for.
fn settle(queue: &Virtqueue) {
    let Ok(bell) = PollContext::new() else { return };
    if bell.add(queue.kick(), 0_u32).is_err() {
        return;
    }
    let is_ringing =
        || bell.wait_timeout(Duration::ZERO).is_ok_and(|ringing| ringing.iter().next().is_some());
    // It looks at the rings between one ring of the bell and the next.
    for _ in 0..2 {
        let _ = queue.kick().write(1);
        let mut tries = 0;
        while is_ringing() {
            match tries {
                ..50 => std::thread::yield_now(),
                // On a busy machine it comes later.
                50..80 => std::thread::sleep(Duration::from_micros(100)),
                _ => return,
            }
            tries += 1;
        }
    }
}

/// The configuration ports and a function with interrupts of its own: steps of ports, and of its table and its bits.
pub fn pci(input: &[u8]) -> bool {
    const VECTORS: u16 = 11;
    let interrupts = Interrupts::default();
    let mut config = ConfigSpace::new(&Identity {
        vendor: 1,
        device: 2,
        class: [3, 4, 5],
        revision: 6,
        subsystem: (7, 8),
    });
    config.set_base_address(BASE, 0x1000);
    // At 0x40.
    config.add_capability(0x11, &[VECTORS as u8 - 1, 0, 0, 0, 0, 0, 0, 8, 0, 0], &[0, 0xc0]);
    let msix = Msix::new(VECTORS, Box::new(interrupts.clone()));
    let function = Arc::new(Plain { config: Mutex::new(config), msix });
    let (mut bus, mut root) = (Bus::default(), RootBus::default());
    let _ = root.add(function.clone());
    bus.add(Space::Port, PORTS..PORTS + 8, Arc::new(root));
    let mut input = Input(input);
    for _ in 0..MOST {
        if function.step(&bus, &mut input).is_none() {
            break;
        }
    }
    interrupts.0.load(Ordering::Relaxed) > 0
}

struct Plain {
    config: Mutex<ConfigSpace>,
    msix: Msix,
}

impl Function for Plain {
    fn read_config(&self, at: u8, data: &mut [u8]) {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).read(at, data);
    }

    fn write_config(&self, at: u8, data: &[u8]) {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        config.write(at, data);
        self.msix.set_control(u16::from_le_bytes(config.get(0x42)));
    }
}

impl Plain {
    fn step(&self, bus: &Bus, input: &mut Input<'_>) -> Option<()> {
        let mut read = [0; 8];
        match input.byte()? % step::COUNT {
            step::STORE => {
                let offset = input.number()?;
                self.msix.write_table(offset, &input.value()?);
            }
            step::LOAD => {
                let offset = input.number()?;
                let data = read.get_mut(..1 << (input.byte()? & 3))?;
                self.msix.read_table(offset, data);
                self.msix.read_pending(offset, data);
            }
            step::RING => self.msix.raise(input.byte()?.into()),
            step::PORT => {
                let at = PORTS + u64::from(input.byte()? & 7);
                let value = input.value()?;
                bus.serve(DeviceAccess { space: Space::Port, at, data: Data::Write(&value) });
                let data = read.get_mut(..value.len())?;
                bus.serve(DeviceAccess { space: Space::Port, at, data: Data::Read(data) });
            }
            _ => {}
        }
        Some(())
    }
}
