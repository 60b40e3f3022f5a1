//! All that most programs need: `use vmm::prelude::*;`

pub use crate::events::{Event, What};
pub use crate::guest::{Guest, Host};
pub use crate::probe::{Hit, Probe, ReturnProbe, WatchProbe};
pub use crate::session::{Command, Handle, Outcome, ProbeReport, ProbeState, Report, Session, Sink};
pub use probe_engine::addr::Gva;
pub use probe_engine::probe::table::ProbeId;
pub use probe_engine::regs::Regs;
pub use rustix::io::Errno;
