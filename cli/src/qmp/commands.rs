//! The commands of a client (QEMU's `docs/interop/qmp-spec.rst` and `qapi/*.json`), and what each asks of the guest's control socket.

use super::error::QmpError;
use super::monitor;
use super::seen::SeenMemory;
use crate::control::{Connection, Entrance};
use crate::vmcore;
use probe_engine::addr::Gpa;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::mem;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

/// How long a guest may take to say of which kernel it is.
const LONGEST_BOOT: Duration = Duration::from_secs(30);
/// How often it is asked.
const OFTEN: Duration = Duration::from_millis(300);
/// So many descriptors of a client are kept.
const MOST_DESCRIPTORS: usize = 16;
/// All commands that there are.
const ALL: [&str; 14] = [
    "cont",
    "closefd",
    "dump-guest-memory",
    "getfd",
    "human-monitor-command",
    "qmp_capabilities",
    "query-commands",
    "query-kvm",
    "query-name",
    "query-status",
    "query-target",
    "query-version",
    "quit",
    "stop",
];

/// What a client has done so far.
pub(super) struct Commands {
    entrance: Entrance,
    /// Its client of the control socket, from when it is needed on.
    connection: Option<Connection>,
    /// What it has read of memory just now.
    seen: SeenMemory,
    /// Whether it has negotiated.
    is_ready: bool,
    /// Whether it has waited for the guest to say of which kernel it is.
    has_waited: bool,
    /// The last descriptor that has come in, and has no name.
    received: Option<OwnedFd>,
    /// Those that have.
    named: BTreeMap<String, OwnedFd>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    fdname: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Line {
    command_line: String,
    /// Which CPU is meant where that matters: nowhere.
    #[serde(default)]
    #[allow(dead_code, reason = "clients may say it")]
    cpu_index: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dump {
    paging: bool,
    protocol: String,
    #[serde(default)]
    detach: bool,
    begin: Option<u64>,
    length: Option<u64>,
    format: Option<String>,
}

/// As which QEMU it answers.
pub(super) fn version() -> Value {
    json!({
        "qemu": { "major": 10, "minor": 0, "micro": 0 },
        "package": concat!("vmm ", env!("CARGO_PKG_VERSION")),
    })
}

impl Commands {
    pub(super) fn new(entrance: Entrance) -> Self {
        Self {
            entrance,
            connection: None,
            seen: SeenMemory::default(),
            is_ready: false,
            has_waited: false,
            received: None,
            named: BTreeMap::new(),
        }
    }

    /// A descriptor has come in.
    pub(super) fn received(&mut self, descriptor: OwnedFd) {
        self.received = Some(descriptor);
    }

    /// Carries a command out.
    pub(super) fn execute(&mut self, command: &Value) -> Result<Value, QmpError> {
        let name = command.get("execute").and_then(Value::as_str);
        let name = name.ok_or_else(|| QmpError::generic("QMP input lacks member 'execute'"))?;
        let arguments = command.get("arguments");
        let none = || arguments_of::<Nothing>(Some(arguments.unwrap_or(&json!({}))));
        let not_found = |why| Err(QmpError::Told { class: "CommandNotFound", why });
        if !self.is_ready && name != "qmp_capabilities" {
            return not_found("Expecting capabilities negotiation with 'qmp_capabilities'".to_owned());
        }
        match name {
            "qmp_capabilities" if self.is_ready => {
                return not_found("Capabilities negotiation is already complete, command ignored".to_owned());
            }
            "qmp_capabilities" => self.is_ready = true,
            "query-target" => return none().map(|_| json!({ "arch": "x86_64" })),
            "query-version" => return none().map(|_| version()),
            "query-name" => return none().map(|_| json!({})),
            "query-kvm" => return none().map(|_| json!({ "enabled": true, "present": true })),
            "query-commands" => return none().map(|_| ALL.map(|name| json!({ "name": name })).into()),
            "query-status" => {
                none()?;
                return self.status();
            }
            "stop" => {
                none()?;
                self.call("pause", Value::Null)?;
            }
            "cont" => {
                none()?;
                self.call("resume", Value::Null)?;
            }
            "quit" => {
                none()?;
                self.call("quit", Value::Null)?;
            }
            "human-monitor-command" => {
                let Line { command_line, .. } = arguments_of(arguments)?;
                self.connection()?;
                let connection = self.connection.as_mut().ok_or(QmpError::Gone)?;
                return Ok(monitor::execute(&command_line, connection, &mut self.seen)?.into());
            }
            "getfd" => self.name_descriptor(arguments_of(arguments)?)?,
            "closefd" => {
                let Name { fdname } = arguments_of(arguments)?;
                drop(self.take_named(&fdname)?);
            }
            "dump-guest-memory" => self.dump(&arguments_of(arguments)?)?,
            other => return not_found(format!("The command {other} has not been found")),
        }
        Ok(json!({}))
    }

    fn status(&mut self) -> Result<Value, QmpError> {
        let status = self.call("status", Value::Null)?;
        let is_running = status.get("running").and_then(Value::as_bool).unwrap_or_default();
        let name = if is_running { "running" } else { "paused" };
        Ok(json!({ "running": is_running, "singlestep": false, "status": name }))
    }

    fn name_descriptor(&mut self, Name { fdname }: Name) -> Result<(), QmpError> {
        let no_descriptor = || QmpError::generic("No file descriptor supplied via SCM_RIGHTS");
        let descriptor = self.received.take().ok_or_else(no_descriptor)?;
        if fdname.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(QmpError::generic("Parameter 'fdname' expects a name not starting with a digit"));
        }
        if self.named.len() >= MOST_DESCRIPTORS && !self.named.contains_key(&fdname) {
            return Err(QmpError::generic(format!("{MOST_DESCRIPTORS} descriptors are kept at most")));
        }
        self.named.insert(fdname, descriptor);
        Ok(())
    }

    fn take_named(&mut self, name: &str) -> Result<OwnedFd, QmpError> {
        self.named
            .remove(name)
            .ok_or_else(|| QmpError::generic(format!("File descriptor named '{name}' not found")))
    }

    /// The guest stands still meanwhile, also where this client lets it run.
    fn dump(&mut self, dump: &Dump) -> Result<(), QmpError> {
        let Dump { paging, protocol, detach, begin, length, format } = dump;
        if *paging || *detach {
            return Err(QmpError::generic(
                "memory is dumped by its physical addresses, while the client waits",
            ));
        }
        if format.as_ref().is_some_and(|format| format != "elf") {
            return Err(QmpError::generic("dumps are ELF cores: `format` is elf"));
        }
        let part: Option<Range<Gpa>> = match (begin, length) {
            (None, None) => None,
            (Some(begin), Some(length)) => Some(Gpa(*begin)..Gpa(begin.saturating_add(*length))),
            _ => return Err(QmpError::generic("`begin` and `length` come together")),
        };
        let Some(name) = protocol.strip_prefix("fd:") else {
            return Err(QmpError::generic(
                "a dump goes to an open file, as \"fd:NAME\" says behind getfd; vmm ctl SOCKET dump FILE makes a file",
            ));
        };
        let file = File::from(self.take_named(name)?);
        self.wait_for_vmcoreinfo()?;
        let connection = join(&self.entrance)?;
        vmcore::write(connection, part, &file).map_err(|error| QmpError::generic(format!("{error:#}")))
    }

    /// Who reads a dump wants to know of which kernel it is. One that boots says so early, and one that stands still says no more.
    fn wait_for_vmcoreinfo(&mut self) -> Result<(), QmpError> {
        if mem::replace(&mut self.has_waited, true) {
            return Ok(());
        }
        let until = Instant::now() + LONGEST_BOOT;
        while Instant::now() < until {
            let is_known =
                self.call("vmcoreinfo", Value::Null)?.get("bytes").is_some_and(|bytes| !bytes.is_null());
            if is_known || self.status()?.get("running") != Some(&json!(true)) {
                break;
            }
            thread::sleep(OFTEN);
        }
        Ok(())
    }

    fn connection(&mut self) -> Result<&mut Connection, QmpError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => join(&self.entrance)?,
        };
        Ok(self.connection.insert(connection))
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value, QmpError> {
        self.connection()?.call(method, params).map_err(QmpError::generic)
    }
}

/// A client of the control socket. It waits until there is a guest.
fn join(entrance: &Entrance) -> Result<Connection, QmpError> {
    let stream = entrance.join().map_err(QmpError::generic)?;
    Connection::over(stream).map_err(|_| QmpError::Gone)
}

fn arguments_of<T: DeserializeOwned>(arguments: Option<&Value>) -> Result<T, QmpError> {
    let arguments = arguments.ok_or_else(|| QmpError::generic("Parameter 'arguments' is missing"))?;
    T::deserialize(arguments).map_err(QmpError::generic)
}
