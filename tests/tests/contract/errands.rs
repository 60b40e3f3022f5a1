//! A guest that makes the calls that somebody outside wants, in its own code and on its own stack.

use probe_engine::addr::Gva;
use probe_engine::errand::{CALL_GATE, Call, Code, slot};
use tests::code::{CODE, DATA, code, ending, mov, stack, store};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::errands::{Errands, Next};

const FUNCTION: Gva = Gva(CODE.0 + 0x1000);
const GATE: Code = Code(Gva(CODE.0 + 0x2000));
const CALLS: u64 = 200;
const RBX: u8 = 3;
const RSP: u8 = 4;
const RBP: u8 = 5;
const RDI: u8 = 7;

/// It returns its first argument times two plus its second one, and spoils what a function may spoil.
const DOUBLE: [u8; 12] = [0x48, 0x8d, 0x04, 0x7e, 0x31, 0xff, 0x31, 0xf6, 0x31, 0xc9, 0xf9, 0xc3];

#[test]
fn a_guest_makes_the_calls_that_are_wanted_and_goes_on() {
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let before = code(&[&mov(RBX, 7), &mov(RBP, 8), &mov(RDI, DATA.0 + slot::WORK)]);
    let distance = GATE.0.offset_from(CODE.add(before.len() as u64 + 5)).unwrap() as u32;
    let call = code(&[&[0xe8], &distance.to_le_bytes()]);
    let results = DATA.add(0x100);
    let after =
        [(0, RBX), (8, RBP), (16, RSP)].map(|(at, register)| store(results.add(at), register)).concat();
    rig.write(CODE, &ending(&[&before, &call, &after]));
    rig.write(FUNCTION, &DOUBLE);
    rig.write(GATE.0, &CALL_GATE);
    let errands = Errands::on_their_own(GATE, DATA);
    let mut returned = Vec::new();
    let wanted = errands.want(move |worker| {
        returned.extend(worker.returned);
        let made = returned.len() as u64;
        worker.memory.write(results.add(24), &made.to_le_bytes()).unwrap();
        match made < CALLS {
            true => Next::Call(Call::new(FUNCTION, &[made, 1])),
            false => Next::Done(returned.clone()),
        }
    });
    rig.send(GATE, errands);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    let expected: Vec<u64> = (0..CALLS).map(|n| 2 * n + 1).collect();
    assert_eq!(wanted.unwrap().look(), Some(expected));
    assert_eq!([0, 8, 16, 24].map(|at| left.u64(results.add(at))), [7, 8, stack(0).0, CALLS]);
}
