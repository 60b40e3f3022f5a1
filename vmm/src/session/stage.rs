//! How far the kernel has come, told by hardware breakpoints, until its text can be patched.
//!
//! Under KASLR nobody outside knows where the kernel will be. The decompressor copies itself away and jumps there
//! (first stop: RAX says where), unpacks the kernel and jumps to it (second stop: RAX is its physical address,
//! and the relocated `relative_base` in its kallsyms is its virtual one). Two stops follow in the kernel itself:
//! at [`EARLY`], when ftrace has made its nops and before the kernel tests its own breakpoint handling, and at
//! [`LATE`], when alternatives are applied and the boot processor is about to become the idle task.

use crate::kvm::Breakpoints;
use crate::memory::GuestRam;
use crate::world::Request;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::linux::bzimage::KernelJumps;
use probe_engine::linux::kernel::Kernel;
use probe_engine::memory::PhysMemory;

/// Sites that are final once ftrace has made its nops are armed here.
pub(super) const EARLY: &str = "arch_cpu_finalize_init";
/// Everything else is armed here.
pub(super) const LATE: &str = "rest_init";

/// Where the running kernel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelMap {
    /// What KASLR added to all link-time virtual addresses.
    slide: u64,
    /// The link-time address of `_text`, and where it lies physically.
    text: (Gva, Gpa),
}

impl KernelMap {
    /// A kernel whose `text` symbol, linked at `.0`, lies at physical `.1`, virtually moved by `slide`.
    fn new(text: (Gva, Gpa), slide: u64) -> Self {
        Self { slide, text }
    }

    /// The address at which the guest uses what was linked at `link`.
    pub(super) fn gva(&self, link: Gva) -> Gva {
        link.add(self.slide)
    }

    /// Where in guest-physical memory lies what was linked at `link`: the kernel's image is contiguous.
    pub(super) fn gpa(&self, link: Gva) -> Gpa {
        let (linked, physical) = self.text;
        physical.add(link.0.wrapping_sub(linked.0))
    }
}

/// What the session waits for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// The decompressor's jump to its own copy.
    Decompressor { load: Gpa, jumps: KernelJumps },
    /// Its jump to the kernel.
    Handover { jump: Gva },
    /// The kernel's own milestones.
    Kernel(KernelMap),
    /// Nothing any more.
    Running(KernelMap),
}

/// What a stop at a stage's breakpoint means.
pub(super) enum Reached {
    /// The decompressor went a step on.
    Decompressor,
    /// The kernel starts; it is known where it is.
    Kernel,
    /// [`EARLY`].
    Early(KernelMap),
    /// [`LATE`].
    Late(KernelMap),
}

/// The way to the kernel was lost.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// Only a symbol table without this name can cause it.
    #[error("the kernel has no symbol {0}, by which its boot is followed")]
    NoSymbol(&'static str),
    /// The decompressor of this bzImage is not built like those that are known.
    #[error("the decompressor of this bzImage has no jump that could be followed: its kernel cannot be probed")]
    NoJumps,
    /// RAX at the last jump, or `relative_base` behind it, is not what a kernel would have there.
    #[error("the decompressed kernel is not where its decompressor jumps to")]
    Lost,
}

impl Stage {
    /// The first stage: of a bzImage loaded at `load`, or of an ELF kernel, which runs where it was linked.
    pub(super) fn first(kernel: &Kernel, load: Gpa) -> Result<Self, StageError> {
        match kernel.jumps() {
            Some(jumps) => Ok(Self::Decompressor { load, jumps }),
            None if kernel.is_compressed() => Err(StageError::NoJumps),
            None => Ok(Self::Kernel(KernelMap::new((kernel.text_base(), kernel.text_load()), 0))),
        }
    }

    /// The hardware breakpoints that this stage needs.
    pub(super) fn breakpoints(&self, kernel: &Kernel) -> Result<Vec<Gva>, StageError> {
        let milestone = |map: &KernelMap, name| {
            kernel.symbol(name).map(|link| map.gva(link)).ok_or(StageError::NoSymbol(name))
        };
        Ok(match self {
            Self::Decompressor { load, jumps } => vec![Gva(load.0).add(jumps.relocation)],
            Self::Handover { jump } => vec![*jump],
            Self::Kernel(map) => {
                let late = milestone(map, LATE)?;
                // Kernels before 6.1.39 have no such function; all sites are then armed late.
                milestone(map, EARLY).into_iter().chain([late]).collect()
            }
            Self::Running(_) => Vec::new(),
        })
    }

    /// Moves on at the breakpoint of `request`; `None` when it is not one of this stage.
    pub(super) fn reach(
        &mut self,
        request: &Request,
        at: Gva,
        kernel: &Kernel,
        ram: &GuestRam,
    ) -> Result<Option<Reached>, StageError> {
        let is = |map: &KernelMap, name| kernel.symbol(name).is_some_and(|link| map.gva(link) == at);
        let (next, reached) = match *self {
            Self::Decompressor { jumps, .. } => {
                let copy = Gva(request.regs.rax).offset(-i64::from(jumps.target));
                (Self::Handover { jump: copy.add(jumps.handover) }, Reached::Decompressor)
            }
            Self::Handover { .. } => {
                (Self::Kernel(locate(kernel, Gpa(request.regs.rax), ram)?), Reached::Kernel)
            }
            Self::Kernel(map) if is(&map, LATE) => (Self::Running(map), Reached::Late(map)),
            Self::Kernel(map) if is(&map, EARLY) => (Self::Kernel(map), Reached::Early(map)),
            Self::Kernel(_) | Self::Running(_) => return Ok(None),
        };
        *self = next;
        Ok(Some(reached))
    }

    /// Whether all sites are armed that can be.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Running(_))
    }
}

/// Finds the kernel whose entry point is at physical `entry`.
fn locate(kernel: &Kernel, entry: Gpa, ram: &GuestRam) -> Result<KernelMap, StageError> {
    // The entry's place in the image is the same everywhere.
    let text = (kernel.text_base(), kernel.text_load().add(entry.0.wrapping_sub(kernel.entry().0)));
    let unmoved = KernelMap::new(text, 0);
    let mut base = [0; 8];
    ram.read(unmoved.gpa(kernel.relative_base_at()), &mut base).map_err(|_| StageError::Lost)?;
    let slide = u64::from_le_bytes(base).wrapping_sub(kernel.relative_base().0);
    // The kernel's virtual window is 1 GiB, and it moves in steps of its alignment (2 MiB at least).
    if slide >= 1 << 30 || slide % (2 << 20) != 0 {
        return Err(StageError::Lost);
    }
    Ok(KernelMap::new(text, slide))
}

/// `stage` in the first registers, the guest's `int3` handler (where one is watched) in the last.
pub(super) fn breakpoints(stage: &[Gva], int3_handler: Option<Gva>) -> Breakpoints {
    let mut all = Breakpoints::at(stage);
    if let Some(last) = all.0.last_mut() {
        *last = int3_handler;
    }
    all
}
