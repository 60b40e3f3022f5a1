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
use rustix::mm::{MlockAllFlags, mlockall};
use serde_json::json;
use std::array;
use std::time::Duration;
use tests::code::{CODE, ending, mov, repeat, stack};
use tests::host::{Fit, fit};
use tests::rig::{Rig, Start};
use vmm::clock::ticks;
use vmm::vcpu::End;

/// Fewer than a ring holds in 2N hits: nobody reads while the guest runs.
const N: u64 = 2_000;
/// How often each row is measured.
const SAMPLES: usize = 7;
/// Register RDI, which [`repeat`] counts down.
const RDI: u8 = 7;

/// What is measured.
struct Row {
    name: &'static str,
    /// What one pass of the guest's loop comes to, beside the loop's own two instructions.
    inside: &'static str,
    body: &'static [u8],
    /// Whether a probe stands on the body.
    probed: bool,
}

const ROWS: [Row; 2] = [
    Row {
        name: "empty port exit",
        inside: "out to a port that nobody has, KVM's exit, the vCPU thread's look at it, KVM_RUN",
        body: &[0xe6, 0x80], // out 0x80, al
        probed: false,
    },
    Row {
        name: "trap hit, empty handler",
        inside: "int3, KVM's exit, the lookup, one record with six arguments, the nop emulated, KVM_RUN",
        body: &[0x90], // nop
        probed: true,
    },
];

fn main() {
    let json = std::env::args().any(|word| word == "--json");
    // A page that is touched for the first time would be in one sample and not in the next.
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        eprintln!("bench: memory is not locked, the first touch of each page counts: {error}");
    }
    let fit = fit().expect("a KVM that runs guests with probes");
    println!("{:24}  {:>9}  {:>9}  {:>9}", "ticks each", "least", "median", "most");
    for row in ROWS {
        // The first guest warms everything up.
        cost(fit, &row, N);
        let in_order: [u64; SAMPLES] =
            array::from_fn(|_| cost(fit, &row, 2 * N).saturating_sub(cost(fit, &row, N)) / N);
        let mut samples = in_order;
        samples.sort_unstable();
        let (least, median, most) = (samples[0], samples[SAMPLES / 2], samples[SAMPLES - 1]);
        println!("{:24}  {least:9}  {median:9}  {most:9}   {}", row.name, row.inside);
        if json {
            let object = json!({
                "row": row.name, "unit": "ticks", "n": N, "samples": in_order,
                "least": least, "median": median, "most": most, "inside": row.inside,
            });
            println!("{object}");
        }
    }
}

/// The ticks from the start of a guest that does it `n` times to its end.
fn cost(fit: &'static Fit, row: &Row, n: u64) -> u64 {
    /// A guest that hangs takes it.
    const PATIENCE: Duration = Duration::from_secs(60);
    let set_up = mov(RDI, n);
    let body = Gva(CODE.0 + set_up.len() as u64);
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&set_up, row.body, &repeat(row.body.len())]));
    if row.probed {
        rig.arm(body, &[0]);
    }
    let before = ticks();
    let mut running = rig.run(&[Start::at(CODE, stack(0))]);
    let end = running.end_within(PATIENCE);
    let after = ticks();
    assert!(matches!(end, Some(End::Power(_))), "the guest ended with {end:?}");
    assert_eq!(running.count(0), if row.probed { n } else { 0 }, "hits");
    running.end();
    after - before
}
