//! Calls that the guest makes of its own functions for somebody outside.

use super::Notes;
use guest_kernels::console::complaint;
use probe_engine::addr::Gva;
use std::time::Duration;
use tests::linux_rig::{Ended, Guest, Subject};
use vmm::probe::Probe;
use vmm::session::{Call, Death, ErrandError, Handle, Next, Outcome};

/// Longer than any call here takes, on a busy machine too.
const LONG: Duration = Duration::from_secs(60);
const BYTES: u64 = 4096;
/// What `/proc/vmallocinfo` says of memory that nobody with a name has allocated, and how much of it there is.
const UNNAMED: &str = "echo there are $(grep -c ' 0xffff[0-9a-f]* pages=' /proc/vmallocinfo)\n";

/// The functions of a kernel that are called.
#[derive(Clone, Copy)]
struct Functions {
    vmalloc: Gva,
    vfree: Gva,
    msleep: Gva,
}

impl Functions {
    fn of(subject: &Subject) -> Self {
        let find = |name| subject.kernel.symbol(name);
        Self {
            // A macro where the kernel keeps book of memory.
            vmalloc: find("vmalloc_noprof").or_else(|| find("vmalloc")).unwrap(),
            vfree: find("vfree").unwrap(),
            msleep: find("msleep").unwrap(),
        }
    }

    /// Memory is allocated, used and freed, in one errand.
    fn use_memory(self, handle: &Handle) -> Result<u64, ErrandError> {
        let mut at = None;
        handle.errand(LONG, move |worker| match (at, worker.returned) {
            (None, None) => Next::Call(Call::new(self.vmalloc, &[BYTES])),
            (None, Some(allocated)) => {
                let words: Vec<u8> = (0..BYTES).map(|n| n as u8).collect();
                worker.memory.write(Gva(allocated), &words).unwrap();
                at = Some(allocated);
                Next::Call(Call::new(self.vfree, &[allocated]))
            }
            (Some(at), _) => Next::Done(at),
        })
    }
}

/// So many errands while so many CPUs have much to do.
fn many(cpus: u8, seconds: u64, errands: u32) -> Option<Ended> {
    let guest = Guest::new()?;
    let functions = Functions::of(guest.subject);
    let steps = format!("sh:/script,open:1,mix:{seconds},sh:/gate,sh:/script");
    Some(guest.cpus(cpus).script(UNNAMED).patience(20 * LONG).run_with(&steps, |handle, console| {
        console.wait_for("workload: open", 1);
        for n in 0..errands {
            let at = functions.use_memory(handle).unwrap_or_else(|error| panic!("errand {n}: {error}"));
            assert!(Gva(at).is_kernels() && at.is_multiple_of(BYTES), "{at:#x}");
        }
        console.wait_for("workload: mix", 1);
        console.open_gate();
    }))
}

fn assert_nothing_is_left(ended: &Ended) {
    ended.assert_in_order();
    assert_eq!(ended.console.matches("there are 0").count(), 2, "{}", ended.console);
}

#[test]
fn memory_is_allocated_and_freed() {
    let Some(guest) = Guest::new() else { return };
    let functions = Functions::of(guest.subject);
    let ended = guest.script(UNNAMED).run_with(
        "sh:/script,sh:/gate,sh:/script,sh:/gate,sh:/script",
        |handle, console| {
            console.wait_for("there are 0", 1);
            let at = handle.call(LONG, functions.vmalloc, &[BYTES]).unwrap();
            console.open_gate();
            console.wait_for("there are 1", 1);
            handle.call(LONG, functions.vfree, &[at]).unwrap();
            console.open_gate();
        },
    );
    assert_nothing_is_left(&ended);
}

#[test]
fn hundreds_of_errands_are_done_under_load() {
    let Some(ended) = many(2, 5, 300) else { return };
    assert_nothing_is_left(&ended);
}

#[test]
fn ten_thousand_errands_are_done_under_load() {
    if std::env::var_os("VMM_LONG").is_none() {
        return println!("skipped: VMM_LONG is not set");
    }
    for cpus in [1, 2, 4] {
        let Some(ended) = many(cpus, 60, 10_000) else { return };
        assert_nothing_is_left(&ended);
    }
}

/// Modules and a CPU come and go, and the guest's own tracer goes on and off at what is called, in a kernel that preempts its own code. What the
/// kernel counts of interrupts that are none stays at 0.
const CHURN: &str = "\
set -e
[ -e /sys/kernel/tracing/trace ] || mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
cpu=/sys/devices/system/cpu/cpu1/online
echo 'v*' > set_ftrace_filter
while [ ! -e /tmp/enough ]; do
    insmod /dummy.ko
    [ ! -e $cpu ] || echo 0 > $cpu
    echo function > current_tracer
    rmmod dummy
    [ ! -e $cpu ] || echo 1 > $cpu
    echo nop > current_tracer
    echo a round
done &
echo begun
read go
echo > /tmp/enough
wait $!
echo > trace
echo there are $(grep -c ' 0xffff[0-9a-f]* pages=' /proc/vmallocinfo)
grep -E '^ *(ERR|MIS):' /proc/interrupts | sed 's/^/interrupts /'
";

/// So many errands in that, on so many CPUs, and so many rounds of it.
fn in_the_middle(cpus: u8, errands: usize, rounds: usize) {
    let Some(guest) = Guest::new() else { return };
    let functions = Functions::of(guest.subject);
    let guest = guest.cpus(cpus).module("dummy").script(CHURN).cmdline("preempt=full").patience(20 * LONG);
    let ended = guest.run_with("sh:/script", |handle, console| {
        console.wait_for("begun", 1);
        let mut done = 0;
        while done < errands || console.text().matches("a round").count() < rounds {
            functions.use_memory(handle).unwrap_or_else(|error| panic!("errand {done}: {error}"));
            done += 1;
        }
        println!("{done} errands in {} rounds", console.text().matches("a round").count());
        console.open_gate();
    });
    ended.assert_in_order();
    assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
    assert!(ended.console.contains("there are 0"), "{}", ended.console);
    let counted = ended.console.lines().filter_map(|line| line.trim().strip_prefix("interrupts "));
    let counted: Vec<_> = counted.map(|line| line.split_whitespace().last().unwrap_or_default()).collect();
    // Kernels since 7 show those that there were alone.
    assert!(counted.iter().all(|count| *count == "0"), "{}", ended.console);
}

#[test]
fn errands_go_on_while_modules_and_a_cpu_come_and_go_and_the_tracer_is_switched() {
    in_the_middle(2, 50, 4);
}

#[test]
fn errands_go_on_in_the_middle_of_all_that_for_long() {
    if std::env::var_os("VMM_LONG").is_none() {
        return println!("skipped: VMM_LONG is not set");
    }
    for cpus in [1, 2, 4] {
        in_the_middle(cpus, 2_000, 50);
    }
}

/// A call that sleeps keeps no other errand waiting, and nobody waits for it longer than wanted.
#[test]
fn one_that_sleeps_keeps_nobody_waiting() {
    let Some(guest) = Guest::new() else { return };
    let functions = Functions::of(guest.subject);
    let ended = guest.run_with("open:1,sh:/gate", |handle, console| {
        console.wait_for("workload: open", 1);
        let (asleep, short) = (Duration::from_secs(3), Duration::from_millis(500));
        let late = handle.call(short, functions.msleep, &[asleep.as_millis() as u64]);
        assert!(matches!(late, Err(ErrandError::Overdue)), "{late:?}");
        functions.use_memory(handle).unwrap();
        handle.call(LONG, functions.msleep, &[asleep.as_millis() as u64]).unwrap();
        functions.use_memory(handle).unwrap();
        let panics =
            handle.errand(LONG, |_| -> Next<()> { std::panic::resume_unwind(Box::new("on purpose")) });
        assert!(matches!(panics, Err(ErrandError::Broken)), "{panics:?}");
        console.open_gate();
    });
    ended.assert_in_order();
}

/// The guest panics in the middle of errands: whoever waits is told.
#[test]
fn a_panic_ends_all_errands() {
    let Some(guest) = Guest::new() else { return };
    let functions = Functions::of(guest.subject);
    let ended = guest.cpus(2).run_with("open:1,sh:/gate,panic", |handle, console| {
        console.wait_for("workload: open", 1);
        let mut done = 0;
        let error = loop {
            match functions.use_memory(handle) {
                Ok(_) => done += 1,
                Err(error) => break error,
            }
            if done == 20 {
                console.open_gate();
            }
        };
        println!("{done} errands, then: {error}");
        assert!(done >= 20 && matches!(error, ErrandError::Panicked | ErrandError::Command(_)), "{error:?}");
    });
    assert!(matches!(ended.report.end, Outcome::Died(Death::Panic { .. })), "{:?}", ended.report.end);
    let before = ended.console.split("Kernel panic - not syncing: sysrq").next().unwrap();
    assert_eq!(complaint(before), None, "{}", ended.console);
}

/// Probes see the calls, and can tell them from others.
#[test]
fn probes_see_the_calls_and_know_them() {
    let Some(guest) = Guest::new() else { return };
    let functions = Functions::of(guest.subject);
    let name =
        if guest.subject.kernel.symbol("vmalloc_noprof").is_some() { "vmalloc_noprof" } else { "vmalloc" };
    let seen = Notes::new();
    let probe = Probe::at(name).pre({
        let seen = seen.clone();
        move |hit| seen.add((hit.argument(0), hit.is_errand()))
    });
    let ended = guest.probe(probe).run_with("open:1,sh:/gate", |handle, console| {
        console.wait_for("workload: open", 1);
        functions.use_memory(handle).unwrap();
        console.open_gate();
    });
    ended.assert_in_order();
    let errands: Vec<_> = seen.take().into_iter().filter(|(_, is_errand)| *is_errand).collect();
    assert_eq!(errands, [(Some(BYTES), true)]);
}
