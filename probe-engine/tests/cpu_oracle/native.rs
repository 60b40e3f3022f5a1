//! The instruction on the CPU that runs the test.
#![allow(unsafe_code, reason = "runs generated machine code, which is what the test is about")]

use probe_engine::regs::Regs;

/// Offsets in the mapping: code, saved state, and the page that memory operands point into.
pub(crate) const CODE: usize = 0;
/// Where the instruction itself lies, so that branches reach both landing pads with 8 bits.
pub(crate) const SITE: usize = 0x200;
/// Room for a copy, among the nops that lead to the instruction.
pub(crate) const SLOT_BEFORE_SITE: usize = 0x1c0;
pub(crate) const LANDED: usize = 0x230;
pub(crate) const STATE: usize = 0x1000;
pub(crate) const SCRATCH: usize = 0x2000;
pub(crate) const SIZE: usize = 0x3000;
/// The part of the scratch page that operands touch.
pub(crate) const WINDOW: usize = 0x400;

/// Slots of the saved state.
pub(crate) const RFLAGS: usize = STATE + 16 * 8;
pub(crate) const RIP: usize = STATE + 17 * 8;
pub(crate) const HOST_RSP: usize = STATE + 18 * 8;

/// The mapping that the native side runs in.
pub(crate) struct Native {
    base: *mut u8,
}

impl Native {
    pub(crate) fn new() -> Self {
        // SAFETY: a fresh anonymous mapping, at no address of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "no executable mapping");
        let native = Self { base: base.cast() };
        // SAFETY: user code does not use GS on this ABI, so its base is free to be set.
        let set = unsafe { libc::syscall(libc::SYS_arch_prctl, 0x1001, native.at(SCRATCH)) };
        assert_eq!(set, 0, "arch_prctl(ARCH_SET_GS)");
        native
    }

    pub(crate) fn at(&self, offset: usize) -> u64 {
        self.base as u64 + offset as u64
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= SIZE);
        // SAFETY: inside the mapping, which only this thread uses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) };
    }

    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(offset + bytes.len() <= SIZE);
        // SAFETY: inside the mapping, which only this thread uses.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(offset), bytes.as_mut_ptr(), bytes.len()) };
    }

    pub(crate) fn write_u64(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    pub(crate) fn read_u64(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// `mov register, [absolute]` (0x8b) or `mov [absolute], register` (0x89).
    pub(crate) fn mov(&self, code: &mut Vec<u8>, opcode: u8, register: u8, offset: usize) {
        code.extend([0x48 | (register >> 3) << 2, opcode, 0x04 | (register & 7) << 3, 0x25]);
        code.extend((self.at(offset) as u32).to_le_bytes());
    }

    /// Lays out the code around `instruction`.
    pub(crate) fn assemble(&self, instruction: &[u8]) {
        let absolute = |offset: usize| (self.at(offset) as u32).to_le_bytes();
        let mut before = vec![0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x9c];
        self.mov(&mut before, 0x89, 4, HOST_RSP);
        before.extend([0xff, 0x34, 0x25]); // push [RFLAGS]
        before.extend(absolute(RFLAGS));
        before.push(0x9d); // popfq
        for register in 0..16 {
            self.mov(&mut before, 0x8b, register, STATE + 8 * usize::from(register));
        }
        before.resize(SITE - CODE, 0x90);
        before.extend(instruction);
        self.write(CODE, &before);

        // Both ways out note where they were reached, and go on to the common end.
        let end = LANDED + 0x30;
        for (offset, reached) in [(SITE + instruction.len(), SITE + instruction.len()), (LANDED, LANDED)] {
            let mut pad = vec![0x48, 0xc7, 0x04, 0x25]; // mov [RIP], reached
            pad.extend(absolute(RIP));
            pad.extend(absolute(reached));
            pad.push(0xe9); // jmp end
            pad.extend((end as i32 - (offset + 17) as i32).to_le_bytes());
            assert!(offset + pad.len() <= LANDED || offset >= LANDED);
            self.write(offset, &pad);
        }
        let mut after = vec![];
        for register in 0..16 {
            self.mov(&mut after, 0x89, register, STATE + 8 * usize::from(register));
        }
        self.mov(&mut after, 0x8b, 4, HOST_RSP);
        after.extend([0x9c, 0x8f, 0x04, 0x25]); // pushfq; pop [RFLAGS]
        after.extend(absolute(RFLAGS));
        after.extend([0x9d, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
        self.write(end, &after);
    }

    /// Runs the assembled instruction on `regs`.
    pub(crate) fn run(&self, regs: &Regs) -> Regs {
        for (index, value) in to_array(regs).into_iter().enumerate() {
            self.write_u64(STATE + 8 * index, value);
        }
        self.write_u64(RFLAGS, regs.rflags);
        // SAFETY: the code keeps the C ABI's registers, its own stack pointer and the flags, and the tested
        // instruction touches only the scratch page and goes to one of the two landing pads.
        unsafe {
            let code: extern "C" fn() = std::mem::transmute(self.base.add(CODE));
            code();
        }
        let mut after = from_array(std::array::from_fn(|index| self.read_u64(STATE + 8 * index)));
        after.rip = self.read_u64(RIP);
        after.rflags = self.read_u64(RFLAGS);
        after
    }
}

/// In the order of their numbers.
pub(crate) fn to_array(r: &Regs) -> [u64; 16] {
    [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
        r.r14, r.r15,
    ]
}

pub(crate) fn from_array(a: [u64; 16]) -> Regs {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = a;
    Regs { rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15, rip: 0, rflags: 0 }
}
