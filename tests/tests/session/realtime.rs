//! A kernel with PREEMPT_RT, where threads serve most interrupts: hits are counted, belong to whom they should, and leave
//! the text as it was.

use super::Notes;
use probe_engine::insn::INT3;
use probe_engine::insn::plan::skip_endbr;
use probe_engine::linux::ftrace_site::{FTRACE_NOP, FTRACE_SITE};
use probe_engine::linux::task::{Context, Task};
use probe_engine::memory::PhysMemory;
use probe_engine::paging::Access;
use probe_engine::probe::table::ProbeId;
use tests::kernel::is_realtime;
use tests::linux_rig::{Ended, Guest};
use vmm::probe::{Hit, Probe};
use vmm::session::{Command, Missed, ProbeState};

const OPEN: &str = "do_sys_openat2";
const SOFT: &str = "run_timer_softirq";
const SITE: usize = FTRACE_SITE as usize;
/// `jmp rel32`.
const JUMP: u8 = 0xe9;
/// Waits. The shell has opened its files by then.
const SCRIPT: &str = "echo ready\nread line\n";

/// Whom the hits of a probe belong to.
fn tasks(ended: &Ended, n: u32) -> Vec<&Task> {
    let of = ended.events.iter().filter(|event| event.probe == ProbeId(n));
    of.map(|event| event.task.as_ref().unwrap()).collect()
}

#[test]
fn detours_and_traps_serve_a_realtime_kernel() {
    if !is_realtime() {
        return;
    }
    let Some(guest) = Guest::new() else { return };
    let kernel = &guest.subject.kernel;
    let start = kernel.symbol(OPEN).unwrap();
    let bytes = kernel.image().bytes_at(start, 16).unwrap();
    let nop = skip_endbr(bytes, start);
    let behind = bytes[nop.offset_from(start).unwrap() as usize + SITE];
    let texts = Notes::new();
    let look = {
        let texts = texts.clone();
        move |hit: &mut Hit<'_>| {
            let mut text = [0; SITE + 1];
            let at = hit.memory.translate(nop, Access::Read).unwrap();
            hit.memory.phys.read(at, &mut text).unwrap();
            texts.add(text);
        }
    };
    let trap = guest.subject.behind_site(OPEN);
    let soft_trap = guest.subject.behind_site(SOFT);
    let ended = guest
        .cpus(2)
        .optimize()
        .cmdline("nokaslr")
        .script(SCRIPT)
        .probe(Probe::at(OPEN).record())
        .probe(Probe::at(trap).record().pre(|_| {}))
        .probe(Probe::at("__x64_sys_getppid"))
        .probe(Probe::at("vfs_rmdir").pre(look))
        .probe(Probe::at("hrtimer_interrupt").record())
        .probe(Probe::at(SOFT).record())
        .probe(Probe::at("serial8250_interrupt").record())
        .probe(Probe::at(soft_trap).record().pre(|_| {}))
        .run_with("walk:1,mix:2,pinned:500,sh:/script,walk:1", |handle, console| {
            console.wait_for("ready", 1);
            let probes = handle.list().unwrap();
            assert_eq!(probes[0].state, ProbeState::Optimized(nop));
            assert_eq!(probes[1].state, ProbeState::Armed(nop.add(FTRACE_SITE)));
            assert!(matches!(probes[2].state, ProbeState::Optimized(_)), "{:?}", probes[2]);
            assert_eq!((probes[0].hits, probes[0].missed), (probes[1].hits, Missed::default()));
            handle.command(Command::Unregister(vec![ProbeId(0), ProbeId(1)])).unwrap();
            console.open_gate();
        });
    ended.assert_in_order();

    let texts = texts.take();
    assert_eq!(texts.len(), 2, "one directory was removed before, one behind");
    assert_eq!((texts[0][0], texts[0][SITE]), (JUMP, INT3));
    assert_eq!((&texts[1][..SITE], texts[1][SITE]), (&FTRACE_NOP[..], behind), "the text is restored");

    // The shell's opens are not in the workload's number, and the last walk's one is not in ours.
    let (detoured, trapped) = (tasks(&ended, 0), tasks(&ended, 1));
    assert!(detoured.len() as u64 >= ended.workload("done", "openat") - 1, "{}", detoured.len());
    assert_eq!(detoured.len(), trapped.len());
    // The shell asks for its parent, too.
    assert_eq!(ended.hits(2), ended.workload("done", "getppid") + 1);
    assert_eq!(ended.probe(2).missed, Missed::default());

    let [timer, soft, serial, soft_trapped] = [4, 5, 6, 7].map(|n| tasks(&ended, n));
    println!(
        "{} opens, {} timer interrupts, {} soft ones ({} by a trap), {} of the serial port",
        detoured.len(),
        timer.len(),
        soft.len(),
        soft_trapped.len(),
        serial.len()
    );
    assert!(timer.len() > 10 && !soft.is_empty() && !soft_trapped.is_empty() && !serial.is_empty());
    assert!(matches!(ended.probe(5).state, ProbeState::Optimized(_)), "{:?}", ended.probe(5));
    assert!(matches!(ended.probe(7).state, ProbeState::Armed(_)), "{:?}", ended.probe(7));
    assert!(timer.iter().all(|task| task.context == Context::HardIrq), "{timer:?}");
    // Threads: what they do is their own work, and they are not idle. That some of them serve soft interrupts shows.
    for task in detoured.iter().chain(&trapped).chain(&serial) {
        assert!(task.context == Context::Task && task.pid != 0, "{task:?}");
    }
    for task in soft.iter().chain(&soft_trapped) {
        assert!(task.context == Context::SoftIrq && task.pid != 0, "{task:?}");
    }
    assert!(serial.iter().all(|task| task.comm().starts_with(b"irq/")), "{serial:?}");
}
