//! One client: JSON objects that come in, with descriptors, and a line for each that goes out.

use super::commands::Commands;
use super::error::QmpError;
use crate::control::Entrance;
use anyhow::{Result, bail};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The longest command that is taken, in bytes.
const LONGEST: usize = 64 << 10;
/// So many bytes come in at a time.
const PIECE: usize = 4096;

/// A client.
pub(super) struct Client {
    stream: UnixStream,
    /// What has come in, and is not read.
    input: Vec<u8>,
    commands: Commands,
}

impl Client {
    pub(super) fn new(stream: UnixStream, entrance: Entrance) -> Self {
        Self { stream, input: Vec::new(), commands: Commands::new(entrance) }
    }

    /// Serves it until it is gone, or the guest.
    pub(super) fn serve(mut self) -> Result<()> {
        self.say(&greeting())?;
        while let Some(command) = self.next()? {
            let id = command.get("id").cloned();
            let mut answer = match self.commands.execute(&command) {
                Ok(result) => json!({ "return": result }),
                Err(QmpError::Gone) => bail!("the guest has ended"),
                Err(QmpError::Told { class, why }) => json!({ "error": { "class": class, "desc": why } }),
            };
            if let (Some(answer), Some(id)) = (answer.as_object_mut(), id) {
                answer.insert("id".to_owned(), id);
            }
            self.say(&answer)?;
        }
        Ok(())
    }

    fn say(&mut self, what: &Value) -> Result<()> {
        // As QEMU ends its lines.
        Ok(self.stream.write_all(format!("{what}\r\n").as_bytes())?)
    }

    /// The next object, whether or not lines end between objects. What is none is answered.
    fn next(&mut self) -> Result<Option<Value>> {
        loop {
            let mut values = serde_json::Deserializer::from_slice(&self.input).into_iter::<Value>();
            match values.next() {
                Some(Ok(value)) => {
                    let length = values.byte_offset();
                    self.input.drain(..length);
                    return Ok(Some(value));
                }
                Some(Err(error)) if !error.is_eof() => {
                    self.input.clear();
                    let told =
                        json!({ "class": "GenericError", "desc": format!("JSON parse error, {error}") });
                    self.say(&json!({ "error": told }))?;
                }
                _ if self.input.len() > LONGEST => bail!("the command is too long"),
                _ => {
                    if !self.receive()? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Takes what comes in. Says whether anything has.
    fn receive(&mut self) -> Result<bool> {
        let mut bytes = [0; PIECE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(&self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut with, flags)
        })?;
        for message in with.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptors.for_each(|descriptor: OwnedFd| self.commands.received(descriptor));
            }
        }
        self.input.extend(bytes.iter().take(received.bytes));
        Ok(received.bytes > 0)
    }
}

/// As QEMU greets. The version is that of the QEMU whose answers these are like.
fn greeting() -> Value {
    json!({ "QMP": { "version": super::commands::version(), "capabilities": [] } })
}
