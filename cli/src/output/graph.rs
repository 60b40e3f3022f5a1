//! Calls and returns as a graph: which function called which, and how long each took.

use super::event::Micros;
use crate::record::{Kind, Moment, Probe};
use indexmap::IndexSet;
use probe_engine::addr::Gva;
use std::collections::HashMap;
use std::io::{self, Write};
use vmm::events::{Event, Nanos, What};

/// Calls of a task that have not returned, of which this many are remembered: a task that dies leaves some behind.
const DEEPEST: usize = 256;
/// Such calls of all tasks, of which the guest says how many there are. When there are more, all are forgotten: their
/// returns are then shown without their calls.
const MOST: usize = 1 << 16;

/// The calls that are under way, by task.
#[derive(Default)]
pub(super) struct CallGraph {
    tasks: HashMap<Gva, TaskCalls>,
    /// The functions that were called, by their numbers.
    functions: IndexSet<String>,
    /// How many calls they have that have not returned.
    open: usize,
}

/// The calls of one task.
#[derive(Default)]
struct TaskCalls {
    /// Other tasks may follow at the same address.
    pid: u32,
    /// The outermost first.
    open: Vec<Open>,
    /// What the line of the last one begins with, if that is still to be written: what calls nothing takes one line.
    waits: Option<String>,
}

/// A call that has not returned.
struct Open {
    /// The number of the function.
    function: usize,
    /// When it began, in nanoseconds since the guest was started.
    began: u64,
}

impl CallGraph {
    /// Writes what an event of a function's entry or return adds to the graph.
    pub(super) fn add(&mut self, out: &mut impl Write, event: &Event, probe: &Probe) -> io::Result<()> {
        if matches!(event.what, What::Access { .. }) {
            return Ok(());
        }
        if self.open >= MOST {
            self.finish(out)?;
            *self = Self::default();
        }
        let name = &probe.place;
        let function = match self.functions.get_index_of(name) {
            Some(known) => known,
            None => self.functions.insert_full(name.clone()).0,
        };
        let (at, pid) = event.task.as_ref().map_or((Gva(0), 0), |task| (task.at, task.pid));
        let calls = self.tasks.entry(at).or_default();
        if calls.pid != pid {
            calls.write_waiting(out, &self.functions)?;
            self.open -= calls.open.len();
            *calls = TaskCalls { pid, ..TaskCalls::default() };
        }
        match event.what {
            What::Hit { .. } if probe.kind != Kind::Return => {
                calls.write_waiting(out, &self.functions)?;
                if calls.open.len() >= DEEPEST {
                    calls.open.remove(0);
                } else {
                    self.open += 1;
                }
                calls.waits = Some(Head { event, took: None, depth: calls.open.len() }.to_string());
                calls.open.push(Open { function, began: event.nanos });
            }
            // How long a call took is not known where its beginning was missed.
            What::Hit { .. } | What::Return { .. } => {
                let took = match event.what {
                    What::Return { duration, .. } => Some(duration),
                    _ => None,
                };
                let began = event.nanos.saturating_sub(took.map_or(0, |took| took.0));
                let is_its = |open: &Open| open.function == function;
                // In a recursion, the time tells which call it is. In a program, another hit may have told when it began: that is near.
                let own = calls.open.iter().enumerate().rev().filter(|(_, open)| is_its(open));
                let its = own.min_by_key(|(_, open)| open.began.abs_diff(began)).map(|(depth, _)| depth);
                let depth = its.unwrap_or(calls.open.len());
                let is_last = depth + 1 == calls.open.len();
                let head = Head { event, took, depth };
                if its.is_some() && is_last && calls.waits.take().is_some() {
                    writeln!(out, "{head}{name}();")?;
                } else {
                    calls.write_waiting(out, &self.functions)?;
                    writeln!(out, "{head}}} /* {name} */")?;
                }
                // Those that it called and that have not returned never will, or nobody has seen it.
                self.open -= calls.open.len() - depth;
                calls.open.truncate(depth);
                if calls.open.is_empty() {
                    self.tasks.remove(&at);
                }
            }
            What::Access { .. } => {}
        }
        Ok(())
    }

    /// Writes the calls that were begun last and have not returned.
    pub(super) fn finish(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.tasks.values_mut().try_for_each(|calls| calls.write_waiting(out, &self.functions))
    }
}

impl TaskCalls {
    /// The last call has turned out to call others.
    fn write_waiting(&mut self, out: &mut impl Write, functions: &IndexSet<String>) -> io::Result<()> {
        let Some(head) = self.waits.take() else { return Ok(()) };
        let function = self.open.last().and_then(|open| functions.get_index(open.function));
        writeln!(out, "{head}{}() {{", function.map_or("", String::as_str))
    }
}

/// What a line begins with.
struct Head<'a> {
    event: &'a Event,
    took: Option<Nanos>,
    depth: usize,
}

impl std::fmt::Display for Head<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let task = self.event.task.as_ref().map(|task| {
            let context = task.context.name().map(|name| format!(" [{name}]")).unwrap_or_default();
            format!("{}-{}{context}", task.shown(), task.pid)
        });
        let took = self.took.map(|took| format!("{} us", Micros(took)));
        let (task, took) = (task.unwrap_or_default(), took.unwrap_or_default());
        write!(f, "{} {task:<20} {took:>14} | {:2$}", Moment::of(self.event), "", 2 * self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::registered::registered;
    use probe_engine::linux::task::{Context, Task};
    use probe_engine::probe::place::{Place, SiteInfo};
    use probe_engine::probe::plan::Trigger;
    use probe_engine::probe::table::ProbeId;
    use probe_engine::request::ProbeRequest;
    use vmm::events::Captured;

    const OUTER: u64 = 0x1000;
    const INNER: u64 = 0x2000;

    fn asked(at: u64, returns: bool) -> Probe {
        let name = if at == OUTER { "outer" } else { "inner" }.to_owned();
        let function = Gva(at)..Gva(at + 0x100);
        let info = SiteInfo::entry_of(function);
        let trigger = if returns { Trigger::Return { max_active: None } } else { Trigger::Pass };
        registered(0, &ProbeRequest::plain(Place::Kernel { name, info }, trigger))
    }

    fn event(nanos: u64, pid: u32, what: What<Nanos>) -> Event {
        let context = Context::Task;
        let task = Task {
            at: Gva(8),
            pid,
            tgid: pid,
            ns_pid: None,
            uid: None,
            context,
            comm: *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0",
        };
        Event {
            nanos,
            guest_nanos: Some(nanos),
            vcpu: 0,
            probe: ProbeId(0),
            rip: Gva(0),
            what,
            task: Some(task),
            captured: Captured::NONE,
            stack: None,
        }
    }

    /// The lines that calls (`Ok`) and returns (`Err`, with how long they took) make, without their times.
    fn lines(events: &[(u64, u64, Result<(), u64>)]) -> Vec<String> {
        let (mut graph, mut out) = (CallGraph::default(), Vec::new());
        for (nanos, at, what) in events {
            let (what, returns) = match what {
                Ok(()) => (What::Hit { args: [0; 6] }, false),
                Err(took) => (What::Return { value: 0, duration: Nanos(*took) }, true),
            };
            graph.add(&mut out, &event(*nanos, 7, what), &asked(*at, returns)).unwrap();
        }
        graph.finish(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|line| line.split_once("cat-7").unwrap().1.trim_start().to_owned()).collect()
    }

    #[test]
    fn what_calls_nothing_takes_one_line() {
        let calls = [(1, OUTER, Ok(())), (2, INNER, Ok(())), (5, INNER, Err(3)), (9000, OUTER, Err(8999))];
        assert_eq!(lines(&calls), ["| outer() {", "0.003 us |   inner();", "8.999 us | } /* outer */"]);
    }

    #[test]
    fn a_return_that_was_missed_closes_with_its_caller() {
        let calls = [(1, OUTER, Ok(())), (2, INNER, Ok(())), (9, OUTER, Err(8)), (10, INNER, Ok(()))];
        assert_eq!(
            lines(&calls),
            ["| outer() {", "|   inner() {", "0.008 us | } /* outer */", "| inner() {"]
        );
    }

    #[test]
    fn recursion_of_which_the_inner_return_was_missed_is_told_by_its_time() {
        let calls = [(1, OUTER, Ok(())), (5, OUTER, Ok(())), (9, OUTER, Err(7))];
        assert_eq!(lines(&calls), ["| outer() {", "|   outer() {", "0.007 us | } /* outer */"]);
        // Another hit has told when it began, a moment before.
        let calls = [(1, OUTER, Ok(())), (20, OUTER, Ok(())), (30, OUTER, Err(12))];
        assert_eq!(lines(&calls), ["| outer() {", "0.012 us |   outer();"]);
    }

    #[test]
    fn a_return_without_its_call_stands_alone() {
        assert_eq!(lines(&[(9, OUTER, Err(7))]), ["0.007 us | } /* outer */"]);
    }

    #[test]
    fn another_task_at_the_same_address_begins_anew_and_what_never_returns_is_forgotten() {
        let (mut graph, mut out) = (CallGraph::default(), Vec::new());
        for n in 0..2 * DEEPEST as u64 {
            graph.add(&mut out, &event(n, 7, What::Hit { args: [0; 6] }), &asked(OUTER, false)).unwrap();
        }
        assert_eq!(graph.tasks[&Gva(8)].open.len(), DEEPEST);
        graph.add(&mut out, &event(9, 8, What::Hit { args: [0; 6] }), &asked(OUTER, false)).unwrap();
        assert_eq!(graph.tasks[&Gva(8)].open.len(), 1);
    }

    #[test]
    fn a_call_keeps_no_name_and_an_access_keeps_nothing() {
        let (mut graph, mut out) = (CallGraph::default(), Vec::new());
        let probe = Probe { place: "f".repeat(4096), ..asked(OUTER, false) };
        graph.add(&mut out, &event(1, 7, What::Access { old: 0, new: 1 }), &probe).unwrap();
        assert!(graph.tasks.is_empty());
        graph.add(&mut out, &event(1, 7, What::Hit { args: [0; 6] }), &probe).unwrap();
        assert!(graph.tasks[&Gva(8)].waits.as_ref().unwrap().len() < 100);
        assert_eq!(graph.functions.len(), 1);
        graph.finish(&mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().ends_with("fff() {\n"));
    }

    #[test]
    fn a_guest_that_makes_up_tasks_does_not_fill_memory_and_each_call_has_its_line() {
        let (mut graph, mut out) = (CallGraph::default(), Vec::new());
        let calls = MOST as u64 + 10;
        for n in 0..calls {
            let mut event = event(n, 7, What::Hit { args: [0; 6] });
            event.task = event.task.map(|task| Task { at: Gva(8 * n), ..task });
            graph.add(&mut out, &event, &asked(OUTER, false)).unwrap();
            assert!(graph.open <= MOST && graph.tasks.len() <= MOST);
        }
        graph.finish(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count() as u64, calls);
    }

    #[test]
    fn a_call_of_a_task_that_is_gone_keeps_its_line() {
        let (mut graph, mut out) = (CallGraph::default(), Vec::new());
        for pid in [7, 8] {
            graph.add(&mut out, &event(1, pid, What::Hit { args: [0; 6] }), &asked(OUTER, false)).unwrap();
        }
        graph.finish(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap().lines().count(), 2);
    }
}
