//! A report, and what tells it from others.

use super::frame::{SplatFrame, SplatTask};
use super::helpers::reports;
use super::kind::SplatKind;

/// One report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Splat {
    /// What it is about.
    pub kind: SplatKind,
    /// What it says, in one line, without addresses.
    pub title: String,
    /// When it began, by the guest's clock.
    pub nanos: u64,
    /// The task that ran, or that is spoken of.
    pub task: Option<SplatTask>,
    /// The CPU that is spoken of.
    pub cpu: Option<u32>,
    /// How the kernel was tainted before, in the kernel's letters; empty where it was not.
    pub taint: Option<String>,
    /// The line of the source that the text names.
    pub at: Option<String>,
    /// Where it happened, and who had called: the first stack, without guesses.
    pub frames: Vec<SplatFrame>,
    /// The entry of an interrupt in it that no processor takes: the machine that emulates the processor is at fault.
    pub impossible: Option<String>,
    /// Its lines, as far as they are kept.
    pub text: Vec<String>,
}

/// So many frames make a fingerprint.
const FINGERPRINT_FRAMES: usize = 5;

impl Splat {
    /// The frames that are not the kernel's ways to report.
    pub fn own_frames(&self) -> impl Iterator<Item = &SplatFrame> {
        self.frames.iter().filter(|frame| !reports(frame.source_name(), self.kind))
    }

    /// What tells this one from others, in all runs and, as long as functions keep their names, in all kernels: its kind and its
    /// first frames. Where it has no stack, it is its title without numbers.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let frames: Vec<&str> =
            self.own_frames().take(FINGERPRINT_FRAMES).map(SplatFrame::source_name).collect();
        let rest = if frames.is_empty() { without_numbers(&self.title) } else { frames.join(",") };
        format!("{}:{rest}", self.kind.name())
    }
}

/// `text` as a word in which numbers do not count.
fn without_numbers(text: &str) -> String {
    let mut word = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if word.ends_with('N') => {}
            '0'..='9' => word.push('N'),
            c if c.is_whitespace() => word.push('_'),
            c => word.push(c),
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_of_the_frames_that_mean_something() {
        let frame = |function: &str| SplatFrame {
            function: function.to_owned(),
            place: None,
            is_return: true,
            module: None,
        };
        let splat = |frames: &[&str]| Splat {
            kind: SplatKind::Warning,
            title: "WARNING on 12 of 345".to_owned(),
            nanos: 0,
            task: None,
            cpu: None,
            taint: None,
            at: None,
            frames: frames.iter().map(|function| frame(function)).collect(),
            impossible: None,
            text: Vec::new(),
        };
        let stack = ["dump_stack_lvl", "a.isra.0", "__warn", "b.cold", "c", "d.constprop.0", "e", "f"];
        assert_eq!(splat(&stack).fingerprint(), "warning:a,b,c,d,e");
        assert_eq!(splat(&["__warn"]).fingerprint(), "warning:WARNING_on_N_of_N");
    }
}
