//! Places in programs, probed while the guest runs.

use super::Notes;
use object::{Object, ObjectSegment};
use probe_engine::probe::table::ProbeId;
use probe_engine::regs::Register;
use std::time::{Duration, Instant};
use tests::linux_rig::{Ended, Guest, Subject};
use vmm::errands::{Functions, ReadFile};
use vmm::events::Event;
use vmm::probe::{Hit, Probe, Where};
use vmm::session::{CommandError, Handle, ProbeReport, ProbeState};

/// Longer than anything here takes, on a busy machine too.
const LONG: Duration = Duration::from_secs(120);
/// The program whose entry is probed.
const PROGRAM: &str = "/bin/sh";
/// What `/proc/vmallocinfo` says of memory that nobody with a name has allocated, and how much of it there is.
const UNNAMED: &str = "echo there are $(grep -c ' 0xffff[0-9a-f]* pages=' /proc/vmallocinfo)\n";

/// Where in its file the entry of the program is, which the guest reads for us.
fn entry(subject: &Subject, handle: &Handle) -> u64 {
    let functions = Functions::find(subject.kernel.symbols()).unwrap();
    let mut file = ReadFile::new(functions, PROGRAM.as_bytes(), 64 << 20).unwrap();
    let bytes = handle.errand(LONG, move |worker| file.next(worker)).unwrap().unwrap();
    let program = object::File::parse(&*bytes).unwrap();
    let entry = program.entry();
    let segment = program.segments().find(|own| (own.address()..own.address() + own.size()).contains(&entry));
    let segment = segment.unwrap();
    entry - segment.address() + segment.file_range().0
}

fn defined(text: &str) -> Probe {
    Probe::define(text).unwrap()
}

/// Whoever starts meanwhile comes by, on detours and at handlers, and nobody afterwards.
#[test]
fn a_place_in_a_program_is_probed_while_the_guest_runs() {
    let Some(guest) = Guest::new() else { return };
    let subject = guest.subject;
    let seen = Notes::new();
    let steps = "sh:/script,open:1,sh:/gate,sh:/script,sh:/script,sh:/gate,sh:/script";
    let ended = guest.cpus(2).script(UNNAMED).run_with(steps, |handle, console| {
        console.wait_for("workload: open", 1);
        let at = entry(subject, handle);
        let place = format!("{PROGRAM}:{at:#x}");
        let counted = handle.register(defined(&format!("p {place} ip=%ip sp=$stack"))).unwrap();
        let handled = Probe::at(Where::Definition(format!("p {place} ip=%ip"))).pre({
            let seen = seen.clone();
            move |hit| seen.add(hit.program().and_then(|program| program.get(Register::Rip).ok()))
        });
        let handled = handle.register(handled).unwrap();
        let reports = handle.list().unwrap();
        assert!(
            reports
                .iter()
                .all(|probe| matches!(probe.state, ProbeState::Armed(_) | ProbeState::Optimized(_))),
            "{reports:?}"
        );
        console.open_gate();
        console.wait_for("workload: sh path=/script", 3);
        // In one stop: the shell of the next gate may start between two.
        let reports = handle.unregister_all(vec![counted, handled]).unwrap();
        let [counted, handled] = reports.as_slice() else { panic!("{reports:?}") };
        let ips = seen.take();
        // Each script is a shell, which starts a program of the same file. The shell of this gate may have started before.
        assert!((4..=5).contains(&counted.hits) && counted.hits == handled.hits, "{counted:?} {handled:?}");
        assert!(ips.len() as u64 == handled.hits && ips.iter().all(|ip| *ip == ips[0]), "{ips:x?}");
        console.open_gate();
    });
    ended.assert_in_order();
    assert_eq!(ended.console.matches("there are 0").count(), 4, "{}", ended.console);
    assert_eq!(seen.take(), []);
}

/// A program of ours, without libraries: the file that `VMM_GUEST_PROBED` names, or the one that was built with the tests.
fn probed() -> Vec<u8> {
    let built = || env!("CARGO_BIN_EXE_probed").into();
    std::fs::read(std::env::var_os("VMM_GUEST_PROBED").unwrap_or_else(built)).unwrap()
}

/// What a handler makes of an argument and of what a function returns is what the program goes on with.
#[test]
fn a_handler_changes_what_a_program_goes_on_with() {
    let Some(guest) = Guest::new() else { return };
    let at =
        |text: &str, handler: fn(&mut Hit<'_>)| Probe::at(Where::Definition(text.to_owned())).pre(handler);
    let entered = at("p /probed:probed_changed number=%di:u64", |hit| {
        let program = hit.program().unwrap();
        let number = program.get(Register::Rdi).unwrap();
        assert_eq!(hit.get("number").and_then(|own| own.number()), Some(number));
        program.set(Register::Rdi, number + 40).unwrap();
    });
    let returned = at("r /probed:probed_changed", |hit| {
        let program = hit.program().unwrap();
        let number = program.get(Register::Rax).unwrap();
        program.set(Register::Rax, number * 10).unwrap();
    });
    let guest = guest.cpus(2).program("probed", &probed()).script("/probed 1\n");
    let ended = guest.probe(entered).probe(returned).run("sh:/script");
    ended.assert_in_order();
    assert!(ended.console.contains("410 and 420 are changed"), "{}", ended.console);
}

/// What the events of a probe have read, task by task in the order in which they came.
fn read(ended: &Ended, probe: ProbeId) -> Vec<Vec<u64>> {
    let field = |event: &Event, name: &str| event.get(name).and_then(|value| value.number()).unwrap();
    let names = ["n", "less", "there", "byte", "seven", "more"];
    let of = |event: &&Event| names.map(|name| field(event, name)).to_vec();
    ended.by_task(probe).iter().map(of).collect()
}

/// Where a tracepoint of a program's own is, and where its arguments are, is known when its file is.
fn reads_tracepoints(mark: Probe) -> ProbeReport {
    let guest = Guest::new().unwrap();
    let guest = guest.cpus(2).optimize().program("probed", &probed()).script("/probed 4\n");
    let some = defined("usdt /probed:probed:counted n=$arg1:u64 if n > 0 && n < 3");
    let guest = guest.probe(mark).probe(some).probe(defined("p /probed:probed_[sn]*"));
    let guest = guest.probe(defined("r /probed:probed_s*"));
    let ended = guest.probe(defined("usdt /probed:probed:fast n=$arg1:u64 if n < 9")).run("sh:/script");
    ended.assert_in_order();
    let round = |n: u64| vec![n, !n, n, 0xf0 + n, u64::from((-7_i32).cast_unsigned()), n + 1];
    let rounds: Vec<_> = (0..2).flat_map(|_| (0..4).map(round)).collect();
    assert_eq!(read(&ended, ProbeId(0)), rounds, "{:?}", ended.probe(0));
    let marks = ended.by_task(ProbeId(0));
    let texts = marks.iter().map(|event| event.get("text").and_then(|text| text.text()));
    assert!(
        texts.clone().all(|text| text == Some(b"a_text_of_the_program")),
        "{:?}",
        texts.collect::<Vec<_>>()
    );
    // Both places of it are counted by the program.
    assert!(ended.console.contains("2 count"), "{}", ended.console);
    let hits = |probe: u32| -> Vec<(&str, u64)> {
        ended.probe(probe).places.iter().map(|place| (place.place.as_str(), place.hits)).collect()
    };
    assert_eq!((ended.probe(1).hits, hits(1).len()), (2 * 2, 2), "{:?}", ended.probe(1));
    let mut functions = hits(2);
    functions.sort_unstable();
    assert_eq!(functions, [("probed_nest", 2 * 4 * 6), ("probed_signal", 8), ("probed_sum", 8)]);
    assert_eq!((ended.probe(2).hits, ended.probe(3).hits), (64, 16));
    let fast = ended.by_task(ProbeId(4));
    let fast: Vec<_> = fast.iter().map(|event| event.get("n").and_then(|n| n.number())).collect();
    assert_eq!(fast, [0, 1, 2, 3, 0, 1, 2, 3].map(Some), "{:?}", ended.probe(4));
    ended.probe(0).clone()
}

const MARK: &str = "usdt:mark /probed:probed:mark n=$arg1:u64 less=$arg2:s64 text=+0($arg3):string there=$arg4 \
                    byte=$arg5:u32 seven=$arg6:s32 more=$arg7:u64";

#[test]
fn tracepoints_of_programs_are_probed_with_their_arguments() {
    if Guest::new().is_none() {
        return;
    }
    let report = reads_tracepoints(defined(MARK));
    assert!(matches!(report.state, ProbeState::Optimized(_)), "{report:?}");
    let seen = Notes::new();
    let handled = Probe::at(Where::Definition(MARK.to_owned())).record().pre({
        let seen = seen.clone();
        move |hit| seen.add(hit.program().and_then(|program| program.get(Register::Rdi).ok()))
    });
    let report = reads_tracepoints(handled.into());
    assert!(matches!(report.state, ProbeState::Armed(_)), "{report:?}");
    assert_eq!(seen.take(), [0, 1, 2, 3, 0, 1, 2, 3].map(Some));
}

/// What stands for several places is refused with a reason where the file has none, or not what is to be read there.
#[test]
fn what_a_file_has_nowhere_is_refused() {
    let Some(guest) = Guest::new() else { return };
    let guest = guest.program("probed", &probed()).script("/probed 1\n");
    let ended = guest.run_with("open:1,sh:/gate,sh:/script", |handle, console| {
        console.wait_for("workload: open", 1);
        for (definition, reason) in [
            (
                "usdt /probed:probed:nothing",
                "it has no tracepoint `probed:nothing`; it has probed:counted, probed:fast, probed:mark",
            ),
            ("usdt /bin/sh:probed:mark", "it has no tracepoint `probed:mark`, and no other one"),
            ("usdt /probed:probed:mark x=$arg8", "`x` is argument 8 there, and there are only 7"),
            ("usdt /probed:probed:mark x=+0($arg2):string", "leads nowhere: it has 4 bytes"),
            ("p /probed:nothing_*", "no function of it is called like `nothing_*`"),
        ] {
            match handle.register(defined(definition)) {
                Err(CommandError::Register(error)) => {
                    assert!(error.to_string().contains(reason), "{definition}: {error}");
                }
                other => panic!("{definition}: {other:?}"),
            }
        }
        // All of it comes and goes as one.
        let sums = handle.register(defined("p /probed:probed_*")).unwrap();
        let report = handle.unregister(sums).unwrap();
        assert!(report.places.len() > 6 && report.hits == 0, "{report:?}");
        assert!(handle.list().unwrap().is_empty());
        console.open_gate();
    });
    ended.assert_in_order();
    assert!(ended.console.contains("0 count"), "{}", ended.console);
}

/// What cannot be probed is refused with a reason, and a file that is not there is waited for.
#[test]
fn what_is_no_place_in_a_program_is_refused() {
    let Some(guest) = Guest::new() else { return };
    let steps = "open:1,sh:/gate,sh:/script,sh:/gate";
    let ended = guest.script("cp /bin/sh /later\n/later -c :\n").run_with(steps, |handle, console| {
        console.wait_for("workload: open", 1);
        for (place, reason) in [
            ("/bin/sh:0x4", "nothing is executed at 0x4 of the file"),
            ("/bin/sh:no_such_function", "it has no symbol `no_such_function`"),
            ("/script:0x4", "it is no program or library for x86-64"),
            ("/proc/self/exe/x:0x1", ""),
            ("/dev:0x1", "it is no regular file"),
            ("/dev/null:0x1", "it is no regular file"),
        ] {
            match handle.register(defined(&format!("p {place}"))) {
                Err(CommandError::Register(error)) => {
                    assert!(!reason.is_empty() && error.to_string().contains(reason), "{place}: {error}");
                }
                Ok(probe) if reason.is_empty() => drop(handle.unregister(probe).unwrap()),
                other => panic!("{place}: {other:?}"),
            }
        }
        let later = handle.register(defined("p /later:0x4")).unwrap();
        let state = |id: ProbeId| {
            let all = handle.list().unwrap();
            all.into_iter().find(|probe| probe.id == id).unwrap().state
        };
        assert_eq!(state(later), ProbeState::NoFile("/later".to_owned()));
        console.open_gate();
        console.wait_for("workload: sh path=/script", 1);
        assert!(matches!(state(later), ProbeState::Refused(_)), "it is looked at when it is there");
        console.open_gate();
    });
    ended.assert_in_order();
}

/// Shells start all the time.
const SHELLS: &str = "\
echo there are $(grep -c ' 0xffff[0-9a-f]* pages=' /proc/vmallocinfo)
while [ ! -e /tmp/enough ]; do sh -c :; done &
echo begun
read go
echo > /tmp/enough
wait $!
echo there are $(grep -c ' 0xffff[0-9a-f]* pages=' /proc/vmallocinfo)
";

/// So many probes come and go for so long while shells start: all see the same, but for what begins or ends in the middle.
fn come_and_go(cpus: u8, probes: usize, within: Duration) {
    let Some(guest) = Guest::new() else { return };
    let subject = guest.subject;
    let ended = guest.cpus(cpus).optimize().script(SHELLS).patience(20 * LONG).run_with(
        "sh:/script",
        |handle, console| {
            console.wait_for("begun", 1);
            let place = format!("p {PROGRAM}:{:#x} ip=%ip", entry(subject, handle));
            let begun = Instant::now();
            let (mut rounds, mut hits) = (0, 0);
            while begun.elapsed() < within {
                let ids = handle.register_all((0..probes).map(|_| defined(&place)).collect()).unwrap();
                // A shell takes as long as the machine is slow.
                let has_hit = |probe: &ProbeReport| probe.id == ids[0] && probe.hits > 0;
                while !handle.list().unwrap().iter().any(has_hit) {
                    std::thread::sleep(Duration::from_millis(200));
                }
                let reports = handle.unregister_all(ids).unwrap();
                let counts: Vec<u64> = reports.iter().map(|report| report.hits).collect();
                // They come and go at one moment each, in whose middle each CPU may be on its way from one consumer to the next.
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                assert!(most - least <= 2 * u64::from(cpus), "{counts:?}");
                assert_eq!(reports.iter().map(|report| report.missed.hits()).sum::<u64>(), 0);
                (rounds, hits) = (rounds + 1, hits + counts[0]);
            }
            println!("{probes} probes came and went {rounds} times, and saw {hits} shells start");
            assert!(hits > 0 && rounds > 0);
            console.open_gate();
        },
    );
    ended.assert_in_order();
    assert_eq!(ended.console.matches("there are 0").count(), 2, "{}", ended.console);
}

#[test]
fn probes_in_programs_come_and_go() {
    come_and_go(2, 5, Duration::from_secs(3));
}

#[test]
fn probes_in_programs_come_and_go_for_a_minute() {
    if std::env::var_os("VMM_LONG").is_none() {
        return println!("skipped: VMM_LONG is not set");
    }
    for cpus in [1, 4] {
        come_and_go(cpus, 50, Duration::from_secs(60));
    }
}
