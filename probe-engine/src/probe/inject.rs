//! Calls that fail: the function is not executed, and its caller gets a value all the same.

use super::pace::mixed;
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::regs::Regs;
use crate::virt_memory::VirtMemory;
use serde::{Deserialize, Serialize};

/// The number of an injection: the probes of one count their calls together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InjectionId(pub u32);

/// What a probe does for an injection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inject {
    /// A call of the function fails when it is its turn: only then it is a hit.
    Fail {
        /// With which other probes calls are counted.
        injection: InjectionId,
        /// What the caller gets, in RAX.
        value: u64,
        /// Whose turn it is.
        turns: Turns,
        /// Whether only those calls count that are made below a call of another probe's function.
        under: bool,
    },
    /// That other probe, which is one of returns.
    Under {
        /// Of which injection.
        injection: InjectionId,
    },
}

impl Inject {
    /// Of which injection it is.
    #[must_use]
    pub fn injection(self) -> InjectionId {
        match self {
            Self::Fail { injection, .. } | Self::Under { injection } => injection,
        }
    }
}

/// Which calls fail, of those that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    /// Every so many-th one; with a seed, one of so many by chance.
    pub every: u64,
    /// So many are spared first.
    pub after: u64,
    /// No more than so many fail.
    pub times: Option<u64>,
    /// What chance begins with, if it is to choose.
    pub seed: Option<u64>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { every: 1, after: 0, times: None, seed: None }
    }
}

impl Turns {
    /// Only call number `n`, from 1 on.
    #[must_use]
    pub fn only(n: u64) -> Self {
        Self { after: n.saturating_sub(1), times: Some(1), ..Self::default() }
    }

    /// Whether it is the turn of call number `call`, from 0 on. How many have failed before is not looked at.
    #[must_use]
    pub fn has(&self, call: u64) -> bool {
        let Some(call) = call.checked_sub(self.after) else { return false };
        let number = match self.seed {
            None => call.wrapping_add(1),
            Some(seed) => mixed(seed ^ mixed(call)),
        };
        number.checked_rem(self.every).is_none_or(|rest| rest == 0)
    }
}

/// Returns from the function that is being entered at `regs` with `value`, as if it had run.
///
/// # Errors
/// The [`PageFault`] of a stack that cannot be read; nothing has changed then.
pub fn skip_function<M: PhysMemory + ?Sized>(
    regs: &mut Regs,
    memory: &VirtMemory<'_, M>,
    value: u64,
) -> Result<(), PageFault> {
    regs.rip = memory.read_u64(Gva(regs.rsp))?;
    regs.rsp = regs.rsp.wrapping_add(8);
    regs.rax = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    fn turns(turns: Turns, of: u64) -> Vec<u64> {
        (0..of).filter(|call| turns.has(*call)).map(|call| call + 1).collect()
    }

    #[test]
    fn a_call_has_its_turn() {
        let all = Turns::default();
        assert_eq!(turns(all, 3), [1, 2, 3]);
        assert_eq!(turns(Turns { every: 3, ..all }, 9), [3, 6, 9]);
        assert_eq!(turns(Turns { every: 2, after: 3, ..all }, 9), [5, 7, 9]);
        assert_eq!(turns(Turns::only(1), 4), [1, 2, 3, 4], "who counts knows that one has failed");
        assert_eq!((Turns::only(3).has(1), Turns::only(3).has(2)), (false, true));
        assert_eq!(turns(Turns { every: 0, ..all }, 2), [1, 2]);
        assert!(!Turns { after: u64::MAX, ..all }.has(u64::MAX - 1));
        assert!(all.has(u64::MAX));
    }

    #[test]
    fn chance_has_a_seed() {
        let by = |seed| turns(Turns { every: 4, seed: Some(seed), ..Turns::default() }, 1000);
        assert_eq!(by(7), by(7));
        assert_ne!(by(7), by(8));
        assert!((200..300).contains(&by(7).len()), "{}", by(7).len());
    }

    #[test]
    fn a_function_that_is_skipped_has_returned() {
        let ram = Ram::new();
        ram.put(Ram::BASE.add(0x100), &0x1234_u64.to_le_bytes());
        let memory = ram.memory();
        let before = Regs { rip: 0x10, rsp: Ram::BASE.add(0x100).0, rdi: 5, ..Regs::default() };
        let mut regs = before;
        skip_function(&mut regs, &memory, 7).unwrap();
        assert_eq!(regs, Regs { rip: 0x1234, rsp: before.rsp + 8, rax: 7, ..before });
        let mut lost = Regs { rsp: 1 << 40, ..before };
        assert!(skip_function(&mut lost, &memory, 7).is_err());
        assert_eq!(lost, Regs { rsp: 1 << 40, ..before });
    }
}
