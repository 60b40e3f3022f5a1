//! QEMU's monitor, as far as a snapshot needs it: JSON commands, one a line, each with one answer.

use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;
use thiserror::Error;

/// Why the monitor did not do as it was told.
#[derive(Debug, Error)]
pub(super) enum QmpError {
    #[error("QEMU's monitor does not answer")]
    Io(#[from] io::Error),
    #[error("QEMU refused `{command}`: {why}")]
    Refused { command: &'static str, why: String },
    #[error("QEMU could not write its state: {0}")]
    Migration(String),
}

/// A monitor that takes commands.
pub(super) struct Qmp {
    socket: BufReader<UnixStream>,
}

/// How long the monitor may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

impl Qmp {
    /// Shakes hands over `socket`.
    pub(super) fn new(socket: UnixStream) -> Result<Self, QmpError> {
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut qmp = Self { socket: BufReader::new(socket) };
        qmp.receive()?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Stops the machine and writes its memory and devices to the file at `path`.
    pub(super) fn save(&mut self, path: &str) -> Result<(), QmpError> {
        self.execute("migrate", &json!({ "uri": format!("file:{path}") }))?;
        loop {
            let state = self.execute("query-migrate", &json!({}))?;
            match state.get("status").and_then(Value::as_str) {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    let why = state.get("error-desc").and_then(Value::as_str).unwrap_or("no reason given");
                    return Err(QmpError::Migration(why.to_owned()));
                }
                _ => thread::sleep(POLL),
            }
        }
    }

    fn execute(&mut self, command: &'static str, arguments: &Value) -> Result<Value, QmpError> {
        let line = json!({ "execute": command, "arguments": arguments });
        writeln!(self.socket.get_mut(), "{line}")?;
        loop {
            let mut message = self.receive()?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given").to_owned();
                return Err(QmpError::Refused { command, why });
            }
            // An event.
        }
    }

    fn receive(&mut self) -> Result<Value, QmpError> {
        let mut line = String::new();
        if self.socket.read_line(&mut line)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(serde_json::from_str(&line).map_err(io::Error::from)?)
    }
}
