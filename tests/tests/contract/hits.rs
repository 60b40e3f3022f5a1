//! A hit changes nothing for the guest, and each is counted.

use probe_engine::addr::Gva;
use probe_engine::probe::table::ProbeId;
use tests::code::{CODE, DATA, dump_registers, ending, mov, repeat, stack};
use tests::host::fit;
use tests::rig::{Left, Rig, Start};
use vmm::guest::Host;

const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Where one case keeps its stack and leaves its registers.
struct Place {
    stack: Gva,
    dump: Gva,
}

fn place(case: usize) -> Place {
    const DUMPS: Gva = Gva(0x2_2000);
    let case = case as u64;
    Place { stack: stack(0).offset(-0x100 * (case as i64 + 1)), dump: DUMPS.add(case * 0x100) }
}

/// Every register with a value of its own. RSP and RDI point to memory.
fn prologue(stack: Gva) -> Vec<u8> {
    const RSP: u8 = 4;
    const RDI: u8 = 7;
    let value = |r: u8| match r {
        RSP => stack.0,
        RDI => DATA.0,
        _ => 0x1111_2222_0000_0000 * u64::from(r % 8) + 0x0102_0304 * u64::from(r),
    };
    (0..16).flat_map(|r| mov(r, value(r))).collect()
}

/// Runs each of `instructions` between a prologue and a dump of the registers. Returns what each left.
fn run(fit: &'static Host, instructions: &[&[u8]], probed: bool) -> (Vec<Vec<u8>>, Left) {
    const REGISTERS: usize = 17 * 8;
    const RSP: u64 = 4;
    let mut rig = Rig::new(fit);
    rig.write(DATA, &0x8899_aabb_ccdd_eeff_u64.to_le_bytes());
    let mut code = Vec::new();
    let mut sites = Vec::new();
    for (case, instruction) in instructions.iter().enumerate() {
        let Place { stack, dump } = place(case);
        code.extend(prologue(stack));
        sites.push(CODE.add(code.len() as u64));
        code.extend(*instruction);
        // Where a `ret` goes.
        rig.write(stack, &CODE.add(code.len() as u64).0.to_le_bytes());
        code.extend(dump_registers(dump));
    }
    rig.write(CODE, &ending(&[&code]));
    for (probe, site) in (0..).zip(sites).filter(|_| probed) {
        rig.arm(site, &[probe]);
    }
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    let state = |case| {
        let Place { stack, dump } = place(case);
        // Only what was pushed is the instruction's: below that was the frame of a reflected breakpoint.
        let pushed = left.u64(dump.add(RSP * 8)) == stack.offset(-8).0;
        let mut state = left.bytes(dump, REGISTERS);
        state.extend(left.bytes(if pushed { stack.offset(-8) } else { stack }, 8));
        state
    };
    ((0..instructions.len()).map(state).collect(), left)
}

#[test]
fn a_probed_instruction_leaves_what_the_cpu_would_have_left() {
    let Some(fit) = fit() else { return };
    let cases: [(&str, &[u8]); 15] = [
        ("push rbp", &[0x55]),
        ("push r12", &[0x41, 0x54]),
        ("nop", &[0x90]),
        ("nop of ftrace", &FTRACE_NOP),
        ("endbr64", &[0xf3, 0x0f, 0x1e, 0xfa]),
        ("mov rbp, rsp", &[0x48, 0x89, 0xe5]),
        ("mov rax, [rdi]", &[0x48, 0x8b, 0x07]),
        ("mov [rdi+8], rsi", &[0x48, 0x89, 0x77, 0x08]),
        ("sub rsp, 32", &[0x48, 0x83, 0xec, 0x20]),
        ("lea rax, [rdi+rsi*4+8]", &[0x48, 0x8d, 0x44, 0xb7, 0x08]),
        ("xor eax, eax", &[0x31, 0xc0]),
        ("cmp rdi, rsi", &[0x48, 0x39, 0xf7]),
        // These go over a `ud2`.
        ("call", &[0xe8, 2, 0, 0, 0, 0x0f, 0x0b]),
        ("jmp", &[0xeb, 2, 0x0f, 0x0b]),
        ("ret", &[0xc3, 0x0f, 0x0b]),
    ];
    let instructions = cases.map(|(_, instruction)| instruction);
    let (expected, unprobed) = run(fit, &instructions, false);
    let (found, probed) = run(fit, &instructions, true);
    for (case, (name, _)) in cases.iter().enumerate() {
        assert_eq!(found[case], expected[case], "{name}");
        assert_eq!((unprobed.counts[case], probed.counts[case]), (0, 1), "{name}");
    }
    assert_eq!(probed.bytes(DATA, 64), unprobed.bytes(DATA, 64));
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
            assert_eq!(hit.argument(0), Some(PASSES - pass));
        }
        assert_eq!(pair[0].nanos, pair[1].nanos);
    }
    assert!(left.hits.is_sorted_by_key(|hit| hit.nanos));
}
