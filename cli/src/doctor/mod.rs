//! `vmm doctor`: what this machine's KVM can do for a guest with probes.

mod machine;
mod report;
mod trial;

use crate::args::{Doctor, HostKind};
use crate::host;
use anyhow::Result;
use serde::Serialize;
use std::process::ExitCode;
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
        return host::run_in_host(memory_for(0, 0), || {
            let command = HostCommand::new().arg("doctor").arg("--host=kvm");
            if args.json { command.arg("--json") } else { command }
        });
    }
    let diagnosis = examine(args);
    if args.json {
        println!("{}", serde_json::to_string(&diagnosis)?);
    } else {
        table(&diagnosis).iter().for_each(|line| println!("{line}"));
    }
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
        None => "Guests run on this machine's KVM.".to_owned(),
        Some(reason) => format!("Guests do not run on this machine's KVM: {reason}."),
    });
    lines.push(format!("Emulated host: {}", diagnosis.emulated_host));
    lines
}
