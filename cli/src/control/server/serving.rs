//! The thread of a server: it knows the clients, and hands their calls on.

mod standing;

use super::super::client::{Client, LONGEST_LINE, Next};
use super::super::frame::{self, Answer, Asked, Change, Request, Said};
use super::super::methods::{self, Definitions, Wanted};
use super::super::rpc::{self, Code, Failure};
use super::stops::{self, Stops};
use super::{Mail, Post};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufReader, Write as _};
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// So many clients are connected at most.
pub(super) const MOST_CLIENTS: usize = 64;
/// So many lines of a client are read before the others have their turn.
const LINES_AT_ONCE: usize = 16;
/// How long answers are waited for that clients have not taken when the guest has ended.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// What is said to whoever asks a guest that has ended.
const ENDED: &str = "the guest has ended";

/// What the server's thread works with.
pub(super) struct Serving {
    /// Where clients come.
    listener: Option<UnixListener>,
    received: Receiver<Mail>,
    post: Post,
    define: Sender<(u64, Vec<String>)>,
    /// The way to the session, once there is one.
    link: Option<UnixStream>,
    /// How many there have been.
    links: u64,
    clients: BTreeMap<u64, Client>,
    /// The calls that are under way, by their numbers.
    calls: HashMap<u64, UnderWay>,
    stops: Stops,
    /// The last number of a client or a call.
    numbers: u64,
}

/// A call that is under way.
struct UnderWay {
    client: u64,
    /// `None` where no answer is wanted.
    id: Option<Value>,
    kind: Kind,
}

/// What a call asks for, as far as the server has to know.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The end of the guest.
    Quits,
    /// Probes at which the guest stands still.
    AddsStops,
    /// Probes are not wanted any more.
    Removes,
    /// A CPU is to execute one instruction.
    Steps,
    Other,
}

impl Kind {
    fn of(wanted: &Wanted) -> Self {
        match wanted {
            Wanted::Ask(Request::Quit) => Self::Quits,
            Wanted::Define(Definitions { stop: true, .. })
            | Wanted::Ask(Request::Change(Change::Watch { .. })) => Self::AddsStops,
            Wanted::Ask(Request::Change(Change::Remove(_))) => Self::Removes,
            Wanted::Ask(Request::Step(_)) => Self::Steps,
            _ => Self::Other,
        }
    }
}

/// What the server waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Mail,
    Listener,
    Client(u64),
}

impl Serving {
    /// One without clients. What they define is handed on to `define`.
    pub(super) fn new(
        listener: Option<UnixListener>,
        (received, post): (Receiver<Mail>, Post),
        define: Sender<(u64, Vec<String>)>,
    ) -> Self {
        let (clients, calls, stops) = (BTreeMap::new(), HashMap::new(), Stops::default());
        Self { listener, received, post, define, link: None, links: 0, clients, calls, stops, numbers: 0 }
    }

    /// Serves until the run is over.
    pub(super) fn run(mut self) {
        loop {
            for (source, events) in self.wait(None) {
                match source {
                    Source::Mail => {
                        let mut count = [0; 8];
                        let _ = rustix::io::read(&self.post.wake, &mut count);
                    }
                    Source::Listener => self.accept(),
                    Source::Client(client) => self.ready(client, events),
                }
            }
            // Mail is there before it is announced.
            while let Ok(mail) = self.received.try_recv() {
                match mail {
                    Mail::Joined(stream) => self.join(stream),
                    Mail::Linked(stream) => self.linked(stream),
                    Mail::Answered(Answer { number, result }) => {
                        let json = |text: String| serde_json::from_str(&text).map_err(|e| e.to_string());
                        self.answer(number, result.and_then(json));
                    }
                    Mail::Stopped(stop) => self.stopped(stop),
                    Mail::Unlinked(link) if link == self.links => self.unlinked(),
                    Mail::Unlinked(_) => {}
                    Mail::Defined(number, Ok(mut probes)) => {
                        if self.calls.get(&number).is_some_and(|call| call.kind == Kind::AddsStops) {
                            probes.iter_mut().for_each(stops::stopping);
                        }
                        self.ask(number, Request::Change(Change::Add(probes)))
                    }
                    Mail::Defined(number, Err(why)) => self.answer(number, Err(why)),
                    Mail::Finish => return self.finish(),
                }
                // Whose these are may be known by now.
                for stop in std::mem::take(&mut self.stops.early) {
                    self.stopped(stop);
                }
            }
            self.read_lines();
            self.leave();
        }
    }

    /// Waits until something happens, or at most until `until`, and says what.
    fn wait(&self, until: Option<Instant>) -> Vec<(Source, PollFlags)> {
        let now = Instant::now();
        let mut sources = vec![Source::Mail];
        let mut fds = vec![PollFd::new(&*self.post.wake, PollFlags::IN)];
        if let (Some(listener), None) = (&self.listener, until) {
            sources.push(Source::Listener);
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        let is_linked = self.link.is_some();
        let mut deadline = until;
        for (id, client) in self.clients.iter().filter(|(_, client)| !client.is_gone()) {
            // That it has gone is told in any case.
            let wanted = match (client.has_output(), is_linked && client.is_idle()) {
                (true, _) => PollFlags::OUT,
                (false, true) => PollFlags::IN,
                (false, false) => PollFlags::empty(),
            };
            sources.push(Source::Client(*id));
            fds.push(PollFd::from_borrowed_fd(client.stream.as_fd(), wanted));
            deadline = deadline.into_iter().chain(client.deadline()).min();
        }
        let has_lines = |client: &Client| client.is_idle() && client.has_next();
        let timeout = match is_linked && self.clients.values().any(has_lines) {
            true => Some(Duration::ZERO),
            false => deadline.map(|deadline| deadline.saturating_duration_since(now)),
        };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {
                let events = fds.iter().map(PollFd::revents);
                sources.into_iter().zip(events).filter(|(_, events)| !events.is_empty()).collect()
            }
            Err(_) => Vec::new(),
        }
    }

    fn accept(&mut self) {
        match self.listener.as_ref().map(UnixListener::accept) {
            Some(Ok((stream, _))) => self.join(stream),
            Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                // Out of descriptors, for instance: whoever waits goes on waiting.
                thread::sleep(Duration::from_millis(10));
            }
            _ => {}
        }
    }

    /// A client has come.
    fn join(&mut self, stream: UnixStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut client = Client::new(stream);
        if self.clients.len() >= MOST_CLIENTS {
            let many = format!("{MOST_CLIENTS} clients are connected, and there is no room for more");
            let refused = Err(Failure::new(Code::Refused, many));
            client.answer(&rpc::response(&Value::Null, refused), Instant::now());
            return;
        }
        self.numbers += 1;
        self.clients.insert(self.numbers, client);
    }

    /// Something has happened at a client's stream.
    fn ready(&mut self, id: u64, events: PollFlags) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if events.intersects(PollFlags::HUP | PollFlags::ERR) {
            client.gone();
        } else {
            client.flush(Instant::now());
        }
        if client.is_gone() && std::mem::take(&mut client.pauses) {
            self.remove_stops(id);
            self.resume_unless_paused();
        }
    }

    /// Reads lines of all clients that may go on.
    fn read_lines(&mut self) {
        if self.link.is_none() {
            return;
        }
        let clients: Vec<u64> = self.clients.keys().copied().collect();
        for client in clients {
            for _ in 0..LINES_AT_ONCE {
                let Some(known) = self.clients.get_mut(&client).filter(|client| client.is_idle()) else {
                    break;
                };
                match known.next() {
                    Next::Line(line) if line.trim_ascii().is_empty() => {}
                    Next::Line(line) => self.line(client, &line),
                    Next::Nothing => break,
                    Next::End => known.close(),
                    Next::TooLong => {
                        let long = format!("a line has {} bytes at most", LONGEST_LINE);
                        let refused = Err(Failure::new(Code::Request, long));
                        known.answer(&rpc::response(&Value::Null, refused), Instant::now());
                        known.close();
                    }
                }
            }
        }
    }

    /// A client has sent a line.
    fn line(&mut self, client: u64, line: &[u8]) {
        let call = match rpc::call(line) {
            Ok(call) => call,
            Err((id, failure)) => return self.respond(client, &id, Err(failure)),
        };
        let wanted = match methods::wanted(&call) {
            Ok(wanted) => wanted,
            Err(failure) => return self.respond_if_wanted(client, call.id.as_ref(), Err(failure)),
        };
        if wanted == Wanted::Version {
            return self.respond_if_wanted(client, call.id.as_ref(), Ok(methods::version()));
        }
        // Whoever is gone wants no guest to stand still.
        let pauses = wanted == Wanted::Ask(Request::Pause(true));
        if pauses && self.clients.get(&client).is_none_or(Client::is_gone) {
            return;
        }
        let kind = Kind::of(&wanted);
        if kind == Kind::Steps && self.stops.stepper.is_some() {
            let failure = Failure::new(Code::Refused, "a CPU executes its one instruction already");
            return self.respond_if_wanted(client, call.id.as_ref(), Err(failure));
        }
        self.numbers += 1;
        let number = self.numbers;
        self.calls.insert(number, UnderWay { client, id: call.id, kind });
        if let Some(client) = self.clients.get_mut(&client) {
            client.is_waiting = true;
        }
        match wanted {
            Wanted::Version => {}
            Wanted::Define(Definitions { definitions, .. }) => {
                if self.define.send((number, definitions)).is_err() {
                    self.answer(number, Err("nothing can be defined any more".to_owned()));
                }
            }
            Wanted::Ask(request) => {
                match request {
                    Request::Pause(true) => {
                        self.stops.stepper = None;
                        self.pauses(client);
                    }
                    Request::Pause(false) => self.resumes(client),
                    Request::Step(_) => self.stops.stepper = Some(client),
                    _ => {}
                }
                self.ask(number, request);
            }
        }
    }

    /// Hands a request on to the session.
    fn ask(&mut self, number: u64, request: Request) {
        let asked = Asked { number, stop: self.stops.last, request };
        match self.link.as_mut().map(|link| frame::send(link, &asked)) {
            Some(Ok(())) => {}
            Some(Err(error)) if error.kind() == io::ErrorKind::FileTooLarge => {
                self.answer(number, Err("these are too many probes at a time".to_owned()));
            }
            Some(Err(_)) | None => self.answer(number, Err(ENDED.to_owned())),
        }
    }

    /// What has come of a call.
    fn answer(&mut self, number: u64, result: Result<Value, String>) {
        // Nobody waits for what was asked for in nobody's name.
        let Some(UnderWay { client, id, kind }) = self.calls.remove(&number) else { return };
        match (kind, &result) {
            (Kind::AddsStops, Ok(added)) => {
                self.stops.own(client, added);
                // Those of one that is gone are nobody's.
                if !self.clients.contains_key(&client) {
                    self.remove_stops(client);
                }
            }
            (Kind::Removes, Ok(removed)) => self.stops.disown(removed),
            (Kind::Steps, Err(_)) => {
                self.stops.stepper = self.stops.stepper.filter(|stepper| *stepper != client);
            }
            _ => {}
        }
        if let Some(client) = self.clients.get_mut(&client) {
            client.is_waiting = false;
        }
        let result = match result {
            // It may end before it has said that.
            Err(why) if kind == Kind::Quits && why == ENDED => Ok(Value::Object(Default::default())),
            result => result.map_err(|why| Failure::new(Code::Refused, why)),
        };
        self.respond_if_wanted(client, id.as_ref(), result);
        if let Some(client) = self.clients.get_mut(&client)
            && std::mem::take(&mut client.was_resumed)
        {
            client.notify(standing::RESUMED, Instant::now());
        }
    }

    fn respond_if_wanted(&mut self, client: u64, id: Option<&Value>, result: Result<Value, Failure>) {
        if let Some(id) = id {
            self.respond(client, id, result);
        }
    }

    fn respond(&mut self, client: u64, id: &Value, result: Result<Value, Failure>) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.answer(&rpc::response(id, result), Instant::now());
        }
    }

    fn linked(&mut self, stream: UnixStream) {
        self.links += 1;
        let (link, post) = (self.links, self.post.clone());
        let Ok(answers) = stream.try_clone() else { return };
        let read = move || {
            let mut answers = BufReader::new(answers);
            while let Ok(Some(said)) = frame::receive(&mut answers) {
                post.send(match said {
                    Said::Answer(answer) => Mail::Answered(answer),
                    Said::Stopped(stop) => Mail::Stopped(stop),
                });
            }
            post.send(Mail::Unlinked(link));
        };
        if thread::Builder::new().name("answers".to_owned()).spawn(read).is_ok() {
            self.link = Some(stream);
        }
    }

    /// The session has ended. There may be another one.
    fn unlinked(&mut self) {
        (self.link, self.stops) = (None, Stops::default());
        self.clients.values_mut().for_each(|client| client.pauses = false);
        let numbers: Vec<u64> = self.calls.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.answer(number, Err(ENDED.to_owned())));
    }

    /// Leaves clients that have ended, and those that take nothing.
    fn leave(&mut self) {
        let now = Instant::now();
        // Where there is no session, whoever has gone has nothing more to say.
        let is_linked = self.link.is_some();
        let is_left = |client: &Client| {
            client.is_over()
                || client.deadline().is_some_and(|deadline| now >= deadline)
                || client.is_gone() && !is_linked
        };
        let left: Vec<u64> =
            self.clients.iter().filter(|(_, client)| is_left(client)).map(|(id, _)| *id).collect();
        let mut has_paused = false;
        for id in left {
            has_paused |= self.clients.remove(&id).is_some_and(|client| client.pauses);
            self.remove_stops(id);
        }
        if has_paused {
            self.resume_unless_paused();
        }
    }

    /// The run is over: clients get what they have been answered.
    fn finish(mut self) {
        if let Some(link) = &self.link {
            // Whoever attends there is told.
            let _ = link.shutdown(Shutdown::Both);
        }
        self.unlinked();
        let until = Instant::now() + LAST_ANSWERS;
        while Instant::now() < until && self.clients.values().any(Client::has_output) {
            for (source, events) in self.wait(Some(until)) {
                if let Source::Client(client) = source {
                    self.ready(client, events);
                }
            }
        }
        for client in self.clients.values_mut() {
            let _ = client.stream.flush();
            let _ = client.stream.shutdown(Shutdown::Both);
        }
    }
}
