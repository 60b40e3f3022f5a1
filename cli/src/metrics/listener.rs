//! Where clients come who read metrics.

use super::request::Askers;
use crate::args::MetricsPlace;
use crate::control::OwnSocket;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// Where clients come.
pub(super) enum Listener {
    Port(TcpListener),
    /// It makes nobody wait.
    Socket(UnixListener),
}

impl Listener {
    /// Takes `place`. A socket is there as long as it is kept.
    ///
    /// # Errors
    /// In words, where it cannot be had.
    pub(super) fn open(place: &MetricsPlace) -> Result<(Self, Option<OwnSocket>)> {
        match place {
            MetricsPlace::Port(address) => {
                let listener = TcpListener::bind(address);
                let listener =
                    listener.with_context(|| format!("--metrics {address}: nothing can be served there"))?;
                Ok((Self::Port(listener), None))
            }
            MetricsPlace::Socket(path) => {
                let socket = OwnSocket::open("--metrics", path)?;
                let listener = socket.listener().try_clone().context("cannot share a socket")?;
                Ok((Self::Socket(listener), Some(socket)))
            }
        }
    }

    /// Who may ask there: a browser comes to this machine's own addresses for whatever page it shows.
    pub(super) fn askers(&self) -> Askers {
        match self.address() {
            Some(address) if address.ip().is_loopback() => Askers::Local,
            _ => Askers::All,
        }
    }

    /// The address that a port has which the machine has chosen.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Port(listener) => listener.local_addr().ok(),
            Self::Socket(_) => None,
        }
    }

    /// Waits for the next client. It has to send and to take each part of what is said within `patience`.
    ///
    /// # Errors
    /// When this machine is out of descriptors, for instance.
    pub(super) fn accept(&self, patience: Duration) -> std::io::Result<OwnedFd> {
        let client: OwnedFd = match self {
            Self::Port(listener) => listener.accept()?.0.into(),
            Self::Socket(listener) => {
                poll(&mut [PollFd::new(listener, PollFlags::IN)], None)?;
                listener.accept()?.0.into()
            }
        };
        set_socket_timeout(&client, Timeout::Recv, Some(patience))?;
        set_socket_timeout(&client, Timeout::Send, Some(patience))?;
        Ok(client)
    }
}
