//! From a place in a program to the function of the kernel's at which its probe stands, and what is read there.

use super::PlaceError;
use super::target::Target;
use crate::capture::Capture;
use crate::lang::ast::WrittenPlace;
use crate::lang::{self, Mistake};
use crate::linux::kernel::Kernel;
use crate::linux::program_place::ProgramPlace;
use crate::linux::uprobes::UprobeCalls;
use crate::probe::place::{Place, in_kernel};
use crate::probe::resolve::ResolveError;
use std::ops::Range;

/// The place that is written so, if it is one in a program.
pub(super) fn place(written: &WrittenPlace, returns: bool) -> Option<ProgramPlace> {
    match written {
        WrittenPlace::Program { path, at, counter } => {
            Some(ProgramPlace { path: path.clone(), at: at.clone(), counter: *counter, returns })
        }
        _ => None,
    }
}

/// What a probe at `program` comes to in `kernel`. Where the program has what is not known until the guest has its file.
pub(super) fn target(program: ProgramPlace, kernel: &Kernel) -> Result<Target, PlaceError> {
    let calls = UprobeCalls::of(kernel)?;
    let name = program.to_string();
    let info = in_kernel(calls.no_op, kernel)
        .map_err(|reason| ResolveError::Unprobeable { name: name.clone(), reason })?;
    Ok(Target {
        place: Place::Kernel { name, info },
        function: None,
        tracepoint: None,
        program: Some(program),
        event: None,
    })
}

/// What `capture` reads of the program, for a definition whose place is at `span`.
pub(super) fn capture(
    capture: Capture,
    program: &ProgramPlace,
    span: &Range<usize>,
) -> Result<Capture, lang::Error> {
    capture.of_program(program).map_err(|(field, why)| lang::Error {
        span: span.clone(),
        mistake: Mistake::OfProgram { field, why },
    })
}
