//! What a definition's place is in a kernel.

use crate::capture::typed::Signature;
use crate::linux::program_place::ProgramPlace;
use crate::probe::place::Place;
use crate::probe::plan::SwitchedTracepoint;

/// A place that a definition means.
pub(super) struct Target {
    pub(super) place: Place,
    /// The function at whose entry or returns it is, with what a call of it has where its types do not say that.
    pub(super) function: Option<(String, Option<Signature>)>,
    /// What has to be switched on for it.
    pub(super) tracepoint: Option<SwitchedTracepoint>,
    /// The place in a program, if it is there.
    pub(super) program: Option<ProgramPlace>,
    /// The class of the tracepoint's own event, if it has one.
    pub(super) event: Option<String>,
}
