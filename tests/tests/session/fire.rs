//! Random sets of five hundred detours on a kernel that is preempted anywhere: armed, put on traps and back, disabled and
//! enabled in part, and taken out, while the guest works on two CPUs.
//!
//! Beside them, and on the same functions, two probes stay: what they count has to be what the guest counted.
//!
//! For 20 seconds of the guest's time, or, with `VMM_LONG` set, for five minutes. `VMM_SEED` has an earlier run's
//! choices made again.

use super::storm::{HOT, check, unless_ended};
use probe_engine::capture::filter::{Filter, Operand, Order, Test};
use probe_engine::capture::{Base, Capture, Fetch, Field, Register, shape::Shape};
use probe_engine::linux::glob::Glob;
use probe_engine::probe::place::{Place, in_kernel};
use probe_engine::probe::table::ProbeId;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tests::differential::rng::Rng;
use tests::linux_rig::{Console, Guest, Subject};
use vmm::probe::Probe;
use vmm::session::{Command, Handle, Missed, ProbeReport, ProbeState};

/// Probes in a set.
const PROBES: usize = 500;
/// How many of them are where the guest is busiest.
const BUSY: usize = 30;
/// The probes that stay, and what the workload calls their number.
const KNOWN: [(&str, &str); 2] = [("__x64_sys_getppid", "getppid"), ("do_sys_openat2", "openat")];

/// Shows what kind of kernel this is, and waits.
const SCRIPT: &str = "\
mount -t debugfs debugfs /sys/kernel/debug
read -r preempt < /sys/kernel/debug/sched/preempt
echo \"preempt is $preempt\"
echo ready
read line
";

/// The entries that ftrace keeps five bytes for, in text that stays: the busiest, and all others.
fn places(subject: &Subject) -> (Vec<Place>, Vec<Place>) {
    let kernel = &subject.kernel;
    let mut last = None;
    let any = Glob::new("*").unwrap();
    let all = kernel.symbols().matching(&any);
    let all = all.filter(|symbol| last.replace(symbol.at) != Some(symbol.at));
    let all = all.filter(|symbol| !kernel.image().is_init_text(symbol.at)).filter_map(|symbol| {
        let info = in_kernel(symbol.at, kernel).ok().filter(|info| info.ftrace.is_some())?;
        Some(Place::Kernel { name: symbol.name.to_owned(), info })
    });
    all.partition(|place| HOT.contains(&place.name().as_str()))
}

/// Different ones of `places`.
fn draw<'a>(places: &'a [Place], count: usize, rng: &mut Rng) -> impl Iterator<Item = &'a Place> {
    let mut left: Vec<&Place> = places.iter().collect();
    let count = count.min(left.len());
    (0..count)
        .map(|_| left.swap_remove(rng.below(left.len() as u64) as usize))
        .collect::<Vec<_>>()
        .into_iter()
}

/// A set of probes that count, count some hits, or write some down, at different places.
fn set(hot: &[Place], others: &[Place], rng: &mut Rng) -> Vec<Probe> {
    let mut places: Vec<Place> = draw(hot, BUSY, rng).cloned().collect();
    places.extend(draw(others, PROBES - places.len(), rng).cloned());
    let probe = |place: Place| match rng.below(4) {
        0 => Probe::at(place).capture(some(128)).into(),
        // Few, so that it is not the reader who is tried.
        1 => Probe::at(place).capture(some(16)).record().into(),
        _ => Probe::at(place).into(),
    };
    places.into_iter().map(probe).collect()
}

/// Reads two registers, at hits where the stack pointer's low byte is below so much.
pub(super) fn some(below: i128) -> Capture {
    let field = |register: Register, bytes| Field {
        name: register.name().to_owned(),
        fetch: Fetch::word(Base::Register(register), bytes),
        shape: Shape::Hex,
    };
    Capture {
        fields: vec![field(Register::Rdi, 8), field(Register::Rsp, 1)],
        filter: Some(Filter::Test(Operand::Field(1), Test::Number(Order::Less, below))),
        ..Capture::default()
    }
}

/// What a set is seen to stand on.
#[derive(Default)]
struct Seen(BTreeMap<&'static str, u64>);

impl Seen {
    /// Looks at the probes with these numbers. `may` says which states they may be in.
    #[track_caller]
    fn look(&mut self, handle: &Handle, ids: &[ProbeId], may: impl Fn(&ProbeState) -> bool) -> Option<()> {
        let listed = unless_ended(handle.list())?;
        check(&listed);
        let of: Vec<&ProbeReport> = listed.iter().filter(|probe| ids.contains(&probe.id)).collect();
        assert_eq!(of.len(), ids.len());
        let wrong: Vec<_> = of.iter().filter(|probe| !may(&probe.state)).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        for probe in of {
            let kind = match probe.state {
                ProbeState::Optimized(_) => "optimized",
                ProbeState::Armed(_) => "trapped",
                _ => "disabled",
            };
            *self.0.entry(kind).or_default() += 1;
        }
        Some(())
    }
}

/// Has sets come and go until the guest has done its work. Counts them.
fn churn(
    handle: &Handle,
    console: &Console,
    set: impl Fn(&mut Rng) -> Vec<Probe>,
    rng: &mut Rng,
    seen: &mut Seen,
) -> Option<()> {
    let is_optimized = |state: &ProbeState| matches!(state, ProbeState::Optimized(_));
    let is_trapped = |state: &ProbeState| matches!(state, ProbeState::Armed(_));
    while !console.text().contains("workload: mix ") {
        let mut ids = unless_ended(handle.register_all(set(rng)))?;
        seen.look(handle, &ids, is_optimized)?;
        // Three changes, beginning with any of them.
        let first = rng.below(3);
        for change in 0..3 {
            stay(rng);
            let some: Vec<ProbeId> = ids.iter().copied().filter(|_| rng.one_in(2)).collect();
            match (first + change) % 3 {
                0 => {
                    unless_ended(handle.command(Command::Optimize(false)))?;
                    seen.look(handle, &ids, is_trapped)?;
                    stay(rng);
                    unless_ended(handle.command(Command::Optimize(true)))?;
                }
                1 => {
                    unless_ended(handle.command(Command::Disable(some.clone())))?;
                    seen.look(handle, &some, |state| *state == ProbeState::Disabled)?;
                    stay(rng);
                    unless_ended(handle.command(Command::Enable(some)))?;
                }
                _ => {
                    ids.retain(|id| !some.contains(id));
                    let others = set(rng).into_iter().take(some.len()).collect();
                    unless_ended(handle.command(Command::Unregister(some)))?;
                    ids.extend(unless_ended(handle.register_all(others))?);
                }
            }
            seen.look(handle, &ids, is_optimized)?;
        }
        unless_ended(handle.command(Command::Unregister(ids)))?;
    }
    Some(())
}

/// A while in which the guest runs on: longer than it stands still for a change.
fn stay(rng: &mut Rng) {
    thread::sleep(Duration::from_millis(50 + rng.below(300)));
}

/// The seed that was asked for, or one that nobody has chosen.
fn seed() -> u64 {
    let asked = std::env::var("VMM_SEED").ok().map(|seed| seed.parse().unwrap());
    asked.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into())
}

#[test]
fn sets_of_detours_come_and_go_under_a_preempted_guest() {
    let seconds = if std::env::var_os("VMM_LONG").is_some() { 300 } else { 20 };
    let Some(guest) = Guest::new() else { return };
    let (hot, others) = places(guest.subject);
    assert!(hot.len() > BUSY && others.len() > 30_000, "{} and {} places", hot.len(), others.len());
    let seed = seed();
    println!("VMM_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut seen = Seen::default();
    let guest =
        guest.cpus(2).optimize().script(SCRIPT).cmdline("preempt=full rcupdate.rcu_cpu_stall_timeout=300");
    let guest = guest.patience(Duration::from_secs(seconds * 4 + 120));
    let ended = guest.run_with(&format!("sh:/script,mix:{seconds}"), |handle, console| {
        console.wait_for("ready", 1);
        // The shell has opened its files by now, and is not counted.
        handle.register_all(KNOWN.iter().map(|(function, _)| Probe::at(*function).into()).collect()).unwrap();
        console.open_gate();
        churn(handle, console, |rng| set(&hot, &others, rng), &mut rng, &mut seen);
    });
    ended.assert_in_order();
    assert!(ended.console.contains("(full)"), "the guest's kernel is not preempted:\n{}", ended.console);
    check(&ended.report.probes);
    assert!(ended.workload("mix", "rounds") > 0 && ended.workload("mix", "checks") > 0);
    for (n, (function, calls)) in (0..).zip(KNOWN) {
        let probe = ended.probe(n);
        println!("{function}: {} hits", probe.hits);
        assert_eq!(
            (probe.hits, probe.missed),
            (ended.workload("done", calls), Missed::default()),
            "{function}"
        );
    }
    let gone = ended.report.unregistered;
    println!("{seconds} s: {:?}; {gone:?}; {} events", seen.0, ended.events.len());
    for kind in ["optimized", "trapped", "disabled"] {
        assert!(seen.0.get(kind).is_some_and(|count| *count > 0), "{kind}: {:?}", seen.0);
    }
    assert!(gone.hits > 1000 && !ended.events.is_empty(), "{gone:?}");
}
