//! Where vCPUs leave what handlers want from the control thread.

use crate::probe::HandlerRequest;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use vmm_sys_util::eventfd::EventFd;

/// The vCPUs' end.
#[derive(Clone)]
pub struct Mailbox {
    requests: Sender<HandlerRequest>,
    wake: Arc<EventFd>,
    spent: Spent,
}

/// Whether there are traps that are for nothing, as vCPUs say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spent(Arc<AtomicBool>);

impl Spent {
    /// One has taken its hit.
    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// From now on others are noted.
    pub(crate) fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Mailbox {
    /// A mailbox, and its reader. `wake` is written when there is something to read; `spent` is not read from it.
    pub(crate) fn open(wake: Arc<EventFd>, spent: Spent) -> (Self, Receiver<HandlerRequest>) {
        let (requests, received) = mpsc::channel();
        (Self { requests, wake, spent }, received)
    }

    /// A mailbox without a reader: requests are dropped.
    ///
    /// # Errors
    /// The host is out of descriptors.
    pub fn unattended() -> io::Result<Self> {
        let wake = Arc::new(EventFd::new(libc::EFD_NONBLOCK)?);
        Ok(Self::open(wake, Spent::default()).0)
    }

    pub(super) fn deliver(&self, request: HandlerRequest) {
        if let HandlerRequest::Spent = request {
            return self.spent.note();
        }
        // Without a receiver the guest has ended, and so has what is asked for.
        let _ = self.requests.send(request);
        // A full counter wakes as well.
        let _ = self.wake.write(1);
    }
}
