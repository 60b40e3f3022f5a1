//! The guest's text changes under a probe that stands there.

use super::after;
use crate::Notes;
use probe_engine::addr::Gva;
use probe_engine::insn::INT3;
use probe_engine::memory::PhysMemory;
use probe_engine::paging::Access;
use probe_engine::probe::table::ProbeId;
use std::sync::{Arc, Mutex};
use tests::linux_rig::Guest;
use vmm::probe::{Hit, Probe};
use vmm::session::{Command, ProbeState};

/// As long as ftrace's nop, and another one: the guest does not notice.
const OTHER_NOP: [u8; 5] = [0x66, 0x66, 0x66, 0x66, 0x90];

/// A handler writes over the traps at `sites`, as the guest's kernel would, and notes what it has found there.
fn overwrite(hit: &Hit<'_>, sites: &[Gva], found: &Notes<(Gva, [u8; 5])>) {
    for site in sites {
        let memory = &hit.memory;
        let at = memory.translate(*site, Access::Read).unwrap();
        let mut bytes = [0; OTHER_NOP.len()];
        memory.phys.read(at, &mut bytes).unwrap();
        found.add((*site, bytes));
        if bytes[0] == INT3 {
            memory.phys.write(at, &OTHER_NOP).unwrap();
        }
    }
}

/// Nothing is put back over what is there now, and each probe says what became of it: one when it is disabled, one at
/// the end of the guest.
#[test]
fn text_that_changed_under_a_probe_is_left_alone_and_reported() {
    let Some(guest) = Guest::new() else { return };
    let sites = Arc::new(Mutex::new(Vec::new()));
    let found = Notes::new();
    let handler = {
        let (sites, found) = (sites.clone(), found.clone());
        move |hit: &mut Hit<'_>| overwrite(hit, &sites.lock().unwrap(), &found)
    };
    let mut stood = Vec::new();
    let ended = guest
        .probe(Probe::at("vfs_rmdir"))
        .probe(Probe::at("vfs_mkdir"))
        .probe(Probe::at("__x64_sys_getppid").pre(handler))
        .run_with("walk:3,sh:/gate,getppid:1,walk:3,sh:/gate,getppid:1,walk:3", |handle, console| {
            let hits = |walks| after(handle, console, "workload: walk", walks)[..2].to_vec();
            let first = hits(1);
            assert!(first.iter().all(|(_, hits, stands)| *hits >= 3 && *stands), "{first:?}");
            stood.extend(handle.list().unwrap()[..2].iter().map(|probe| probe.address));
            sites.lock().unwrap().extend(&stood);
            assert_eq!(hits(2), first, "there are no traps any more");
            for command in [Command::Disable, Command::Enable] {
                handle.command(command(vec![ProbeId(0)])).unwrap();
                assert_eq!(handle.list().unwrap()[0].state, ProbeState::Overwritten(stood[0]));
            }
            let third = hits(3);
            assert_eq!([third[0].1, third[1].1], [first[0].1, first[1].1]);
        });
    ended.assert_in_order();
    let found = found.take();
    for (n, site) in (0..).zip(&stood) {
        assert_eq!(ended.probe(n).state, ProbeState::Overwritten(*site));
        let here: Vec<_> = found.iter().filter(|(at, _)| at == site).map(|(_, bytes)| bytes).collect();
        assert_eq!(here[0][0], INT3);
        assert!(here.len() > 1 && here[1..].iter().all(|bytes| **bytes == OTHER_NOP), "{here:02x?}");
    }
}
