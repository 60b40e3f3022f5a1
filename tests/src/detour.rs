//! A detour in a micro guest, and what it finds there: the area of the only CPU, which begins at 0, and a task. And what
//! detours count by.

use crate::code::{DATA, stack};
use crate::rig::{Left, Rig};
use probe_engine::addr::Gva;
use probe_engine::capture::filter::Operand;
use probe_engine::capture::hist::{Form, Histogram, Key, Summed};
use probe_engine::detour::instances::Instances;
use probe_engine::detour::layout::Rings;
use probe_engine::detour::stub::{Cpu, Guest, Stub, leave, trampolines};
use probe_engine::detour::work::Work;
use probe_engine::insn::copy::{JUMP, jump};
use probe_engine::linux::branches::Branches;
use probe_engine::linux::nofault::Copies;
use serde_json::json;
use vmm::memory::GuestRam;
use vmm::reserved::{self, Reserved};

/// The CPU's number. What else it has is in the 32 bytes from here on.
const CPU: Gva = DATA;
const CURRENT: Gva = Gva(DATA.0 + 8);
const PREEMPT_COUNT: Gva = Gva(DATA.0 + 16);
/// Where the end of the stack of interrupts is.
pub const IRQ_STACK: Gva = Gva(DATA.0 + 24);
/// The task.
pub const TASK: Gva = Gva(DATA.0 + 0x100);
/// Where its pid is in it. Its name is at 0.
pub const PID: u64 = 16;
/// Where the start of its stack is in it.
pub const STACK: u64 = 40;
/// What it leads to: 64 bytes.
const OTHERS: Gva = Gva(DATA.0 + 0x200);

/// What stubs know of such a guest, which has a task then. It copies memory by `copy`, if it does.
pub fn guest(rig: &Rig, reserved: &Reserved, copy: Option<Gva>) -> Guest {
    const CRED: u64 = 24;
    const THREAD_PID: u64 = 32;
    let task = json!({
        "current": { "offset": CURRENT.0 }, "preempt_count": PREEMPT_COUNT.0,
        "comm": 0, "pid": PID, "tgid": PID + 4,
        "user": { "cred": CRED, "uid": 8 },
        "namespace": { "thread_pid": THREAD_PID, "level": 0, "numbers": 16, "stride": 16, "number": 0 },
        "scopes": {},
    });
    rig.write(CURRENT, &TASK.0.to_le_bytes());
    for member in [CRED, THREAD_PID] {
        rig.write(TASK.add(member), &OTHERS.0.to_le_bytes());
    }
    Guest {
        fault_in: None,
        window: reserved.data().start,
        rings: Rings::of(1),
        cpu: Some(Cpu { number: CPU.0, task: serde_json::from_value(task).unwrap(), per_cpu: None }),
        slide: 0,
        trampolines: reserved.detours().start,
        copies: copy.map(|copy| Copies {
            bytes: [copy; 2],
            string: [copy; 2],
            stack: STACK,
            irq_stack: Some(IRQ_STACK.0),
        }),
        branches: Branches::default(),
    }
}

/// Gets all ready that is needed to follow calls.
pub fn follow_calls(guest: &Guest, reserved: &Reserved, ram: &GuestRam) {
    reserved.write_detours(ram, &trampolines()).unwrap();
    reserved.write_leave(ram, &leave(guest).unwrap()).unwrap();
    Instances::new(reserved::DATA, 1).prepare(ram).unwrap();
}

/// Direction and alignment check: what a guest sets whose flags must be left alone.
pub const DF: u64 = 1 << 10;
/// See [`DF`].
pub const AC: u64 = 1 << 18;
/// Interrupts, which are off there.
pub const IF: u64 = 1 << 9;

/// Fails the test unless the registers that were dumped at `after` are these, with rsp at the top of the stack, and the flags as they
/// were set.
#[track_caller]
pub fn assert_unchanged(left: &Left, after: Gva, registers: impl IntoIterator<Item = (u8, u64)>) {
    for (n, value) in registers {
        assert_eq!(left.u64(after.add(8 * u64::from(n))), value, "register {n}");
    }
    assert_eq!(left.u64(after.add(8 * 4)), stack(0).0, "the stack");
    assert_eq!(left.u64(after.add(8 * 16)) & (DF | AC | IF), DF | AC, "the flags");
}

/// Makes a detour for the nop at `site` that does `works`, and returns the jump to it.
pub fn divert(
    guest: &Guest,
    site: Gva,
    works: &[Work],
    reserved: &mut Reserved,
    ram: &GuestRam,
) -> [u8; JUMP] {
    let slots = reserved.allocate(Stub::most_bytes(works)).unwrap();
    let entry = reserved.address(slots);
    let stub = Stub::assemble(guest, entry, site, None, works).unwrap();
    reserved.write(ram, slots, &stub.code).unwrap();
    jump(site, entry).unwrap()
}

/// A histogram by these keys, with the sums of these fields, as large as one can be.
#[must_use]
pub fn histogram(keys: &[(Operand, Form)], sums: &[u16]) -> Histogram {
    let key = |(operand, form): &(Operand, Form)| Key {
        name: "key".to_owned(),
        operand: *operand,
        form: form.clone(),
    };
    let sum = |field: &u16| Summed { name: "sum".to_owned(), operand: Operand::Field(*field) };
    Histogram {
        said: "hist".to_owned(),
        keys: keys.iter().map(key).collect(),
        values: sums.iter().map(sum).collect(),
        sort: Vec::new(),
        size: 1 << 17,
    }
}
