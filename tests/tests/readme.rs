//! What the README shows is what happens.

use tests::kernel::is_default;
use tests::product::{binary, command};
use tests::readme::examples;

/// Those of the program alone, and of a kernel that was built, have tests of their own.
#[test]
fn every_command_prints_what_is_shown() {
    if !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let examples: Vec<_> =
        examples().into_iter().filter(|example| example.program == "vmm" && !example.needs_build()).collect();
    assert!(examples.len() >= 2);
    for example in examples {
        let words: Vec<&str> = example.words.iter().map(String::as_str).collect();
        let output = command(&binary, std::env::temp_dir().as_path(), &words).output().unwrap();
        example.assert_printed_by(&output);
    }
}
