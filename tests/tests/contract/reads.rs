//! A detour that reads memory by a function of the guest, at a call or at its return: when it does, how it calls, and what
//! it leaves.

use probe_engine::addr::Gva;
use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Fetch, Field, Hop, Read, What};
use probe_engine::detour::layout::{self, Rings};
use probe_engine::detour::ring::{Ring, counter};
use probe_engine::detour::work::{RecordedAt, Work};
use probe_engine::insn::copy::{self, JUMP};
use probe_engine::linux::nofault::STACK;
use probe_engine::memory::PhysMemory;
use probe_engine::probe::plan::{ProbePlan, Trigger};
use tests::code::{CODE, DATA, code, dump_registers, ending, mov, stack, store};
use tests::detour::{self, AC, DF, IF, IRQ_STACK, TASK, assert_unchanged, divert, follow_calls, guest};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::reserved;

/// What is read, and a pointer to it; nothing is at the end of the other.
const TEXT: Gva = Gva(DATA.0 + 0x300);
const POINTER: Gva = Gva(DATA.0 + 0x320);
const NOWHERE: u64 = 0x7777;
/// The flags that the function was called with, and the registers in the end.
const FLAGS: Gva = Gva(DATA.0 + 0x400);
const AFTER: Gva = Gva(DATA.0 + 0x500);
/// The function that copies.
const COPY: Gva = Gva(0x4_0000);
/// The function that is probed.
const FUNCTION: Gva = Gva(0x4_1000);
/// What it leaves in rdi.
const SPOILT: u64 = 0x1111_0007;
const EACH: [Trigger; 2] = [Trigger::Pass, Trigger::Return { max_active: None }];

/// Notes its flags down, copies rdx bytes from rsi to rdi unless that is nowhere, and spoils what a function may.
fn copying() -> Vec<u8> {
    const PUSHFQ_POP_RAX: [u8; 2] = [0x9c, 0x58];
    const CMP_RSI: [u8; 3] = [0x48, 0x81, 0xfe];
    /// `je` to the second way out
    const JE: [u8; 2] = [0x74, 0x14];
    /// `mov rcx, rdx; rep movsb`
    const MOVE: [u8; 5] = [0x48, 0x89, 0xd1, 0xf3, 0xa4];
    /// `xor r8d, r8d` and so on to r11, then `xor eax, eax; ret`
    const SPOIL_RET: [u8; 15] =
        [0x45, 0x31, 0xc0, 0x45, 0x31, 0xc9, 0x45, 0x31, 0xd2, 0x45, 0x31, 0xdb, 0x31, 0xc0, 0xc3];
    /// `mov rax, -14; ret`
    const FAULT_RET: [u8; 8] = [0x48, 0xc7, 0xc0, 0xf2, 0xff, 0xff, 0xff, 0xc3];
    let nowhere = (NOWHERE as u32).to_le_bytes();
    assert_eq!(usize::from(JE[1]), MOVE.len() + SPOIL_RET.len());
    code(&[&PUSHFQ_POP_RAX, &store(FLAGS, 0), &CMP_RSI, &nowhere, &JE, &MOVE, &SPOIL_RET, &FAULT_RET])
}

/// Reads what the pointer in rdi leads to, and what lies nowhere.
fn reading() -> Capture {
    let at = |base, hops: &[i64], offset| {
        let hops = hops.iter().map(|offset| Hop::at(*offset)).collect();
        let read = Read::Memory(Hop::at(offset), What::Bytes(12));
        Field { name: "it".to_owned(), fetch: Fetch { base, hops, read }, shape: Shape::Hex }
    };
    let fields = vec![at(Base::Argument(0), &[8], 4), at(Base::Constant(NOWHERE), &[0], 0)];
    Capture { fields, ..Capture::default() }
}

/// What a hit has left.
struct Left {
    hits: u64,
    unread: u64,
    /// What was captured, if there is a record.
    captured: Option<Vec<u8>>,
    /// The function's flags; 0 if it was not called.
    flags: u64,
}

/// One call, with rsp at [`stack`], on a task's stack and a CPU's that are here, while the CPU reads already or not.
fn call(hits: Trigger, task_stack: u64, irq_stack: u64, reads_already: bool) -> Option<Left> {
    let fit = fit()?;
    let rig = Rig::new(fit);
    let registers = (0..16).filter(|n| *n != 4).map(|n| (n, 0x1111_0000 + u64::from(n)));
    const RDI: u8 = 7;
    const RET: [u8; 1] = [0xc3];
    /// `push DF | AC; popfq`
    const FLAGS_FIRST: [u8; 6] = [0x68, 0x02, 0x04, 0x04, 0x00, 0x9d];
    let loads: Vec<u8> = registers.clone().flat_map(|(n, value)| mov(n, value)).collect();
    let set_up = code(&[&loads, &mov(RDI, POINTER.0), &FLAGS_FIRST]);
    let from = CODE.add(set_up.len() as u64);
    let [_, distance @ ..] = copy::jump(from, FUNCTION).unwrap();
    let back = from.add(JUMP as u64);
    let put = |at: Gva, word: u64| rig.write(at, &word.to_le_bytes());
    put(TASK.add(detour::STACK), task_stack);
    put(IRQ_STACK, irq_stack);
    put(POINTER.add(8), TEXT.0);
    rig.write(TEXT, b"the twelve bytes");
    rig.write(COPY, &copying());
    let (capture, mut jump) = (reading(), [0; JUMP]);
    let work = Work::of(0, &ProbePlan::new(hits).reading(capture.clone()).recorded()).unwrap();
    let ram = rig.reserve(&(CODE..CODE.add(1)), |reserved, ram| {
        let guest = guest(&rig, reserved, Some(COPY));
        jump = divert(&guest, FUNCTION, std::slice::from_ref(&work), reserved, ram);
        follow_calls(&guest, reserved, ram);
        let flag = reserved::DATA.add(layout::POOLS + layout::READING);
        ram.write(flag, &u32::from(reads_already).to_le_bytes()).unwrap();
    });
    rig.write(FUNCTION, &code(&[&jump, &mov(RDI, SPOILT), &RET]));
    rig.write(CODE, &ending(&[&set_up, &[0xe8], &distance, &dump_registers(AFTER)]));
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_unchanged(&left, AFTER, registers);
    let mut flag = [0; 4];
    ram.read(reserved::DATA.add(layout::POOLS + layout::READING), &mut flag).unwrap();
    assert_eq!(u32::from_le_bytes(flag), u32::from(reads_already), "the CPU reads no more than before");
    let (mut ring, mut captured) = (Ring::new(Rings::of(1), reserved::DATA, 0), None);
    ring.drain(&*ram, |record| {
        let mut bytes = Vec::new();
        let rip = if hits == Trigger::Pass { FUNCTION } else { record.returned().back };
        assert!(rip == FUNCTION || (rip == back && record.returned().value == 0x1111_0000));
        assert!(work.replay(&capture, &record, RecordedAt { rip, slide: 0, cpu: 0 }, &mut bytes));
        captured = Some(bytes);
    })
    .unwrap();
    let counted = |table| counter(&*ram, reserved::DATA, table, 0);
    let mut pool = [0; 8];
    ram.read(reserved::DATA.add(layout::POOLS), &mut pool).unwrap();
    let (changes, first) = (u64::from_le_bytes(pool) as u32, u64::from_le_bytes(pool) >> 32);
    assert_eq!(first, layout::TRAMPOLINE, "the instance is given back");
    assert_eq!(changes, if hits == Trigger::Pass { 0 } else { 2 });
    assert_eq!(counted(layout::UNFOLLOWED) + counted(layout::STRAYS), 0);
    Some(Left {
        hits: counted(layout::HITS),
        unread: counted(layout::UNREAD),
        captured,
        flags: left.u64(FLAGS),
    })
}

/// No stack begins there.
const ELSEWHERE: u64 = 0x10_0000;

#[test]
fn a_detour_calls_with_clear_flags_and_leaves_everything_as_it_was() {
    // In the middle of the task's stack, then in that of interrupts.
    let stacks = [(stack(0).0 - STACK / 2, ELSEWHERE), (ELSEWHERE, stack(0).0 + STACK / 2)];
    for (hits, (task, irq)) in EACH.into_iter().flat_map(|hits| stacks.map(|stacks| (hits, stacks))) {
        let Some(left) = call(hits, task, irq, false) else { return };
        assert_eq!((left.hits, left.unread), (1, 0));
        assert!(left.flags != 0 && left.flags & (DF | AC | IF) == 0, "{:#x}", left.flags);
        let captured = left.captured.unwrap();
        assert!(captured.windows(12).any(|bytes| bytes == b"twelve bytes"), "{captured:02x?}");
        assert!(captured.windows(8).any(|bytes| bytes == NOWHERE.to_le_bytes()), "what is not there is said");
    }
}

#[test]
fn a_hit_for_which_memory_cannot_be_read_is_missed_and_counted() {
    let there = stack(0).0;
    let cases = [
        (there - STACK / 2, ELSEWHERE, true),
        // At the bottom of either stack, beyond both, and below.
        (there - 2048, ELSEWHERE, false),
        (ELSEWHERE, there + STACK - 2048, false),
        (there - STACK - 256, there - 256, false),
        (there, there + STACK, false),
    ];
    for (hits, (task, irq, reads_already)) in EACH.into_iter().flat_map(|hits| cases.map(|case| (hits, case)))
    {
        let Some(left) = call(hits, task, irq, reads_already) else { return };
        let case = format!("{hits:?} {task:#x} {irq:#x} {reads_already}");
        assert_eq!((left.hits, left.unread, left.flags), (0, 1, 0), "{case}");
        assert_eq!(left.captured, None);
    }
}
