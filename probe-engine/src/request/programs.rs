//! From a place in a program to the function of the kernel's at which its probe stands, and what is read there.

use super::PlaceError;
use super::error::chain;
use super::target::{ProgramSaid, ProgramTarget, Target};
use crate::capture::Capture;
use crate::capture::typed::Signature;
use crate::lang::ast::{Argument, Definition, FetchExpr, WrittenPlace};
use crate::lang::{self, Mistake};
use crate::linux::btf::Btf;
use crate::linux::dwarf::{DwarfError, NoFunction, VariablesInScope};
use crate::linux::kernel::Kernel;
use crate::linux::program_file::{ProgramDebug, ProgramDebugError};
use crate::linux::program_place::ProgramPlace;
use crate::linux::uprobes::UprobeCalls;
use crate::probe::place::{Place, in_kernel};
use crate::probe::resolve::ResolveError;
use std::ops::Range;
use std::rc::Rc;

/// The place that is written so, if it is one in a program.
pub(super) fn place(written: &WrittenPlace, returns: bool) -> Option<ProgramPlace> {
    match written {
        WrittenPlace::Program { path, at, counter } => {
            Some(ProgramPlace { path: path.clone(), at: at.clone(), counter: *counter, returns, known: None })
        }
        _ => None,
    }
}

/// What finds the files of a program outside the guest, by its path in there; `None` where they are not known.
pub type FindProgram<'a> = dyn Fn(&str) -> Option<Rc<ProgramDebug>> + 'a;

/// The programs that are known.
#[derive(Default)]
pub(super) struct Programs<'a>(Option<Box<FindProgram<'a>>>);

impl<'a> Programs<'a> {
    pub(super) fn found_by(find: Box<FindProgram<'a>>) -> Self {
        Self(Some(find))
    }

    fn get(&self, path: &str) -> Option<Rc<ProgramDebug>> {
        self.0.as_ref()?(path)
    }

    /// What is said of a place, and the function that begins there with what a call of it has.
    fn say(&self, place: &ProgramPlace, are_named: bool) -> Result<(ProgramSaid, Option<Called>), String> {
        let path = &place.path;
        if place.at.is_several() {
            return Err(format!(
                "names are known at one place, and `{place}` stands for several: take `$arg1`"
            ));
        }
        let not_known = |why: &str| format!("names in `{path}` are not known: {why}");
        let debug = self.get(path).ok_or_else(|| not_known("its file is not found outside the guest"))?;
        let at = debug.find(&place.at).map_err(|error| not_known(&error.to_string()))?;
        if !are_named {
            return Ok((ProgramSaid { debug, at, types: Vec::new() }, None));
        }
        let unknown = |error: ProgramDebugError| match error {
            ProgramDebugError::Dwarf(DwarfError::Missing) => not_known(
                "it has no debugging information (DWARF), and there is none for it below /usr/lib/debug",
            ),
            error => not_known(&chain(&error)),
        };
        match debug.types(&at) {
            Ok(function) => {
                let types = function.types.clone();
                let signature = Btf::parse(&types).map(|btf| Signature::of_program(&btf, function));
                let signature = signature.map_err(|error| chain(&error))?;
                Ok((ProgramSaid { debug, at, types }, Some((place.at.to_string(), Some(signature)))))
            }
            // Somewhere else, variables may have names.
            Err(ProgramDebugError::NoFunction(NoFunction::Missing)) => {
                let variables = debug.variables(&at).map_err(|error| unknown(error.into()))?;
                Ok((ProgramSaid { debug, at, types: variables.types }, None))
            }
            Err(error) => Err(unknown(error)),
        }
    }
}

/// A function, and what a call of it has.
type Called = (String, Option<Signature>);

/// What a probe at `program` comes to in `kernel`. Where the program has what is not known until the guest has its file, but for
/// what `programs` say: what functions take and have variables for, where a definition names any of that.
pub(super) fn target(
    program: ProgramPlace,
    kernel: &Kernel,
    programs: &Programs<'_>,
    are_named: bool,
) -> Result<Target, PlaceError> {
    let calls = UprobeCalls::of(kernel)?;
    let name = program.to_string();
    let info = in_kernel(calls.no_op, kernel)
        .map_err(|reason| ResolveError::Unprobeable { name: name.clone(), reason })?;
    let (said, function) = match programs.say(&program, are_named) {
        Ok((said, function)) => (Ok(said), function),
        Err(why) => (Err(why), None),
    };
    let known = said.as_ref().ok().map(|said| said.at.known.clone());
    // Without its symbol, the place is found by nobody else.
    let known = known.filter(|known| known.symbol.is_some());
    let program = ProgramTarget { place: ProgramPlace { known, ..program }, said };
    let place = Place::Kernel { name, info };
    Ok(Target { place, function, tracepoint: None, program: Some(program), event: None })
}

/// Whether what a definition reads may be told by names and types.
pub(super) fn has_names(definition: &Definition) -> bool {
    let is_plain = |argument: &Argument| {
        matches!(
            argument.fetch.value,
            FetchExpr::Register(_)
                | FetchExpr::StackPointer
                | FetchExpr::StackSlot(_)
                | FetchExpr::FileMemory(_)
                | FetchExpr::Comm
        )
    };
    definition.args.is_empty() || definition.filter.is_some() || !definition.args.iter().all(is_plain)
}

/// The same, where nothing is said of it.
pub(super) fn unsaid(target: &Target, program: &ProgramTarget) -> Target {
    Target {
        place: target.place.clone(),
        function: None,
        tracepoint: None,
        program: Some(ProgramTarget { place: program.place.clone(), said: Err(String::new()) }),
        event: None,
    }
}

/// Which variables have names at a place.
pub(super) fn variables(program: &ProgramTarget) -> Result<Option<VariablesInScope>, String> {
    let said = program.said.as_ref().map_err(Clone::clone)?;
    said.debug.variables(&said.at).map(Some).map_err(|error| chain(&error))
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
