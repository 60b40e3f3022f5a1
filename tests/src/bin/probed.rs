//! A program whose functions are probed in a guest: `probed ROUNDS` calls each so often, in two processes and a signal handler.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    reason = "its functions are found by their symbols, and one of them is left as `longjmp` leaves one"
)]

use std::arch::{asm, global_asm};
use std::ffi::{CStr, c_char};
use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};

// `probed_leap` returns 7 by `probed_leaped`, which it calls and which never returns itself.
global_asm!(
    ".globl probed_leap",
    ".type probed_leap, @function",
    "probed_leap:",
    "push rbx",
    "mov rbx, rsp",
    "call probed_leaped",
    "ud2",
    ".size probed_leap, .-probed_leap",
    ".globl probed_leaped",
    ".type probed_leaped, @function",
    "probed_leaped:",
    "mov eax, 7",
    "mov rsp, rbx",
    "pop rbx",
    "ret",
    ".size probed_leaped, .-probed_leaped",
);

unsafe extern "C" {
    fn probed_leap() -> u64;
}

/// Not 0 while somebody probes at `counted`.
// SAFETY: nobody else has that section, and no other variable is called so.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".probes")]
static PROBED_COUNTER: AtomicU16 = AtomicU16::new(0);

/// A tracepoint of the program's own, as systemtap's `sys/sdt.h` makes one: a nop, and a note that says where it is.
macro_rules! tracepoint {
    ($nop:literal, $name:literal, $counter:literal, $arguments:literal, $($operands:tt)*) => {
        // SAFETY: it does nothing.
        unsafe {
            asm!(
                concat!("990: ", $nop),
                ".pushsection .note.stapsdt, \"\", \"note\"",
                ".balign 4",
                ".4byte 992f - 991f, 994f - 993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte 0",
                concat!(".8byte ", $counter),
                concat!(".asciz \"probed\", \"", $name, "\", \"", $arguments, "\""),
                "994: .balign 4",
                ".popsection",
                $($operands)*
            );
        }
    };
}

#[inline(never)]
fn mark(number: u64, less: i32, text: &CStr) {
    let numbers = [number, number + 1];
    tracepoint!(
        "nop", "mark", "0", "8@%rdi -4@%esi 8@%rdx 4@(%rcx) 1@%r8b -4@\\044-7 8@8(%rcx)",
        in("rdi") number,
        in("esi") less,
        in("rdx") text.as_ptr(),
        in("rcx") black_box(&numbers),
        in("r8") 0xfff0_u64 + (number & 0xf),
    );
}

/// Two places of one tracepoint.
#[inline(never)]
fn counted(number: u64) {
    if black_box(number) & 1 == 0 {
        tracepoint!("nop", "counted", "PROBED_COUNTER", "8@%rdi", in("rdi") number,);
    } else {
        tracepoint!("nop", "counted", "PROBED_COUNTER", "4@%eax", in("eax") number as u32,);
    }
}

/// A nop of five bytes, which newer kernels make a system call of their own, with an argument in the last bytes of a mapping.
#[inline(never)]
fn fast(number: u32) {
    const PAGE: usize = 4096;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: any place will do for it, and nothing else is there.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, access, kind, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let behind = start.wrapping_byte_add(PAGE);
    // SAFETY: the second page was mapped above, and nobody has it.
    assert_eq!(unsafe { libc::munmap(behind, PAGE) }, 0);
    let last = behind.cast::<u32>().wrapping_sub(1);
    // SAFETY: these are the last bytes of the first page, which was mapped above.
    unsafe { last.write(number) };
    tracepoint!(".byte 0x0f, 0x1f, 0x44, 0, 0", "fast", "0", "4@(%rcx)", in("rcx") last,);
    // SAFETY: the first page was mapped above, and nobody has it any more.
    assert_eq!(unsafe { libc::munmap(start, PAGE) }, 0);
}

// SAFETY: no other function of the program is called so.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn probed_sum(first: u64, second: u32, third: i16) -> u64 {
    black_box(first).wrapping_add(second.into()).wrapping_add_signed(third.into())
}

// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn probed_text(text: *const c_char, words: &[u64; 4]) -> *const c_char {
    let _ = black_box(words);
    black_box(text)
}

// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
#[allow(clippy::too_many_arguments, reason = "some of them are on the stack")]
extern "C" fn probed_many(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, seventh: u64, eighth: u64) -> u64 {
    black_box(a + b + c + d + e + f + seventh * 100 + eighth)
}

// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn probed_nest(depth: u64) -> u64 {
    if depth == 0 { 0 } else { black_box(probed_nest(black_box(depth - 1))) + 1 }
}

// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn probed_signal(signal: i32) {
    black_box(signal);
}

// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn probed_fresh(start: *const c_char) {
    black_box(start);
}

// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn probed_changed(number: u64) -> u64 {
    black_box(number)
}

/// The program's own file, mapped once more: nobody has touched the memory when the function is called with it.
fn fresh() {
    let file = File::open("/proc/self/exe").unwrap();
    // SAFETY: any place will do for it, and nothing else is there.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    probed_fresh(start.cast());
    // SAFETY: it was mapped above, and nobody has it.
    assert_eq!(unsafe { libc::munmap(start, 4096) }, 0);
}

fn calls(rounds: u64) {
    let text = c"a_text_of_the_program";
    for round in 0..rounds {
        assert_eq!(probed_sum(round, 5, -3), round + 2);
        let back = probed_text(text.as_ptr(), &[round, 0x1234, 77, u64::MAX]);
        // SAFETY: it is the text from before.
        assert_eq!(unsafe { CStr::from_ptr(back) }, text);
        assert_eq!(probed_many(1, 2, 3, 4, 5, 6, round, 8), 29 + 100 * round);
        assert_eq!(probed_nest(5), 5);
        mark(round, -(round as i32) - 1, text);
        counted(round);
        fast(round as u32);
        // SAFETY: it calls nothing but itself, and keeps what a function has to keep.
        assert_eq!(unsafe { probed_leap() }, 7);
        fresh();
        // SAFETY: its handler only counts.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    // SAFETY: the handler does nothing that a handler must not do.
    unsafe { libc::signal(libc::SIGUSR1, probed_signal as *const () as libc::sighandler_t) };
    calls(rounds);
    println!("{} and {} are changed", probed_changed(black_box(1)), probed_changed(black_box(2)));
    println!("{} count", PROBED_COUNTER.load(Ordering::Relaxed));
    // SAFETY: there is one thread, and the child calls what the parent does.
    match unsafe { libc::fork() } {
        0 => calls(rounds),
        child => {
            let mut status = 0;
            // SAFETY: the status is written to.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((waited, status), (child, 0));
        }
    }
}
