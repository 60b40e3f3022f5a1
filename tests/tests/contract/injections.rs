//! A call that fails is not made, and its caller cannot tell.

use probe_engine::addr::Gva;
use probe_engine::probe::inject::{Inject, InjectionId, Turns};
use tests::code::{CODE, DATA, code, ending, mov, repeat, stack, store};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::probe::Probe;

/// Where the function is.
const FUNCTION: Gva = Gva(CODE.0 + 0x1000);
const CALLS: u64 = 12;
const VALUE: u64 = 1000;
const RAX: u8 = 0;
const RBX: u8 = 3;
const RSP: u8 = 4;
const RSI: u8 = 6;
const RDI: u8 = 7;

/// A function is called, which counts its calls in RSI and returns 1. RBX sums up what it returns.
fn rig() -> Option<Rig> {
    const COUNT: [u8; 3] = [0x48, 0xff, 0xc6];
    const RET: [u8; 1] = [0xc3];
    const ADD_RBX_RAX: [u8; 3] = [0x48, 0x01, 0xc3];
    let rig = Rig::new(fit()?);
    let before = code(&[&mov(RDI, CALLS), &mov(RBX, 0), &mov(RSI, 0)]);
    let call_at = CODE.add(before.len() as u64);
    let distance = FUNCTION.offset_from(call_at.add(5)).unwrap() as u32;
    let body = code(&[&[0xe8], &distance.to_le_bytes(), &ADD_RBX_RAX]);
    let after = code(&[&store(DATA, RBX), &store(DATA.add(8), RSI), &store(DATA.add(16), RSP)]);
    rig.write(CODE, &ending(&[&before, &body, &repeat(body.len()), &after]));
    // The five bytes of ftrace, and others.
    let nop = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    rig.write(FUNCTION, &code(&[&nop, &COUNT, &mov(RAX, 1), &RET]));
    Some(rig)
}

fn failing(turns: Turns) -> Probe {
    let fail = Inject::Fail { injection: InjectionId(0), value: VALUE, turns, under: false };
    Probe::at("").record().injecting(fail).into()
}

/// How often the function ran of which calls fail by `probes`, and how often each probe was hit.
fn ran(probes: Vec<Probe>) -> Option<(u64, Vec<u64>)> {
    let count = probes.len();
    let mut rig = rig()?;
    rig.arm_probes(FUNCTION, probes);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    let ran = left.u64(DATA.add(8));
    assert_eq!(left.u64(DATA), ran + (CALLS - ran) * VALUE);
    assert_eq!(left.u64(DATA.add(16)), stack(0).0);
    Some((ran, left.counts[..count].to_vec()))
}

#[test]
fn a_call_that_fails_is_not_made_and_is_a_hit() {
    let Some(all) = ran(vec![failing(Turns::default())]) else { return };
    assert_eq!(all, (0, vec![CALLS]));
    let turns = Turns { every: 3, after: 2, times: Some(2), seed: None };
    assert_eq!(ran(vec![failing(turns)]).unwrap(), (CALLS - 2, vec![2]));
}

/// Each other probe there is hit as well, before and behind; where two want a call to fail, the first one has it.
#[test]
fn others_at_the_place_are_hit_by_calls_that_fail() {
    let plain = || Probe::at("").record().pre(|_| ()).into();
    let twice = failing(Turns { every: 2, ..Turns::default() });
    let Some(ran) = ran(vec![plain(), twice, failing(Turns::default()), plain()]) else { return };
    assert_eq!(ran, (0, vec![CALLS, CALLS / 2, CALLS / 2, CALLS]));
}

#[test]
fn a_handler_that_redirects_the_guest_has_the_call() {
    let redirect = Probe::at("").record().pre(|hit| hit.skip_function(VALUE).unwrap()).into();
    let Some(ran) = ran(vec![redirect, failing(Turns::default())]) else { return };
    assert_eq!(ran, (0, vec![CALLS, 0]));
}
