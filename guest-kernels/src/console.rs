//! What a guest says on its console of itself, for whoever asks whether it did what it was to do.

/// The number behind `key=` in the workload's line that begins with `line`.
#[must_use]
pub fn number(console: &str, line: &str, key: &str) -> Option<u64> {
    let prefix = format!("workload: {line} ");
    let words = console.lines().find_map(|l| l.trim().strip_prefix(&prefix))?;
    words.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?.parse().ok()
}

/// The line in which the guest's kernel complains, if it does. What it says of the CPU's own defects is none of that.
#[must_use]
pub fn complaint(console: &str) -> Option<&str> {
    const COMPLAINTS: [&str; 6] = ["WARNING:", "BUG:", "Oops", "Call Trace", "ftrace faulted", "soft lockup"];
    const OF_THE_CPU: &str = "RETBleed: WARNING:";
    let complains = |line: &&str| COMPLAINTS.iter().any(|complaint| line.contains(complaint));
    console.lines().filter(|line| !line.contains(OF_THE_CPU)).find(complains)
}

/// In what the product and the tests say where the emulator has interrupted a guest as no processor does, so that a test that
/// has failed says nothing.
pub const EMULATOR_AT_FAULT: &str = "by a fault of QEMU";
