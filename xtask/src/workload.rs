//! What the guest's workload said that it did.

/// The number behind `key=` in its last line, `workload: done openat=20 ...`.
pub(crate) fn done(console: &[String], key: &str) -> Option<u64> {
    let line = console.iter().find_map(|line| line.trim().strip_prefix("workload: done "))?;
    line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?.parse().ok()
}
