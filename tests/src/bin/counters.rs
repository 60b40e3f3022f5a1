//! How counting scales with CPUs: what stubs of detours count with is run here as it is, by threads that count the same probe.
//! In one table all threads change one counter, under the lock; in the other each has a slot.
//!
//! No KVM is needed. The rate is of hits to the second of processor time. `counters --json` prints one object a row as well.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "runs generated machine code; a measurement that goes wrong is void"
)]

use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use probe_engine::addr::{Gpa, Gva};
use probe_engine::detour::layout::{self, Rings};
use probe_engine::detour::ring::hits;
use probe_engine::detour::stub::{Cpu, Guest, Stub};
use probe_engine::detour::work::Work;
use probe_engine::linux::branches::Branches;
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::probe::plan::ProbePlan;
use serde_json::json;
use std::thread;
use std::time::Duration;
use tests::cpu_time;

const COUNTED: u32 = 20_000_000;
const PROBE: u32 = 3;
/// CPUs of the guest for which the stub is.
const CPUS: u8 = 4;
/// Bytes of the code, behind the data window.
const CODE: usize = 4096;
/// Where a thread's area has its number.
const NUMBER: u64 = 16;

/// The data window, and code, at an address that takes 31 bits.
struct Mapping(*mut u8);

// SAFETY: threads reach it by atomic accesses of generated code, and one thread reads it when they have ended.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new() -> Self {
        const RWX: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        const NEW: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: a fresh anonymous mapping, at no address of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), layout::SIZE as usize + CODE, RWX, NEW, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "no executable mapping");
        Self(base.cast())
    }

    fn at(&self, offset: u64) -> Gva {
        Gva(self.0 as u64 + offset)
    }

    /// Makes a function of the part of `stub` that counts: it does that as often as its fourth argument says.
    fn put(&self, stub: &Stub, at: Gva) -> u64 {
        const GATE_END: usize = 7;
        let mut decoder = Decoder::with_ip(64, &stub.code, at.0, DecoderOptions::NONE);
        let end = decoder.iter().find(|instruction| instruction.mnemonic() == Mnemonic::Test).unwrap().ip();
        let mut code = stub.code[..(end - at.0) as usize].to_vec();
        let back = GATE_END as i64 - (code.len() as i64 + 4);
        // dec ecx; jnz to the end of the gate; ret
        code.extend([0xff, 0xc9, 0x75, back as u8, 0xc3]);
        assert!(code.len() < CODE);
        // SAFETY: inside the mapping, and nothing runs in it.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at.0 as *mut u8, code.len()) };
        at.0 + GATE_END as u64
    }
}

impl PhysMemory for Mapping {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        assert!(at.0 as usize + buf.len() <= layout::SIZE as usize);
        // SAFETY: inside the mapping, to which no thread writes now.
        unsafe { std::ptr::copy_nonoverlapping(self.0.add(at.0 as usize), buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }
    fn write(&self, at: Gpa, _: &[u8]) -> Result<(), NoMemory> {
        Err(NoMemory(at))
    }
    fn compare_exchange(&self, at: Gpa, _: u64, _: u64) -> Result<bool, NoMemory> {
        Err(NoMemory(at))
    }
}

fn main() {
    let json = std::env::args().any(|word| word == "--json");
    for (name, has_slots) in [("one counter", false), ("a slot a CPU", true)] {
        println!("{name:12}  {:>16}  {:>9}", "hits/CPU second", "of 1");
        let mut one = 0.0;
        for threads in [1, 2] {
            let used = count(has_slots, threads);
            let rate = f64::from(COUNTED) * f64::from(threads) / used.as_secs_f64();
            if threads == 1 {
                one = rate;
            }
            let row = format!("{threads} threads");
            println!("{row:12}  {rate:16.0}  {:9.3}", rate / one);
            if json {
                let row = format!("counting, {threads} threads, {name}");
                println!("{}", json!({ "row": row, "unit": "hits per CPU second", "median": rate }));
            }
        }
    }
}

/// Counts with so many threads, and returns the processor time that it took.
fn count(has_slots: bool, threads: u32) -> Duration {
    let mapping = Mapping::new();
    let task = json!({ "current": { "offset": 0 }, "comm": 0, "pid": 0, "tgid": 0, "scopes": {} });
    let cpu = Cpu { number: NUMBER, task: serde_json::from_value(task).unwrap(), per_cpu: None };
    let code = mapping.at(layout::SIZE);
    let guest = Guest {
        window: mapping.at(0),
        rings: Rings::of(CPUS),
        cpu: has_slots.then_some(cpu),
        slide: 0,
        trampolines: code,
        copies: None,
        fault_in: None,
        branches: Branches::default(),
    };
    let work = Work::of(PROBE, &ProbePlan::default()).unwrap();
    let stub = Stub::assemble(&guest, code, code, None, &[work]).unwrap();
    let entry = mapping.put(&stub, code);
    let used = thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|number| scope.spawn(move || run(entry, number))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let counted = hits(&mapping, Gpa(0), guest.rings.cpus, PROBE);
    assert_eq!(counted, u64::from(COUNTED) * u64::from(threads), "a hit is lost");
    used
}

/// Counts as CPU `number`.
fn run(entry: u64, number: u32) -> Duration {
    const ARCH_SET_GS: u64 = 0x1001;
    let area = [0u64, 0, number.into()];
    // SAFETY: user code does not use GS on this ABI, so its base is free to be set.
    let set = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, area.as_ptr()) };
    assert_eq!(set, 0, "arch_prctl(ARCH_SET_GS)");
    let before = cpu_time::taken();
    // SAFETY: the code changes rax, rcx and flags, which the C ABI lets it, and a counter in the mapping.
    unsafe {
        let count: extern "C" fn(u64, u64, u64, u32) = std::mem::transmute(entry);
        count(0, 0, 0, COUNTED);
    }
    cpu_time::taken() - before
}
