//! What all commands share that boot a guest: its machine, its command, where it runs, and what is written.

use super::{KernelArg, SymbolSource, heading};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// The guest, and where it runs
#[derive(Args)]
#[command(next_help_heading = heading::MACHINE)]
pub(crate) struct Guest {
    /// Whose hits count: boot, init or cmd [default: cmd with CMD, else boot]
    ///
    /// These are shown, counted and made histograms of; the others are counted in a column of their own. A call belongs to
    /// where it was entered.
    ///
    /// - boot: all hits
    ///
    /// - init: all from when the kernel starts process 1
    ///
    /// - cmd: those of the command and of all processes that it starts, without interrupts that came in between
    #[arg(long, value_enum, hide_possible_values = true, help_heading = heading::PROBES)]
    pub(crate) scope: Option<Scope>,
    #[command(flatten)]
    pub(crate) kernel: KernelArg,
    #[command(flatten)]
    pub(crate) symbols: SymbolSource,
    /// The initramfs, for a guest without a command
    ///
    /// In a checkout, the default is the one that `cargo xtask setup` builds.
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: Option<PathBuf>,
    /// Add words to the kernel's command line
    ///
    /// They come behind `console=ttyS0 quiet panic=-1`.
    ///
    /// The initramfs that `cargo xtask setup` builds does what `workload=STEP,STEP..` names, and ends the guest: open:N files
    /// are read, getppid:N calls made, fork:N children waited for, pipe:N bytes sent to a child and back; walk:N,
    /// signal:N, mix:N (seconds of all of these), idle:N (seconds); sh:PATH runs a script, shell is one to type in.
    /// A step that fails ends the run with 123.
    #[arg(long, alias = "cmdline", value_name = "WORDS")]
    pub(crate) append: Option<String>,
    /// How many CPUs the guest has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) cpus: u8,
    /// How much memory the guest has, from 128M to 64G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_memory)]
    pub(crate) memory: Memory,
    #[command(flatten)]
    pub(crate) place: HostArgs,
    /// End the guest after so long, and say where it stood; 0 is never
    ///
    /// The default is 600, and 3600 where the processor is emulated. When standard input is a terminal, the guest is not ended.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) timeout: Option<u64>,
    /// Run this command in the guest on this machine's files; end with its exit code
    ///
    /// Its root is this machine's, or --root: what it changes there is thrown away in the end. It has our working directory,
    /// standard streams and terminal, and of our environment PATH, HOME, TERM, the language and the like: `-- env NAME=VALUE CMD`
    /// gives it more.
    #[arg(last = true, value_name = "CMD", conflicts_with = "raw_append", help_heading = heading::COMMAND)]
    pub(crate) command: Vec<OsString>,
    /// Run the command so many times, one after the other, in one guest
    ///
    /// All runs are made, whatever becomes of one. The exit code is that of the first run that has failed, and a line says how many
    /// have. Standard input goes on from one run to the next.
    #[arg(
        long,
        value_name = "N",
        requires = "command",
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        hide_short_help = true,
        help_heading = heading::COMMAND,
    )]
    pub(crate) repeat: Option<u32>,
    /// The folder that is the command's root [default: /]
    #[arg(long, value_name = "DIR", help_heading = heading::COMMAND)]
    pub(crate) root: Option<PathBuf>,
    /// A folder in which the command may change files for good; may be repeated
    #[arg(long = "rwdir", value_name = "DIR", help_heading = heading::COMMAND)]
    pub(crate) rwdirs: Vec<PathBuf>,
    /// The kernel's modules, as below /lib/modules [default: as --kernel says]
    ///
    /// The guest gets those of them that it needs to reach the command's files, where the kernel does not have them built in:
    /// virtio_pci, virtio_console, virtiofs and overlay, with what these need.
    #[arg(long, value_name = "DIR", help_heading = heading::COMMAND)]
    pub(crate) modules: Option<PathBuf>,
    /// Show the guest's console on standard error, also with a command
    #[arg(long, short = 'v', help_heading = heading::OUTPUT)]
    pub(crate) verbose: bool,
    /// Write the guest's console to this file as well
    #[arg(long, value_name = "FILE", hide_short_help = true, help_heading = heading::OUTPUT)]
    pub(crate) console: Option<PathBuf>,
    /// What runs before the kernel
    #[arg(long, value_enum, default_value_t = Boot::Direct, hide_short_help = true, help_heading = heading::ADVANCED)]
    pub(crate) boot: Boot,
    /// The whole command line of the kernel, instead of --append
    #[arg(
        long,
        alias = "raw-cmdline",
        value_name = "WORDS",
        conflicts_with = "append",
        hide_short_help = true,
        help_heading = heading::ADVANCED,
    )]
    pub(crate) raw_append: Option<String>,
    /// The command, as it was said elsewhere
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) work: Option<PathBuf>,
    /// The files are outside of this host
    #[arg(long, hide = true)]
    pub(crate) files_port: bool,
    /// So are names for what programs have
    #[arg(long, hide = true)]
    pub(crate) names_port: bool,
    /// What was resolved elsewhere, where it takes less time than on an emulated processor
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "symbols")]
    pub(crate) target: Option<PathBuf>,
    /// This is the emulated host, and so many nanoseconds since 1970 it is outside
    #[arg(long, value_name = "NANOSECONDS", hide = true)]
    pub(crate) emulated_at: Option<u64>,
    /// The terminal outside is one that the console and hits share
    #[arg(long, hide = true)]
    pub(crate) marked: bool,
}

impl Guest {
    /// Whether it is there for a command.
    pub(crate) fn has_command(&self) -> bool {
        !self.command.is_empty() || self.work.is_some()
    }
}

/// What is written, and how
#[derive(Args)]
#[command(next_help_heading = heading::OUTPUT)]
pub(crate) struct Records {
    /// Record what is found in this file, for `vmm report` and for programs
    ///
    /// It is JSON, one object a line, and docs/recording.md describes it. Nothing of it is shown then, unless --format says
    /// so.
    #[arg(long, short = 'o', value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Show it as text, which is the default without --output, or as json
    ///
    /// text: on standard error. json: what --output would write, on standard output, and nothing else is there: the guest's
    /// console and the command's standard output go to standard error.
    #[arg(long, value_enum, hide_possible_values = true)]
    pub(crate) format: Option<Format>,
}

impl Records {
    /// How it is shown, if it is.
    pub(crate) fn shown(&self) -> Option<Format> {
        self.format.or(self.output.is_none().then_some(Format::Text))
    }
}

/// Where the guest runs
#[derive(Args, Clone)]
#[command(next_help_heading = heading::MACHINE)]
pub(crate) struct HostArgs {
    /// Where guests run
    #[arg(long, value_enum, default_value_t = HostChoice::Auto)]
    pub(crate) host: HostChoice,
    /// The KVM device
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/dev/kvm",
        hide_short_help = true,
        help_heading = heading::ADVANCED,
    )]
    pub(crate) kvm_device: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Boot {
    /// Nothing: the kernel is unpacked on this side, put where its decompressor would put it, at random unless `nokaslr` is
    /// on its command line, and entered
    Direct,
    /// The decompressor that the bzImage brings, in the guest
    Bzimage,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scope {
    /// All
    Boot,
    /// All from when the kernel starts process 1
    Init,
    /// Those of the command and of all processes that it starts, without interrupts that came in between
    Cmd,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostChoice {
    /// This machine's KVM when it can, the emulated host otherwise
    Auto,
    /// This machine's KVM
    Kvm,
    /// A Linux with KVM inside QEMU, which emulates the processor: slow, but it runs anywhere
    Emulated,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// An amount of guest memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory(pub(crate) u64);

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}M", self.0 >> 20)
    }
}

pub(crate) fn parse_memory(text: &str) -> Result<Memory, String> {
    const LEAST: u64 = 128 << 20;
    const MOST: u64 = 64 << 30;
    let (digits, shift) = match text.strip_suffix(['M', 'm']) {
        Some(digits) => (digits, 20),
        None => (text.strip_suffix(['G', 'g']).ok_or("write it as 512M or 2G")?, 30),
    };
    let count: u64 = digits.parse().map_err(|_| "write it as 512M or 2G")?;
    let bytes = count.saturating_mul(1 << shift);
    match bytes {
        ..LEAST => Err("a guest needs at least 128M".to_owned()),
        LEAST..=MOST => Ok(Memory(bytes)),
        _ => Err("a guest gets at most 64G".to_owned()),
    }
}

fn parse_seconds(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "write whole seconds, as 30, or 0 for never".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_given_in_whole_seconds() {
        assert_eq!(parse_seconds("30"), Ok(30));
        for wrong in ["", "30s", "-1", "1.5", "never"] {
            assert!(parse_seconds(wrong).unwrap_err().contains("whole seconds"), "{wrong}");
        }
    }

    #[test]
    fn memory_is_given_in_mib_or_gib() {
        assert_eq!(parse_memory("128M"), Ok(Memory(128 << 20)));
        assert_eq!(parse_memory("64G"), Ok(Memory(64 << 30)));
        for wrong in ["", "M", "512", "127M", "65G", "18446744073709551615G", "1.5G", "-1G"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
    }
}
