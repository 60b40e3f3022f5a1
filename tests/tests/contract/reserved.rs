//! The reserved memory, mapped into a guest that runs: what its code may do there, and what it may not.

use probe_engine::addr::{Gpa, Gva};
use probe_engine::insn::copy::SLOT;
use probe_engine::memory::PhysMemory;
use probe_engine::paging::window;
use std::time::Duration;
use tests::code::{CODE, DATA, ending, stack, store};
use tests::host::fit;
use tests::rig::{Left, Rig, Start};
use vmm::layout;
use vmm::memory::GuestRam;
use vmm::reserved::{self, Reserved};
use vmm::selftest::micro::{ExceptionStack, power_off};
use vmm::world::World;
use vmm_sys_util::eventfd::EventFd;

const RAX: u8 = 0;
const RBX: u8 = 3;
/// Error code and RIP of the page fault, and CR2.
const FRAME: Gva = Gva(0x2_3000);
const CR2: Gva = Gva(0x2_3100);
const HANDLER: Gva = Gva(0x1_9000);
/// Where an undefined instruction ends the guest.
const UNDEFINED: Gva = Gva(0x1_9800);
/// Holds zero until the reserved memory is mapped, then the address that the guest is to use.
const GO: Gva = DATA;
const RESULT: Gva = Gva(DATA.0 + 8);

/// `sti`, then `mov rax, [GO]; test rax, rax; jz` back. With interrupts off it may spin for ever in Bochs, whose timer
/// then does not end the guest's turn.
const WAIT: [u8; 14] = [0xfb, 0x48, 0x8b, 0x04, 0x25, 0x00, 0x10, 0x02, 0x00, 0x48, 0x85, 0xc0, 0x74, 0xf3];

/// Runs a guest that waits, then does `what` with RAX as `fill` says, then stores RBX and ends; a page fault ends it
/// too.
fn run(what: &[u8], fill: impl FnOnce(&mut Reserved, &GuestRam) -> Gva) -> Option<(Left, Reserved, Gva)> {
    let fit = fit()?;
    let rig = Rig::new(fit);
    let code = ending(&[&WAIT, what, &store(RESULT, RBX)]);
    rig.write(CODE, &code);
    let mut handler = Vec::new();
    for n in 0..2 {
        // pop rax
        handler.push(0x58);
        handler.extend(store(FRAME.add(8 * n), RAX));
    }
    // mov rax, cr2
    handler.extend([0x0f, 0x20, 0xd0]);
    handler.extend(store(CR2, RAX));
    rig.write(HANDLER, &ending(&[&handler]));
    rig.gate(14, HANDLER, ExceptionStack::Own);
    rig.write(UNDEFINED, &power_off());
    rig.gate(6, UNDEFINED, ExceptionStack::Current);
    let running = rig.run(&[Start::at(CODE, stack(0))]);
    // It runs for a while with the entries absent.
    std::thread::sleep(Duration::from_millis(20));
    let mut used = Gva(0);
    let reserved = running.reserve(&(CODE..CODE.add(code.len() as u64)), |reserved, ram| {
        used = fill(reserved, ram);
        ram.write(Gpa(GO.0), &used.0.to_le_bytes()).unwrap();
    });
    Some((running.to_end(), reserved, used))
}

/// Writes a copy that ends with a jump to `back`, and returns its address.
fn copy(reserved: &mut Reserved, ram: &GuestRam, instruction: &[u8], back: Gva) -> Gva {
    let slot = reserved.allocate(SLOT).unwrap();
    let at = reserved.address(slot);
    let mut code = instruction.to_vec();
    code.push(0xe9);
    let next = at.add(code.len() as u64 + 4);
    code.extend((back.0.wrapping_sub(next.0) as u32).to_le_bytes());
    code.resize(SLOT, 0xcc);
    reserved.write(ram, slot, &code).unwrap();
    at
}

/// `mov ebx, 0x1234`
const LOAD_EBX: [u8; 5] = [0xbb, 0x34, 0x12, 0, 0];
/// `jmp rax`
const JUMP: [u8; 2] = [0xff, 0xe0];
/// `mov [rax], rbx`
const STORE: [u8; 3] = [0x48, 0x89, 0x18];

#[test]
fn a_copy_runs_and_jumps_back() {
    let back = CODE.add((WAIT.len() + JUMP.len()) as u64);
    let ran = run(&JUMP, |reserved, ram| copy(reserved, ram, &LOAD_EBX, back));
    let Some((left, ..)) = ran else { return };
    assert_eq!(left.u64(RESULT), 0x1234);
}

#[test]
fn the_data_window_keeps_what_the_guest_stores() {
    /// `mov rbx, [rax]`
    const LOAD: [u8; 3] = [0x48, 0x8b, 0x18];
    /// `inc rbx`
    const INCREMENT: [u8; 3] = [0x48, 0xff, 0xc3];
    const OFFSET: u64 = 0x1f_fff8;
    let what = [&LOAD[..], &INCREMENT, &STORE].concat();
    let in_memory = Gpa(reserved::DATA.0 + OFFSET);
    let ran = run(&what, |reserved, ram| {
        ram.write(in_memory, &41u64.to_le_bytes()).unwrap();
        reserved.data().start.add(OFFSET)
    });
    let Some((left, ..)) = ran else { return };
    assert_eq!(left.u64(RESULT), 42);
    assert_eq!(left.u64(Gva(in_memory.0)), 42, "seen from outside");
}

#[test]
fn a_store_to_code_is_a_protection_fault() {
    const PROTECTION_WRITE: u64 = 1 | 2;
    let at = |n: u32| run(&STORE, move |reserved, _| reserved.trampoline(n));
    for n in [0, 65536] {
        let Some((left, _, used)) = at(n) else { return };
        assert_eq!(left.u64(FRAME), PROTECTION_WRITE);
        assert_eq!(left.u64(FRAME.add(8)), CODE.0 + WAIT.len() as u64);
        assert_eq!(left.u64(CR2), used.0);
    }
}

/// Has the last page of the data window show the first page of the code window, as a kernel could that has found its
/// physical address. The guest has touched neither.
fn map_code_as_data(ram: &GuestRam) {
    let last = window::data_entry(reserved::DATA.add(window::DATA - window::PAGE));
    let words = ram.ranges().into_iter().flat_map(|range| (range.start.0..range.end.0).step_by(8));
    let is_last = |at: &u64| ram.compare_exchange(Gpa(*at), last, last) == Ok(true);
    let entry = words.into_iter().find(is_last).unwrap();
    ram.write(Gpa(entry), &window::data_entry(layout::RESERVED).to_le_bytes()).unwrap();
}

/// Stores of all kinds: what the guest reads afterwards is what was there, and so is what it runs.
#[test]
fn the_guest_cannot_change_code_by_a_mapping_of_its_own() {
    // mov rbx, [rax]
    const LOAD: [u8; 3] = [0x48, 0x8b, 0x18];
    let stores: [&[u8]; 4] = [
        &STORE,
        // lock inc qword [rax]
        &[0xf0, 0x48, 0xff, 0x00],
        // xchg [rax], rbx
        &[0x48, 0x87, 0x18],
        // mov rdi, rax; mov ecx, 64; rep stosb
        &[0x48, 0x89, 0xc7, 0xb9, 64, 0, 0, 0, 0xf3, 0xaa],
    ];
    for store in stores {
        let mut before = [0; 8];
        let ran = run(&[store, &LOAD].concat(), |reserved, ram| {
            map_code_as_data(ram);
            ram.read(layout::RESERVED, &mut before).unwrap();
            reserved.data().start.add(window::DATA - window::PAGE)
        });
        let Some((left, ..)) = ran else { return };
        assert_eq!(left.u64(RESULT), u64::from_le_bytes(before), "{store:02x?}");
        assert_eq!(before, [0xcc; 8]);
        assert_eq!(left.u64(Gva(layout::RESERVED.0)), u64::from_le_bytes(before), "seen from outside");
    }
}

#[test]
fn data_does_not_execute() {
    const PROTECTION_FETCH: u64 = 1 | 1 << 4;
    let Some((left, reserved, used)) = run(&JUMP, |reserved, _| reserved.data().start) else { return };
    assert_eq!(used, reserved.data().start);
    assert_eq!(left.u64(FRAME), PROTECTION_FETCH);
    assert_eq!(left.u64(FRAME.add(8)), used.0);
    assert_eq!(left.u64(CR2), used.0);
}

#[test]
fn an_exception_in_a_copy_keeps_its_slot_until_it_is_over() {
    const UD2: [u8; 2] = [0x0f, 0x0b];
    /// Where RIP is in the frame of an exception without error code.
    const SAVED_RIP: u64 = 40;
    let Some((left, mut reserved, used)) = run(&JUMP, |reserved, ram| copy(reserved, ram, &UD2, CODE)) else {
        return;
    };
    let world = World::<(), ()>::new(0, (), EventFd::new(0).unwrap().into());
    let frame = stack(0).offset(-(SAVED_RIP as i64));
    assert_eq!(left.u64(frame), used.0);
    left.ram.write(Gpa(GO.0), &[0; 8]).unwrap();
    reserved.retire(reserved.slot_of(used).unwrap());
    assert_eq!(reserved.reclaim(&world.park(|_| {}), &left.ram, Vec::new).unwrap(), 0);
    left.ram.write(Gpa(frame.0), &[0; 8]).unwrap();
    assert_eq!(reserved.reclaim(&world.park(|_| {}), &left.ram, Vec::new).unwrap(), 1);
}
