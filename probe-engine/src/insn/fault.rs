//! Faults of emulated instructions.

use crate::addr::Gva;
use crate::paging::PageFault;

/// What the guest's own CPU would have met at the instruction, or what the host cannot do for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EmulationFault {
    /// The guest's page tables do not allow the access: #PF, or #GP(0) for an address that is not canonical.
    #[error(transparent)]
    Page(#[from] PageFault),
    /// An access through RSP or RBP to an address that is not canonical: #SS(0).
    #[error("stack access to {0}, which is not canonical")]
    Stack(Gva),
    /// A branch to an address that is not canonical: #GP(0).
    #[error("branch to {0}, which is not canonical")]
    BranchTarget(Gva),
    /// The guest may access the address, but what is there is no RAM: a device, which the host cannot stand in
    /// for.
    #[error("no RAM behind {0}")]
    NotRam(Gva),
}
