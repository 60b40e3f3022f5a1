//! Functions of the kernel that copy memory wherever they are called, and say so when it is not there (mm/maccess.c,
//! arch/x86/mm/maccess.c).

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions};
use serde::{Deserialize, Serialize};

use super::kernel::Kernel;
use super::per_cpu;
use crate::addr::Gva;
use crate::linux::targets::branch_target;

/// Bytes of a task's stack, and of the stack of a CPU's interrupts (arch/x86/include/asm/page_64_types.h).
pub const STACK: u64 = 16 << 10;

/// How the names of functions begin that no copy comes to which goes right. Most of them say that one goes wrong;
/// `find_vmap_area` is not called while page faults are off (mm/usercopy.c); the last two stand for what the guest puts
/// into its text while it boots.
const NOT_CALLED: [&str; 10] = [
    "usercopy_abort",
    "usercopy_warn",
    "__ubsan_handle_",
    "__warn_printk",
    "_printk",
    "panic",
    "__stack_chk_fail",
    "find_vmap_area",
    "__SCT__",
    "_einittext",
];

/// The functions, at link-time addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nofault {
    /// How they are called.
    pub copies: Copies,
    /// They, and all that they call. Apart from each other, in order.
    functions: Vec<Range<Gva>>,
}

/// How the functions are called, and on which stacks, in a kernel that was not moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// `copy_from_kernel_nofault(to, from, size)`, and the same of a process's memory: 0, or an error.
    pub bytes: [Gva; 2],
    /// `strncpy_from_kernel_nofault(to, from, size)`, and the same of a process's memory: the length with the NUL, `size` at
    /// most, or an error.
    pub string: [Gva; 2],
    /// Offset of `task_struct.stack`.
    pub stack: u64,
    /// `hardirq_stack_ptr`, from the kernel's GS base: the last word of the stack of its interrupts.
    pub irq_stack: Option<u64>,
}

impl Copies {
    /// The same where KASLR has moved the kernel by `slide`.
    #[must_use]
    pub fn slid(self, slide: u64) -> Self {
        let [bytes, string] = [self.bytes, self.string].map(|pair| pair.map(|at| at.add(slide)));
        let irq_stack = self.irq_stack.map(|offset| per_cpu::slid(offset, slide));
        Self { bytes, string, irq_stack, ..self }
    }
}

impl Nofault {
    /// Finds them; `None` in a kernel without them, or without type information.
    #[must_use]
    pub fn of(kernel: &Kernel) -> Option<Self> {
        let btf = kernel.btf().ok()?;
        let both = |name: [&str; 2]| -> Option<[Gva; 2]> {
            Some([kernel.symbol(name[0])?, kernel.symbol(name[1])?])
        };
        let copies = Copies {
            bytes: both(["copy_from_kernel_nofault", "copy_from_user_nofault"])?,
            string: both(["strncpy_from_kernel_nofault", "strncpy_from_user_nofault"])?,
            stack: btf.member("task_struct", "stack")?.offset()?,
            irq_stack: per_cpu::hot_offset(
                kernel.symbols(),
                Some(&btf),
                "hardirq_stack_ptr",
                "hardirq_stack_ptr",
            ),
        };
        Some(Self { copies, functions: called(kernel, copies.bytes.into_iter().chain(copies.string))? })
    }

    /// Whether a function of these is at `at`, a link-time address.
    #[must_use]
    pub fn run(&self, at: Gva) -> bool {
        let behind = self.functions.partition_point(|function| function.start <= at);
        behind.checked_sub(1).and_then(|n| self.functions.get(n)).is_some_and(|function| at.is_in(function))
    }
}

/// The functions at `roots`, and what they branch to, and so on. `None` if one of them cannot be found.
fn called(kernel: &Kernel, roots: impl Iterator<Item = Gva>) -> Option<Vec<Range<Gva>>> {
    let mut todo: Vec<Gva> = roots.collect();
    let mut functions = BTreeMap::new();
    while let Some(at) = todo.pop() {
        let found = kernel.symbols().function_at(at)?;
        let function = found.range();
        let is_called = !NOT_CALLED.iter().any(|name| found.symbol.name.starts_with(name));
        if !is_called || functions.insert(function.start, function.clone()).is_some() {
            continue;
        }
        let code = kernel.image().bytes(&function)?;
        let decoder = Decoder::with_ip(64, code, function.start.0, DecoderOptions::NONE);
        let targets = decoder.into_iter().filter_map(|instruction| branch_target(&instruction));
        todo.extend(targets.filter(|target| !target.is_in(&function) && kernel.function(*target).is_some()));
    }
    Some(functions.into_values().collect())
}
