use super::*;
use crate::linux::locks::{LockKind, WantedLock};
use crate::linux::symbols::SymbolTableBuilder;
use crate::linux::testing::{BtfBuilder, Ram};
use crate::linux::unwind::{Frame, FrameKind};

const TASKS: u64 = 0;
const THREAD_NODE: u64 = 16;
const SIGNAL: u64 = 32;
const STATE: u64 = 40;
const ON_CPU: u64 = 44;
const STACK: u64 = 48;
const SP: u64 = 64;
const THREAD_HEAD: u64 = 24;

const INIT: Gva = Gva(Ram::BASE.0 + 0x1000);
const OWNER: Gva = Gva(Ram::BASE.0 + 0x2000);
const WAITER: Gva = Gva(Ram::BASE.0 + 0x3000);
const THREAD: Gva = Gva(Ram::BASE.0 + 0x4000);
const MUTEX: Gva = Gva(Ram::BASE.0 + 0x6000);
const SEMAPHORE: Gva = Gva(Ram::BASE.0 + 0x7000);

/// That of a kernel whose mutexes have lists, or name the first one that waits.
fn layout(has_lists: bool) -> TaskListLayout {
    let mut symbols = SymbolTableBuilder::default();
    symbols.push(Gva(INIT.0 - 0x100), b'D', "init_task").unwrap();
    for (at, name) in [(0x500, "mutex_lock"), (0x520, "vfs_read"), (0x540, "_etext")] {
        symbols.push(Gva(at), b'T', name).unwrap();
    }
    let mut btf = BtfBuilder::default();
    let int = btf.int("int", 4);
    let mut add = |name: &str, members: &[(&str, u64)]| {
        let members: Vec<_> = members.iter().map(|(member, at)| (*member, int, *at as u32)).collect();
        btf.structure(name, 256, &members);
    };
    add(
        "task_struct",
        &[
            ("tasks", TASKS),
            ("thread_node", THREAD_NODE),
            ("signal", SIGNAL),
            ("__state", STATE),
            ("on_cpu", ON_CPU),
            ("stack", STACK),
            ("thread", SP - 8),
        ],
    );
    add("thread_struct", &[("sp", 8)]);
    add("signal_struct", &[("thread_head", THREAD_HEAD)]);
    add("mutex", &[("owner", 0), (if has_lists { "wait_list" } else { "first_waiter" }, 16)]);
    add("mutex_waiter", &[("list", 0), ("task", 16)]);
    add("rw_semaphore", &[("owner", 8), ("wait_list", 24)]);
    add("rwsem_waiter", &[("list", 8), ("task", 24)]);
    let section = btf.finish();
    TaskListLayout::find(&symbols.finish(), &Btf::parse(&section).unwrap()).unwrap().slid(0x100)
}

fn put(ram: &Ram, at: Gva, word: u64) {
    ram.put(at, &word.to_le_bytes());
}

/// Links these in a circle.
fn link(ram: &Ram, nodes: &[Gva]) {
    for (n, node) in nodes.iter().enumerate() {
        let next = nodes[(n + 1) % nodes.len()];
        put(ram, *node, next.0);
        put(ram, next.add(8), node.0);
    }
}

/// Three processes, of which the second has a thread more. Nobody sleeps.
fn guest() -> Ram {
    let ram = Ram::new();
    link(&ram, &[INIT, OWNER, WAITER].map(|task| task.add(TASKS)));
    for task in [INIT, OWNER, WAITER, THREAD] {
        let process = if task == THREAD { OWNER } else { task };
        put(&ram, task.add(SIGNAL), process.0 + 0x800);
        put(&ram, task.add(STACK), task.0 + 0x8000);
        put(&ram, task.add(SP), task.0 + 0x8000 + 0x100);
        link(&ram, &[task.add(0x800 + THREAD_HEAD), task.add(THREAD_NODE)]);
    }
    link(&ram, &[OWNER.add(0x800 + THREAD_HEAD), OWNER.add(THREAD_NODE), THREAD.add(THREAD_NODE)]);
    link(&ram, &[MUTEX.add(16)]);
    link(&ram, &[SEMAPHORE.add(24)]);
    ram
}

fn sleeps(ram: &Ram, task: Gva, state: u32) {
    ram.put(task.add(STATE), &state.to_le_bytes());
}

#[test]
fn processes_and_threads_are_found_and_those_that_sleep_are_told_from_others() {
    let (layout, ram) = (layout(true), guest());
    let sleepers =
        |ram: &Ram| -> Vec<Gva> { layout.read(&ram.memory()).sleepers().map(|sleeper| sleeper.at).collect() };
    assert!([INIT, OWNER, WAITER, THREAD].iter().all(|task| layout.read(&ram.memory()).has(*task)));
    assert_eq!(sleepers(&ram), []);
    // Uninterruptible, killable, and the lock of a realtime kernel; interruptible, and idle.
    for (state, is_asleep) in [(2, true), (0x102, true), (0x1000, true), (1, false), (0x402, false)] {
        sleeps(&ram, THREAD, state);
        assert_eq!(sleepers(&ram), [THREAD][..usize::from(is_asleep)], "{state:#x}");
    }
    sleeps(&ram, THREAD, 2);
    ram.put(THREAD.add(ON_CPU), &1u32.to_le_bytes());
    assert_eq!(sleepers(&ram), []);
    let tasks = layout.read(&ram.memory());
    assert_eq!(tasks.of_stack(WAITER.add(0x8000 + 0x10)), Some(WAITER));
    assert_eq!(tasks.of_stack(INIT.add(0x7ff8)), None);
}

#[test]
fn a_task_that_sleeps_has_its_registers_on_its_stack() {
    let (layout, ram) = (layout(true), guest());
    sleeps(&ram, WAITER, 2);
    for n in 0..7 {
        put(&ram, WAITER.add(0x8000 + 0x100 + n * 8), 100 + n);
    }
    let tasks = layout.read(&ram.memory());
    let regs = tasks.sleepers().next().unwrap().registers(&ram.memory()).unwrap();
    assert_eq!((regs.r15, regs.rbx, regs.rbp, regs.rip), (100, 104, 105, 106));
    assert_eq!(regs.rsp, WAITER.0 + 0x8000 + 0x138);
}

/// What the waiter wants when `word` is on its stack.
fn wanted(layout: &TaskListLayout, ram: &Ram, word: Gva) -> Option<WantedLock> {
    let stack = WAITER.add(0x8000 + 0x200);
    put(ram, stack.add(0x40), word.0);
    let regs = Regs { rsp: stack.0, ..Regs::default() };
    let tasks = layout.read(&ram.memory());
    layout.locks.wanted(&ram.memory(), &regs, WAITER, |at| tasks.has(at))
}

#[test]
fn a_lock_is_known_by_its_list_and_its_owner() {
    for has_lists in [true, false] {
        let (layout, ram) = (layout(has_lists), guest());
        if !has_lists {
            put(&ram, MUTEX.add(16), 0);
        }
        let lock = |owner| Some(WantedLock { at: MUTEX, kind: LockKind::Mutex, owner });
        assert_eq!(wanted(&layout, &ram, MUTEX), None, "nobody has it");
        // Who waits has flags there, and spins.
        put(&ram, MUTEX, OWNER.0 | 3);
        assert_eq!(wanted(&layout, &ram, MUTEX), lock(Some(OWNER)));
        assert_eq!(wanted(&layout, &ram, MUTEX.add(8)), None);
        put(&ram, MUTEX, WAITER.0);
        assert_eq!(wanted(&layout, &ram, MUTEX), None, "it is its own");
        // Behind another one on the list.
        let (other, own) = (OWNER.add(0x8000 + 0x300), WAITER.add(0x8000 + 0x300));
        put(&ram, other.add(16), THREAD.0);
        put(&ram, own.add(16), WAITER.0);
        match has_lists {
            true => link(&ram, &[MUTEX.add(16), other, own]),
            false => {
                link(&ram, &[other, own]);
                put(&ram, MUTEX.add(16), other.0);
            }
        }
        put(&ram, MUTEX, 1);
        assert_eq!(wanted(&layout, &ram, MUTEX), lock(None));
        put(&ram, MUTEX, THREAD.0 | 1);
        assert_eq!(wanted(&layout, &ram, MUTEX), lock(Some(THREAD)));
        // A list that leads elsewhere is none.
        put(&ram, own.add(8), 0);
        assert_eq!(wanted(&layout, &ram, MUTEX), None);
    }
}

#[test]
fn a_semaphore_that_tasks_read_names_none_of_them() {
    let (layout, ram) = (layout(true), guest());
    let own = WAITER.add(0x8000 + 0x300);
    put(&ram, own.add(24), WAITER.0);
    link(&ram, &[SEMAPHORE.add(24), own.add(8)]);
    for (owner, known) in [(OWNER.0, Some(OWNER)), (OWNER.0 | 1, None), (0, None)] {
        put(&ram, SEMAPHORE.add(8), owner);
        let lock = WantedLock { at: SEMAPHORE, kind: LockKind::RwSemaphore, owner: known };
        assert_eq!(wanted(&layout, &ram, SEMAPHORE), Some(lock));
    }
}

#[test]
fn lists_that_never_end_are_left() {
    let (layout, ram) = (layout(true), guest());
    // Neither leads back to its beginning.
    put(&ram, WAITER.add(TASKS), OWNER.add(TASKS).0);
    put(&ram, THREAD.add(THREAD_NODE), THREAD.add(THREAD_NODE).0);
    let tasks = layout.read(&ram.memory());
    assert!(tasks.has(WAITER) && tasks.has(THREAD));
    put(&ram, OWNER.add(THREAD_NODE), OWNER.add(THREAD_NODE).0);
    assert!(!layout.read(&ram.memory()).has(THREAD), "the first thread leads to itself");
    put(&ram, INIT.add(SIGNAL), 8);
    assert!(!layout.read(&ram.memory()).has(OWNER));
    let own = WAITER.add(0x8000 + 0x300);
    put(&ram, MUTEX.add(16), own.0);
    link(&ram, &[own]);
    assert_eq!(wanted(&layout, &ram, MUTEX), None);
}

#[test]
fn a_frame_waits_in_the_function_that_was_called() {
    let locks = layout(true).locks;
    let frame = |at, kind| Frame { at: Gva(at), kind, is_reliable: true };
    let waits = |at: u64, kind| locks.waits(&frame(0x100 + at, kind));
    assert!(waits(0x500, FrameKind::Start) && !waits(0x500, FrameKind::Return));
    assert!(!waits(0x520, FrameKind::Interrupted) && waits(0x520, FrameKind::Return));
}
