//! The console of a guest in the test's own process.

use std::io::{self, PipeWriter, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use vmm::session::{Command, Handle};

/// What a guest has printed so far, and what it reads.
#[derive(Clone)]
pub struct Console {
    text: Arc<(Mutex<Printed>, Condvar)>,
    typing: Arc<Mutex<PipeWriter>>,
}

#[derive(Default)]
struct Printed {
    text: Vec<u8>,
    is_over: bool,
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.0.lock().unwrap().text.extend_from_slice(bytes);
        self.text.1.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Console {
    /// Of a guest that reads what is typed at the other end of `typing`.
    pub(super) fn new(typing: PipeWriter) -> Self {
        Self { text: Arc::default(), typing: Arc::new(Mutex::new(typing)) }
    }

    /// All of it.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.0.lock().unwrap().text).into_owned()
    }

    /// Waits until the guest has printed `words` for the `count`th time.
    #[track_caller]
    pub fn wait_for(&self, words: &str, count: usize) {
        let (printed, changed) = &*self.text;
        let has = |p: &Printed| String::from_utf8_lossy(&p.text).matches(words).count() >= count;
        let printed = changed.wait_while(printed.lock().unwrap(), |p| !p.is_over && !has(p)).unwrap();
        let found = has(&printed);
        drop(printed);
        assert!(found, "the guest ended without `{words}`");
    }

    /// Lets the guest pass the step `sh:/gate`.
    pub fn open_gate(&self) {
        self.type_line("");
    }

    /// A line of the guest's input.
    pub fn type_line(&self, words: &str) {
        self.typing.lock().unwrap().write_all(format!("{words}\n").as_bytes()).unwrap();
    }

    pub(super) fn close(&self) {
        self.text.0.lock().unwrap().is_over = true;
        self.text.1.notify_all();
    }

    /// Stops a guest that takes too long. Returns whether it did.
    pub(super) fn watch(&self, handle: &Handle, patience: Duration) -> bool {
        let (printed, changed) = &*self.text;
        let end = Instant::now() + patience;
        let mut state = printed.lock().unwrap();
        while !state.is_over {
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                drop(state);
                let _ = handle.command(Command::Stop);
                return true;
            };
            (state, _) = changed.wait_timeout(state, left).unwrap();
        }
        false
    }
}
