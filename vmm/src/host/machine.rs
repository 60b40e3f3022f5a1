//! One running QEMU: started with everything passed as open descriptors, killed when dropped.

use super::conversation::greet;
use super::disk::Disk;
use super::processor::Processor;
use super::protocol::ProtocolError;
use super::qemu::{HostImage, HostSize, Qemu, machine_args};
use super::spawn;
use probe_engine::guest_text::Escaped;
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why the emulated host does not run.
#[derive(Debug, Error)]
pub enum EmulatorError {
    /// The descriptors it needs could not be made.
    #[error("cannot set up the emulated host")]
    SetUp(#[source] io::Error),
    /// QEMU could not be started.
    #[error("cannot start QEMU")]
    Start(#[source] io::Error),
    /// It ended by itself. The text is what it or its kernel said last.
    #[error("the emulated host died: {0}")]
    Died(String),
    /// It did not become ready in time.
    #[error("the emulated host was not ready after {} s: {last}", waited.as_secs())]
    Silent {
        /// How long was waited.
        waited: Duration,
        /// What it or its kernel said last.
        last: String,
    },
    /// What it says makes no sense.
    #[error("the emulated host does not understand us")]
    Protocol(#[source] ProtocolError),
}

/// Where a machine begins.
pub(super) enum Start<'a> {
    /// With a boot from this initramfs.
    Boot(&'a [u8]),
    /// In the state that is in this file.
    Restore(&'a File),
}

/// A running QEMU.
pub(super) struct QemuProcess {
    child: Child,
    control: UnixStream,
    files: UnixStream,
    names: UnixStream,
    commands: UnixStream,
    monitor: UnixStream,
    /// What QEMU and the kernel's console say.
    log: File,
    /// Where it runs.
    _processor: Processor,
}

impl QemuProcess {
    /// Starts QEMU for `image`. It dies with the calling thread, however that ends.
    pub(super) fn start(
        qemu: &Qemu,
        image: &HostImage<'_>,
        size: HostSize,
        disk: &Disk,
        start: &Start<'_>,
    ) -> Result<Self, EmulatorError> {
        let (command, ends) = command(qemu, image.kernel, size, disk, start).map_err(EmulatorError::SetUp)?;
        let processor = Processor::take(&image.folder());
        let child = spawn::bound_to_us(command, ends.inherited, &processor).map_err(EmulatorError::Start)?;
        let Ends { control, files, names, commands, monitor, log, .. } = ends;
        Ok(Self { child, control, files, names, commands, monitor, log, _processor: processor })
    }

    /// Waits until the agent inside answers.
    pub(super) fn wait_ready(&mut self, patience: Duration) -> Result<(), EmulatorError> {
        let began = Instant::now();
        match greet(&self.control, Some(patience)) {
            Ok(()) => Ok(()),
            Err(ProtocolError::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => {
                Err(EmulatorError::Silent { waited: began.elapsed(), last: self.last_words() })
            }
            Err(ProtocolError::Closed | ProtocolError::Truncated | ProtocolError::Io(_)) => Err(self.died()),
            Err(error) => Err(EmulatorError::Protocol(error)),
        }
    }

    /// The port to the agent.
    pub(super) fn control(&self) -> &UnixStream {
        &self.control
    }

    /// The port for files outside.
    pub(super) fn files(&self) -> &UnixStream {
        &self.files
    }

    /// The port for names of what programs outside have.
    pub(super) fn names(&self) -> &UnixStream {
        &self.names
    }

    /// The port for commands to a session inside.
    pub(super) fn commands(&self) -> &UnixStream {
        &self.commands
    }

    /// QEMU's monitor.
    pub(super) fn monitor(&self) -> io::Result<UnixStream> {
        self.monitor.try_clone()
    }

    /// The error for a control port that was closed too early.
    pub(super) fn died(&mut self) -> EmulatorError {
        // QEMU closes the port a moment before it has said why.
        let deadline = Instant::now() + Duration::from_secs(1);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        match self.child.try_wait() {
            Ok(Some(status)) if status.signal().is_some() => {
                EmulatorError::Died(format!("QEMU ended by {status}"))
            }
            _ => EmulatorError::Died(self.last_words()),
        }
    }

    /// The line of the log that says most.
    fn last_words(&self) -> String {
        const TAIL: u64 = 16 << 10;
        let mut tail = vec![0; TAIL as usize];
        let end = self.log.metadata().map_or(0, |log| log.len());
        let length = self.log.read_at(&mut tail, end.saturating_sub(TAIL)).unwrap_or(0);
        tail.truncate(length);
        telling_line(&String::from_utf8_lossy(&tail)).unwrap_or_else(|| "it said nothing".to_owned())
    }
}

impl Drop for QemuProcess {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A kernel's panic, or else the last line, as it may be shown: a guest may have got as far as there.
fn telling_line(log: &str) -> Option<String> {
    let mut lines = log.lines().map(str::trim).filter(|line| !line.is_empty());
    let panic = lines.clone().find(|line| line.contains("Kernel panic"));
    panic.or_else(|| lines.next_back()).map(|line| Escaped(line.as_bytes()).to_string())
}

/// Our ends of what connects us to QEMU, and QEMU's.
struct Ends {
    control: UnixStream,
    files: UnixStream,
    names: UnixStream,
    commands: UnixStream,
    monitor: UnixStream,
    log: File,
    inherited: Vec<OwnedFd>,
}

fn command(
    qemu: &Qemu,
    kernel: &Path,
    size: HostSize,
    disk: &Disk,
    start: &Start<'_>,
) -> io::Result<(Command, Ends)> {
    let (control, control_inside) = UnixStream::pair()?;
    let (files, files_inside) = UnixStream::pair()?;
    let (names, names_inside) = UnixStream::pair()?;
    let (commands, commands_inside) = UnixStream::pair()?;
    let (monitor, monitor_inside) = UnixStream::pair()?;
    let log = File::from(memfd_create("vmm-log", MemfdFlags::CLOEXEC)?);
    fcntl_setfl(&log, OFlags::APPEND)?;
    let image = OwnedFd::from(disk.image().try_clone()?);

    let mut args = machine_args(kernel, size);
    let mut option = |name: &str, value: String| args.extend([OsString::from(name), value.into()]);
    option("-chardev", format!("socket,id=control,fd={}", control_inside.as_raw_fd()));
    option("-chardev", format!("socket,id=files,fd={}", files_inside.as_raw_fd()));
    option("-chardev", format!("socket,id=names,fd={}", names_inside.as_raw_fd()));
    option("-chardev", format!("socket,id=commands,fd={}", commands_inside.as_raw_fd()));
    option("-chardev", format!("socket,id=monitor,fd={}", monitor_inside.as_raw_fd()));
    option("-mon", "chardev=monitor,mode=control".into());
    option("-chardev", "file,id=log,append=on,path=/proc/self/fd/1".into());
    let disk = "driver=file,node-name=files,read-only=on,locking=off";
    option("-blockdev", format!("{disk},filename={}", path_in_child(&image)));

    let beginning = match start {
        Start::Boot(initramfs) => {
            let mut file = File::from(memfd_create("vmm-initramfs", MemfdFlags::CLOEXEC)?);
            file.write_all(initramfs)?;
            option("-initrd", path_in_child(&file));
            OwnedFd::from(file)
        }
        Start::Restore(state) => {
            let state = OwnedFd::from(state.try_clone()?);
            option("-incoming", format!("file:{}", path_in_child(&state)));
            state
        }
    };

    let mut command = Command::new(&qemu.path);
    command.args(args).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    // A group of its own: Ctrl-C is for us, and we pass it on.
    command.process_group(0);
    let sockets = [control_inside, files_inside, names_inside, commands_inside, monitor_inside];
    let sockets = sockets.map(OwnedFd::from);
    let inherited = sockets.into_iter().chain([image, beginning]).collect();
    Ok((command, Ends { control, files, names, commands, monitor, log, inherited }))
}

/// The path by which a child opens an inherited descriptor.
fn path_in_child(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::telling_line;

    #[test]
    fn a_panic_says_more_than_the_last_line() {
        let log = "[1.0] Kernel panic - not syncing: no init\r\n[1.1] CPU: 0\r\n\r\n";
        let told = |log| telling_line(log).unwrap_or_default();
        assert_eq!(told(log), "[1.0] Kernel panic - not syncing: no init");
        assert_eq!(told("one\nqemu: no such file\n"), "qemu: no such file");
        assert_eq!(told("one\nKernel panic\x1b]0;title\x07\n"), "Kernel panic\\x1b]0;title\\x07");
        assert_eq!(telling_line("\n"), None);
    }
}
