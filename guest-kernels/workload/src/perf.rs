//! The `perf_event_open` system call. Its attributes are `struct perf_event_attr` of `include/uapi/linux/perf_event.h`, of which
//! the first version is enough.
#![expect(unsafe_code, reason = "a system call that nobody else offers")]

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd, FromRawFd};

use libc::{c_int, c_ulong};

use crate::sys::checked;

/// A counter of this task's passes of a tracepoint with this number in tracefs, of which those count that a filter lets through.
pub(crate) fn count(tracepoint: u64, filter: &CStr) -> io::Result<File> {
    const TRACEPOINT: u32 = 2;
    const DISABLED: u64 = 1;
    const SET_FILTER: c_ulong = 0x4008_2406;
    const ENABLE: c_ulong = 0x2400;
    const THIS_TASK: c_int = 0;
    const ANY_CPU: c_int = -1;
    const NO_GROUP: c_int = -1;
    const CLOSE_ON_EXEC: c_ulong = 8;
    let mut attributes = [0_u64; 8];
    let bytes = size_of_val(&attributes) as u64;
    attributes[0] = bytes << 32 | u64::from(TRACEPOINT);
    attributes[1] = tracepoint;
    // Until it has its filter.
    attributes[5] = DISABLED;
    let at = attributes.as_ptr();
    // SAFETY: the attributes are readable, say their own size, and outlive the call.
    let fd = checked(unsafe {
        libc::syscall(libc::SYS_perf_event_open, at, THIS_TASK, ANY_CPU, NO_GROUP, CLOSE_ON_EXEC)
    })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it. Descriptors fit an int.
    let counter = unsafe { File::from_raw_fd(fd as c_int) };
    // SAFETY: the filter is NUL-terminated and outlives the call.
    checked(unsafe { libc::ioctl(counter.as_raw_fd(), SET_FILTER, filter.as_ptr()) }.into())?;
    // SAFETY: takes no argument from memory.
    checked(unsafe { libc::ioctl(counter.as_raw_fd(), ENABLE, 0) }.into())?;
    Ok(counter)
}

/// What a counter has come to.
pub(crate) fn read(mut counter: &File) -> io::Result<u64> {
    let mut count = [0; 8];
    counter.read_exact(&mut count)?;
    Ok(u64::from_le_bytes(count))
}
