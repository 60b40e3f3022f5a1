//! The library's examples, each with a guest: what they are said to print is what they print.

use super::kvm::{Kvm, Variables};
use super::pool::Job;
use super::programs::Programs;
use guest_kernels::{Cache, DEFAULT_KERNEL};
use std::path::Path;

/// A program, what it is given, and lines that it prints.
struct Example {
    name: &'static str,
    /// What the guest does.
    workload: &'static str,
    /// What of the guest's programs is denied.
    deny: &'static str,
    /// Beginnings of lines.
    prints: &'static [&'static str],
}

const EXAMPLES: [Example; 3] = [
    Example {
        name: "etc_opens",
        workload: "open:3",
        deny: "",
        prints: &[
            "init opened /etc/group 1 times",
            "init opened /etc/hostname 1 times",
            "init opened /etc/passwd 1 times",
            "3 opens, 0 missed; the guest switched the machine off",
        ],
    },
    Example {
        name: "exec_guard",
        workload: "fork:2",
        deny: "/proc/self/exe",
        prints: &[
            "ran /init",
            "denied /proc/self/exe",
            "security_bprm_check: 2 hits, 0 missed",
            "finalize_exec: 1 hits, 0 missed",
            // Its init could not do what it was to do.
            "the guest panicked: Attempted to kill init!",
        ],
    },
    Example {
        name: "read_latency",
        workload: "open:3",
        deny: "",
        prints: &["init: ", "0 missed; the guest switched the machine off"],
    },
];

/// All of them, on one KVM.
pub(super) fn jobs(vmm: &Path, kvm: Kvm, programs: &Programs) -> anyhow::Result<Vec<Job>> {
    let cache = Cache::open()?;
    let (kernel, initrd) = (cache.kernel(&DEFAULT_KERNEL)?.image, cache.initramfs()?);
    let job = |Example { name, workload, deny, prints }| {
        let variables = Variables::default()
            .with("CMDLINE", format!("workload={workload}"))
            .with("DENY", deny)
            .with_file("KERNEL", &kernel)
            .with_file("INITRD", &initrd);
        let command = kvm.command(vmm, programs.example(name)?, variables);
        Ok(Job::new(format!("the example {name}, {}", kvm.words()), command).printing(prints))
    };
    EXAMPLES.into_iter().map(job).collect()
}
