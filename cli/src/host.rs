//! The emulated host: `vmm host`, and how a guest comes to run there.

use crate::args::{Assisted, Guest, Host, HostCommand as HostVerb};
use crate::control::Server;
use crate::dropped::Keeping;
use crate::exit_codes;
use crate::file::create;
use crate::guest_files::{Files, cmdline};
use crate::host_image::{Begun, with_image};
use crate::output::is_read_at_leisure;
use crate::say::{self, say};
use crate::shared_terminal::{self, is_shared};
use crate::target::Target;
use crate::time_limits::longest;
use crate::wall_clock;
use crate::work::Work;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io;
use std::net::Shutdown;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use vmm::boot::{self, Payload};
use vmm::host::{
    EmulatedHost, Ended, HostCommand, Lost, Outlet, RunError, SnapshotError, StartError, Stream, Streams,
    memory_for, prepare,
};
use vmm::printer::Printer;

/// `vmm host`.
pub(crate) fn main(args: &Host) -> Result<ExitCode> {
    match &args.command {
        HostVerb::Prepare => {
            with_image(|image| Ok(prepare(image, memory_for(0, 0))?))?;
            Ok(ExitCode::SUCCESS)
        }
        HostVerb::Exec { program, words, env, files } => {
            let mut bytes = 0;
            for (_, path) in files {
                let path = Path::new(path);
                bytes += fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
            }
            run_in_host(None, memory_for(0, bytes), Served::default(), None, || {
                let mut command = HostCommand::of_file(program);
                for word in words {
                    command = command.arg(word);
                }
                for (name, value) in env {
                    command = command.env(name, value);
                }
                for (name, path) in files {
                    command = command.env_file(name, Path::new(path));
                }
                command
            })
        }
    }
}

/// What this same program is to do inside the emulated host.
pub(crate) struct Inside<'a> {
    /// Which of its commands.
    pub(crate) verb: &'a str,
    /// The value of its --format.
    pub(crate) format: Option<String>,
    pub(crate) output: Option<&'a Path>,
    /// What the guest is to do for us.
    pub(crate) assisted: Option<&'a Assisted>,
    /// Who keeps the files that the command leaves, if anybody does.
    pub(crate) keeping: Option<&'a Keeping>,
    /// Who sends it commands of others, if anybody does.
    pub(crate) control: Option<&'a Server>,
}

/// Runs the guest inside the emulated host, by this same program and with the same arguments.
pub(crate) fn run_emulated(
    begun: Option<Begun>,
    guest: &Guest,
    files: &Files,
    target: &Target,
    inside: Inside<'_>,
) -> Result<ExitCode> {
    // A guest that cannot be put together is not worth a host.
    let cmdline = cmdline(guest);
    let (initrd, pci) = (Some(&*files.initramfs), files.work.is_some());
    let payload = Payload {
        kernel: files.image.as_slice().into(),
        boot: &target.kernel.boot,
        initrd,
        cmdline: &cmdline,
        pci,
    };
    boot::check(guest.memory.0, payload)?;
    let output = inside.output.map(RecordFile::create).transpose()?;
    let console = guest.console.as_deref().map(RecordFile::create).transpose()?;
    let left = inside.keeping.map(Keeping::stream).transpose()?.map(Arc::new);
    let has_names = files.work.is_some() && target.has_user_frames();
    let target = target.bytes()?;
    let memory = memory_for(guest.memory.0 >> 20, (files.image.len() + files.initramfs.len()) as u64);
    let work = serde_json::to_vec(&files.work)?;
    if inside.format.as_deref().is_some_and(|format| format != "text") {
        say::reserve_standard_output();
    }
    let served = Served { work: files.work.as_ref(), has_names, control: inside.control };
    let ended = run_in_host(begun, memory, served, longest(guest), || {
        let mut command = HostCommand::new()
            .arg(inside.verb)
            .arg("--host=kvm")
            .arg(format!("--cpus={}", guest.cpus))
            .arg(format!("--memory={}", guest.memory))
            .arg("--kernel")
            .bytes(&files.image)
            .arg("--initrd")
            .bytes(&files.initramfs)
            .arg("--target")
            .bytes(&target);
        if files.work.is_some() {
            command = command.arg("--files-port").arg("--work").bytes(&work);
        }
        if has_names {
            command = command.arg("--names-port");
        }
        if inside.control.is_some() {
            command = command.arg("--control-port");
        }
        if guest.verbose {
            command = command.arg("--verbose");
        }
        for (name, words) in [("append", &guest.append), ("raw-append", &guest.raw_append)] {
            if let Some(words) = words {
                command = command.arg(format!("--{name}={words}"));
            }
        }
        for path in inside.assisted.into_iter().flat_map(|assisted| &assisted.cats) {
            command = command.arg("--cat").arg(path);
        }
        if let Some(words) = inside.assisted.and_then(|assisted| assisted.exec.as_ref()) {
            command = command.arg(format!("--exec={words}"));
        }
        if let Some(seconds) = guest.timeout {
            command = command.arg(format!("--timeout={seconds}"));
        }
        if say::is_quiet() {
            command = command.arg("--quiet");
        }
        if is_shared() {
            command = command.arg("--marked");
        }
        if let Some(format) = &inside.format {
            command = command.arg(format!("--format={format}"));
        }
        command = command.arg(format!("--emulated-at={}", wall_clock::now()));
        if let Some(output) = &output {
            command = command.arg("--output").output(output.outlet());
        }
        if let Some(console) = &console {
            command = command.arg("--console").output(console.outlet());
        }
        if let Some(left) = &left {
            command = command.arg("--dropped-to").output(Outlet::plain(left.clone()));
        }
        command
    });
    for file in [&output, &console].into_iter().flatten() {
        if let Some(printer) = &file.printer {
            say::finish(printer);
        }
    }
    ended
}

/// A file for what the guest's probes have found, or for its console.
struct RecordFile {
    file: Arc<File>,
    /// Writes there, where a reader could make this process wait.
    printer: Option<Printer>,
}

impl RecordFile {
    fn create(path: &Path) -> Result<Self> {
        let file = Arc::new(create(path)?);
        let printer = is_read_at_leisure(&file)?.then(|| Printer::of_all(file.clone())).transpose()?;
        Ok(Self { file, printer })
    }

    fn outlet(&self) -> Outlet {
        match &self.printer {
            Some(printer) => printer.clone().into(),
            None => Outlet::plain(self.file.clone()),
        }
    }
}

/// What is outside for a guest inside.
#[derive(Clone, Copy, Default)]
pub(crate) struct Served<'a> {
    /// The files of its command.
    work: Option<&'a Work>,
    /// Whether what its programs have is to have names.
    has_names: bool,
    /// Who sends it commands of others.
    control: Option<&'a Server>,
}

/// Runs what `command` says inside an emulated host with `memory` MiB, which may have `begun`, with our terminal, streams and signals. A host that
/// dies before anything was seen of it says nothing about the command, which is then run once more, unless it may have changed
/// files that are kept. One that goes on `longest` no longer watches its own time, and is ended.
pub(crate) fn run_in_host<'a>(
    mut begun: Option<Begun>,
    memory: u64,
    served: Served<'_>,
    longest: Option<Duration>,
    command: impl Fn() -> HostCommand<'a>,
) -> Result<ExitCode> {
    let stderr = say::printer().context("the host has no thread left")?;
    // On one terminal, one thread keeps the order.
    let stdout = match is_shared() {
        true => stderr.clone(),
        false => Printer::of_all(io::stdout()).context("the host has no thread left")?,
    };
    let mut run = || -> Result<_> {
        let (host, _stays) = match begun.take().and_then(|begun| begun.host(memory)) {
            Some(begun) => begun.map(|(host, stays)| (host, Some(stays)))?,
            None => (with_image(|image| Ok(EmulatedHost::start(image, memory)?))?, None),
        };
        let Served { work, has_names, control } = served;
        if let Some(work) = work {
            work.serve(host.files().context("cannot share a socket")?)?;
            if has_names {
                work.serve_names(host.names().context("cannot share a socket")?)?;
            }
        }
        if let Some(control) = control {
            control.link(host.commands().context("cannot share a socket")?);
        }
        let (is_over, over) = mpsc::channel::<()>();
        let end = host.end().context("cannot share a socket")?;
        let watch = longest.map(|longest| {
            thread::spawn(move || {
                let is_late = over.recv_timeout(longest) == Err(RecvTimeoutError::Timeout);
                if is_late {
                    say(format_args!(
                        "the emulated host has not ended the guest in {:.0} s, and is ended",
                        longest.as_secs_f64()
                    ));
                    let _ = end.shutdown(Shutdown::Both);
                }
                is_late
            })
        });
        let ended = host.run(command(), Streams::of_this_process(stdout.clone(), stderr.clone()));
        drop(is_over);
        let is_late = watch.is_some_and(|watch| watch.join().unwrap_or(false));
        Ok(if is_late { None } else { Some(ended) })
    };
    let mut ended = run();
    // What was begun may have changed files that are kept, and with them what would be run here for it once more.
    let can_repeat = served.work.is_none_or(|work| !work.keeps_changes());
    if let Ok(Some(Err(RunError::Unseen(error)))) = &ended
        && can_repeat
    {
        say(format_args!("{error}; nothing was seen of what it was to run, which is run once more"));
        ended = run();
    }
    let ended = match ended {
        Ok(Some(ended)) => ended,
        Ok(None) => return Ok(ExitCode::from(exit_codes::INFRASTRUCTURE)),
        Err(error) if is_of_machine(&error) => {
            say(format_args!("{error:#}"));
            return Ok(ExitCode::from(exit_codes::INFRASTRUCTURE));
        }
        Err(error) => return Err(error),
    };
    if ended.as_ref().is_ok_and(|ended| ended.was_asked) {
        say::hurry();
    }
    say::finish(&stdout);
    let mut is_lost = false;
    if let Ok(Ended { lost: Some(lost), .. }) = &ended {
        is_lost = is_record(lost);
        say_lost(lost);
    }
    match ended.map(|ended| ended.exit.code()) {
        Ok(0) if is_lost => Ok(ExitCode::from(exit_codes::INFRASTRUCTURE)),
        Ok(code) => Ok(ExitCode::from(code)),
        Err(RunError::File(error)) => Err(error.into()),
        // What was begun has died, with its host, and with the line that it was printing.
        Err(error) => {
            shared_terminal::begin_row();
            say(format_args!("{:#}", anyhow::Error::from(error)));
            Ok(ExitCode::from(exit_codes::INFRASTRUCTURE))
        }
    }
}

/// Whether it is what the user wanted of the run. Whoever reads standard output may have seen enough.
fn is_record(Lost { what, why }: &Lost) -> bool {
    match what {
        Stream::Output(_) => true,
        Stream::Stdout => say::is_standard_output_reserved() && why.kind() != io::ErrorKind::BrokenPipe,
        Stream::Stderr => false,
    }
}

/// Says what of a command's output went nowhere. Whoever reads the console may have seen enough.
fn say_lost(Lost { what, why }: &Lost) {
    let what = match what {
        Stream::Output(_) => "the output file",
        Stream::Stdout | Stream::Stderr if why.kind() == io::ErrorKind::BrokenPipe => return,
        Stream::Stdout => "standard output",
        Stream::Stderr => "standard error",
    };
    say(format_args!("{what} could not be written, and what came later is lost: {why}"));
}

/// Whether a host did not start that was put together well: not what the user asked for is wrong then.
fn is_of_machine(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error| {
        matches!(error, StartError::Machine(_) | StartError::Snapshot(SnapshotError::Machine(_)))
    })
}
