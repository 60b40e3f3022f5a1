//! Findings of the guard on their way out.

use super::names::GuestNames;
use super::stands;
use crate::record::{FindingLine, StoodStack};
use vmm::guard::{Finding, Writer};

/// The line of `finding`, with names.
pub(super) fn line(finding: &Finding, names: &GuestNames) -> FindingLine {
    let stack = match &finding.writer {
        Writer::Vcpu { stack, .. } => stands::named_stack(stack.as_ref(), names),
        Writer::Device => StoodStack::default(),
    };
    FindingLine::of(finding, |at| names.symbol(at), stack)
}
