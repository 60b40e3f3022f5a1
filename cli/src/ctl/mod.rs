//! `vmm ctl`: the client of a control socket.

pub(crate) mod text;

use crate::args::{Ctl, CtlCommand};
use crate::control::{Connection, HeldTask, LiveProbe, NONSENSE, VcpuLine, hex};
use crate::file::NewFile;
use crate::output::LiveHistogram;
use crate::say::note;
use crate::vmcore;
use anyhow::{Context, Result};
use probe_engine::addr::Gva;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(Deserialize)]
struct Probes {
    probes: Vec<LiveProbe>,
}

#[derive(Deserialize)]
struct Histograms {
    histograms: Vec<LiveHistogram>,
}

#[derive(Deserialize)]
struct Vcpus {
    vcpus: Vec<VcpuLine>,
}

#[derive(Deserialize)]
struct Held {
    held: Vec<HeldTask>,
}

#[derive(Deserialize)]
struct Released {
    released: u64,
}

#[derive(Deserialize)]
struct Bytes {
    bytes: String,
}

pub(crate) fn main(args: &Ctl) -> Result<ExitCode> {
    let mut connection = Connection::open(&args.socket)?;
    if let CtlCommand::Dump { file } = &args.command {
        let memory = NewFile::begin_private(file)?;
        vmcore::write(connection, None, memory.file())?;
        memory.finish().with_context(|| format!("cannot write {}", file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (method, params) = call(&args.command);
    let result = connection.call(method, params)?;
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{result}")?;
    } else {
        out.write_all(&shown(&args.command, result)?)?;
    }
    out.flush()?;
    if let CtlCommand::Pause = args.command {
        note("the guest stands still until this command ends, or somebody says resume");
        connection.wait_for("resumed")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is called for a command.
fn call(command: &CtlCommand) -> (&'static str, Value) {
    let probes =
        |probes: &[String]| json!({ "probes": probes.iter().map(|name| probe(name)).collect::<Vec<_>>() });
    match command {
        CtlCommand::List | CtlCommand::Stats => ("list", Value::Null),
        CtlCommand::Hist { name } => ("histograms", json!({ "name": name })),
        CtlCommand::Add { definitions } => ("add", json!({ "definitions": definitions })),
        CtlCommand::Remove { probes: names } => ("remove", probes(names)),
        CtlCommand::Enable { probes: names } => ("enable", probes(names)),
        CtlCommand::Disable { probes: names } => ("disable", probes(names)),
        CtlCommand::Arm => ("arm", Value::Null),
        CtlCommand::Disarm => ("disarm", Value::Null),
        CtlCommand::Pause => ("pause", Value::Null),
        // A dump is several calls.
        CtlCommand::Dump { .. } | CtlCommand::Resume => ("resume", Value::Null),
        CtlCommand::Regs { vcpu } => ("regs", json!({ "vcpu": vcpu })),
        CtlCommand::Stack { vcpu } => ("stack", json!({ "vcpu": vcpu })),
        CtlCommand::Read { address, length, vcpu, .. } => {
            ("read", json!({ "address": address, "length": length, "vcpu": vcpu }))
        }
        CtlCommand::Held => ("held", Value::Null),
        CtlCommand::Release { gate } => ("release", json!({ "gate": gate })),
        CtlCommand::Quit => ("quit", Value::Null),
    }
}

/// A probe by its number, or by its name.
fn probe(name: &str) -> Value {
    name.parse::<u32>().map_or_else(|_| json!(name), |number| json!(number))
}

/// What is printed of a result.
fn shown(command: &CtlCommand, result: Value) -> Result<Vec<u8>> {
    Ok(match command {
        CtlCommand::List
        | CtlCommand::Add { .. }
        | CtlCommand::Enable { .. }
        | CtlCommand::Disable { .. }
        | CtlCommand::Arm
        | CtlCommand::Disarm => {
            let Probes { probes } = read(result)?;
            probes.iter().map(text::list_line).collect::<String>().into_bytes()
        }
        CtlCommand::Stats | CtlCommand::Remove { .. } => {
            let Probes { probes } = read(result)?;
            probes.iter().map(text::profile_line).collect::<String>().into_bytes()
        }
        CtlCommand::Hist { .. } => {
            let Histograms { histograms } = read(result)?;
            let mut text = Vec::new();
            histograms.iter().try_for_each(|histogram| histogram.write_text(&mut text))?;
            text
        }
        CtlCommand::Regs { .. } => {
            let Vcpus { vcpus } = read(result)?;
            vcpus.iter().map(text::registers).collect::<String>().into_bytes()
        }
        CtlCommand::Stack { .. } => {
            let Vcpus { vcpus } = read(result)?;
            vcpus.iter().map(text::stack).collect::<String>().into_bytes()
        }
        CtlCommand::Held => {
            let Held { held } = read(result)?;
            held.iter().map(text::held).collect::<String>().into_bytes()
        }
        CtlCommand::Release { .. } => {
            let Released { released } = read(result)?;
            format!("{released} of the tasks that are held go on\n").into_bytes()
        }
        CtlCommand::Read { address, raw, .. } => {
            let Bytes { bytes } = read(result)?;
            let bytes = hex::bytes(&bytes).context(NONSENSE)?;
            if *raw { bytes } else { text::dump(Gva(address.0), &bytes).into_bytes() }
        }
        CtlCommand::Pause | CtlCommand::Resume | CtlCommand::Dump { .. } | CtlCommand::Quit => Vec::new(),
    })
}

fn read<T: DeserializeOwned>(result: Value) -> Result<T> {
    serde_json::from_value(result).context(NONSENSE)
}
