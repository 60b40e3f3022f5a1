//! Files of cases of this repository, and what `vmm test` says of them.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

/// A file of cases of this repository.
pub fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(name)
}

/// The name of a case that [`keep_from_recording`] keeps from being recorded.
pub const UNRECORDED: &str = "what cannot be recorded says nothing of the kernel";

/// Puts a folder where the case [`UNRECORDED`] would write its recording: who cannot write a recording cannot run its case.
/// `output` is where the cases leave what they leave, and `number` the place of the case on `kernel` among all of them.
///
/// # Panics
/// When there cannot be a folder.
pub fn keep_from_recording(output: &Path, number: usize, kernel: &str) {
    let case = format!("{number:03}-{kernel}-{UNRECORDED}").replace([' ', ':'], "-");
    fs::create_dir_all(output.join(case).join("recording.json")).unwrap();
}

/// What came of a case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CaseVerdict {
    /// As the file has it.
    pub kernel: String,
    /// The name of the case.
    pub name: String,
    /// In one word.
    pub verdict: String,
}

/// The lines of JSON of an output, in the order of the kernels and names.
///
/// # Panics
/// When they are something else.
pub fn verdicts(output: &Output) -> Vec<CaseVerdict> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().map(|line| {
        serde_json::from_str::<Value>(line)
            .unwrap_or_else(|error| panic!("`{line}`: {error}\n{}", String::from_utf8_lossy(&output.stderr)))
    });
    let word = |line: &Value, key: &str| line[key].as_str().unwrap_or_else(|| panic!("{line}")).to_owned();
    let mut verdicts: Vec<_> = lines
        .filter(|line| line["type"] == "case")
        .map(|line| CaseVerdict {
            kernel: word(&line, "kernel"),
            name: word(&line, "name"),
            verdict: word(&line, "verdict"),
        })
        .collect();
    verdicts.sort();
    verdicts
}
