//! Tests whose guest the emulator has failed: QEMU delivers an interrupt twice now and then, and the guest's kernel dies of
//! that. What such a kernel writes can be told from all that a processor brings about.

use guest_kernels::console::EMULATOR_AT_FAULT;

/// The tests that have failed in this output of a test program, if the emulator is to blame for each.
pub(super) fn repeatable(printed: &str) -> Option<Vec<String>> {
    let failed = printed.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
    let failed: Vec<String> = failed.map(str::to_owned).collect();
    let is_of_emulator = |test: &String| said(printed, test).contains(EMULATOR_AT_FAULT);
    (!failed.is_empty() && failed.iter().all(is_of_emulator)).then_some(failed)
}

/// What a test has printed.
fn said<'a>(printed: &'a str, test: &str) -> &'a str {
    let rest = printed.split_once(&format!("---- {test} stdout ----\n")).map_or("", |(_, rest)| rest);
    let end = rest.find("\n---- ").or_else(|| rest.find("\nfailures:\n")).unwrap_or(rest.len());
    rest.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(first: &str, second: &str) -> String {
        format!(
            "running 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c::d ... FAILED\n\nfailures:\n\n\
             ---- b stdout ----\n{first}\n---- c::d stdout ----\n{second}\n\nfailures:\n    b\n    c::d\n\n{EMULATOR_AT_FAULT}"
        )
    }

    #[test]
    fn all_that_have_failed_must_be_the_emulators() {
        assert_eq!(
            repeatable(&printed(EMULATOR_AT_FAULT, "this, by a fault of QEMU")),
            Some(vec!["b".to_owned(), "c::d".to_owned()])
        );
        assert_eq!(repeatable(&printed(EMULATOR_AT_FAULT, "assertion failed")), None);
        assert_eq!(repeatable(&printed("assertion failed", EMULATOR_AT_FAULT)), None);
        assert_eq!(repeatable("test a ... ok\nby a fault of QEMU\n"), None);
    }
}
