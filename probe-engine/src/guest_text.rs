//! Text of the guest as people may see it.
//!
//! Names of tasks, strings in memory and symbols of modules are what somebody in the guest has chosen, who need not be
//! its administrator. Written as they are they could end a line, move the cursor to another, or turn the direction of
//! writing, and so look like what this program says itself. Everything that comes from the guest and is shown as
//! text goes through here. JSON has escapes of its own, for the same characters.

use std::fmt::{self, Write};

/// Text on one line: what is no printable character is written as an escape (`\n`, `\x1b`, `\u{202e}`), and so is the
/// backslash. `\x80` to `\xff` are bytes that are no character. So two texts are never written alike.
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a [u8]);

/// The same between quotation marks, with dots behind the second where the text was cut.
#[derive(Debug, Clone, Copy)]
pub struct Quoted<'a> {
    /// The text.
    pub text: &'a [u8],
    /// Whether it goes on.
    pub cut: bool,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        escape(f, self.0, false)
    }
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        escape(f, self.text, true)?;
        f.write_str(if self.cut { "\"..." } else { "\"" })
    }
}

/// Whether `name` is shown as it is.
pub(crate) fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c != '\\' && !is_special(c))
}

fn escape(f: &mut impl Write, text: &[u8], in_quotes: bool) -> fmt::Result {
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' if in_quotes => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                '\t' => f.write_str("\\t")?,
                c if c.is_ascii_control() => write!(f, "\\x{:02x}", u32::from(c))?,
                c if is_special(c) => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        for byte in chunk.invalid() {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// Whether `c` does something to a terminal, or cannot be seen: control characters, those that end lines, have no width
/// (Default_Ignorable_Code_Point) or turn the direction of writing (Unicode Standard, 23.2), and those that are no characters,
/// which XML forbids.
#[must_use]
pub fn is_special(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}')
        || matches!(c, '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fdd0}'..='\u{fdef}' | '\u{fe00}'..='\u{fe0f}')
        || matches!(c, '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}')
        || matches!(c, '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
        || u32::from(c) & 0xfffe == 0xfffe
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_ends_a_line_or_moves_a_cursor_is_escaped() {
        for (text, shown) in [
            (&b"cat"[..], "cat"),
            ("naïve 猫".as_bytes(), "naïve 猫"),
            (b"\r\x1b[1A\x1b[2K", "\\x0d\\x1b[1A\\x1b[2K"),
            (b"a\nb\tc", "a\\nb\\tc"),
            (b"\\n\"", "\\\\n\""),
            (b"\xc2\x9b2J", "\\u{9b}2J"),
            (b"\x9b2J\xff", "\\x9b2J\\xff"),
            ("\u{202e}toor\u{2028}".as_bytes(), "\\u{202e}toor\\u{2028}"),
            (
                "\u{ffff}\u{1fffe}\u{fdd0}\u{3164}\u{fffd}".as_bytes(),
                "\\u{ffff}\\u{1fffe}\\u{fdd0}\\u{3164}\u{fffd}",
            ),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
        }
        assert_eq!(Quoted { text: b"a\"b", cut: false }.to_string(), "\"a\\\"b\"");
        assert_eq!(Quoted { text: b"a", cut: true }.to_string(), "\"a\"...");
    }

    proptest! {
        #[test]
        fn nothing_special_is_left(text: Vec<u8>) {
            let shown = Escaped(&text).to_string();
            prop_assert!(!shown.chars().any(is_special));
            prop_assert_eq!(is_plain(&String::from_utf8_lossy(&text)) && str::from_utf8(&text).is_ok(), shown.as_bytes() == text);
        }

        #[test]
        fn no_byte_more_is_shown_alike(
            text in prop::collection::vec(prop::sample::select(&b"\x9b\xc2\\x9bu{}"[..]), 0..6),
            at: prop::sample::Index,
            byte in prop::sample::select(&b"\x9b\xc2\\x"[..]),
        ) {
            let mut more = text.clone();
            more.insert(at.index(text.len() + 1), byte);
            prop_assert_ne!(Escaped(&text).to_string(), Escaped(&more).to_string());
        }
    }
}
