//! A shared folder (Virtio 1.2, 5.11): carries the messages of FUSE between the guest and a server of files.
//!
//! A message says by itself how long it is, so that a stream carries many. One stream serves all folders: what tells
//! which request an answer is for, `unique`, is ours while a message is on its way, and has the folder's number in it.

use super::{Request, Virtio, Virtqueue, spawn};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A message to the server begins with `struct fuse_in_header`, of so many bytes (include/uapi/linux/fuse.h).
pub const IN_HEADER: usize = 40;
/// An answer begins with `struct fuse_out_header`.
pub const OUT_HEADER: usize = 16;
/// The longest message either way, in bytes: a page of headers, and the most that is read or written at a time.
pub const LONGEST: usize = (1 << 20) + 4096;
/// What ends the answers on a stream that has no end of its own, wherever in an answer it has stopped: behind it comes an
/// answer that is shorter than its header.
#[must_use]
pub fn end_of_answers() -> Vec<u8> {
    vec![0; LONGEST + OUT_HEADER]
}

/// The most folders that one stream serves.
pub const FOLDERS: usize = 16;

/// What a message asks for, where that matters here.
mod opcode {
    pub(super) const FORGET: u32 = 2;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
}

/// The device by which the guest sees a folder.
pub struct FolderDevice {
    queues: [Arc<Virtqueue>; 2],
    config: [u8; 40],
    number: u8,
    server: Arc<Server>,
}

/// The way to the server of files.
pub struct Server {
    out: Mutex<Box<dyn Write + Send>>,
    waiting: Mutex<Waiting>,
}

/// Requests that the server has not answered.
#[derive(Default)]
struct Waiting {
    requests: HashMap<u64, Asked>,
    last: u64,
    /// The server is gone.
    is_over: bool,
}

struct Asked {
    request: Request,
    queue: Arc<Virtqueue>,
    /// What the guest calls it.
    unique: [u8; 8],
}

impl Server {
    /// A server that takes messages from `out`.
    #[must_use]
    pub fn new(out: Box<dyn Write + Send>) -> Arc<Self> {
        Arc::new(Self { out: Mutex::new(out), waiting: Mutex::default() })
    }

    /// Starts the thread, [confined](crate::confine) or not, that carries the answers, which come from `answers`. When these
    /// end, `lost` is called, what waits for an answer gets EIO, and so does whatever is asked later.
    ///
    /// # Errors
    /// When the host is out of threads.
    pub fn start(
        self: &Arc<Self>,
        answers: impl Read + Send + 'static,
        lost: impl FnOnce() + Send + 'static,
        confine: bool,
    ) -> io::Result<()> {
        let server = self.clone();
        spawn("fs-answers", confine, move || {
            // Whatever ended the stream, nothing more comes.
            let _ = server.carry(answers);
            lost();
            let mut waiting = server.waiting();
            waiting.is_over = true;
            waiting.requests.drain().for_each(|(_, asked)| asked.fail());
        })
    }

    fn carry(&self, mut answers: impl Read) -> io::Result<()> {
        let mut body = Vec::new();
        loop {
            let mut header = [0; OUT_HEADER];
            answers.read_exact(&mut header)?;
            let [l0, l1, l2, l3, e0, e1, e2, e3, ours @ ..] = header;
            let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            let rest = length.checked_sub(OUT_HEADER).filter(|_| length <= LONGEST);
            body.resize(rest.ok_or(io::ErrorKind::InvalidData)?, 0);
            answers.read_exact(&mut body)?;
            if let Some(asked) = self.waiting().requests.remove(&u64::from_le_bytes(ours)) {
                asked.answer([l0, l1, l2, l3], [e0, e1, e2, e3], &body);
            }
        }
    }

    /// Sends `request` to the server.
    fn ask(&self, number: u8, mut request: Request, queue: &Arc<Virtqueue>) {
        let Some(header) = InHeader::of(&request) else { return queue.put(request, &[]) };
        let InHeader { opcode, unique } = header;
        let has_answer = !matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET);
        if opcode == opcode::INTERRUPT {
            // Nothing is interrupted: the server takes no longer than its disk.
            return queue.put(request, &[]);
        }
        let mut message = std::mem::take(&mut request.bytes);
        let ours = {
            let mut waiting = self.waiting();
            waiting.last += 1;
            waiting.last & (u64::MAX >> 8) | u64::from(number) << 56
        };
        message.iter_mut().skip(8).zip(ours.to_le_bytes()).for_each(|(to, from)| *to = from);
        let asked = Asked { request, queue: queue.clone(), unique };
        if !has_answer {
            let _ = self.send(&message);
            return asked.queue.put(asked.request, &[]);
        }
        {
            let mut waiting = self.waiting();
            if waiting.is_over {
                return asked.fail();
            }
            waiting.requests.insert(ours, asked);
        }
        if self.send(&message).is_err()
            && let Some(asked) = self.waiting().requests.remove(&ours)
        {
            asked.fail();
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(message)?;
        out.flush()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    fn answer(self, length: [u8; 4], error: [u8; 4], body: &[u8]) {
        self.queue.put(self.request, &[&length, &error, &self.unique, body]);
    }

    fn fail(self) {
        self.answer((OUT_HEADER as u32).to_le_bytes(), (-libc::EIO).to_le_bytes(), &[]);
    }
}

/// What of a message's header matters here.
struct InHeader {
    opcode: u32,
    unique: [u8; 8],
}

impl InHeader {
    /// `None` where the message is not as long as it says: the stream would be lost.
    fn of(request: &Request) -> Option<Self> {
        let header: &[u8; IN_HEADER] = request.bytes.first_chunk()?;
        let [l0, l1, l2, l3, o0, o1, o2, o3, u0, u1, u2, u3, u4, u5, u6, u7, ..] = *header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let opcode = u32::from_le_bytes([o0, o1, o2, o3]);
        let is_whole = !request.is_cut && length == request.bytes.len();
        is_whole.then_some(Self { opcode, unique: [u0, u1, u2, u3, u4, u5, u6, u7] })
    }
}

impl FolderDevice {
    /// Folder `number` of `server`, which the guest finds by its `tag`, of at most 36 bytes.
    ///
    /// # Errors
    /// When the host is out of descriptors.
    pub fn new(tag: &str, number: u8, server: Arc<Server>) -> io::Result<Self> {
        let mut config = [0; 40];
        config.iter_mut().zip(tag.as_bytes().iter().take(36)).for_each(|(to, from)| *to = *from);
        // One queue for requests, behind that of what has priority.
        config.iter_mut().skip(36).zip(1_u32.to_le_bytes()).for_each(|(to, from)| *to = from);
        Ok(Self { queues: [Virtqueue::new()?, Virtqueue::new()?], config, number, server })
    }

    /// Starts its threads, [confined](crate::confine) or not, which end with its queues.
    ///
    /// # Errors
    /// When the host is out of threads.
    pub fn start(&self, confine: bool) -> io::Result<()> {
        let start = |queue: &Arc<Virtqueue>| {
            let (queue, server, number) = (queue.clone(), self.server.clone(), self.number);
            spawn("fs", confine, move || {
                while let Some(request) = queue.take(LONGEST) {
                    server.ask(number, request, &queue);
                }
            })
        };
        self.queues.iter().try_for_each(start)
    }
}

impl Virtio for FolderDevice {
    fn kind(&self) -> u16 {
        26
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn queues(&self) -> &[Arc<Virtqueue>] {
        &self.queues
    }
}
