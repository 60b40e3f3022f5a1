//! A file of the guest's, read by its own kernel: what a process would read there, also where no file lies on any disk.

use super::functions::{Functions, error};
use super::{Next, Worker};
use probe_engine::addr::Gva;
use probe_engine::errand::Call;
use rustix::io::Errno;

/// Bytes that are read at a time.
const CHUNK: u64 = 64 << 10;
/// The longest path with its NUL (PATH_MAX).
const LONGEST: u64 = 4096;
/// The guest's buffer: how far the file is read, its path, and what is read.
const POSITION: u64 = 0;
const PATH: u64 = 8;
const BYTES: u64 = 2 * LONGEST;
/// `O_RDONLY | O_LARGEFILE`
const FLAGS: u64 = 0o100_000;

/// An errand that reads a file.
pub struct ReadFile {
    functions: Functions,
    path: Vec<u8>,
    /// At most so many bytes of it are read.
    most: usize,
    called: Called,
    buffer: Gva,
    file: u64,
    read: Vec<u8>,
    failed: Option<Errno>,
}

/// What was called last.
#[derive(Clone, Copy)]
enum Called {
    Nothing,
    Vmalloc,
    Open,
    Read,
    Put,
    Vfree,
}

impl ReadFile {
    /// Reads `path`, at most so many bytes of it.
    ///
    /// # Errors
    /// A path that is too long, or has a NUL in it, is no file's.
    pub fn new(functions: Functions, path: &[u8], most: usize) -> Result<Self, Errno> {
        if path.contains(&0) {
            return Err(Errno::INVAL);
        }
        if path.len() as u64 >= LONGEST {
            return Err(Errno::NAMETOOLONG);
        }
        let path = [path, b"\0"].concat();
        let (called, buffer, read) = (Called::Nothing, Gva(0), Vec::new());
        Ok(Self { functions, path, most, called, buffer, file: 0, read, failed: None })
    }

    /// What is next, for [`Handle::errand`](crate::session::Handle::errand).
    pub fn next(&mut self, worker: &mut Worker<'_>) -> Next<Result<Vec<u8>, Errno>> {
        let returned = worker.returned.unwrap_or(0);
        let functions = self.functions;
        match self.called {
            Called::Nothing => self.call(Called::Vmalloc, functions.vmalloc, &[BYTES + CHUNK]),
            Called::Vmalloc if returned == 0 => Next::Done(Err(Errno::NOMEM)),
            Called::Vmalloc => {
                self.buffer = Gva(returned);
                let path = self.buffer.add(PATH);
                match worker.memory.write(path, &self.path) {
                    Ok(()) => self.call(Called::Open, functions.filp_open, &[path.0, FLAGS, 0]),
                    Err(_) => self.fail(Errno::FAULT),
                }
            }
            Called::Open => match error(returned) {
                Some(error) => self.fail(error),
                None => {
                    self.file = returned;
                    match worker.memory.write(self.buffer.add(POSITION), &[0; 8]) {
                        Ok(()) => self.read(),
                        Err(_) => self.close(Some(Errno::FAULT)),
                    }
                }
            },
            Called::Read => match (error(returned), returned.min(CHUNK) as usize) {
                (Some(error), _) => self.close(Some(error)),
                (None, 0) => self.close(None),
                (None, count) => {
                    let mut bytes = vec![0; count.min(self.most.saturating_sub(self.read.len()))];
                    let read = worker.memory.read(self.buffer.add(BYTES), &mut bytes);
                    self.read.extend(bytes);
                    match read {
                        Err(_) => self.close(Some(Errno::FAULT)),
                        Ok(()) if self.read.len() >= self.most => self.close(None),
                        Ok(()) => self.read(),
                    }
                }
            },
            Called::Put => self.call(Called::Vfree, functions.vfree, &[self.buffer.0]),
            Called::Vfree => Next::Done(match self.failed {
                Some(error) => Err(error),
                None => Ok(std::mem::take(&mut self.read)),
            }),
        }
    }

    fn call<T>(&mut self, called: Called, function: Gva, args: &[u64]) -> Next<T> {
        self.called = called;
        Next::Call(Call::new(function, args))
    }

    fn read<T>(&mut self) -> Next<T> {
        let (bytes, position) = (self.buffer.add(BYTES).0, self.buffer.add(POSITION).0);
        self.call(Called::Read, self.functions.kernel_read, &[self.file, bytes, CHUNK, position])
    }

    fn close<T>(&mut self, failed: Option<Errno>) -> Next<T> {
        self.failed = failed;
        self.call(Called::Put, self.functions.fput, &[self.file])
    }

    fn fail<T>(&mut self, error: Errno) -> Next<T> {
        self.failed = Some(error);
        self.call(Called::Vfree, self.functions.vfree, &[self.buffer.0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errands::functions::tests::FUNCTIONS;
    use crate::errands::tests::{mapped, memory};

    const BUFFER: u64 = 0x1_0000;
    const FILE: u64 = 0xffff_8880_0100_0000;

    fn failed(error: Errno) -> u64 {
        i64::from(-error.raw_os_error()).cast_unsigned()
    }

    /// What comes of reading at most so much of a file that the kernel opens and reads so, and what was called.
    fn read(most: usize, file: Result<&[u8], Errno>, fails: bool) -> (Result<Vec<u8>, Errno>, Vec<u64>) {
        let (ram, mut errand) = (mapped(), ReadFile::new(FUNCTIONS, b"/a", most).unwrap());
        let memory = memory(&ram);
        let (mut returned, mut calls) = (None, Vec::new());
        loop {
            let call = match errand.next(&mut Worker { returned, memory }) {
                Next::Call(call) => call,
                Next::Done(result) => return (result, calls),
            };
            calls.push(call.function.0);
            let [first, second, count, position, ..] = call.args;
            returned = Some(match (call.function.0, file) {
                (1, _) => BUFFER,
                (3, Err(error)) => failed(error),
                (3, Ok(_)) => {
                    let mut path = [1; 3];
                    memory.read(Gva(first), &mut path).unwrap();
                    assert_eq!((&path, second), (b"/a\0", FLAGS));
                    FILE
                }
                (4, _) if fails => failed(Errno::INVAL),
                (4, Ok(bytes)) => {
                    assert_eq!(first, FILE);
                    let from = memory.read_u64(Gva(position)).unwrap() as usize;
                    let end = bytes.len().min(from + count as usize);
                    memory.write(Gva(second), &bytes[from..end]).unwrap();
                    memory.write(Gva(position), &(end as u64).to_le_bytes()).unwrap();
                    (end - from) as u64
                }
                (2, _) => {
                    assert_eq!(first, BUFFER);
                    0
                }
                _ => 0,
            });
        }
    }

    #[test]
    fn a_file_is_read_to_its_end_and_all_is_given_back() {
        let bytes: Vec<u8> = (0..150_000).map(|n| (n % 251) as u8).collect();
        let all = vec![1, 3, 4, 4, 4, 4, 5, 2];
        assert_eq!(read(1 << 20, Ok(&bytes), false), (Ok(bytes.clone()), all));
        assert_eq!(read(100, Ok(&bytes), false), (Ok(bytes[..100].to_vec()), vec![1, 3, 4, 5, 2]));
        assert_eq!(read(100, Ok(b""), false), (Ok(Vec::new()), vec![1, 3, 4, 5, 2]));
        assert_eq!(read(100, Err(Errno::NOENT), false), (Err(Errno::NOENT), vec![1, 3, 2]));
        assert_eq!(read(100, Ok(&bytes), true), (Err(Errno::INVAL), vec![1, 3, 4, 5, 2]));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        for (path, error) in [(&b"a\0b"[..], Errno::INVAL), (&[b'a'; 4096], Errno::NAMETOOLONG)] {
            assert_eq!(ReadFile::new(FUNCTIONS, path, 1).err(), Some(error));
        }
        assert!(ReadFile::new(FUNCTIONS, &[b'a'; 4095], 1).is_ok());
    }
}
