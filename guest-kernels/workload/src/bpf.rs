//! The `bpf` system call. Its attributes are `union bpf_attr` of `include/uapi/linux/bpf.h`, here as 32-bit words; a
//! word that is not named is zero.
#![expect(unsafe_code, reason = "a system call that nobody else offers")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

use libc::{c_int, c_long};

use crate::sys::checked;

const MAP_CREATE: c_int = 0;
const MAP_LOOKUP_ELEM: c_int = 1;
const PROG_LOAD: c_int = 5;
const OBJ_PIN: c_int = 6;
const RAW_TRACEPOINT_OPEN: c_int = 17;
const BTF_LOAD: c_int = 18;
const ENABLE_STATS: c_int = 32;

/// As long as every command's part of the union.
#[derive(Default)]
struct Attributes([u32; 32]);

impl Attributes {
    #[expect(clippy::indexing_slicing, reason = "all offsets are constants of this file")]
    fn word(mut self, at: usize, value: u32) -> Self {
        self.0[at / 4] = value;
        self
    }

    fn fd(self, at: usize, file: &File) -> Self {
        self.word(at, file.as_raw_fd().cast_unsigned())
    }

    /// A pointer to what must outlive the call.
    fn pointer<T>(self, at: usize, to: *const T) -> Self {
        let address = to as u64;
        self.word(at, address as u32).word(at + 4, (address >> 32) as u32)
    }

    fn call(&self, command: c_int) -> io::Result<c_long> {
        // SAFETY: the attributes are readable and of the size that is said; what they point to is kept alive by the
        // functions below until they return. The kernel only reads it, but for the value of an element that is looked up.
        checked(unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), size_of_val(&self.0)) })
    }

    /// As [`Self::call`], for the commands that return a descriptor.
    fn open(&self, command: c_int) -> io::Result<File> {
        let fd = self.call(command)?;
        // SAFETY: the kernel has just made this descriptor, and nobody else knows it. Descriptors fit an int.
        Ok(unsafe { File::from_raw_fd(fd as c_int) })
    }
}

/// Gives types to the kernel, see [`crate::btf`].
pub(crate) fn load_btf(btf: &[u8]) -> io::Result<File> {
    Attributes::default().pointer(0, btf.as_ptr()).word(16, btf.len() as u32).open(BTF_LOAD)
}

/// Makes an array of one element of four bytes, whose key and value have these types.
pub(crate) fn array_map(btf: &File, key: u32, value: u32) -> io::Result<File> {
    array_of_one(4).fd(48, btf).word(52, key).word(56, value).open(MAP_CREATE)
}

/// An array of one element of so many bytes.
fn array_of_one(bytes: u32) -> Attributes {
    const ARRAY: u32 = 2;
    Attributes::default().word(0, ARRAY).word(4, 4).word(8, bytes).word(12, 1)
}

/// Gives an object a name in a mounted file system of the kind `bpf`.
pub(crate) fn pin(object: &File, path: &CStr) -> io::Result<()> {
    Attributes::default().pointer(0, path.as_ptr()).fd(8, object).call(OBJ_PIN).map(drop)
}

/// Loads a program that does nothing, for the entry of the kernel's function with this number in its BTF.
pub(crate) fn fentry_program(function: u32) -> io::Result<File> {
    const TRACING: u32 = 26;
    const TRACE_FENTRY: u32 = 24;
    const RETURN_0: [u64; 2] = [0xb7, 0x95]; // r0 = 0; exit
    program(TRACING, &RETURN_0).word(68, TRACE_FENTRY).word(108, function).open(PROG_LOAD)
}

/// A program of a kind, with these instructions.
fn program(kind: u32, code: &[u64]) -> Attributes {
    let code = Attributes::default().word(0, kind).word(4, code.len() as u32).pointer(8, code.as_ptr());
    code.pointer(16, c"GPL".as_ptr())
}

/// Makes an array of one counter.
pub(crate) fn counter() -> io::Result<File> {
    array_of_one(8).open(MAP_CREATE)
}

/// What a [`counter`] has come to.
pub(crate) fn read(counter: &File) -> io::Result<u64> {
    let (key, mut value) = (0_u32, 0_u64);
    let at = Attributes::default().fd(0, counter).pointer(8, &raw const key).pointer(16, &raw mut value);
    at.call(MAP_LOOKUP_ELEM)?;
    Ok(value)
}

/// Loads a program for a raw tracepoint, which adds to a [`counter`] when the tracepoint's second argument is this number, in this process.
pub(crate) fn counting_program(counter: &File, number: u32, process: u32) -> io::Result<File> {
    const RAW_TRACEPOINT: u32 = 17;
    /// An instruction (Documentation/bpf/standardization/instruction-set.rst).
    const fn code(opcode: u8, registers: u8, offset: i16, immediate: u32) -> u64 {
        (immediate as u64) << 32
            | (offset.cast_unsigned() as u64) << 16
            | (registers as u64) << 8
            | opcode as u64
    }
    let counter = counter.as_raw_fd().cast_unsigned();
    let adds = [
        code(0x79, 0x12, 8, 0),             // r2 = the second argument
        code(0x55, 0x02, 12, number),       // if r2 != number, return
        code(0x85, 0, 0, 14),               // r0 = bpf_get_current_pid_tgid()
        code(0x77, 0x00, 0, 32),            // r0 >>= 32
        code(0x55, 0x00, 9, process),       // if r0 != process, return
        code(0x62, 0x0a, -4, 0),            // the key, below r10
        code(0xbf, 0xa2, 0, 0),             // r2 = r10
        code(0x07, 0x02, 0, -4_i32 as u32), // r2 += -4
        code(0x18, 0x11, 0, counter),       // r1 = the map
        code(0, 0, 0, 0),
        code(0x85, 0, 0, 1),    // r0 = bpf_map_lookup_elem(r1, r2)
        code(0x15, 0x00, 2, 0), // if r0 == 0, return
        code(0xb7, 0x01, 0, 1), // r1 = 1
        code(0xdb, 0x10, 0, 0), // *r0 += r1, locked
        code(0xb7, 0x00, 0, 0), // return 0
        code(0x95, 0, 0, 0),
    ];
    program(RAW_TRACEPOINT, &adds).open(PROG_LOAD)
}

/// Attaches a program to a tracepoint, until the result is dropped.
pub(crate) fn attach_to(program: &File, tracepoint: &CStr) -> io::Result<File> {
    Attributes::default().pointer(0, tracepoint.as_ptr()).fd(8, program).open(RAW_TRACEPOINT_OPEN)
}

/// Attaches a program where it was loaded for, until the result is dropped.
pub(crate) fn attach(program: &File) -> io::Result<File> {
    Attributes::default().fd(8, program).open(RAW_TRACEPOINT_OPEN)
}

/// Has the kernel count the runs of programs, until the result is dropped.
pub(crate) fn count_runs() -> io::Result<File> {
    Attributes::default().open(ENABLE_STATS)
}
