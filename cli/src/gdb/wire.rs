//! The connection to gdb.

use gdbstub::conn::Connection;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A gdb that does not take an answer for so long is left, and one that says nothing at first.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The longest answer, in bytes. What gdb asks for is much shorter.
const LONGEST_ANSWER: usize = 1 << 20;

/// A connection as it comes.
pub(super) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Has writes wait, for so long at most.
    pub(super) fn settle(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(PATIENCE))
            }
            Self::Tcp(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(PATIENCE))
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(bytes),
            Self::Tcp(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => Write::write(stream, bytes),
            Self::Tcp(stream) => Write::write(stream, bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// The connection, with what of a packet is not sent yet.
pub(super) struct Wire {
    pub(super) stream: Stream,
    output: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, output: Vec::new() }
    }

    /// What has come in, of which there is something.
    ///
    /// # Errors
    /// When gdb has gone.
    pub(super) fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                bytes.truncate(count);
                Ok(bytes)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

impl Connection for Wire {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        if self.output.len() >= LONGEST_ANSWER {
            return Err(ErrorKind::FileTooLarge.into());
        }
        self.output.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let output = std::mem::take(&mut self.output);
        let until = Instant::now() + PATIENCE;
        let mut rest = output.as_slice();
        while !rest.is_empty() {
            match Write::write(&mut self.stream, rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if !rest.is_empty() && Instant::now() >= until {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_an_end() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut wire = Wire::new(Stream::Unix(ours));
        assert!((0..LONGEST_ANSWER).all(|_| Connection::write(&mut wire, b'0').is_ok()));
        assert_eq!(Connection::write(&mut wire, b'0').unwrap_err().kind(), ErrorKind::FileTooLarge);
    }
}
