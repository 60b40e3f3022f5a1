//! How far the kernel has come, told by hardware breakpoints, until its text can be patched.
//!
//! Where the kernel is put in its place from outside, that is known. Its own decompressor chooses the place itself: it copies itself away and jumps there
//! (first stop: RAX says where), unpacks the kernel and jumps to it (second stop: RAX is its physical address,
//! and by how much a pointer in its image has moved says where it is virtually). Three stops follow in the kernel itself:
//! at [`Landmarks::start`], when it runs at its own addresses with an IDT of its own, at [`Landmarks::early`], when ftrace has made its nops and before the kernel tests its own breakpoint handling, and at
//! [`LATE`], when alternatives are applied and the boot processor is about to become the idle task.

use crate::boot::{BootState, KernelPlace};
use crate::kvm::{Breakpoints, DebugRegister};
use crate::memory::GuestRam;
use crate::trap::Int3Handlers;
use crate::vcpu::VcpuRequest;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::linux::boot::Boot;
use probe_engine::linux::bzimage::KernelJumps;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::running::KernelMap;

/// How far the guest's text is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BootPhase {
    /// Nobody knows where it is.
    Unknown,
    /// It runs, and its tables of pages and of interrupts are its own. All of it may still be changed, and it takes away what
    /// its tables of pages have beside its own text.
    Start,
    /// ftrace has made its nops; all else may still be changed.
    Early,
    /// All of it.
    Late,
}

/// What the session waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// The decompressor's jump to its own copy.
    Decompressor { load: Gpa, jumps: KernelJumps },
    /// Its jump to the kernel.
    Handover { jump: Gva },
    /// The kernel's first milestone.
    Entered(KernelMap),
    /// The others.
    Kernel(KernelMap),
    /// Nothing any more.
    Running,
}

/// What a stop at a stage's breakpoint means.
pub(super) enum Reached {
    /// The decompressor went a step on.
    Decompressor,
    /// The kernel starts; it is known where it is.
    Kernel,
    /// [`Landmarks::start`].
    Start(KernelMap),
    /// [`Landmarks::early`].
    Early(KernelMap),
    /// [`Landmarks::late`].
    Late(KernelMap),
}

/// The way to the kernel was lost.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A symbol table without `rest_init`.
    #[error("the kernel has no function rest_init, by which its boot is followed")]
    NoMilestone,
    /// The decompressor of this bzImage is not built like those that are known.
    #[error(
        "the decompressor of this bzImage has no jump that could be followed: its kernel cannot be probed"
    )]
    NoJumps,
    /// RAX at the last jump, or the relocated pointer behind it, is not what a kernel would have there.
    #[error("the decompressed kernel is not where its decompressor jumps to")]
    Lost,
}

impl Stage {
    /// The first stage of a guest that starts with `boot`.
    pub(super) fn first(kernel: &Landmarks, boot: &BootState) -> Result<Self, StageError> {
        match (boot.kernel, &kernel.boot) {
            (Some(KernelPlace { moved, slide }), _) => {
                Ok(Self::entered(kernel, KernelMap::new((kernel.text, kernel.text_load.add(moved)), slide)))
            }
            (None, Boot::Decompressor(jumps)) => Ok(Self::Decompressor { load: boot.load, jumps: *jumps }),
            (None, Boot::Direct { .. } | Boot::Unknown) => Err(StageError::NoJumps),
        }
    }

    /// The stage of a kernel that is about to be entered.
    fn entered(kernel: &Landmarks, map: KernelMap) -> Self {
        if kernel.start.is_some() { Self::Entered(map) } else { Self::Kernel(map) }
    }

    /// The hardware breakpoints that this stage needs.
    pub(super) fn breakpoints(&self, kernel: &Landmarks) -> Result<Vec<Gva>, StageError> {
        Ok(match self {
            Self::Decompressor { load, jumps } => vec![Gva(load.0).add(jumps.relocation_jump)],
            Self::Handover { jump } => vec![*jump],
            Self::Entered(map) => kernel.start.iter().map(|link| map.gva(*link)).collect(),
            Self::Kernel(map) => {
                let late = kernel.late.ok_or(StageError::NoMilestone)?;
                kernel.early.into_iter().chain([late]).map(|link| map.gva(link)).collect()
            }
            Self::Running => Vec::new(),
        })
    }

    /// Moves on at the breakpoint of `request`; `None` when it is not one of this stage.
    pub(super) fn reach(
        &mut self,
        request: &VcpuRequest,
        kernel: &Landmarks,
        ram: &GuestRam,
    ) -> Result<Option<Reached>, StageError> {
        let at = Gva(request.regs.rip);
        let is = |map: &KernelMap, milestone: Option<Gva>| milestone.is_some_and(|link| map.gva(link) == at);
        let (next, reached) = match *self {
            Self::Decompressor { jumps, .. } => {
                let jump = Gva(jumps.entry_jump_at(request.regs.rax).0);
                (Self::Handover { jump }, Reached::Decompressor)
            }
            Self::Handover { .. } => {
                (Self::entered(kernel, locate(kernel, Gpa(request.regs.rax), ram)?), Reached::Kernel)
            }
            Self::Entered(map) if is(&map, kernel.start) => (Self::Kernel(map), Reached::Start(map)),
            Self::Kernel(map) if is(&map, kernel.late) => (Self::Running, Reached::Late(map)),
            Self::Kernel(map) if is(&map, kernel.early) => (Self::Kernel(map), Reached::Early(map)),
            Self::Entered(_) | Self::Kernel(_) | Self::Running => return Ok(None),
        };
        *self = next;
        Ok(Some(reached))
    }

    /// Where the kernel is that is about to start.
    pub(super) fn map(&self) -> Option<KernelMap> {
        match self {
            Self::Entered(map) | Self::Kernel(map) => Some(*map),
            Self::Decompressor { .. } | Self::Handover { .. } | Self::Running => None,
        }
    }

    /// Whether all sites are armed that can be.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Running)
    }
}

/// Finds the kernel whose entry point is at physical `entry`.
fn locate(kernel: &Landmarks, entry: Gpa, ram: &GuestRam) -> Result<KernelMap, StageError> {
    // The entry's place in the image is the same everywhere.
    let text = (kernel.text, kernel.text_load.add(entry.0.wrapping_sub(kernel.entry.0)));
    KernelMap::find(text, kernel.relocated, ram).ok_or(StageError::Lost)
}

/// `stage` in the first registers, the guest's `int3` handlers (where they are watched) in the last.
pub(super) fn breakpoints(stage: &[Gva], int3_handlers: Int3Handlers) -> Breakpoints {
    let mut all = Breakpoints::at(stage);
    for (register, handler) in all.0.iter_mut().rev().zip(int3_handlers.into_iter().flatten()) {
        *register = Some(DebugRegister::execution(handler));
    }
    all
}
