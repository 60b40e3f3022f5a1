//! A writer that never makes its user wait, though its reader may be slow, stand still or have gone away.

use std::io::{self, Write};
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What is kept for a slow reader, in bytes.
const MOST: usize = 4 << 20;
/// How long whoever was told to end waits for a reader that stands still.
pub const GRACE: Duration = Duration::from_millis(200);

/// Hands what it is given to a thread that writes it. Its clones write to the same place. What is not written when the
/// process ends is lost: see [`finish`](Self::finish).
#[derive(Clone)]
pub struct Printer {
    queue: Arc<Writers>,
    /// Whether all is kept, however much it is.
    keeps_all: bool,
}

/// Those who write: when the last one goes, the thread writes the rest and ends.
struct Writers(Arc<Queue>);

impl Deref for Writers {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        &self.0
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }
}

struct Queue {
    state: Mutex<PrinterState>,
    changed: Condvar,
}

#[derive(Default)]
struct PrinterState {
    text: Vec<u8>,
    /// Bytes that there was no room for.
    lost: usize,
    is_writing: bool,
    /// There is nobody left who writes.
    is_closed: bool,
    /// Why nothing can be written any more.
    failure: Option<io::ErrorKind>,
}

impl PrinterState {
    fn is_done(&self) -> bool {
        self.failure.is_some() || !(self.is_writing || self.is_waiting())
    }

    /// Says in its place what was lost, on a line of its own.
    fn tell_loss(&mut self) {
        if self.lost > 0 {
            let note = format!("\n[{} bytes of the console were lost: nobody read them]\n", self.lost);
            self.text.extend(note.into_bytes());
            self.lost = 0;
        }
    }

    /// Whether there is something to write.
    fn is_waiting(&self) -> bool {
        !self.text.is_empty() || self.lost > 0
    }
}

impl Printer {
    /// Writes to `out` what it can, as for a guest's console: what is more than some megabytes ahead of the reader is lost,
    /// and said to be; when nobody reads at all, nobody is told.
    ///
    /// # Errors
    /// The host has no thread left.
    pub fn of_what_fits(out: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start(out, false)
    }

    /// Writes everything to `out`. Whoever writes asks [first](Self::is_ready), or fills memory; once `out` has failed,
    /// every write does.
    ///
    /// # Errors
    /// The host has no thread left.
    pub fn of_all(out: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start(out, true)
    }

    /// The same place, for what may be [lost](Self::of_what_fits).
    #[must_use]
    pub fn for_what_fits(&self) -> Self {
        Self { keeps_all: false, ..self.clone() }
    }

    fn start(out: impl Write + Send + 'static, keeps_all: bool) -> io::Result<Self> {
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new() });
        let shared = queue.clone();
        thread::Builder::new().name("printer".to_owned()).spawn(move || shared.write_all(out))?;
        Ok(Self { queue: Arc::new(Writers(queue)), keeps_all })
    }

    /// Whether the reader keeps up. Nobody has to wait for one that has gone.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.queue.lock().text.len() < MOST
    }

    /// Waits until the reader keeps up, or `is_over` says that nobody has time for it, which is asked now and then.
    pub fn wait_until_ready(&self, is_over: impl Fn() -> bool) {
        const AGAIN: Duration = Duration::from_millis(20);
        let mut state = self.queue.lock();
        while state.text.len() >= MOST && !is_over() {
            (state, _) =
                self.queue.changed.wait_timeout(state, AGAIN).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until all is written, for ever or for so long. Returns whether it is.
    pub fn finish(&self, patience: Option<Duration>) -> bool {
        let end = patience.and_then(|patience| Instant::now().checked_add(patience));
        let mut state = self.queue.lock();
        while !state.is_done() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return false;
            }
            let wait = left.unwrap_or(Duration::from_secs(1));
            (state, _) = self.queue.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
        }
        state.failure.is_none()
    }
}

impl Write for Printer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.queue.lock();
        match state.failure {
            Some(failure) if self.keeps_all => return Err(failure.into()),
            // A guest is not stopped because nobody reads its console.
            Some(_) => {}
            None if !self.keeps_all && state.text.len() + bytes.len() > MOST => state.lost += bytes.len(),
            None => {
                // What was lost may have been the end of a line.
                state.tell_loss();
                state.text.extend_from_slice(bytes);
            }
        }
        self.queue.changed.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Queue {
    fn write_all(&self, mut out: impl Write) {
        let mut state = self.lock();
        loop {
            if !state.is_waiting() {
                if state.is_closed {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.tell_loss();
            let text = std::mem::take(&mut state.text);
            state.is_writing = true;
            drop(state);
            let written = out.write_all(&text).and_then(|()| out.flush());
            state = self.lock();
            state.is_writing = false;
            state.failure = written.err().map(|error| error.kind());
            if state.failure.is_some() {
                state.text = Vec::new();
            }
            self.changed.notify_all();
            if state.failure.is_some() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, PrinterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn all_is_written_in_order() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut printer = Printer::of_all(writer).unwrap();
        let text: String = (0..1000).map(|n| format!("{n}\n")).collect();
        printer.write_all(text.as_bytes()).unwrap();
        assert!(printer.finish(None));
        let mut read = vec![0; text.len()];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(read, text.as_bytes());
    }

    /// Far more than the pipe holds, and nobody reads: a writer that waits would hang here.
    #[test]
    fn nobody_waits_for_a_reader_that_stands_still() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut printer = Printer::of_all(writer).unwrap();
        printer.write_all(&vec![b'x'; 2 * MOST]).unwrap();
        assert!(!printer.finish(Some(Duration::from_millis(10))));
        // The thread has taken some of it.
        printer.write_all(&vec![b'x'; MOST]).unwrap();
        assert!(!printer.is_ready());
        printer.wait_until_ready(|| true);
        let reading = thread::spawn(move || io::copy(&mut reader, &mut io::sink()));
        printer.wait_until_ready(|| false);
        assert!(printer.is_ready() && printer.finish(None));
        drop(reading);
    }

    #[test]
    fn what_of_a_console_is_lost_is_said() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut printer = Printer::of_what_fits(writer).unwrap();
        let line = [b'x'; 1 << 10];
        (0..3 * MOST / line.len()).for_each(|_| printer.write_all(&line).unwrap());
        drop(printer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let lost: usize =
            text.split("\n[").skip(1).filter_map(|n| n.split(' ').next()?.parse::<usize>().ok()).sum();
        assert!(lost > 0);
        assert_eq!(text.matches('x').count() + lost, 3 * MOST);
    }

    /// What was still to be written would keep everyone waiting for ever.
    #[test]
    fn nobody_waits_for_a_reader_that_has_gone() {
        let (reader, writer) = io::pipe().unwrap();
        let mut printer = Printer::of_all(writer).unwrap();
        printer.write_all(&vec![b'x'; MOST]).unwrap();
        // The thread stands in its write with that.
        printer.wait_until_ready(|| false);
        printer.write_all(&vec![b'x'; MOST]).unwrap();
        assert!(!printer.is_ready());
        drop(reader);
        assert!(!printer.finish(None));
        assert!(printer.is_ready() && printer.write_all(b"x").is_err());
    }

    #[test]
    fn one_place_keeps_all_of_the_one_and_what_fits_of_the_other() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut all = Printer::of_all(writer).unwrap();
        let mut some = all.for_what_fits();
        all.write_all(b"a").unwrap();
        some.write_all(b"b").unwrap();
        all.write_all(&vec![b'c'; 2 * MOST]).unwrap();
        while all.is_ready() {
            all.write_all(&[b'c'; 1 << 10]).unwrap();
        }
        some.write_all(b"d").unwrap();
        assert!(all.queue.lock().lost > 0, "there was no room for it");
        // What is kept does not stand behind half a line.
        all.write_all(b"e").unwrap();
        drop((all, some));
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(
            text.starts_with("abccc")
                && text.ends_with("c\n[1 bytes of the console were lost: nobody read them]\ne")
        );
    }

    #[test]
    fn a_reader_that_has_gone_is_an_error_of_hits_and_none_of_a_console() {
        for keeps_all in [true, false] {
            let (reader, writer) = io::pipe().unwrap();
            drop(reader);
            let mut printer = Printer::start(writer, keeps_all).unwrap();
            printer.write_all(b"x").unwrap();
            assert!(!printer.finish(None));
            assert_eq!(printer.write_all(b"x").is_err(), keeps_all);
        }
    }
}
