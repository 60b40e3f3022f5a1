//! The server of a control socket: one thread that knows the clients, and hands their calls on, one of each at a time.

mod serving;
mod stops;

use super::frame::{Answer, Stop};
use super::socket::OwnSocket;
use anyhow::{Context, Result};
use probe_engine::request::ProbeRequest;
use rustix::event::{EventfdFlags, eventfd};
use serving::Serving;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};
use vmm::confine::{self, Role};

/// So much mail is kept: whoever has more waits.
const MOST_MAIL: usize = 64;

/// What definitions mean, or why they mean nothing.
pub(super) type Defined = Result<Vec<ProbeRequest>, String>;
/// Finds that out on a thread of its own, for each that comes, and tells it with its number.
pub(crate) type Definer = Box<dyn FnOnce(Receiver<(u64, Vec<String>)>, &dyn Fn(u64, Defined)) + Send>;

/// What comes to the server's thread, beside clients.
enum Mail {
    /// A client has come by itself.
    Joined(UnixStream),
    /// A session can be asked over this stream.
    Linked(UnixStream),
    /// It has answered.
    Answered(Answer),
    /// Its guest has come to stand still, by a hit of this probe or behind one instruction.
    Stopped(Stop),
    /// It has ended. The number tells it from a later one.
    Unlinked(u64),
    Defined(u64, Defined),
    /// The run is over.
    Finish,
}

/// Where mail for the server's thread is left.
#[derive(Clone)]
struct Post {
    mail: SyncSender<Mail>,
    wake: Arc<OwnedFd>,
}

impl Post {
    fn send(&self, mail: Mail) {
        // A server that has ended takes none. A full counter wakes as well.
        let _ = self.mail.send(mail);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A server that runs. It ends, and its socket is removed, when it is dropped.
pub(crate) struct Server {
    post: Post,
    thread: Option<JoinHandle<()>>,
    _socket: Option<OwnSocket>,
}

impl Server {
    /// Serves clients of `socket`, where there is one, and those that [join](Self::join). They wait until there is a session. What they
    /// define is found out by `definer`.
    ///
    /// # Errors
    /// When this machine is out of threads or descriptors.
    pub(crate) fn start(socket: Option<OwnSocket>, definer: Definer) -> Result<Self> {
        const NO_THREAD: &str = "the host has no thread left";
        let listener = socket.as_ref().map(|socket| socket.listener().try_clone()).transpose();
        let listener = listener.context("cannot share a socket")?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("the host has no descriptor left")?;
        let (mail, received) = mpsc::sync_channel(MOST_MAIL);
        let post = Post { mail, wake: Arc::new(wake) };
        let (define, defined) = mpsc::channel();
        let told = post.clone();
        thread::Builder::new()
            .name("definitions".to_owned())
            .spawn(move || definer(defined, &|number, defined| told.send(Mail::Defined(number, defined))))
            .context(NO_THREAD)?;
        let serving = Serving::new(listener, (received, post.clone()), define);
        let thread = thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || {
                confine::this_thread_if(true, Role::Control);
                serving.run();
            })
            .context(NO_THREAD)?;
        Ok(Self { post, thread: Some(thread), _socket: socket })
    }

    /// Where clients of this very process come.
    pub(crate) fn entrance(&self) -> Entrance {
        Entrance(self.post.clone())
    }

    /// From now on a session answers over `stream`.
    pub(crate) fn link(&self, stream: UnixStream) {
        self.post.send(Mail::Linked(stream));
    }
}

/// Where clients of this very process come to a server. They are served as those are that come by its socket.
#[derive(Clone)]
pub(crate) struct Entrance(Post);

impl Entrance {
    /// A client: its end of the connection.
    ///
    /// # Errors
    /// When this machine is out of descriptors.
    pub(crate) fn join(&self) -> Result<UnixStream> {
        let Self(post) = self;
        let (ours, theirs) = UnixStream::pair().context("the host has no descriptor left")?;
        post.send(Mail::Joined(theirs));
        Ok(ours)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.post.send(Mail::Finish);
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said why.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
