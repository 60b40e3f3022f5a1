//! What must be known of a kernel while it boots and runs: a few addresses, as plain data.
//!
//! The kernel's file, unpacked, takes hundreds of milliseconds to understand; this takes nothing, and can be sent
//! to wherever the guest runs. All addresses are link-time addresses.

use super::bzimage::KernelJumps;
use super::kernel::Kernel;
use crate::addr::{Gpa, Gva};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The kernel's landmarks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landmarks {
    /// Where its text starts, virtually.
    pub text: Gva,
    /// Where its text starts, physically.
    pub text_load: Gpa,
    /// Its entry point, physically.
    pub entry: Gpa,
    /// Where the image holds a pointer that KASLR relocates.
    pub relocated_pointer: Gva,
    /// That pointer's value before.
    pub relocated_value: Gva,
    /// How its decompressor is left; absent for an ELF file.
    pub boot: Boot,
    /// The last function of the boot before alternatives are applied: `arch_cpu_finalize_init` (since 6.1.39).
    pub early: Option<Gva>,
    /// The first function after: `rest_init`.
    pub late: Option<Gva>,
    /// `panic`.
    pub panic: Option<Gva>,
    /// `free_initmem`.
    pub free_init: Option<Gva>,
    /// Text that is freed after boot.
    pub init_text: Vec<Range<Gva>>,
}

/// What runs before the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Boot {
    /// Nothing: an ELF kernel runs where it was linked.
    Direct,
    /// The decompressor of a bzImage, which is left by these jumps.
    Decompressor(KernelJumps),
    /// A decompressor that nobody has seen before.
    Unknown,
}

impl Landmarks {
    /// Finds them in `kernel`.
    #[must_use]
    pub fn of(kernel: &Kernel) -> Self {
        let image = kernel.image();
        let text = image.text_start();
        let segment = image.segments().iter().find(|segment| segment.range.contains(&text));
        let (relocated_pointer, relocated_value) = kernel.relative_base();
        let init_text =
            image.sections().filter(|s| image.is_init_text(s.range.start)).map(|s| s.range).collect();
        Self {
            text,
            text_load: segment.map_or(Gpa(0), |segment| segment.phys),
            entry: image.entry(),
            relocated_pointer,
            relocated_value,
            boot: kernel.boot(),
            early: kernel.symbol("arch_cpu_finalize_init"),
            late: kernel.symbol("rest_init"),
            panic: kernel.symbol("panic"),
            free_init: kernel.symbol("free_initmem"),
            init_text,
        }
    }

    /// Whether `at` is freed after boot.
    #[must_use]
    pub fn is_init_text(&self, at: Gva) -> bool {
        self.init_text.iter().any(|range| range.contains(&at))
    }
}
