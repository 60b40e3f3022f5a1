//! Where gdb connects: a socket of its owner's alone, or a port of this machine's loopback address.

use super::wire::Stream;
use crate::args::GdbPlace;
use crate::control::OwnSocket;
use anyhow::{Context, Result};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};

/// Where gdb connects.
pub(crate) enum Endpoint {
    Socket(OwnSocket),
    Port(TcpListener),
}

impl Endpoint {
    /// Opens `place`, which --gdb names.
    ///
    /// # Errors
    /// In words, when it is in use.
    pub(crate) fn open(place: &GdbPlace) -> Result<Self> {
        match place {
            GdbPlace::Socket(path) => OwnSocket::open("--gdb", path).map(Self::Socket),
            GdbPlace::Port(port) => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, *port));
                let listener = listener.with_context(|| format!("--gdb {port}: the port cannot be had"))?;
                listener.set_nonblocking(true).context("cannot share a socket")?;
                Ok(Self::Port(listener))
            }
        }
    }

    /// Takes the next one that has come.
    pub(super) fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Socket(socket) => Stream::Unix(socket.listener().accept()?.0),
            Self::Port(listener) => Stream::Tcp(listener.accept()?.0),
        })
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket(socket) => socket.listener().as_fd(),
            Self::Port(listener) => listener.as_fd(),
        }
    }
}
