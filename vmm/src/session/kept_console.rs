//! What the console shows is kept as well, for where the kernel's log cannot be read.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that nobody has looked at. What is more is not looked at.
const MOST: usize = 1 << 20;

/// What was shown since somebody looked.
#[derive(Debug, Clone, Default)]
pub(super) struct ConsoleBytes(Arc<Mutex<Vec<u8>>>);

impl ConsoleBytes {
    /// All whole lines; at the end of the run, the last one without its end.
    pub(super) fn take(&self, has_ended: bool) -> Vec<u8> {
        let mut bytes = self.lock();
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let end = if has_ended || bytes.len() >= MOST { bytes.len() } else { end };
        bytes.drain(..end).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A console that keeps what it shows.
pub(super) struct KeptConsole {
    pub(super) out: Box<dyn Write + Send>,
    pub(super) kept: ConsoleBytes,
}

impl Write for KeptConsole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.kept.lock();
        let room = MOST.saturating_sub(kept.len()).min(bytes.len());
        kept.extend(bytes.iter().take(room));
        drop(kept);
        // It is kept once, whatever of it could be shown.
        self.out.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_taken_once_and_the_rest_at_the_end() {
        let kept = ConsoleBytes::default();
        let mut console = KeptConsole { out: Box::new(io::sink()), kept: kept.clone() };
        console.write_all(b"one\ntwo\nth").unwrap();
        assert_eq!(kept.take(false), b"one\ntwo\n");
        console.write_all(b"ree").unwrap();
        assert_eq!((kept.take(false), kept.take(true)), (Vec::new(), b"three".to_vec()));
        console.write_all(&vec![b'x'; 2 * MOST]).unwrap();
        assert_eq!((kept.take(false).len(), kept.take(false).len()), (MOST, 0));
    }
}
