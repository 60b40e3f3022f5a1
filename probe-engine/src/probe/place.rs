//! A place that can be probed or watched, and what is known about it before anything is armed there.
//!
//! What is decided here from the file is decided again from the live text when a probe is armed: the guest's own
//! alternatives may have moved an instruction's bounds by then.

use super::jump_constraints::JumpConstraints;
use super::spec::SYSTEM_CALL;
use super::watch::Watch;
use crate::addr::Gva;
use crate::insn::decode::{BoundaryError, instruction_at, instructions};
use crate::insn::plan::{Refusal, StepPlan, plan, skip_endbr};
use crate::linux::ftrace_site::FTRACE_SITE;
use crate::linux::kernel::Kernel;
use crate::linux::left_alone::Why;
use crate::linux::patched::PatchedText;
use crate::linux::symbols::named::plain_name;
use crate::linux::targets::JumpTargets;
use iced_x86::{Instruction, OpKind, Register};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A place that was asked for and can be armed, as far as is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// In the kernel's own text.
    Kernel {
        /// `symbol`, `symbol+0x10`, `symbol#2` or `syscall:name`, as the user knows it.
        name: String,
        /// What is there, at link-time addresses.
        info: SiteInfo,
    },
    /// In a module, of which nothing is known until the guest has loaded it.
    Module {
        /// The module, as the kernel writes it: with `_` where a file name may have `-`.
        module: String,
        /// One of its functions, `#2` behind it where several share its name.
        symbol: String,
        /// Bytes from there.
        offset: u64,
    },
    /// Memory of the kernel, which a debug register watches.
    Watch(Watch),
}

impl Place {
    /// What the user calls it: `symbol+0x10`, `module:symbol+0x10` or `symbol:8:w`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Kernel { name, .. } => name.clone(),
            Self::Module { module, symbol, offset: 0 } => format!("{module}:{symbol}"),
            Self::Module { module, symbol, offset } => format!("{module}:{symbol}+{offset:#x}"),
            Self::Watch(watch) => watch.name.clone(),
        }
    }

    /// The kernel's own function that this is the entry of, as the kernel calls it.
    #[must_use]
    pub fn function(&self) -> Option<&str> {
        match self {
            // No function has a `:` in its name, which that of a system call has.
            Self::Kernel { name, info } if info.is_entry() && !name.contains(':') => Some(plain_name(name)),
            _ => None,
        }
    }

    /// The system call that it is the handler of, where the user has named that.
    #[must_use]
    pub fn system_call(&self) -> Option<&str> {
        match self {
            Self::Kernel { name, .. } => name.strip_prefix(SYSTEM_CALL)?.strip_prefix(':'),
            _ => None,
        }
    }

    /// Whether it is the entry of its function.
    #[must_use]
    pub fn is_entry(&self) -> bool {
        match self {
            Self::Kernel { info, .. } => info.is_entry(),
            Self::Module { offset, .. } => *offset == 0,
            Self::Watch(_) => false,
        }
    }
}

/// An instruction and what is known about it. All addresses are link-time addresses in the kernel, and run-time
/// addresses in a module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteInfo {
    /// The address that was asked for. A probe on a function's entry may stand a few bytes further on.
    pub at: Gva,
    /// The function around it.
    pub function: Range<Gva>,
    /// Whether the instruction has an entry in the exception table.
    pub fixup: bool,
    /// Whether the guest leaves the instruction as it is while it boots, ftrace apart.
    pub settled: bool,
    /// What is behind it, when it is one of ftrace's sites.
    pub ftrace: Option<Behind>,
    /// Whether the function begins with one of ftrace's sites.
    pub traced: bool,
    /// What is in the way of a jump there, where that was asked for.
    pub constraints: Option<JumpConstraints>,
}

/// The instruction behind one of ftrace's sites, where a probe of that site stands while ftrace is busy there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Behind {
    /// It can be probed.
    Free {
        /// Whether it has an entry in the exception table.
        fixup: bool,
        /// Whether the guest leaves it as it is while it boots.
        settled: bool,
    },
    /// It cannot, and why.
    Guarded(String),
}

impl SiteInfo {
    /// The first instruction of `function`, of which nothing else is known.
    #[must_use]
    pub fn entry_of(function: Range<Gva>) -> Self {
        let at = function.start;
        Self { at, function, fixup: false, settled: true, ftrace: None, traced: false, constraints: None }
    }

    /// What is in the way of a jump here in `kernel`: behind an `endbr`, if it is a function's entry. `None` outside the file.
    #[must_use]
    pub fn constraints_in(&self, kernel: &Kernel, targets: &JumpTargets) -> Option<JumpConstraints> {
        /// Bytes of an `endbr`.
        const ENDBR: usize = 4;
        let at = match self.is_entry() {
            true => skip_endbr(kernel.image().bytes_at(self.at, ENDBR)?, self.at),
            false => self.at,
        };
        Some(JumpConstraints::at(at, kernel.patched(), targets))
    }

    /// Whether it is the entry of its function.
    #[must_use]
    pub fn is_entry(&self) -> bool {
        self.at == self.function.start
    }
}

/// Why an address cannot be probed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unprobeable {
    /// Data, or nothing.
    #[error("it is not in the kernel's text")]
    NotText,
    /// No symbol covers it, so that no instruction can be found for certain.
    #[error("no symbol covers it")]
    NoFunction,
    /// Not the start of an instruction.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// The guest's own code that must not trap, or that the guest rewrites.
    #[error("{0}")]
    LeftAlone(Why),
    /// There is no way past the instruction.
    #[error(transparent)]
    Instruction(#[from] Refusal),
}

/// What the tables say of an instruction that can be probed.
struct Checked {
    /// Whether it has an entry in the exception table.
    fixup: bool,
    /// Whether no other table lists it.
    settled: bool,
}

/// One function's text, and what must be left alone in it.
pub(super) struct ProbedText<'a> {
    pub(super) range: Range<Gva>,
    pub(super) bytes: &'a [u8],
    pub(super) patched: &'a PatchedText,
    /// Whether `patched` knows the instructions whose lock prefix the guest rewrites. It does not for a module.
    pub(super) knows_locks: bool,
}

impl ProbedText<'_> {
    /// What is known about the instruction at `at`. `is_ftrace` tells ftrace's sites by their address and bytes.
    pub(super) fn info(
        &self,
        at: Gva,
        is_ftrace: impl Fn(Gva, &[u8]) -> bool,
    ) -> Result<SiteInfo, Unprobeable> {
        let entry = skip_endbr(self.bytes, self.range.start);
        let stands = if at == self.range.start { entry } else { at };
        let Checked { fixup, settled } = self.check(stands)?;
        let ftrace = is_ftrace(stands, self.from(stands)).then(|| self.behind(stands.add(FTRACE_SITE)));
        let traced = is_ftrace(entry, self.from(entry));
        Ok(SiteInfo { at, function: self.range.clone(), fixup, settled, ftrace, traced, constraints: None })
    }

    /// Whether a probe of the ftrace site before `at` can stand here.
    fn behind(&self, at: Gva) -> Behind {
        let is_target = |instruction: Instruction| {
            (instruction.is_jmp_short_or_near() || instruction.is_jcc_short_or_near())
                && instruction.near_branch_target() == at.0
        };
        match self.check(at) {
            Err(reason) => Behind::Guarded(reason.to_string()),
            Ok(_) if instructions(self.bytes, self.range.start).any(is_target) => {
                Behind::Guarded("the function jumps back to it".to_owned())
            }
            Ok(Checked { fixup, settled }) => Behind::Free { fixup, settled },
        }
    }

    /// What is known of the instruction at `at`, if it can be probed.
    fn check(&self, at: Gva) -> Result<Checked, Unprobeable> {
        let start = instruction_at(self.bytes, self.range.start, at)?;
        let range = at..at.add(start.instruction.len() as u64);
        let listed = self.patched.covers(range.clone());
        if let Some(why) = listed.filter(|why| !why.is_settled_late()) {
            return Err(Unprobeable::LeftAlone(why));
        }
        if !self.knows_locks && may_have_lock(&start.instruction) {
            return Err(Unprobeable::LeftAlone(Why::LockPrefix));
        }
        let fixup = self.patched.has_fixup(range);
        plan(self.from(at), at, start.previous.as_ref(), fixup)?;
        Ok(Checked { fixup, settled: listed.is_none() })
    }

    /// The bytes from `at` on.
    fn from(&self, at: Gva) -> &[u8] {
        let offset = at.offset_from(self.range.start).and_then(|offset| usize::try_from(offset).ok());
        offset.and_then(|offset| self.bytes.get(offset..)).unwrap_or_default()
    }
}

/// Whether an instruction has a lock prefix, or the prefix that the guest writes over it while it has one CPU
/// (`alternatives_smp_unlock` in arch/x86/kernel/alternative.c): DS, which means nothing else to a memory operand.
fn may_have_lock(instruction: &Instruction) -> bool {
    let is_ds = instruction.segment_prefix() == Register::DS && instruction.op0_kind() == OpKind::Memory;
    instruction.has_lock_prefix() || is_ds
}

/// What is known about the instruction at `link`, if that can be probed as far as the kernel's file tells.
///
/// # Errors
/// [`Unprobeable`], the reason.
pub fn in_kernel(link: Gva, kernel: &Kernel) -> Result<SiteInfo, Unprobeable> {
    let image = kernel.image();
    if !image.is_text(link) {
        return Err(Unprobeable::NotText);
    }
    let range = kernel.function(link).ok_or(Unprobeable::NoFunction)?;
    let bytes = image.bytes(&range).ok_or(Unprobeable::NotText)?;
    let entry = skip_endbr(bytes, range.start);
    let text = ProbedText { range, bytes, patched: kernel.patched(), knows_locks: true };
    text.info(link, |at, bytes| kernel.ftrace().has(at, bytes, entry))
}

/// How the guest gets past the instruction of a probe at `info`, as far as the kernel's file tells.
///
/// # Errors
/// [`Unprobeable`], the reason why it does not.
pub fn plan_of(info: &SiteInfo, kernel: &Kernel) -> Result<StepPlan, Unprobeable> {
    let range = info.function.clone();
    let start = range.start;
    let bytes = kernel.image().bytes(&range).ok_or(Unprobeable::NotText)?;
    let text = ProbedText { range, bytes, patched: kernel.patched(), knows_locks: true };
    let at = if info.is_entry() { skip_endbr(bytes, start) } else { info.at };
    let previous = instruction_at(bytes, start, at)?.previous;
    Ok(plan(text.from(at), at, previous.as_ref(), info.fixup)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::ftrace_site::FTRACE_NOP;

    const START: Gva = Gva(0xffff_ffff_8100_0000);

    /// What is behind the ftrace site at the start of a function with these bytes.
    fn behind(code: &[u8]) -> Option<Behind> {
        behind_with(code, Vec::new())
    }

    /// The same where the guest rewrites these bytes.
    fn behind_with(code: &[u8], rewritten: Vec<(Range<Gva>, Why)>) -> Option<Behind> {
        let bytes = [&FTRACE_NOP[..], code].concat();
        let range = START..START.add(bytes.len() as u64);
        let patched = PatchedText::new(rewritten, Vec::new(), Vec::new());
        let text = ProbedText { range, bytes: &bytes, patched: &patched, knows_locks: true };
        text.info(START, |at, _| at == START).unwrap().ftrace
    }

    #[test]
    fn an_instruction_with_a_run_time_constant_is_not_settled() {
        // movabs rax, 0x123456789abcdef; ret
        let code = [0x48, 0xb8, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0xc3];
        let constant = START.add(FTRACE_SITE + 2)..START.add(FTRACE_SITE + 10);
        let found = behind_with(&code, vec![(constant, Why::RuntimeConstant)]);
        assert_eq!(found, Some(Behind::Free { fixup: false, settled: false }));
    }

    #[test]
    fn a_probe_does_not_move_to_where_the_function_jumps_back() {
        // inc eax; jnz; ret
        let once = behind(&[0xff, 0xc0, 0x75, 0x00, 0xc3]);
        assert_eq!(once, Some(Behind::Free { fixup: false, settled: true }));
        let again = behind(&[0xff, 0xc0, 0x75, 0xfc, 0xc3]);
        assert!(matches!(again, Some(Behind::Guarded(_))), "each turn would be a hit: {again:?}");
    }
}
