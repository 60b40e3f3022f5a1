//! Jump labels and static calls of a kernel that does not tell where it lists them.

use super::{Tables, Why};
use crate::addr::Gva;
use crate::insn::decode::instructions;
use crate::insn::plan::skip_endbr;
use iced_x86::{Instruction, Mnemonic};

impl Tables<'_> {
    /// Everything that may be a jump label or a static call, where their tables are not found: they have no sections of their
    /// own, and symbols of functions alone (no CONFIG_KALLSYMS_ALL) do not tell where they are. A trap there would be a fatal
    /// bug to the guest, which compares what it rewrites.
    pub(super) fn possible_sites(&mut self) {
        let symbols = self.symbols;
        let has_labels =
            self.missing.contains(&Why::JumpLabel) && symbols.address_of("static_key_enable").is_some();
        let mut trampolines: Vec<Gva> = match self.missing.contains(&Why::StaticCall) {
            true => {
                symbols.text().filter(|symbol| symbol.name.starts_with("__SCT__")).map(|s| s.at).collect()
            }
            false => Vec::new(),
        };
        if !has_labels && trampolines.is_empty() {
            return;
        }
        trampolines.sort_unstable();
        let returns = symbols.address_of("__x86_return_thunk");
        let has_ftrace = symbols.address_of("__fentry__").is_some();
        for symbol in symbols.text() {
            let function = symbols.function_at(symbol.at).filter(|function| function.symbol == symbol);
            let Some(range) = function.map(|function| function.range()) else { continue };
            let Some(bytes) = self.image.bytes(&range).filter(|_| self.is_text(range.start)) else {
                continue;
            };
            let entry = skip_endbr(bytes, range.start);
            for instruction in instructions(bytes, range.start) {
                let at = Gva(instruction.ip());
                let target = Gva(instruction.near_branch_target());
                let is_jump = instruction.is_jmp_short_or_near();
                if (is_jump || instruction.is_call_near()) && trampolines.binary_search(&target).is_ok() {
                    self.push(at, Some(instruction.len() as u64), Why::StaticCall);
                } else if has_labels
                    && (is_jump && Some(target) != returns || is_label_nop(&instruction))
                    // That is ftrace's.
                    && !(has_ftrace && at == entry)
                {
                    self.push(at, Some(instruction.len() as u64), Why::PossibleLabel);
                }
            }
        }
    }
}

/// Whether an instruction is what a jump label is while it does not jump (`x86_nops[2]` and `[5]`).
fn is_label_nop(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Nop && matches!(instruction.len(), 2 | 5)
}
