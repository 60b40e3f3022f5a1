//! Code of ours in a guest whose returns and indirect jumps go through thunks: both run, as often as they have to, and
//! nothing is disturbed.

use probe_engine::addr::Gva;
use probe_engine::detour::layout;
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::detour::ring::counter;
use probe_engine::detour::stub::{Guest, Stub};
use probe_engine::detour::work::Work;
use probe_engine::insn::copy::{self, JUMP};
use probe_engine::linux::branches::Branches;
use probe_engine::probe::plan::{ProbePlan, Trigger};
use tests::code::{CODE, DATA, code, dump_registers, ending, mov, stack};
use tests::detour::{divert, follow_calls, guest};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::reserved;

/// How often each thunk ran, and the registers in the end.
const RETURNED: Gva = Gva(DATA.0 + 0x400);
const JUMPED: Gva = Gva(DATA.0 + 0x408);
const AFTER: Gva = Gva(DATA.0 + 0x500);
/// The function that is probed, and one behind whose probe there is only a return.
const FUNCTION: Gva = Gva(0x4_1000);
const EMPTY: Gva = Gva(0x4_2000);
const RETURNS: Gva = Gva(0x4_3000);
const JUMPS: Gva = Gva(0x4_3100);

const RET: [u8; 1] = [0xc3];

/// Counts at `count`, and leaves the flags in disorder.
fn count_up(count: Gva) -> Vec<u8> {
    // inc qword [count]
    code(&[&[0x48, 0xff, 0x04, 0x25], &(count.0 as u32).to_le_bytes()])
}

/// `call` over an `int3`; `mov [rsp], rax; ret`
const RETPOLINE: [u8; 11] = [0xe8, 1, 0, 0, 0, 0xcc, 0x48, 0x89, 0x04, 0x24, 0xc3];

/// `call function`, from `from`.
fn call(from: Gva, function: Gva) -> Vec<u8> {
    let [_, distance @ ..] = copy::jump(from, function).unwrap();
    code(&[&[0xe8], &distance])
}

/// Two calls of one function whose returns are followed, and one of another that only returns, with these thunks.
/// Returns how often each ran.
fn run(branches: Branches) -> Option<[u64; 2]> {
    let fit = fit()?;
    let rig = Rig::new(fit);
    let registers = (0..16).filter(|n| *n != 4).map(|n| (n, 0x1111_0000 + u64::from(n)));
    let loads: Vec<u8> = registers.clone().flat_map(|(n, value)| mov(n, value)).collect();
    rig.write(RETURNS, &code(&[&count_up(RETURNED), &RET]));
    rig.write(JUMPS, &code(&[&count_up(JUMPED), &RETPOLINE]));
    let work = |probe, hits| [Work::of(probe, &ProbePlan::new(hits)).unwrap()];
    let (mut to_returns, mut to_count) = ([0; JUMP], [0; JUMP]);
    let ram = rig.reserve(&(CODE..CODE.add(1)), |reserved, ram| {
        let guest = Guest { branches, ..guest(&rig, reserved, None) };
        to_returns = divert(&guest, FUNCTION, &work(0, Trigger::Return { max_active: None }), reserved, ram);
        follow_calls(&guest, reserved, ram);
        let back = EMPTY.add(JUMP as u64);
        let (next, works) = (RelocatedCode::single(&RET, back).unwrap(), work(1, Trigger::Pass));
        let slots = reserved.allocate(Stub::most_bytes(&works)).unwrap();
        let entry = reserved.address(slots);
        let stub = Stub::assemble(&guest, entry, EMPTY, Some(&next), &works).unwrap();
        reserved.write(ram, slots, &stub.code).unwrap();
        to_count = copy::jump(EMPTY, entry).unwrap();
    });
    rig.write(FUNCTION, &code(&[&to_returns, &RET]));
    rig.write(EMPTY, &code(&[&to_count, &[0x0f, 0x0b]]));
    let mut program = loads;
    for function in [FUNCTION, FUNCTION, EMPTY] {
        program.extend(call(CODE.add(program.len() as u64), function));
    }
    rig.write(CODE, &ending(&[&program, &dump_registers(AFTER)]));
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    for (n, value) in registers {
        assert_eq!(left.u64(AFTER.add(8 * u64::from(n))), value, "register {n}");
    }
    assert_eq!(left.u64(AFTER.add(8 * 4)), stack(0).0, "the stack");
    let hits = [0, 1].map(|probe| counter(&*ram, reserved::DATA, layout::HITS, probe));
    assert_eq!(hits, [2, 1]);
    Some([left.u64(RETURNED), left.u64(JUMPED)])
}

#[test]
fn a_detour_returns_and_jumps_by_the_guests_thunks() {
    let cases = [
        (None, None, [0, 0]),
        (Some(RETURNS), None, [3, 0]),
        (None, Some(JUMPS), [0, 2]),
        (Some(RETURNS), Some(JUMPS), [3, 2]),
    ];
    for (ret, jump, expected) in cases {
        let Some(ran) = run(Branches { ret, jump }) else { return };
        assert_eq!(ran, expected, "{ret:?} {jump:?}");
    }
}
