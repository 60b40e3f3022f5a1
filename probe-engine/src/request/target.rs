//! What a definition's place is in a kernel.

use crate::capture::typed::Signature;
use crate::lang::compile::FilePlace;
use crate::linux::btf::Btf;
use crate::linux::program_file::{NoPlace, ProgramDebug, ProgramFunction};
use crate::linux::program_place::{InFile, ProgramPlace};
use crate::probe::place::Place;
use crate::probe::plan::SwitchedTracepoint;
use std::rc::Rc;

/// A place that a definition means.
pub(super) struct Target {
    pub(super) place: Place,
    /// The function at whose entry or returns it is, with what a call of it has where its types do not say that.
    pub(super) function: Option<(String, Option<Signature>)>,
    /// What has to be switched on for it.
    pub(super) tracepoint: Option<SwitchedTracepoint>,
    /// The place in a program, if it is there.
    pub(super) program: Option<ProgramTarget>,
    /// The class of the tracepoint's own event, if it has one.
    pub(super) event: Option<String>,
}

/// A place in a program.
pub(super) struct ProgramTarget {
    pub(super) place: ProgramPlace,
    /// What is said of it outside the guest, or why nothing is.
    pub(super) said: Result<ProgramSaid, String>,
    /// Why it is not in the file outside the guest, if that is there and does not have it.
    pub(super) doubt: Option<NoPlace>,
}

impl ProgramTarget {
    /// What is to be known of it before the guest runs.
    pub(super) fn remark(&self) -> Option<String> {
        let doubt = self.doubt.as_ref()?;
        Some(format!("{}, as it is on this machine: {doubt}", self.place.path))
    }
}

/// What a program's files outside the guest say of a place.
pub(super) struct ProgramSaid {
    pub(super) debug: Rc<ProgramDebug>,
    pub(super) at: ProgramFunction,
    /// The types of its source file, as a `.BTF` section.
    pub(super) types: Vec<u8>,
}

impl Target {
    /// Where in a file it is.
    pub(super) fn in_file(&self) -> FilePlace {
        match self.program.as_ref().map(|program| (&program.place.at, &program.said)) {
            None => FilePlace::Kernel,
            Some((InFile::Offset(offset), _)) => FilePlace::At(*offset),
            Some((_, said)) => said.as_ref().map_or(FilePlace::Unknown, |said| FilePlace::At(said.at.offset)),
        }
    }

    /// The types of the function's own source, where that is a program's.
    pub(super) fn program_types(&self) -> Option<Btf<'_>> {
        let said = self.program.as_ref()?.said.as_ref().ok()?;
        Btf::parse(&said.types).ok()
    }
}
