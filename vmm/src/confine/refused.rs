//! The end of a process that made a system call which is on no list.
#![allow(unsafe_code, reason = "a signal handler reads what the kernel says of the signal")]

use crate::terminal;
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use std::fmt::{self, Write};
use vmm_sys_util::errno;
use vmm_sys_util::signal::register_signal_handler;

/// What a run ends with that says nothing about the guest.
const EXIT_CODE: c_int = 125;

/// From now on a refused system call ends this process by [`end`].
pub(super) fn report() -> Result<(), errno::Error> {
    register_signal_handler(libc::SIGSYS, refused)
}

extern "C" fn refused(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the handler is registered with SA_SIGINFO, so that the kernel gives it a `ucontext_t` of the moment, which
    // stays until the handler returns.
    let registers = unsafe { context.cast::<ucontext_t>().as_ref() }.map(|context| context.uc_mcontext.gregs);
    // The call's number (signal(7), SYS_SECCOMP: the registers are those of the call).
    let number = registers.and_then(|registers| registers.get(libc::REG_RAX as usize).copied());
    let mut name = [0_u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes, with the zero at their end.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = name.split(|byte| *byte == 0).next().and_then(|name| str::from_utf8(name).ok());
    let (name, number) = (name.unwrap_or_default(), number.unwrap_or(-1));
    end(format_args!(
        "the thread `{name}` made system call {number}, which it has no need of: either the guest has got into this program, \
         or this is a defect of it, so please report this line"
    ));
}

/// Says so and ends this process, from a signal handler as from anywhere else: nothing is allocated or locked. The terminal is
/// left as it was found.
pub(super) fn end(words: fmt::Arguments<'_>) -> ! {
    terminal::restore();
    let mut line = Line { bytes: [0; 512], length: 0 };
    // What does not fit is cut.
    let _ = writeln!(line, "vmm: {words}");
    let text = line.bytes.get(..line.length).unwrap_or_default();
    // SAFETY: `text` is as long as it says, and `_exit` runs nothing of this process.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        libc::_exit(EXIT_CODE)
    }
}

/// A line that is put together in place.
struct Line {
    bytes: [u8; 512],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..).unwrap_or_default();
        let count = room.len().min(text.len());
        room.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        self.length += count;
        Ok(())
    }
}
