//! The interrupt table.

use super::finding::{Finding, What};
use super::subject::Subject;
use super::walk::Unreadable;
use crate::addr::Gva;
use crate::linux::kernel::Kernel;
use crate::memory::PhysMemory;
use std::ops::Range;

/// Bytes of a gate (Intel SDM volume 3, 7.14.1).
const GATE: usize = 16;
const GATES: usize = 256;
const PRESENT: u8 = 1 << 7;

/// Calls `tell` with each gate that leads to no entry of the kernel's, and says how many there are.
pub(super) fn check<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    tell: &mut dyn FnMut(Finding),
) -> Result<u64, Unreadable> {
    const UNKNOWN: Unreadable = Unreadable::Unknown("interrupt table");
    let Subject { kernel, running, memory, .. } = subject;
    let table = kernel.symbol("idt_table").ok_or(UNKNOWN)?;
    let entries = entries(kernel);
    let mut bytes = [0; GATE * GATES];
    memory.phys.read(running.map.gpa(table), &mut bytes).map_err(|_| UNKNOWN)?;
    let mut looked_at = 0;
    let (gates, _) = bytes.as_chunks::<GATE>();
    for (gate, vector) in gates.iter().zip(0..=u8::MAX) {
        let [a, b, _, _, _, kind, c, d, e, f, g, h, ..] = *gate;
        if kind & PRESENT == 0 {
            continue;
        }
        looked_at += 1;
        let to = Gva(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        if !entries.iter().any(|entries| running.map.link(to).is_in(entries)) {
            let at = running.map.gva(table).add(u64::from(vector) * GATE as u64);
            tell(Finding { at, what: What::Gate { vector, to } });
        }
    }
    Ok(looked_at)
}

/// Where the kernel's entries are, at link-time addresses. Exceptions that no CPU raises keep those of the early boot.
pub(super) fn entries(kernel: &Kernel) -> Vec<Range<Gva>> {
    let own = || Some(kernel.symbol("__entry_text_start")?..kernel.symbol("__entry_text_end")?);
    let early = || kernel.function(kernel.symbol("early_idt_handler_array")?);
    own().into_iter().chain(early()).collect()
}
