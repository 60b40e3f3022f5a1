//! Semantics to keep: what pre, post and fault handlers see and may do.

use crate::{Notes, path_at_filp_open, path_at_openat, string_store};
use probe_engine::addr::Gva;
use probe_engine::regs::Regs;
use tests::kernel::name_of;
use tests::linux_rig::Guest;
use vmm::probe::{Hit, InstructionProbe, Probe};

/// Probe, handler, and what it saw.
type Note = (u32, &'static str, Regs);

/// A probe: pre, post and fault handler, any absent. Several at one address run in order of registration; a post
/// handler runs after the instruction, whether that was emulated or ran from a copy.
#[test]
fn handlers_run_in_order_with_the_registers_of_their_moment() {
    let Some(guest) = Guest::new() else { return };
    let Some(copied) = string_store(guest.subject) else { return };
    let emulated = guest.subject.find("__x64_sys_getppid", |i| i.text.starts_with("push"));
    let notes = Notes::<Note>::new();
    let pre = |probe: InstructionProbe| {
        let notes = notes.clone();
        probe.pre(move |hit| notes.add((hit.probe.0, "pre", hit.regs)))
    };
    let post = |probe: InstructionProbe| {
        let notes = notes.clone();
        probe.post(move |hit| notes.add((hit.probe.0, "post", hit.regs)))
    };
    let mut guest = guest;
    for place in [&copied.place, &emulated.place] {
        let at = || Probe::at(place.as_str());
        guest = guest.probe(post(pre(at()))).probe(post(at())).probe(at()).probe(pre(at()));
        guest = guest.probe(at().fault(|_, fault| panic!("{fault:?}")));
    }
    let ended = guest.run("open:20,getppid:20");
    ended.assert_in_order();
    // The kernel opens files of its own while it boots.
    let opens = ended.hits(0);
    assert!(opens > ended.workload("done", "openat"));
    for (probe, hits) in (0..10).zip([opens; 5].into_iter().chain([20; 5])) {
        assert_eq!(ended.hits(probe), hits, "{:?}", ended.probe(probe));
    }
    let notes = notes.take();
    let (opens, getppids): (Vec<Note>, Vec<Note>) = notes.into_iter().partition(|(probe, ..)| *probe < 5);
    for (first, notes) in [(0, opens), (5, getppids)] {
        let expected = [(first, "pre"), (first + 3, "pre"), (first, "post"), (first + 1, "post")];
        let (hits, rest) = notes.as_chunks::<4>();
        assert!(hits.len() >= 20 && rest.is_empty(), "{notes:?}");
        for hit in hits {
            assert_eq!(hit.map(|(probe, when, _)| (probe, when)), expected);
            let [before, _, _, after] = hit.map(|(.., regs)| regs);
            let same = Regs { rip: 0, rflags: 0, ..after };
            if first == 0 {
                // `rep stosq`: RCX words from RDI on.
                assert_eq!((after.rcx, after.rdi), (0, before.rdi + 8 * before.rcx));
                assert_eq!(
                    Regs { rcx: before.rcx, rdi: before.rdi, ..same },
                    Regs { rip: 0, rflags: 0, ..before }
                );
                assert_eq!(after.rip, before.rip + 3);
            } else {
                assert_eq!(after.rsp, before.rsp - 8);
                assert_eq!(Regs { rsp: before.rsp, ..same }, Regs { rip: 0, rflags: 0, ..before });
            }
        }
    }
}

/// The pre handler may change registers and memory and may redirect RIP (then nothing is executed and no post
/// handler runs); a skipped function makes one path fail, and only that one.
#[test]
fn handlers_change_registers_memory_and_the_way() {
    const NOT_MAPPED: u64 = 0x1000;
    const EIO: i64 = 5;
    let Some(guest) = Guest::new() else { return };
    let Some(stos) = string_store(guest.subject) else { return };
    let (redirected, passed) = (Notes::new(), Notes::new());
    let ended = guest
        .probe(Probe::at("do_sys_openat2").pre(|hit| match path_at_openat(hit).as_deref() {
            Some(b"/pre-register") => hit.regs.rsi = NOT_MAPPED,
            Some(b"/pre-memory-") => hit.memory.write(Gva(hit.regs.rsi), b"/etc/passwd\0").unwrap(),
            _ => {}
        }))
        .probe(Probe::at("do_sys_openat2").post(|hit| {
            if path_at_openat(hit).as_deref() == Some(b"/post-register") {
                hit.regs.rsi = NOT_MAPPED;
            }
        }))
        .probe(Probe::at(name_of("do_filp_open")).pre(|hit| {
            if path_at_filp_open(hit) == b"/etc/group" {
                hit.skip_function(-EIO as u64).unwrap();
            }
        }))
        .probe({
            let (redirected, passed) = (redirected.clone(), passed.clone());
            let pre = move |hit: &mut Hit<'_>| {
                if path_at_filp_open(hit) == b"/etc/hostname" {
                    redirected.add(());
                    while hit.regs.rcx > 0 {
                        hit.memory.write(Gva(hit.regs.rdi), &hit.regs.rax.to_le_bytes()).unwrap();
                        hit.regs.rdi += 8;
                        hit.regs.rcx -= 1;
                    }
                    hit.redirect(hit.at.add(3));
                }
            };
            let post = move |hit: &mut Hit<'_>| passed.add(path_at_filp_open(hit));
            Probe::at(stos.place).pre(pre).post(post)
        })
        .run(
            "try:/pre-register,try:/pre-memory-,try:/post-register,try:/etc/group,try:/etc/passwd,\
             try:/etc/hostname,try:/etc/group",
        );
    ended.assert_in_order();
    let tried: Vec<(&str, u32)> = ended
        .console
        .lines()
        .filter_map(|line| line.trim().strip_prefix("workload: try path=")?.split_once(" errno="))
        .map(|(path, errno)| (path, errno.parse().unwrap()))
        .collect();
    let expected = [
        ("/pre-register", 14),
        ("/pre-memory-", 0),
        ("/post-register", 14),
        ("/etc/group", 5),
        ("/etc/passwd", 0),
        ("/etc/hostname", 0),
        ("/etc/group", 5),
    ];
    assert_eq!(tried, expected);
    assert_eq!(redirected.take().len(), 1);
    let passed = passed.take();
    assert!(passed.iter().any(|path| path == b"/etc/passwd"), "{passed:?}");
    assert!(!passed.iter().any(|path| path == b"/etc/hostname"), "{passed:?}");
}

/// Probes on a probe's neighbours: every instruction of a function, emulated and copied mixed, with and without
/// post handlers, and the workload's results are right.
#[test]
fn every_instruction_of_a_function_is_probed() {
    let Some(mut guest) = Guest::new() else { return };
    const OPEN: &str = "do_sys_openat2";
    let functions = [OPEN, name_of("do_filp_open"), "strncpy_from_user", "__x64_sys_getppid"];
    let all: Vec<_> = functions.iter().flat_map(|function| guest.subject.instructions(function)).collect();
    assert!(all.iter().any(|i| i.is_copied) && all.iter().filter(|i| !i.is_copied).count() > 50);
    for (n, instruction) in all.iter().enumerate() {
        let probe = Probe::at(instruction.place.as_str()).pre(|_| ());
        guest = guest.probe(if n % 2 == 0 { probe.post(|_| ()) } else { probe });
    }
    let ended = guest.run("open:20,getppid:20,try:/nonexistent,try:/etc/passwd");
    ended.assert_in_order();
    assert_eq!(ended.workload("try path=/nonexistent", "errno"), 2);
    assert_eq!(ended.workload("try path=/etc/passwd", "errno"), 0);
    assert_eq!(ended.workload("open", "calls"), 20);
    // Up to its first branch, all of a function runs at each call.
    for (function, times, least) in
        [(OPEN, ended.workload("done", "openat"), 10), ("__x64_sys_getppid", 20, 6)]
    {
        let own = all
            .iter()
            .zip(0..)
            .filter(|(i, _)| i.place.strip_prefix(function).is_some_and(|rest| rest.starts_with('+')));
        let straight = own.take_while(|(i, _)| !i.text.starts_with('j'));
        let hits: Vec<u64> = straight.map(|(_, n)| ended.hits(n)).collect();
        assert!(hits.len() >= least, "{function}: {hits:?}");
        assert!(hits[0] >= times && hits.iter().all(|found| *found == hits[0]), "{function}: {hits:?}");
    }
}
