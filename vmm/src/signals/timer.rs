//! A timer that interrupts a vCPU's KVM_RUN again and again, and how often it has.
//!
//! Each vCPU's thread has its own: the kernel's timer interrupt sends the signal to that thread (SIGEV_THREAD_ID), so that no
//! other thread has to be scheduled in time, on a host with fewer CPUs than vCPUs least of all. Expirations for which no
//! signal was taken yet are counted by the kernel (timer_getoverrun(2)), and come with the next one.
#![allow(unsafe_code, reason = "POSIX timers and what a signal handler is told are libc's")]

use std::io;
use std::marker::PhantomData;
use std::mem;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use vmm_sys_util::signal::SIGRTMIN;

thread_local! {
    /// How often this thread's timer has expired that nobody has [asked](expired) for yet. The handler runs on this thread as well,
    /// between any two instructions.
    static EXPIRED: AtomicU32 = const { AtomicU32::new(0) };
}

/// What the kernel says of a timer's signal (`siginfo_t`, include/uapi/asm-generic/siginfo.h).
#[repr(C)]
struct TimerSignal {
    signo: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    padding: libc::c_int,
    timer: libc::c_int,
    /// Expirations beside this one.
    overrun: libc::c_int,
}

/// The handler of the signal that interrupts a vCPU.
pub(super) extern "C" fn interrupted(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a whole siginfo_t to a handler with SA_SIGINFO, which begins with these fields. Those of a
    // timer are integers, whoever has sent the signal.
    let signal = unsafe { info.cast::<TimerSignal>().as_ref() };
    if let Some(signal) = signal.filter(|signal| signal.code == libc::SI_TIMER) {
        let more = u32::try_from(signal.overrun).unwrap_or(0).saturating_add(1);
        EXPIRED.with(|expired| expired.fetch_add(more, Ordering::Relaxed));
    }
}

/// The timer of the thread that has started it. It stays there.
pub(crate) struct Timer {
    id: libc::timer_t,
    stays: PhantomData<*const ()>,
}

impl Timer {
    /// From now on interrupts this thread after each `period`, by the signal of [`kick`](super::kick).
    ///
    /// # Errors
    /// What the system calls said.
    pub(crate) fn start(period: Duration) -> io::Result<Self> {
        // SAFETY: all-zero is a valid record of this plain type, as of the others below.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = SIGRTMIN();
        // SAFETY: takes nothing from memory.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut id = null_mut();
        // SAFETY: both records outlive the call.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut id) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let timer = Self { id, stays: PhantomData };
        let seconds = libc::time_t::try_from(period.as_secs()).map_err(io::Error::other)?;
        let each = libc::timespec { tv_sec: seconds, tv_nsec: period.subsec_nanos().into() };
        let times = libc::itimerspec { it_interval: each, it_value: each };
        // SAFETY: the timer is ours, and the record outlives the call.
        match unsafe { libc::timer_settime(id, 0, &raw const times, null_mut()) } {
            0 => Ok(timer),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// How often this thread's timer has expired since the last call.
pub(crate) fn expired() -> u32 {
    // Each exit asks, and few find anything.
    EXPIRED.with(|expired| match expired.load(Ordering::Relaxed) {
        0 => 0,
        _ => expired.swap(0, Ordering::Relaxed),
    })
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it was made by `start`, and nobody else has it.
        unsafe { libc::timer_delete(self.id) };
    }
}
