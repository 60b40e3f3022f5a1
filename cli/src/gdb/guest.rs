//! The guest, as a client of its control server sees it.

use super::registers::Cpu;
use crate::control::{Connection, LiveProbe, NONSENSE, VcpuLine, hex};
use crate::record::Address;
use anyhow::{Context, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// The guest.
pub(super) struct Guest {
    connection: Connection,
    /// Where each CPU stands, as long as the guest does not go on.
    cpus: Option<Vec<VcpuLine>>,
    /// What gdb has not been told.
    pub(super) stops: VecDeque<Stop>,
    /// Whether somebody else has let the guest go on since it has last come to stand still.
    pub(super) was_resumed: bool,
}

/// The guest has come to stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) vcpu: usize,
    /// The probe of which that is a hit; none where a CPU has executed its one instruction.
    pub(super) probe: Option<u32>,
    /// Where the CPU stands.
    pub(super) rip: u64,
}

/// Where the kernel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Kernel {
    pub(super) text: Option<Address>,
    pub(super) text_end: Option<Address>,
    pub(super) slide: Option<Address>,
    pub(super) is_final: bool,
}

#[derive(Deserialize)]
struct Stopped {
    probe: Option<u32>,
    vcpu: usize,
    regs: Pc,
}

#[derive(Deserialize)]
struct Pc {
    rip: Address,
}

#[derive(Deserialize)]
struct Vcpus {
    vcpus: Vec<VcpuLine>,
}

#[derive(Deserialize)]
struct Probes {
    probes: Vec<LiveProbe>,
}

#[derive(Deserialize)]
struct Bytes {
    bytes: String,
}

impl Guest {
    /// The guest behind `stream`. Waits until there is one.
    pub(super) fn over(stream: UnixStream) -> Result<Self> {
        Ok(Self {
            connection: Connection::over(stream)?,
            cpus: None,
            stops: VecDeque::new(),
            was_resumed: false,
        })
    }

    fn ask<T: DeserializeOwned>(&mut self, method: &str, params: Value) -> Result<T> {
        let result = self.connection.call(method, params)?;
        serde_json::from_value(result).context(NONSENSE)
    }

    fn tell(&mut self, method: &str, params: Value) -> Result<()> {
        self.connection.call(method, params).map(drop)
    }

    pub(super) fn pause(&mut self) -> Result<()> {
        self.cpus = None;
        self.tell("pause", Value::Null)?;
        // What was said before the answer is of the time before.
        self.hear();
        self.was_resumed = false;
        Ok(())
    }

    pub(super) fn resume(&mut self) -> Result<()> {
        self.cpus = None;
        self.tell("resume", Value::Null)
    }

    pub(super) fn quit(&mut self) -> Result<()> {
        self.tell("quit", Value::Null)
    }

    /// Has this CPU execute one instruction. When it has, that is [heard](Self::hear).
    pub(super) fn step(&mut self, vcpu: usize) -> Result<()> {
        self.cpus = None;
        self.tell("step", json!({ "vcpu": vcpu }))
    }

    pub(super) fn kernel(&mut self) -> Result<Kernel> {
        self.ask("kernel", Value::Null)
    }

    /// Where each CPU stands.
    pub(super) fn cpus(&mut self) -> Result<&[VcpuLine]> {
        if self.cpus.is_none() {
            let Vcpus { vcpus } = self.ask("regs", Value::Null)?;
            self.cpus = Some(vcpus);
        }
        Ok(self.cpus.as_deref().unwrap_or_default())
    }

    /// The same, as it was seen last.
    pub(super) fn seen_cpus(&self) -> &[VcpuLine] {
        self.cpus.as_deref().unwrap_or_default()
    }

    /// The registers of one CPU. None are known where it is in the middle of something.
    pub(super) fn registers(&mut self, vcpu: usize) -> Result<Cpu> {
        let line = self.cpus()?.iter().find(|line| line.vcpu == vcpu);
        let all = line.into_iter().flat_map(|line| line.regs.iter().chain(&line.system));
        Ok(Cpu(all.map(|(name, value)| (name.clone(), value.0)).collect()))
    }

    pub(super) fn set_registers(&mut self, vcpu: usize, changed: &Cpu) -> Result<()> {
        self.cpus = None;
        let regs: serde_json::Map<_, _> =
            changed.0.iter().map(|(name, value)| (name.clone(), json!(Address(*value)))).collect();
        self.tell("set_regs", json!({ "vcpu": vcpu, "regs": regs }))
    }

    pub(super) fn read(&mut self, at: u64, length: usize, vcpu: usize) -> Result<Vec<u8>> {
        let params = json!({ "address": Address(at), "length": length, "vcpu": vcpu });
        let Bytes { bytes } = self.ask("read", params)?;
        hex::bytes(&bytes).context(NONSENSE)
    }

    pub(super) fn write(&mut self, at: u64, bytes: &[u8], vcpu: usize) -> Result<()> {
        let params = json!({ "address": Address(at), "bytes": hex::text(bytes), "vcpu": vcpu });
        self.tell("write", params)
    }

    fn one(&mut self, method: &str, params: Value) -> Result<LiveProbe> {
        let Probes { probes } = self.ask(method, params)?;
        probes.into_iter().next().context(NONSENSE)
    }

    /// Adds a probe at which the guest stands still.
    pub(super) fn add(&mut self, definition: &str) -> Result<LiveProbe> {
        self.one("add", json!({ "definitions": [definition], "stop": true }))
    }

    pub(super) fn watch(&mut self, at: u64, length: u64, access: &str) -> Result<LiveProbe> {
        self.one("watch", json!({ "address": Address(at), "length": length, "access": access }))
    }

    pub(super) fn enable(&mut self, probe: u32, is_enabled: bool) -> Result<LiveProbe> {
        self.one(if is_enabled { "enable" } else { "disable" }, json!({ "probes": [probe] }))
    }

    pub(super) fn remove(&mut self, probe: u32) -> Result<()> {
        self.tell("remove", json!({ "probes": [probe] }))
    }

    pub(super) fn probes(&mut self) -> Result<Vec<LiveProbe>> {
        let Probes { probes } = self.ask("list", Value::Null)?;
        Ok(probes)
    }

    /// Who has called whom on one CPU.
    pub(super) fn stack(&mut self, vcpu: usize) -> Result<Vec<VcpuLine>> {
        let Vcpus { vcpus } = self.ask("stack", json!({ "vcpu": vcpu }))?;
        Ok(vcpus)
    }

    /// Waits until the server says something by itself.
    ///
    /// # Errors
    /// When the guest has ended.
    pub(super) fn listen(&mut self) -> Result<()> {
        self.connection.listen()
    }

    /// Whether something was said that is not [heard](Self::hear) yet.
    pub(super) fn has_more(&self) -> bool {
        self.connection.has_more()
    }

    /// Keeps what was said by now.
    pub(super) fn hear(&mut self) {
        while let Some(said) = self.connection.take_said() {
            let method = said.get("method").and_then(Value::as_str);
            let is_stop = method == Some("stopped");
            self.was_resumed |= method == Some("resumed");
            let stopped = said.get("params").filter(|_| is_stop).map(Stopped::deserialize);
            if let Some(Ok(Stopped { probe, vcpu, regs: Pc { rip } })) = stopped {
                (self.cpus, self.was_resumed) = (None, false);
                self.stops.push_back(Stop { vcpu, probe, rip: rip.0 });
            }
        }
    }
}

impl AsFd for Guest {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}
