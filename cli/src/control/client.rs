//! One client of a control socket: lines that come in, and answers that go out. Neither grows without bound.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The longest line that is taken, in bytes.
pub(super) const LONGEST_LINE: usize = 64 << 10;
/// A client that takes nothing of an answer for so long is left.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A client that is told more is left, where so many bytes of what it was told before are not taken.
const MOST_UNTAKEN: usize = 64 << 10;

/// One that is connected. Its next line is read when the answer to the one before has been taken.
pub(super) struct Client {
    pub(super) stream: UnixStream,
    /// What has come in, and is not read.
    input: Vec<u8>,
    /// What has not been taken.
    output: Vec<u8>,
    /// So many bytes of that at most are lines that are no answers.
    told: usize,
    /// Since when nothing of that is taken.
    stalled: Option<Instant>,
    /// Whether nothing more comes in.
    has_ended: bool,
    /// Whether nobody takes answers any more.
    is_gone: bool,
    /// Whether it is left when its answers have been taken.
    is_closing: bool,
    /// Whether a call is under way.
    pub(super) is_waiting: bool,
    /// Whether it wants the guest to stand still.
    pub(super) pauses: bool,
    /// Whether somebody has let the guest go on while a call of it was under way: it is told behind the answer.
    pub(super) was_resumed: bool,
}

/// What comes next of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A line, without its end.
    Line(Vec<u8>),
    /// Nothing yet.
    Nothing,
    /// A line that is too long.
    TooLong,
    /// Nothing any more.
    End,
}

impl Client {
    /// The client behind `stream`, which makes nobody wait.
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            told: 0,
            stalled: None,
            has_ended: false,
            is_gone: false,
            is_closing: false,
            is_waiting: false,
            pauses: false,
            was_resumed: false,
        }
    }

    /// Whether its next line may be read.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_waiting && self.output.is_empty() && !self.is_closing
    }

    /// Whether there is a whole line that has come in, or the end.
    pub(super) fn has_next(&self) -> bool {
        self.has_ended || self.input.contains(&b'\n')
    }

    /// Whether it waits for room.
    pub(super) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// What comes next.
    pub(super) fn next(&mut self) -> Next {
        loop {
            if let Some(end) = self.input.iter().position(|byte| *byte == b'\n') {
                let rest = self.input.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.input, rest);
                line.pop();
                return if line.len() > LONGEST_LINE { Next::TooLong } else { Next::Line(line) };
            }
            if self.input.len() > LONGEST_LINE {
                return Next::TooLong;
            }
            if self.has_ended {
                return match std::mem::take(&mut self.input) {
                    rest if rest.is_empty() => Next::End,
                    rest => Next::Line(rest),
                };
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => self.has_ended = true,
                Ok(count) => self.input.extend(bytes.iter().take(count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.has_ended = true,
            }
        }
    }

    /// Answers with a line. Where nobody takes it, it is dropped.
    pub(super) fn answer(&mut self, line: &str, now: Instant) {
        if !self.is_gone {
            self.output.extend_from_slice(line.as_bytes());
            self.flush(now);
        }
    }

    /// Tells a line that is no answer. Answers are waited for, one after the other, and of such lines there is no end.
    pub(super) fn notify(&mut self, line: &str, now: Instant) {
        if self.told > MOST_UNTAKEN {
            return self.gone();
        }
        self.answer(line, now);
        self.told = if self.output.is_empty() { 0 } else { self.told + line.len() };
    }

    /// Hands out what there is room for.
    pub(super) fn flush(&mut self, now: Instant) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) if count > 0 => {
                    self.output.drain(..count.min(self.output.len()));
                    self.stalled = None;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stalled.get_or_insert(now);
                    return;
                }
                _ => return self.gone(),
            }
        }
        self.output = Vec::new();
    }

    /// Nobody is there any more. What was sent before is still carried out.
    pub(super) fn gone(&mut self) {
        self.is_gone = true;
        self.output = Vec::new();
        self.stalled = None;
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Nothing more is read of it.
    pub(super) fn close(&mut self) {
        (self.is_closing, self.input) = (true, Vec::new());
    }

    /// Whether nothing is left to be done for it.
    pub(super) fn is_over(&self) -> bool {
        self.is_closing && !self.is_waiting && self.output.is_empty()
    }

    /// When it is left, if it takes nothing until then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.stalled.map(|since| since + PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Client, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (Client::new(ours), theirs)
    }

    #[test]
    fn lines_come_one_by_one() {
        let (mut client, mut theirs) = pair();
        assert_eq!(client.next(), Next::Nothing);
        theirs.write_all(b"one\n\ntw").unwrap();
        assert_eq!(client.next(), Next::Line(b"one".to_vec()));
        assert!(client.has_next());
        assert_eq!(client.next(), Next::Line(Vec::new()));
        assert_eq!(client.next(), Next::Nothing);
        theirs.write_all(b"o").unwrap();
        drop(theirs);
        assert_eq!(client.next(), Next::Line(b"two".to_vec()));
        assert_eq!(client.next(), Next::End);
    }

    #[test]
    fn an_endless_line_is_not_kept() {
        let (mut client, mut theirs) = pair();
        let writer = std::thread::spawn(move || while theirs.write_all(&[b'x'; 1 << 16]).is_ok() {});
        let next = loop {
            match client.next() {
                Next::Nothing => std::thread::yield_now(),
                next => break next,
            }
        };
        assert_eq!(next, Next::TooLong);
        assert!(client.input.len() <= LONGEST_LINE + 4096);
        client.close();
        assert!(client.is_over() && client.input.is_empty());
        drop(client);
        writer.join().unwrap();
    }

    #[test]
    fn one_that_takes_nothing_is_known_by_its_deadline() {
        let (mut client, mut theirs) = pair();
        let now = Instant::now();
        client.answer("short\n", now);
        assert!(!client.has_output() && client.deadline().is_none());
        client.answer(&"x".repeat(4 << 20), now);
        assert!(client.has_output() && !client.is_idle());
        assert_eq!(client.deadline(), Some(now + PATIENCE));
        let mut taken = vec![0; 1 << 16];
        theirs.read_exact(&mut taken).unwrap();
        client.flush(now + Duration::from_secs(1));
        assert!(client.deadline() > Some(now + PATIENCE), "it has taken something");
        for _ in 0..=MOST_UNTAKEN {
            client.notify("told\n", now);
        }
        assert!(client.is_gone(), "nobody keeps what it is told for ever");
        let (mut client, theirs) = pair();
        client.answer(&"x".repeat(4 << 20), now);
        drop(theirs);
        client.flush(now);
        assert!(client.is_gone() && !client.has_output() && client.deadline().is_none());
        client.answer("nobody\n", now);
        assert!(!client.has_output());
    }
}
