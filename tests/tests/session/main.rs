//! The library's promises about probes, on unmodified Debian kernels: each test boots a guest in its own process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests are test code: what goes wrong here is a failed test"
)]

mod changes;
mod commands;
mod faults;
mod handlers;
mod returns;
mod scale;
mod storm;

use probe_engine::addr::Gva;
use std::sync::{Arc, Mutex};
use vmm::probe::Hit;

/// What handlers note down.
struct Notes<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Notes<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Notes<T> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn add(&self, note: T) {
        self.0.lock().unwrap().push(note);
    }

    fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// At the entry of `do_filp_open(dfd, filename, flags)`: the path. `struct filename` begins with its address.
fn path_at_filp_open(hit: &Hit<'_>) -> Vec<u8> {
    let name = hit.memory.read_u64(Gva(hit.regs.rsi)).unwrap();
    hit.string(Gva(name), 256).unwrap()
}

/// At the entry of `do_sys_openat2(dfd, filename, how)`: the path, where it is mapped already.
fn path_at_openat(hit: &Hit<'_>) -> Option<Vec<u8>> {
    hit.string(Gva(hit.regs.rsi), 256).ok()
}
