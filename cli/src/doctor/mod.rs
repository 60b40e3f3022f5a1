//! `vmm doctor`: what this machine can do for a guest with probes.

mod emulated;
mod machine;
mod report;
mod tested;
mod trial;

use crate::args::{Doctor, HostChoice};
use crate::file;
use crate::kernel_choice::Choice;
use crate::listing::list;
use crate::output::json;
use anyhow::Result;
use guest_kernels::{Cache, DEFAULT_KERNEL};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use tested::{Tested, TestedHost};

/// No host that was tested runs guests with probes, or a guest of the report was not as it was to be.
const EXIT_UNFIT: u8 = 1;

/// Everything that was found out, as `--json` prints it.
#[derive(Serialize, Deserialize)]
struct Diagnosis {
    /// The hosts that were tested.
    hosts: Vec<Tested>,
    /// Whether guests run on one of them.
    fit: bool,
    /// What that means for the user.
    verdict: String,
}

pub(crate) fn main(args: &Doctor) -> Result<ExitCode> {
    if args.report.is_some() {
        // Without its files no guest differs from anything.
        Cache::open()?.initramfs()?;
        let kernel = args.kernel.clone().unwrap_or(Choice::Debian(DEFAULT_KERNEL));
        file::read(&kernel.files()?.image)?;
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
    let mut hosts = Vec::new();
    if args.place.host != HostChoice::Emulated {
        hosts.push(Tested::here(&args.place));
    }
    if args.place.host != HostChoice::Kvm {
        hosts.push(emulated::test());
    }
    let verdict = verdict(&hosts);
    Diagnosis { fit: hosts.iter().any(|host| host.fit), hosts, verdict }
}

/// What the findings mean, and what to do.
fn verdict(hosts: &[Tested]) -> String {
    const NATIVE: &str = "native speed needs a KVM with Intel's VMX or AMD's SVM: bare metal, or a virtual machine that \
                          passes them on";
    let find = |which: TestedHost| hosts.iter().find(|tested| tested.host == which);
    let reason = |tested: &Tested| tested.reason.clone().unwrap_or_default();
    match (find(TestedHost::Kvm), find(TestedHost::Emulated)) {
        (Some(own), _) if own.fit => "Guests run on this machine's KVM: nothing is left to do.".to_owned(),
        (own, Some(emulated)) if emulated.fit => match own {
            Some(_) => format!(
                "Guests run in the emulated host, which `vmm run` chooses by itself: there is nothing to do, and {NATIVE}."
            ),
            None => "Guests run in the emulated host: nothing is left to do.".to_owned(),
        },
        (Some(_), Some(emulated)) => format!(
            "Guests do not run on this machine: {NATIVE}; for the emulated host, first do away with this: {}.",
            reason(emulated)
        ),
        (Some(own), None) => format!(
            "Guests do not run on this KVM ({}): try `vmm doctor --host emulated`; {NATIVE}.",
            reason(own)
        ),
        (None, Some(emulated)) => {
            format!("Guests do not run in the emulated host: first do away with this: {}.", reason(emulated))
        }
        (None, None) => String::new(),
    }
}

/// The diagnosis for people, line by line.
fn table(diagnosis: &Diagnosis) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for host in &diagnosis.hosts {
        lines.extend(host.lines());
        lines.push(String::new());
    }
    lines.push(diagnosis.verdict.clone());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(which: TestedHost, fit: bool) -> Tested {
        let reason = (!fit).then(|| "it is broken".to_owned());
        Tested { host: which, fit, reason, ..Tested::no_emulated("") }
    }

    #[test]
    fn a_verdict_says_where_guests_run_and_what_to_do() {
        let cases: [(&[(TestedHost, bool)], &str); 8] = [
            (
                &[(TestedHost::Kvm, true), (TestedHost::Emulated, false)],
                "Guests run on this machine's KVM: nothing",
            ),
            (&[(TestedHost::Kvm, true)], "Guests run on this machine's KVM: nothing"),
            (
                &[(TestedHost::Kvm, true), (TestedHost::Emulated, true)],
                "Guests run on this machine's KVM: nothing",
            ),
            (
                &[(TestedHost::Kvm, false), (TestedHost::Emulated, true)],
                "Guests run in the emulated host, which",
            ),
            (&[(TestedHost::Emulated, true)], "Guests run in the emulated host: nothing"),
            (
                &[(TestedHost::Kvm, false), (TestedHost::Emulated, false)],
                "Guests do not run on this machine: native",
            ),
            (&[(TestedHost::Kvm, false)], "Guests do not run on this KVM (it is broken): try"),
            (&[(TestedHost::Emulated, false)], "Guests do not run in the emulated host: first"),
        ];
        for (hosts, begin) in cases {
            let hosts: Vec<_> = hosts.iter().map(|(which, fit)| host(*which, *fit)).collect();
            let said = verdict(&hosts);
            assert!(said.starts_with(begin) && said.ends_with('.'), "{said}");
            let diagnosis = Diagnosis { fit: false, verdict: said.clone(), hosts };
            assert_eq!(table(&diagnosis).last(), Some(&said));
        }
    }
}
