//! What can be asked for: `NAME[:COUNT]`, separated by commas.
//!
//! | step | what is done | line |
//! |---|---|---|
//! | `open:N` | N files opened, read to their end and closed, by names in turn | `open calls=N bytes=B` |
//! | `getppid:N` | N calls | `getppid calls=N` |
//! | `fork:N` | N times: a child that executes this program, which exits; waited for | `fork calls=N` |
//! | `pinned:N` | a thread on every online CPU, pinned, each calling `getppid` N times | `pinned calls=N*C cpus=C` |
//! | `pipe:N` | a byte to a child process and back, N times | `pipe calls=N read=2N write=2N` |
//! | `walk:N` | a directory N levels deep: made, every level looked up, listed, and removed again | `walk calls=N mkdir=N rmdir=N openat=N getdents=G` |
//! | `signal:N` | N signals sent to itself and handled | `signal calls=N handled=N` |
//! | `idle:N` | sleeps N seconds | `idle seconds=N` |
//! | `shell` | an interactive shell on the console until it exits | `shell status=S` |
//! | `poweroff`, `reboot`, `panic` | the end: nothing after it is run; `poweroff` when none is named | `done ...` |

use std::fmt;
use std::io;

/// Deepest directory of `walk`: its path stays within the kernel's 4,096 bytes.
const MAX_DEPTH: u32 = 1000;

/// One thing to do, with how many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Open(u32),
    Getppid(u32),
    Fork(u32),
    Pinned(u32),
    Pipe(u32),
    Walk(u32),
    Signal(u32),
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
    /// Reads `NAME[:COUNT][,NAME[:COUNT]...]`; all of it is read before anything is done.
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
        if word == "shell" {
            return Ok(Self::Shell);
        }
        let (name, count) = word.split_once(':').unwrap_or((word, ""));
        let make = match name {
            "open" => Self::Open,
            "getppid" => Self::Getppid,
            "fork" => Self::Fork,
            "pinned" => Self::Pinned,
            "pipe" => Self::Pipe,
            "walk" => Self::Walk,
            "signal" => Self::Signal,
            "idle" => Self::Idle,
            _ => return Err(Failure::new(name, "no such step")),
        };
        match count.parse() {
            Ok(depth) if name == "walk" && depth > MAX_DEPTH => {
                Err(Failure::new(name, format_args!("deeper than {MAX_DEPTH}")))
            }
            Ok(count) => Ok(make(count)),
            Err(_) => Err(Failure::new(name, format_args!("no count in '{word}', write {name}:COUNT"))),
        }
    }
}
