//! How other threads talk to the control thread: by a [`Handle`].

use super::counters::Counters;
use super::report::{HeldNow, ProbeReport, Standing};
use super::resolver::{RegisterError, Resolver};
use super::stopped::{KernelPlace, Stopped};
use crate::errands::{Closed, Errands, Next, Nothing, Worker, one};
use crate::own_thread::is_own_thread;
use crate::probe::{Command, Probe};
use probe_engine::addr::{Gpa, Gva};
use probe_engine::errand::Call;
use probe_engine::linux::errands::NoErrands;
use probe_engine::probe::pace::GateId;
use probe_engine::probe::table::ProbeId;
use probe_engine::regs::Regs;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, ThreadId};
use std::time::Duration;
use vmm_sys_util::eventfd::EventFd;

/// A command could not be carried out. Nothing was changed by it.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A probe cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// No such probe, or no longer.
    #[error("there is no probe number {}", .0.0)]
    Unknown(ProbeId),
    /// The guest has ended.
    #[error("the guest has ended")]
    Ended,
    /// The guest has not been started, and the caller's thread is the one that has its session: whoever waits there waits
    /// for ever.
    #[error(
        "the session is not running yet, and nobody else can start it: register its probes with the session"
    )]
    NotRunning,
    /// The caller is who would have to carry it out, or whom that has to wait for.
    #[error("a handler or a sink cannot wait for a command: handlers give theirs to the hit")]
    Inside,
}

/// The guest has not done what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum ErrandError {
    /// It cannot be waited for.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// Its kernel does no errands.
    #[error("the guest's kernel makes no calls for others: {0}")]
    Refused(#[from] NoErrands),
    /// It has no room for the code that this takes.
    #[error("the guest makes no calls for others: {0}")]
    Unreachable(String),
    /// The time was over. A call that was made may still be under way; nothing more is done after it.
    #[error("the guest has not made the calls in time")]
    Overdue,
    /// The guest's kernel panics.
    #[error("the guest's kernel has panicked")]
    Panicked,
    /// What was to say which call is next has panicked.
    #[error("what says which calls to make has panicked")]
    Broken,
}

impl From<Closed> for ErrandError {
    fn from(closed: Closed) -> Self {
        match closed {
            Closed::Ended => CommandError::Ended.into(),
            Closed::Panicked => Self::Panicked,
            Closed::Unreachable(reason) => Self::Unreachable(reason),
        }
    }
}

/// So many bytes are read at a time.
const MOST_READ: usize = 64 << 10;

/// The guest's memory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be asked for.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// More than is read at a time.
    #[error("{MOST_READ} bytes are read at a time at most, and not {0}")]
    TooLong(usize),
    /// Nobody knows its page tables.
    #[error("the guest's kernel has not started: its page tables are not known")]
    NotStarted,
    /// There is no such CPU.
    #[error("the guest has no CPU {0}")]
    NoVcpu(usize),
    /// The CPU is in the middle of something.
    #[error(
        "the page tables of CPU {0} are not known at this moment: it has not started, or waits for a device"
    )]
    NoSpace(usize),
    /// There is nothing.
    #[error("the guest has no memory at {0}, or what is there is not its own")]
    Unmapped(Gva),
}

/// What a debugger asks for cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum DebugError {
    /// It cannot be asked for.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The page tables are not known.
    #[error(transparent)]
    Space(#[from] ReadError),
    /// More than is written at a time.
    #[error("{MOST_READ} bytes are written at a time at most, and not {0}")]
    TooLong(usize),
    /// The guest does not stand still.
    #[error("the guest does not stand still: pause it first")]
    Runs,
    /// There is no such CPU.
    #[error("the guest has no CPU {0}")]
    NoVcpu(usize),
    /// The CPU is in the middle of something.
    #[error("CPU {0} is in the middle of an access to a device, or waits for whoever reads the events")]
    Amid(usize),
    /// The CPU is in code of ours, with other registers than are shown.
    #[error("CPU {0} is in code of vmm's, which puts registers back: they can be set once it has left that")]
    InOwnCode(usize),
    /// No code can be there.
    #[error("no code can be at {0}")]
    NoCode(Gva),
    /// There is no memory of the guest's.
    #[error("the guest has no memory at {0}, or what is there is not its own")]
    Unmapped(Gva),
    /// A page of a guarded kernel.
    #[error("the memory at {0} is protected by the guest's guard")]
    Sealed(Gva),
}

/// What is to be written.
#[derive(Debug)]
pub(super) struct WriteAt {
    pub(super) at: Gva,
    pub(super) bytes: Vec<u8>,
    /// By whose page tables; by the kernel's own where it is nobody's.
    pub(super) vcpu: Option<usize>,
}

/// What is to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadAt {
    pub(super) at: Gva,
    pub(super) length: usize,
    /// By whose page tables; by the kernel's own where it is nobody's.
    pub(super) vcpu: Option<usize>,
}

/// So many bytes are read at a time: a guest waits for nobody longer than copying that takes.
const MOST_PHYSICAL: usize = 1 << 20;

/// The guest's physical memory cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PhysicalError {
    /// It cannot be asked for.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// More than is read at a time.
    #[error("{MOST_PHYSICAL} bytes are read at a time at most, and not {0}")]
    TooLong(usize),
    /// There is nothing, or not of the guest's.
    #[error("the guest has no memory at physical address {0}")]
    None(Gpa),
}

/// Why a guest stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StandsFor {
    /// Somebody wants it to.
    Command,
    /// Its kernel has [reported](super::Sink::splat) that something is wrong with it.
    Splat,
}

/// What is asked.
pub(super) enum Unstopped {
    /// Whether the guest stands still, and why.
    State(SyncSender<Option<StandsFor>>),
    /// Where memory is.
    Ranges(SyncSender<Vec<Range<Gpa>>>),
    /// What is there: so many bytes.
    Read(Gpa, usize, SyncSender<Result<Vec<u8>, PhysicalError>>),
}

/// The probes that a command was about.
pub type Answer = Result<Vec<ProbeId>, CommandError>;

/// What a command came to.
pub(super) struct Done {
    /// The probes that it was about.
    pub(super) ids: Vec<ProbeId>,
    /// Those that it has unregistered, as they were in the end.
    pub(super) removed: Vec<ProbeReport>,
}

impl From<Vec<ProbeId>> for Done {
    fn from(ids: Vec<ProbeId>) -> Self {
        Self { ids, removed: Vec::new() }
    }
}

/// Who is told the numbers of probes that were registered.
pub(super) type Told = Box<dyn FnOnce(&[ProbeId]) + Send>;

/// What comes to the control thread.
pub(super) enum Message {
    Command(Command, Option<Told>, SyncSender<Result<Done, CommandError>>),
    List(SyncSender<Vec<ProbeReport>>),
    Counters(SyncSender<Counters>),
    Standing(SyncSender<Standing>),
    Read(ReadAt, SyncSender<Result<Vec<u8>, ReadError>>),
    Unstopped(Unstopped),
    Held(SyncSender<Vec<HeldNow>>),
    Release(Option<GateId>, SyncSender<usize>),
    Follow(Sender<Stopped>, SyncSender<()>),
    Kernel(SyncSender<Option<KernelPlace>>),
    Step(usize, SyncSender<Result<(), DebugError>>),
    SetRegs(usize, Box<Regs>, SyncSender<Result<(), DebugError>>),
    Write(WriteAt, SyncSender<Result<(), DebugError>>),
}

/// Changes the probes of a session while its guest runs. Can be cloned and used from any thread but the one that
/// runs the session, and not from handlers: each call waits for the control thread, and before the guest is started for
/// that. The control thread stops the guest for what it changes: a caller must hold no lock that a handler or the sink waits
/// for, or neither of them ever goes on.
#[derive(Clone)]
pub struct Handle {
    messages: Sender<Message>,
    wake: Arc<EventFd>,
    opened: Arc<Opened>,
    resolver: Arc<Resolver>,
    errands: Arc<Errands>,
    /// Why the guest does none.
    no_errands: Option<NoErrands>,
}

/// When commands are carried out.
struct Opened {
    /// The thread that has the session until it runs.
    by: ThreadId,
    is_running: AtomicBool,
}

impl Handle {
    /// A handle, and where the control thread reads what it sends. `wake` is written when there is something to read.
    pub(super) fn open(wake: Arc<EventFd>, resolver: Arc<Resolver>) -> (Self, Receiver<Message>) {
        let (messages, received) = mpsc::channel();
        let opened = Opened { by: thread::current().id(), is_running: AtomicBool::new(false) };
        let errands = Arc::default();
        (Self { messages, wake, opened: Arc::new(opened), resolver, errands, no_errands: None }, received)
    }

    /// The same of a guest with these errands, or without.
    pub(super) fn with_errands(self, errands: Arc<Errands>, no_errands: Option<NoErrands>) -> Self {
        Self { errands, no_errands, ..self }
    }

    /// From now on the control thread reads.
    pub(super) fn attended(&self) {
        self.opened.is_running.store(true, Ordering::Release);
    }

    /// Has `command` carried out.
    ///
    /// # Errors
    /// [`CommandError`]; nothing was changed then.
    pub fn command(&self, command: Command) -> Answer {
        Ok(self.done(command, None)?.ids)
    }

    fn done(&self, command: Command, told: Option<Told>) -> Result<Done, CommandError> {
        self.may_wait()?;
        let command = match command {
            Command::Register(probes) => Command::Register(self.resolve(probes)?),
            other => other,
        };
        self.ask(|answer| Message::Command(command, told, answer))?
    }

    /// The places of `probes`, looked up on this thread: the guest does not have to stand still for that.
    fn resolve(&self, probes: Vec<Probe>) -> Result<Vec<Probe>, RegisterError> {
        probes.into_iter().map(|probe| Ok(self.resolver.resolve(probe)?.into())).collect()
    }

    /// Registers a probe. It stands when this returns, or waits for its module.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn register(&self, probe: impl Into<Probe>) -> Result<ProbeId, CommandError> {
        let ids = self.register_all(vec![probe.into()])?;
        ids.first().copied().ok_or(CommandError::Register(RegisterError::TooMany))
    }

    /// Registers all of `probes` or none. Their numbers are in their order.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn register_all(&self, probes: Vec<Probe>) -> Answer {
        self.command(Command::Register(probes))
    }

    /// Registers all of `probes` or none. The control thread tells their numbers to `told` before the sink gets the first event of
    /// theirs. It must not wait for anything. Where their tracepoints cannot be switched on, the probes are unregistered after that.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn register_told(
        &self,
        probes: Vec<Probe>,
        told: impl FnOnce(&[ProbeId]) + Send + 'static,
    ) -> Answer {
        Ok(self.done(Command::Register(probes), Some(Box::new(told)))?.ids)
    }

    /// Unregisters a probe, and gives what it has seen. Events of it that are on their way still come to the session's sink, and where a
    /// vCPU is in the code of its detour, one more: the session's [report](super::Report::removed) has that.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn unregister(&self, probe: ProbeId) -> Result<ProbeReport, CommandError> {
        let removed = self.unregister_all(vec![probe])?;
        removed.into_iter().next().ok_or(CommandError::Unknown(probe))
    }

    /// Unregisters all of `probes` or none, and gives what they have seen, in their order. A probe that is named twice is
    /// removed and reported once.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn unregister_all(&self, probes: Vec<ProbeId>) -> Result<Vec<ProbeReport>, CommandError> {
        Ok(self.done(Command::Unregister(probes), None)?.removed)
    }

    /// All probes with what they have seen so far.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn list(&self) -> Result<Vec<ProbeReport>, CommandError> {
        self.ask(Message::List)
    }

    /// Everything that is counted, so far, in one stop of the guest.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn counters(&self) -> Result<Counters, CommandError> {
        self.ask(Message::Counters)
    }

    /// Where the guest's CPUs stand, in one stop of the guest.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn standing(&self) -> Result<Standing, CommandError> {
        self.ask(Message::Standing)
    }

    /// What is in the guest's memory at `at`, as the guest has it: without bytes of ours. The address is one of the kernel's, or with
    /// `vcpu` one of whatever that CPU runs.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read(&self, at: Gva, length: usize, vcpu: Option<usize>) -> Result<Vec<u8>, ReadError> {
        if length > MOST_READ {
            return Err(ReadError::TooLong(length));
        }
        self.ask(|answer| Message::Read(ReadAt { at, length, vcpu }, answer))?
    }

    /// Why the guest stands still; `None` where it runs.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn stands_for(&self) -> Result<Option<StandsFor>, CommandError> {
        self.ask(|answer| Message::Unstopped(Unstopped::State(answer)))
    }

    /// Where the guest has memory, in order.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn ram(&self) -> Result<Vec<Range<Gpa>>, CommandError> {
        self.ask(|answer| Message::Unstopped(Unstopped::Ranges(answer)))
    }

    /// What is in the guest's memory at the physical address `at`, as the guest has it: without bytes of ours. The guest is not
    /// stopped for it.
    ///
    /// # Errors
    /// [`PhysicalError`].
    pub fn read_physical(&self, at: Gpa, length: usize) -> Result<Vec<u8>, PhysicalError> {
        if length > MOST_PHYSICAL {
            return Err(PhysicalError::TooLong(length));
        }
        self.ask(|answer| Message::Unstopped(Unstopped::Read(at, length, answer)))?
    }

    /// The tasks that are [held](probe_engine::probe::pace::Pace::Hold) at this moment.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn held(&self) -> Result<Vec<HeldNow>, CommandError> {
        self.ask(Message::Held)
    }

    /// Lets the task go on that is held at `gate`, or all of them, as if their time was over. Gives how many went on.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn release(&self, gate: Option<GateId>) -> Result<usize, CommandError> {
        self.ask(|answer| Message::Release(gate, answer))
    }

    /// From now on the receiver is told where the guest comes to stand still by itself, and nobody else.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn stops(&self) -> Result<Receiver<Stopped>, CommandError> {
        let (follower, stopped) = mpsc::channel();
        self.ask(|answer| Message::Follow(follower, answer))?;
        Ok(stopped)
    }

    /// Where the kernel is; `None` as long as that is not known.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn kernel(&self) -> Result<Option<KernelPlace>, CommandError> {
        self.ask(Message::Kernel)
    }

    /// Has one CPU of a guest that [stands still](Command::Pause) execute one instruction, while all others do so on. The CPU takes no
    /// interrupt meanwhile. When it has, [that is told](Self::stops). What else is commanded meanwhile is carried out;
    /// [`Command::Pause`] ends it.
    ///
    /// # Errors
    /// [`DebugError`].
    pub fn step(&self, vcpu: usize) -> Result<(), DebugError> {
        self.ask(|answer| Message::Step(vcpu, answer))?
    }

    /// Has one CPU of a guest that [stands still](Command::Pause) go on with other registers.
    ///
    /// # Errors
    /// [`DebugError`].
    pub fn set_regs(&self, vcpu: usize, regs: Regs) -> Result<(), DebugError> {
        self.ask(|answer| Message::SetRegs(vcpu, Box::new(regs), answer))?
    }

    /// Writes to the guest's memory at `at`, whatever its page tables allow. The address is as for [`read`](Self::read). What of ours
    /// stands there stays, and hides what is written.
    ///
    /// # Errors
    /// [`DebugError`]; nothing is written then.
    pub fn write(&self, at: Gva, bytes: Vec<u8>, vcpu: Option<usize>) -> Result<(), DebugError> {
        if bytes.len() > MOST_READ {
            return Err(DebugError::TooLong(bytes.len()));
        }
        self.ask(|answer| Message::Write(WriteAt { at, bytes, vcpu }, answer))?
    }

    /// Has the guest make calls of its own functions, in a worker of its kernel, where they may sleep. `next` says which is the
    /// next one, or what came of it all. It is asked on a vCPU's thread: that CPU of the guest waits for it, and it must not wait for
    /// anything. Where nothing has come of it `within` so long, it is asked no more.
    ///
    /// # Errors
    /// [`ErrandError`].
    pub fn errand<T: Send + 'static>(
        &self,
        within: Duration,
        next: impl FnMut(&mut Worker<'_>) -> Next<T> + Send + 'static,
    ) -> Result<T, ErrandError> {
        self.may_wait()?;
        if let Some(refused) = &self.no_errands {
            return Err(refused.clone().into());
        }
        let wanted = self.errands.want(next)?;
        // A full counter wakes as well.
        let _ = self.wake.write(1);
        wanted.wait(within).map_err(|nothing| match nothing {
            Nothing::Overdue => ErrandError::Overdue,
            Nothing::Dropped => self.errands.closed().map_or(ErrandError::Broken, ErrandError::from),
        })
    }

    /// Has the guest call `function`, named by the address at which it was linked, and gives what that returns.
    ///
    /// # Errors
    /// As [`errand`](Self::errand).
    pub fn call(&self, within: Duration, function: Gva, args: &[u64]) -> Result<u64, ErrandError> {
        self.errand(within, one(Call::new(function, args)))
    }

    /// Whether the caller can wait for an answer.
    fn may_wait(&self) -> Result<(), CommandError> {
        if is_own_thread() {
            return Err(CommandError::Inside);
        }
        let Opened { by, is_running } = &*self.opened;
        if *by == thread::current().id() && !is_running.load(Ordering::Acquire) {
            return Err(CommandError::NotRunning);
        }
        Ok(())
    }

    pub(super) fn ask<T>(&self, question: impl FnOnce(SyncSender<T>) -> Message) -> Result<T, CommandError> {
        self.may_wait()?;
        let (answer, answered) = mpsc::sync_channel(1);
        // Without a receiver the guest has ended, and so has what is asked for.
        let _ = self.messages.send(question(answer));
        // A full counter wakes as well.
        let _ = self.wake.write(1);
        answered.recv().map_err(|_| CommandError::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_thread::OwnThread;

    fn open() -> (Handle, Receiver<Message>) {
        Handle::open(Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap()), Arc::default())
    }

    #[test]
    fn whoever_would_wait_for_itself_is_told_so() {
        let (handle, _) = open();
        assert!(matches!(handle.list(), Err(CommandError::NotRunning)), "nobody can start it meanwhile");
        assert!(matches!(handle.command(Command::Stop), Err(CommandError::NotRunning)));
        handle.attended();
        assert!(matches!(handle.command(Command::Stop), Err(CommandError::Ended)));
        let inside = OwnThread::enter();
        assert!(matches!(handle.command(Command::Stop), Err(CommandError::Inside)));
        drop(inside);
        assert!(matches!(handle.list(), Err(CommandError::Ended)));
    }

    #[test]
    fn a_thread_on_which_a_sink_has_panicked_may_wait_again() {
        let (handle, _) = open();
        handle.attended();
        let panicked = std::panic::catch_unwind(|| {
            let _inside = OwnThread::enter();
            std::panic::resume_unwind(Box::new("as a sink would"));
        });
        assert!(panicked.is_err());
        assert!(matches!(handle.list(), Err(CommandError::Ended)));
    }

    /// Another thread may ask before the guest is started.
    #[test]
    fn others_wait_until_it_runs() {
        let (handle, received) = open();
        let asked = thread::spawn(move || handle.list());
        let Message::List(answer) = received.recv().unwrap() else { panic!("a list was asked for") };
        answer.send(Vec::new()).unwrap();
        assert!(asked.join().unwrap().unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_resolved_never_stops_the_guest() {
        let (handle, received) = open();
        handle.attended();
        let refused = handle.register(Probe::at("nowhere")).unwrap_err();
        assert!(matches!(refused, CommandError::Register(RegisterError::NoKernel(_))), "{refused}");
        assert!(received.try_recv().is_err(), "nobody was asked");
    }
}
