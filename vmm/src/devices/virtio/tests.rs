//! Devices under a driver that does whatever it likes.

use super::console::{Console, Port};
use super::fs::{FolderDevice, Server};
use super::{Doorbells, Memory, Rng, Transport, Virtio};
use crate::devices::Device;
use crate::devices::pci::{Function, Messages};
use crate::memory::GuestRam;
use probe_engine::addr::Gpa;
use probe_engine::memory::PhysMemory;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

const RAM: u64 = 1 << 20;
const STATUS: u64 = 0x14;
const DOORBELLS: u64 = 0x3000;
const TABLE: u64 = 0x4000;
/// Of a queue: its descriptors, the ring of the driver and that of the device, each a page.
const PAGES: u64 = 0x4000;
const SIZE: u16 = 8;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const PATIENCE: Duration = Duration::from_secs(20);

/// Where interrupts go.
struct Interrupts(Sender<u32>);

impl Messages for Interrupts {
    fn send(&self, _: u64, data: u32) {
        let _ = self.0.send(data);
    }
}

/// None: each store comes to us.
struct NoDoorbells;

impl Doorbells for NoDoorbells {
    fn connect(&self, _: Gpa, _: &EventFd) -> bool {
        false
    }
}

/// A descriptor: address, length, flags, next.
type Descriptor = (u64, u32, u16, u16);

/// A driver of one device.
struct Driver {
    transport: Transport,
    memory: Memory,
    interrupts: Receiver<u32>,
    /// How many requests each queue has been given, and how many answers were seen.
    given: Vec<u16>,
    seen: Vec<u16>,
}

impl Driver {
    fn new(device: Arc<dyn Virtio>) -> Self {
        let memory: Memory = Arc::new(GuestRam::sealable(RAM).unwrap());
        let (sent, interrupts) = channel();
        let queues = device.queues().len();
        let transport =
            Transport::new(device, 0xc000_0000, memory.clone(), Box::new(Interrupts(sent)), &NoDoorbells);
        let driver = Self { transport, memory, interrupts, given: vec![0; queues], seen: vec![0; queues] };
        driver.start();
        driver
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.transport.write(offset, bytes);
    }

    fn read<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.transport.read(offset, &mut bytes);
        bytes
    }

    /// Where queue `n` is.
    fn area(n: usize) -> u64 {
        PAGES * (n as u64 + 1)
    }

    /// Begins anew, as Linux does.
    fn start(&self) {
        self.write(STATUS, &[0]);
        self.write(STATUS, &[3]);
        // Version 1, and nothing else.
        self.write(0x08, &1_u32.to_le_bytes());
        self.write(0x0c, &1_u32.to_le_bytes());
        self.write(STATUS, &[11]);
        assert_eq!(self.read::<1>(STATUS), [11]);
        for n in 0..self.given.len() {
            self.write(0x16, &(n as u16).to_le_bytes());
            self.write(0x18, &SIZE.to_le_bytes());
            self.write(0x1a, &(n as u16).to_le_bytes());
            for (register, page) in [(0x20, 0), (0x28, 1), (0x30, 2)] {
                let at = Self::area(n) + page * 0x1000;
                self.memory.write(Gpa(at), &[0; 0x1000]).unwrap();
                self.write(register, &at.to_le_bytes()[..4]);
                self.write(register + 4, &at.to_le_bytes()[4..]);
            }
            self.write(0x1c, &1_u16.to_le_bytes());
            let entry = [0xfee0_0000, 0, n as u32, 0_u32].map(u32::to_le_bytes).concat();
            self.write(TABLE + 16 * n as u64, &entry);
        }
        // All capabilities are in the list; the last one is that of interrupts.
        let mut config = [0; 256];
        self.transport.read_config(0, &mut config);
        let mut at = usize::from(config[0x34]);
        while config[at] != 0x11 {
            at = usize::from(config[at + 1]);
        }
        self.transport.write_config(at as u8 + 2, &0x8000_u16.to_le_bytes());
        self.write(STATUS, &[15]);
        assert_eq!(self.read::<1>(STATUS), [15]);
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write(Gpa(at), bytes).unwrap();
    }

    fn descriptor(&self, at: u64, (address, length, flags, next): Descriptor) {
        self.put(at, &address.to_le_bytes());
        self.put(at + 8, &length.to_le_bytes());
        self.put(at + 12, &flags.to_le_bytes());
        self.put(at + 14, &next.to_le_bytes());
    }

    /// Gives queue `n` the chain that begins at descriptor `head`.
    fn give(&mut self, n: usize, head: u16) {
        let ring = Self::area(n) + 0x1000;
        self.put(ring + 4 + 2 * u64::from(self.given[n] % SIZE), &head.to_le_bytes());
        self.given[n] = self.given[n].wrapping_add(1);
        self.put(ring + 2, &self.given[n].to_le_bytes());
        self.write(DOORBELLS + 4 * n as u64, &[0; 2]);
    }

    /// Gives queue `n` these descriptors, from the first on.
    fn ask(&mut self, n: usize, descriptors: &[Descriptor]) {
        for (index, descriptor) in (0..).zip(descriptors) {
            self.descriptor(Self::area(n) + 16 * index, *descriptor);
        }
        self.give(n, 0);
    }

    /// Waits for the next answer of queue `n`: how many bytes were written.
    fn answer(&mut self, n: usize) -> u32 {
        let used = Self::area(n) + 0x2000;
        loop {
            let index: u16 = self.memory.of_devices().read_obj(GuestAddress(used + 2)).unwrap();
            if index != self.seen[n] {
                let at = used + 4 + 8 * u64::from(self.seen[n] % SIZE);
                self.seen[n] = self.seen[n].wrapping_add(1);
                return self.memory.of_devices().read_obj(GuestAddress(at + 4)).unwrap();
            }
            self.interrupts.recv_timeout(PATIENCE).expect("no interrupt");
        }
    }

    fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(Gpa(at), &mut bytes).unwrap();
        bytes
    }
}

fn rng() -> Driver {
    let rng = Arc::new(Rng::new().unwrap());
    rng.start(false).unwrap();
    Driver::new(rng)
}

/// Where buffers are.
const BUFFER: u64 = 0x8_0000;

#[test]
fn random_numbers_come_and_differ() {
    let mut driver = rng();
    driver.ask(0, &[(BUFFER, 16, WRITE | NEXT, 1), (BUFFER + 0x100, 16, WRITE, 0)]);
    assert_eq!(driver.answer(0), 32);
    let (first, second) = (driver.bytes(BUFFER, 16), driver.bytes(BUFFER + 0x100, 16));
    assert!(first != second && first != [0; 16] && second != [0; 16]);
}

/// Requests that make no sense: each is answered with nothing, and one that does is answered afterwards.
#[test]
fn chains_that_make_no_sense_are_given_back() {
    let mut driver = rng();
    let cases: [&[Descriptor]; 8] = [
        // A loop.
        &[(BUFFER, 4, NEXT, 0)],
        &[(BUFFER, 4, NEXT, 1), (BUFFER, 4, NEXT, 0)],
        // Beyond the RAM, and beyond all addresses.
        &[(RAM - 8, 16, 0, 0)],
        &[(u64::MAX - 3, 16, 0, 0)],
        // The next one is none.
        &[(BUFFER, 4, NEXT, SIZE)],
        // Indirect tables: of no whole entry, not in RAM, inside another one.
        &[(BUFFER, 15, INDIRECT, 0)],
        &[(RAM, 32, INDIRECT, 0)],
        &[(BUFFER + 0x1000, 32, INDIRECT, 0)],
    ];
    driver.descriptor(BUFFER + 0x1000, (BUFFER + 0x1000, 32, INDIRECT, 0));
    for case in cases {
        driver.ask(0, case);
        assert_eq!(driver.answer(0), 0, "{case:x?}");
        driver.ask(0, &[(BUFFER, 8, WRITE, 0)]);
        assert_eq!(driver.answer(0), 8, "after {case:x?}");
    }
}

/// A descriptor that leads to sealed memory, wholly or in part, is answered with nothing, and what it asked for is told.
#[test]
fn nothing_is_written_to_sealed_memory() {
    let mut driver = rng();
    let sealed = Gpa(BUFFER + 0x1000)..Gpa(BUFFER + 0x2000);
    driver.memory.seal(&sealed).unwrap();
    let cases: [&[Descriptor]; 3] = [
        &[(BUFFER + 0x1000, 8, WRITE, 0)],
        &[(BUFFER + 0xffc, 8, WRITE, 0)],
        &[(BUFFER, 8, WRITE | NEXT, 1), (BUFFER + 0x1ff8, 64, WRITE, 0)],
    ];
    for case in cases {
        driver.ask(0, case);
        assert_eq!(driver.answer(0), 0, "{case:x?}");
        let (at, length, ..) = *case.last().unwrap();
        assert_eq!(driver.memory.take_refused(), [(Gpa(at), length as usize)]);
        assert_eq!(driver.bytes(BUFFER + 0x1000, 0x1000), [0; 0x1000]);
    }
    driver.memory.unseal(&sealed).unwrap();
    driver.ask(0, &[(BUFFER + 0x1000, 8, WRITE, 0)]);
    assert_eq!(driver.answer(0), 8);
}

/// Nor does a device answer in a ring that lies there.
#[test]
fn a_ring_in_sealed_memory_is_not_used() {
    let mut driver = rng();
    let ring = Driver::area(0) + 0x2000;
    driver.ask(0, &[(BUFFER, 8, WRITE, 0)]);
    assert_eq!(driver.answer(0), 8);
    let before = driver.bytes(ring, 0x100);
    driver.memory.seal(&(Gpa(ring)..Gpa(ring + 0x1000))).unwrap();
    driver.ask(0, &[(BUFFER, 8, WRITE, 0)]);
    let asked = Instant::now();
    while driver.memory.take_refused().is_empty() {
        assert!(asked.elapsed() < PATIENCE, "nobody asks");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(driver.bytes(ring, 0x100), before);
}

#[test]
fn an_indirect_table_is_followed() {
    let mut driver = rng();
    driver.descriptor(BUFFER + 0x1000, (BUFFER, 8, WRITE | NEXT, 1));
    driver.descriptor(BUFFER + 0x1010, (BUFFER + 8, 8, WRITE, 0));
    driver.ask(0, &[(BUFFER + 0x1000, 32, INDIRECT, 0)]);
    assert_eq!(driver.answer(0), 16);
}

/// Rings that make no sense end the queue's life, and a reset gives it another one.
#[test]
fn a_queue_whose_rings_make_no_sense_rests_until_a_reset() {
    let rng = Arc::new(Rng::new().unwrap());
    rng.start(false).unwrap();
    let mut driver = Driver::new(rng.clone());
    for index in [SIZE + 1, 0x7fff, 0xffff] {
        driver.put(Driver::area(0) + 0x1002, &index.to_le_bytes());
        driver.write(DOORBELLS, &[0; 2]);
        let asked = Instant::now();
        while rng.queues()[0].is_live() {
            assert!(asked.elapsed() < PATIENCE, "it goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        driver.put(Driver::area(0) + 0x1002, &driver.given[0].to_le_bytes());
        let answered = driver.bytes(Driver::area(0) + 0x2002, 2);
        driver.ask(0, &[(BUFFER, 8, WRITE, 0)]);
        // Its answer and not an interrupt is looked for: one of an earlier answer may be late.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(driver.bytes(Driver::area(0) + 0x2002, 2), answered, "it rests");
        driver.start();
        (driver.given[0], driver.seen[0]) = (0, 0);
        driver.ask(0, &[(BUFFER, 8, WRITE, 0)]);
        assert_eq!(driver.answer(0), 8);
    }
}

/// A queue that lies where no RAM is, or is of a size that none has, is never live.
#[test]
fn a_queue_outside_ram_is_not_used() {
    let driver = rng();
    for (register, value) in [(0x20, RAM), (0x28, RAM - 2), (0x30, !0xfff), (0x18, 3), (0x18, 0)] {
        driver.write(STATUS, &[0]);
        driver.write(0x08, &1_u32.to_le_bytes());
        driver.write(0x0c, &1_u32.to_le_bytes());
        driver.write(STATUS, &[11]);
        driver.write(register, &value.to_le_bytes()[..if register == 0x18 { 2 } else { 8 }]);
        driver.write(0x1c, &[1, 0]);
        driver.write(STATUS, &[15]);
        driver.write(DOORBELLS, &[0; 2]);
        assert!(driver.interrupts.recv_timeout(Duration::from_millis(50)).is_err());
    }
    driver.start();
}

/// Whatever is read or written, of any size at any place, nothing panics and the device can be used afterwards.
#[test]
fn garbage_in_registers_does_no_harm() {
    let mut driver = rng();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..200_000 {
        let (offset, value, size) =
            (next() % (Transport::SIZE + 8), next(), [1, 2, 4, 8][next() as usize % 4]);
        match next() % 3 {
            0 => driver.write(offset % 0x3a, &value.to_le_bytes()[..size]),
            1 => driver.write(offset, &value.to_le_bytes()[..size]),
            _ => {
                let mut bytes = [0; 8];
                driver.transport.read(offset, &mut bytes[..size]);
            }
        }
    }
    driver.start();
    while driver.interrupts.try_recv().is_ok() {}
    (driver.given[0], driver.seen[0]) = (0, 0);
    driver.ask(0, &[(BUFFER, 8, WRITE, 0)]);
    assert_eq!(driver.answer(0), 8);
}

/// An answer to what was asked before a reset is not written behind it.
#[test]
fn a_reset_in_the_middle_forgets_what_was_asked() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let server = Server::new(Box::new(ours.try_clone().unwrap()));
    server.start(ours, || (), false).unwrap();
    let folder = Arc::new(FolderDevice::new("tag", 3, server).unwrap());
    folder.start(false).unwrap();
    let mut driver = Driver::new(folder);
    assert_eq!(driver.read::<8>(0x2000), *b"tag\0\0\0\0\0");
    let message = |length: u32, opcode: u32, unique: u64| {
        let mut message = vec![0; 40];
        message[..4].copy_from_slice(&length.to_le_bytes());
        message[4..8].copy_from_slice(&opcode.to_le_bytes());
        message[8..16].copy_from_slice(&unique.to_le_bytes());
        message
    };
    let buffers = [(BUFFER, 40, NEXT, 1), (BUFFER + 0x1000, 64, WRITE, 0)];
    let mut asked = [0; 40];
    // GETATTR.
    driver.put(BUFFER, &message(40, 3, 77));
    driver.ask(1, &buffers);
    theirs.read_exact(&mut asked).unwrap();
    assert_eq!((asked[15], asked[8..15] != [77, 0, 0, 0, 0, 0, 0]), (3, true), "the folder's number");
    driver.start();
    (driver.given[1], driver.seen[1]) = (0, 0);
    let mut late = asked;
    late[..8].copy_from_slice(&[40, 0, 0, 0, 0, 0, 0, 0]);
    let mut reply = late[..16].to_vec();
    reply.extend([0xaa; 24]);
    driver.put(BUFFER + 0x1000, &[0; 64]);
    theirs.write_all(&reply).unwrap();
    // The next one is answered, and the late one was not.
    driver.put(BUFFER, &message(40, 3, 78));
    driver.ask(1, &buffers);
    theirs.read_exact(&mut asked).unwrap();
    let mut reply = vec![24, 0, 0, 0, 0, 0, 0, 0];
    reply.extend(&asked[8..16]);
    reply.extend([0xbb; 8]);
    theirs.write_all(&reply).unwrap();
    assert_eq!(driver.answer(1), 24);
    let seen = driver.bytes(BUFFER + 0x1000, 32);
    assert_eq!(seen[8..16], 78_u64.to_le_bytes(), "what the guest calls it");
    assert_eq!(seen[16..], [[0xbb; 8], [0; 8]].concat());
    // Lengths that are not those of the message would have the stream lost.
    for length in [0, 39, 41, u32::MAX] {
        driver.put(BUFFER, &message(length, 3, 79));
        driver.ask(1, &buffers);
        assert_eq!(driver.answer(1), 0, "{length}");
    }
    // A server that is gone.
    drop(theirs);
    driver.put(BUFFER, &message(40, 3, 80));
    driver.ask(1, &buffers);
    assert_eq!(driver.answer(1), 16);
    assert_eq!(driver.bytes(BUFFER + 0x1004, 4), (-libc::EIO).to_le_bytes());
}

#[test]
fn ports_are_found_by_name_and_carry_bytes_both_ways() {
    let pairs = [(); 2].map(|()| UnixStream::pair().unwrap());
    let [(first, _one), (mut second, two)] = pairs;
    let port =
        |name: &str, socket: &UnixStream| Port { name: name.to_owned(), socket: socket.try_clone().unwrap() };
    let console = Arc::new(Console::new(vec![port("a", &_one), port("vmm.b", &two)]).unwrap());
    console.start(false).unwrap();
    let mut driver = Driver::new(console);
    drop(first);
    const CONTROL_IN: usize = 2;
    const CONTROL_OUT: usize = 3;
    let say = |driver: &mut Driver, port: u32, event: u16, value: u16| {
        let message =
            [port.to_le_bytes().to_vec(), event.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()];
        driver.put(BUFFER, &message.concat());
        driver.ask(CONTROL_OUT, &[(BUFFER, 8, 0, 0)]);
        assert_eq!(driver.answer(CONTROL_OUT), 0);
    };
    let heard = |driver: &mut Driver| {
        driver.ask(CONTROL_IN, &[(BUFFER + 0x100, 64, WRITE, 0)]);
        let length = driver.answer(CONTROL_IN) as usize;
        driver.bytes(BUFFER + 0x100, length)
    };
    // Ready; then each port is added, and named and opened when it is ready.
    say(&mut driver, u32::MAX, 0, 1);
    assert_eq!(heard(&mut driver), [0, 0, 0, 0, 1, 0, 1, 0]);
    assert_eq!(heard(&mut driver), [1, 0, 0, 0, 1, 0, 1, 0]);
    say(&mut driver, 9, 3, 1);
    say(&mut driver, 1, 3, 1);
    assert_eq!(heard(&mut driver), [&[1, 0, 0, 0, 7, 0, 1, 0][..], b"vmm.b"].concat());
    assert_eq!(heard(&mut driver), [1, 0, 0, 0, 6, 0, 1, 0]);
    // To the guest: not before it has opened the port.
    const IN: usize = 4;
    const OUT: usize = 5;
    second.write_all(b"hello").unwrap();
    driver.ask(IN, &[(BUFFER + 0x200, 3, WRITE, 0)]);
    // Its answer and not an interrupt is looked for: one of an earlier answer may be late.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(driver.bytes(Driver::area(IN) + 0x2002, 2), [0, 0]);
    say(&mut driver, 1, 6, 1);
    assert_eq!(driver.answer(IN), 3);
    driver.ask(IN, &[(BUFFER + 0x203, 8, WRITE, 0)]);
    assert_eq!(driver.answer(IN), 2);
    assert_eq!(driver.bytes(BUFFER + 0x200, 5), b"hello");
    // And from it.
    driver.put(BUFFER + 0x300, b"world");
    driver.ask(OUT, &[(BUFFER + 0x300, 5, 0, 0)]);
    assert_eq!(driver.answer(OUT), 0);
    let mut got = [0; 5];
    second.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"world");
}
