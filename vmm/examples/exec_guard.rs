//! All programs that a guest executes, with their arguments. Those that `DENY` names fail with EACCES.
//!
//! The kernel, the initramfs and words for the kernel's command line are in the environment: `KERNEL`, `INITRD`, `CMDLINE`.

use std::error::Error;
use std::{env, fs};
use vmm::prelude::*;

/// The most bytes of a program's arguments that are shown.
const MOST: u64 = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::open()?;
    let guest = Guest::new(&fs::read(env::var("KERNEL")?)?)?
        .initrd(fs::read(env::var("INITRD")?)?)
        .cmdline(&env::var("CMDLINE").unwrap_or_default());
    let denied = env::var("DENY").unwrap_or_default();
    let mut session = host.session(guest)?;

    // Where members lie is told by the kernel's types, once: a hit then only reads.
    let filename = session.member("linux_binprm", "filename")?;
    // `security_bprm_check(bprm)` says whether a program may be executed, before anything of the caller is given up.
    let checks = session.register(Probe::at("security_bprm_check").pre(move |hit| {
        let file = hit.member(hit.regs.rdi, filename).and_then(|at| hit.string(Gva(at), MOST as usize));
        // The process sees an exec that has failed.
        if file.is_ok_and(|file| file == denied.as_bytes()) && hit.fail(Errno::ACCESS).is_ok() {
            println!("denied {}", Escaped(denied.as_bytes()));
        }
    }))?;

    let mm = session.member("task_struct", "mm")?;
    let (start, end) = (session.member("mm_struct", "arg_start")?, session.member("mm_struct", "arg_end")?);
    // `finalize_exec(bprm)` runs when the new program is in place: its arguments are in its memory, one behind the other.
    let ran = session.register(Probe::at("finalize_exec").pre(move |hit| {
        let arguments = || {
            let mm = hit.member(hit.task()?.at.0, mm).ok()?;
            let (start, end) = (hit.member(mm, start).ok()?, hit.member(mm, end).ok()?);
            // The guest is hostile: what it says of a length is no reason to allocate.
            let mut bytes = vec![0; end.saturating_sub(start).min(MOST) as usize];
            hit.memory.read(Gva(start), &mut bytes).ok()?;
            Some(bytes)
        };
        let words = arguments().unwrap_or_default();
        let words = words.split(|byte| *byte == 0).map(|word| Escaped(word).to_string());
        println!("ran {}", words.collect::<Vec<_>>().join(" ").trim_end());
    }))?;

    let report = session.run(&mut ())?;
    for probe in [checks, ran].iter().filter_map(|id| report.probe(*id)) {
        println!("{}: {} hits, {} missed", probe.name, probe.hits, probe.missed.hits());
    }
    println!("{}", report.end);
    Ok(())
}
