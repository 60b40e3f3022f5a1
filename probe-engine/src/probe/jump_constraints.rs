//! What a kernel's file says of the bytes from an instruction on, which a jump there would take the place of.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::addr::Gva;
use crate::linux::left_alone::Why;
use crate::linux::patched::PatchedText;
use crate::linux::targets::JumpTargets;

/// The most bytes that whole instructions have which cover the 5 of a jump: 4, and one of 15.
const MOST: u64 = 19;

/// What is in the way of a jump, of all that is in the tables of a kernel. The live text decides the rest.
///
/// It is little, so that it can be sent to where the guest runs. All addresses are link-time addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JumpConstraints {
    at: Gva,
    left_alone: Option<(Gva, Why)>,
    fixup: Option<Gva>,
    target: Option<Gva>,
}

impl JumpConstraints {
    /// What there is from `at` on.
    #[must_use]
    pub fn at(at: Gva, patched: &PatchedText, targets: &JumpTargets) -> Self {
        let range = at..at.add(MOST);
        Self {
            at,
            left_alone: patched.first(&range, |why| !why.is_settled_late()),
            fixup: patched.first_fixup(&range),
            target: targets.first_inside(&range),
        }
    }

    /// The instruction.
    #[must_use]
    pub fn start(&self) -> Gva {
        self.at
    }

    /// Why the instruction with these bytes is left alone by all, if it is.
    pub(crate) fn covers(&self, bytes: &Range<Gva>) -> Option<Why> {
        self.left_alone.filter(|(at, _)| at.is_in(bytes)).map(|(_, why)| why)
    }

    /// Whether an instruction that begins in these bytes may fault and be resumed elsewhere.
    pub(crate) fn has_fixup(&self, bytes: &Range<Gva>) -> bool {
        self.fixup.is_some_and(|at| at.is_in(bytes))
    }

    /// The first place behind the start, and before `end`, that something leads to.
    pub(crate) fn target_before(&self, end: Gva) -> Option<Gva> {
        self.target.filter(|at| *at < end)
    }
}
