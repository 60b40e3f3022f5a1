//! `System.map`: the symbols that the kernel's build writes with `nm -n` (scripts/mksysmap), one a line as
//! `ffffffff81000000 T _text`.

use super::symbols::{SymbolTable, SymbolTableBuilder, TableFull};
use crate::addr::Gva;
use crate::guest_text::Escaped;

/// A file that is no System.map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SystemMapError {
    /// What distributions put in place of the real one.
    #[error("this System.map has no symbols, only the sentence: {0}")]
    Stub(String),
    /// A line that is not an address, a letter and a name.
    #[error("line {0} is not of the form 'ffffffff81000000 T name'")]
    Line(usize),
    /// No symbol at all.
    #[error("the System.map is empty")]
    Empty,
    /// More or longer symbols than a kernel has.
    #[error("line {line}: {cause}")]
    Full {
        /// The line, counted from 1.
        line: usize,
        /// What is too much.
        cause: TableFull,
    },
}

/// Reads a System.map.
///
/// # Errors
/// [`SystemMapError`] with the first line that cannot be read.
pub fn parse(text: &str) -> Result<SymbolTable, SystemMapError> {
    let mut builder = SymbolTableBuilder::default();
    for (number, line) in text.lines().enumerate() {
        let line_number = number + 1;
        let Some((at, kind, name)) = fields(line) else { return Err(SystemMapError::Line(line_number)) };
        if name.contains(' ') {
            // Debian and Ubuntu: "ffffffffffffffff B The real System.map is in the linux-image-...-dbg package".
            return Err(match number {
                0 => SystemMapError::Stub(
                    Escaped(name.chars().take(200).collect::<String>().as_bytes()).to_string(),
                ),
                _ => SystemMapError::Line(line_number),
            });
        }
        builder
            .push(Gva(at), kind, name)
            .map_err(|cause| SystemMapError::Full { line: line_number, cause })?;
    }
    let table = builder.finish();
    if table.is_empty() { Err(SystemMapError::Empty) } else { Ok(table) }
}

fn fields(line: &str) -> Option<(u64, u8, &str)> {
    let (at, rest) = line.split_once(' ')?;
    let (kind, name) = rest.split_once(' ')?;
    let &[kind] = kind.as_bytes() else { return None };
    let at = u64::from_str_radix(at, 16).ok()?;
    // `nm` has no letter for a symbol of a section that is empty.
    ((kind.is_ascii_alphabetic() || kind == b'?') && !name.is_empty()).then_some((at, kind, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_symbols() {
        let table = parse("ffffffff81000000 T _text\nffffffff81000010 t show\n").unwrap();
        assert_eq!(table.len(), 2);
        assert_eq!(table.address_of("show"), Some(Gva(0xffff_ffff_8100_0010)));
    }

    #[test]
    fn a_symbol_of_an_empty_section_is_one() {
        let table = parse("ffffffff81000000 T _text\nffffffff81960000 ? __smp_locks\n").unwrap();
        assert_eq!(table.address_of("__smp_locks"), Some(Gva(0xffff_ffff_8196_0000)));
        assert_eq!(parse("ffffffff81000000 ! _text\n").unwrap_err(), SystemMapError::Line(1));
    }

    #[test]
    fn errors_are_sentences() {
        let say = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(
            say("ffffffffffffffff B The real System.map is in the linux-image-<version>-dbg package\n"),
            "this System.map has no symbols, only the sentence: The real System.map is in the linux-image-<version>-dbg package"
        );
        assert_eq!(
            say("ffffffffffffffff B \x1b]0;title\x07 of a terminal\n"),
            "this System.map has no symbols, only the sentence: \\x1b]0;title\\x07 of a terminal"
        );
        assert_eq!(say(""), "the System.map is empty");
        let second = "line 2 is not of the form 'ffffffff81000000 T name'";
        for bad in
            ["", "x", "1 TT name", "1 T ", "g T name", "11111111111111111 T name", "1 T two words", "1 é n"]
        {
            assert_eq!(say(&format!("1 T a\n{bad}\n")), second, "{bad}");
        }
        let long = format!("1 T {}", "a".repeat(600));
        assert_eq!(say(&long), "line 1: a symbol's name is longer than 512 bytes");
    }
}
