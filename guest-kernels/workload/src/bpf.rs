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
        // functions below until they return, and the kernel only reads it.
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
    const ARRAY: u32 = 2;
    let sizes = Attributes::default().word(0, ARRAY).word(4, 4).word(8, 4).word(12, 1);
    sizes.fd(48, btf).word(52, key).word(56, value).open(MAP_CREATE)
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
    Attributes::default()
        .word(0, TRACING)
        .word(4, RETURN_0.len() as u32)
        .pointer(8, RETURN_0.as_ptr())
        .pointer(16, c"GPL".as_ptr())
        .word(68, TRACE_FENTRY)
        .word(108, function)
        .open(PROG_LOAD)
}

/// Attaches a program where it was loaded for, until the result is dropped.
pub(crate) fn attach(program: &File) -> io::Result<File> {
    Attributes::default().fd(8, program).open(RAW_TRACEPOINT_OPEN)
}

/// Has the kernel count the runs of programs, until the result is dropped.
pub(crate) fn count_runs() -> io::Result<File> {
    Attributes::default().open(ENABLE_STATS)
}
