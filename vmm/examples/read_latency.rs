//! How long `vfs_read` takes, by task: a return probe with data of its own for each call.
//!
//! The kernel, the initramfs and words for the kernel's command line are in the environment: `KERNEL`, `INITRD`, `CMDLINE`.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, fs};
use vmm::prelude::*;

/// What is known of a task's reads.
#[derive(Default)]
struct Reads {
    calls: u64,
    /// Nanoseconds.
    total: u64,
    longest: u64,
    asked: u64,
    got: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::open()?;
    let guest = Guest::new(&fs::read(env::var("KERNEL")?)?)?
        .initrd(fs::read(env::var("INITRD")?)?)
        .cmdline(&env::var("CMDLINE").unwrap_or_default());
    let mut session = host.session(guest)?;
    // Handlers run on the threads of vCPUs, on several at once.
    let tasks = Arc::new(Mutex::new(BTreeMap::<String, Reads>::new()));
    let seen = tasks.clone();
    let reads = Probe::on_return("vfs_read")
        // `vfs_read(file, buf, count, pos)`: what is kept here until the call returns is its own. `None` would not follow it.
        .entry(|hit| Some(hit.argument(2).unwrap_or(0)))
        .handler(move |hit, asked| {
            let name = hit.task().map_or("?".to_owned(), |task| task.shown().to_string());
            let took = hit.duration().unwrap_or(0);
            let mut tasks = seen.lock().unwrap_or_else(PoisonError::into_inner);
            let reads = tasks.entry(name).or_default();
            reads.calls += 1;
            reads.total = reads.total.saturating_add(took);
            reads.longest = reads.longest.max(took);
            reads.asked = reads.asked.saturating_add(asked);
            // A negative value is an error.
            reads.got = reads.got.saturating_add(u64::try_from(hit.regs.rax.cast_signed()).unwrap_or(0));
        })
        .max_active(64);
    let id = session.register(reads)?;
    let report = session.run(&mut ())?;
    for (name, Reads { calls, total, longest, asked, got }) in
        &*tasks.lock().unwrap_or_else(PoisonError::into_inner)
    {
        let (mean, longest) = (total / calls.max(&1) / 1000, longest / 1000);
        println!("{name}: {calls} reads, {mean} us each, {longest} us at most, {got} of {asked} bytes");
    }
    if let Some(probe) = report.probe(id) {
        println!("{} reads, {} missed; {}", probe.hits, probe.missed.hits(), report.end);
    }
    Ok(())
}
