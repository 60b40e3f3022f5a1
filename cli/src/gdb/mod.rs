//! `--gdb`: a guest in gdb ([how](../../../docs/gdb.md)).
//!
//! ```text
//! gdb ──remote protocol──▶ serving ──JSON-RPC──▶ the server of control sockets
//! ```
//!
//! One thread speaks with one gdb at a time. To the guest it is a client of the control server like any other: CPUs are threads, gdb's
//! breakpoints are probes at which the guest stands still, and a gdb that dies lets the guest go on.

mod endpoint;
mod guest;
mod monitor;
mod points;
mod registers;
mod serving;
mod target;
mod wire;

use crate::control::{Entrance, Server};
use anyhow::{Context, Result};
pub(crate) use endpoint::Endpoint;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use vmm::confine::{self, Role};

/// A server for gdb that runs. It ends when it is dropped.
pub(crate) struct GdbServer {
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// A socket is removed by whoever is not confined.
    _endpoint: Arc<Endpoint>,
}

impl GdbServer {
    /// Serves a gdb that comes to `endpoint`, as a client of `control`.
    ///
    /// # Errors
    /// When this machine is out of threads or descriptors.
    pub(crate) fn start(endpoint: Endpoint, control: &Server) -> Result<Self> {
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let end = Arc::new(end.context("the host has no descriptor left")?);
        let endpoint = Arc::new(endpoint);
        let (entrance, ended, served): (Entrance, _, _) = (control.entrance(), end.clone(), endpoint.clone());
        let serve = move || {
            confine::this_thread_if(true, Role::Control);
            serving::serve(&served, &entrance, &ended);
        };
        let thread = thread::Builder::new().name("gdb".to_owned()).spawn(serve);
        let thread = Some(thread.context("the host has no thread left")?);
        Ok(Self { end, thread, _endpoint: endpoint })
    }
}

impl Drop for GdbServer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said why.
            let _ = thread.join();
        }
    }
}
