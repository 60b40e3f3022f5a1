//! Who called: the stack of a vCPU at a hit, walked by its own thread.

use crate::kernel_view::KernelView;
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::linux::mappings::{LONGEST_PATH, Mapping};
use probe_engine::linux::unwind::{Code, Cut, End, Frame, Ours, UserEnd, UserWalk, Walk};
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;

/// How many frames of the kernel are looked for where nothing else is said.
pub const FRAMES: usize = 64;
/// And at most.
pub const MOST_FRAMES: usize = 256;
/// How many frames of a process are looked for.
pub const USER_FRAMES: usize = 32;
/// How many files are told that frames of a process are in.
pub const MOST_FILES: usize = 8;
/// Bytes of a path in one piece.
const PATH_PIECE: usize = 32;
/// Most pieces of one stack.
pub(crate) const MOST_PIECES: usize =
    MOST_FRAMES + USER_FRAMES + 2 + MOST_FILES * (1 + LONGEST_PATH / PATH_PIECE);

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
    /// What the process has mapped where frames are, where these are files.
    pub files: Vec<MappedFile>,
    /// How they end.
    pub end: UserEnd,
}

/// A part of a file that a process has in its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedFile {
    /// Where it is, and which part.
    pub mapping: Mapping,
    /// Its path in the guest: any bytes but NUL.
    pub path: Vec<u8>,
}

/// Where frame number `n` of a process, which is `at`, was called: what is behind a call may be another function's, or nobody's.
fn called_at(n: usize, at: Gva) -> Gva {
    Gva(at.0.saturating_sub(u64::from(n > 0)))
}

impl UserStack {
    /// The file that frame number `n` is in, and where in it that was called, if that is known: before the first byte that is behind
    /// the call.
    #[must_use]
    pub fn place(&self, n: usize) -> Option<(&MappedFile, u64)> {
        let at = called_at(n, *self.frames.get(n)?);
        self.files.iter().find_map(|file| Some((file, file.mapping.offset_of(at)?)))
    }
}

/// What knows of return addresses that are not the caller's own.
pub(crate) trait Callers {
    /// What `at` stands for: a trampoline for the caller behind it, a copy for its original.
    fn real(&self, at: Gva, ram: &GuestRam) -> Option<Gva>;
    /// The registers behind the detour in which a task is with `regs`, if it is in one.
    fn behind(&self, regs: &Regs, memory: &VirtMemory<'_, GuestRam>) -> Option<Regs>;
}

/// What a walk gives, one after the other.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece {
    Frame(Frame),
    End(End),
    User(Gva),
    UserEnd(UserEnd),
    /// Its path follows.
    File(Mapping),
    /// A part of a path; NULs are none.
    Path([u8; PATH_PIECE]),
}

/// Whose stack is walked.
#[derive(Clone, Copy)]
pub(crate) struct Walked<'a> {
    pub(crate) view: &'a KernelView,
    pub(crate) callers: &'a dyn Callers,
    pub(crate) memory: &'a VirtMemory<'a, GuestRam>,
    pub(crate) regs: &'a Regs,
    /// The task (its `task_struct`), if it is known.
    pub(crate) task: Option<Gva>,
}

/// What of ours a walk of a stack comes by.
struct OnStack<'a> {
    callers: &'a dyn Callers,
    memory: &'a VirtMemory<'a, GuestRam>,
}

impl Ours for OnStack<'_> {
    fn real(&self, _: Gva, value: Gva) -> Option<Gva> {
        self.callers.real(value, self.memory.phys)
    }

    fn behind(&self, regs: &Regs) -> Option<Regs> {
        self.callers.behind(regs, self.memory)
    }
}

/// Walks a stack, for at most `most` frames of the kernel. Gives nothing where the kernel's tables are not known.
pub(crate) fn walk(walked: Walked<'_>, most: usize, mut put: impl FnMut(Piece)) {
    let Walked { view, callers, memory, regs, .. } = walked;
    let behind = callers.behind(regs, memory);
    let regs = behind.as_ref().unwrap_or(regs);
    let Some(kernel) = &view.unwind else { return };
    let code = Code { kernel, slide: view.slide, modules: &view.modules };
    let mut frames = Walk::new(code, memory, regs, most.min(MOST_FRAMES), OnStack { callers, memory });
    frames.by_ref().for_each(|frame| put(Piece::Frame(frame)));
    let Some(end) = frames.end() else { return };
    put(Piece::End(end));
    if let End::User(regs) = end {
        let back = |slot, word| view.uretprobes?.back(memory, walked.task?, slot, word);
        let mut frames = UserWalk::new(memory, regs, USER_FRAMES, back);
        let mut files = Files { walked, told: [None; MOST_FILES] };
        for (n, at) in frames.by_ref().enumerate() {
            put(Piece::User(at));
            files.tell(called_at(n, at), &mut put);
        }
        if let Some(end) = frames.end() {
            put(Piece::UserEnd(end));
        }
    }
}

/// Tells the files that the frames of a process are in.
struct Files<'a> {
    walked: Walked<'a>,
    told: [Option<Mapping>; MOST_FILES],
}

impl Files<'_> {
    fn tell(&mut self, at: Gva, put: &mut impl FnMut(Piece)) {
        let Walked { view, memory, task, .. } = self.walked;
        let (Some(layout), Some(task)) = (view.mappings, task) else { return };
        let is_there = |told: &Mapping| told.offset_of(at).is_some();
        if self.told.iter().flatten().any(is_there) {
            return;
        }
        let Some(room) = self.told.iter_mut().find(|told| told.is_none()) else { return };
        let Some((mapping, path)) = layout.mapping(memory, task, at) else { return };
        put(Piece::File(mapping));
        for part in path.bytes().chunks(PATH_PIECE) {
            let mut piece = [0; PATH_PIECE];
            piece.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            put(Piece::Path(piece));
        }
        *room = Some(mapping);
    }
}

impl Stack {
    /// The stack that these are the pieces of; `None` where there is none.
    pub(crate) fn of(pieces: impl Iterator<Item = Piece>) -> Option<Self> {
        let mut pieces = pieces.peekable();
        pieces.peek()?;
        let mut stack = Self { frames: Vec::new(), end: End::Cut(Cut::Full), user: None };
        let mut user = UserStack { frames: Vec::new(), files: Vec::new(), end: UserEnd::Full };
        for piece in pieces {
            match piece {
                Piece::Frame(frame) => stack.frames.push(frame),
                Piece::End(end) => stack.end = end,
                Piece::User(at) => user.frames.push(at),
                Piece::UserEnd(end) => user.end = end,
                Piece::File(mapping) => user.files.push(MappedFile { mapping, path: Vec::new() }),
                Piece::Path(part) => {
                    let Some(file) = user.files.last_mut() else { continue };
                    file.path.extend(part.into_iter().filter(|byte| *byte != 0));
                }
            }
        }
        stack.user = matches!(stack.end, End::User(_)).then_some(user);
        Some(stack)
    }

    /// See [`walk`].
    pub(crate) fn of_walk(walked: Walked<'_>, most: usize) -> Option<Self> {
        let mut pieces = Vec::new();
        walk(walked, most, |piece| pieces.push(piece));
        Self::of(pieces.into_iter())
    }
}
