//! How the engine's part of a hit scales with threads: each replays hits of one shared set of sites, as each vCPU's
//! thread does: whose breakpoint it is, a return instance taken and given back, the instruction emulated.
//!
//! The instances of a return probe are all that vCPUs write at a hit and share. So there are two tables: one where
//! each thread follows calls of a function of its own, and one where all follow calls of the same function.
//!
//! No KVM is needed. The rate is of hits to the second of processor time: a thread that waits for another's lock or cache
//! line has a lower one, a thread that waits for a processor has not. `replay --json` prints one object a row as well.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a measurement that goes wrong is void")]

use probe_engine::addr::{Gpa, Gva};
use probe_engine::insn::emulate::Segments;
use probe_engine::insn::plan::{StepPlan, plan};
use probe_engine::linux::ftrace_site::FTRACE_NOP;
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::paging::AddressSpace;
use probe_engine::probe::returns::{Call, Pool};
use probe_engine::probe::table::{Anchor, Attached, ProbeSet, Site, StepMethod, Verdict};
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;
use serde_json::json;
use std::thread;
use std::time::{Duration, Instant};
use tests::cpu_time;

/// Sites, as `vmm run --probe '*'` has them.
const SITES: u64 = 40_000;
const HITS: u64 = 2_000_000;
const TEXT: Gva = Gva(0xffff_ffff_8100_0000);

/// A nop needs none.
struct NoRam;

impl PhysMemory for NoRam {
    fn read(&self, at: Gpa, _: &mut [u8]) -> Result<(), NoMemory> {
        Err(NoMemory(at))
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
    let site = |n: u64| TEXT.add(n * 64);
    let mut sites = ProbeSet::<()>::default();
    for at in (0..SITES).map(site) {
        let StepPlan::Emulate(nop) = plan(&FTRACE_NOP, at, None, false).unwrap() else {
            panic!("a nop is emulated")
        };
        let probes = vec![Attached { probe: (), anchor: Anchor::Firm }];
        sites.insert(at, Site { probes, internal: None, step: StepMethod::Emulate(nop) });
    }
    for (pools, shared) in [("a pool each", false), ("one pool", true)] {
        println!("{pools:12}  {:>16}  {:>9}  {:>16}", "hits/CPU second", "of 1", "hits/second");
        let mut one = 0.0;
        for threads in [1, 2, 4, 8] {
            let begun = Instant::now();
            let common = pool(threads);
            let used: Duration = thread::scope(|scope| {
                let replay = |id| match shared {
                    true => replay(id, &sites, &common, site),
                    false => replay(id, &sites, &pool(1), site),
                };
                let all: Vec<_> = (0..threads).map(|id| scope.spawn(move || replay(id))).collect();
                all.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(common.outstanding(), 0);
            let hits = (HITS * threads) as f64;
            let (rate, wall) = (hits / used.as_secs_f64(), hits / begun.elapsed().as_secs_f64());
            if threads == 1 {
                one = rate;
            }
            let row = format!("{threads} threads");
            println!("{row:12}  {rate:16.0}  {:9.3}  {wall:16.0}", rate / one);
            if json {
                let row = format!("engine replay, {threads} threads, {pools}");
                println!(
                    "{}",
                    json!({ "row": row, "unit": "hits per CPU second", "median": rate, "wall": wall })
                );
            }
        }
    }
}

/// The instances of a return probe in a guest with so many vCPUs, as the session makes them. Each keeps a number.
fn pool(vcpus: u64) -> Pool<u64> {
    Pool::new(0, 10.max(2 * vcpus as u32), vcpus as u32)
}

/// Replays hits as the thread of vCPU `id`. Returns the processor time that they took.
fn replay(id: u64, sites: &ProbeSet<()>, pool: &Pool<u64>, site: impl Fn(u64) -> Gva) -> Duration {
    let memory = VirtMemory::new(&NoRam, AddressSpace::new(0, 0));
    let segments = Segments::default();
    let mut counts = vec![0u64; SITES as usize];
    let before = cpu_time::taken();
    for n in 0..HITS {
        let which = (n * 7919 + id * 31) % SITES;
        let at = site(which);
        let Verdict::Ours(hit) = sites.judge(at, || None) else { panic!("the site is there") };
        *counts.get_mut(which as usize).unwrap() += 1;
        let number = pool.reserve(id as usize).unwrap();
        let call = Call { task: Gva(id), function: at, slot: Gva(n), back: at, ticks: n, args: [0; 6] };
        pool.follow(number, call, Some(Box::new(id)));
        let mut regs = Regs { rip: at.0, ..Regs::default() };
        let StepMethod::Emulate(nop) = &hit.step else { panic!("it is emulated") };
        nop.execute(&mut regs, &memory, &segments).unwrap();
        assert_eq!(regs.rip, at.0 + FTRACE_NOP.len() as u64);
        assert_eq!(pool.leave(number), Some((call, Some(Box::new(id)))), "another thread's call");
    }
    let used = cpu_time::taken() - before;
    assert_eq!(counts.iter().sum::<u64>(), HITS);
    used
}
