//! A detour that has a program's memory brought in before it reads that: how it calls the guest's function, and what it leaves.

use probe_engine::addr::Gva;
use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Fetch, Field, Hop, Read, What};
use probe_engine::detour::layout::{self, Rings};
use probe_engine::detour::ring::{Ring, counter};
use probe_engine::detour::stub::Guest;
use probe_engine::detour::work::{RecordedAt, Work};
use probe_engine::insn::copy::{self, JUMP};
use probe_engine::linux::nofault::STACK;
use probe_engine::probe::plan::ProbePlan;
use tests::code::{CODE, DATA, code, dump_registers, ending, mov, stack, store};
use tests::detour::{self, AC, DF, IF, TASK, assert_unchanged, divert, guest};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::reserved;

/// A pointer, and where that leads once the memory of both was brought in: until then there are zeros.
const POINTER: Gva = Gva(DATA.0 + 0x320);
const TEXT: Gva = Gva(DATA.0 + 0x340);
/// How often memory was brought in.
const CALLS: Gva = Gva(DATA.0 + 0x3f0);
/// Where, how much, with which flags, and whether the CPU read for a hit then: of the last time.
const LAST: Gva = Gva(DATA.0 + 0x400);
/// The registers in the end.
const AFTER: Gva = Gva(DATA.0 + 0x500);
/// The function that copies, the one that brings memory in, and the one that is probed.
const COPY: Gva = Gva(0x4_0000);
const FAULT_IN: Gva = Gva(0x4_1000);
const FUNCTION: Gva = Gva(0x4_2000);

const RAX: u8 = 0;
const RCX: u8 = 1;
const RSI: u8 = 6;
const RDI: u8 = 7;

/// `mov rcx, rdx; rep movsb; xor eax, eax; ret`
const COPYING: [u8; 8] = [0x48, 0x89, 0xd1, 0xf3, 0xa4, 0x31, 0xc0, 0xc3];

/// Notes down how it is called, has the pointer and the text there, and spoils what a function may. `window`: where the data window is.
fn bringing_in(window: Gva) -> Vec<u8> {
    const PUSHFQ_POP_RAX: [u8; 2] = [0x9c, 0x58];
    /// `mov eax, [rcx]`
    const LOAD: [u8; 2] = [0x8b, 0x01];
    /// `add qword [..], ..`, without the address and the number
    const COUNT: [u8; 4] = [0x48, 0x83, 0x04, 0x25];
    /// `xor edx, edx; xor esi, esi; xor edi, edi`, then r8d to r11d, `stc; xor eax, eax; ret`
    const SPOIL_RET: [u8; 22] = [
        0x31, 0xd2, 0x31, 0xf6, 0x31, 0xff, 0x45, 0x31, 0xc0, 0x45, 0x31, 0xc9, 0x45, 0x31, 0xd2, 0x45, 0x31,
        0xdb, 0xf9, 0x31, 0xc0, 0xc3,
    ];
    let [flags, reads] = [LAST.add(16), LAST.add(24)].map(|at| store(at, RAX));
    let called = code(&[&store(LAST, RDI), &store(LAST.add(8), RSI), &PUSHFQ_POP_RAX, &flags]);
    let flag = window.add(layout::POOLS + layout::READING);
    let reading = code(&[&mov(RCX, flag.0), &LOAD, &reads]);
    let count = code(&[&COUNT, &(CALLS.0 as u32).to_le_bytes(), &[1]]);
    let put = |at: Gva, word: u64| code(&[&mov(RAX, word), &store(at, RAX)]);
    let text = b"the twelve bytes".as_chunks::<8>().0;
    let words = [(POINTER.add(8), TEXT.0)]
        .into_iter()
        .chain([TEXT, TEXT.add(8)].into_iter().zip(text.iter().map(|word| u64::from_le_bytes(*word))));
    let there: Vec<u8> = words.flat_map(|(at, word)| put(at, word)).collect();
    code(&[&called, &reading, &count, &there, &SPOIL_RET])
}

/// What the second argument leads to, as a program has it.
fn reading() -> Capture {
    let read = Read::Memory(Hop::of_user(4), What::Bytes(12));
    let fetch = Fetch { base: Base::Argument(1), hops: vec![Hop::of_user(8)], read };
    Capture { fields: vec![Field { name: "it".to_owned(), fetch, shape: Shape::Hex }], ..Capture::default() }
}

/// What a call for the consumer of this number has left.
struct Left {
    calls: u64,
    last: [u64; 4],
    hits: u64,
    captured: Option<Vec<u8>>,
}

/// One call of the probed function for consumer number `called`, where consumer 7 is probed.
fn call(called: u32) -> Option<Left> {
    let fit = fit()?;
    let rig = Rig::new(fit);
    const RET: [u8; 1] = [0xc3];
    /// `push DF | AC; popfq`
    const FLAGS_FIRST: [u8; 6] = [0x68, 0x02, 0x04, 0x04, 0x00, 0x9d];
    let (capture, mut jump, mut window) = (reading(), [0; JUMP], Gva(0));
    let work = Work::of(0, &ProbePlan::default().reading(capture.clone()).recorded()).unwrap();
    let work = work.of_consumer(Some(7));
    let ram = rig.reserve(&(CODE..CODE.add(1)), |reserved, ram| {
        let guest = Guest { fault_in: Some(FAULT_IN), ..guest(&rig, reserved, Some(COPY)) };
        window = guest.window;
        jump = divert(&guest, FUNCTION, std::slice::from_ref(&work), reserved, ram);
    });
    let value = |n: u8| match n {
        RSI => POINTER.0,
        RDI => window.add(layout::consumer(called)).0,
        _ => 0x1111_0000 + u64::from(n),
    };
    let registers: Vec<(u8, u64)> = (0..16).filter(|n| *n != 4).map(|n| (n, value(n))).collect();
    let loads: Vec<u8> = registers.iter().flat_map(|(n, value)| mov(*n, *value)).collect();
    let set_up = code(&[&loads, &FLAGS_FIRST]);
    let [_, distance @ ..] = copy::jump(CODE.add(set_up.len() as u64), FUNCTION).unwrap();
    rig.write(TASK.add(detour::STACK), &(stack(0).0 - STACK / 2).to_le_bytes());
    rig.write(COPY, &COPYING);
    rig.write(FAULT_IN, &bringing_in(window));
    rig.write(FUNCTION, &code(&[&jump, &RET]));
    rig.write(CODE, &ending(&[&set_up, &[0xe8], &distance, &dump_registers(AFTER)]));
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_unchanged(&left, AFTER, registers);
    let (mut ring, mut captured) = (Ring::new(Rings::of(1), reserved::DATA, 0), None);
    ring.drain(&*ram, |record| {
        let mut bytes = Vec::new();
        let recorded = RecordedAt { rip: FUNCTION, slide: 0, cpu: 0 };
        assert!(work.replay(&capture, &record, recorded, &mut bytes));
        captured = Some(bytes);
    })
    .unwrap();
    let counted = |table| counter(&*ram, reserved::DATA, table, 0);
    assert_eq!(counted(layout::UNREAD), 0);
    Some(Left {
        calls: left.u64(CALLS),
        last: [0, 8, 16, 24].map(|at| left.u64(LAST.add(at))),
        hits: counted(layout::HITS),
        captured,
    })
}

#[test]
fn a_programs_memory_is_there_before_it_is_read_and_everything_as_it_was_afterwards() {
    let Some(left) = call(7) else { return };
    let [at, bytes, flags, reads] = left.last;
    assert_eq!((left.hits, left.calls, at, bytes), (1, 2, TEXT.0 + 4, 12), "for the pointer and the text");
    assert_eq!(flags & (IF | DF | AC), IF, "it may sleep");
    assert_eq!(reads, 0, "another hit on this CPU may read meanwhile");
    let captured = left.captured.unwrap();
    assert!(captured.windows(12).any(|bytes| bytes == b"twelve bytes"), "{captured:02x?}");
}

#[test]
fn what_is_called_for_another_consumer_brings_nothing_in() {
    let Some(left) = call(8) else { return };
    assert_eq!((left.hits, left.calls, left.captured), (0, 0, None));
}
