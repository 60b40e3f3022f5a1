//! By which rules a kernel's own kprobes put a jump in the place of instructions: what `can_optimize`,
//! `copy_optimized_instructions` and `can_boost` (arch/x86/kernel/kprobes) refuse, asked of the kernel's file.

use guest_kernels::Series;
use iced_x86::{FlowControl, Instruction, Mnemonic};
use probe_engine::addr::Gva;
use probe_engine::insn::decode::instructions;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::left_alone::Why;
use std::ops::{Range, RangeInclusive};

/// Bytes of the jump.
const JUMP: u64 = 5;

/// Why a kernel leaves a probe on its breakpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// A jump must not stand there.
    Needed(&'static str),
    /// A jump may stand there, but the kernel does not look so closely, or does not run an instruction elsewhere.
    Cautious(&'static str),
}

/// The rules of one kernel.
pub struct Rules<'a> {
    kernel: &'a Kernel,
    /// Functions with an indirect jump are refused by kernels that mark their thunks, up to 6.5.
    thunks: Option<RangeInclusive<Gva>>,
    /// Whether shifts, `test`, `not`, `neg`, `mul`, `div`, `inc` and `dec` run elsewhere: since 6.9.
    runs_groups: bool,
}

impl<'a> Rules<'a> {
    /// Those of `kernel`, which is of this series.
    pub fn of(kernel: &'a Kernel, series: Series) -> Self {
        let marks = ["__indirect_thunk_start", "__indirect_thunk_end"].map(|mark| kernel.symbol(mark));
        let thunks = match marks {
            [Some(start), Some(end)] => Some(start..=end),
            _ => None,
        };
        Self { kernel, thunks, runs_groups: series != Series::Is(6, 1) }
    }

    /// Why the kernel leaves a probe at `at` on its breakpoint. `None` if it puts a jump there.
    pub fn refusal(&self, at: Gva) -> Option<Refusal> {
        let function = self.kernel.function(at).unwrap();
        if function.end.offset_from(at).unwrap() < JUMP {
            return Some(Refusal::Needed("the function ends before the jump does"));
        }
        let bytes = self.with_plain_returns(&function);
        let behind = &bytes[at.offset_from(function.start).unwrap() as usize..];
        let covered: Vec<_> =
            instructions(behind, at).take_while(|found| found.ip() < at.add(JUMP).0).collect();
        let region = at..Gva(covered.last().unwrap().next_ip());
        let of_all =
            instructions(&bytes, function.start).filter_map(|found| self.in_function(&found, &region));
        let of_covered = covered
            .iter()
            .filter_map(|found| self.in_the_way(&behind[(found.ip() - at.0) as usize..], found));
        of_all.chain(of_covered).min()
    }

    /// The bytes of a function in a guest that needs no return thunks: it makes returns of the jumps to them.
    fn with_plain_returns(&self, function: &Range<Gva>) -> Vec<u8> {
        const RETURN: [u8; 5] = [0xc3, 0xcc, 0xcc, 0xcc, 0xcc];
        let file = self.kernel.image().bytes(function).unwrap();
        let mut bytes = file.to_vec();
        for found in instructions(file, function.start) {
            if found.len() == RETURN.len() && self.kernel.patched().covers(range(&found)) == Some(Why::Return)
            {
                bytes[(found.ip() - function.start.0) as usize..][..RETURN.len()].copy_from_slice(&RETURN);
            }
        }
        bytes
    }

    /// What this instruction of a function has against a jump in the place of `region`.
    fn in_function(&self, found: &Instruction, region: &Range<Gva>) -> Option<Refusal> {
        /// By what it concerns: something in the region itself, or only in its function.
        fn of(in_region: bool, why: &'static str) -> Option<Refusal> {
            Some(if in_region { Refusal::Needed(why) } else { Refusal::Cautious(why) })
        }
        let is_jump =
            matches!(found.flow_control(), FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch);
        let target = Gva(found.near_branch_target());
        let leads_to_thunk = self.thunks.as_ref().is_some_and(|thunks| is_jump && thunks.contains(&target));
        let is_indirect = self.thunks.is_some() && found.flow_control() == FlowControl::IndirectBranch;
        // The kernel counts the byte behind the jump among those that nothing may lead to.
        let is_inside = is_jump && (region.start.add(1)..=region.start.add(JUMP)).contains(&target);
        if found.is_invalid() {
            Some(Refusal::Needed("the function has bytes that are no instruction"))
        } else if self.kernel.patched().has_fixup(range(found)) {
            of(Gva(found.ip()).is_in(region), "the function has an entry in the exception table")
        } else if leads_to_thunk || is_indirect {
            Some(Refusal::Cautious("the function has an indirect jump"))
        } else if is_inside {
            of(target < region.end, "the function jumps to a byte of the jump, or to the one behind it")
        } else {
            None
        }
    }

    /// What keeps this instruction, the first of `bytes`, from being run elsewhere.
    fn in_the_way(&self, bytes: &[u8], found: &Instruction) -> Option<Refusal> {
        if let Some(Why::JumpLabel | Why::StaticCall) = self.kernel.patched().covers(range(found)) {
            return Some(Refusal::Needed("the guest rewrites what it covers"));
        }
        let why = match found.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => "it covers a call",
            FlowControl::ConditionalBranch => "it covers a conditional jump",
            FlowControl::UnconditionalBranch => "it covers a jump",
            _ if found.mnemonic() == Mnemonic::Int3 => "it covers an int3 behind a return or a jump",
            _ if is_boostable(bytes, self.runs_groups) => return None,
            _ => "it covers another instruction that the guest does not run elsewhere",
        };
        Some(Refusal::Cautious(why))
    }
}

fn range(found: &Instruction) -> Range<Gva> {
    Gva(found.ip())..Gva(found.next_ip())
}

/// Whether the kernel runs an instruction that does not branch, the first of `bytes`, elsewhere without a trap behind it.
/// Instructions of the FPU and of vectors are left out: functions that can be traced have none.
fn is_boostable(bytes: &[u8], runs_groups: bool) -> bool {
    const LEGACY: [u8; 11] = [0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3];
    const REX: RangeInclusive<u8> = 0x40..=0x4f;
    let prefixes = bytes.iter().take_while(|byte| LEGACY.contains(byte)).count();
    let (prefixes, rest) = bytes.split_at(prefixes);
    let rest = &rest[usize::from(REX.contains(&rest[0]))..];
    let has_refused_prefix = prefixes.iter().any(|prefix| [0x2e, 0x67].contains(prefix));
    match rest[0] {
        // Two bytes: `ud2`, system instructions, `bt` with a constant and `cmpxchg8b` are among those that are left out.
        0x0f => matches!(rest[1],
            0x1f | 0x20..=0x23 | 0x31 | 0x40..=0x4f | 0x90..=0xa1 | 0xa3..=0xa5 | 0xa8 | 0xa9 | 0xab..=0xad | 0xaf
            | 0xb0..=0xb7 | 0xbb..=0xc1 | 0xc8..=0xcf),
        _ if has_refused_prefix => false,
        0xc0 | 0xc1 | 0xd0..=0xd3 | 0xf6 | 0xf7 | 0xfe => runs_groups,
        0xf4 => false,
        // `inc`, `dec`, and an indirect jump; not a `push` of memory.
        0xff => match (rest[1] >> 3) & 7 {
            0 | 1 => runs_groups,
            number => number == 4,
        },
        _ => true,
    }
}
