//! How long the look for tasks inside freed code takes, for which the world stands still: over RAM that a guest has touched.
//!
//! `scan MIB..` prints a table of these sizes; `scan --json MIB..` prints one object a row as well.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that goes wrong is void")]

use probe_engine::addr::{Gpa, Gva};
use probe_engine::memory::PhysMemory;
use probe_engine::paging::AddressSpace;
use serde_json::json;
use std::env;
use std::ops::Range;
use std::time::{Duration, Instant};
use vmm::memory::GuestRam;
use vmm::reserved::Reserved;
use vmm::world::World;
use vmm_sys_util::eventfd::EventFd;

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const DIRECTORY: u64 = 0x3000;
const TABLE: u64 = 3;
const LARGE_PAGE: u64 = 0x83;
const TEXT: Range<Gva> = Gva(0xffff_ffff_8100_0000)..Gva(0xffff_ffff_8120_0000);
/// How often each size is looked through.
const SAMPLES: usize = 5;

/// The median of how long a look takes over `size` bytes, all of which were touched.
fn look(size: u64) -> Duration {
    let ram = GuestRam::new(size).unwrap();
    for range in ram.ranges() {
        for at in (range.start.0..range.end.0).step_by(4096) {
            ram.write(Gpa(at), &[1]).unwrap();
        }
    }
    for (at, entry) in
        [(PML4 + 511 * 8, PDPT | TABLE), (PDPT + 510 * 8, DIRECTORY | TABLE), (DIRECTORY + 64, LARGE_PAGE)]
    {
        ram.write(Gpa(at), &entry.to_le_bytes()).unwrap();
    }
    let world = World::<(), ()>::new(0, (), EventFd::new(0).unwrap().into());
    let mut reserved = Reserved::map(&world.park(|_| {}), &ram, AddressSpace::new(PML4, 0), &TEXT).unwrap();
    // Someone stays inside: there is something to look for each time.
    let slot = reserved.allocate(1).unwrap();
    let inside = reserved.address(slot);
    reserved.retire(slot);
    let mut times = [(); SAMPLES].map(|()| {
        let parked = world.park(|_| {});
        let start = Instant::now();
        assert_eq!(reserved.reclaim(&parked, &ram, || vec![inside]).unwrap(), 0);
        start.elapsed()
    });
    times.sort_unstable();
    times[SAMPLES / 2]
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    for mib in arguments.iter().filter(|argument| *argument != "--json") {
        let time = look(mib.parse::<u64>().unwrap() << 20);
        println!("a look through {mib:>6} MiB: {:>10.3} ms", time.as_secs_f64() * 1e3);
        if arguments.iter().any(|argument| argument == "--json") {
            println!(
                "{}",
                json!({ "row": format!("a look through {mib} MiB"), "unit": "ns", "median": time.as_nanos() as u64 })
            );
        }
    }
}
