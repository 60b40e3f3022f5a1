//! All programs that a guest's processes execute, with their arguments; those that `DENY` names fail with EACCES.
//!
//! The kernel, the initramfs and words for the kernel's command line are in the environment: `KERNEL`, `INITRD`, `CMDLINE`.

use std::error::Error;
use std::{env, fs};
use vmm::prelude::*;

/// The most arguments that are shown.
const MOST: u64 = 8;

/// The strings that an array of pointers in the memory of a process leads to. The guest is hostile: the array need not end,
/// and need not be mapped.
fn strings(hit: &Hit<'_>, array: u64) -> Vec<String> {
    let pointers = (0..MOST).map_while(|n| hit.memory.read_u64(Gva(array).add(8 * n)).ok());
    let texts = pointers.take_while(|at| *at != 0).map_while(|at| hit.string(Gva(at), 256).ok());
    texts.map(|text| Escaped(&text).to_string()).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::open()?;
    let guest = Guest::new(&fs::read(env::var("KERNEL")?)?)?
        .initrd(fs::read(env::var("INITRD")?)?)
        .cmdline(&env::var("CMDLINE").unwrap_or_default());
    let denied = env::var("DENY").unwrap_or_default();
    let mut session = host.session(guest)?;
    // A system call has its arguments in the registers that the process had: by the kernel's types, wherever those lie.
    let (filename, argv) = (session.member("pt_regs", "di")?, session.member("pt_regs", "si")?);
    let execs = session.register(Probe::at("__x64_sys_execve").pre(move |hit| {
        let regs = hit.regs.rdi;
        let (Ok(file), Ok(argv)) = (hit.member(regs, filename), hit.member(regs, argv)) else { return };
        let Ok(file) = hit.string(Gva(file), 256) else { return };
        let words = strings(hit, argv).join(" ");
        let is_denied = !denied.is_empty() && file == denied.as_bytes();
        // The process sees an exec that has failed. Nothing is written to a guest whose stack cannot be read.
        let what = if is_denied && hit.fail(Errno::ACCESS).is_ok() { "denied" } else { "ran" };
        println!("{what} {}: {words}", Escaped(&file));
    }))?;
    let report = session.run(&mut ())?;
    if let Some(probe) = report.probe(execs) {
        println!("{} execs, {} missed; {}", probe.hits, probe.missed.hits(), report.end);
    }
    Ok(())
}
