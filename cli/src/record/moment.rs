//! When and where something was.

use std::fmt::{self, Display};
use vmm::events::Event;

/// When an event was, in seconds, and on which CPU: by the guest's own clock, as its messages have it, or else since the
/// guest was started, which is said.
pub(crate) struct Moment {
    pub(crate) nanos: u64,
    pub(crate) guest_nanos: Option<u64>,
    pub(crate) vcpu: usize,
}

impl Moment {
    pub(crate) fn of(event: &Event) -> Self {
        let Event { nanos, guest_nanos, vcpu, .. } = *event;
        Self { nanos, guest_nanos, vcpu }
    }
}

/// When something was, as of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Time {
    pub(crate) nanos: u64,
    pub(crate) guest_nanos: Option<u64>,
}

impl Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nanos, guest_nanos, vcpu } = *self;
        write!(f, "{} cpu{vcpu}", Time { nanos, guest_nanos })
    }
}

impl Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nanos, guest_nanos } = *self;
        let host = if guest_nanos.is_none() { " host" } else { "" };
        let nanos = guest_nanos.unwrap_or(nanos);
        let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        write!(f, "[{seconds:5}.{nanos:09}{host}]")
    }
}
