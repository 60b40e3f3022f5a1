//! A writer that never makes its user wait: the guest's console, whose reader may be slow or have gone away.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What is kept for a slow reader, in bytes. What comes on top is lost, and said to be.
const MOST: usize = 4 << 20;

/// Hands what it is given to a thread that writes it. When dropped, it waits a moment for the rest to be written.
pub struct Printer(Arc<Queue>);

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    text: Vec<u8>,
    /// Bytes that there was no room for.
    lost: usize,
    is_writing: bool,
    is_closed: bool,
}

impl State {
    /// Whether there is something to write.
    fn is_waiting(&self) -> bool {
        !self.text.is_empty() || self.lost > 0
    }
}

impl Printer {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// The host has no thread left.
    pub fn start(out: Box<dyn Write + Send>) -> io::Result<Self> {
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new() });
        let shared = queue.clone();
        thread::Builder::new().name("console".to_owned()).spawn(move || shared.write_all(out))?;
        Ok(Self(queue))
    }
}

impl Write for Printer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock();
        if state.text.len() + bytes.len() > MOST {
            state.lost += bytes.len();
        } else {
            state.text.extend_from_slice(bytes);
        }
        self.0.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Printer {
    fn drop(&mut self) {
        /// A reader that is not done then is given up.
        const PATIENCE: Duration = Duration::from_secs(2);
        let mut state = self.0.lock();
        let end = Instant::now() + PATIENCE;
        while (state.is_writing || state.is_waiting()) && Instant::now() < end {
            let waited = self.0.changed.wait_timeout(state, PATIENCE);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state.is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Queue {
    fn write_all(&self, mut out: Box<dyn Write + Send>) {
        let mut state = self.lock();
        while !state.is_closed {
            if !state.is_waiting() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let mut text = std::mem::take(&mut state.text);
            if state.lost > 0 {
                let note = format!("\n[{} bytes of the console were lost: nobody read them]\n", state.lost);
                text.extend(note.into_bytes());
                state.lost = 0;
            }
            state.is_writing = true;
            drop(state);
            // What cannot be written is lost: a guest is not stopped because nobody reads its console.
            let _ = out.write_all(&text).and_then(|()| out.flush());
            state = self.lock();
            state.is_writing = false;
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn all_is_written_in_order_before_it_is_gone() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut printer = Printer::start(Box::new(writer)).unwrap();
        for n in 0..1000 {
            writeln!(printer, "{n}").unwrap();
        }
        drop(printer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, (0..1000).map(|n| format!("{n}\n")).collect::<String>());
    }

    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read_and_what_is_lost_is_said() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut printer = Printer::start(Box::new(writer)).unwrap();
        // Far more than the pipe and the queue hold: a writer that waits would hang here.
        let line = [b'x'; 1 << 10];
        (0..3 * MOST / line.len()).for_each(|_| printer.write_all(&line).unwrap());
        let text = thread::spawn(move || {
            let mut text = Vec::new();
            reader.read_to_end(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        });
        drop(printer);
        let text = text.join().unwrap();
        let lost: usize =
            text.split("\n[").skip(1).filter_map(|n| n.split(' ').next()?.parse::<usize>().ok()).sum();
        assert!(lost > 0);
        assert_eq!(text.matches('x').count() + lost, 3 * MOST);
    }
}
