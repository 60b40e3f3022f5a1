//! Who called: a kernel stack walked by its ORC tables, from outside.
//!
//! The addresses are those that the kernel's own `stack_trace_save_regs` writes (arch/x86/kernel/unwind_orc.c and
//! stacktrace.c): the instruction at which the walk starts, then return addresses as they lie on the stack, and where
//! an interrupt or exception came in between, the address that it came at. Stacks change as the kernel changes them:
//! from the stack of an interrupt or exception the walk goes on where the saved registers, or a saved stack pointer,
//! lead.
//!
//! All that is read on the way is the guest's. A walk ends after the number of frames it is given, and a stack goes up
//! only, by no more than 64 KiB.

use super::orc::{BpBase, Holds, OrcFrame, OrcRow, SpBase};
use super::read::u64_at;
use crate::addr::{Gpa, Gva};
use crate::gate;
use crate::memory::PhysMemory;
use crate::paging::{Access, PageFault};
use crate::regs::Regs;
use crate::virt_memory::VirtMemory;

mod code;
mod user;

pub use code::{Code, KernelCode, ModuleCode};
pub use user::{UserEnd, UserWalk};

/// What page tables map at least.
const PAGE: u64 = 4096;
/// So many bytes of a stack are read at once.
const PIECE: usize = 512;
/// Most bytes of one stack: THREAD_SIZE is 16 KiB, or 32 with KASAN.
const LARGEST_STACK: u64 = 64 << 10;
/// Most changes to another stack: one CPU has six, and a task one.
const MOST_STACKS: u32 = 8;
/// Most code of ours that a stack leads through: the guest may write there what it likes.
const MOST_OF_OURS: u32 = 4;
/// What a frame with a frame pointer looks like: what the kernel takes code for that it has no row for.
const FRAME_POINTER: OrcFrame = OrcFrame {
    holds: Holds::Return,
    sp: SpBase::Bp,
    sp_offset: 16,
    bp: BpBase::PrevSp,
    bp_offset: -16,
    signal: false,
};
/// What a call of a null pointer leaves: a return address at RSP.
const NULL_CALL: OrcFrame = OrcFrame {
    holds: Holds::Return,
    sp: SpBase::Sp,
    sp_offset: 8,
    bp: BpBase::Unchanged,
    bp_offset: 0,
    signal: false,
};

/// One address of a stack trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The address, at run time, as the kernel's own unwinder writes it.
    pub at: Gva,
    /// What it is.
    pub kind: FrameKind,
    /// Whether nothing had to be guessed to find it.
    pub is_reliable: bool,
}

/// What the address of a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// The instruction at which the walk starts.
    Start,
    /// A return address: the instruction behind a call, which may even belong to the next function.
    Return,
    /// The instruction that was about to run, or ran, when an interrupt or exception came.
    Interrupted,
}

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Nobody called the last frame: the bottom of a kernel thread's stack, or an idle task's.
    Bottom,
    /// The kernel was entered from user mode, with these registers.
    User(UserRegs),
    /// The stack goes on, the walk does not.
    Cut(Cut),
}

/// Why a walk ended too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    /// As many frames as were asked for.
    #[error("more frames than asked for")]
    Full,
    /// What should be a return address or an interrupted instruction is none.
    #[error("no code at {0}")]
    NoCode(Gva),
    /// The guest follows a call itself and keeps its return address elsewhere: `kretprobe` or `function_graph`.
    #[error("the guest keeps the real return address, and has {0} in its place")]
    Hooked(Gva),
    /// The kernel's tables know nothing of this code, on purpose.
    #[error("nothing is known of the stack at {0}")]
    Undefined(Gva),
    /// A register is needed that no saved registers have.
    #[error("the stack at {0} is found by a register that is not known")]
    NoRegister(Gva),
    /// What should be the next frame is no place on this stack.
    #[error("the stack pointer goes astray, to {0}")]
    Astray(Gva),
    /// The stack cannot be read.
    #[error("the stack cannot be read")]
    Memory(#[from] PageFault),
}

/// The registers of user code that entered the kernel, as far as a walk of its own stack needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRegs {
    /// RIP.
    pub rip: Gva,
    /// RSP.
    pub rsp: Gva,
    /// RBP.
    pub rbp: Gva,
}

/// A walk over a kernel stack: its frames, and then how it [ended](Self::end).
pub struct Walk<'a, M: PhysMemory + ?Sized, F> {
    code: Code<'a>,
    stack: StackMemory<'a, M>,
    ours: F,
    at: FrameState,
    first: Option<Frame>,
    left: usize,
    end: Option<End>,
}

/// The registers in one frame, as far as they are known.
#[derive(Clone, Copy)]
struct FrameState {
    ip: Gva,
    sp: u64,
    bp: u64,
    saved: Option<Saved>,
    /// Whether `ip` is to run, and not behind a call.
    signal: bool,
    is_reliable: bool,
    /// Where this stack was entered.
    stack: u64,
    /// How many times the stack may still change.
    stacks_left: u32,
    /// How many times it may still lead through code of ours.
    ours_left: u32,
}

/// Registers that only saved ones have.
#[derive(Clone, Copy)]
struct Saved {
    bp: u64,
    r10: u64,
    r13: u64,
    di: u64,
    dx: u64,
    ax: u64,
}

/// What is not the guest's on a stack, or in its code.
pub trait Ours {
    /// What really is where `value` stands at `slot` (GVA) as a return address, or as where an interrupt came.
    fn real(&self, slot: Gva, value: Gva) -> Option<Gva>;

    /// The registers behind code of ours in which a task is with `regs`: RIP, RSP and RBP are known, and of others that which was saved.
    fn behind(&self, regs: &Regs) -> Option<Regs> {
        let _ = regs;
        None
    }
}

impl<F: Fn(Gva, Gva) -> Option<Gva>> Ours for F {
    fn real(&self, slot: Gva, value: Gva) -> Option<Gva> {
        self(slot, value)
    }
}

impl<'a, M: PhysMemory + ?Sized, F: Ours> Walk<'a, M, F> {
    /// A walk from `regs` of at most `most` frames, the instruction at `regs.rip` included. The stack is read through
    /// `memory`, whose page tables have to map the kernel.
    ///
    /// `ours` is asked of every return address.
    #[must_use]
    pub fn new(code: Code<'a>, memory: &'a VirtMemory<'a, M>, regs: &Regs, most: usize, ours: F) -> Self {
        let Regs { rbp: bp, r10, r13, rdi: di, rdx: dx, rax: ax, .. } = *regs;
        let ip = Gva(regs.rip);
        let user = UserRegs { rip: ip, rsp: Gva(regs.rsp), rbp: Gva(bp) };
        let at = FrameState {
            ip,
            sp: regs.rsp,
            bp,
            saved: Some(Saved { bp, r10, r13, di, dx, ax }),
            signal: true,
            is_reliable: true,
            stack: regs.rsp,
            stacks_left: MOST_STACKS,
            ours_left: MOST_OF_OURS,
        };
        // The kernel may have called a null pointer; anything else in the lower half is user code.
        let is_user = ip.0 != 0 && !ip.is_kernels();
        let first = Frame { at: ip, kind: FrameKind::Start, is_reliable: true };
        let (first, end) = if is_user { (None, Some(End::User(user))) } else { (Some(first), None) };
        Self {
            code,
            stack: StackMemory { memory, page: None, piece: (None, [0; PIECE]) },
            ours,
            at,
            first,
            left: most,
            end,
        }
    }

    /// How it ended; `None` while there may be more frames.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Goes to the next frame. What is known of the registers is [`FrameState`]; what is done with it is what
    /// `unwind_next_frame` does, in its order. Where there is no next frame, what is left of the state means nothing.
    fn step(&mut self) -> Result<Frame, End> {
        let Self { code, stack, at, .. } = self;
        let looked_up = if at.signal { at.ip } else { at.ip.offset(-1) };
        let row = match code.find(looked_up, stack.memory) {
            _ if looked_up == Gva(0) => NULL_CALL,
            Some(OrcRow::Frame(row)) => row,
            Some(OrcRow::EndOfStack) => return Err(End::Bottom),
            Some(OrcRow::Undefined) => return Err(End::Cut(Cut::Undefined(at.ip))),
            None => {
                at.is_reliable = false;
                FRAME_POINTER
            }
        };
        let sp = at.previous_sp(&row, stack)?;
        let (before, bp) = (at.sp, at.bp);
        let (slot, is_user) = match row.holds {
            Holds::Return => {
                let slot = sp.wrapping_sub(8);
                at.ip = Gva(stack.word(slot)?);
                at.sp = sp;
                at.saved = None;
                (slot, false)
            }
            Holds::Regs => {
                let regs = stack.words::<{ pt_regs::LEN }>(sp)?;
                let word = |at| u64_at(&regs, at).unwrap_or_default();
                at.ip = Gva(word(pt_regs::IP));
                at.sp = word(pt_regs::SP);
                at.saved = Some(Saved {
                    bp: word(pt_regs::BP),
                    r10: word(pt_regs::R10),
                    r13: word(pt_regs::R13),
                    di: word(pt_regs::DI),
                    dx: word(pt_regs::DX),
                    ax: word(pt_regs::AX),
                });
                (at.sp.wrapping_sub(8), word(pt_regs::CS) & 3 == 3)
            }
            // Other registers remain those that were saved before, if they were: an NMI in an entry or exit.
            Holds::IretFrame => {
                let regs = stack.words::<{ pt_regs::LEN - pt_regs::IP }>(sp)?;
                let word = |at: usize| u64_at(&regs, at - pt_regs::IP).unwrap_or_default();
                at.ip = Gva(word(pt_regs::IP));
                at.sp = word(pt_regs::SP);
                (at.sp.wrapping_sub(8), word(pt_regs::CS) & 3 == 3)
            }
        };
        at.signal = row.signal;
        at.bp = match row.bp {
            BpBase::Unchanged => at.saved.map_or(bp, |saved| saved.bp),
            BpBase::PrevSp => stack.word(sp.wrapping_add_signed(row.bp_offset.into()))?,
            BpBase::Bp => stack.word(bp.wrapping_add_signed(row.bp_offset.into()))?,
        };
        if is_user {
            return Err(End::User(UserRegs { rip: at.ip, rsp: Gva(at.sp), rbp: Gva(at.bp) }));
        }
        let mut kind = if row.holds == Holds::Return { FrameKind::Return } else { FrameKind::Interrupted };
        at.ip = self.ours.real(Gva(slot), at.ip).unwrap_or(at.ip);
        // A task that is held waits in code that the kernel does not know, and one that is in a detour is on its way out: both go on
        // behind that.
        if !code.is_kernels(at.ip)
            && code.may_be_ours(at.ip)
            && let Some(left) = at.ours_left.checked_sub(1)
            && let Some(behind) = {
                at.ours_left = left;
                gate::behind(&at.regs(), stack.memory).or_else(|| self.ours.behind(&at.regs()))
            }
        {
            at.go_on(&behind);
            at.ip = self.ours.real(Gva(behind.rsp.wrapping_sub(8)), at.ip).unwrap_or(at.ip);
            kind = FrameKind::Interrupted;
        }
        let may_leave =
            row.holds != Holds::Return || matches!(row.sp, SpBase::SpIndirect | SpBase::BpIndirect);
        at.follow_stack(before, may_leave)?;
        if code.is_return_hook(at.ip) {
            return Err(End::Cut(Cut::Hooked(at.ip)));
        }
        if !code.has(at.ip) {
            return Err(End::Cut(Cut::NoCode(at.ip)));
        }
        Ok(Frame { at: at.ip, kind, is_reliable: at.is_reliable })
    }
}

/// The stack in guest memory.
struct StackMemory<'a, M: PhysMemory + ?Sized> {
    memory: &'a VirtMemory<'a, M>,
    /// The page of the stack that was read last, and where it is. Nobody moves it: its vCPU stands still.
    page: Option<(Gva, Gpa)>,
    /// The piece of that page that was read last, and where it begins. Frame after frame lies in one.
    piece: (Option<Gva>, [u8; PIECE]),
}

impl<M: PhysMemory + ?Sized> StackMemory<'_, M> {
    fn word(&mut self, at: u64) -> Result<u64, End> {
        self.words(at).map(u64::from_le_bytes)
    }

    /// Bytes of the stack. No stack of the kernel lies in the user's half.
    fn words<const N: usize>(&mut self, at: u64) -> Result<[u8; N], End> {
        if !Gva(at).is_kernels() {
            return Err(End::Cut(Cut::Astray(Gva(at))));
        }
        let (start, offset) = (Gva(at & !(PIECE as u64 - 1)), at as usize % PIECE);
        if offset + N <= PIECE && (self.piece.0 == Some(start) || self.load(start)) {
            let bytes = self.piece.1.get(offset..).and_then(|bytes| bytes.first_chunk());
            return bytes.copied().ok_or(End::Cut(Cut::Astray(Gva(at))));
        }
        let mut bytes = [0; N];
        self.memory.read(Gva(at), &mut bytes).map_err(|fault| End::Cut(Cut::Memory(fault)))?;
        Ok(bytes)
    }

    /// Whether the piece from `start` can be read as one; it is there then.
    fn load(&mut self, start: Gva) -> bool {
        let offset = start.0 % PAGE;
        let page = Gva(start.0 - offset);
        let known = self.page.filter(|(known, _)| *known == page);
        let Some(gpa) = known.map(|(_, gpa)| gpa).or_else(|| self.memory.translate(page, Access::Read).ok())
        else {
            return false;
        };
        self.page = Some((page, gpa));
        let is_read = self.memory.phys.read(gpa.add(offset), &mut self.piece.1).is_ok();
        self.piece.0 = is_read.then_some(start);
        is_read
    }
}

impl FrameState {
    /// The stack pointer before the call, or where registers are saved.
    fn previous_sp<M: PhysMemory + ?Sized>(
        &self,
        row: &OrcFrame,
        stack: &mut StackMemory<'_, M>,
    ) -> Result<u64, End> {
        let saved = || self.saved.ok_or(End::Cut(Cut::NoRegister(self.ip)));
        let offset = |base: u64| base.wrapping_add_signed(row.sp_offset.into());
        Ok(match row.sp {
            SpBase::Sp => offset(self.sp),
            SpBase::Bp => offset(self.bp),
            SpBase::SpIndirect => offset(stack.word(self.sp)?),
            SpBase::BpIndirect => stack.word(offset(self.bp))?,
            SpBase::R10 => saved()?.r10,
            SpBase::R13 => saved()?.r13,
            SpBase::Di => saved()?.di,
            SpBase::Dx => saved()?.dx,
            SpBase::Ax => saved()?.ax,
        })
    }

    /// All registers that are known here.
    fn regs(&self) -> Regs {
        let known = Regs { rip: self.ip.0, rsp: self.sp, rbp: self.bp, ..Regs::default() };
        match self.saved {
            Some(Saved { bp: _, r10, r13, di, dx, ax }) => {
                Regs { r10, r13, rdi: di, rdx: dx, rax: ax, ..known }
            }
            None => known,
        }
    }

    /// The task goes on with `regs`, at the instruction there.
    fn go_on(&mut self, regs: &Regs) {
        (self.ip, self.sp, self.bp, self.signal) = (Gva(regs.rip), regs.rsp, regs.rbp, true);
        if let Some(saved) = &mut self.saved {
            let Regs { rbp: bp, r10, r13, rdi: di, rdx: dx, rax: ax, .. } = *regs;
            *saved = Saved { bp, r10, r13, di, dx, ax };
        }
    }

    /// Checks `sp`, which was `before`: it lies higher on the same stack, or on another one if `may_leave`.
    fn follow_stack(&mut self, before: u64, may_leave: bool) -> Result<(), End> {
        if before < self.sp && self.sp.wrapping_sub(self.stack) <= LARGEST_STACK {
            return Ok(());
        }
        let left = self.stacks_left.checked_sub(1).filter(|_| may_leave && Gva(self.sp).is_kernels());
        self.stacks_left = left.ok_or(End::Cut(Cut::Astray(Gva(self.sp))))?;
        self.stack = self.sp;
        Ok(())
    }
}

impl<M: PhysMemory + ?Sized, F: Ours> Iterator for Walk<'_, M, F> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        if self.end.is_some() {
            return None;
        }
        let frame = match self.first.take() {
            Some(first) => Ok(first),
            None => self.step(),
        };
        match frame {
            Ok(_) if self.left == 0 => self.end = Some(End::Cut(Cut::Full)),
            Ok(frame) => {
                self.left -= 1;
                return Some(frame);
            }
            Err(end) => self.end = Some(end),
        }
        None
    }
}

/// `struct pt_regs` (arch/x86/include/asm/ptrace.h): offsets in bytes. The iret frame is what begins at IP.
mod pt_regs {
    pub(super) const R13: usize = 16;
    pub(super) const BP: usize = 32;
    pub(super) const R10: usize = 56;
    pub(super) const AX: usize = 80;
    pub(super) const DX: usize = 96;
    pub(super) const DI: usize = 112;
    pub(super) const IP: usize = 128;
    pub(super) const CS: usize = 136;
    pub(super) const SP: usize = 152;
    pub(super) const LEN: usize = 168;
}

#[cfg(test)]
mod tests;
