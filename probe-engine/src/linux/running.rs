//! Where a running kernel is: KASLR moves its image as a whole, in physical and in virtual memory by its own distance each.

use super::kernel::Kernel;
use super::relocations::RelocatedPointer;
use crate::addr::{Gpa, Gva};
use crate::memory::PhysMemory;
use crate::paging::{Access, AddressSpace};
use std::ops::Range;

/// What the place of a kernel is a multiple of (MIN_KERNEL_ALIGN, arch/x86/include/asm/boot.h).
const ALIGNMENT: u64 = 2 << 20;
/// The kernel's virtual window (KERNEL_IMAGE_SIZE with CONFIG_RANDOMIZE_BASE).
const WINDOW: u64 = 1 << 30;
/// The kernel's own page tables (`swapper_pg_dir`).
const PAGE_TABLES: &str = "init_top_pgt";
/// By which words a kernel is found in memory. They are its version and when it was built.
const BANNER: &str = "linux_banner";
/// So many bytes of these are compared.
const LONGEST_BANNER: usize = 256;

/// Where the running kernel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelMap {
    /// What KASLR added to all link-time virtual addresses.
    slide: u64,
    /// The link-time address of `_text`, and where it lies physically.
    text: (Gva, Gpa),
}

/// A running kernel: where it is, and how its memory is reached whatever its CPUs are doing.
#[derive(Debug, Clone, Copy)]
pub struct RunningKernel {
    /// Where it is.
    pub map: KernelMap,
    /// The kernel's own page tables.
    pub space: AddressSpace,
}

impl KernelMap {
    /// A kernel whose `text` symbol, linked at `.0`, lies at physical `.1`, virtually moved by `slide`.
    #[must_use]
    pub fn new(text: (Gva, Gpa), slide: u64) -> Self {
        Self { slide, text }
    }

    /// The kernel whose `text` lies there, as the pointer says that is `relocated`. `None` where no kernel is there.
    pub fn find<M: PhysMemory + ?Sized>(
        text: (Gva, Gpa),
        relocated: Option<RelocatedPointer>,
        memory: &M,
    ) -> Option<Self> {
        let Some(pointer) = relocated else { return Some(Self::new(text, 0)) };
        let mut moved = [0; 8];
        memory.read(Self::new(text, 0).gpa(pointer.at), &mut moved).ok()?;
        let slide = u64::from_le_bytes(moved).wrapping_sub(pointer.value.0);
        (slide < WINDOW && slide.is_multiple_of(ALIGNMENT)).then(|| Self::new(text, slide))
    }

    /// What KASLR added to all link-time virtual addresses.
    #[must_use]
    pub fn slide(&self) -> u64 {
        self.slide
    }

    /// Where its text was linked, and where that lies in guest-physical memory.
    #[must_use]
    pub fn text(&self) -> (Gva, Gpa) {
        self.text
    }

    /// The address at which the guest uses what was linked at `link`.
    #[must_use]
    pub fn gva(&self, link: Gva) -> Gva {
        link.add(self.slide)
    }

    /// Where was linked what the guest uses at `at`.
    #[must_use]
    pub fn link(&self, at: Gva) -> Gva {
        Gva(at.0.wrapping_sub(self.slide))
    }

    /// Where in guest-physical memory lies what was linked at `link`: the kernel's image is contiguous.
    #[must_use]
    pub fn gpa(&self, link: Gva) -> Gpa {
        let (linked, physical) = self.text;
        physical.add(link.0.wrapping_sub(linked.0))
    }
}

impl RunningKernel {
    /// All places in these `ranges` of physical memory where `kernel` runs, or seems to: where its banner is, and page tables that
    /// lead from its addresses to that very place.
    pub fn find<M: PhysMemory + ?Sized>(kernel: &Kernel, memory: &M, ranges: &[Range<Gpa>]) -> Vec<Self> {
        let image = kernel.image();
        let text = image.text_start();
        let load = image.segments().iter().find(|segment| text.is_in(&segment.range)).map(|found| found.phys);
        let banner = kernel.symbol(BANNER).and_then(|at| Some((at, words(image.bytes_from(at)?))));
        let (Some(load), Some(banner), Some(tables)) = (load, banner, kernel.symbol(PAGE_TABLES)) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let mut read = vec![0; banner.1.len()];
        for range in ranges {
            let first = range.start.0.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX);
            let places = (first..range.end.0).step_by(ALIGNMENT as usize);
            for at in places.map(|at| Gpa(at).add(load.0 % ALIGNMENT)) {
                let here = KernelMap::new((text, at), 0);
                if memory.read(here.gpa(banner.0), &mut read).is_ok() && read == banner.1 {
                    let map = KernelMap::find((text, at), kernel.relocated(), memory);
                    found.extend(map.and_then(|map| Self::at(map, tables, memory)));
                }
            }
        }
        found
    }

    /// The kernel there, with its page `tables` at this link-time address.
    fn at<M: PhysMemory + ?Sized>(map: KernelMap, tables: Gva, memory: &M) -> Option<Self> {
        let (text, at) = map.text();
        AddressSpace::both_depths(map.gpa(tables))
            .into_iter()
            .find(|space| space.translate(memory, map.gva(text), Access::Read) == Ok(at))
            .map(|space| Self { map, space })
    }
}

/// The words at the start of these bytes.
fn words(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().take(LONGEST_BANNER).position(|byte| *byte == 0);
    bytes.get(..end.unwrap_or(LONGEST_BANNER)).unwrap_or_default()
}
