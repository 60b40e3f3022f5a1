//! The emulated host is tested by this same program in it.

use super::Diagnosis;
use super::tested::Tested;
use crate::host_image::with_image;
use crate::say;
use anyhow::{Context, Result, anyhow};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use vmm::host::{EmulatedHost, Escape, HostCommand, Outlet, Qemu, Streams, memory_for};

/// Starts it and has it report on itself. One that cannot be had is no error.
pub(super) fn test() -> Tested {
    report().unwrap_or_else(|error| Tested::no_emulated(format!("{error:#}")))
}

fn report() -> Result<Tested> {
    let version = Qemu::find()?.version;
    let printer = say::printer().context("the host has no thread left")?;
    let report = Printed::default();
    let streams = Streams {
        stdin: None,
        stdout: Outlet::through(printer.clone(), report.clone()),
        stderr: printer.clone().into(),
        terminal: None,
        signals: true,
        escape: Escape::Observed,
        left: None,
    };
    let host = with_image(|image| Ok(EmulatedHost::start(image, memory_for(0, 0))?))?;
    host.run(HostCommand::new().arg("doctor").arg("--host=kvm").arg("--json"), streams)?;
    let text = report.0.lock().unwrap_or_else(PoisonError::into_inner);
    let diagnosis: Diagnosis = serde_json::from_slice(&text).context("it reported nothing")?;
    let tested = diagnosis.hosts.into_iter().next().ok_or_else(|| anyhow!("it was not tested"))?;
    let name = format!("The emulated host, QEMU {version}");
    Ok(Tested { name, ..tested })
}

/// What it prints.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
