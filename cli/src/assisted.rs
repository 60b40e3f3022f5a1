//! What the guest does for us while it runs: a program that its kernel starts, and files that it reads.

use crate::args::{Assist, Assisted};
use crate::say::{note, say};
use anyhow::{Context, Result, bail};
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::symbols::SymbolTable;
use probe_engine::probe::pace::{HoldMode, Pace};
use probe_engine::request::ProbeRequest;
use std::io::Write;
use std::thread;
use std::time::Duration;
use vmm::errands::{Functions, ProgramEnd, ReadFile, RunProgram};
use vmm::prelude::Errno;
use vmm::session::{ErrandError, Handle, Next, Worker};

/// At most so many bytes of a file are shown.
const MOST: usize = 1 << 20;
/// How long the guest may take for a file.
const FILE: Duration = Duration::from_secs(60);
/// How long for a program: the run has a limit of its own.
const PROGRAM: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How long until it is tried once more what the guest did not have yet.
const AGAIN: Duration = Duration::from_millis(250);

/// What is asked for, once it is known that the kernel can.
pub(crate) struct Asked {
    functions: Functions,
    /// Paths.
    files: Vec<Vec<u8>>,
    /// The words of a program.
    program: Option<Vec<Vec<u8>>>,
}

/// What came of it.
#[derive(Default)]
pub(crate) struct Done {
    /// What was not done, and why.
    pub(crate) complaints: Vec<String>,
    /// The exit code of the program.
    pub(crate) exit: Option<u8>,
}

impl Asked {
    /// What `args` ask a kernel for, if anything.
    pub(crate) fn of(
        args: &Assisted,
        kernel: &Landmarks,
        symbols: Option<&SymbolTable>,
    ) -> Result<Option<Self>> {
        let Some(first) = check(args)? else { return Ok(None) };
        if let Err(reason) = &kernel.errands {
            bail!("{first}: this kernel makes no calls for others: {reason}");
        }
        let symbols = symbols.with_context(|| format!("{first}: the kernel's symbols are not known"))?;
        let functions = Functions::find(symbols).with_context(|| first.clone())?;
        let files: Vec<_> = args.cats.iter().map(|path| path.as_encoded_bytes().to_vec()).collect();
        let words = |text: &String| text.split_whitespace().map(|word| word.as_bytes().to_vec()).collect();
        let program: Option<Vec<_>> = args.exec.as_ref().map(words);
        for path in &files {
            ReadFile::new(functions, path, MOST).context("--cat")?;
        }
        if let Some(words) = &program {
            RunProgram::new(functions, words.clone()).context("--exec")?;
        }
        Ok(Some(Self { functions, files, program }))
    }

    /// Has the guest do it all, and writes files to `out`.
    pub(crate) fn carry_out(self, handle: &Handle, out: &mut dyn Write) -> Done {
        let Self { functions, files, program } = self;
        let mut done = Done::default();
        if let Some(words) = program {
            let said = format!("--exec {}", String::from_utf8_lossy(&words.join(&b' ')));
            let ended = until_there(|| {
                let mut program = RunProgram::new(functions, words.clone());
                handle.errand(PROGRAM, move |worker| next(&mut program, worker, RunProgram::next))
            });
            match ended {
                Ok(end) => {
                    let (words, code) = match end {
                        ProgramEnd::Exit(code) => (format!("exit code {code}"), code),
                        ProgramEnd::Signal(signal) => (format!("signal {signal}"), 128 + signal),
                    };
                    note(format_args!(
                        "{said}: the guest's kernel has run it for us, and it ended with {words}"
                    ));
                    done.exit = Some(code);
                }
                Err(reason) => done.complaints.push(format!("{said}: {reason}")),
            }
        }
        for path in files {
            let said = format!("--cat {}", String::from_utf8_lossy(&path));
            let read = until_there(|| {
                let mut file = ReadFile::new(functions, &path, MOST);
                handle.errand(FILE, move |worker| next(&mut file, worker, ReadFile::next))
            });
            match read {
                Ok(bytes) => {
                    note(format_args!("{said}: the guest's kernel has read it for us"));
                    if bytes.len() == MOST {
                        note(format_args!("{said}: no more than its first MiB is shown"));
                    }
                    if let Err(error) = out.write_all(&bytes) {
                        say(format_args!("{said}: {error}"));
                    }
                }
                Err(reason) => done.complaints.push(format!("{said}: {reason}")),
            }
        }
        done
    }
}

/// Checks that `args` may be asked for. Gives the first thing that is, as it is said.
pub(crate) fn check(args: &Assisted) -> Result<Option<String>> {
    let first = args.said().into_iter().next();
    match &first {
        Some(first) if args.assist == Assist::Off => {
            bail!(
                "{first} is done by the guest's own kernel, and --assist=off is for what it cannot notice: leave one of them out"
            )
        }
        _ => Ok(first),
    }
}

/// Checks that `probes` may be had.
pub(crate) fn check_probes(assist: Assist, probes: &[ProbeRequest]) -> Result<()> {
    const SILENT: &str = "and --assist=off is for what it cannot notice: leave one of them out";
    if assist == Assist::On {
        return Ok(());
    }
    if let Some(asked) = probes.iter().find(|asked| asked.plan.tracepoint.is_some()) {
        bail!("{} is switched on by the guest's own kernel, {SILENT}", asked.name());
    }
    if let Some(asked) = probes.iter().find(|asked| asked.plan.program.is_some()) {
        bail!("{} is registered with the guest's own kernel, {SILENT}", asked.name());
    }
    if probes.iter().any(yields) {
        bail!("with --hold-mode=task a task that is held calls the guest's own scheduler, {SILENT}");
    }
    Ok(())
}

/// Whether its hits are held and call the guest's scheduler meanwhile.
fn yields(asked: &ProbeRequest) -> bool {
    matches!(asked.plan.pace, Some(Pace::Hold { mode: HoldMode::Task, .. }))
}

/// Everything that the guest's own kernel is to do, as it is said.
pub(crate) fn said(args: &Assisted, probes: &[ProbeRequest]) -> Vec<String> {
    let names: Vec<_> = probes.iter().filter_map(|asked| asked.plan.tracepoint.as_ref()).collect();
    let tracepoints = match names.as_slice() {
        [] => None,
        [one] => Some(format!("the tracepoint {} is switched on", one.written)),
        several => Some(format!("{} tracepoints are switched on", several.len())),
    };
    let names: Vec<_> = probes.iter().filter_map(|asked| asked.plan.program.as_ref()).collect();
    let programs = match names.as_slice() {
        [] => None,
        [one] => Some(format!("a probe of the kernel's own is registered at {one}")),
        several => Some(format!("probes of the kernel's own are registered at {} places", several.len())),
    };
    let holds = probes.iter().any(yields).then(|| "a task that is held calls the scheduler".to_owned());
    args.said().into_iter().chain(tracepoints).chain(programs).chain(holds).collect()
}

/// The next step of an errand that could be made.
fn next<E, T>(
    errand: &mut Result<E, Errno>,
    worker: &mut Worker<'_>,
    step: impl Fn(&mut E, &mut Worker<'_>) -> Next<Result<T, Errno>>,
) -> Next<Result<T, Errno>> {
    match errand {
        Ok(errand) => step(errand, worker),
        Err(error) => Next::Done(Err(*error)),
    }
}

/// Does this until the guest has what it needs. Gives the reason where it never had.
fn until_there<T>(errand: impl Fn() -> Result<Result<T, Errno>, ErrandError>) -> Result<T, String> {
    let mut lacks: Option<Errno> = None;
    loop {
        match errand() {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error @ (Errno::NOENT | Errno::NOTDIR))) => lacks = Some(error),
            // The kernel does not start programs yet, or no more.
            Ok(Err(Errno::BUSY)) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(error) => {
                return Err(match lacks {
                    Some(lacks) => format!("{error}, and until then: {lacks}"),
                    None => error.to_string(),
                });
            }
        }
        thread::sleep(AGAIN);
    }
}
