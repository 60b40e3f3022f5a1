//! Detours that take the place of several instructions: what they see is what a trap would have seen, they stand only
//! where nobody is inside, and make room for others.

use super::{Notes, UNTIL_GATE, after, assert_saw_all_calls};
use probe_engine::addr::{Gpa, Gva};
use probe_engine::capture::filter::{Filter, Operand, Order, Test};
use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Fetch, Field, Register};
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::detour::verdict::{FunctionText, verdict};
use probe_engine::linux::targets::JumpTargets;
use probe_engine::linux::thunks::Thunks;
use probe_engine::memory::PhysMemory;
use probe_engine::probe::table::ProbeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tests::linux_rig::{Guest, Instruction, Subject};
use vmm::probe::{Hit, Probe};
use vmm::session::{Command, Handle, ProbeReport, ProbeState};

/// Called once for each step of a workload that says so, and seldom else.
const FUNCTION: &str = "__x64_sys_getppid";

/// What the kernel's file says of the regions in it.
struct Regions {
    subject: &'static Subject,
    targets: JumpTargets,
    thunks: Thunks,
}

impl Regions {
    fn of(subject: &'static Subject) -> Self {
        Self { subject, targets: JumpTargets::scan(&subject.kernel), thunks: Thunks::of(&subject.kernel) }
    }

    /// Those of several instructions in `function`, each with the first of them.
    fn in_function(&self, function: &str) -> Vec<(Instruction, RelocatedCode)> {
        let all = self.subject.instructions(function).into_iter();
        let found = all.filter_map(|instruction| {
            let constraints = &instruction.info.constraints_in(&self.subject.kernel, &self.targets)?;
            let start = instruction.info.function.start;
            let bytes = self.subject.kernel.image().bytes(&instruction.info.function)?;
            let region =
                verdict(&FunctionText { start, bytes, slide: 0, constraints, thunks: &self.thunks }).ok()?;
            (!region.is_one_instruction()).then_some((instruction, region))
        });
        found.collect()
    }

    /// Places with regions behind each other in `function`, each with the place behind it, to which nothing else leads.
    fn with_ends(&self, function: &str) -> Vec<(String, String)> {
        let all = self.subject.instructions(function);
        let mut pairs = Vec::new();
        let mut free = Gva(0);
        for (first, region) in self.in_function(function) {
            let inside = all.iter().filter(|i| i.info.at.is_in(&region.range()));
            let is_straight =
                inside.into_iter().all(|i| !i.text.starts_with('j') && !i.text.starts_with("call"));
            let is_met = self.targets.first_inside(&(region.end().offset(-1)..region.end().add(1))).is_some();
            let end = all.iter().find(|i| i.info.at == region.end());
            if let Some(end) =
                end.filter(|_| is_straight && !is_met && region.goes_on() && region.at() >= free)
            {
                free = end.info.at.add(1);
                pairs.push((first.place, end.place.clone()));
            }
        }
        pairs
    }

    /// A region behind ftrace's site in `function`, if there is one, and its place.
    fn behind_site(&self, function: &str) -> Option<(String, RelocatedCode)> {
        let place = self.subject.behind_site(function);
        let found = self.in_function(function).into_iter().find(|(first, _)| first.place == place);
        found.map(|(_, region)| (place, region))
    }
}

fn reading() -> Capture {
    let field = |register: Register| Field {
        name: register.name().to_owned(),
        fetch: Fetch::word(Base::Register(register), 8),
        shape: Shape::Hex,
    };
    let registers = [Register::Rbx, Register::Rsp, Register::R12, Register::Rax, Register::Rdx];
    Capture { fields: registers.map(field).into(), ..Capture::default() }
}

/// The same hits twice: by a trap on the function's entry and a region behind it; then by regions in its middle and traps
/// behind each.
fn sees_what_a_trap_sees(cpus: u8) {
    // Compilers have made a region behind the site in some of them.
    const FUNCTIONS: [&str; 6] =
        ["vfs_read", "do_sys_openat2", "wake_up_new_task", "ksys_read", "vfs_write", "path_openat"];
    let Some(mut guest) = Guest::new() else { return };
    let regions = Regions::of(guest.subject);
    let mut places = Vec::new();
    for function in FUNCTIONS {
        let Some((behind, region)) = regions.behind_site(function) else { continue };
        guest = guest.probe(Probe::at(function).capture(reading()).record().pre(|_| {}));
        guest = guest.probe(Probe::at(behind.as_str()).capture(reading()).record());
        places.push((function.to_owned(), behind));
        let start = regions.subject.kernel.symbol(function).unwrap();
        let is_behind = |place: &str| {
            let offset = place.split_once("+0x").and_then(|(_, hex)| u64::from_str_radix(hex, 16).ok());
            offset.is_some_and(|offset| start.add(offset) > region.end())
        };
        for (place, end) in regions.with_ends(function).into_iter().filter(|(place, _)| is_behind(place)) {
            guest = guest.probe(Probe::at(end.as_str()).pre(|_| {}));
            guest = guest.probe(Probe::at(place.as_str()));
            places.push((end, place));
        }
    }
    let ended = guest.cpus(cpus).optimize().run("mix:20,fork:5,open:50");
    ended.assert_in_order();
    let mut hit = 0;
    for (n, (trapped, moved)) in (0..).zip(&places) {
        let (trap, detour) = (ended.probe(2 * n), ended.probe(2 * n + 1));
        println!("{cpus} CPUs: {} hits of {moved}, {} of {trapped}", detour.hits, trap.hits);
        assert!(matches!(trap.state, ProbeState::Armed(_)), "{trap:?}");
        assert_eq!(trap.trapped.as_deref(), Some("a handler on the host sees its hits"));
        assert!(matches!(detour.state, ProbeState::Optimized(_)), "{detour:?}");
        assert_eq!(detour.hits, trap.hits, "{detour:?} {trap:?}");
        assert_eq!((detour.missed, trap.missed), Default::default());
        hit += u32::from(detour.hits > 0);
        let (detoured, trapped) = (ended.by_task(detour.id), ended.by_task(trap.id));
        assert_eq!(detoured.len(), trapped.len());
        for (detoured, trapped) in detoured.into_iter().zip(trapped) {
            assert_eq!(
                (detoured.what, &detoured.task, &detoured.captured),
                (trapped.what, &trapped.task, &trapped.captured),
                "{moved}"
            );
            // A task may be moved to another CPU between the two.
            assert!(trapped.nanos <= detoured.nanos || cpus > 1, "{detoured:?} {trapped:?}");
        }
    }
    println!("{hit} of {} were hit", places.len());
    assert!(places.len() > 15 && hit > 10, "{places:?}");
}

#[test]
fn a_region_sees_what_a_trap_sees() {
    sees_what_a_trap_sees(1);
    sees_what_a_trap_sees(2);
}

fn first(handle: &Handle) -> ProbeReport {
    handle.list().unwrap().swap_remove(0)
}

/// Waits until the first probe is served by a detour.
#[track_caller]
fn becomes_a_detour(handle: &Handle) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !matches!(first(handle).state, ProbeState::Optimized(_)) {
        assert!(Instant::now() < patience, "{:?}", first(handle));
        thread::sleep(Duration::from_millis(20));
    }
}

/// Another probe inside has it on a trap, and so has a task there, for as long as it is there.
#[test]
fn a_region_is_left_to_those_who_are_inside() {
    const CALLS: u64 = 20;
    /// Nobody's, in a guest that has booted.
    const UNUSED: Gpa = Gpa(0x600);
    let Some(guest) = Guest::new() else { return };
    let subject = guest.subject;
    let (place, region) = Regions::of(subject).behind_site(FUNCTION).unwrap();
    let second = region.instructions().nth(1).unwrap().offset_from(region.at()).unwrap();
    let entry = subject.kernel.symbol(FUNCTION).unwrap();
    let inside = format!("{FUNCTION}+{:#x}", region.at().add(second).offset_from(entry).unwrap());
    let word = Arc::new(Mutex::new(None::<u64>));
    let texts = Notes::new();
    let handler = {
        let (word, texts) = (word.clone(), texts.clone());
        let offset = region.at().offset_from(entry).unwrap();
        move |hit: &mut Hit<'_>| {
            let start = Gva(hit.regs.rip & !0xf).add(offset);
            let mut text = vec![0; 8];
            hit.memory.read(start, &mut text).unwrap();
            texts.add(text);
            if let Some(word) = *word.lock().unwrap() {
                hit.memory.phys.write(UNUSED, &word.to_le_bytes()).unwrap();
            }
        }
    };
    let steps = vec![format!("getppid:{CALLS}"); 5].join(",sh:/gate,");
    // The shells that wait at the gate ask for their parents, too, whenever they come to it.
    let of_the_workload = || Capture {
        filter: Some(Filter::Test(Operand::Pid, Test::Number(Order::Equal, 1))),
        ..Capture::default()
    };
    let counting = |place: &str| Probe::at(place).capture(of_the_workload());
    let guest = guest.optimize().probe(counting(&place)).probe(Probe::at(FUNCTION).pre(handler));
    let ended = guest.run_with(&steps, |handle, console| {
        let hits = |calls| after(handle, console, "workload: getppid", calls)[0].1;
        assert_eq!(hits(1), CALLS);
        becomes_a_detour(handle);
        let ProbeState::Optimized(at) = first(handle).state else { panic!("{:?}", first(handle)) };

        let id = handle.register_all(vec![counting(&inside).into()]).unwrap();
        let probe = first(handle);
        assert_eq!(probe.state, ProbeState::Armed(at));
        assert!(probe.trapped.as_deref().unwrap().starts_with("another probe stands inside"), "{probe:?}");
        assert_eq!(hits(2), 2 * CALLS);
        let seen = handle.list().unwrap().pop().unwrap();
        assert_eq!((seen.id, seen.hits), (id[0], CALLS));
        handle.command(Command::Unregister(id)).unwrap();
        becomes_a_detour(handle);

        handle.command(Command::Disable(vec![ProbeId(0)])).unwrap();
        *word.lock().unwrap() = Some(at.add(second).0);
        assert_eq!(hits(3), 2 * CALLS);
        handle.command(Command::Enable(vec![ProbeId(0)])).unwrap();
        let probe = first(handle);
        assert_eq!(probe.state, ProbeState::Armed(at));
        assert!(probe.trapped.as_deref().unwrap().starts_with("a task is inside"), "{probe:?}");
        thread::sleep(Duration::from_millis(300));
        assert_eq!(first(handle).state, ProbeState::Armed(at), "it is still there");
        *word.lock().unwrap() = Some(0);
        assert_eq!(hits(4), 3 * CALLS);
        becomes_a_detour(handle);
        assert_eq!(hits(5), 4 * CALLS);
    });
    ended.assert_in_order();
    let original = subject.kernel.image().bytes_at(region.at(), 8).unwrap();
    let texts = texts.take();
    assert!(texts.iter().any(|text| text[0] == 0xe9 && text[5..] == original[5..]), "{texts:02x?}");
    assert!(texts.iter().any(|text| text == original), "all of it is there again: {texts:02x?}");
}

/// Probes come and go in a region and inside it, and the switch for detours is thrown, while two CPUs run there and tasks
/// are preempted anywhere.
#[test]
fn regions_come_and_go_under_load() {
    let Some(guest) = Guest::new() else { return };
    let (place, region) = Regions::of(guest.subject).behind_site(FUNCTION).unwrap();
    let entry = guest.subject.kernel.symbol(FUNCTION).unwrap();
    let inside = region.instructions().nth(1).unwrap().offset_from(entry).unwrap();
    let inside = format!("{FUNCTION}+{inside:#x}");
    let elsewhere = guest.subject.behind_site("vfs_read");
    let mut counted = BTreeMap::new();
    let guest = guest.cpus(2).cmdline("preempt=full").optimize().probe(Probe::at(place.as_str()));
    let ended = guest.run_with(&format!("open:1,{UNTIL_GATE}"), |handle, console| {
        after(handle, console, "workload: open", 1);
        for round in 0..60 {
            let more = [Probe::at(place.as_str()).record(), Probe::at(elsewhere.as_str())].map(Probe::into);
            let mut ids = handle.register_all(more.into()).unwrap();
            let change = match round % 5 {
                0 => Command::Optimize(false),
                1 => Command::Optimize(true),
                2 => Command::Disable(vec![ids[0]]),
                3 => Command::Register(vec![Probe::at(inside.as_str()).into()]),
                _ => Command::Enable(ids.clone()),
            };
            let is_inside = matches!(change, Command::Register(_));
            let more = handle.command(change).unwrap();
            if is_inside {
                ids.extend(more);
            }
            for probe in handle.list().unwrap() {
                let kind = match (&probe.state, &probe.trapped) {
                    (ProbeState::Optimized(_), _) => "optimized".to_owned(),
                    (ProbeState::Armed(_), Some(reason)) => reason.chars().take(20).collect(),
                    _ => "other".to_owned(),
                };
                *counted.entry(kind).or_insert(0) += 1;
            }
            handle.command(Command::Unregister(ids)).unwrap();
        }
        console.open_gate();
    });
    ended.assert_in_order();
    assert_saw_all_calls(&ended, &counted);
    assert!(counted["optimized"] > 5 && counted["another probe stands"] > 5, "{counted:?}");
}
