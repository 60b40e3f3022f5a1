//! Which program opens which file below /etc, by a definition in the language of the kernel's `kprobe_events`. The filter
//! runs in the guest: other files cost it some tens of instructions and no exit.
//!
//! The kernel, the initramfs and words for the kernel's command line are in the environment: `KERNEL`, `INITRD`, `CMDLINE`.

use std::collections::BTreeMap;
use std::error::Error;
use std::{env, fs, io};
use vmm::prelude::*;

/// How often each program has opened each file.
#[derive(Default)]
struct Opens(BTreeMap<(String, String), u64>);

impl Sink for Opens {
    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        for event in events {
            let program = event.task.as_ref().map_or("?".to_owned(), |task| task.shown().to_string());
            // What the guest chose is escaped before a person sees it.
            let file = event.get("file").and_then(|file| file.text().map(|text| Escaped(text).to_string()));
            *self.0.entry((program, file.unwrap_or_default())).or_default() += 1;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::open()?;
    let guest = Guest::new(&fs::read(env::var("KERNEL")?)?)?
        .initrd(fs::read(env::var("INITRD")?)?)
        .cmdline(&env::var("CMDLINE").unwrap_or_default());
    let mut session = host.session(guest)?;
    let opens = session
        .register(Probe::define(r#"p:opens do_sys_openat2 file=filename:ustring if file ~ "/etc/*""#)?)?;
    let mut seen = Opens::default();
    let report = session.run(&mut seen)?;
    for ((program, file), count) in &seen.0 {
        println!("{program} opened {file} {count} times");
    }
    if let Some(probe) = report.probe(opens) {
        println!("{} opens, {} missed; {}", probe.hits, probe.missed.hits(), report.end);
    }
    Ok(())
}
