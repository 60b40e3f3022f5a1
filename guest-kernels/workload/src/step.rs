//! What can be asked for: `NAME[:ARGUMENT]`, separated by commas.
//!
//! | step | what is done | line |
//! |---|---|---|
//! | `open:N` | N files opened, read to their end and closed, by names in turn | `open calls=N bytes=B` |
//! | `getppid:N` | N calls | `getppid calls=N` |
//! | `ticks:N` | five calls of `getppid`, N times; how many ticks of the time-stamp counter five take | `ticks calls=5N least=T median=T` |
//! | `called:N` | the same with calls of a function of its own, which does nothing | `ticks calls=5N least=T median=T` |
//! | `fork:N` | N times: a child that executes this program, which exits; waited for | `fork calls=N` |
//! | `pinned:N` | a thread on every online CPU, pinned, each calling `getppid` N times | `pinned calls=N*C cpus=C` |
//! | `pipe:N` | a byte to a child process and back, N times | `pipe calls=N read=2N write=2N` |
//! | `walk:N` | a directory N levels deep: made, every level looked up, listed, and removed again | `walk calls=N mkdir=N rmdir=N openat=N getdents=G` |
//! | `signal:N` | N signals sent to itself and handled | `signal calls=N handled=N` |
//! | `die:N` | N child processes that never come back from the kernel, three kinds in turn: by `exit_group`, and killed while asleep in `pause` or in the `read` of a pipe; reaped | `die calls=N exited=E paused=P reading=R openat=P+R` |
//! | `try:PATH` | one file opened, or not | `try path=PATH errno=E`, 0 when it was |
//! | `nest:N` | `btf_array_show` calls itself until it is N deep, once: the kernel prints a BPF map whose value is arrays in arrays | `nest depth=N bytes=B openat=1` |
//! | `fentry:FUNCTION` | a BPF program attached to the entry of a kernel function, 20 files opened, detached | `fentry function=FUNCTION opened=20 runs=R openat=22` |
//! | `watched:PATH` | a perf counter and a BPF program at `sys_enter` count calls of `getppid`: 20, 40 and 80 of them, between which the shell runs a script to its end | `watched calls=140 perf=P bpf=B openat=1` |
//! | `sh:PATH` | the shell runs a script to its end; what it does itself is not in the totals | `sh path=PATH status=S` |
//! | `beside:PATH` | a thread on every online CPU, pinned, each calling `getppid` 100 times and then, where nothing else runs, until the shell has run a script to its end | `beside path=PATH status=S calls=N cpus=C` |
//! | `mix:N` | for N seconds: on every CPU a thread that opens files, calls `getppid` and touches fresh memory, and beside them children, pipes, signals and short sleeps | `mix rounds=R checks=C`, and every file read was whole |
//! | `idle:N` | sleeps N seconds | `idle seconds=N` |
//! | `shell` | an interactive shell on the console until it exits | `shell status=S` |
//! | `poweroff`, `reboot`, `panic` | the end: nothing after it is run; `poweroff` when none is named | `done ...` |

use std::fmt;
use std::io;

/// Deepest directory of `walk`: its path stays within the kernel's 4,096 bytes.
const MAX_DEPTH: u32 = 1000;

/// How deep `nest` goes. On the 16 KiB stacks of 6.1 and 6.12 a depth of 160 was seen to fit and one of 200 not.
const MAX_NEST: u32 = 120;

/// One thing to do, with how many times or with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Open(u32),
    Getppid(u32),
    Ticks(u32),
    Called(u32),
    Fork(u32),
    Pinned(u32),
    Pipe(u32),
    Walk(u32),
    Signal(u32),
    Die(u32),
    Try(String),
    Nest(u32),
    Fentry(String),
    Watched(String),
    Sh(String),
    Beside(String),
    Mix(u32),
    Idle(u32),
    Shell,
}

/// How a guest ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    PowerOff,
    Reboot,
    Panic,
}

/// Steps in order, and the end after them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
}

/// What did not work: prints as `failed STEP: REASON`.
#[derive(Debug)]
pub(crate) struct Failure {
    step: String,
    reason: String,
}

impl Failure {
    pub(crate) fn new(step: &str, reason: impl fmt::Display) -> Self {
        Self { step: step.to_owned(), reason: reason.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed {}: {}", self.step, self.reason)
    }
}

/// Names the step that an input or output error happened in.
pub(crate) trait During<T> {
    fn during(self, step: &str) -> Result<T, Failure>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, step: &str) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(step, error))
    }
}

impl Plan {
    /// Reads `NAME[:ARGUMENT][,NAME[:ARGUMENT]...]`; all of it is read before anything is done.
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        let mut steps = Vec::new();
        for word in text.split(',') {
            match word {
                "poweroff" => return Ok(Self { steps, end: End::PowerOff }),
                "reboot" => return Ok(Self { steps, end: End::Reboot }),
                "panic" => return Ok(Self { steps, end: End::Panic }),
                _ => steps.push(Step::parse(word)?),
            }
        }
        Ok(Self { steps, end: End::PowerOff })
    }
}

impl Step {
    fn parse(word: &str) -> Result<Self, Failure> {
        let (name, argument) = word.split_once(':').unwrap_or((word, ""));
        let missing = |what: &str, form: &str| {
            Failure::new(name, format_args!("no {what} in '{word}', write {name}:{form}"))
        };
        let count = || argument.parse::<u32>().map_err(|_| missing("count", "COUNT"));
        let depth = |most| match count()? {
            deep if deep > most => Err(Failure::new(name, format_args!("deeper than {most}"))),
            depth => Ok(depth),
        };
        let text = |form: &str| match argument {
            "" => Err(missing(&form.to_lowercase(), form)),
            text => Ok(text.to_owned()),
        };
        Ok(match name {
            "open" => Self::Open(count()?),
            "getppid" => Self::Getppid(count()?),
            "ticks" => Self::Ticks(count()?),
            "called" => Self::Called(count()?),
            "fork" => Self::Fork(count()?),
            "pinned" => Self::Pinned(count()?),
            "pipe" => Self::Pipe(count()?),
            "walk" => Self::Walk(depth(MAX_DEPTH)?),
            "signal" => Self::Signal(count()?),
            "die" => Self::Die(count()?),
            "try" => Self::Try(text("PATH")?),
            "nest" => Self::Nest(depth(MAX_NEST)?),
            "fentry" => Self::Fentry(text("FUNCTION")?),
            "watched" => Self::Watched(text("PATH")?),
            "sh" => Self::Sh(text("PATH")?),
            "beside" => Self::Beside(text("PATH")?),
            "mix" => Self::Mix(count()?),
            "idle" => Self::Idle(count()?),
            "shell" => Self::Shell,
            _ => return Err(Failure::new(name, "no such step")),
        })
    }
}
