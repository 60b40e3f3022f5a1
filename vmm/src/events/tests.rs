use super::*;
use crate::clock::Clock;

fn seen(ticks: u64, rip: u64) -> SeenHit {
    let what = What::Hit { args: [0; 6] };
    SeenHit { ticks, probe: ProbeId(0), rip: Gva(rip), what, task: None }
}

#[test]
fn hits_of_all_vcpus_come_out_in_order_of_time() {
    let clock = Clock::start(None);
    let (mut recorders, mut reader) = rings(2);
    for n in 0..10 {
        recorders[n % 2].count(ProbeId(0));
        recorders[n % 2].record(seen(ticks(), n as u64));
    }
    let hits = reader.drain(clock.rate(), &HashMap::new(), &[]).unwrap();
    let order: Vec<u64> = hits.iter().map(|hit| hit.rip.0).collect();
    assert_eq!(order, (0..10).collect::<Vec<_>>());
    assert_eq!(reader.hits(ProbeId(0)), 10);
    assert!(reader.drain(clock.rate(), &HashMap::new(), &[]).is_none());
}

#[test]
fn what_comes_too_early_is_kept_until_its_time() {
    let clock = Clock::start(None);
    let (mut recorders, mut reader) = rings(1);
    let (now, later) = (ticks(), u64::MAX);
    for ticks in [later, now] {
        recorders[0].record(seen(ticks, ticks));
    }
    let mut drain = || reader.drain(clock.rate(), &HashMap::new(), &[]).unwrap();
    assert_eq!(drain().iter().map(|hit| hit.rip).collect::<Vec<_>>(), [Gva(now)]);
    assert!(drain().is_empty(), "it is there, and not yet due");
    assert_eq!(reader.early.len(), 1);
}

#[test]
fn what_says_that_it_comes_later_is_not_kept_without_end() {
    let clock = Clock::start(None);
    let (mut recorders, mut reader) = rings(1);
    let (mut kept, mut read) = (0, 0);
    for _ in 0..100 {
        while recorders[0].has_space(1) {
            recorders[0].record(seen(u64::MAX, 0));
        }
        read += reader.drain(clock.rate(), &HashMap::new(), &[]).unwrap().len();
        kept = kept.max(reader.early.iter().map(Event::bytes).sum());
    }
    assert!(read > 0 && kept <= 80 << 20, "{read} read, {kept} bytes kept");
}

#[test]
fn a_full_ring_says_so_before_a_hit_is_lost() {
    let (mut recorders, mut reader) = rings(1);
    let mut recorded = 0;
    while recorders[0].has_space(2) {
        recorders[0].record(seen(0, 0));
        recorded += 1;
    }
    assert_eq!(recorded, RING - 1);
    let clock = Clock::start(None);
    assert_eq!(reader.drain(clock.rate(), &HashMap::new(), &[]).unwrap().len(), recorded);
    assert!(recorders[0].has_space(2));
}
