//! Where a kernel's control flow lands: a jump of ours must not overwrite what something else leads to.

use std::ops::Range;

use iced_x86::{Instruction, OpKind};

use super::kernel::Kernel;
use super::patch_tables::landings;
use super::read::u64_at;
use super::thunks;
use crate::addr::Gva;
use crate::insn::decode::instructions;

/// All known places in a kernel's text that are not only reached from the instruction before, at link-time
/// addresses.
///
/// These are the targets of its direct branches, and the places in its text that it stores the address of: for
/// faults that are resumed elsewhere, for jump labels, and for tables that it jumps or calls through. Starts of
/// functions are among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JumpTargets {
    text: Range<Gva>,
    /// Distances from the start of the text, rising.
    targets: Vec<u32>,
}

impl JumpTargets {
    /// Decodes all text of a kernel, init text and templates of alternatives included, from each text symbol to the
    /// next.
    #[must_use]
    pub fn scan(kernel: &Kernel) -> Self {
        let (image, symbols) = (kernel.image(), kernel.symbols());
        let mut found = FoundTargets { text: thunks::code(image), targets: Vec::new() };

        let starts: Vec<Gva> = symbols.text().map(|symbol| symbol.at).collect();
        for section in image.sections().filter(|section| section.executable) {
            let first = starts.partition_point(|at| *at <= section.range.start);
            let (mut at, mut rest) = (section.range.start, section.bytes);
            for next in starts.get(first..).unwrap_or_default() {
                let length = next.offset_from(at).and_then(|length| usize::try_from(length).ok());
                let Some((function, behind)) = length.and_then(|length| rest.split_at_checked(length)) else {
                    break;
                };
                found.branches(function, at);
                (at, rest) = (*next, behind);
            }
            found.branches(rest, at);
        }
        landings(image, symbols).into_iter().for_each(|at| found.push(at));
        for section in image.sections().filter(|section| !section.executable) {
            let words = section.bytes.chunks_exact(8).filter_map(|word| u64_at(word, 0));
            words.for_each(|word| found.push(Gva(word)));
        }
        found.finish()
    }

    /// How many places there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// All of them, rising.
    pub fn iter(&self) -> impl Iterator<Item = Gva> {
        self.targets.iter().map(|distance| self.text.start.add((*distance).into()))
    }

    /// The first of them that lies inside `range`: its start is not inside.
    #[must_use]
    pub fn first_inside(&self, range: &Range<Gva>) -> Option<Gva> {
        let target = |distance: &u32| self.text.start.add((*distance).into());
        let first = self.targets.partition_point(|distance| target(distance) <= range.start);
        self.targets.get(first).map(target).filter(|at| *at < range.end)
    }
}

/// The target of a direct branch: `jmp`, `jcc`, `call`, `loop`, `jrcxz`, `xbegin`.
pub(crate) fn branch_target(instruction: &Instruction) -> Option<Gva> {
    let is_direct =
        matches!(instruction.op0_kind(), OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16);
    is_direct.then(|| Gva(instruction.near_branch_target()))
}

/// What was found so far, in no order.
struct FoundTargets {
    text: Range<Gva>,
    targets: Vec<u32>,
}

impl FoundTargets {
    fn push(&mut self, at: Gva) {
        let distance = at.is_in(&self.text).then(|| at.offset_from(self.text.start)).flatten();
        self.targets.extend(distance.and_then(|distance| u32::try_from(distance).ok()));
    }

    fn branches(&mut self, code: &[u8], at: Gva) {
        instructions(code, at).filter_map(|found| branch_target(&found)).for_each(|at| self.push(at));
    }

    fn finish(mut self) -> JumpTargets {
        self.targets.sort_unstable();
        self.targets.dedup();
        self.targets.shrink_to_fit();
        JumpTargets { text: self.text, targets: self.targets }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const TEXT: Gva = Gva(0xffff_ffff_8100_0000);

    /// Of a kernel whose text is `code` at [`TEXT`], and that stores `stored`.
    pub(crate) fn targets(code: &[u8], stored: &[u64]) -> JumpTargets {
        let mut found = FoundTargets { text: TEXT..TEXT.add(0x1020), targets: Vec::new() };
        found.branches(code, TEXT);
        stored.iter().for_each(|at| found.push(TEXT.add(*at)));
        found.finish()
    }

    #[test]
    fn every_kind_of_direct_branch_has_a_target() {
        let code = [
            &[0xeb, 0x10][..],            // jmp short
            &[0xe9, 0x20, 0, 0, 0],       // jmp
            &[0x74, 0x30],                // je short
            &[0x0f, 0x85, 0x40, 0, 0, 0], // jne
            &[0xe8, 0x50, 0, 0, 0],       // call
            &[0xe2, 0x60],                // loop
            &[0xe3, 0x70],                // jrcxz
            &[0x7f, 0x80],                // jg, to before the text
            &[0xff, 0xe0],                // jmp rax
            &[0x48, 0x8d, 0x05, 1, 0, 0, 0],
        ]
        .concat();
        let distances = [0x12, 0x27, 0x39, 0x4f, 0x64, 0x76, 0x88];
        let found = targets(&code, &[]);
        assert!(found.iter().eq(distances.map(|distance| TEXT.add(distance))), "{found:x?}");
    }

    #[test]
    fn the_start_of_a_range_is_not_inside() {
        let found = targets(&[], &[0x20, 0x10, 0x10, u64::MAX, 0x1020]);
        assert_eq!(found.len(), 2);
        let inside = |start, end| found.first_inside(&(TEXT.add(start)..TEXT.add(end)));
        assert_eq!(inside(0x0f, 0x14), Some(TEXT.add(0x10)));
        assert_eq!(inside(0x10, 0x15), None);
        assert_eq!(inside(0x0b, 0x10), None);
        assert_eq!(inside(0x1b, 0x21), Some(TEXT.add(0x20)));
        assert_eq!(inside(0x20, 0x30), None);
    }
}
