//! `vmm run`: one guest, from its files to its exit code.

use crate::EXIT_DIED;
use crate::args::Run;
use crate::host::{self, Chosen};
use crate::output::Writer;
use crate::say::say;
use crate::target::{self, Target};
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use vmm::boot::{self, Payload};
use vmm::host::RawMode;
use vmm::kvm::Hypervisor;
use vmm::memory::GuestRam;
use vmm::session::{self, Config, Death, Outcome, Report, Terminal};
use vmm::trap::Delivery;

/// What every guest needs: its console, and an end when it panics.
const BASE_CMDLINE: &str = "console=ttyS0 quiet panic=-1";

pub(crate) fn main(args: &Run) -> Result<ExitCode> {
    let kernel_path = target::kernel_path(args.kernel.as_deref())?;
    let initrd_path = target::initrd_path(args.initrd.as_deref())?;
    let image = target::read(&kernel_path)?;
    let initrd = target::read(&initrd_path)?;
    let target = target::target(args, &kernel_path, &image)?;
    if let Some(path) = &args.write_target {
        target.write(path)?;
        return Ok(ExitCode::SUCCESS);
    }
    match host::choose(&args.place)? {
        Chosen::Kvm(hypervisor, delivery) => run_here(args, &image, &initrd, target, &hypervisor, delivery),
        Chosen::Emulated => {
            // A guest that cannot be put together is not worth a host.
            let payload = Payload { kernel: &image, initrd: Some(&initrd), cmdline: &cmdline(args) };
            boot::load(&GuestRam::new(args.memory.0)?, &payload, args.cpus)?;
            host::run_emulated(args, &kernel_path, &initrd_path, &target)
        }
    }
}

fn run_here(
    args: &Run,
    image: &[u8],
    initrd: &[u8],
    target: Target,
    hypervisor: &Hypervisor,
    delivery: Delivery,
) -> Result<ExitCode> {
    let out: Box<dyn Write> = match &args.output {
        Some(path) => {
            Box::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?)
        }
        None => Box::new(io::stderr()),
    };
    let mut writer = Writer::new(out, args.format, &target.probes);
    let interactive = io::stdin().is_terminal();
    let input = io::stdin().as_fd().try_clone_to_owned().ok().map(File::from);
    let raw = if interactive { RawMode::enter(io::stdin().as_fd()).ok() } else { None };
    let config = Config {
        image,
        kernel: target.kernel,
        initrd: Some(initrd),
        cmdline: &cmdline(args),
        cpus: args.cpus,
        memory: args.memory.0,
        delivery,
        probes: target.probes,
        terminal: Terminal { out: Box::new(io::stdout()), input, interactive },
    };
    let report = session::run(hypervisor, config, &mut writer);
    drop(raw);
    let report = report?;
    let summary = writer.summary(&report);
    if let Some(error) = writer.failure().or(summary.as_ref().err()) {
        say(format_args!("hits could not be written and are counted as missed: {error}"));
    }
    Ok(exit_code(&report))
}

/// The kernel command line.
fn cmdline(args: &Run) -> String {
    match (&args.raw_cmdline, &args.cmdline) {
        (Some(raw), _) => raw.clone(),
        (None, Some(more)) => format!("{BASE_CMDLINE} {more}"),
        (None, None) => BASE_CMDLINE.to_owned(),
    }
}

/// Says how the guest ended when that was not in order, and gives the exit code.
fn exit_code(report: &Report) -> ExitCode {
    if report.waits > 0 {
        say(format_args!("a CPU waited {} times because hits were not read fast enough", report.waits));
    }
    match &report.end {
        Outcome::PoweredOff | Outcome::Reset | Outcome::Quit => ExitCode::SUCCESS,
        Outcome::Signal(signal) => {
            say(format_args!("ended by signal {signal}"));
            ExitCode::from(128u8.wrapping_add(*signal as u8))
        }
        Outcome::Died(death) => {
            say(death);
            print_registers(death);
            ExitCode::from(EXIT_DIED)
        }
    }
}

fn print_registers(death: &Death) {
    let Some(r) = death.regs() else { return };
    say(format_args!("rip {:016x} rsp {:016x} rflags {:08x}", r.rip, r.rsp, r.rflags));
    say(format_args!("rax {:016x} rbx {:016x} rcx {:016x} rdx {:016x}", r.rax, r.rbx, r.rcx, r.rdx));
    say(format_args!("rsi {:016x} rdi {:016x} rbp {:016x} r8  {:016x}", r.rsi, r.rdi, r.rbp, r.r8));
    say(format_args!("r9  {:016x} r10 {:016x} r11 {:016x} r12 {:016x}", r.r9, r.r10, r.r11, r.r12));
    say(format_args!("r13 {:016x} r14 {:016x} r15 {:016x}", r.r13, r.r14, r.r15));
}
