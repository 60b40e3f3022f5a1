//! `--metrics`: what is counted, for Prometheus and others that read its text over HTTP.
//!
//! One thread answers one request after the other. Each is a client of the [server](crate::control) of its own.

mod exposition;
mod listener;
mod request;

use crate::args::MetricsPlace;
use crate::control::{Connection, Entrance, LiveCounters, OwnSocket};
use crate::say::note;
use anyhow::{Context, Result};
use listener::Listener;
use request::Request;
use serde_json::Value;
use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};
use vmm::confine::{self, Role};

/// How long a client may take, and a guest.
const PATIENCE: Duration = Duration::from_secs(5);

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
    let serve = move || {
        confine::this_thread_if(true, Role::Control);
        loop {
            match listener.accept(PATIENCE) {
                // Whoever takes no answer gets none.
                Ok(client) => drop(answer(&mut client.into(), &entrance)),
                // Out of descriptors, for instance: whoever waits goes on waiting.
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    };
    thread::Builder::new().name("metrics".to_owned()).spawn(serve).context("the host has no thread left")?;
    Ok(MetricsServer { _socket: socket })
}

fn answer(client: &mut File, entrance: &Entrance) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let Some(request) = Request::read(client, until)? else { return Ok(()) };
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
