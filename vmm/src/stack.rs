//! Who called: the stack of a vCPU at a hit, walked by its own thread.

use crate::kernel_view::KernelView;
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::linux::unwind::{Code, Cut, End, Frame, UserEnd, UserWalk, Walk};
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;

/// How many frames of the kernel are looked for where nothing else is said.
pub const FRAMES: usize = 64;
/// And at most.
pub const MOST_FRAMES: usize = 256;
/// How many frames of a process are looked for.
pub const USER_FRAMES: usize = 32;
/// Most pieces of one stack.
pub(crate) const MOST_PIECES: usize = MOST_FRAMES + USER_FRAMES + 2;

/// The stack at a hit, the innermost frame first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// The kernel's frames. The first is where the guest was: at a return, where the function returned to. Where a call
    /// is followed by a return probe, its real caller is shown. There are none where user code was hit.
    pub frames: Vec<Frame>,
    /// How they end.
    pub end: End,
    /// The frames of the process, where it entered the kernel from user mode.
    pub user: Option<UserStack>,
}

/// The stack of a process, found by its frame pointers, as far as it keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserStack {
    /// Where it was (GVA), and return addresses.
    pub frames: Vec<Gva>,
    /// How they end.
    pub end: UserEnd,
}

/// What knows of return addresses that are not the caller's own.
pub(crate) trait Callers {
    /// What `at` stands for: a trampoline for the caller behind it, a copy for its original.
    fn real(&self, at: Gva, ram: &GuestRam) -> Option<Gva>;
}

/// What a walk gives, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece {
    Frame(Frame),
    End(End),
    User(Gva),
    UserEnd(UserEnd),
}

/// Walks the stack from `regs`, for at most `most` frames of the kernel. Gives nothing where the kernel's tables are not
/// known.
pub(crate) fn walk(
    (view, callers): (&KernelView, &dyn Callers),
    memory: &VirtMemory<'_, GuestRam>,
    regs: &Regs,
    most: usize,
    mut put: impl FnMut(Piece),
) {
    let Some(kernel) = &view.unwind else { return };
    let code = Code { kernel, slide: view.slide, modules: &view.modules };
    let real = |_, value| callers.real(value, memory.phys);
    let mut frames = Walk::new(code, memory, regs, most.min(MOST_FRAMES), real);
    frames.by_ref().for_each(|frame| put(Piece::Frame(frame)));
    let Some(end) = frames.end() else { return };
    put(Piece::End(end));
    if let End::User(regs) = end {
        let mut frames = UserWalk::new(memory, regs, USER_FRAMES);
        frames.by_ref().for_each(|at| put(Piece::User(at)));
        if let Some(end) = frames.end() {
            put(Piece::UserEnd(end));
        }
    }
}

impl Stack {
    /// The stack that these are the pieces of; `None` where there is none.
    pub(crate) fn of(pieces: impl Iterator<Item = Piece>) -> Option<Self> {
        let mut pieces = pieces.peekable();
        pieces.peek()?;
        let mut stack = Self { frames: Vec::new(), end: End::Cut(Cut::Full), user: None };
        let mut user = UserStack { frames: Vec::new(), end: UserEnd::Full };
        for piece in pieces {
            match piece {
                Piece::Frame(frame) => stack.frames.push(frame),
                Piece::End(end) => stack.end = end,
                Piece::User(at) => user.frames.push(at),
                Piece::UserEnd(end) => user.end = end,
            }
        }
        stack.user = matches!(stack.end, End::User(_)).then_some(user);
        Some(stack)
    }

    /// The stack at `regs`; see [`walk`].
    pub(crate) fn at(
        known: (&KernelView, &dyn Callers),
        memory: &VirtMemory<'_, GuestRam>,
        regs: &Regs,
        most: usize,
    ) -> Option<Self> {
        let mut pieces = Vec::new();
        walk(known, memory, regs, most, |piece| pieces.push(piece));
        Self::of(pieces.into_iter())
    }
}
