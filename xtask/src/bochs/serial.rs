//! What comes out of the serial port: the output of one command after the other, between marks.
//!
//! ```text
//! vmm-batch: begin NAME
//! ...
//! vmm-batch: end NAME exit=CODE seconds=S
//! vmm-batch: done
//! ```

use super::Outcome;
use std::collections::VecDeque;

/// Before each mark.
const MARK: &str = "vmm-batch: ";
/// How many lines are kept for when something goes wrong.
const KEPT: usize = 30;

/// A mark that was read.
#[derive(Debug)]
pub(super) enum Event {
    /// A command begins.
    Begin(String),
    /// A command has ended.
    End(Outcome),
    /// All have.
    Done,
}

/// The state of the reader.
#[derive(Default)]
pub(super) struct Serial {
    /// A line whose end was not read yet.
    partial: Vec<u8>,
    current: Outcome,
    last: VecDeque<String>,
}

impl Serial {
    /// Takes the next bytes; gives the marks in them.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        for &byte in bytes {
            if byte != b'\n' {
                self.partial.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).trim_end().to_owned();
            events.extend(self.line(&line));
            self.last.push_back(line);
            if self.last.len() > KEPT {
                self.last.pop_front();
            }
        }
        events
    }

    /// The last line that was printed.
    pub(super) fn last_line(&self) -> &str {
        self.last.back().map_or("(nothing was printed yet)", String::as_str)
    }

    /// The last lines that were printed.
    pub(super) fn last_lines(&self) -> String {
        self.last.iter().map(|line| format!("  {line}\n")).collect()
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        // A command may have printed the beginning of a line before the mark.
        let Some((before, mark)) = line.split_once(MARK) else {
            self.current.output.push(line.to_owned());
            return None;
        };
        if !before.is_empty() {
            self.current.output.push(before.to_owned());
        }
        let mut words = mark.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("done"), None, None) => Some(Event::Done),
            (Some("begin"), Some(name), None) => {
                self.current = Outcome { name: name.to_owned(), ..Outcome::default() };
                Some(Event::Begin(name.to_owned()))
            }
            (Some("end"), Some(name), Some(exit)) if name == self.current.name => {
                let exit = exit.strip_prefix("exit=")?.to_owned();
                Some(Event::End(Outcome { exit, ..std::mem::take(&mut self.current) }))
            }
            // Why a command was not started comes with the same mark.
            _ => {
                self.current.output.push(mark.to_owned());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_cut_at_the_marks_wherever_reads_end() {
        let text = "[    0.1] noise\r\nvmm-batch: begin a\r\none\r\ntwo vmm-batch: end a exit=0 seconds=1.500\r\n\
                    vmm-batch: begin b\r\nvmm-batch: cannot start b\r\nvmm-batch: end b exit=not-started seconds=0\r\n\
                    vmm-batch: done\r\n";
        for size in [1, 7, text.len()] {
            let mut serial = Serial::default();
            let events: Vec<Event> =
                text.as_bytes().chunks(size).flat_map(|chunk| serial.feed(chunk)).collect();
            let [Event::Begin(a), Event::End(end_a), Event::Begin(_), Event::End(end_b), Event::Done] =
                events.as_slice()
            else {
                panic!("{events:?}");
            };
            assert_eq!((a.as_str(), end_a.name.as_str(), end_a.exit.as_str()), ("a", "a", "0"));
            assert_eq!(end_a.output, ["one", "two "]);
            assert_eq!(
                (end_b.exit.as_str(), end_b.output.as_slice()),
                ("not-started", &["cannot start b".to_owned()][..])
            );
            assert_eq!(serial.last_line(), "vmm-batch: done");
        }
    }
}
