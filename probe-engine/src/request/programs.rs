//! From a place in a program to the function of the kernel's at which its probe stands, and what is read there.

use super::PlaceError;
use super::error::chain;
use super::target::{ProgramSaid, ProgramTarget, Target};
use crate::capture::Capture;
use crate::capture::hist::Histogram;
use crate::capture::typed::Signature;
use crate::lang::ast::{Argument, Definition, FetchExpr, WrittenPlace};
use crate::lang::{self, Mistake};
use crate::linux::btf::Btf;
use crate::linux::dwarf::{DwarfError, NoFunction, VariablesInScope};
use crate::linux::kernel::Kernel;
use crate::linux::program_file::{FoundPlace, LONGEST_NAME, NoPlace, ProgramDebug, ProgramDebugError};
use crate::linux::program_place::{InFile, KnownFile, ProgramPlace};
use crate::linux::uprobes::UprobeCalls;
use crate::probe::place::{Place, in_kernel};
use crate::probe::resolve::ResolveError;
use std::collections::BTreeMap;
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

    /// Why a place is not in its file, where that is known.
    fn doubt(&self, place: &ProgramPlace) -> Option<NoPlace> {
        let find = self.0.as_ref()?;
        match (find(&place.path), place.path.rsplit_once(':')) {
            (Some(debug), _) => debug.check(&place.at).err(),
            // `PATH:PROVIDER` is no file.
            (None, Some((path, _))) if find(path).is_some() => Some(NoPlace::Unmarked),
            (None, _) => None,
        }
    }

    /// The functions that a pattern stands for, where its file is known and has some.
    fn functions(&self, place: &ProgramPlace) -> Option<Vec<ProgramPlace>> {
        let InFile::Functions(pattern) = &place.at else { return None };
        let debug = self.0.as_ref()?(&place.path)?;
        let found = debug.functions(pattern).ok()?;
        let name = |place: &FoundPlace| Some(place.name.as_deref()?.split('@').next()?.to_owned());
        let names: Vec<_> = found.iter().map(name).collect();
        let mut times = BTreeMap::<&str, usize>::new();
        names.iter().flatten().for_each(|name| *times.entry(name).or_default() += 1);
        let identity = debug.identity();
        // In another file, other code would be there.
        let at = |(found, name): (&FoundPlace, &Option<String>)| match name {
            Some(name) if is_word(name) && times.get(name.as_str()) == Some(&1) => {
                let at = InFile::Symbol { name: name.clone(), offset: 0 };
                let known = KnownFile { symbol: Some(found.offset), ..identity.clone() };
                ProgramPlace { at, known: Some(known), ..place.clone() }
            }
            // A name of several functions, or one that is no word of ours, says less than where it is.
            _ => {
                let at = InFile::Offset(found.offset);
                ProgramPlace { at, known: Some(identity.clone()), ..place.clone() }
            }
        };
        Some(found.iter().zip(&names).map(at).collect())
    }

    /// What is said of a place, and the function that begins there with what a call of it has.
    fn say(&self, place: &ProgramPlace, are_named: bool) -> Result<(ProgramSaid, Option<Called>), String> {
        let path = &place.path;
        if place.at.is_several() {
            return Err(no_names(place));
        }
        let not_known = |why: &str| format!("names in `{path}` are not known: {why}");
        let find = self.0.as_ref().ok_or_else(|| {
            not_known("its file is looked for on this machine only for a guest that runs a command of this machine's")
        })?;
        let debug = find(path).ok_or_else(|| not_known("its file is not known on this machine"))?;
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

/// What probes at `program` come to in `kernel`, and whether they are those that a pattern stands for. Where the program has what is
/// not known until the guest has its file, but for what `programs` say: which functions a pattern stands for, and what functions take
/// and have variables for, where a definition names any of that.
pub(super) fn targets(
    program: ProgramPlace,
    kernel: &Kernel,
    programs: &Programs<'_>,
    are_named: bool,
) -> Result<(Vec<Target>, bool), PlaceError> {
    let calls = UprobeCalls::of(kernel)?;
    let info = in_kernel(calls.no_op, kernel)
        .map_err(|reason| ResolveError::Unprobeable { name: program.to_string(), reason })?;
    let target = |program: ProgramTarget, function| {
        let place = Place::Kernel { name: program.place.to_string(), info: info.clone() };
        Target { place, function, tracepoint: None, program: Some(program), event: None }
    };
    if let Some(places) = programs.functions(&program) {
        let unnamed = no_names(&program);
        let found = |place| ProgramTarget { place, said: Err(unnamed.clone()), doubt: None };
        return Ok((places.into_iter().map(|place| target(found(place), None)).collect(), true));
    }
    let (said, function) = match programs.say(&program, are_named) {
        Ok((said, function)) => (Ok(said), function),
        Err(why) => (Err(why), None),
    };
    let known = said.as_ref().ok().map(|said| said.at.known.clone());
    // Without its symbol, the place is found by nobody else.
    let known = known.filter(|known| known.symbol.is_some());
    let doubt = programs.doubt(&program);
    let program = ProgramTarget { place: ProgramPlace { known, ..program }, said, doubt };
    Ok((vec![target(program, function)], false))
}

/// Why nothing has a name at a place that stands for several.
fn no_names(place: &ProgramPlace) -> String {
    format!("names are known at one place, and `{place}` stands for several: take `$arg1`")
}

/// Whether a definition can have this name, which is not cut.
fn is_word(name: &str) -> bool {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "_.$".contains(c);
    name.len() < LONGEST_NAME
        && name.starts_with(|c: char| !c.is_ascii_digit())
        && name.chars().all(is_of_word)
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
        program: Some(ProgramTarget { place: program.place.clone(), said: Err(String::new()), doubt: None }),
        event: None,
    }
}

/// Which variables have names at a place.
pub(super) fn variables(program: &ProgramTarget) -> Result<Option<VariablesInScope>, String> {
    let said = program.said.as_ref().map_err(Clone::clone)?;
    said.debug.variables(&said.at).map(Some).map_err(|error| chain(&error))
}

/// What `capture` reads of the program and `histogram` counts by, for a definition whose place is at `span`.
pub(super) fn capture(
    capture: Capture,
    histogram: Option<&Histogram>,
    program: &ProgramPlace,
    span: &Range<usize>,
) -> Result<Capture, lang::Error> {
    let counts = histogram.map_or(Ok(()), Histogram::is_of_program);
    counts.and_then(|()| capture.of_program(program)).map_err(|(field, why)| lang::Error {
        span: span.clone(),
        mistake: Mistake::OfProgram { field, why },
    })
}
