//! A connection to a control socket, by which one call after the other is made.

use super::methods::PROTOCOL;
use crate::say::{Picture, harmless};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What is said of an answer that is none.
pub(crate) const NONSENSE: &str = "what the guest's server has answered makes no sense";

/// A connection.
pub(crate) struct Connection {
    stream: BufReader<UnixStream>,
    /// The number of the last call.
    last: u64,
    /// What the server has said by itself while an answer was waited for.
    said: VecDeque<Value>,
}

impl Connection {
    /// Connects to the server at `path`, which has to speak our protocol.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path)
            .with_context(|| format!("nobody takes commands at {}", path.display()))?;
        Self::over(stream)
    }

    /// Speaks over `stream` with a server, which has to speak our protocol.
    pub(crate) fn over(stream: UnixStream) -> Result<Self> {
        let mut connection = Self { stream: BufReader::new(stream), last: 0, said: VecDeque::new() };
        let version = connection.call("version", Value::Null)?;
        let protocol = version.get("protocol").and_then(Value::as_u64);
        if protocol != Some(PROTOCOL.into()) {
            bail!(
                "the guest's server speaks version {} of the protocol, and this vmm speaks {PROTOCOL}: use the vmm that runs the guest",
                protocol.unwrap_or_default()
            );
        }
        Ok(connection)
    }

    /// Calls a method, and gives what comes of it.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last += 1;
        let mut call = json!({ "jsonrpc": "2.0", "id": self.last, "method": method });
        if let (Some(call), false) = (call.as_object_mut(), params.is_null()) {
            call.insert("params".to_owned(), params);
        }
        // One that cannot be written has been refused: the answer says why.
        let _ = self.stream.get_mut().write_all(format!("{call}\n").as_bytes());
        loop {
            let mut answer = self.next()?;
            if answer.get("method").is_some() {
                self.said.push_back(answer);
                continue;
            }
            if let Some(error) = answer.get("error") {
                let message = error.get("message").and_then(Value::as_str).context(NONSENSE)?;
                return Err(match message.contains('\n') {
                    // It shows what is wrong where it stands.
                    true => Picture(message.lines().map(harmless).collect::<Vec<_>>().join("\n")).into(),
                    false => anyhow!("{message}"),
                });
            }
            let is_own = answer.get("id").and_then(Value::as_u64) == Some(self.last);
            let result = answer.get_mut("result").filter(|_| is_own).context(NONSENSE)?;
            return Ok(result.take());
        }
    }

    /// Waits until the server says that `what` has happened, or until the guest has ended.
    pub(crate) fn wait_for(&mut self, what: &str) -> Result<()> {
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let said: Value = serde_json::from_str(&line).context(NONSENSE)?;
            if said.get("method").and_then(Value::as_str) == Some(what) {
                return Ok(());
            }
        }
    }

    /// What the server has said by itself, in its order: what has come so far.
    pub(crate) fn take_said(&mut self) -> Option<Value> {
        self.said.pop_front()
    }

    /// Whether the server has said by itself, before its last answer, that `what` has happened.
    pub(crate) fn has_been_told(&self, what: &str) -> bool {
        self.said.iter().any(|said| said.get("method").and_then(Value::as_str) == Some(what))
    }

    /// Waits until the server says something by itself.
    ///
    /// # Errors
    /// When it has gone.
    pub(crate) fn listen(&mut self) -> Result<()> {
        let said = self.next()?;
        self.said.push_back(said);
        Ok(())
    }

    /// Whether [`listen`](Self::listen) does not have to wait.
    pub(crate) fn has_more(&self) -> bool {
        self.stream.buffer().contains(&b'\n')
    }

    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).unwrap_or(0) == 0 {
            bail!("the guest has ended, or its server has left this client");
        }
        serde_json::from_str(&line).context(NONSENSE)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
