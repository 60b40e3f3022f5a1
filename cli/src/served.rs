//! Who has others look at a guest that runs, and command it: the server of a control socket, and front ends that are its clients.

use crate::args::{Controlled, Run};
use crate::control::{Definer, OwnSocket, Server};
use crate::gdb::{Endpoint, GdbServer};
use crate::kept_memory::KeptMemory;
use crate::metrics::{self, MetricsServer};
use crate::qmp::QmpServer;
use crate::splats;
use anyhow::Result;
use std::path::Path;

/// Where clients come, taken before anything boots.
pub(crate) struct Sockets<'a> {
    args: &'a Controlled,
    control: Option<OwnSocket>,
    gdb: Option<Endpoint>,
    qmp: Option<OwnSocket>,
    /// Where the guest's memory is kept at its first report.
    vmcore: Option<&'a Path>,
}

/// Everyone who serves. They end in this order: gdb is told by the server that the guest has ended.
pub(crate) struct Served {
    _kept_memory: Option<KeptMemory>,
    _qmp: Option<QmpServer>,
    _metrics: Option<MetricsServer>,
    control: Option<Server>,
    _gdb: Option<GdbServer>,
}

impl<'a> Sockets<'a> {
    /// Those that `args` names.
    ///
    /// # Errors
    /// In words, where one cannot be had, or a guest would wait for nobody.
    pub(crate) fn open(args: &'a Run) -> Result<Self> {
        let Controlled { control, qmp, gdb, .. } = &args.controlled;
        let socket = |option, path: &Option<_>| {
            path.as_deref().map(|path: &Path| OwnSocket::open(option, path)).transpose()
        };
        let sockets = Self {
            args: &args.controlled,
            control: socket("--control", control)?,
            qmp: socket("--qmp", qmp)?,
            gdb: gdb.as_ref().map(Endpoint::open).transpose()?,
            vmcore: args.splats.vmcore.as_deref(),
        };
        splats::check(&args.splats, sockets.have_clients())?;
        Ok(sockets)
    }

    /// Whether somebody may come who lets a guest go on.
    fn have_clients(&self) -> bool {
        self.control.is_some() || self.gdb.is_some() || self.qmp.is_some()
    }

    /// Serves. What clients define is found out by what `definer` makes.
    ///
    /// # Errors
    /// When this machine is out of threads or descriptors.
    pub(crate) fn serve(self, definer: impl FnOnce() -> Definer) -> Result<Served> {
        let is_wanted = self.have_clients() || self.args.metrics.is_some() || self.vmcore.is_some();
        let Self { args, control, gdb, qmp, vmcore } = self;
        if !is_wanted {
            return Ok(Served { _kept_memory: None, _qmp: None, _metrics: None, control: None, _gdb: None });
        }
        let control = Server::start(control, definer())?;
        let metrics = args.metrics.as_ref().map(|place| metrics::serve(place, control.entrance()));
        Ok(Served {
            _kept_memory: vmcore.map(|path| KeptMemory::begin(path, control.entrance())).transpose()?,
            _qmp: qmp.map(|socket| QmpServer::start(socket, control.entrance())).transpose()?,
            _metrics: metrics.transpose()?,
            _gdb: gdb.map(|endpoint| GdbServer::start(endpoint, &control)).transpose()?,
            control: Some(control),
        })
    }
}

impl Served {
    /// The server, if anybody is served.
    pub(crate) fn control(&self) -> Option<&Server> {
        self.control.as_ref()
    }
}
