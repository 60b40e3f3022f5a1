//! The serial console: what the guest prints goes to a writer, what the user types goes to the guest.

use super::{Device, PowerEvent};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vm_superio::{Serial, Trigger, serial::NoEvents};
use vmm_sys_util::eventfd::EventFd;

/// A 16550 at COM1.
pub struct SerialConsole {
    state: Mutex<ConsoleState>,
}

struct ConsoleState {
    uart: Serial<UartInterrupt, NoEvents, LineWriter>,
    /// What was typed and has not fitted into the UART's FIFO yet.
    typed: VecDeque<u8>,
}

/// An eventfd that KVM turns into the UART's interrupt.
struct UartInterrupt(EventFd);

impl Trigger for UartInterrupt {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// How much may be typed ahead of a guest that does not read.
const TYPED_MAX: usize = 64 << 10;

impl SerialConsole {
    /// A console that prints to `out` and raises its interrupt through `interrupt`. With `interactive`, each
    /// byte is passed on at once, otherwise whole lines, and what [waits](Self::look) for a person.
    #[must_use]
    pub fn new(interrupt: EventFd, out: Box<dyn Write + Send>, interactive: bool) -> Self {
        let out = LineWriter { out, line: Vec::new(), interactive, unfinished: None };
        Self {
            state: Mutex::new(ConsoleState {
                uart: Serial::new(UartInterrupt(interrupt), out),
                typed: VecDeque::new(),
            }),
        }
    }

    /// The user types `bytes`.
    pub fn type_in(&self, bytes: &[u8]) {
        let mut state = self.lock();
        let room = TYPED_MAX.saturating_sub(state.typed.len());
        state.typed.extend(bytes.iter().take(room));
        state.refill();
    }

    /// Passes on a line that has no end yet, and has not grown for a while: it may be a prompt. Asked as often as one
    /// likes.
    pub fn look(&self, now: Instant) {
        let _ = self.lock().uart.writer_mut().look(now);
    }

    /// Passes on a line that has no end yet.
    pub fn flush(&self) {
        let _ = self.lock().uart.writer_mut().send();
    }

    fn lock(&self) -> MutexGuard<'_, ConsoleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device for SerialConsole {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let mut state = self.lock();
        for byte in data {
            *byte = state.uart.read(offset as u8);
            state.refill();
        }
    }

    /// Output that cannot be written is lost: a guest is not stopped because nobody reads its console.
    fn write(&self, offset: u64, data: &[u8]) -> Option<PowerEvent> {
        for byte in data {
            let _ = self.lock().uart.write(offset as u8, *byte);
        }
        None
    }
}

impl ConsoleState {
    /// Moves typed bytes into the FIFO as far as they fit.
    fn refill(&mut self) {
        let room = self.uart.fifo_capacity().min(self.typed.len());
        if room == 0 {
            return;
        }
        let bytes: Vec<u8> = self.typed.drain(..room).collect();
        // In loop-back mode, which a driver uses only while it looks for the UART, input is refused.
        let _ = self.uart.enqueue_raw_bytes(&bytes);
    }
}

/// The UART flushes after each byte; this keeps bytes back until a line is whole.
struct LineWriter {
    out: Box<dyn Write + Send>,
    line: Vec<u8>,
    interactive: bool,
    /// How long the line was that had no end when somebody looked, and since when it has been so long.
    unfinished: Option<(usize, Instant)>,
}

/// How long a line stands still before it is passed on without its end.
const PATIENCE: Duration = Duration::from_millis(100);

/// A line that grows longer than this is passed on in parts.
const LINE_MAX: usize = 4096;

impl LineWriter {
    fn send(&mut self) -> io::Result<()> {
        let sent = self.out.write_all(&self.line).and_then(|()| self.out.flush());
        self.line.clear();
        self.unfinished = None;
        sent
    }

    fn look(&mut self, now: Instant) -> io::Result<()> {
        match self.unfinished {
            _ if self.line.is_empty() => Ok(()),
            Some((length, since)) if length == self.line.len() => {
                match now.saturating_duration_since(since) {
                    still if still < PATIENCE => Ok(()),
                    _ => self.send(),
                }
            }
            _ => {
                self.unfinished = Some((self.line.len(), now));
                Ok(())
            }
        }
    }
}

impl Write for LineWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if self.interactive || bytes.contains(&b'\n') || self.line.len() >= LINE_MAX {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn console(interactive: bool) -> (SerialConsole, Screen) {
        let screen = Screen::default();
        let interrupt = EventFd::new(0).unwrap();
        (SerialConsole::new(interrupt, Box::new(screen.clone()), interactive), screen)
    }

    #[test]
    fn lines_are_passed_on_whole_and_the_rest_on_flush() {
        let (console, screen) = console(false);
        console.write(0, b"one\ntwo");
        assert_eq!(*screen.0.lock().unwrap(), b"one\n");
        console.flush();
        assert_eq!(*screen.0.lock().unwrap(), b"one\ntwo");
    }

    #[test]
    fn a_prompt_is_passed_on_when_nothing_follows() {
        let (console, screen) = console(false);
        let print = |text: &[u8]| console.write(0, text);
        let shown = || String::from_utf8(screen.0.lock().unwrap().clone()).unwrap();
        let start = Instant::now();
        let look = |millis| console.look(start + Duration::from_millis(millis));
        print(b"~ ");
        look(0);
        print(b"# ");
        look(90);
        look(189);
        assert_eq!(shown(), "", "it has grown since the first look");
        look(190);
        assert_eq!(shown(), "~ # ");
        print(b"ls\nbin\n~ # ");
        look(300);
        look(301);
        assert_eq!(shown(), "~ # ls\nbin\n", "another one of the same length");
        look(400);
        assert_eq!(shown(), "~ # ls\nbin\n~ # ");
    }

    #[test]
    fn more_than_the_fifo_holds_can_be_typed() {
        let (console, _) = console(true);
        let typed: Vec<u8> = (0..=255).collect();
        console.type_in(&typed);
        let read = |offset| {
            let mut byte = [0];
            console.read(offset, &mut byte);
            byte[0]
        };
        let mut seen = Vec::new();
        while read(5) & 1 != 0 {
            seen.push(read(0));
        }
        assert_eq!(seen, typed);
    }
}
