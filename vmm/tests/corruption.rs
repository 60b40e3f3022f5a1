//! What a hostile guest does to its devices: no panic, nothing that takes long, and no more memory than is allowed.
//!
//! What is done with it is what the fuzz targets do (`fuzz`, which is no part of this workspace), with their seeds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

#[path = "../../probe-engine/tests/corruption/harness.rs"]
#[allow(unreachable_pub, reason = "another crate's tests use it as well")]
mod harness;
#[path = "../../fuzz/src/devices.rs"]
#[allow(unreachable_pub, reason = "the fuzz targets use it as well")]
mod targets;

use harness::{Target, cut_every_seed, damage, damaged, read_every_seed, run, seeds};
use proptest::prelude::*;
use std::env;
use std::fs;
use std::panic;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use targets::{RAM, SIZE, queue, step};

/// A device's threads have buffers of their own, of up to a megabyte.
const BUFFERS: usize = 16 << 20;

const TARGETS: [Target; 4] = [
    Target { name: "rng", entry: |input| watched(targets::rng, input), least: BUFFERS },
    Target { name: "console", entry: |input| watched(targets::console, input), least: BUFFERS },
    Target { name: "fs", entry: |input| watched(targets::fs, input), least: BUFFERS },
    Target { name: "pci", entry: |input| watched(targets::pci, input), least: 1 << 20 },
];

/// A panic of a device's thread is a failure as well.
fn watched(entry: fn(&[u8]) -> bool, input: &[u8]) -> bool {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if std::thread::current().name().is_some_and(|name| name.starts_with("virtio-")) {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            usual(info);
        }));
    });
    let is_raised = entry(input);
    wait_for_devices();
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "a thread of a device panicked");
    is_raised
}

/// Waits until the threads of all devices have ended: what they keep would be counted as the next input's.
fn wait_for_devices() {
    let is_of_device = |task: fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("virtio-"))
    };
    let until = Instant::now() + Duration::from_secs(20);
    while fs::read_dir("/proc/self/task").unwrap().flatten().any(is_of_device) {
        assert!(Instant::now() < until, "a thread of a device does not end");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_seed_raises_an_interrupt() {
    read_every_seed(&TARGETS);
}

#[test]
fn every_seed_may_end_anywhere() {
    cut_every_seed(&TARGETS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_seed_may_be_damaged(
        target in proptest::sample::select(TARGETS.to_vec()),
        seed: prop::sample::Index,
        places in proptest::collection::vec((any::<prop::sample::Index>(), damage()), 1..6),
    ) {
        let seeds = seeds(target);
        run(target, &damaged(seed.get::<Vec<u8>>(&seeds), &places));
    }
}

/// A descriptor: address, length, flags, next.
type Descriptor = (u64, u32, u16, u16);

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Where buffers are.
const BUFFER: u64 = 0x8_0000;
const TABLE: u64 = BUFFER + 0x1000;

/// An input that is put together step by step.
#[derive(Default)]
struct Steps(Vec<u8>);

impl Steps {
    fn add(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn start(self) -> Self {
        self.add(&[step::START])
    }

    fn reset(self) -> Self {
        self.add(&[step::RESET])
    }

    fn value(self, length: usize, value: u64) -> Self {
        self.add(&[length.trailing_zeros() as u8]).add(&value.to_le_bytes())
    }

    fn store(self, offset: u16, length: usize, value: u64) -> Self {
        self.add(&[step::STORE]).add(&offset.to_le_bytes()).value(length, value)
    }

    fn load(self, offset: u16) -> Self {
        self.add(&[step::LOAD]).add(&offset.to_le_bytes()).add(&[3])
    }

    fn port(self, port: u8, length: usize, value: u64) -> Self {
        self.add(&[step::PORT, port]).value(length, value)
    }

    fn ram(self, at: u64, bytes: &[u8]) -> Self {
        assert_eq!(at % 16, 0);
        self.add(&[step::RAM]).add(&((at / 16) as u16).to_le_bytes()).add(&[bytes.len() as u8]).add(bytes)
    }

    fn outside(self, bytes: &[u8]) -> Self {
        self.add(&[step::OUTSIDE, bytes.len() as u8]).add(bytes)
    }

    fn ring(self, queue: u8) -> Self {
        self.add(&[step::RING, queue])
    }

    fn descriptors(self, at: u64, descriptors: &[Descriptor]) -> Self {
        let bytes = descriptors.iter().flat_map(|(address, length, flags, next)| {
            let rest = [flags.to_le_bytes(), next.to_le_bytes()].concat();
            [&address.to_le_bytes()[..], &length.to_le_bytes(), &rest].concat()
        });
        self.ram(at, &bytes.collect::<Vec<u8>>())
    }

    /// Gives queue `n` its `count`-th request, which begins at its first descriptor, as all do.
    fn ask(self, n: u8, count: u16, descriptors: &[Descriptor]) -> Self {
        let at = queue(n.into());
        let ring = [0, count].into_iter().chain([0; SIZE as usize]).flat_map(u16::to_le_bytes);
        self.descriptors(at, descriptors).ram(at + 0x1000, &ring.collect::<Vec<u8>>()).ring(n)
    }

    /// Queue `n` has room for something.
    fn receive(self, n: u8, count: u16) -> Self {
        self.ask(n, count, &[(BUFFER, 64, WRITE, 0)])
    }

    fn send(self, n: u8, count: u16, message: &[u8]) -> Self {
        self.ram(TABLE, message).ask(n, count, &[(TABLE, message.len() as u32, 0, 0)])
    }

    /// A message of a console's control: a port, an event and a value.
    fn control(self, count: u16, port: u32, event: u16, value: u16) -> Self {
        self.send(3, count, &[&port.to_le_bytes()[..], &event.to_le_bytes(), &value.to_le_bytes()].concat())
    }

    /// A message of FUSE without a body.
    fn fuse(self, count: u16, length: u32, opcode: u32) -> Self {
        let head = [length, opcode, 77, 0].map(u32::to_le_bytes).concat();
        let message = [head, vec![0; 24]].concat();
        self.ram(BUFFER, &message).ask(1, count, &[(BUFFER, 40, NEXT, 1), (TABLE, 64, WRITE, 0)])
    }

    /// The server's answer to the `count`-th message.
    fn answer(self, count: u32) -> Self {
        self.outside(&[20, 0, count, 0, 0].map(u32::to_le_bytes).concat())
    }
}

fn new() -> Steps {
    Steps::default()
}

fn of_rng() -> [(&'static str, Steps); 5] {
    let (table, nested) =
        ([(BUFFER, 8, WRITE | NEXT, 1), (BUFFER + 8, 8, WRITE, 0)], [(TABLE, 32, INDIRECT, 0)]);
    let nonsense = new().start().ask(0, 1, &[(BUFFER, 4, NEXT, 1), (BUFFER, 4, NEXT, 0)]);
    let nonsense = nonsense.ask(0, 2, &[(RAM - 8, 16, 0, 0)]).descriptors(TABLE, &nested).ask(0, 3, &nested);
    let registers = new().load(0x2000).load(0x5000).store(0x16, 2, 7).store(0x20, 8, RAM).start();
    let registers = registers.receive(0, 1).store(0x14, 1, 0).store(0x18, 2, 3).store(0x1c, 2, 1);
    [
        ("twice", new().start().receive(0, 1).receive(0, 2)),
        ("indirect", new().start().descriptors(TABLE, &table).ask(0, 1, &nested)),
        ("nonsense", nonsense.ask(0, 0x7fff, &[(BUFFER, 8, WRITE, 0)])),
        ("resets", new().start().receive(0, 1).reset().ring(0).load(0x14).start().receive(0, 1)),
        ("registers", registers.store(0x14, 1, 15)),
    ]
}

fn of_console() -> [(&'static str, Steps); 2] {
    let talk = new().start().control(1, u32::MAX, 0, 1).receive(2, 1).receive(2, 2).control(2, 1, 3, 1);
    let talk = talk.control(3, 1, 6, 1).outside(b"hello").receive(4, 1).send(5, 1, b"world");
    [("talk", talk.reset().start()), ("nobody", new().start().control(1, 9, 3, 1).outside(b"lost").reset())]
}

fn of_fs() -> [(&'static str, Steps); 4] {
    const FORGET: u32 = 2;
    const GETATTR: u32 = 3;
    const DESTROY: u32 = 38;
    // What the server answers may come after the last step; a message without an answer is done with at once.
    let again = new().start().fuse(1, 40, GETATTR).reset().ram(queue(1) + 0x1000, &[0; 4]).start();
    let late = again.fuse(1, 40, FORGET);
    [
        ("answered", new().start().fuse(1, 40, GETATTR).answer(1).ring(1).fuse(2, 40, FORGET)),
        ("lengths", new().start().fuse(1, 39, GETATTR).fuse(2, u32::MAX, GETATTR)),
        ("late", late.answer(1).outside(&[0xff; 40])),
        ("destroyed", new().start().fuse(1, 40, DESTROY).answer(1).fuse(2, 40, FORGET)),
    ]
}

fn of_pci() -> [(&'static str, Steps); 2] {
    let interrupts = new().store(16, 8, 0xfee0_0000).store(24, 8, 0x4021).port(0, 4, 0x8000_0840);
    let interrupts = interrupts.port(4, 4, 0x8000_0000).ring(1).port(6, 2, 0xc000).ring(1).load(0);
    let base_address = new().port(0, 4, 0x8000_0810).port(4, 4, 0xffff_ffff).port(7, 8, 0);
    let base_address = base_address.port(0, 4, 0x8000_0840).port(6, 2, 0x8000).store(12, 4, 0).ring(0);
    [
        ("interrupts", interrupts.port(6, 2, 0x8000)),
        ("base_address", base_address.ring(200).store(0xffff, 8, 1)),
    ]
}

/// The files are what is made here.
#[test]
fn seeds_of_the_fuzz_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds");
    let of_all = [
        ("rng", of_rng().into_iter().collect::<Vec<_>>()),
        ("console", of_console().into_iter().collect()),
        ("fs", of_fs().into_iter().collect()),
        ("pci", of_pci().into_iter().collect()),
    ];
    for (target, seeds) in of_all {
        for (name, Steps(bytes)) in seeds {
            let file = folder.join(target).join(name);
            if env::var_os("WRITE_SEEDS").is_some() {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(&file, &bytes).unwrap();
            }
            assert_eq!(fs::read(&file).unwrap(), bytes, "{}: write it with WRITE_SEEDS=1", file.display());
        }
    }
}
