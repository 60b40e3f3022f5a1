use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

type TestWorld = World<u8, ()>;

fn world(cpus: usize) -> TestWorld {
    World::new(cpus, 0, Arc::new(EventFd::new(0).unwrap()))
}

/// A vCPU that counts as long as it runs.
fn run(world: &TestWorld, id: usize, count: &AtomicUsize) {
    loop {
        if world.wants_attention() {
            match world.rest(id, VcpuPosition::default()) {
                AfterStop::Run(_) => {}
                AfterStop::End => return world.ended(id),
            }
        }
        count.fetch_add(1, Ordering::Relaxed);
        thread::yield_now();
    }
}

#[test]
fn nothing_runs_while_parked_and_everything_runs_after() {
    let world = world(3);
    let counts = [const { AtomicUsize::new(0) }; 3];
    let read = || counts.each_ref().map(|c| c.load(Ordering::Relaxed));
    thread::scope(|scope| {
        for (id, count) in counts.iter().enumerate() {
            let world = &world;
            scope.spawn(move || run(world, id, count));
        }
        for _ in 0..20 {
            let parked = world.park(|_| {});
            let before = read();
            thread::sleep(Duration::from_millis(1));
            assert_eq!(before, read());
            drop(parked);
            while read().iter().zip(before).any(|(now, before)| *now == before) {
                thread::yield_now();
            }
        }
        world.end(|_| {});
    });
}

#[test]
fn a_held_vcpu_counts_as_parked_and_goes_on_when_released() {
    let world = world(1);
    let request = VcpuRequest { vcpu: 0, cause: (), regs: Regs::default(), system: SystemRegs::default() };
    thread::scope(|scope| {
        let held = scope.spawn(|| match world.hold(request) {
            AfterStop::Run(tables) => Some(*tables),
            AfterStop::End => None,
        });
        drop(world.park(|_| {}));
        assert!(!held.is_finished(), "a stop alone does not release it");
        let parked = world.park(|_| {});
        assert_eq!(world.take_requests().len(), 1);
        world.set_tables(&parked, 7);
        parked.release(0);
        drop(parked);
        assert_eq!(held.join().unwrap(), Some(7));
    });
}

#[test]
fn nobody_goes_on_after_a_stop_in_which_the_world_ended() {
    let world = world(2);
    let count = AtomicUsize::new(0);
    let request = VcpuRequest { vcpu: 0, cause: (), regs: Regs::default(), system: SystemRegs::default() };
    thread::scope(|scope| {
        let held = scope.spawn(|| {
            let next = world.hold(request);
            world.ended(0);
            matches!(next, AfterStop::End)
        });
        scope.spawn(|| run(&world, 1, &count));
        let parked = world.park(|_| {});
        let before = count.load(Ordering::Relaxed);
        parked.release(0);
        parked.end();
        drop(parked);
        // Another stop does not bring it back.
        drop(world.park(|_| {}));
        assert!(held.join().unwrap());
        world.end(|_| {});
        assert_eq!(count.load(Ordering::Relaxed), before);
    });
}

#[test]
fn a_pause_does_not_outlast_an_end_that_came_first() {
    let world = world(1);
    thread::scope(|scope| {
        scope.spawn(|| world.end(|_| {}));
        while !world.wants_attention() {
            thread::yield_now();
        }
        let before = Instant::now();
        assert!(matches!(world.pause(0, Gva(0), Duration::from_secs(60)), AfterStop::End));
        assert!(before.elapsed() < Duration::from_secs(30));
        world.ended(0);
    });
}

#[test]
fn a_vcpu_that_waits_is_known_to_go_on_where_it_is() {
    const HERE: Gva = Gva(0x1000);
    let world = world(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            while let AfterStop::Run(_) = world.pause(0, HERE, Duration::from_millis(1)) {}
            world.ended(0);
        });
        assert_eq!(world.park(|_| {}).rips(), [HERE]);
        world.end(|_| {});
    });
}

#[test]
fn ending_reaches_held_and_parked_vcpus() {
    let world = world(1);
    thread::scope(|scope| {
        scope.spawn(|| match world.pause(0, Gva(0), Duration::from_secs(1)) {
            AfterStop::Run(_) => run(&world, 0, &AtomicUsize::new(0)),
            AfterStop::End => world.ended(0),
        });
        world.end(|_| {});
    });
}

#[test]
fn a_frozen_world_stands_still_between_two_stops() {
    let world = world(2);
    let counts = [const { AtomicUsize::new(0) }; 2];
    let read = || counts.each_ref().map(|c| c.load(Ordering::Relaxed));
    thread::scope(|scope| {
        for (id, count) in counts.iter().enumerate() {
            let world = &world;
            scope.spawn(move || run(world, id, count));
        }
        world.freeze(|_| {});
        let before = read();
        for _ in 0..3 {
            drop(world.park(|_| {}));
            thread::sleep(Duration::from_millis(1));
            assert_eq!(before, read());
        }
        world.thaw();
        while read().iter().zip(before).any(|(now, before)| *now == before) {
            thread::yield_now();
        }
        world.freeze(|_| {});
        world.end(|_| {});
    });
}

#[test]
fn who_waits_is_known_as_long_as_that_takes() {
    let world = world(1);
    let _ = world.pause(0, Gva(0x1000), Duration::from_millis(1));
    assert!(!world.has_waiting());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| world.wait(0, VcpuPosition::default(), Duration::from_secs(60)));
        while !world.has_waiting() {
            thread::yield_now();
        }
        world.freeze(|_| {});
        while world.has_waiting() {
            thread::yield_now();
        }
        world.thaw();
        assert!(matches!(waiting.join(), Ok(AfterStop::Run(_))));
    });
    assert!(!world.has_waiting());
}
