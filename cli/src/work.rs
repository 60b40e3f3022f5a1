//! The user's command in the guest: what is run, on which files, and how its streams reach it.

use crate::args::Guest;
use crate::program_files::DEBUG;
use crate::program_names::{self, Names, ProgramNames};
use crate::say::{self, say};
use anyhow::{Context, Result, bail};
use guest_kernels::Cache;
use guest_kernels::initramfs::{self, ExtraFile};
use probe_engine::guest_text::Escaped;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use vmm::command::{Mount, PLAN, Plan, Words};
use vmm::confine::{self, Role};
use vmm::devices::virtio::Folders;
use vmm::devices::virtio::fs::end_of_answers;
use vmm::files::{Folder, confine_to_reading};

/// The program that runs, whatever lies where it was started: a guest may have changed that.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

/// A command, and the folders that the guest sees.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Work {
    pub(crate) words: Words,
    /// The first one is the guest's root, the others may be changed.
    pub(crate) folders: Vec<Folder>,
    /// How often it is run, where that was said.
    pub(crate) repeat: Option<u32>,
    /// Which of its calls fails first, where one fails in each of its runs.
    pub(crate) fail_from: Option<u64>,
    /// Where is noted what the guest looks at in its root.
    #[serde(skip)]
    pub(crate) notes: Option<Arc<File>>,
}

/// In the guest: runs the command of `words` so many `times`, or once for each byte of standard input where that is 0, and notes its exit codes in `ends`.
pub(crate) fn repeat(times: u32, ends: &Path, words: &[OsString]) -> Result<ExitCode> {
    let (program, args) = words.split_first().context("there is no command")?;
    if times == 0 {
        vmm::command::repeat_in_steps(ends, program, args).context("cannot say how runs have ended")?;
        return Ok(ExitCode::SUCCESS);
    }
    let code = vmm::command::repeat(times, ends, program, args).context("cannot say how runs have ended")?;
    Ok(ExitCode::from(code))
}

/// What of our environment a command gets: nothing that could be a secret.
const ENVIRONMENT: [&str; 14] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "LANG",
    "LANGUAGE",
    "TZ",
    "EDITOR",
    "PAGER",
    "VISUAL",
];
/// What it gets where we have none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Work {
    /// What `guest` says of a command, if it does.
    pub(crate) fn of(guest: &Guest) -> Result<Option<Self>> {
        if let Some(path) = &guest.work {
            let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            return Ok(Some(serde_json::from_slice(&text)?));
        }
        let Some((program, args)) = guest.command.split_first() else {
            if guest.root.is_some() || !guest.rwdirs.is_empty() {
                bail!("--root and --rwdir are for a command in the guest: say which, behind --");
            }
            return Ok(None);
        };
        if guest.initrd.is_some() {
            bail!("a command in the guest has an initramfs of its own: leave --initrd out");
        }
        let root = guest.root.as_deref().unwrap_or(Path::new("/"));
        let root = folder(root, false).context("--root")?;
        let mut folders = vec![root];
        for path in &guest.rwdirs {
            let shared = folder(path, true).context("--rwdir")?;
            if let Some(at) = vmm::files::kernels_own_in(&shared.path)? {
                bail!(
                    "--rwdir {} has {} in it, which is the kernel's: name a folder below",
                    path.display(),
                    at.display()
                );
            }
            // What lies there is run outside of guests: the emulated host is restored from it.
            if let Some(cache) = Cache::open().ok().and_then(|cache| cache.root().canonicalize().ok())
                && overlap(&cache, &shared.path)
            {
                bail!(
                    "--rwdir {} has {} in it, or is in it, from where later runs begin: name another folder, or another VMM_CACHE_DIR",
                    path.display(),
                    cache.display()
                );
            }
            folders.push(shared);
        }
        let passed = |name: &str| ENVIRONMENT.contains(&name) || name.starts_with("LC_");
        let mut env: Vec<(OsString, OsString)> =
            env::vars_os().filter(|(name, _)| name.to_str().is_some_and(passed)).collect();
        if env.iter().all(|(name, _)| name != "PATH") {
            env.push(("PATH".into(), DEFAULT_PATH.into()));
        }
        let here = env::current_dir().context("cannot find the working directory")?;
        let words = Words { program: program.clone(), args: args.to_vec(), env, folder: here };
        let work = Self { words, folders, repeat: guest.repeat, fail_from: None, notes: None };
        if work.inside(&work.words.folder).is_err() {
            bail!(
                "the working directory, {}, is not below --root {}, which is the command's root: change to a folder below that first",
                work.words.folder.display(),
                work.root().display()
            );
        }
        for folder in work.folders.iter().skip(1) {
            if work.inside(&folder.path).is_err() {
                bail!("--rwdir {} is not below --root {}", folder.path.display(), work.root().display());
            }
        }
        Ok(Some(work))
    }

    /// Where the guest sees `path`, which is below its root.
    fn inside(&self, path: &Path) -> Result<PathBuf> {
        let rest =
            path.strip_prefix(self.root()).with_context(|| format!("{} is elsewhere", path.display()))?;
        Ok(Path::new("/").join(rest))
    }

    /// The folder that is the guest's root.
    pub(crate) fn root(&self) -> &Path {
        self.folders.first().map_or(Path::new("/"), |root| &root.path)
    }

    /// Whether what it changes may be kept: then it is not run a second time.
    pub(crate) fn keeps_changes(&self) -> bool {
        self.folders.iter().any(|folder| folder.writable)
    }

    /// The words, as they are for the guest.
    pub(crate) fn words(&self) -> Result<Words> {
        Ok(Words { folder: self.inside(&self.words.folder)?, ..self.words.clone() })
    }

    /// By what the guest mounts the folders.
    fn tags(&self) -> Vec<String> {
        (0..self.folders.len()).map(|number| format!("vmm{number}")).collect()
    }

    /// The initramfs that carries it out: this very program, the drivers that the kernel has as modules, and the plan.
    pub(crate) fn initramfs(&self, drivers: Vec<(String, Vec<u8>)>) -> Result<Vec<u8>> {
        let program = fs::read(THIS_PROGRAM).context("cannot read this program's own file")?;
        let mut tags = self.tags().into_iter();
        let root = tags.next().unwrap_or_default();
        let mounts = tags.zip(self.folders.iter().skip(1));
        let mounts = mounts.map(|(tag, folder)| Ok(Mount { tag, at: self.inside(&folder.path)? }));
        let folder = self.inside(&self.words.folder)?;
        let plan = Plan { root, folder, mounts: mounts.collect::<Result<_>>()? };
        let path = PLAN.trim_start_matches('/').to_owned();
        let plan = ExtraFile { path, mode: 0o644, bytes: serde_json::to_vec(&plan)? };
        Ok(initramfs::command(program, drivers, [plan])?)
    }

    /// The folders as devices, with the way to their server. `lost` is called when that has ended too early.
    pub(crate) fn folders(&self, guest: &Guest, lost: Box<dyn FnOnce() + Send>) -> Result<Folders> {
        let tags = self.tags();
        if guest.files_port {
            let (requests, answers) =
                vmm::host::agent::files_port().context("cannot reach the files outside")?;
            return Ok(Folders { tags, requests, answers, lost });
        }
        let (ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
        self.serve(theirs)?;
        let requests = ours.try_clone().context("cannot share a socket")?;
        Ok(Folders { tags, requests: Box::new(requests), answers: Box::new(ours), lost })
    }

    /// Starts the server of its files, which answers what comes in over `stream`, and ends with it. Where it ends sooner,
    /// the answers end.
    pub(crate) fn serve(&self, stream: UnixStream) -> Result<()> {
        let mut server = server("serve-files");
        server.arg(serde_json::to_string(&self.folders)?);
        if let Some(notes) = &self.notes {
            server.arg("--noting").stdout(notes.try_clone().context("cannot share a file")?);
        }
        begin(server, "the guest's files", stream, end_of_answers())
    }

    /// Starts the server of names for what its programs have, in the same way.
    pub(crate) fn serve_names(&self, stream: UnixStream) -> Result<()> {
        let mut server = server("serve-names");
        server.arg(self.root());
        begin(server, "names for programs", stream, b"\n".to_vec())
    }

    /// Names for what its programs have.
    pub(crate) fn names(&self, guest: &Guest) -> Result<ProgramNames> {
        if guest.names_port {
            let (questions, answers) =
                vmm::host::agent::names_port().context("cannot reach the names outside")?;
            return ProgramNames::asking(questions, answers).context("the host has no thread left");
        }
        let (ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
        self.serve_names(theirs)?;
        let questions = ours.try_clone().context("cannot share a socket")?;
        ProgramNames::asking(questions, ours).context("the host has no thread left")
    }
}

/// A server, which is this program.
pub(crate) fn server(verb: &str) -> Command {
    let mut server = Command::new(THIS_PROGRAM);
    server.arg0("vmm").arg(verb).stdout(Stdio::null()).env_clear();
    // A group of its own: Ctrl-C is not for it.
    server.process_group(0);
    server
}

/// Starts the server of `what`, which answers what comes in over `stream`. Where it ends sooner, `end` is the last answer.
fn begin(mut server: Command, what: &'static str, mut stream: UnixStream, end: Vec<u8>) -> Result<()> {
    let theirs = stream.try_clone().context("cannot share a socket")?;
    let server = server.stdin(OwnedFd::from(theirs)).spawn();
    let mut server = server.with_context(|| format!("cannot start the server of {what}"))?;
    thread::spawn(move || match server.wait() {
        Ok(ended) if ended.success() => {}
        ended => {
            // Otherwise it has said why.
            if let Some(signal) = ended.ok().and_then(|ended| ended.signal()) {
                say(format_args!("the server of {what} was ended by signal {signal}"));
            }
            // A guest that is gone takes nothing.
            let _ = stream.write_all(&end);
        }
    });
    Ok(())
}

/// A folder by its real path: that is what is opened, and nothing that takes its place later.
fn folder(path: &Path, writable: bool) -> Result<Folder> {
    let shared = || -> io::Result<Folder> {
        let path = path.canonicalize()?;
        fs::read_dir(&path)?;
        Ok(Folder { path, writable })
    };
    shared().with_context(|| format!("cannot share {}", path.display()))
}

/// Whether one of two folders is in the other.
fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// `vmm serve-files`: the server's process. `noting`: what the guest looks at is noted on standard output.
pub(crate) fn serve_files(folders: &str, noting: bool) -> Result<()> {
    let folders: Vec<Folder> = serde_json::from_str(folders)?;
    let stdout = io::stdout();
    let notes = noting.then(|| stdout.as_fd().try_clone_to_owned()).transpose()?.map(File::from);
    let files = vmm::files::Files::open_noting(&folders, notes)?;
    let stdin = io::stdin();
    let stream = stdin.as_fd().try_clone_to_owned()?;
    files.confine()?;
    confine::this_thread(Role::Files { writable: folders.iter().any(|folder| folder.writable) })?;
    Ok(files.serve(&UnixStream::from(stream))?)
}

/// So much memory a server of names takes at most, in bytes.
const MOST_MEMORY: u64 = 4 << 30;

/// `vmm serve-names`: the server's process. It also reads debugging information that distributions keep apart.
pub(crate) fn serve_names(root: &Path) -> Result<()> {
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut folders = vec![root.to_owned()];
    folders.extend(Path::new(DEBUG).canonicalize());
    // Whatever a guest's file says, the process grows no further, and writes nothing.
    for (what, most) in [(Resource::As, MOST_MEMORY), (Resource::Fsize, 0)] {
        setrlimit(what, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    confine_to_reading(&folders)?;
    confine::this_thread(Role::Names)?;
    let answers = stream.try_clone().context("cannot share a socket")?;
    Ok(program_names::answer(&mut Names::below(root), stream, answers)?)
}

/// The console of a guest with a command: shown when the user wants it, or when the guest did not do what it was to do.
/// Each line says whose it is.
#[derive(Clone)]
pub(crate) struct Console(Arc<Mutex<Lines>>);

struct Lines {
    is_shown: bool,
    /// The last ones, where none is shown.
    kept: VecDeque<String>,
    /// One that has not ended.
    begun: Vec<u8>,
}

/// How many lines are kept.
const KEPT: usize = 1000;
/// A line that grows longer, in bytes, is two.
const LONGEST: usize = 4096;

impl Console {
    pub(crate) fn new(is_shown: bool) -> Self {
        Self(Arc::new(Mutex::new(Lines { is_shown, kept: VecDeque::new(), begun: Vec::new() })))
    }

    /// Shows what is kept.
    pub(crate) fn show(&self) {
        let mut lines = self.lock();
        lines.end();
        lines.kept.drain(..).for_each(show);
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    /// The line is over.
    fn end(&mut self) {
        let line = std::mem::take(&mut self.begun);
        let line = Escaped(line.trim_ascii_end()).to_string();
        if line.is_empty() {
            return;
        }
        if self.is_shown {
            return show(line);
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(line);
    }
}

fn show(line: String) {
    // Nobody may be there to read it.
    let _ = writeln!(say::standard_error_for_what_fits(), "console: {line}");
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut lines = self.lock();
        for byte in bytes {
            if *byte != b'\n' {
                lines.begun.push(*byte);
            }
            if *byte == b'\n' || lines.begun.len() == LONGEST {
                lines.end();
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_changed_once() {
        let folder = |writable| Folder { path: "/".into(), writable };
        let (program, args, env, here) = ("true".into(), Vec::new(), Vec::new(), "/".into());
        let words = Words { program, args, env, folder: here };
        let mut work =
            Work { words, folders: vec![folder(false)], repeat: None, fail_from: None, notes: None };
        assert!(!work.keeps_changes());
        work.folders.push(folder(true));
        assert!(work.keeps_changes());
    }

    #[test]
    fn folders_that_share_anything_are_seen() {
        let overlap = |one: &str, other: &str| overlap(Path::new(one), Path::new(other));
        assert!(overlap("/home/a/.cache/vmm", "/home/a") && overlap("/home/a", "/home/a/.cache/vmm"));
        assert!(overlap("/", "/home") && overlap("/home", "/home"));
        assert!(!overlap("/home/a", "/home/ab") && !overlap("/home/a/.cache/vmm", "/home/a/src"));
    }

    #[test]
    fn the_last_lines_of_a_console_are_kept_and_harmless() {
        let mut console = Console::new(false);
        for n in 0..2 * KEPT {
            write!(console, "line {n}\r\n\n").unwrap();
        }
        console.write_all(b"\x1b[2Jvmm: forged").unwrap();
        let mut lines = console.lock();
        assert_eq!(lines.kept.front().unwrap(), &format!("line {KEPT}"));
        lines.end();
        assert_eq!(lines.kept.back().unwrap(), "\\x1b[2Jvmm: forged");
        assert_eq!(lines.kept.len(), KEPT);
        drop(lines);
        console.write_all(&[b'x'; 3 * LONGEST]).unwrap();
        assert!(console.lock().begun.is_empty());
    }
}
