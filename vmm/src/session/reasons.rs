//! Why a probe cannot stand, and why one that stands is on a trap and not on a detour.

use crate::events::RING;
use crate::probe::NoDetour;
use crate::reserved::ReservedError;
use crate::text::PatchError;
use probe_engine::addr::Gva;
use probe_engine::detour::moved::NotMovable;
use probe_engine::detour::stub::NoStub;
use probe_engine::insn::copy::OutOfReach;
use probe_engine::insn::decode::BoundaryError;
use probe_engine::insn::plan::Refusal;
use probe_engine::linux::branches::UnknownReturn;
use probe_engine::memory::NoMemory;
use std::io;
use std::sync::Arc;

/// Text that cannot be changed.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(super) enum TextError {
    #[error("the text at {0} is not mapped")]
    NotMapped(Gva),
    #[error(transparent)]
    Patch(#[from] PatchError),
}

/// Code of ours has no place in the guest.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum NoSpace {
    #[error("the kernel has not started")]
    NotStarted,
    #[error(transparent)]
    Reserved(#[from] ReservedError),
    #[error("there is no room for more of our code")]
    Full,
    /// The host does not tell which memory was touched.
    #[error(transparent)]
    Untold(Arc<io::Error>),
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// No trap can stand there.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum NoTrap {
    #[error("more than {RING} probes stand here")]
    TooMany,
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("its instruction runs from a copy, and this kernel's faults cannot be followed")]
    FaultsUnseen,
    #[error(transparent)]
    OutOfReach(#[from] OutOfReach),
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
}

/// The instructions at a place cannot be relocated for a jump.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum NoRelocation {
    #[error("this kernel's faults in code elsewhere cannot be followed")]
    FaultsUnseen,
    /// Modules are not scanned for what leads where.
    #[error("what leads to the instructions behind it is not known")]
    TargetsUnknown,
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    NotMovable(#[from] NotMovable),
    #[error("a task is inside the instructions that would be moved: it is tried again")]
    Occupied,
    #[error("another probe stands inside the instructions that would be moved")]
    Shared,
}

/// Code of ours cannot return, or jump, as the guest does.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum NoReturn {
    #[error("the kernel has not started")]
    NotStarted,
    #[error(transparent)]
    Unknown(#[from] UnknownReturn),
    #[error(transparent)]
    NoStub(#[from] NoStub),
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// A probe stands on a trap, and not on a detour.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum OnTrap {
    #[error("detours are switched off")]
    SwitchedOff,
    #[error("this kernel does not say how a CPU finds its number and its task")]
    CpuUnknown,
    #[error("a trap of our own stands here")]
    Internal,
    /// A detour that ends where it begins never ends.
    #[error("detours themselves return or jump by the guest's thunks here")]
    Thunk,
    #[error("the guest's ftrace has wanted the entry")]
    MovedForFtrace,
    #[error("another probe at this place needs a trap")]
    Neighbour,
    #[error("no instance was left to follow a call of it")]
    InstancesExhausted,
    #[error(transparent)]
    Unsuited(#[from] NoDetour),
    #[error("it reads memory, and this kernel has no functions for that which survive a fault")]
    NoFaultFree,
    #[error("it reads memory, and a probe stands in the guest's functions that would do so")]
    ReadersProbed,
    #[error("it follows calls to their return, and {0}")]
    CallsUnfollowed(#[source] NoReturn),
    #[error("a return would be moved, and {0}")]
    ReturnUnmoved(#[source] NoReturn),
    #[error(transparent)]
    NoRelocation(#[from] NoRelocation),
    #[error("it has no room")]
    NotLookedAt,
    #[error("the guest has written there")]
    Written,
    #[error("the guest has changed the nop of its ftrace")]
    NopChanged,
    #[error("the guest has changed the instructions that would be moved")]
    TextChanged,
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    NoStub(#[from] NoStub),
    #[error(transparent)]
    OutOfReach(#[from] OutOfReach),
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
}

/// Memory that is to be watched is not mapped.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the memory at {0} is not mapped")]
pub(super) struct NotMapped(pub(super) Gva);

/// What a probe is told that no detour can serve, and nothing else will do.
pub(super) fn refusal(reason: impl std::fmt::Display) -> String {
    format!("no detour can serve it: {reason}")
}
