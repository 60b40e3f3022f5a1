//! Stacks: what we find is what the guest's own unwinder finds, in the same frame and at the same time.
//!
//! `stack_trace_save(store, size, skip)` and `stack_trace_save_regs(regs, store, size, skip)` (kernel/stacktrace.c) are
//! probed at their entry, where we walk, and at the instruction before their return, where the guest has. Neither
//! function is followed to its return by a trampoline: the guest would find that, and stop.
//!
//! Which of ours is which of theirs is exact. `arch_stack_walk` without registers begins with the frame of its caller,
//! as `__unwind_start` goes ahead until it is above `arch_stack_walk`'s own: first comes an address in
//! `stack_trace_save`, then the one that it returns to, and so on. `stack_trace_save` leaves out `skip + 1`. We begin at its
//! entry, so that our first address stands for theirs there: both lists are the same from number `skip + 1` on. With
//! registers it begins with their RIP, as we do, and leaves out `skip`.

use crate::Notes;
use probe_engine::addr::Gva;
use probe_engine::linux::unwind::{Cut, End, FrameKind};
use probe_engine::regs::Regs;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use tests::linux_rig::Guest;
use vmm::probe::{Hit, InstructionProbe, Probe};
use vmm::stack::{MOST_FRAMES, Stack};

/// The guest's tracer writes a stack with each of these events: at the start of system calls and deep in them, in
/// interrupts, and in page faults of processes and of the kernel (`dd` reads into memory that was never touched).
const SCRIPT: &str = "\
set -e
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo 1 > options/stacktrace
echo 'p:opened do_sys_openat2' > kprobe_events
for event in kprobes/opened syscalls/sys_enter_openat irq_vectors/local_timer_entry timer/hrtimer_expire_entry \\
    exceptions/page_fault_user exceptions/page_fault_kernel kmem/mm_page_alloc; do
    echo 1 > events/$event/enable
done
n=0
while [ $n -lt 4 ]; do
    dd if=/dev/zero of=/tmp/zeros bs=100k count=1 2> /dev/null
    cat /proc/self/maps > /dev/null
    n=$((n + 1))
done
echo 0 > events/enable
";

/// What the guest was asked for at the entry of one of its functions, and what we found there.
struct Begun {
    rsp: u64,
    store: Gva,
    size: u64,
    /// How many of our addresses come before its first.
    ahead: usize,
    stack: Stack,
    context: &'static str,
    /// The name of our last address.
    last: String,
}

/// One stack, as we and as the guest found it.
struct Pair {
    vcpu: usize,
    function: &'static str,
    context: &'static str,
    stack: Stack,
    ahead: usize,
    size: usize,
    theirs: Vec<Gva>,
    /// How far the stack pointer was below that at the entry.
    depth: u64,
    last: String,
}

/// By vCPU: an interrupt may begin and end another one meanwhile, and no task is switched.
type Begins = Arc<Mutex<HashMap<usize, Vec<Begun>>>>;

/// What the CPU does for whom.
fn context(hit: &Hit<'_>, stack: &Stack) -> &'static str {
    let names = hit.names().unwrap();
    let frames = stack.frames.iter().filter_map(|frame| names.frame(frame).function);
    let functions: Vec<&str> = frames.map(|function| function.symbol.name).collect();
    let has = |prefix: &str| functions.iter().any(|name| name.starts_with(prefix));
    if has("asm_sysvec_") || has("asm_common_interrupt") {
        "interrupt"
    } else if has("asm_exc_page_fault") {
        "page fault"
    } else if has("entry_SYSCALL_64") {
        "system call"
    } else {
        "other"
    }
}

/// `struct pt_regs` at `at`.
fn saved(hit: &Hit<'_>, at: u64) -> Regs {
    let word = |n: u64| hit.memory.read_u64(Gva(at + 8 * n)).unwrap();
    let mut regs = Regs { r15: word(0), r14: word(1), r13: word(2), r12: word(3), ..Regs::default() };
    (regs.rbp, regs.rbx, regs.r11, regs.r10, regs.r9, regs.r8) =
        (word(4), word(5), word(6), word(7), word(8), word(9));
    (regs.rax, regs.rcx, regs.rdx, regs.rsi, regs.rdi) = (word(10), word(11), word(12), word(13), word(14));
    (regs.rip, regs.rflags, regs.rsp) = (word(16), word(18), word(19));
    regs
}

/// At the entry of `function`.
fn begins(function: &'static str, begins: &Begins) -> InstructionProbe {
    let begins = begins.clone();
    Probe::at(function).pre(move |hit| {
        let regs = hit.regs;
        let (store, size, skip, ahead) = match function {
            "stack_trace_save" => (regs.rdi, regs.rsi, regs.rdx, 1),
            _ => {
                hit.regs = saved(hit, regs.rdi);
                (regs.rsi, regs.rdx, regs.rcx, 0)
            }
        };
        let stack = hit.stack(MOST_FRAMES).unwrap();
        hit.regs = regs;
        let context = context(hit, &stack);
        let last = stack.frames.last().map(|frame| hit.names().unwrap().frame(frame).to_string());
        let last = last.unwrap_or_default();
        let (size, skip) = (u64::from(size as u32), skip as u32 as usize);
        let begun =
            Begun { rsp: regs.rsp, store: Gva(store), size, ahead: skip + ahead, stack, context, last };
        begins.lock().unwrap().entry(hit.vcpu).or_default().push(begun);
    })
}

/// At the instruction of `function` that is the last one before it returns.
fn ends(guest: &Guest, function: &'static str, begins: &Begins, pairs: &Notes<Pair>) -> InstructionProbe {
    let last = guest.subject.find(function, |i| i.text.starts_with("add rsp"));
    let (begins, pairs) = (begins.clone(), pairs.clone());
    Probe::at(last.place.as_str()).pre(move |hit| {
        let begun = begins.lock().unwrap().get_mut(&hit.vcpu).and_then(Vec::pop).unwrap();
        let written = u64::from(hit.regs.rax as u32);
        assert!(written <= begun.size, "{written} of {}", begun.size);
        let theirs = (0..written).map(|n| Gva(hit.memory.read_u64(begun.store.add(8 * n)).unwrap()));
        pairs.add(Pair {
            vcpu: hit.vcpu,
            function,
            context: begun.context,
            stack: begun.stack,
            ahead: begun.ahead,
            size: begun.size as usize,
            theirs: theirs.collect(),
            depth: begun.rsp - hit.regs.rsp,
            last: begun.last,
        });
    })
}

#[test]
fn stacks_are_those_that_the_guest_finds() {
    const FUNCTIONS: [&str; 2] = ["stack_trace_save", "stack_trace_save_regs"];
    let Some(guest) = Guest::new() else { return };
    let (all, pairs) = (Begins::default(), Notes::<Pair>::new());
    let mut guest = guest.cpus(2).unwind().script(SCRIPT);
    for function in FUNCTIONS {
        guest = guest.probe(begins(function, &all));
        let end = ends(&guest, function, &all, &pairs);
        guest = guest.probe(end);
    }
    // The same stack once more, as readers get it.
    let ended = guest.probe(Probe::at(FUNCTIONS[0]).record().stack(MOST_FRAMES)).run("sh:/script");
    ended.assert_in_order();
    assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
    assert!(ended.report.unread.is_empty(), "{:?}", ended.report.unread);
    let pairs = pairs.take();
    let mut cut = 0;
    let mut counts = BTreeMap::<(&str, &str), (u32, u32, usize)>::new();
    for (n, pair) in pairs.iter().enumerate() {
        let ours: Vec<Gva> = pair.stack.frames.iter().map(|frame| frame.at).collect();
        let expected: Vec<Gva> = ours.iter().copied().skip(pair.ahead).take(pair.size).collect();
        let Pair { stack, function, context, .. } = pair;
        assert_eq!(expected, pair.theirs, "number {n}, {function} in {context}: {stack:#x?}");
        assert_eq!(pair.depth, pairs[0].depth, "another call's entry");
        match stack.end {
            End::Bottom | End::User(_) => {}
            // Both walks end where an interrupt has come in code of which the kernel's table says nothing on purpose.
            End::Cut(Cut::Undefined(_)) if pair.last.contains("__x86_indirect_thunk_") => cut += 1,
            End::Cut(why) => panic!("number {n}, {function} in {context}, behind {}: {why}", pair.last),
        }
        assert!(stack.frames.iter().all(|frame| frame.is_reliable), "{stack:#x?}");
        let is_crossing = stack.frames.iter().any(|frame| frame.kind == FrameKind::Interrupted);
        let (count, crossing, frames) = counts.entry((function, context)).or_default();
        *count += 1;
        *crossing += u32::from(is_crossing);
        *frames = ours.len().max(*frames);
    }
    for ((function, context), (count, crossing, frames)) in &counts {
        println!(
            "{function}, {context}: {count} equal, {crossing} of them through an interrupted frame, \
             {frames} frames at most"
        );
    }
    println!("{cut} of them end in a thunk for indirect branches, of which the kernel's table says nothing");
    assert!(cut < pairs.len() / 50, "{cut} of {}", pairs.len());
    let of = |context: &str| -> (u32, u32) {
        let of = counts.iter().filter(|((_, of), _)| *of == context);
        of.fold((0, 0), |sum, (_, (count, crossing, _))| (sum.0 + count, sum.1 + crossing))
    };
    assert!(pairs.len() >= 1000, "{} stacks", pairs.len());
    assert!(of("system call").0 > 100 && of("page fault").0 > 100 && of("interrupt").0 > 100, "{counts:?}");
    assert!(of("interrupt").1 > 10 && of("page fault").1 > 10, "{counts:?}");
    assert!(pairs.iter().any(|pair| pair.function == FUNCTIONS[1]), "{counts:?}");
    for vcpu in 0..2 {
        let noted = pairs.iter().filter(|pair| pair.vcpu == vcpu && pair.function == FUNCTIONS[0]);
        let mut noted: Vec<&Stack> = noted.map(|pair| &pair.stack).collect();
        let events = ended.events.iter().filter(|event| event.vcpu == vcpu);
        let mut events: Vec<&Stack> = events.map(|event| event.stack.as_ref().unwrap()).collect();
        // An interrupt that comes in between ends before what it has interrupted.
        noted.sort_by_key(|stack| stack.frames.iter().map(|frame| frame.at).collect::<Vec<_>>());
        events.sort_by_key(|stack| stack.frames.iter().map(|frame| frame.at).collect::<Vec<_>>());
        assert!(noted == events, "{} noted, {} written down", noted.len(), events.len());
    }
}
