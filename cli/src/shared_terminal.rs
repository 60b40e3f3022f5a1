//! A terminal on which both the guest's console and we print: whose line is whose.
//!
//! Whoever may print on the guest's console could print lines that look like hits, or move the cursor up and change
//! ours. There each of our lines begins with a [mark](MARK), which the console cannot print, and what the console prints
//! stays below what is there: it may colour, and go back and erase in its own line. Full-screen programs of the guest
//! need hits to go to a file. Both are written by one thread, in the order in which they come, here and outside the emulated
//! host: neither gets inside a line of the other.

use probe_engine::guest_text::is_special;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmm::host::is_one_terminal;

/// What our lines begin with.
const MARK: &str = "▌";

/// Longest control sequence that is looked at, in bytes.
const LONGEST: usize = 24;

/// What a line of ours begins with where the console's has ended: its colours, of which one is none, are ended as well.
const PLAIN: &str = "\x1b[m";

static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// Where the console is. Whoever writes holds it, so that it is true of what has been written.
static ROW: Mutex<ConsoleRow> = Mutex::new(ConsoleRow { is_begun: false, least: 0 });

/// The row of the console.
#[derive(Default)]
struct ConsoleRow {
    /// Whether it has begun one.
    is_begun: bool,
    /// How far from the row's start the cursor is at least, in columns. Some terminals go up where there is nothing to go back.
    least: usize,
}

/// Whether standard output, where the console goes, and standard error, where hits go, are one terminal.
pub(crate) fn is_one() -> bool {
    is_one_terminal(io::stdout(), io::stderr())
}

/// From now on our lines are marked, and the console is kept below them.
pub(crate) fn share() {
    IS_SHARED.store(true, Ordering::Relaxed);
}

/// Whether they are.
pub(crate) fn is_shared() -> bool {
    IS_SHARED.load(Ordering::Relaxed)
}

/// Whoever has printed here besides may have begun a line and gone: our next one begins a row of its own.
pub(crate) fn begin_row() {
    lock(&ROW).is_begun = true;
}

/// Our lines: the mark is put before each. They are handed on as whole lines: nothing gets inside one. They are longer than
/// the terminal is wide where the guest wants that, and may tell of names of its: nothing but the mark looks like one.
pub(crate) struct Marked<W> {
    out: W,
    row: &'static Mutex<ConsoleRow>,
    /// A line that has not ended yet.
    begun: Vec<u8>,
}

impl<W: Write> Marked<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, row: &ROW, begun: Vec::new() }
    }
}

impl<W: Write> Write for Marked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut row = lock(self.row);
        let mut marked = Vec::with_capacity(self.begun.len() + bytes.len() + 64);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                break;
            }
            if std::mem::take(&mut *row).is_begun {
                marked.extend_from_slice(b"\r\n");
            }
            marked.extend_from_slice(PLAIN.as_bytes());
            marked.extend_from_slice(MARK.as_bytes());
            marked.extend(plain(&self.begun).into_bytes());
            self.begun.clear();
        }
        self.out.write_all(&marked)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A line of ours, in which everything else is a question mark than what can be [shown](is_harmless).
fn plain(line: &[u8]) -> String {
    let shown = |c| if matches!(c, '\n' | '\t') || is_harmless(c) { c } else { '?' };
    String::from_utf8_lossy(line).chars().map(shown).collect()
}

/// The guest's console.
pub(crate) struct Tame<W> {
    out: W,
    row: &'static Mutex<ConsoleRow>,
    /// What is not complete yet: of a character, or of a control sequence, which begins with an escape.
    begun: Vec<u8>,
}

impl<W: Write> Tame<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, row: &ROW, begun: Vec::new() }
    }
}

impl<W: Write> Write for Tame<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut row = lock(self.row);
        let mut shown = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.begun.push(*byte);
            let piece = piece(&self.begun);
            match piece {
                Piece::Incomplete => continue,
                Piece::Shown if self.begun == [BACK] && row.least == 0 => {}
                Piece::Shown => {
                    shown.extend_from_slice(&self.begun);
                    row.least = columns(row.least, &self.begun);
                }
                Piece::Replaced => shown.push(b'?'),
                Piece::Dropped => {}
            }
            self.begun.clear();
        }
        if let Some(last) = shown.last() {
            row.is_begun = *last != b'\n';
        }
        self.out.write_all(&shown)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn lock(row: &Mutex<ConsoleRow>) -> MutexGuard<'_, ConsoleRow> {
    row.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many columns the cursor is at least from the start of its row once `piece` has been shown. Of what some terminals
/// give no width, and of tabulators, which stay at the right margin, none is counted.
fn columns(before: usize, piece: &[u8]) -> usize {
    match piece {
        b"\n" | b"\r" => 0,
        [BACK] => before.saturating_sub(1),
        [b' '..=b'~'] => before + 1,
        [0x1b, b'[', count @ .., b'D'] => {
            let count = str::from_utf8(count).ok().and_then(|count| count.parse().ok());
            before.saturating_sub(count.map_or(usize::MAX, |count: usize| count.max(1)))
        }
        _ => before,
    }
}

/// The cursor goes back by one column.
const BACK: u8 = 0x08;

/// What becomes of a few bytes that belong together.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    /// More bytes say.
    Incomplete,
    Shown,
    /// A question mark is shown.
    Replaced,
    Dropped,
}

fn piece(bytes: &[u8]) -> Piece {
    match bytes {
        [b'\n' | b'\r' | b'\t' | BACK | 0x07] => Piece::Shown,
        [0x1b] | [0x1b, b'[' | 0x20..=0x2f] => Piece::Incomplete,
        [0x1b, b'[', parameters @ .., last] => sequence(parameters, *last),
        [0x1b, ..] | [..=0x1f | 0x7f] => Piece::Dropped,
        _ => match str::from_utf8(bytes) {
            Ok(text) if text.chars().all(is_harmless) => Piece::Shown,
            Ok(_) => Piece::Replaced,
            Err(error) if error.error_len().is_none() => Piece::Incomplete,
            Err(_) => Piece::Replaced,
        },
    }
}

/// A control sequence (ECMA-48, 5.4): parameters, intermediate bytes, and a last byte that says what it does.
fn sequence(parameters: &[u8], last: u8) -> Piece {
    match last {
        0x20..=0x3f if parameters.len() < LONGEST => Piece::Incomplete,
        b'm' if is_harmless_color(parameters) => Piece::Shown,
        // Erase in the line; to the right and to the left; delete, insert and erase characters.
        b'K' | b'C' | b'D' | b'P' | b'@' | b'X'
            if parameters.iter().all(|byte| byte.is_ascii_digit() || *byte == b';') =>
        {
            Piece::Shown
        }
        // Erase what is below the cursor.
        b'J' if parameters.is_empty() || parameters == b"0" => Piece::Shown,
        _ => Piece::Dropped,
    }
}

/// Whether a choice of colours (ECMA-48, 8.3.117) leaves the background as it is: with another one a space is a block.
fn is_harmless_color(parameters: &[u8]) -> bool {
    let mut numbers = parameters.split(|byte| *byte == b';');
    let number = |text: &[u8]| str::from_utf8(text).ok().and_then(|text| text.parse::<u8>().ok());
    while let Some(text) = numbers.next() {
        let is_harmless = match number(text) {
            None => text.is_empty(),
            // The foreground, one of 256.
            Some(38) => numbers.next() == Some(b"5") && numbers.next().and_then(number).is_some(),
            Some(number) => matches!(number, 0..=2 | 22 | 30..=37 | 39 | 90..=97),
        };
        if !is_harmless {
            return false;
        }
    }
    true
}

/// What is shown of the console: letters and digits, the punctuation between them, and signs of currencies.
///
/// That is a list of what cannot be taken for the [mark](MARK), and not of what can: blocks, lines, shapes, dots of
/// Braille, symbols of programming and of old computers, what fonts have in private, and what new editions of Unicode
/// bring, all draw something like half a cell, and a font may draw anything that it lacks as a box. Letters are strokes,
/// none thicker than the ASCII bar, which everyone needs. Beyond the Basic Multilingual Plane are letters in boxes and
/// numerals that are bars: nothing of it is shown. Numbers in black circles are numbers: only ASCII's digits are shown.
fn is_harmless(c: char) -> bool {
    let is_listed = matches!(
        c,
        ' '..='~' | '\u{a1}'..='\u{ff}' | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}' | '\u{20a0}'..='\u{20c0}'
    );
    (is_listed || (c <= '\u{ffff}' && c.is_alphabetic())) && !is_special(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of its own: tests run side by side.
    fn row() -> &'static Mutex<ConsoleRow> {
        Box::leak(Box::default())
    }

    fn tamed(pieces: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut tame = Tame { row: row(), ..Tame::new(&mut out) };
        pieces.iter().for_each(|piece| tame.write_all(piece).unwrap());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_console_stays_in_its_lines() {
        for (text, shown) in [
            (&b"~ # ls\r\n\x1b[1;34mbin\x1b[m\t\x07\n"[..], "~ # ls\r\n\x1b[1;34mbin\x1b[m\t\x07\n"),
            (b"ab\x08\x1b[J\x1b[2D\x1b[K", "ab\x08\x1b[J\x1b[2D\x1b[K"),
            // Up, to a place, erase all, scroll, save and restore, a title, reverse index, other screens.
            (b"a\x1b[1Ab\x1b[2;3Hc\x1b[2Jd\x1b[3Te\x1b7f\x1b8g", "abcdefg"),
            (b"a\x1b]0;title\x07b\x1bMc\x1b[?1049hd\x0b\x0c\x00e", "a0;title\x07bcde"),
            ("▌ours\u{202e}█│ü".as_bytes(), "?ours???ü"),
            (b"\xff\xc2\x9b1A", "??1A"),
            (b"\x1b[1\x1b[2Ax\x1b(By", "[2Axy"),
        ] {
            assert_eq!(tamed(&[text]), shown, "{text:?}");
            let single: Vec<&[u8]> = text.chunks(1).collect();
            assert_eq!(tamed(&single), shown, "{text:?}");
        }
    }

    #[test]
    fn colours_make_no_mark_of_a_space() {
        for sequence in ["\x1b[m", "\x1b[0;1;34m", "\x1b[38;5;208m", "\x1b[;91m"] {
            assert_eq!(tamed(&[sequence.as_bytes()]), sequence);
        }
        for sequence in
            ["7", "100", "47", "1;7", "48;5;1", "38;5;7;7", "38;2;1;2;3", "38;5", "38", "4", "256"]
        {
            assert_eq!(tamed(&[format!("\x1b[{sequence}m").as_bytes()]), "", "{sequence}");
        }
    }

    #[test]
    fn nobody_goes_back_beyond_the_start_of_a_row() {
        for (text, shown) in [
            ("ab\x08\x08\x08\x08c", "ab\x08\x08c"),
            ("ab\n\x08c\r\x08", "ab\nc\r"),
            // What may be no column, or a smaller one.
            ("a\t\tü\x1b[5C\x08\x08\x08b", "a\t\tü\x1b[5C\x08b"),
            ("abcd\x1b[2D\x08\x08\x08", "abcd\x1b[2D\x08\x08"),
            ("ab\x1b[D\x08\x08", "ab\x1b[D"),
        ] {
            let mut out = Vec::new();
            Tame { row: row(), ..Tame::new(&mut out) }.write_all(text.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), shown, "{text:?}");
        }
    }

    #[test]
    fn nothing_inside_our_lines_looks_like_a_mark() {
        let mut out = Vec::new();
        let mut marked = Marked { row: row(), ..Marked::new(&mut out) };
        marked.write_all("open(\"▌[ 1.0] forged\u{2588}\", größe=5)\n".as_bytes()).unwrap();
        let shown = format!("{PLAIN}{MARK}open(\"?[ 1.0] forged?\", größe=5)\n");
        assert_eq!(String::from_utf8(out).unwrap(), shown);
    }

    #[test]
    fn nothing_of_the_console_looks_like_a_mark() {
        let plain = "~|Größe «naïve» Привет 日本語 ½ 5 € it’s “x” – …";
        assert_eq!(tamed(&[plain.as_bytes()]), plain);
        // Blocks, lines, shapes, dingbats, brackets in pieces, APL, Braille, wide and half-wide bars, a private glyph, one
        // of old computers, a numeral that is a bar, a combining line, a box around what is before, an emoji and its
        // variant.
        for like in "▌▋▍▏▎▐█▖░│┃║╎▮◧■❙⎸⎪⌷⡇⸡｜￨\u{e0b0}\u{f0000}🭰🮇𝍠\u{20d2}\u{20de}⬛🅰\u{fe0f}❶㉈".chars()
        {
            assert_eq!(tamed(&[like.to_string().as_bytes()]), "?", "{like:?}");
        }
    }

    #[test]
    fn a_sequence_without_an_end_fills_no_memory() {
        let mut tame = Tame::new(io::sink());
        tame.write_all(b"\x1b[").unwrap();
        for _ in 0..1000 {
            tame.write_all(b"1;").unwrap();
            assert!(tame.begun.len() <= LONGEST + 4, "{}", tame.begun.len());
        }
    }

    #[test]
    fn each_line_of_ours_is_marked_once_and_begins_a_row() {
        let row = row();
        let mut out = Vec::new();
        let mut marked = Marked { row, ..Marked::new(&mut out) };
        [&b"a\nb"[..], b"c\n", b"", b"d\n"].iter().for_each(|piece| marked.write_all(piece).unwrap());
        // A line that has begun is kept until it ends.
        marked.write_all(b"e").unwrap();
        let mut console = Tame { row, ..Tame::new(io::sink()) };
        console.write_all(b"# \x1b[8m").unwrap();
        marked.write_all(b"f\ng\n").unwrap();
        console.write_all(b"# \n").unwrap();
        marked.write_all(b"h\n").unwrap();
        let lines = ["a\n", "bc\n", "d\n", "ef\n", "g\n", "h\n"];
        let shown: String = lines.iter().map(|line| format!("\x1b[m▌{line}")).collect();
        let shown = shown.replace("\x1b[m▌ef", "\r\n\x1b[m▌ef");
        assert_eq!(String::from_utf8(out).unwrap(), shown);
    }
}
