//! A function of this program that does nothing, and is a tracepoint of its own: `PATH:workload:called`. Its first instruction is that
//! tracepoint's, so that its calls and its returns can be probed by one place, also where the program has no symbols.
#![expect(unsafe_code, reason = "the function is written in assembly, where its first instruction is known")]

use std::arch::global_asm;

// As systemtap's `sys/sdt.h` has it, version 3: a nop, and a note of where that is.
global_asm!(
    ".globl workload_called",
    ".type workload_called, @function",
    "workload_called:",
    "990: nop",
    "ret",
    ".size workload_called, . - workload_called",
    ".pushsection .note.stapsdt, \"\", \"note\"",
    ".balign 4",
    ".4byte 992f - 991f, 994f - 993f, 3",
    "991: .asciz \"stapsdt\"",
    "992: .balign 4",
    "993: .8byte 990b, 0, 0",
    ".asciz \"workload\", \"called\", \"8@%rdi\"",
    "994: .balign 4",
    ".popsection",
);

unsafe extern "C" {
    fn workload_called(number: u64);
}

/// Calls it so often.
pub(crate) fn called(times: u32) {
    for number in 0..times {
        // SAFETY: it does nothing.
        unsafe { workload_called(number.into()) };
    }
}
