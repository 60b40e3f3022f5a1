//! What the file of a program says that lies outside the guest, and the file with its debugging information beside it.

use super::symbol::{address_of, like};
use super::{Elf, FoundPlace, NoPlace, Segments, identity, look, parse, several};
use crate::addr::Gva;
use crate::linux::dwarf::{DebugFile, DwarfError, FunctionTypes, NoFunction, VariablesInScope};
use crate::linux::partial_file::PartialFile;
use crate::linux::program_place::{InFile, KnownFile};
use crate::linux::symbols::is_changed;
use object::{Object, ObjectSymbol};

/// A program's file, and the one with its debugging information.
pub struct ProgramDebug {
    program: PartialFile,
    /// What the program's file does not have itself.
    beside: Option<Vec<u8>>,
    own: Vec<u8>,
}

/// Why nothing is known of a place.
#[derive(Debug, thiserror::Error)]
pub enum ProgramDebugError {
    /// It has no such place.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// What is said of it cannot be used.
    #[error(transparent)]
    Dwarf(#[from] DwarfError),
    /// No function is said to be there.
    #[error(transparent)]
    NoFunction(#[from] NoFunction),
}

/// The place in a program, as its files outside the guest have it.
pub struct ProgramFunction {
    /// Which file it is.
    pub known: KnownFile,
    /// So many bytes from the file's start.
    pub offset: u64,
    /// Its address, as the program was linked.
    address: u64,
    /// Whether it is so many bytes behind a symbol.
    is_inside: bool,
}

impl ProgramDebug {
    /// That of a program whose file holds `program`. `find` gives the file with the debugging information of the build that has this
    /// identity, where there is one. It is asked where the program has none itself.
    ///
    /// # Errors
    /// [`NoPlace`] for what is no program.
    pub fn read(program: Vec<u8>, find: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Result<Self, NoPlace> {
        let file = whole(&program)?;
        let parsed = parse(&file)?;
        let has_own = parsed.section_by_name(".debug_info").is_some();
        let build_id = parsed.build_id().ok().flatten().filter(|_| !has_own);
        let beside = build_id.and_then(find).filter(|beside| {
            let other = object::File::parse(&**beside).ok();
            other.is_some_and(|other| other.build_id().ok().flatten() == build_id)
        });
        Ok(Self { program: file, beside, own: program })
    }

    /// What tells its file from others.
    #[must_use]
    pub fn identity(&self) -> KnownFile {
        identity(&self.program)
    }

    pub(super) fn program(&self) -> &PartialFile {
        &self.program
    }

    /// The file beside the program, if there is one.
    pub(super) fn beside(&self) -> Option<PartialFile> {
        whole(self.beside.as_deref()?).ok()
    }

    /// Where a place is.
    ///
    /// # Errors
    /// [`NoPlace`], why it is nowhere.
    pub fn find(&self, at: &InFile) -> Result<ProgramFunction, NoPlace> {
        let parsed = parse(&self.program)?;
        let segments = Segments::of(&parsed)?;
        let (address, symbol, is_inside) = match at {
            InFile::Symbol { name, offset } => {
                let (address, symbol) = match address_of(&self.program, &parsed, name) {
                    Err(NoPlace::NoSymbol { .. }) => {
                        let address = self.address_beside(&parsed, name)?;
                        let at = segments.offset_of(address, true).ok_or(NoPlace::NotExecuted(address))?;
                        (address, Some(at))
                    }
                    address => (address?, None),
                };
                (address.saturating_add(*offset), symbol, *offset != 0)
            }
            InFile::Offset(offset) => {
                (segments.address_of(*offset).ok_or(NoPlace::NotExecuted(*offset))?, None, false)
            }
            InFile::Functions(name) => return Err(NoPlace::NoMatch(name.clone())),
            InFile::Tracepoint { provider, name } => {
                return Err(NoPlace::NoTracepoint { name: format!("{provider}:{name}"), others: Vec::new() });
            }
        };
        let known = KnownFile { symbol, ..self.identity() };
        let offset = segments.offset_of(address, true).ok_or(NoPlace::NotExecuted(address))?;
        Ok(ProgramFunction { known, offset, address, is_inside })
    }

    /// Whether there is a probe's place in it, or are those that the place stands for.
    ///
    /// # Errors
    /// [`NoPlace`], why not.
    pub fn check(&self, at: &InFile) -> Result<(), NoPlace> {
        let known = if at.is_several() { None } else { Some(self.find(at)?.known) };
        look(&self.program, at, known.as_ref()).map(|_| ())
    }

    /// All functions that a pattern stands for.
    ///
    /// # Errors
    /// [`NoPlace`], why it stands for none.
    pub fn functions(&self, pattern: &str) -> Result<Vec<FoundPlace>, NoPlace> {
        let parsed = parse(&self.program)?;
        several::functions(&self.program, &parsed, &Segments::of(&parsed)?, pattern)
    }

    /// The address of a symbol that only the file beside the program has.
    fn address_beside(&self, parsed: &Elf<'_>, name: &str) -> Result<u64, NoPlace> {
        let beside = self.beside();
        let beside = beside.as_ref().map(|file| Ok::<_, NoPlace>((file, parse(file)?))).transpose()?;
        let found = beside.as_ref().map(|(file, parsed)| address_of(file, parsed, name));
        found.unwrap_or_else(|| {
            let nearest = like(parsed, name);
            Err(NoPlace::NoSymbol { name: name.to_owned(), nearest })
        })
    }

    /// What the function takes and returns that begins at a place.
    ///
    /// # Errors
    /// [`ProgramDebugError`], why that is not known.
    pub fn types(&self, of: &ProgramFunction) -> Result<FunctionTypes, ProgramDebugError> {
        match of.is_inside {
            true => Err(NoFunction::Missing.into()),
            false if self.is_changed(of.address) => Err(NoFunction::Changed.into()),
            false => Ok(self.debug()?.function_at(Gva(of.address))??),
        }
    }

    /// Whether a name of the function at an address says that the compiler has changed its parameters.
    fn is_changed(&self, address: u64) -> bool {
        let files = [Some(&*self.own), self.beside.as_deref()].into_iter().flatten();
        let parsed = files.filter_map(|bytes| object::File::parse(bytes).ok());
        parsed.into_iter().any(|file| {
            let mut here = file.symbols().filter(|symbol| symbol.address() == address);
            here.any(|symbol| symbol.name().is_ok_and(is_changed))
        })
    }

    /// What has a name at a place.
    ///
    /// # Errors
    /// [`DwarfError`], why that is not known.
    pub fn variables(&self, of: &ProgramFunction) -> Result<VariablesInScope, DwarfError> {
        self.debug()?.variables_at(Gva(of.address))
    }

    fn debug(&self) -> Result<DebugFile<'_>, DwarfError> {
        match self.beside.as_deref() {
            // The frames of functions are in the program alone.
            Some(beside) => DebugFile::read(beside)?.with_frames_of(&self.own),
            None => DebugFile::read(&self.own),
        }
    }
}

/// A file of which all is known.
fn whole(bytes: &[u8]) -> Result<PartialFile, NoPlace> {
    let mut file = PartialFile::new(bytes.len() as u64).ok_or(NoPlace::TooLarge)?;
    file.put(0, bytes);
    Ok(file)
}
