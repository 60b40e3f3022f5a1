use super::*;
use crate::detour::layout::MOST_CELLS;
use crate::memory::testing::Ram;
use proptest::prelude::*;

const WINDOW: Gpa = Gpa(0);

/// Memory as large as the first ring of many needs.
fn ring() -> (Ram, Ring) {
    let rings = Rings::of(255);
    let ram = Ram::new((rings.offset(0) + rings.stride) as usize);
    (ram, Ring::new(rings, WINDOW, 0))
}

/// As a stub does it: claims and publishes a record of `probe`. False when the ring is full.
fn push(ram: &Ram, ring: &Ring, probe: u32, cells: u64) -> bool {
    let Some(claimed) = claim(ram, ring, cells) else { return false };
    fill(ram, ring, claimed, probe, cells);
    publish(ram, ring, claimed);
    true
}

fn word(ram: &Ram, at: Gpa) -> u64 {
    let mut bytes = [0; 8];
    ram.read(at, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn claim(ram: &Ram, ring: &Ring, cells: u64) -> Option<u64> {
    let (head, tail) = (word(ram, ring.at.add(HEAD)), word(ram, ring.at.add(TAIL)));
    (head + cells - tail <= ring.rings.cells).then(|| {
        ram.write(ring.at.add(HEAD), &(head + cells).to_le_bytes()).unwrap();
        head
    })
}

fn fill(ram: &Ram, ring: &Ring, claimed: u64, probe: u32, cells: u64) {
    let cell = ring.at.add(ring.rings.cell(claimed));
    // Everything looks like the number of a record to come.
    for at in (8..cells * CELL).step_by(8) {
        ram.write(cell.add(at), &sequence(claimed + ring.rings.cells + 1).to_le_bytes()).unwrap();
    }
    ram.write(cell.add(record::PROBE), &layout::head(probe, cells).to_le_bytes()).unwrap();
}

fn publish(ram: &Ram, ring: &Ring, claimed: u64) {
    ram.write(ring.at.add(ring.rings.cell(claimed)), &sequence(claimed).to_le_bytes()).unwrap();
}

fn drain(ram: &Ram, ring: &mut Ring) -> Vec<u32> {
    let mut probes = Vec::new();
    loop {
        let before = probes.len();
        ring.drain(ram, |record| probes.push(record.probe)).unwrap();
        if probes.len() == before {
            return probes;
        }
    }
}

#[test]
fn records_come_out_as_they_were_put_in_over_many_rounds() {
    let (ram, mut ring) = ring();
    let (mut pushed, mut popped) = (Vec::new(), Vec::new());
    for n in 0..5000 {
        let cells = 1 + u64::from(n % 3 == 0);
        if push(&ram, &ring, n, cells) {
            pushed.push(n);
        } else {
            popped.extend(drain(&ram, &mut ring));
        }
    }
    popped.extend(drain(&ram, &mut ring));
    assert!(pushed.len() > 4900 && pushed == popped);
    assert!(!ring.is_broken());
}

#[test]
fn a_full_ring_takes_nothing() {
    let (ram, mut ring) = ring();
    let room = (0..).take_while(|n| push(&ram, &ring, *n, 1)).count();
    assert_eq!(room as u64, ring.rings.cells);
    assert_eq!(drain(&ram, &mut ring).len(), room);
    assert!(push(&ram, &ring, 0, 2));
}

fn occupied(ram: &Ram) -> Occupied {
    Occupied::of(ram, Rings::of(255), WINDOW, 0).unwrap()
}

#[test]
fn a_ring_has_room_again_when_it_has_been_read() {
    let (ram, mut ring) = ring();
    assert_eq!(occupied(&ram), Occupied::Partly);
    while push(&ram, &ring, 0, 1) {}
    assert_eq!(occupied(&ram), Occupied::Full { tail: 0, is_published: true });
    assert_eq!(ring.drain(&ram, |_| ()), Ok(Drained::More));
    assert_eq!(occupied(&ram), Occupied::Partly);
    drain(&ram, &mut ring);
    assert_eq!(ring.drain(&ram, |_| ()), Ok(Drained::All));
}

/// An NMI that finds the ring full between a claim and the publication waits in vain: nothing can be read before it is
/// over.
#[test]
fn a_ring_that_is_full_behind_an_unfinished_record_says_so() {
    let (ram, mut ring) = ring();
    assert!(push(&ram, &ring, 0, 1));
    let claimed = claim(&ram, &ring, 1).unwrap();
    while push(&ram, &ring, 0, 1) {}
    assert_eq!(ring.drain(&ram, |_| ()), Ok(Drained::Unfinished { tail: 1 }));
    assert!(push(&ram, &ring, 0, 1) && !push(&ram, &ring, 0, 1), "one cell has been read");
    assert_eq!(occupied(&ram), Occupied::Full { tail: 1, is_published: false });
    fill(&ram, &ring, claimed, 5, 1);
    publish(&ram, &ring, claimed);
    assert_eq!(occupied(&ram), Occupied::Full { tail: 1, is_published: true });
}

#[test]
fn what_is_claimed_and_not_published_waits() {
    let (ram, mut ring) = ring();
    let outer = claim(&ram, &ring, 1).unwrap();
    // An NMI between the claim and the publication.
    assert!(push(&ram, &ring, 7, 2));
    assert!(drain(&ram, &mut ring).is_empty());
    fill(&ram, &ring, outer, 5, 1);
    publish(&ram, &ring, outer);
    assert_eq!(drain(&ram, &mut ring), [5, 7]);
}

#[test]
fn a_record_that_no_stub_writes_ends_the_ring() {
    for length in [0, MOST_CELLS + 1, 255] {
        let (ram, mut ring) = ring();
        let claimed = claim(&ram, &ring, 1).unwrap();
        fill(&ram, &ring, claimed, 5, 1);
        let cell = ring.at.add(ring.rings.cell(claimed));
        ram.write(cell.add(record::PROBE), &layout::head(5, length).to_le_bytes()).unwrap();
        publish(&ram, &ring, claimed);
        assert!(drain(&ram, &mut ring).is_empty());
        assert!(ring.is_broken(), "{length}");
        assert!(drain(&ram, &mut ring).is_empty());
    }
}

#[test]
fn a_tail_that_the_guest_has_moved_ends_the_ring() {
    let (ram, mut ring) = ring();
    assert!(push(&ram, &ring, 1, 1));
    ram.write(ring.at.add(TAIL), &77u64.to_le_bytes()).unwrap();
    assert_eq!(drain(&ram, &mut ring), [1]);
    assert!(ring.is_broken());
    assert_eq!(ring.drain(&ram, |_| ()), Ok(Drained::Broken));
}

#[test]
fn counters_of_no_probe_are_zero() {
    let (ram, _) = ring();
    ram.write(Gpa(layout::DROPS + 16), &9u64.to_le_bytes()).unwrap();
    assert_eq!(counter(&ram, WINDOW, layout::DROPS, 2), 9);
    assert_eq!(counter(&ram, WINDOW, layout::HITS, 2), 0);
    assert_eq!(counter(&ram, WINDOW, layout::HITS, layout::COUNTERS + 0x10_0000), 0);
    ram.write(WINDOW.add(layout::HITS), &u64::MAX.to_le_bytes()).unwrap();
    let tables = [layout::HITS; 16].map(|table| counter(&ram, WINDOW, table, 0));
    assert!(tables.into_iter().try_fold(0u64, u64::checked_add).is_some());
}

proptest! {
    /// Whatever the guest writes, a reader comes back, and takes no more than a ring can hold.
    #[test]
    fn nonsense_does_no_harm(seed in any::<[u64; 16]>(), sequences in any::<bool>()) {
        let (ram, mut ring) = ring();
        let end = ring.rings.offset(0) + ring.rings.stride;
        for (n, at) in (ring.at.0..end).step_by(8).enumerate() {
            ram.write(Gpa(at), &seed[n % 16].rotate_left(n as u32).to_le_bytes()).unwrap();
        }
        if sequences {
            (0..ring.rings.cells).for_each(|claimed| publish(&ram, &ring, claimed));
        }
        let most = ring.rings.cells;
        let mut records = 0;
        for _ in 0..40 {
            ring.drain(&ram, |_| records += 1).unwrap();
        }
        prop_assert!(records <= most, "{records}");
    }
}
