//! Lines of JSON that a terminal may show.

use probe_engine::guest_text::is_special;
use serde::Serialize;
use std::io::{self, Write};

/// Writes `line`, and ends it.
pub(crate) fn json(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    line.serialize(&mut serde_json::Serializer::with_formatter(&mut *out, Plain))?;
    out.write_all(b"\n")
}

/// JSON in which what would act on a terminal, or have no width there, is written as an escape. JSON itself wants that
/// below U+0020 only.
struct Plain;

impl serde_json::ser::Formatter for Plain {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        escape(out, fragment)
    }
}

/// Writes `text` with such characters as escapes, of which JSON has them in strings alone.
pub(crate) fn escape<W: ?Sized + Write>(out: &mut W, text: &str) -> io::Result<()> {
    let mut rest = text;
    while let Some((at, special)) = rest.char_indices().find(|(_, c)| is_special(*c)) {
        let (plain, behind) = rest.split_at(at);
        out.write_all(plain.as_bytes())?;
        let mut units = [0; 2];
        for unit in special.encode_utf16(&mut units) {
            write!(out, "\\u{unit:04x}")?;
        }
        rest = behind.get(special.len_utf8()..).unwrap_or_default();
    }
    out.write_all(rest.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_acts_on_a_terminal_and_all_of_it_is_read_again() {
        let text = "a\u{1b}[2K\u{9b}2J\u{7f}\u{202e}\u{e0041}\"\\\nü";
        let mut out = Vec::new();
        json(&mut out, &text).unwrap();
        let shown = String::from_utf8(out).unwrap();
        let escaped = r"\u001b[2K\u009b2J\u007f\u202e\udb40\udc41";
        assert_eq!(shown, format!("\"a{escaped}\\\"\\\\\\nü\"\n"));
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }
}
