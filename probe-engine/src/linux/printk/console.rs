//! The log as a console shows it, for where its ring cannot be read: only what the loglevel lets through, and what processes write
//! there looks the same.

use super::record::{PrintkCaller, PrintkRecord};

/// The record that a line of the console is: `[    1.234567] text`, and with `CONFIG_PRINTK_CALLER` `[    1.234567][  T137] text`.
#[must_use]
pub fn record(line: &[u8]) -> PrintkRecord {
    let stamped = bracketed(line).and_then(|(inside, rest)| Some((nanos(inside)?, rest)));
    let (nanos, rest) = stamped.unwrap_or((0, line));
    let named = bracketed(rest).and_then(|(inside, rest)| Some((caller(inside)?, rest)));
    let (caller, rest) = named.unwrap_or((PrintkCaller::Task(0), rest));
    let text = rest.strip_prefix(b" ").filter(|_| stamped.is_some()).unwrap_or(rest);
    PrintkRecord { sequence: 0, nanos, facility: 0, caller, text: text.trim_ascii_end().to_vec() }
}

/// What is between brackets at the start of a line, and what follows.
fn bracketed(line: &[u8]) -> Option<(&str, &[u8])> {
    let inside = line.strip_prefix(b"[")?;
    let end = inside.iter().position(|byte| *byte == b']')?;
    let (inside, rest) = inside.split_at_checked(end)?;
    Some((str::from_utf8(inside).ok()?.trim_start(), rest.get(1..)?))
}

/// `1.234567`
fn nanos(stamp: &str) -> Option<u64> {
    let (seconds, micros) = stamp.split_once('.').filter(|(_, micros)| micros.len() == 6)?;
    let (seconds, micros): (u64, u64) = (seconds.parse().ok()?, micros.parse().ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(micros * 1000)
}

/// `T137` is a task, `C1` a CPU.
fn caller(name: &str) -> Option<PrintkCaller> {
    match name.split_at_checked(1)? {
        ("T", number) => Some(PrintkCaller::Task(number.parse().ok()?)),
        ("C", number) => Some(PrintkCaller::Cpu(number.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_console_is_a_record() {
        let of = |line: &str| {
            let record = record(line.as_bytes());
            (record.nanos, record.caller, String::from_utf8(record.text).unwrap())
        };
        let none = PrintkCaller::Task(0);
        assert_eq!(of("[    1.234567] BUG: x\r"), (1_234_567_000, none, "BUG: x".to_owned()));
        assert_eq!(
            of("[   12.000001][  T137]  f+0x1/0x2"),
            (12_000_001_000, PrintkCaller::Task(137), " f+0x1/0x2".to_owned())
        );
        assert_eq!(of("[    1.234567][    C1] x"), (1_234_567_000, PrintkCaller::Cpu(1), "x".to_owned()));
        for plain in ["", "[", " x", "[x] y", "[ BUG: Invalid wait context ]"] {
            assert_eq!(of(plain), (0, none, plain.to_owned()));
        }
    }
}
