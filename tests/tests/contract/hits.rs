//! A hit changes nothing for the guest, and each is counted.

use probe_engine::addr::Gva;
use probe_engine::probe::table::ProbeId;
use tests::code::{CODE, DATA, dump_registers, ending, mov, repeat, stack};
use tests::host::{Fit, fit};
use tests::rig::{Left, Rig, Start};

/// Over this, an instruction branches.
const UD2: [u8; 2] = [0x0f, 0x0b];
const NOP: [u8; 1] = [0x90];
const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Every register with a value of its own; what is 0 is no address by accident.
fn prologue() -> Vec<u8> {
    const RSP: u8 = 4;
    let mut code = Vec::new();
    for r in (0..16).filter(|r| *r != RSP) {
        code.extend(mov(r, 0x1111_2222_0000_0000 * u64::from(r % 8) + 0x0102_0304 * u64::from(r)));
    }
    // RDI points to data.
    code.extend(mov(7, DATA.0));
    code
}

/// Runs `instruction` between a prologue and a dump of the registers.
fn run(fit: &'static Fit, instruction: &[u8], probed: bool) -> (Vec<u8>, Left) {
    const DUMP: Gva = Gva(0x2_2000);
    const STACK_BYTES: usize = 64;
    const RSP: u64 = 4;
    let prologue = prologue();
    let at = CODE.add(prologue.len() as u64);
    let behind = at.add(instruction.len() as u64);
    let top = stack(0).offset(-0x100);
    let mut rig = Rig::new(fit);
    rig.write(CODE, &ending(&[&prologue, instruction, &dump_registers(DUMP)]));
    rig.write(DATA, &0x8899_aabb_ccdd_eeff_u64.to_le_bytes());
    // What a `ret` finds, and what a `pop` takes.
    rig.write(top, &behind.0.to_le_bytes());
    if probed {
        rig.arm(at, &[0]);
    }
    let left = rig.run(&[Start::at(CODE, top)]).to_end();
    let mut state = left.bytes(DUMP, 17 * 8);
    // Only what was pushed is the instruction's: below that was the frame of a reflected breakpoint.
    let pushed = left.u64(DUMP.add(RSP * 8)) == top.offset(-8).0;
    state.extend(left.bytes(if pushed { top.offset(-8) } else { top }, STACK_BYTES));
    state.extend(left.bytes(DATA, 64));
    (state, left)
}

#[test]
fn a_probed_instruction_leaves_what_the_cpu_would_have_left() {
    let Some(fit) = fit() else { return };
    let over = |branch: &[u8]| [branch, &UD2].concat();
    let cases: [(&str, Vec<u8>); 15] = [
        ("push rbp", vec![0x55]),
        ("push r12", vec![0x41, 0x54]),
        ("nop", NOP.to_vec()),
        ("nop of ftrace", FTRACE_NOP.to_vec()),
        ("endbr64", vec![0xf3, 0x0f, 0x1e, 0xfa]),
        ("mov rbp, rsp", vec![0x48, 0x89, 0xe5]),
        ("mov rax, [rdi]", vec![0x48, 0x8b, 0x07]),
        ("mov [rdi+8], rsi", vec![0x48, 0x89, 0x77, 0x08]),
        ("sub rsp, 32", vec![0x48, 0x83, 0xec, 0x20]),
        ("lea rax, [rdi+rsi*4+8]", vec![0x48, 0x8d, 0x44, 0xb7, 0x08]),
        ("xor eax, eax", vec![0x31, 0xc0]),
        ("cmp rdi, rsi", vec![0x48, 0x39, 0xf7]),
        ("call", over(&[0xe8, 2, 0, 0, 0])),
        ("jmp", over(&[0xeb, 2])),
        ("ret", over(&[0xc3])),
    ];
    for (name, instruction) in cases {
        let (expected, unprobed) = run(fit, &instruction, false);
        let (found, probed) = run(fit, &instruction, true);
        assert_eq!(found, expected, "{name}");
        assert_eq!((unprobed.counts[0], probed.counts[0]), (0, 1), "{name}");
    }
}

#[test]
fn each_pass_is_one_hit_with_the_arguments_of_its_moment() {
    const PASSES: u64 = 1000;
    let Some(fit) = fit() else { return };
    let mut rig = Rig::new(fit);
    let count = mov(7, PASSES);
    rig.write(CODE, &ending(&[&count, &FTRACE_NOP, &repeat(FTRACE_NOP.len())]));
    let site = CODE.add(count.len() as u64);
    rig.arm(site, &[4, 2]);
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!((left.counts[4], left.counts[2]), (PASSES, PASSES));
    assert_eq!(left.hits.len() as u64, 2 * PASSES);
    for (pass, pair) in (0..PASSES).zip(left.hits.chunks(2)) {
        for (hit, probe) in pair.iter().zip([4, 2]) {
            assert_eq!((hit.probe, hit.rip, hit.vcpu), (ProbeId(probe), site, 0));
            assert_eq!(hit.args[0], PASSES - pass);
        }
        assert_eq!(pair[0].nanos, pair[1].nanos);
    }
    assert!(left.hits.is_sorted_by_key(|hit| hit.nanos));
}
