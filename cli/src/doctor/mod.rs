//! `vmm doctor`: what this machine's KVM can do for a guest with probes.

mod machine;
mod report;
mod trial;

use crate::args::{Doctor, HostKind};
use crate::host;
use crate::kernel::Choice;
use crate::listing::list;
use crate::output::json;
use crate::target;
use anyhow::Result;
use guest_kernels::{Cache, DEFAULT_KERNEL};
use serde::Serialize;
use std::process::ExitCode;
use vmm::boot::on_emulated_cpu;
use vmm::host::{HostCommand, Qemu, memory_for};
use vmm::kvm::Hypervisor;
use vmm::selftest::{self, Contract};
use vmm::trap::Delivery;

/// This machine's KVM cannot run guests with probes, or a guest of the report was not as it was to be.
const EXIT_UNFIT: u8 = 1;

/// Everything that was found out, as `--json` prints it.
#[derive(Serialize)]
struct Diagnosis {
    /// The KVM device.
    device: String,
    /// Whether guests run on it.
    fit: bool,
    /// Why not.
    reason: Option<String>,
    /// How breakpoints come to us on it.
    delivery: Option<Delivery>,
    /// What each check found, if the device could be opened.
    contract: Option<Contract>,
    /// The version of QEMU for the emulated host, or why there is none.
    emulated_host: String,
}

pub(crate) fn main(args: &Doctor) -> Result<ExitCode> {
    // A report tells of this machine as well.
    if args.place.host == HostKind::Emulated && args.report.is_none() {
        return host::run_in_host(memory_for(0, 0), None, || {
            let command = HostCommand::new().arg("doctor").arg("--host=kvm");
            if args.json { command.arg("--json") } else { command }
        });
    }
    if args.report.is_some() {
        // Without its files no guest differs from anything.
        let kernel = args.kernel.clone().unwrap_or(Choice::Debian(DEFAULT_KERNEL));
        target::read(&kernel.files()?.image)?;
        Cache::open()?.initramfs()?;
    }
    let diagnosis = examine(args);
    list(|mut out| match args.json {
        true => json(&mut out, &diagnosis),
        false => table(&diagnosis).iter().try_for_each(|line| writeln!(out, "{line}")),
    })?;
    let differences = match &args.report {
        Some(path) => report::write(path, args, &diagnosis)?,
        None => 0,
    };
    Ok(if diagnosis.fit && differences == 0 { ExitCode::SUCCESS } else { ExitCode::from(EXIT_UNFIT) })
}

fn examine(args: &Doctor) -> Diagnosis {
    let tested = Hypervisor::open(&args.place.kvm_device)
        .map_err(anyhow::Error::from)
        .and_then(|hypervisor| Ok(selftest::run(&hypervisor)?));
    let verdict = match &tested {
        Ok(contract) => contract.verdict().map_err(|unfit| unfit.to_string()),
        Err(error) => Err(format!("{error:#}")),
    };
    let contract = tested.ok();
    Diagnosis {
        device: args.place.kvm_device.display().to_string(),
        fit: verdict.is_ok(),
        reason: verdict.err(),
        delivery: contract.as_ref().and_then(Contract::delivery),
        contract,
        emulated_host: match Qemu::find() {
            Ok(qemu) => format!("QEMU {}", qemu.version),
            Err(error) => error.to_string(),
        },
    }
}

/// The diagnosis for people, line by line.
fn table(diagnosis: &Diagnosis) -> Vec<String> {
    // The emulated host runs this program as well.
    let is_emulated = on_emulated_cpu();
    let place = if is_emulated { "the emulated host's KVM" } else { "this machine's KVM" };
    let mut lines = vec![format!("KVM at {}:", diagnosis.device)];
    for row in diagnosis.contract.iter().flat_map(Contract::rows) {
        let mark = match (row.ok, row.needed) {
            (true, _) => "ok",
            (false, true) => "NO",
            (false, false) => "no",
        };
        lines.push(format!("  {mark:3} {:24} {}", row.name, row.result));
        lines.push(format!("      {:24} {}", "", row.meaning));
    }
    lines.push(match &diagnosis.reason {
        None => format!("Guests run on {place}."),
        Some(reason) => format!("Guests do not run on {place}: {reason}."),
    });
    if !is_emulated {
        lines.push(format!("Emulated host: {}", diagnosis.emulated_host));
    }
    lines
}
