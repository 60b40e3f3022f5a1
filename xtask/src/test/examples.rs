//! The library's examples, each with a guest: what they are said to print is what they print.

use super::kvm::{Kvm, Variables};
use super::{programs, say};
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, DEFAULT_KERNEL};
use std::path::Path;
use std::time::Instant;

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

/// Runs all on one KVM.
pub(super) fn run(start: Instant, vmm: &Path, kvm: Kvm) -> anyhow::Result<()> {
    let cache = Cache::open()?;
    let (kernel, initrd) = (cache.kernel(&DEFAULT_KERNEL)?.image, cache.initramfs()?);
    for Example { name, workload, deny, prints } in EXAMPLES {
        say(start, &format!("the example {name}, {}", kvm.words()));
        let variables = Variables::default()
            .with("CMDLINE", format!("workload={workload}"))
            .with("DENY", deny)
            .with_file("KERNEL", &kernel)
            .with_file("INITRD", &initrd);
        let mut command = kvm.command(vmm, &programs::example(name)?, variables);
        let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{name} failed:\n{printed}{said}");
        for line in prints {
            let is_it = |printed: &str| printed.starts_with(line) || printed.ends_with(line);
            ensure!(printed.lines().any(is_it), "{name} did not print `{line}`:\n{printed}{said}");
        }
    }
    Ok(())
}
