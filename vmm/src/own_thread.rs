//! Which threads are a session's own: what runs on them must not wait for the session.

use std::cell::Cell;

thread_local! {
    /// Whether this thread is one of a session's own.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// As long as there is one, its thread is a vCPU's or the control thread: what runs on it must not wait for a command.
pub(crate) struct OwnThread(());

impl OwnThread {
    pub(crate) fn enter() -> Self {
        IS_OWN.set(true);
        Self(())
    }
}

/// Whether the caller's thread is one.
pub(crate) fn is_own_thread() -> bool {
    IS_OWN.get()
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        IS_OWN.set(false);
    }
}
