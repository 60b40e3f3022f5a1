//! What single lines of a report say.

use super::frame::{SplatFrame, SplatTask};

/// Longest name that is taken for a function's: `KSYM_NAME_LEN`.
const LONGEST_NAME: usize = 512;

/// `vfs_write+0x1a/0x300 [ext4]`, and what follows is left out.
pub(super) fn frame(text: &str) -> Option<SplatFrame> {
    let (place, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (function, offsets) = place.split_once("+0x")?;
    let (offset, length) = offsets.split_once("/0x")?;
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$');
    if function.is_empty() || function.len() > LONGEST_NAME || !function.chars().all(is_name) {
        return None;
    }
    // A build-id may follow the module's name.
    let module = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let module = module.and_then(|(module, _)| module.split(' ').next());
    Some(SplatFrame {
        function: function.to_owned(),
        place: Some((hex(offset)?, hex(length)?)),
        is_return: false,
        module: module.map(str::to_owned),
    })
}

/// A line of a stack.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TraceLine {
    /// A function that has called.
    Frame(SplatFrame),
    /// A guess, a mark, or an address without a name.
    Passed,
}

/// The line of a stack behind `Call Trace:`; `None` where the stack is over.
pub(super) fn trace(line: &str) -> Option<TraceLine> {
    let text = line.trim_start();
    if text.starts_with("? ") || (text.starts_with('<') && text.ends_with('>')) {
        return Some(TraceLine::Passed);
    }
    if let Some(frame) = frame(text) {
        return Some(TraceLine::Frame(SplatFrame { is_return: true, ..frame }));
    }
    // A process's registers may lie between two parts of a stack.
    let is_register = ["RIP: ", "RSP: ", "RAX: ", "RDX: ", "RBP: ", "R10: ", "R13: ", "Code: "]
        .iter()
        .any(|register| text.starts_with(register));
    let is_number = text.strip_prefix("0x").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_hexdigit()));
    (is_register || is_number).then_some(TraceLine::Passed)
}

/// The function of `RIP: 0010:vfs_write+0x1a/0x300`: one of the kernel's.
pub(super) fn rip(line: &str) -> Option<SplatFrame> {
    frame(line.trim_start().strip_prefix("RIP: 0010:")?)
}

/// What `CPU: 0 UID: 0 PID: 137 Comm: sh Tainted: G        W          6.12.48 #1` says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Heading {
    pub(super) cpu: u32,
    pub(super) task: SplatTask,
    /// Empty where it is not tainted.
    pub(super) taint: String,
}

pub(super) fn heading(line: &str) -> Option<Heading> {
    let (cpu, rest) = number(line.trim_start().strip_prefix("CPU: ")?)?;
    let (_, rest) = rest.split_once(" PID: ").or_else(|| rest.split_once("PID: "))?;
    let (pid, rest) = number(rest)?;
    let rest = rest.strip_prefix(" Comm: ")?;
    let (comm, taint) = taint(rest)?;
    Some(Heading { cpu, task: SplatTask { comm: comm.to_owned(), pid }, taint })
}

/// What is before `Not tainted` or `Tainted: G        W   `, and the letters: a task before it may call itself anything.
pub(super) fn taint(line: &str) -> Option<(&str, String)> {
    if let Some((before, _)) = line.rsplit_once(" Not tainted ") {
        return Some((before, String::new()));
    }
    let (before, taint) = line.rsplit_once(" Tainted: ")?;
    let letters = taint.split_whitespace().take_while(|word| word.chars().all(|c| c.is_ascii_uppercase()));
    Some((before, letters.collect()))
}

/// The number at the start of a text, and what follows.
pub(super) fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at_checked(end)?;
    Some((digits.parse().ok()?, rest))
}

/// `kernel/panic.c:12`, at the start of a text.
pub(super) fn source_line(text: &str) -> Option<String> {
    let word = text.split([' ', '!', ',']).next()?;
    let (file, line) = word.split_once(':')?;
    let (line, _) = number(line)?;
    let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+');
    let is_file =
        [".c", ".h", ".S", ".rs"].iter().any(|end| file.ends_with(end)) && file.chars().all(is_path);
    is_file.then(|| format!("{file}:{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_a_function_with_its_place() {
        let found = frame("e1000_probe.cold+0x1a/0x300 [e1000 0123456789abcdef]").unwrap();
        assert_eq!((found.source_name(), found.module.as_deref()), ("e1000_probe", Some("e1000")));
        assert_eq!(found.place, Some((0x1a, 0x300)));
        for none in ["", "vfs_write", "+0x1/0x2", "a b+0x1/0x2", "0x1/0x2", "f+0x1/0xg", "f+0x/0x"] {
            assert_eq!(frame(none), None, "{none}");
        }
    }

    #[test]
    fn a_heading_has_cpu_task_and_taint() {
        let read = |line| {
            let found = heading(line)?;
            Some((found.cpu, found.task.comm, found.task.pid, found.taint))
        };
        let line = "CPU: 1 PID: 137 Comm: a Tainted: x Not tainted 6.1.0-47-amd64 #1  Debian 6.1.164-1";
        assert_eq!(read(line), Some((1, "a Tainted: x".to_owned(), 137, String::new())));
        let line = "CPU: 0 UID: 0 PID: 1 Comm: sh Tainted: G      D W          6.12.117+deb12-amd64 #1";
        assert_eq!(read(line), Some((0, "sh".to_owned(), 1, "GDW".to_owned())));
        assert_eq!(read("CPU: 0 PID: 1 Comm: sh"), None);
    }

    #[test]
    fn a_line_of_the_source_is_a_file_and_a_number() {
        assert_eq!(source_line("mm/slub.c:12!").as_deref(), Some("mm/slub.c:12"));
        assert_eq!(source_line("lib/ubsan.c:3:7 x").as_deref(), Some("lib/ubsan.c:3"));
        assert_eq!(source_line("a:b"), None);
    }
}
