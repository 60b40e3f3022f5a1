//! What a probe costs the program that calls the probed function: `getppid` in a Debian guest, and a function of a program, by the
//! guest's own time-stamp counter. Inside Bochs a tick is an instruction, of the guest, of KVM, of the host's kernel and of ours alike.
//!
//! One guest is probed in one way after the other. `calls` prints one JSON object a row. `calls --offset FILE` prints where the
//! program's function is in its file.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a measurement that goes wrong is void"
)]

use probe_engine::capture::filter::Operand;
use probe_engine::capture::hist::{Form, Histogram};
use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Fetch, Field, Hop, Read, What};
use probe_engine::linux::partial_file::PartialFile;
use probe_engine::linux::program_file::{Looked, look};
use probe_engine::linux::program_place::InFile;
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::time::Duration;
use tests::detour::histogram;
use tests::linux_rig::Guest;
use vmm::errands::{Functions, ReadFile};
use vmm::probe::{InstructionProbe, Probe, Where};
use vmm::session::{Command, ProbeReport, ProbeState};

const FUNCTION: &str = "__x64_sys_getppid";
/// What the guest does for each row of that.
const STEP: &str = "ticks:400";
/// The guest's program.
const PROGRAM: &str = "/init";
/// What it does for each row of its own function.
const STEP_OF_PROGRAM: &str = "called:400";

/// A way to probe the function; the first one not at all.
type Way = (&'static str, fn() -> Option<Probe>);
/// The same for the function of the program, by the definition of its place.
type WayInProgram = (&'static str, fn(&str) -> Probe);

const WAYS_IN_PROGRAM: [WayInProgram; 6] = [
    ("a program's function, counted by a detour", |at| {
        Probe::at(Where::Definition(format!("p {at}"))).into()
    }),
    ("a program's function, recorded by a detour", |at| defined(&format!("p {at} a=%di b=%si"))),
    ("a program's function, its memory recorded by a detour", |at| defined(&format!("p {at} a=$stack0"))),
    ("a program's function, a trap with an empty handler", |at| {
        Probe::at(Where::Definition(format!("p {at}"))).pre(|_| {}).into()
    }),
    ("a program's function, its return recorded by a detour", |at| defined(&format!("r {at} ret=$retval"))),
    ("a program's function, a trap with an empty handler at its return", |at| {
        Probe::at(Where::Definition(format!("r {at}"))).pre(|_| {}).into()
    }),
];

fn defined(definition: &str) -> Probe {
    Probe::define(definition).unwrap()
}

/// Where the program's function begins in its file.
fn offset(program: &[u8]) -> u64 {
    let mut file = PartialFile::new(program.len() as u64).unwrap();
    file.put(0, program);
    let at = InFile::Tracepoint { provider: "workload".to_owned(), name: "called".to_owned() };
    match look(&file, &at, None).unwrap() {
        Looked::Found(places) => places[0].offset,
        Looked::Needs(part) => panic!("{part:x?} of the whole file is not known"),
    }
}

const WAYS: [Way; 10] = [
    ("getppid, unprobed", || None),
    ("getppid, counted by a detour", || Some(Probe::at(FUNCTION).into())),
    ("getppid, recorded by a detour", || Some(Probe::at(FUNCTION).capture(two_arguments()).record().into())),
    ("getppid, recorded by a detour that reads memory", || {
        Some(Probe::at(FUNCTION).capture(a_word_of_memory()).record().into())
    }),
    ("getppid, counted by pid in a detour's histogram", || {
        Some(Probe::at(FUNCTION).histogram(by_pid()).into())
    }),
    ("getppid, a trap with an empty handler", || Some(Probe::at(FUNCTION).pre(|_| {}).into())),
    ("getppid, its return recorded by a detour", || Some(Probe::on_return(FUNCTION).record().into())),
    ("getppid, traps at its call and its return", || {
        Some(Probe::on_return(FUNCTION).handler(|_, ()| {}).into())
    }),
    ("getppid, a tracepoint in its way counted by a detour", || Some(at_tracepoint().into())),
    ("getppid, a tracepoint in its way recorded by a detour", || {
        Some(at_tracepoint().capture(two_arguments()).record().into())
    }),
];

/// The kernel calls at it for every system call, in the way that it takes for traced ones.
fn at_tracepoint() -> InstructionProbe {
    Probe::at(Where::Definition("t raw_syscalls:sys_enter".to_owned()))
}

fn two_arguments() -> Capture {
    let field =
        |n| Field { name: format!("arg{n}"), fetch: Fetch::word(Base::Argument(n), 8), shape: Shape::Hex };
    Capture { fields: vec![field(0), field(1)], ..Capture::default() }
}

/// `regs->orig_ax`, by the function's only argument.
fn a_word_of_memory() -> Capture {
    let hop = Hop::at(120);
    let read = Read::Memory(hop, What::Bytes(8));
    let fetch = Fetch { base: Base::Argument(0), hops: Vec::new(), read };
    Capture {
        fields: vec![Field { name: "number".to_owned(), fetch, shape: Shape::Hex }],
        ..Capture::default()
    }
}

/// `hist:keys=common_pid`
fn by_pid() -> Histogram {
    histogram(&[(Operand::Pid, Form::Process)], &[])
}

/// Longer than the guest takes to read a file.
const LONG: Duration = Duration::from_secs(600);

/// What a probe stood on.
fn footing(probe: &ProbeReport) -> &'static str {
    match probe.state {
        ProbeState::Optimized(_) => "detour",
        ProbeState::Armed(_) => "trap",
        _ => panic!("{probe:?}"),
    }
}

fn main() {
    if let [_, flag, file] = &*std::env::args().collect::<Vec<_>>()
        && flag == "--offset"
    {
        return println!("{:#x}", offset(&std::fs::read(file).unwrap()));
    }
    let Some(guest) = Guest::new() else { return };
    let functions = Functions::find(guest.subject.kernel.symbols()).unwrap();
    let steps = [vec![STEP; WAYS.len()], vec![STEP_OF_PROGRAM; WAYS_IN_PROGRAM.len() + 1]].concat();
    let steps = format!("{},sh:/gate", steps.join(",sh:/gate,"));
    let stood = Mutex::new(Vec::new());
    let ended = guest.optimize().run_with(&steps, |handle, console| {
        console.wait_for("workload: ticks ", 1);
        stood.lock().unwrap().push("nothing");
        for (number, (_, probe)) in (2..).zip(&WAYS[1..]) {
            let ids = handle.register_all(probe().into_iter().collect()).unwrap();
            console.open_gate();
            console.wait_for("workload: ticks ", number);
            stood.lock().unwrap().push(footing(&handle.list().unwrap()[0]));
            handle.command(Command::Unregister(ids)).unwrap();
        }
        console.open_gate();
        console.wait_for("workload: ticks ", WAYS.len() + 1);
        stood.lock().unwrap().push("nothing");
        let mut file = ReadFile::new(functions, PROGRAM.as_bytes(), 64 << 20).unwrap();
        let program = handle.errand(LONG, move |worker| file.next(worker)).unwrap().unwrap();
        let place = format!("{PROGRAM}:{:#x}", offset(&program));
        for (number, (_, probe)) in (WAYS.len() + 2..).zip(&WAYS_IN_PROGRAM) {
            let id = handle.register(probe(&place)).unwrap();
            console.open_gate();
            console.wait_for("workload: ticks ", number);
            stood.lock().unwrap().push(footing(&handle.list().unwrap()[0]));
            assert!(handle.unregister(id).unwrap().hits > 0);
        }
        console.open_gate();
    });
    ended.assert_in_order();
    let timed = ended.console.lines().filter_map(|line| line.trim().strip_prefix("workload: ticks "));
    let mut out = String::new();
    let rows = WAYS.iter().map(|(row, _)| row);
    let rows =
        rows.chain([&"a program's function, unprobed"]).chain(WAYS_IN_PROGRAM.iter().map(|(row, _)| row));
    for ((row, timed), stood) in rows.zip(timed).zip(stood.into_inner().unwrap()) {
        writeln!(out, "{}", json!({ "row": row, "said": timed, "on": stood })).unwrap();
    }
    print!("{out}");
}
