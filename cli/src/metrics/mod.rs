//! `--metrics`: what is counted, for Prometheus and others that read its text over HTTP.
//!
//! Some threads answer one request after the other each: whoever comes and says nothing keeps nobody else waiting. A request is a client of
//! the [server](crate::control) of its own.

mod exposition;
mod listener;
mod request;

use crate::args::MetricsPlace;
use crate::control::{Connection, Entrance, LiveCounters, OwnSocket};
use crate::say::note;
use anyhow::{Context, Result};
use listener::Listener;
use request::{Askers, Request};
use serde_json::Value;
use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use vmm::confine::{self, Role};

/// How long a client may take, and a guest.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many clients are served at once.
const AT_ONCE: usize = 4;

/// A server of metrics. It serves until this process ends. Its socket, if it has one, is removed when it is dropped.
pub(crate) struct MetricsServer {
    _socket: Option<OwnSocket>,
}

/// Serves what is counted at `place`. Who counts is asked at `entrance`.
///
/// # Errors
/// Where the place cannot be had, or this machine is out of threads.
pub(crate) fn serve(place: &MetricsPlace, entrance: Entrance) -> Result<MetricsServer> {
    let (listener, socket) = Listener::open(place)?;
    if let Some(address) = listener.address() {
        note(format_args!("metrics are at http://{address}/metrics"));
    }
    let listener = Arc::new(listener);
    for _ in 0..AT_ONCE {
        let (listener, entrance) = (listener.clone(), entrance.clone());
        let begun =
            thread::Builder::new().name("metrics".to_owned()).spawn(move || answer_all(&listener, &entrance));
        begun.context("the host has no thread left")?;
    }
    Ok(MetricsServer { _socket: socket })
}

/// Answers one client after the other.
fn answer_all(listener: &Listener, entrance: &Entrance) {
    confine::this_thread_if(true, Role::Control);
    let askers = listener.askers();
    loop {
        match listener.accept(PATIENCE) {
            // Whoever takes no answer gets none.
            Ok(client) => drop(answer(&mut client.into(), askers, entrance)),
            // Out of descriptors, for instance, or another thread has the client: whoever waits goes on waiting.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn answer(client: &mut File, askers: Askers, entrance: &Entrance) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let Some(request) = Request::read(client, askers, until)? else { return Ok(()) };
    let response = request.response(|| exposition::text(counters(entrance)?));
    request::write_until(client, &response, Instant::now() + PATIENCE)?;
    Ok(())
}

fn counters(entrance: &Entrance) -> Result<LiveCounters> {
    let stream = entrance.join()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let counters = Connection::over(stream)?.call("counters", Value::Null)?;
    Ok(serde_json::from_value(counters)?)
}
