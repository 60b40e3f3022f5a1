use super::*;
use crate::world::World;
use vmm_sys_util::eventfd::EventFd;

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const DIRECTORY: u64 = 0x3000;
const TABLE: u64 = 3;
const LARGE_PAGE: u64 = 0x83;
const TEXT: Range<Gva> = Gva(0xffff_ffff_8100_0000)..Gva(0xffff_ffff_8120_0000);
const STACK: Gpa = Gpa(0x10_0000);

/// The slot of this number.
fn one(first: u32) -> Slots {
    Slots { first, count: 1 }
}

fn standing() -> World<(), ()> {
    World::new(0, (), EventFd::new(0).unwrap().into())
}

fn put(ram: &GuestRam, at: Gpa, word: u64) {
    ram.write_code(at, &word.to_le_bytes()).unwrap();
}

fn word(ram: &GuestRam, at: Gpa) -> u64 {
    let mut raw = [0; 8];
    ram.read(at, &mut raw).unwrap();
    u64::from_le_bytes(raw)
}

/// A guest with page tables for its text.
fn guest() -> (GuestRam, AddressSpace) {
    let ram = GuestRam::new(2 << 20).unwrap();
    put(&ram, Gpa(PML4 + 511 * 8), PDPT | TABLE);
    put(&ram, Gpa(PDPT + 510 * 8), DIRECTORY | TABLE);
    put(&ram, Gpa(DIRECTORY + 8 * 8), LARGE_PAGE);
    (ram, AddressSpace::new(PML4, 0))
}

fn mapped() -> (GuestRam, Reserved) {
    let (ram, space) = guest();
    let reserved = Reserved::map(&standing().park(|_| {}), &ram, space, &TEXT).unwrap();
    (ram, reserved)
}

fn reclaim(reserved: &mut Reserved, ram: &GuestRam, rips: &[Gva]) -> usize {
    reserved.reclaim(&standing().park(|_| {}), ram, || rips.to_vec()).unwrap()
}

#[test]
fn code_is_int3_and_data_is_zero_behind_the_entries() {
    let (ram, reserved) = mapped();
    let space = AddressSpace::new(PML4, 0);
    let gpa = |at| space.translate(&ram, at, probe_engine::paging::Access::Read).unwrap();
    let last = reserved.trampoline(0).add(window::CODE - 8);
    for at in [reserved.trampoline(0), reserved.address(one(0)), last] {
        assert_eq!(word(&ram, gpa(at)), 0xcccc_cccc_cccc_cccc);
    }
    assert_eq!(gpa(reserved.data().start), DATA);
    assert_eq!(word(&ram, gpa(reserved.data().end.offset(-8))), 0);
    assert_eq!(gpa(reserved.address(one(SLOTS - 1))), CODE.add(window::CODE - 32));
}

#[test]
fn tables_without_a_place_are_left_alone() {
    let (ram, space) = guest();
    let parked = standing();
    let parked = parked.park(|_| {});
    let elsewhere = Gva(0xffff_8000_0000_0000);
    assert_eq!(
        Reserved::map(&parked, &ram, space, &(elsewhere..elsewhere.add(1))).unwrap_err(),
        NoWindow::NotMapped(elsewhere).into()
    );
    (0..512).for_each(|index| put(&ram, Gpa(DIRECTORY + index * 8), LARGE_PAGE));
    assert_eq!(Reserved::map(&parked, &ram, space, &TEXT).unwrap_err(), NoWindow::Full.into());
    assert!((0..512).all(|index| word(&ram, Gpa(DIRECTORY + index * 8)) == LARGE_PAGE));
}

#[test]
fn page_tables_in_the_code_window_itself_are_refused() {
    let (ram, space) = guest();
    put(&ram, Gpa(PDPT + 510 * 8), CODE.0 | TABLE);
    put(&ram, CODE.add(8 * 8), LARGE_PAGE);
    let refused = Reserved::map(&standing().park(|_| {}), &ram, space, &TEXT).unwrap_err();
    assert!(matches!(refused, ReservedError::NoMemory(_)), "{refused}");
}

#[test]
fn addresses_lead_back_to_what_they_are_of() {
    let (_, reserved) = mapped();
    let first = reserved.trampoline(0);
    assert_eq!(reserved.instance_of(first.offset(-1)), None);
    assert_eq!(reserved.instance_of(first), Some(0));
    assert_eq!(reserved.instance_of(reserved.trampoline(65535)), Some(65535));
    assert_eq!(reserved.instance_of(reserved.trampoline(65536)), None);
    assert_eq!(reserved.slot_of(reserved.trampoline(65535)), None);
    assert_eq!(reserved.detours().start, reserved.trampoline(65536));
    assert_eq!(reserved.slot_of(reserved.detours().end.add(LEAVE as u64 - 1)), None);
    for slot in [one(0), one(1), one(SLOTS - 1)] {
        let at = reserved.address(slot);
        assert_eq!(reserved.slot_of(at), Some(slot));
        assert_eq!(reserved.slot_of(at.add(SLOT as u64 - 1)), Some(slot));
        assert_eq!(reserved.instance_of(at), None);
    }
    assert_eq!(reserved.slot_of(reserved.address(one(SLOTS - 1)).add(SLOT as u64)), None);
    assert_eq!(reserved.slot_of(Gva(0)), None);
}

#[test]
fn a_slot_is_given_out_again_only_when_reclaimed() {
    let (ram, mut reserved) = mapped();
    let slots: Vec<Slots> = std::iter::from_fn(|| reserved.allocate(SLOT)).collect();
    let different: BTreeSet<u32> = slots.iter().map(|slot| slot.first).collect();
    assert_eq!((slots.len(), different.len()), (SLOTS as usize, SLOTS as usize));
    let slot = slots[7];
    reserved.write(&ram, slot, &[0x90; SLOT]).unwrap();
    assert!(reserved.write(&ram, slot, &[0x91; SLOT + 1]).is_err(), "it would be cut off");
    reserved.retire(slot);
    assert_eq!(reserved.allocate(SLOT), None);
    let space = AddressSpace::new(PML4, 0);
    let at = space.translate(&ram, reserved.address(slot), probe_engine::paging::Access::Read).unwrap();
    assert_eq!(word(&ram, at), 0x9090_9090_9090_9090, "someone may be inside");
    assert_eq!(reclaim(&mut reserved, &ram, &[]), 1);
    assert_eq!(word(&ram, at), 0xcccc_cccc_cccc_cccc);
    assert_eq!(reserved.allocate(SLOT), Some(slot));
    assert_eq!(reserved.allocate(SLOT), None);
    assert_eq!(reclaim(&mut reserved, &ram, &[]), 0);
}

#[test]
fn who_is_inside_keeps_the_slot() {
    let size = SLOT as i64;
    // A return address in the slot, as an offset, and whether it keeps it.
    for (offset, keeps) in
        [(-1, false), (0, true), (1, true), (size - 1, true), (size, true), (size + 1, false)]
    {
        let (ram, mut reserved) = mapped();
        reserved.allocate(SLOT).unwrap();
        let slot = reserved.allocate(SLOT).unwrap();
        reserved.retire(slot);
        let rip = reserved.address(slot).offset(offset);
        let freed = usize::from(!keeps);

        assert_eq!(reclaim(&mut reserved, &ram, &[Gva(0), rip]), freed, "a vCPU at {offset}");
        assert_eq!(reserved.is_in_use(reserved.address(slot)), keeps);

        let again = |reserved| Reserved {
            retired: [(slot.first, 1)].into(),
            free: BTreeSet::new(),
            seen: None,
            ..reserved
        };
        let mut reserved = again(reserved);
        let last = Gpa((2 << 20) - 8);
        for at in [STACK, last] {
            put(&ram, at, rip.0);
            assert_eq!(reclaim(&mut reserved, &ram, &[]), freed, "a frame with {offset}");
            put(&ram, at, 0);
            reserved = again(reserved);
        }
        assert_eq!(reclaim(&mut reserved, &ram, &[]), 1, "it has returned");
    }
}

#[test]
fn a_word_that_is_no_saved_address_keeps_nothing() {
    let (ram, mut reserved) = mapped();
    let slot = reserved.allocate(SLOT).unwrap();
    reserved.retire(slot);
    // Not aligned, as no frame is; and in the reserved memory, which has no stacks.
    put(&ram, STACK.add(4), reserved.address(slot).0);
    put(&ram, DATA, reserved.address(slot).0);
    assert_eq!(reclaim(&mut reserved, &ram, &[]), 1);
}

#[test]
fn code_that_needs_several_slots_gets_them_in_a_row() {
    let (ram, mut reserved) = mapped();
    let stubs: Vec<Slots> = (0..4).map(|_| reserved.allocate(2 * SLOT + 1).unwrap()).collect();
    assert_eq!(reserved.address(stubs[1]), reserved.address(stubs[0]).add(3 * SLOT as u64));
    let rest = Slots { first: 12, count: SLOTS - 12 };
    assert_eq!(reserved.allocate(rest.count as usize * SLOT), Some(rest));
    assert_eq!(reserved.allocate(1), None);
    // Someone is in the last slot of the second, and may go on to the others.
    [0, 1, 3].into_iter().for_each(|n| reserved.retire(stubs[n]));
    put(&ram, STACK, reserved.address(stubs[1]).0 + 3 * SLOT as u64 - 1);
    assert_eq!(reclaim(&mut reserved, &ram, &[]), 6);
    assert_eq!(reserved.allocate(4 * SLOT), None);
    put(&ram, STACK, 0);
    assert_eq!(reclaim(&mut reserved, &ram, &[]), 3);
    assert_eq!(reserved.allocate(4 * SLOT), Some(Slots { first: 0, count: 4 }));
    assert_eq!(reserved.allocate(2 * SLOT), Some(Slots { first: 4, count: 2 }));
    assert_eq!(reserved.allocate(3 * SLOT), Some(Slots { first: 9, count: 3 }));
    assert_eq!(reserved.allocate(0), None);
}

#[test]
fn ram_is_looked_at_once_in_a_stop_however_many_ask_for_room() {
    let (ram, mut reserved) = mapped();
    let [inside, before, later] = [(); 3].map(|()| reserved.allocate(SLOT).unwrap());
    [inside, before].into_iter().for_each(|slot| reserved.retire(slot));
    let at = reserved.address(inside);
    let (world, looks) = (standing(), std::cell::Cell::new(0));
    let rips = || {
        looks.set(looks.get() + 1);
        vec![at]
    };
    let parked = world.park(|_| {});
    assert_eq!(reserved.reclaim(&parked, &ram, rips).unwrap(), 1);
    // What is given back in the same stop is judged by the same look.
    reserved.retire(later);
    assert_eq!(reserved.reclaim(&parked, &ram, rips).unwrap(), 1);
    assert_eq!(reserved.reclaim(&parked, &ram, rips).unwrap(), 0);
    assert_eq!(looks.get(), 1);
    drop(parked);
    assert_eq!(reserved.reclaim(&world.park(|_| {}), &ram, rips).unwrap(), 0);
    assert_eq!(looks.get(), 2);
    assert_eq!(reclaim(&mut reserved, &ram, &[]), 1, "nobody is inside any more");
}
