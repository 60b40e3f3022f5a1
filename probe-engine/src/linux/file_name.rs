//! Names of files and folders in the kernel's memory.

use crate::addr::Gva;
use crate::paging::PageFault;
use crate::virt_memory::{ReadVirt, page_rest};

/// Appends the name at `at` (GVA) to `path`, at most `LONGEST` bytes. The page behind it need not be there.
///
/// # Errors
/// [`PageFault`] where the name goes on and no memory is.
pub(super) fn append_name<const LONGEST: usize, M: ReadVirt + ?Sized>(
    memory: &M,
    at: Gva,
    path: &mut Vec<u8>,
) -> Result<(), PageFault> {
    let mut bytes = [0; LONGEST];
    let (now, later) = bytes.split_at_mut(page_rest(at).min(LONGEST));
    memory.read(at, now)?;
    if !now.contains(&0) && !later.is_empty() {
        memory.read(at.add(now.len() as u64), later)?;
    }
    path.extend(bytes.iter().take_while(|byte| **byte != 0));
    Ok(())
}
