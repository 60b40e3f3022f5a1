//! Who is called at the kernel's own tracepoints.

use super::super::subject::Subject;
use super::super::walk::Unreadable;
use crate::addr::Gva;
use crate::memory::PhysMemory;

/// Where the kernel's file lists them: each is so far from where that stands (include/linux/tracepoint-defs.h).
const LIST: [&str; 2] = ["__start___tracepoints_ptrs", "__stop___tracepoints_ptrs"];
/// So many are called at one.
const MOST: u64 = 1 << 12;

/// Calls `called` with each tracepoint, and whom it calls.
pub(super) fn read<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    called: &mut dyn FnMut(Gva, Gva),
) -> Result<(), Unreadable> {
    const UNKNOWN: Unreadable = Unreadable::Unknown("tracepoints");
    let kernel = subject.kernel;
    let [Some(start), Some(end)] = LIST.map(|name| kernel.symbol(name)) else { return Ok(()) };
    let functions = subject.offset("tracepoint", "funcs").ok_or(UNKNOWN)?;
    let function = subject.offset("tracepoint_func", "func").ok_or(UNKNOWN)?;
    let size = subject.btf.size_of("tracepoint_func").ok_or(UNKNOWN)?;
    let listed = kernel.image().bytes(&(start..end)).ok_or(UNKNOWN)?;
    let (listed, _) = listed.as_chunks();
    for (place, distance) in (start.0..).step_by(4).map(Gva).zip(listed) {
        let tracepoint = subject.running.map.gva(place.offset(i32::from_le_bytes(*distance).into()));
        let functions = subject.pointer(tracepoint.add(functions))?;
        // Behind the last one there is none.
        for number in 0..if functions.0 == 0 { 0 } else { MOST } {
            let handler = subject.pointer(functions.add(size * number + function))?;
            if handler.0 == 0 {
                break;
            }
            called(tracepoint, handler);
        }
    }
    Ok(())
}
