//! Kernels whose code and read-only data are sealed: what they change themselves, and what somebody else changes.

use probe_engine::addr::Gva;
use probe_engine::guard::judge::{Objection, Patch};
use std::time::Duration;
use tests::broken_module::{behind_call, renamed};
use tests::linux_rig::{Ended, Guest, Subject, module, subject};
use vmm::guard::{Done, Finding, GuardReport, OnWrite, Suspicion, Writer};
use vmm::session::{Call, ErrandError, Handle, Next, Outcome};

/// Longer than any call here takes, on a busy machine too.
const LONG: Duration = Duration::from_secs(60);
/// So many bytes are written by an attack.
const BYTES: usize = 3;
/// What is written.
const PAYLOAD: [u8; BYTES] = [0xf4, 0xf4, 0xc3];

/// What is attacked, and by which functions, at link-time addresses.
struct Attack {
    vmalloc: Gva,
    lookup: Gva,
    copy: Gva,
    poke: Gva,
    /// In a function that nobody calls here.
    code: Gva,
}

impl Attack {
    fn of(subject: &Subject) -> Self {
        let find = |name| subject.kernel.symbol(name);
        Self {
            vmalloc: find("vmalloc_noprof").or_else(|| find("vmalloc")).unwrap(),
            lookup: find("lookup_address").unwrap(),
            copy: find("memcpy").unwrap(),
            poke: find("text_poke").unwrap(),
            code: find("proc_pid_limits").unwrap().add(0x20),
        }
    }

    /// Has the guest write the payload to `at` by a function that takes where, what and how much. `opens`: the entry of its page
    /// tables was made writable before, as an attacker in its kernel does it. Gives what is there then.
    fn write(&self, handle: &Handle, at: Gva, by: Gva, opens: bool) -> Result<[u8; BYTES], ErrandError> {
        const WRITABLE: u64 = 2;
        let (vmalloc, lookup) = (self.vmalloc, self.lookup);
        let mut buffer = 0;
        let mut steps = 0;
        handle.errand(LONG, move |worker| {
            steps += 1;
            match (steps, worker.returned) {
                (1, _) => Next::Call(Call::new(vmalloc, &[4096])),
                (2, Some(allocated)) => {
                    buffer = allocated;
                    worker.memory.write(Gva(buffer), &PAYLOAD).unwrap();
                    // pte_t *lookup_address(unsigned long address, unsigned int *level)
                    Next::Call(Call::new(lookup, &[at.0, buffer + 64]))
                }
                (3, Some(entry)) => {
                    let before = worker.memory.read_u64(Gva(entry)).unwrap();
                    if opens {
                        worker.memory.write(Gva(entry), &(before | WRITABLE).to_le_bytes()).unwrap();
                    }
                    Next::Call(Call::new(by, &[at.0, buffer, BYTES as u64]))
                }
                _ => {
                    let mut bytes = [0; BYTES];
                    worker.memory.read(at, &mut bytes).unwrap();
                    Next::Done(bytes)
                }
            }
        })
    }
}

/// Runs a guest without KASLR that is attacked once it runs programs.
fn attacked(on_write: OnWrite, attack: impl FnOnce(&Attack, &Handle) + Send) -> Option<Ended> {
    let guest = Guest::new()?;
    let functions = Attack::of(guest.subject);
    let guest = guest.cpus(2).cmdline("nokaslr").guard(on_write);
    Some(guest.run_with("open:1,sh:/gate", |handle, console| {
        console.wait_for("workload: open", 1);
        attack(&functions, handle);
        // A guest that was stopped reads nothing any more.
        if on_write != OnWrite::Stop {
            console.open_gate();
        }
    }))
}

fn guarded(ended: &Ended) -> &GuardReport {
    let report = ended.report.guard.as_ref().unwrap();
    println!("{report:?}");
    assert!(report.pages.is_some_and(|pages| pages > 4_000), "{report:?}");
    report
}

/// Checks that nothing but the payload was found, however many instructions store that, and what became of it.
#[track_caller]
fn are_of_the_attack(ended: &Ended, at: Gva, objection: Objection, expected: Done) {
    assert_eq!(guarded(ended).findings, ended.findings.len() as u64);
    assert!(!ended.findings.is_empty());
    for Finding { at: found, length, bytes, why, done, writer, .. } in &ended.findings {
        let from = found.unwrap().offset_from(at).unwrap() as usize;
        assert_eq!(**bytes, PAYLOAD[from..from + length]);
        assert_eq!((why, *done), (&Suspicion::Objection(objection), expected));
        let Writer::Vcpu { stack: Some(stack), .. } = writer else { panic!("{writer:?}") };
        assert!(stack.frames.len() > 1, "{stack:?}");
    }
}

#[test]
fn a_write_to_code_is_told() {
    let attack = |attack: &Attack, handle: &Handle| {
        assert_eq!(attack.write(handle, attack.code, attack.copy, true).unwrap(), PAYLOAD);
    };
    let Some(ended) = attacked(OnWrite::Report, attack) else { return };
    ended.assert_in_order();
    are_of_the_attack(&ended, Attack::of(subject()).code, Objection::Writer, Done::Written);
}

/// Who calls the kernel's own function for changes of its text must also write what belongs there.
#[test]
fn the_kernels_own_function_writes_what_belongs_there_alone() {
    let attack = |attack: &Attack, handle: &Handle| {
        let written = attack.write(handle, attack.code, attack.poke, false);
        assert!(written.is_err(), "{written:x?}");
    };
    let Some(ended) = attacked(OnWrite::Stop, attack) else { return };
    assert_eq!(ended.report.end, Outcome::Guarded, "{}", ended.console);
    are_of_the_attack(&ended, Attack::of(subject()).code, Objection::Place, Done::Stopped);
    assert_eq!(ended.findings.len(), 1);
}

/// Modules come and go, one of them without success, and the guest's own tracer, probes and counters change its text and theirs meanwhile. A
/// probe is there before its module is. What was a module's memory is used for something else.
const CHURN: &str = "\
set -e
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
for round in 1 2 3; do
    echo 'p:early dummy:INSIDE' > kprobe_events
    echo 1 > events/kprobes/early/enable
    insmod /dummy.ko
    echo 'vfs_*' > set_ftrace_filter
    echo ':mod:dummy' >> set_ftrace_filter
    echo function > current_tracer
    echo 'p:mine do_sys_openat2' >> kprobe_events
    echo 'p:inside PLACE' >> kprobe_events
    echo 1 > events/kprobes/enable
    echo 1 > events/sched/enable
    cat /proc/version > /dev/null
    insmod /other.ko && exit 1
    sleep 1
    echo 0 > events/sched/enable
    echo 0 > events/kprobes/enable
    echo > kprobe_events
    echo 'p:late dummy:INSIDE' > kprobe_events
    echo 1 > events/kprobes/enable
    sleep 1
    rmmod dummy
    echo 0 > events/kprobes/enable
    echo > kprobe_events
    echo nop > current_tracer
    dd if=/dev/zero of=/fill bs=1M count=64
    rm /fill
    insmod /other.ko
    insmod /dummy.ko && exit 1
    rmmod other
done
echo the churn is over
";

#[test]
fn what_the_kernel_changes_itself_is_let_through() {
    let Some(guest) = Guest::new() else { return };
    // ftrace makes no call of that.
    let place = &guest.subject.instructions("vfs_read")[6].place;
    let dummy = module("dummy");
    let script = CHURN.replace("PLACE", place).replace("INSIDE", &behind_call(&dummy, "dummy_xmit"));
    let other = renamed(dummy.clone(), b"other");
    let guest = guest.cpus(2).module_file("dummy", dummy).module_file("other", other);
    let guest = guest.program("script", script.as_bytes());
    let guest = guest.patience(10 * LONG).guard(OnWrite::Stop);
    let ended = guest.run("sh:/script");
    assert_eq!(ended.findings, []);
    ended.assert_in_order();
    assert!(ended.console.contains("the churn is over"), "{}", ended.console);
    let report = guarded(&ended);
    for patch in [Patch::JumpLabel, Patch::Ftrace, Patch::Kprobe] {
        assert!(report.patches.get(&patch).is_some_and(|count| *count >= 3), "{patch:?}: {report:?}");
    }
    // Of each load at least a page of text and one of constants.
    assert!(report.module_pages >= 4 * 3 * 2 && report.unsealed_modules == 0, "{report:?}");
}
