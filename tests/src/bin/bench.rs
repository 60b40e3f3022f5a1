//! What an exit from the guest costs, on the path that every session uses: a vCPU's thread, its world, its ring.
//!
//! A guest of a few instructions does the same thing N times and 2N times; the difference, divided by N, is the
//! cost of one, and the cost of setting up and ending the guest is not in it. The unit is the tick of the time-stamp
//! counter: inside Bochs that is one instruction, of the guest, of KVM, of the host's kernel and of ours alike.
//!
//! `bench` prints a table; `bench --json` prints one object a row as well.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement that goes wrong is void"
)]

use probe_engine::addr::Gva;
use probe_engine::detour::layout::{self, Rings};
use probe_engine::detour::ring::{Ring, counter};
use probe_engine::detour::work::Work;
use probe_engine::insn::copy::JUMP;
use probe_engine::linux::orc::{OrcLayout, OrcTable};
use probe_engine::linux::unwind::KernelCode;
use probe_engine::probe::plan::ProbePlan;
use rustix::mm::{MlockAllFlags, mlockall};
use serde_json::json;
use std::array;
use std::ops::Range;
use std::time::{Duration, Instant};
use tests::code::{CODE, code, ending, mov, repeat, stack};
use tests::detour::{divert, guest};
use tests::host::fit;
use tests::rig::{self, Rig, Start};
use vmm::clock::ticks;
use vmm::guest::Host;
use vmm::kvm::{Left, Shared};
use vmm::memory::GuestRam;
use vmm::probe::Probe;
use vmm::reserved;
use vmm::samples::Sample;
use vmm::selftest::micro::{self, MicroGuest, Privilege};
use vmm::vcpu::End;

/// How often a guest does what takes an exit.
const EXITS: u64 = 2_000;
/// How often it does what takes none: so often that the host's timer ticks make no difference, and fewer than a ring
/// holds in 2N hits, because nobody reads while the guest runs.
const DETOURS: u64 = 30_000;
/// How often each row is measured.
const SAMPLES: usize = 7;
/// Registers, of which [`repeat`] counts RDI down.
const RAX: u8 = 0;
const RCX: u8 = 1;
const RDI: u8 = 7;

/// What is measured.
struct Row {
    name: &'static str,
    /// What one pass of the guest's loop comes to, beside the loop's own two instructions.
    inside: &'static str,
    body: Body,
}

/// What a guest does over and over.
enum Body {
    /// An empty port exit in a loop of KVM_RUN and nothing else, which shares this, and goes on with registers that were set if
    /// it is told to.
    Bare(Shared, bool),
    /// These instructions.
    Code(&'static [u8]),
    /// A nop on which a probe stands, with a handler for afterwards if it is told to.
    Probed { post: bool },
    /// A nop of ftrace's, in whose place a detour stands that counts, and records if it is told to.
    Detoured { record: bool },
    /// A loop that is sampled, with a stack of [`FRAMES`] if it is told to.
    Sampled { stack: bool },
}

const NOTHING: Shared = Shared { general: false, system: false, events: false };
const GENERAL: Shared = Shared { general: true, ..NOTHING };

const ROWS: [Row; 13] = [
    Row {
        name: "bare exit",
        inside: "an empty port exit in a loop of KVM_RUN",
        body: Body::Bare(NOTHING, false),
    },
    Row {
        name: "bare exit, general",
        inside: "the same, with general registers shared",
        body: Body::Bare(GENERAL, false),
    },
    Row {
        name: "bare exit, general, set",
        inside: "the same, with other ones to go on with",
        body: Body::Bare(GENERAL, true),
    },
    Row {
        name: "bare exit, system",
        inside: "with general and system registers shared",
        body: Body::Bare(Shared { system: true, ..GENERAL }, false),
    },
    Row {
        name: "bare exit, events",
        inside: "with general registers and events shared",
        body: Body::Bare(Shared { events: true, ..GENERAL }, false),
    },
    Row { name: "bare exit, all", inside: "with all of that shared", body: Body::Bare(Shared::ALL, false) },
    Row {
        name: "empty port exit",
        inside: "out to a port that nobody has, KVM's exit, the vCPU thread's look at it, KVM_RUN",
        body: Body::Code(&[0xe6, 0x80]), // out 0x80, al
    },
    Row {
        name: "trap hit, empty handler",
        inside: "int3, KVM's exit, the lookup, the handler, one record with six arguments, the nop emulated, KVM_RUN",
        body: Body::Probed { post: false },
    },
    Row {
        name: "trap hit, empty post handler",
        inside: "the same, but the handler is called once the nop is over",
        body: Body::Probed { post: true },
    },
    Row {
        name: "detour, count",
        inside: "the jump, the stub that counts, the jump back",
        body: Body::Detoured { record: false },
    },
    Row {
        name: "detour, record",
        inside: "the same with a record: time stamp, six arguments, task with pids, uid and name",
        body: Body::Detoured { record: true },
    },
    Row {
        name: "sample, no stack",
        inside: "behind the exit: whether the vCPU waits, its registers, a record without a stack",
        body: Body::Sampled { stack: false },
    },
    Row {
        name: "sample, 16 frames",
        inside: "the same with a stack, by a table as long as a kernel's",
        body: Body::Sampled { stack: true },
    },
];

/// How many frames a stack has.
const FRAMES: usize = 16;

fn main() {
    let json = std::env::args().any(|word| word == "--json");
    let is_sampled = |row: &Row| matches!(row.body, Body::Sampled { .. });
    let only_samples = std::env::args().any(|word| word == "--samples");
    // A page that is touched for the first time would be in one sample and not in the next.
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        eprintln!("bench: memory is not locked, the first touch of each page counts: {error}");
    }
    let fit = fit().expect("a KVM that runs guests with probes");
    println!("{:28}  {:>9}  {:>9}  {:>9}", "ticks each", "least", "median", "most");
    for row in ROWS.into_iter().filter(|row| !only_samples || is_sampled(row)) {
        let n = match row.body {
            Body::Detoured { .. } => DETOURS,
            _ => EXITS,
        };
        // The first guest warms everything up.
        if !is_sampled(&row) {
            cost(fit, &row, n);
        }
        let in_order: [u64; SAMPLES] = array::from_fn(|_| match row.body {
            Body::Sampled { stack } => sampled(fit, stack),
            _ => cost(fit, &row, 2 * n).saturating_sub(cost(fit, &row, n)) / n,
        });
        let mut samples = in_order;
        samples.sort_unstable();
        let (least, median, most) = (samples[0], samples[SAMPLES / 2], samples[SAMPLES - 1]);
        println!("{:28}  {least:9}  {median:9}  {most:9}   {}", row.name, row.inside);
        if json {
            let object = json!({
                "row": row.name, "unit": "ticks", "n": n, "samples": in_order,
                "least": least, "median": median, "most": most, "inside": row.inside,
            });
            println!("{object}");
        }
    }
}

/// The ticks from the start of a guest that does it `n` times to its end.
fn cost(fit: &'static Host, row: &Row, n: u64) -> u64 {
    /// A guest that hangs takes it.
    const PATIENCE: Duration = Duration::from_secs(60);
    if let Body::Bare(shared, sets) = row.body {
        return bare(fit, shared, sets, n);
    }
    let mut set_up = mov(RDI, n);
    let mut rig = Rig::new(fit);
    let (mut jump, mut memory) = ([0; JUMP], None);
    if let Body::Detoured { record } = row.body {
        memory = Some(rig.reserve(&(CODE..CODE.add(1)), |reserved, ram| {
            let rings = Rings::of(1);
            let ring = reserved.data().start.add(rings.offset(0));
            set_up.extend(touch(ring..ring.add(rings.cell(rings.cells - 1))));
            let at = CODE.add(set_up.len() as u64);
            let plan = ProbePlan::default();
            let plan = if record { plan.recorded() } else { plan };
            let work = Work::of(0, &plan).expect("it reads nothing");
            jump = divert(&guest(&rig, reserved, None), at, &[work], reserved, ram);
        }));
    }
    let at = CODE.add(set_up.len() as u64);
    let body = match row.body {
        Body::Code(code) => code,
        Body::Bare(..) | Body::Probed { .. } | Body::Sampled { .. } => &[0x90],
        Body::Detoured { .. } => &jump,
    };
    rig.write(CODE, &ending(&[&set_up, body, &repeat(body.len())]));
    // Where a kernel has its code: who stops elsewhere may be in user mode. Detours stand near the memory that is reserved.
    let upper = |at: Gva| micro::UPPER_HALF.add(at.0);
    let start = if let Body::Detoured { .. } = row.body { CODE } else { upper(CODE) };
    if let Body::Probed { post } = row.body {
        let probe = Probe::at("").record();
        let probe = if post { probe.post(|_| {}) } else { probe.pre(|_| {}) };
        rig.arm_probes(upper(at), vec![probe.into()]);
    }
    let before = ticks();
    let mut running = rig.run(&[Start::at(start, stack(0))]);
    let end = running.end_within(PATIENCE);
    let after = ticks();
    assert!(matches!(end, Some(End::Power(_))), "the guest ended with {end:?}");
    match (&row.body, memory) {
        (Body::Detoured { record }, Some(ram)) => assert_eq!(seen(&ram), (n, if *record { n } else { 0 })),
        (Body::Probed { .. }, _) => assert_eq!(running.count(0), n, "hits"),
        _ => assert_eq!(running.count(0), 0, "hits"),
    }
    running.end();
    after - before
}

/// The ticks that it takes to look at a guest, for each sample. What the exit takes is not among them: inside Bochs timers interrupt the
/// host much more often than it has asked for.
fn sampled(fit: &'static Host, has_stack: bool) -> u64 {
    const FREQUENCY: u32 = 500;
    const PERIODS: f64 = 12.0;
    // A round takes a tick, and two inside Bochs.
    let ticks_a_second = ticks_a_second();
    let rounds = (ticks_a_second * PERIODS / f64::from(FREQUENCY)) as u64;
    let left = spinning(fit, rounds, has_stack, FREQUENCY);
    let frames = |sample: &Sample| sample.stack.as_ref().map_or(0, |stack| stack.frames.len());
    let expected = if has_stack { FRAMES } else { 0 };
    let others: Vec<_> = left.samples.iter().filter(|sample| frames(sample) != expected).collect();
    // A few come on the way to the loop, when memory is touched for the first time.
    assert!(10 * others.len() <= left.samples.len(), "{others:?}");
    let samples = left.time.sum() - left.time.late;
    assert!(samples > 5, "{samples} samples");
    (left.time.took as f64 * ticks_a_second / 1e9 / samples as f64) as u64
}

/// How many ticks a second of the host's clock has.
fn ticks_a_second() -> f64 {
    let (begun, before) = (Instant::now(), ticks());
    while begun.elapsed() < Duration::from_millis(20) {}
    (ticks() - before) as f64 / begun.elapsed().as_secs_f64()
}

/// What is left of a guest that was sampled, and has gone `rounds` times through a loop of two instructions.
fn spinning(fit: &'static Host, rounds: u64, has_stack: bool, frequency: u32) -> rig::Left {
    /// Bochs lets no interrupt of a timer through to the host while a guest has interrupts off.
    const STI: [u8; 1] = [0xfb];
    /// `call` the next instruction, and `sub rsp, 80`: a frame more, about as large as a kernel's.
    const CALL: [u8; 9] = [0xe8, 0, 0, 0, 0, 0x48, 0x83, 0xec, 80];
    let mut rig = Rig::new(fit);
    // `dec rcx; jnz` back to it
    let spin = code(&[&mov(RCX, rounds), &[0x48, 0xff, 0xc9, 0x75, 0xfb]]);
    rig.write(CODE, &ending(&[&STI, &CALL.repeat(FRAMES - 1), &spin]));
    rig.sample(frequency);
    if has_stack {
        rig.unwind(calls());
    }
    let upper = |at: Gva| micro::UPPER_HALF.add(at.0);
    let mut running = rig.run(&[Start::at(upper(CODE), upper(stack(0)))]);
    running.until_off(1, |_| {});
    running.end()
}

/// A kernel in which each frame is a return address and 80 bytes more. Its table is as long as that of 6.12.
fn calls() -> KernelCode {
    const ROWS: usize = 423_716;
    /// `sp:sp+88 bp:(und) type:call`
    const ROW: [u8; 6] = [88, 0, 0, 0, 0x05, 0x02];
    let start = micro::UPPER_HALF.add(CODE.0);
    // An address is the distance from where it is written, and the next one is as far.
    let ips = [0; 4].repeat(ROWS);
    let table = OrcTable::from_parts(OrcLayout::SinceSixFour, &ips, start, &ROW.repeat(ROWS));
    KernelCode::of_table(table.expect("a table"), start..start.add(4 * ROWS as u64))
}

/// The ticks of `n` empty port exits in a loop of KVM_RUN.
fn bare(fit: &'static Host, shared: Shared, sets: bool, n: u64) -> u64 {
    const OUT: [u8; 2] = [0xe6, 0x80];
    let guest = MicroGuest::new(&fit.hypervisor).unwrap();
    guest.write(CODE, &ending(&[&mov(RDI, n), &OUT, &repeat(OUT.len())])).unwrap();
    let mut vcpu = guest.add_vcpu(&fit.hypervisor, 0, 1).unwrap();
    micro::start(&vcpu, CODE, stack(0), Privilege::Kernel).unwrap();
    vcpu.share(shared);
    let before = ticks();
    for _ in 0..n {
        assert!(matches!(vcpu.run(), Left::Access(_)), "it has not come to its end");
        if sets {
            let regs = vcpu.regs();
            vcpu.set_regs(&regs);
        }
    }
    ticks() - before
}

/// Code that writes to each page of these once. A session's guest takes the exit for a page in its first pass of a ring
/// only, and here that pass is all that there is.
fn touch(memory: Range<Gva>) -> Vec<u8> {
    const PAGE: u32 = 4096;
    let pages = (memory.end.0 - memory.start.0) / u64::from(PAGE);
    /// `lock or byte [rax], 0`, `add rax, imm32`
    const WRITE_ADD: [u8; 6] = [0xf0, 0x80, 0x08, 0x00, 0x48, 0x05];
    /// `dec ecx`, `jnz` back to the start
    const AGAIN: [u8; 4] = [0xff, 0xc9, 0x75, 0xf2];
    code(&[&mov(RAX, memory.start.0), &mov(RCX, pages), &WRITE_ADD, &PAGE.to_le_bytes(), &AGAIN])
}

/// How many hits a detour has counted, and how many it has recorded.
fn seen(ram: &GuestRam) -> (u64, u64) {
    let mut ring = Ring::new(Rings::of(1), reserved::DATA, 0);
    let mut records = 0;
    loop {
        let before = records;
        ring.drain(ram, |_| records += 1).expect("the ring's memory");
        if records == before {
            break;
        }
    }
    (counter(ram, reserved::DATA, layout::HITS, 0), records)
}
