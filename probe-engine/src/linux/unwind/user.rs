//! Who called in a process: a user stack walked by its frame pointers.
//!
//! Code that was compiled with frame pointers pushes RBP first and lets it point there: `[rbp]` is the caller's RBP, and
//! `[rbp + 8]` the return address (System V ABI, AMD64, 3.2.2). Other code uses RBP as it likes. Nothing tells one from
//! the other: the callers of code without frame pointers are missing, or the walk ends.

use super::UserRegs;
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::virt_memory::VirtMemory;

/// How the walk over a user stack ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UserEnd {
    /// RBP, or the return address, is 0, as the ABI has it for the first frame of a process.
    #[error("the first frame")]
    Bottom,
    /// As many frames as were asked for.
    #[error("more frames than asked for")]
    Full,
    /// RBP, or the return address, is none of a process.
    #[error("{0} is no address of a process")]
    NoUser(Gva),
    /// The caller's RBP is not above its callee's.
    #[error("the frame pointer does not rise at {0}")]
    NotRising(Gva),
    /// The page is not in memory: paged out, not yet touched, or not the process's at all.
    #[error("the stack cannot be read")]
    Memory(#[from] PageFault),
}

/// A walk over a user stack: where the code is, then return addresses.
pub struct UserWalk<'a, M: PhysMemory + ?Sized, F> {
    memory: &'a VirtMemory<'a, M>,
    first: Option<Gva>,
    rbp: u64,
    left: usize,
    real: F,
    end: Option<UserEnd>,
}

impl<'a, M: PhysMemory + ?Sized, F: Fn(Gva, Gva) -> Option<Gva>> UserWalk<'a, M, F> {
    /// A walk from `regs` of at most `most` frames, the instruction at `regs.rip` included, through the page tables of
    /// the process.
    ///
    /// `real(slot, value)` is asked of every return address, `slot` being where it lies: when `value` stands there in place of another
    /// it says that other one.
    #[must_use]
    pub fn new(memory: &'a VirtMemory<'a, M>, regs: UserRegs, most: usize, real: F) -> Self {
        Self { memory, first: Some(regs.rip), rbp: regs.rbp.0, left: most, real, end: None }
    }

    /// How it ended; `None` while there may be more frames.
    #[must_use]
    pub fn end(&self) -> Option<UserEnd> {
        self.end
    }

    /// The next return address.
    fn step(&mut self) -> Result<Gva, UserEnd> {
        let rbp = Gva(self.rbp);
        let mut words = [0; 16];
        self.user(rbp)?;
        self.memory.read(rbp, &mut words)?;
        let [next, back] = words.as_chunks().0 else { return Err(UserEnd::Bottom) };
        let (next, back) = (u64::from_le_bytes(*next), Gva(u64::from_le_bytes(*back)));
        let back = (self.real)(rbp.add(8), back).unwrap_or(back);
        self.user(back)?;
        if next != 0 && next <= rbp.0 {
            return Err(UserEnd::NotRising(rbp));
        }
        self.rbp = next;
        Ok(back)
    }

    /// Checks that `at` may be an address of a process.
    fn user(&self, at: Gva) -> Result<(), UserEnd> {
        match at {
            Gva(0) => Err(UserEnd::Bottom),
            at if at.is_kernels() || !self.memory.spaces.of(at).is_canonical(at) => Err(UserEnd::NoUser(at)),
            _ => Ok(()),
        }
    }
}

impl<M: PhysMemory + ?Sized, F: Fn(Gva, Gva) -> Option<Gva>> Iterator for UserWalk<'_, M, F> {
    type Item = Gva;

    fn next(&mut self) -> Option<Gva> {
        if self.end.is_some() {
            return None;
        }
        let frame = match self.first.take() {
            Some(first) => Ok(first),
            None => self.step(),
        };
        match frame {
            Ok(_) if self.left == 0 => self.end = Some(UserEnd::Full),
            Ok(frame) => {
                self.left -= 1;
                return Some(frame);
            }
            Err(end) => self.end = Some(end),
        }
        None
    }
}
