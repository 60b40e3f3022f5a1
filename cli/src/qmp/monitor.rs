//! Lines of QEMU's monitor for people, which debuggers send as well, and the texts with which it answers.

use super::error::QmpError;
use super::seen::SeenMemory;
use crate::control::Connection;
use crate::vmcore;
use probe_engine::addr::Gpa;
use std::fmt::Write as _;
use std::ops::Range;

/// So many bytes are shown at most.
const MOST_SHOWN: usize = 64 << 10;

/// A line.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// Where memory is.
    MemoryTree,
    /// Where this is in the monitor's process.
    HostAddress(Gpa),
    /// What is there: so many units of so many bytes.
    Show { at: Gpa, count: usize, size: usize },
}

/// Carries a line out, and gives what is to be printed.
pub(super) fn execute(line: &str, guest: &mut Connection, seen: &mut SeenMemory) -> Result<String, QmpError> {
    match parse(line) {
        Err(text) => Ok(text),
        Ok(Line::MemoryTree) => {
            let ram = vmcore::ram(guest).map_err(|error| generic(&error))?;
            Ok(memory_tree(&ram))
        }
        // What is there has traps of ours, and in the emulated host it is no memory of this machine's.
        Ok(Line::HostAddress(at)) => {
            Ok(format!("Memory at address {:#x} is not RAM of this process\r\n", at.0))
        }
        Ok(Line::Show { at, count, size }) => {
            // One that is gone is found by the next command.
            let bytes = seen.read(at, count * size, guest);
            Ok(bytes.map_or_else(|_| no_memory(at), |bytes| shown(at, &bytes, size)))
        }
    }
}

fn generic(error: &anyhow::Error) -> QmpError {
    QmpError::Told { class: "GenericError", why: format!("{error:#}") }
}

/// What a line means, or what is printed of one that means nothing.
fn parse(line: &str) -> Result<Line, String> {
    let mut words = line.split_ascii_whitespace();
    let word = words.next().unwrap_or_default();
    let unknown = || format!("unknown command: '{word}'\r\n");
    let wrong = || format!("{word}: invalid or missing arguments\r\n");
    let rest: Vec<&str> = words.collect();
    match (word, &*rest) {
        ("info", ["mtree"] | ["mtree", "-f"]) => Ok(Line::MemoryTree),
        ("gpa2hva", [at]) => Ok(Line::HostAddress(address(at).ok_or_else(wrong)?)),
        ("xp", [at]) => Ok(Line::Show { at: address(at).ok_or_else(wrong)?, count: 1, size: 4 }),
        ("xp", [format, at]) => {
            let (count, size) = units(format).ok_or_else(wrong)?;
            Ok(Line::Show { at: address(at).ok_or_else(wrong)?, count, size })
        }
        ("gpa2hva" | "xp", _) => Err(wrong()),
        _ => Err(unknown()),
    }
}

/// How many units of how many bytes a format has, as `/16xb`.
fn units(format: &str) -> Option<(usize, usize)> {
    let format = format.strip_prefix('/')?;
    let letters = format.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let count = match format.strip_suffix(letters)? {
        "" => 1,
        digits => digits.parse().ok()?,
    };
    let mut size = 4;
    for letter in letters.chars() {
        size = match letter {
            'x' => size,
            'b' => 1,
            'h' => 2,
            'w' => 4,
            'g' => 8,
            _ => return None,
        };
    }
    (1..=MOST_SHOWN / size).contains(&count).then_some((count, size))
}

fn address(text: &str) -> Option<Gpa> {
    let hexadecimal = text.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    hexadecimal.unwrap_or_else(|| text.parse()).ok().map(Gpa)
}

/// `info mtree -f` of a machine that has nothing but RAM.
fn memory_tree(ram: &[Range<Gpa>]) -> String {
    let mut text =
        "FlatView #0\r\n AS \"memory\", root: system\r\n Root memory region: system\r\n".to_owned();
    for range in ram {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "  {:016x}-{:016x} (prio 0, ram): ram\r\n",
            range.start.0,
            range.end.0.saturating_sub(1)
        );
    }
    text
}

/// What `xp` prints of memory that is not there.
fn no_memory(at: Gpa) -> String {
    format!("{:016x}: Cannot access memory\r\n", at.0)
}

/// What it prints of memory: units of so many bytes, 16 bytes a line, or 8 of single bytes.
fn shown(at: Gpa, bytes: &[u8], size: usize) -> String {
    let row = if size == 1 { 8 } else { 16 };
    let mut text = String::with_capacity(6 * bytes.len());
    for (units, at) in bytes.chunks(row).zip((at.0..).step_by(row)) {
        let _ = write!(text, "{at:016x}:");
        for unit in units.chunks(size) {
            let value = unit.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
            let _ = write!(text, " 0x{value:0width$x}", width = 2 * size);
        }
        text.push_str("\r\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_debuggers_are_understood() {
        let show = |at, count, size| Ok(Line::Show { at: Gpa(at), count, size });
        for (line, expected) in [
            ("info mtree -f", Ok(Line::MemoryTree)),
            ("gpa2hva 0x0", Ok(Line::HostAddress(Gpa(0)))),
            ("xp /1024xb 0x1f00", show(0x1f00, 1024, 1)),
            ("xp /xg 4096", show(4096, 1, 8)),
            ("xp 0x10", show(0x10, 1, 4)),
            ("xp /2bx 0x10", show(0x10, 2, 1)),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
        for line in [
            "xp",
            "xp /0xb 0x0",
            "xp /65537xb 0",
            "xp /99999999999999999999xb 0",
            "xp /4s 0",
            "xp 4xb 0x0",
            "xp /4xb 0x0 0x1",
            "xp /4xb 0x1ffffffffffffffff",
            "gpa2hva",
        ] {
            assert!(parse(line).unwrap_err().contains("invalid or missing arguments"), "{line}");
        }
        for line in ["", "info qtree", "device_del 0", "migrate \"exec:sh\""] {
            assert!(parse(line).unwrap_err().starts_with("unknown command"), "{line}");
        }
    }

    #[test]
    fn memory_is_printed_as_qemu_does() {
        assert_eq!(
            shown(Gpa(0x1000), &[0x7f, 0x45, 0, 1, 2, 3, 4, 5, 6], 1),
            "0000000000001000: 0x7f 0x45 0x00 0x01 0x02 0x03 0x04 0x05\r\n0000000000001008: 0x06\r\n"
        );
        assert_eq!(
            shown(Gpa(0), &[1, 0, 0, 0, 2, 0, 0, 0], 4),
            "0000000000000000: 0x00000001 0x00000002\r\n"
        );
        let tree = memory_tree(&[Gpa(0)..Gpa(0x2000_0000)]);
        assert!(tree.contains("\r\n  0000000000000000-000000001fffffff (prio 0, ram): ram\r\n"), "{tree}");
    }
}
