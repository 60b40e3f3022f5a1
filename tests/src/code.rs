//! The instructions of micro guests, as bytes.

use probe_engine::addr::Gva;
use vmm::selftest::micro::{FREE, power_off};

/// Where a guest's code starts.
pub const CODE: Gva = FREE;
/// Where [`counting_handler`] goes.
pub const HANDLER: Gva = Gva(0x1_8000);
/// How often that handler ran, u64.
pub const COUNT: Gva = Gva(0x2_0000);
/// The return address that it last saw, u64.
pub const LAST_RIP: Gva = Gva(0x2_0008);
/// Where [`unexpected`] goes.
pub const UNEXPECTED: Gva = Gva(0x1_a000);
/// What it leaves: the vector, then six words of the exception's frame.
pub const REPORT: Gva = Gva(0x2_0100);
/// Room for data.
pub const DATA: Gva = Gva(0x2_1000);

/// The top of vCPU `id`'s stack.
pub fn stack(id: u64) -> Gva {
    Gva(0x8_0000 + id * 0x1_0000)
}

/// Joins pieces of code.
pub fn code(pieces: &[&[u8]]) -> Vec<u8> {
    pieces.concat()
}

/// `code`, then the end of the guest.
pub fn ending(pieces: &[&[u8]]) -> Vec<u8> {
    [code(pieces), power_off()].concat()
}

/// `mov r, imm64` for register number `r` in the order of the instruction set.
pub fn mov(r: u8, value: u64) -> Vec<u8> {
    let mut code = vec![0x48 | r >> 3, 0xb8 | (r & 7)];
    code.extend(value.to_le_bytes());
    code
}

/// `mov [at], r`
pub fn store(at: Gva, r: u8) -> Vec<u8> {
    let mut code = vec![0x48 | (r >> 3) << 2, 0x89, 0x04 | (r & 7) << 3, 0x25];
    code.extend((at.0 as u32).to_le_bytes());
    code
}

/// Stores all sixteen registers and RFLAGS at `at`, eight bytes each. Spoils RAX, and the stack below RSP.
pub fn dump_registers(at: Gva) -> Vec<u8> {
    const PUSHFQ_POP_RAX: [u8; 2] = [0x9c, 0x58];
    let mut code: Vec<u8> = (0..16).flat_map(|r| store(at.add(u64::from(r) * 8), r)).collect();
    code.extend(PUSHFQ_POP_RAX);
    code.extend(store(at.add(16 * 8), 0));
    code
}

/// A handler for an exception without error code: notes the return address, counts, returns.
pub fn counting_handler() -> Vec<u8> {
    const PUSH_RAX_LOAD_RIP: [u8; 6] = [0x50, 0x48, 0x8b, 0x44, 0x24, 0x08];
    const POP_RAX: [u8; 1] = [0x58];
    const IRETQ: [u8; 2] = [0x48, 0xcf];
    /// `inc qword [COUNT]`
    const COUNT_UP: [u8; 8] = [0x48, 0xff, 0x04, 0x25, 0x00, 0x00, 0x02, 0x00];
    code(&[&PUSH_RAX_LOAD_RIP, &store(LAST_RIP, 0), &COUNT_UP, &POP_RAX, &IRETQ])
}

/// `dec edi; jnz` back over `body` bytes of code before it.
pub fn repeat(body: usize) -> [u8; 4] {
    let back = -(body as i64 + 4);
    [0xff, 0xcf, 0x75, i8::try_from(back).expect("a short loop") as u8]
}

/// One entry of [`ENTRY`] bytes for each exception vector: notes the vector and the frame, and resets the machine.
pub fn unexpected() -> Vec<u8> {
    const POP_RAX: u8 = 0x58;
    /// `mov al, 0xfe; out 0x64, al`
    const RESET: [u8; 4] = [0xb0, 0xfe, 0xe6, 0x64];
    let mut code = Vec::new();
    for vector in 0..VECTORS {
        let to_common = u32::from(VECTORS - vector) * ENTRY as u32 - 7;
        code.extend([0x6a, vector, 0xe9]); // push vector; jmp
        code.extend(to_common.to_le_bytes());
        code.push(0x90);
    }
    for word in 0..7 {
        code.push(POP_RAX);
        code.extend(store(REPORT.add(word * 8), 0));
    }
    code.extend(RESET);
    code
}

/// How many exception vectors there are.
pub const VECTORS: u8 = 32;
/// Bytes of an entry of [`unexpected`].
pub const ENTRY: u64 = 8;
