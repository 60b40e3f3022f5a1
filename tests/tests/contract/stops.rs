//! The world stops and goes on, and nothing is lost on the way.

use probe_engine::addr::Gva;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tests::code::{CODE, DATA, code, ending, mov, repeat, stack};
use tests::host::fit;
use tests::rig::{Rig, Running, Start};
use vmm::selftest::micro::DEVICES;

/// A stop that takes longer has waited for something that never comes by itself.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn a_stop_reaches_port_access_halt_and_a_vcpu_that_waits_to_be_started() {
    /// `out 0x80, al; jmp` back
    const PORT_LOOP: [u8; 4] = [0xe6, 0x80, 0xeb, 0xfc];
    /// `hlt; jmp` back, interrupts off
    const HALT: [u8; 3] = [0xf4, 0xeb, 0xfd];
    const SPIN: [u8; 2] = [0xeb, 0xfe];
    let Some(fit) = fit() else { return };
    let rig = Rig::new(fit);
    let place = |id: u64| CODE.add(id * 0x100);
    for (id, code) in (0..).zip([&PORT_LOOP[..], &HALT, &SPIN]) {
        rig.write(place(id), code);
    }
    let start = |id| Start::at(place(id), stack(id));
    let running = rig.run(&[start(0), start(1), start(2), None]);
    for _ in 0..50 {
        let took = running.stop();
        assert!(took < SOON, "{took:?}");
    }
    running.end();
}

#[test]
fn two_vcpus_lose_no_hit_while_a_site_comes_and_goes() {
    const PASSES: u64 = 4000;
    const RDI: u8 = 7;
    /// `xor ebx, ebx; xor esi, esi`
    const CLEAR: [u8; 4] = [0x31, 0xdb, 0x31, 0xf6];
    /// `add rbx, 1`, probed all the time
    const STAYS: [u8; 4] = [0x48, 0x83, 0xc3, 0x01];
    /// `lea rsi, [rsi+1]`, probed now and then
    const COMES_AND_GOES: [u8; 4] = [0x48, 0x8d, 0x76, 0x01];
    /// `push rbx; push rsi`
    const REPORT: [u8; 2] = [0x53, 0x56];
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let prologue = code(&[&mov(RDI, PASSES), &CLEAR]);
    let body = code(&[&STAYS, &COMES_AND_GOES]);
    rig.write(CODE, &ending(&[&prologue, &body, &repeat(body.len()), &REPORT]));
    let stays = CODE.add(prologue.len() as u64);
    let changes = stays.add(STAYS.len() as u64);
    rig.arm(stays, &[0]);
    let mut running = rig.run(&[Start::at(CODE, stack(0)), Start::at(CODE, stack(1))]);
    let mut rounds = 0;
    // The host may have one CPU: it is the guest's turn before the next change.
    let a_few_passes = |running: &Running| {
        let enough = (running.count(0) + 20).min(2 * PASSES);
        let deadline = Instant::now() + SOON;
        while running.count(0) < enough && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    running.until_off(2, |running| {
        running.arm(changes, &[1]);
        a_few_passes(running);
        running.stop();
        a_few_passes(running);
        running.disarm(changes);
        a_few_passes(running);
        rounds += 1;
    });
    let left = running.end();
    assert_eq!(left.counts[0], 2 * PASSES);
    assert_eq!(left.counts[0] + left.counts[1], left.hits.len() as u64, "each counted hit is recorded");
    assert!(rounds > 2 && left.counts[1] > 0, "{rounds} rounds, {} hits", left.counts[1]);
    for vcpu in 0..2 {
        let reported = |word: i64| left.u64(stack(vcpu).offset(-8 * word));
        assert_eq!((reported(1), reported(2)), (PASSES, PASSES), "every instruction took effect once");
        // RDI counts passes down: in each one the first site is hit, then the second if it is armed.
        let mine = left.hits.iter().filter(|hit| hit.vcpu as u64 == vcpu);
        let (mut pass, mut armed, mut flips) = (PASSES + 1, true, 0);
        let mut expected_second = None;
        for hit in mine.map(|hit| (hit.probe.0, hit.argument(0).unwrap())) {
            match hit {
                (0, rdi) => {
                    assert_eq!(rdi, pass - 1);
                    let was_armed = expected_second.is_none();
                    flips += u64::from(was_armed != armed);
                    armed = was_armed;
                    pass = rdi;
                    expected_second = Some(rdi);
                }
                (_, rdi) => assert_eq!(expected_second.take(), Some(rdi)),
            }
        }
        assert_eq!(pass, 1);
        // Between two changes the second site is hit in every pass or in none.
        assert!(flips <= 2 * rounds + 1, "{flips} flips in {rounds} rounds");
    }
}

#[test]
fn a_hit_on_its_way_while_its_site_goes_runs_the_instruction_again() {
    /// So many probes that the ring is full after a few passes.
    const PROBES: u32 = 250;
    const PASSES: u64 = 200;
    const RDI: u8 = 7;
    /// `add rbx, 1`
    const SITE: [u8; 4] = [0x48, 0x83, 0xc3, 0x01];
    /// `xor ebx, ebx`
    const CLEAR: [u8; 2] = [0x31, 0xdb];
    const PUSH_RBX: [u8; 1] = [0x53];
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let prologue = code(&[&mov(RDI, PASSES), &CLEAR]);
    rig.write(CODE, &ending(&[&prologue, &SITE, &repeat(SITE.len()), &PUSH_RBX]));
    let site = CODE.add(prologue.len() as u64);
    let probes: Vec<u32> = (0..PROBES).collect();
    rig.arm(site, &probes);
    let mut running = rig.run(&[Start::at(CODE, stack(0))]);
    // Nobody reads: the vCPU takes hits until the ring is full, and then waits with one in hand.
    while running.waits() == 0 {
        assert_eq!(running.end_within(Duration::from_millis(1)), None);
    }
    running.disarm(site);
    let hits = running.count(0);
    running.until_off(1, |_| {});
    let left = running.end();
    assert!(hits > 10 && hits < PASSES, "{hits} hits before the ring is full");
    assert_eq!(left.counts[0], hits, "the one in hand is none");
    assert_eq!(left.hits.len() as u64, hits * u64::from(PROBES));
    assert_eq!(left.u64(stack(0).offset(-8)), PASSES, "every instruction took effect once");
}

#[test]
fn a_slow_reader_makes_the_vcpu_wait_and_loses_nothing() {
    const PROBES: u32 = 250;
    const PASSES: u64 = 200;
    const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let prologue = mov(7, PASSES);
    rig.write(CODE, &ending(&[&prologue, &FTRACE_NOP, &repeat(FTRACE_NOP.len())]));
    let probes: Vec<u32> = (0..PROBES).collect();
    rig.arm(CODE.add(prologue.len() as u64), &probes);
    let mut running = rig.run(&[Start::at(CODE, stack(0))]);
    while running.waits() < 1 {
        assert_eq!(running.end_within(Duration::from_millis(1)), None);
    }
    // A vCPU that waits can be stopped like any other.
    assert!(running.stop() < SOON);
    running.until_off(1, |_| {});
    let left = running.end();
    assert_eq!(left.hits.len() as u64, PASSES * u64::from(PROBES));
}

#[test]
fn a_load_from_a_device_across_two_pages_is_whole_whenever_the_world_stops() {
    const PASSES: u64 = 3000;
    const RDI: u8 = 7;
    const RDX: u8 = 2;
    const RBX: u8 = 3;
    /// `mov [rdx], rdi; mov rax, [rbx]; inc rax; jz` over `ud2`: a bus without a device reads as all ones. One byte is
    /// read from the first page, seven from the second.
    const BODY: [u8; 13] = [0x48, 0x89, 0x3a, 0x48, 0x8b, 0x03, 0x48, 0xff, 0xc0, 0x74, 0x02, 0x0f, 0x0b];
    let Some(fit) = fit() else { return };
    let rig = Rig::new(fit);
    let prologue = [mov(RDI, PASSES), mov(RDX, DEVICES.0), mov(RBX, DEVICES.0 + 0xfff)].concat();
    rig.write(CODE, &ending(&[&prologue, &BODY, &repeat(BODY.len())]));
    let mut running = rig.run(&[Start::at(CODE, stack(0))]);
    let mut stops = 0;
    running.until_off(1, |running| {
        running.stop();
        stops += 1;
    });
    running.end();
    assert!(stops > 2, "{stops} stops");
}

#[test]
fn a_string_to_the_console_is_whole_whenever_the_world_stops() {
    const LENGTH: u64 = 4000;
    const COM1: u64 = 0x3f8;
    const RCX: u8 = 1;
    const RDX: u8 = 2;
    const RSI: u8 = 6;
    const REP_OUTSB: [u8; 2] = [0xf3, 0x6e];
    let Some(fit) = fit() else { return };
    let printed = Arc::new(AtomicU64::new(0));
    let counter = printed.clone();
    let mut rig = Rig::new(fit);
    rig.console(Counter(counter));
    let prologue = [mov(RCX, LENGTH), mov(RDX, COM1), mov(RSI, DATA.0)].concat();
    rig.write(CODE, &ending(&[&prologue, &REP_OUTSB]));
    let text: Vec<u8> = (0..LENGTH).map(|n| b'a' + (n % 26) as u8).collect();
    rig.write(DATA, &text);
    let mut running = rig.run(&[Start::at(CODE, stack(0))]);
    running.until_off(1, |running| {
        running.stop();
    });
    running.end();
    let sum: u64 = text.iter().map(|byte| u64::from(*byte)).sum();
    assert_eq!(printed.load(Ordering::Relaxed), sum);
}

/// Adds up the bytes that are written to it.
struct Counter(Arc<AtomicU64>);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.fetch_add(bytes.iter().map(|byte| u64::from(*byte)).sum(), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_breakpoint_given_back_survives_a_stop() {
    const PASSES: u64 = 3000;
    const RDI: u8 = 7;
    const INT3: [u8; 1] = [0xcc];
    let Some(fit) = fit() else { return };
    let rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&mov(RDI, PASSES), &INT3, &repeat(INT3.len())]));
    let mut running = rig.run(&[Start::at(CODE, stack(0))]);
    const NOWHERE: Gva = Gva(0x1_5000);
    // New tables set the debug registers anew, which must not drop what is being given back.
    running.until_off(1, |running| {
        running.arm(NOWHERE, &[0]);
        running.disarm(NOWHERE);
    });
    let left = running.end();
    assert_eq!(left.u64(tests::code::COUNT), PASSES);
}
