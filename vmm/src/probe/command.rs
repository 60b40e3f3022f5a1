//! What can be done with a session's probes while its guest runs.

use super::Probe;
use crate::gate::{Gate, HeldTask};
use probe_engine::linux::task::Task;
use probe_engine::probe::pace::HoldMode;
use probe_engine::probe::table::ProbeId;
use std::sync::Arc;
use std::time::Duration;

/// What can be done with a session's probes, each in one stop of the guest at most.
pub enum Command {
    /// Registers probes, all or none.
    Register(Vec<Probe>),
    /// Unregisters probes. Calls that their return probes follow still return.
    Unregister(Vec<ProbeId>),
    /// Enables probes.
    Enable(Vec<ProbeId>),
    /// Disables probes; they stay registered.
    Disable(Vec<ProbeId>),
    /// Arms or disarms all probes at once. Each stays enabled or disabled as it is.
    Arm(bool),
    /// Has all probes served by detours where they can be, or none.
    Optimize(bool),
    /// Has all CPUs of the guest stand still. Commands are carried out meanwhile, and the time that the guest may take goes on.
    Pause,
    /// Lets them go on.
    Resume,
    /// The same, unless the guest has come to stand still once more since the stop of this [number](crate::session::Stopped::number).
    ResumeAfter(u64),
    /// The same, unless the guest has not begun either, or stands still because of a [report](crate::session::AfterSplat::Stop) of its
    /// kernel.
    LetGoAfter(u64),
    /// Ends the guest.
    Stop,
    /// Ends the guest as one that took too long, and says where its CPUs stand.
    GiveUp,
}

/// What a hit leaves to be done.
pub(crate) enum HandlerRequest {
    /// While the guest goes on.
    Soon(Command),
    /// Before the vCPU goes on.
    Wait(Command),
    /// The vCPU is to stand still before it goes on.
    Stand(Waiting),
    /// A task was held on this vCPU, and goes on.
    Held(HeldTask),
    /// A trap that is for nothing from now on is to be taken out some time.
    Spent,
    /// A handler panicked, with these words: its probe is to be disabled.
    Broken(ProbeId, String),
}

/// For what a vCPU stands still.
pub(crate) enum Waiting {
    /// Until a gate is opened, or so long.
    Gate {
        gate: Arc<Gate>,
        within: Duration,
        /// What its vCPU does meanwhile.
        mode: HoldMode,
        /// The probe that holds it, and the task that ran.
        probe: ProbeId,
        task: Option<Task>,
    },
    /// Until its turn has come: it is held at this gate already, and then comes to the probe once more.
    Turn(Arc<Gate>),
    /// So long.
    Time(Duration),
}
