//! A command of the user's in the guest.
//!
//! The guest's initramfs has this same program as `/init`, and a [`Plan`]: it loads the drivers that the kernel lacks,
//! mounts the host's folders, and runs the one command that comes in over a port ([`agent`](crate::host::agent)). Here is
//! the other end of that port ([`GuestCommand`]).

mod driver;
mod repeat;

pub use crate::host::agent::{Mount, PLAN, Plan};
pub use driver::{GuestCommand, GuestCommandError, Words};
pub use repeat::{repeat, repeat_in_steps};
