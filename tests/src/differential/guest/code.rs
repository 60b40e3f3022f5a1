//! What the guest itself runs: the loop that loads one start after the other, and the handler of all exceptions.

use super::{
    BOTH, CODE, FS_BASE, FX, FX_AT, GS_BASE, HALF, PAGE, VARIABLES, WINDOW, WINDOW_AT, high, stack_top,
};
use crate::code::store;
use probe_engine::addr::Gva;

/// The guest's own code, and the address of the handler of each exception vector.
pub(super) fn code() -> (Vec<u8>, Vec<Gva>) {
    const RSP: u8 = 4;
    const RSI: u8 = 6;
    const RDI: u8 = 7;
    const REP_MOVSQ: [u8; 3] = [0xf3, 0x48, 0xa5];
    const OUT_0X80_AL: [u8; 2] = [0xe6, 0x80];
    const JMP_REL32: u8 = 0xe9;
    let variables = high(VARIABLES);
    let (next_start, next_end, left) = (variables, variables.add(8), variables.add(16));
    let (state, registers) = (variables.add(0x100), variables.add(0x200));
    let window = BOTH.middle.offset(-(HALF as i64));
    let mut code = Vec::new();

    // Once: wrmsr IA32_FS_BASE and IA32_GS_BASE.
    for (msr, base) in [(0xc000_0100_u32, FS_BASE), (0xc000_0101, GS_BASE)] {
        code.push(0xb9); // mov ecx
        code.extend(msr.to_le_bytes());
        code.push(0xb8); // mov eax
        code.extend((base as u32).to_le_bytes());
        code.extend([0x31, 0xd2, 0x0f, 0x30]); // xor edx, edx; wrmsr
    }
    code.extend(OUT_0X80_AL);

    let next = code.len();
    // The window and the state of the next start, whose record RSI walks.
    code.extend(load(RSI, next_start));
    code.extend([0x48, 0x0f, 0xae, 0x8e]); // fxrstor64 [rsi + FX_AT]
    code.extend((FX_AT as u32).to_le_bytes());
    code.extend(mov_address(RDI, state));
    code.extend(mov_ecx(18));
    code.extend(REP_MOVSQ);
    code.extend([0x48, 0x81, 0xc6]); // add rsi
    code.extend((WINDOW_AT as u32 - 18 * 8).to_le_bytes());
    code.extend(mov_address(RDI, window));
    code.extend(mov_ecx(WINDOW as u32 / 8));
    code.extend(REP_MOVSQ);
    code.extend(store(next_start, RSI));
    code.extend([0x31, 0xc0, 0x0f, 0x22, 0xd0]); // xor eax, eax; mov cr2, rax
    code.extend(mov_address(RSP, state));
    code.push(0x9d); // popfq
    for register in (0..16).filter(|register| *register != RSP).chain([RSP]) {
        code.extend(load(register, state.add(8 + u64::from(register) * 8)));
    }
    code.extend([0xff, 0x24, 0x25]); // jmp [state + 17 * 8]
    code.extend((state.add(17 * 8).0 as u32).to_le_bytes());

    // Every handler makes the frame one of seven words.
    let mut to_common = Vec::new();
    let mut handlers = Vec::new();
    for vector in 0..32u8 {
        let has_code = matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30);
        handlers.push(high(CODE).add(code.len() as u64));
        if !has_code {
            code.extend([0x6a, 0]); // push 0
        }
        code.extend([0x6a, vector, JMP_REL32, 0, 0, 0, 0]); // push vector
        to_common.push(code.len());
    }
    let common = code.len();
    for end in to_common {
        code[end - 4..end].copy_from_slice(&((common - end) as u32).to_le_bytes());
    }
    for register in 0..16 {
        code.extend(store(registers.add(u64::from(register) * 8), register));
    }
    code.push(0xfc); // cld
    code.extend(load(RDI, next_end));
    for (from, words) in [(registers, 16), (stack_top().offset(-7 * 8), 7)] {
        code.extend(mov_address(RSI, from));
        code.extend(mov_ecx(words));
        code.extend(REP_MOVSQ);
    }
    code.extend([0x0f, 0x20, 0xd0, 0x48, 0xab]); // mov rax, cr2; stosq
    code.extend([0x48, 0x83, 0xc7, (FX_AT - 24 * 8) as u8]); // add rdi
    code.extend([0x48, 0x0f, 0xae, 0x07]); // fxsave64 [rdi]
    code.extend([0x48, 0x81, 0xc7]); // add rdi
    code.extend((FX as u32).to_le_bytes());
    code.extend(mov_address(RSI, window));
    code.extend(mov_ecx(WINDOW as u32 / 8));
    code.extend(REP_MOVSQ);
    code.extend(store(next_end, RDI));
    code.extend([0x48, 0xff, 0x0c, 0x25]); // dec qword [left]
    code.extend((left.0 as u32).to_le_bytes());
    code.extend([0x74, 5]); // jz over the jump
    code.extend(jump_back(code.len(), next));
    code.extend(OUT_0X80_AL);
    code.extend(jump_back(code.len(), next));
    assert!(code.len() as u64 <= 2 * PAGE);
    (code, handlers)
}

/// `jmp` at `from` to `to`, both offsets.
fn jump_back(from: usize, to: usize) -> [u8; 5] {
    let [a, b, c, d] = (to as i32 - (from as i32 + 5)).to_le_bytes();
    [0xe9, a, b, c, d]
}

/// `mov r, [at]`
fn load(r: u8, at: Gva) -> Vec<u8> {
    let mut code = store(at, r);
    code[1] = 0x8b;
    code
}

/// `mov r, at`, one of the lower eight and an address in the upper 2 GiB.
fn mov_address(r: u8, at: Gva) -> Vec<u8> {
    [&[0x48, 0xc7, 0xc0 | r], &(at.0 as u32).to_le_bytes()[..]].concat()
}

fn mov_ecx(value: u32) -> Vec<u8> {
    [&[0xb9], &value.to_le_bytes()[..]].concat()
}
