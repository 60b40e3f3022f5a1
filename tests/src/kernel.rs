//! The kernel under test: the one of the manifest that `VMM_TEST_KERNEL` names, otherwise the default one.

use crate::linux_rig::subject;
use guest_kernels::{DEFAULT_KERNEL, Flavour, KERNELS, Kernel};

/// Functions of 6.12, and what kernels that do not have them call instead.
const RENAMED: [(&str, &str); 5] = [
    ("do_filp_open", "do_file_open"),
    ("do_rmdir", "filename_rmdir"),
    ("getname", "getname_flags"),
    ("pipe_read", "anon_pipe_read"),
    ("pipe_write", "anon_pipe_write"),
];

/// Has the guest's kernel probe itself by its tracefs, at vfs_rmdir and behind `OFFSET` bytes of vfs_mkdir: for its shell.
pub const KPROBES: &str = "\
set -e
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo 'p:entry vfs_rmdir' > kprobe_events
echo 'r:back vfs_rmdir' >> kprobe_events
echo 'p:inside vfs_mkdir+OFFSET' >> kprobe_events
echo 1 > events/kprobes/enable
";

/// The kernel that guests run.
pub fn under_test() -> &'static Kernel {
    let name = std::env::var("VMM_TEST_KERNEL").unwrap_or_else(|_| DEFAULT_KERNEL.to_string());
    let known = KERNELS.iter().find(|kernel| kernel.to_string() == name);
    known.unwrap_or_else(|| panic!("VMM_TEST_KERNEL={name} names no kernel of the manifest"))
}

/// Whether it is the default one. Otherwise prints why a test of that alone is skipped.
pub fn is_default() -> bool {
    let is = *under_test() == DEFAULT_KERNEL;
    if !is {
        println!("skipped: what is tested is about {DEFAULT_KERNEL} alone");
    }
    is
}

/// Whether it has PREEMPT_RT. Otherwise prints why a test of that is skipped.
pub fn is_realtime() -> bool {
    let is = under_test().flavour == Flavour::Realtime;
    if !is {
        println!("skipped: {} is no realtime kernel", under_test());
    }
    is
}

/// What the kernel under test calls `function` of 6.12.
pub fn name_of(function: &'static str) -> &'static str {
    if subject().kernel.symbol(function).is_some() {
        return function;
    }
    RENAMED.iter().find(|(known, _)| *known == function).map_or(function, |(_, new)| new)
}
