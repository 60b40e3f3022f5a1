//! The Bochs process: started, watched, and never left behind.

use anyhow::Context as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The disc, in the machine's directory.
pub(super) const DISC: &str = "disc.iso";
/// What the machine prints on its serial port.
const SERIAL: &str = "serial.txt";
/// What Bochs says about the machine.
const LOG: &str = "bochs.log";
/// What the process itself says.
const SAID: &str = "bochs.out";

/// Each line matters:
/// - `ips`: waits of the firmware and the boot loader are in virtual time, which a larger number makes longer.
/// - `panic: fatal`: the guest's power-off is a panic, and ends Bochs.
/// - `sound`, `speaker`: Debian's build overruns a buffer when it finds no sound card.
/// - `rfb`: the display that needs no display; nobody is waited for.
const CONFIGURATION: &str = "\
megs: 768
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
cpu: model=corei7_skylake_x, count=1, ips=10000000, reset_on_triple_fault=0
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=serial.txt
log: bochs.log
panic: action=fatal
error: action=report
info: action=ignore
debug: action=ignore
display_library: rfb, options=\"timeout=0\"
sound: driver=dummy
speaker: enabled=0
clock: sync=none
";

/// A running Bochs. It is killed when this is dropped.
pub(super) struct Machine {
    directory: PathBuf,
    process: Child,
    serial: File,
}

impl Machine {
    /// Switches a machine on that boots the disc in `directory`.
    ///
    /// # Errors
    /// When Bochs cannot be started.
    pub(super) fn start(directory: &Path) -> anyhow::Result<Self> {
        fs::write(directory.join("bochsrc"), CONFIGURATION)?;
        // Debian's build begins in its debugger: `continue`.
        fs::write(directory.join("debugger"), "c\n")?;
        File::create(directory.join(SERIAL))?;
        let serial = File::open(directory.join(SERIAL))?;
        let said = File::create(directory.join(SAID))?;
        // The kernel kills it when this process is killed. Its own process group keeps the terminal's Ctrl-C away,
        // which its debugger would take for a command.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "bochs", "-q", "-f", "bochsrc", "-rc", "debugger"])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said)
            .process_group(0)
            .spawn()
            .context("cannot run Bochs: `cargo xtask setup` installs it")?;
        Ok(Self { directory: directory.to_owned(), process, serial })
    }

    /// Whether it is over.
    pub(super) fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.process.try_wait().context("cannot watch Bochs")?.is_some())
    }

    /// What was printed since the last call.
    pub(super) fn read_serial(&mut self) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.serial.read_to_end(&mut bytes).context("cannot read the serial port of Bochs")?;
        Ok(bytes)
    }

    /// What Bochs has to say about its end.
    pub(super) fn complaints(&self) -> String {
        const LINES: usize = 10;
        let mut complaints = String::new();
        for name in [SAID, LOG] {
            let text = fs::read(self.directory.join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().collect();
            for line in lines.iter().skip(lines.len().saturating_sub(LINES)) {
                complaints += &format!("  {name}: {line}\n");
            }
        }
        complaints
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
