//! The kernels that cases run on, and what in them cases ask for. All of that is checked before anything boots.

use super::source::SuiteSource;
use super::suite::{ProbeExpectation, TestCase, TestSuite};
use crate::advice;
use crate::args::SymbolSource;
use crate::file;
use crate::kernel_choice::Choice;
use crate::module_files::{self, ModuleOrigin};
use crate::program_files::ProgramFiles;
use crate::requests::FAIL_NTH;
use crate::symbol_file::KernelSource;
use anyhow::{Error, Result};
use guest_kernels::{Cache, Modules};
use probe_engine::capture::typed::Expand;
use probe_engine::linux::btf::Btf;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::nearest::nearest;
use probe_engine::linux::syscalls::SystemCalls;
use probe_engine::probe::place::Place;
use probe_engine::request::{DefinitionError, Definitions, ProbeRequest};
use std::path::{Path, PathBuf};
use toml::Spanned;

/// A kernel that cases run on.
#[derive(Clone)]
pub(crate) struct TestedKernel {
    /// The word that means it, as the file or the command line has it.
    pub(crate) word: String,
    pub(crate) choice: Choice,
}

/// A kernel that was read.
pub(crate) struct ReadKernel {
    source: KernelSource,
    kernel: Kernel,
    modules: Modules,
}

/// What is known of a kernel, with which cases are checked.
pub(crate) struct KnownKernel<'a> {
    name: &'a str,
    kernel: &'a Kernel,
    modules: &'a Modules,
    btf: Option<Btf<'a>>,
    debug: DebugInfo<'a>,
}

/// What a case requires of a kernel.
#[derive(Debug, PartialEq, Eq)]
enum Requirement<'a> {
    Function(&'a str),
    SystemCall(&'a str),
    Type(&'a str),
}

/// The kinds of requirements, as they are written.
const KINDS: [&str; 3] = ["function", "syscall", "type"];

impl<'a> Requirement<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (kind, name) = text.split_once(':').filter(|(_, name)| !name.is_empty())?;
        match kind {
            "function" => Some(Self::Function(name)),
            "syscall" => Some(Self::SystemCall(name)),
            "type" => Some(Self::Type(name)),
            _ => None,
        }
    }
}

impl TestedKernel {
    /// Those that a file names. A path is one from the file's folder on.
    pub(crate) fn of_file(file: &SuiteSource, folder: &Path, words: &[Spanned<String>]) -> Result<Vec<Self>> {
        let kernel = |word: &Spanned<String>| -> Result<Self> {
            let choice =
                Choice::parse(word.get_ref().into()).map_err(|error| file.mistake_in(word, error))?;
            let choice = match choice {
                Choice::At(path) if !folder.join(&path).exists() => {
                    let message = format!("there is no {} from this file's folder on", path.display());
                    let hint = "a kernel is a file, the folder of a build, debian:6.12 or host".to_owned();
                    return Err(file.mistake(word.span(), message, Some(hint)));
                }
                Choice::At(path) => Choice::At(folder.join(path)),
                choice => choice,
            };
            Ok(Self { word: word.get_ref().clone(), choice })
        };
        words.iter().map(kernel).collect()
    }

    /// One that the command line names. A path is one from the working directory on.
    pub(crate) fn said(choice: &Choice) -> Result<Self> {
        let word = choice.word().to_string_lossy().into_owned();
        let choice = match choice {
            Choice::At(path) => Choice::At(std::path::absolute(path)?),
            choice => choice.clone(),
        };
        Ok(Self { word, choice })
    }

    /// Reads it, and fetches it where it is one of Debian's and not there.
    pub(crate) fn read(&self) -> Result<ReadKernel> {
        let files = self.choice.files()?;
        let source = KernelSource::of(&files, &SymbolSource { symbols: None::<PathBuf> });
        let kernel = source.kernel(&file::read(&files.image)?)?;
        Ok(ReadKernel { source, kernel, modules: files.modules })
    }
}

impl<'a> KnownKernel<'a> {
    pub(crate) fn new(name: &'a str, read: &'a ReadKernel) -> Self {
        let ReadKernel { source, kernel, modules } = read;
        Self { name, kernel, modules, btf: kernel.btf().ok(), debug: source.debug_info(kernel) }
    }

    /// What `case` requires and this kernel lacks, if that is so.
    pub(crate) fn lacks(&self, file: &SuiteSource, case: &TestCase) -> Result<Option<String>> {
        for required in &case.requires {
            let text = required.get_ref();
            let Some(requirement) = Requirement::parse(text) else {
                let message = format!("`{text}` is nothing that can be required of a kernel");
                let hint = format!(
                    "write one of these, and a name behind the colon: {}",
                    KINDS.map(|kind| format!("`{kind}:`")).join(", ")
                );
                return Err(file.mistake(required.span(), message, Some(hint)));
            };
            if !self.has(&requirement) {
                return Ok(Some(format!("the kernel has no {}", text.replacen(':', " ", 1))));
            }
        }
        Ok(None)
    }

    fn has(&self, requirement: &Requirement<'_>) -> bool {
        match requirement {
            Requirement::Function(name) => self.kernel.symbols().lookup(name).next().is_some(),
            Requirement::SystemCall(name) => SystemCalls::of(self.kernel).find(name).is_ok(),
            Requirement::Type(name) => self.btf.as_ref().is_some_and(|btf| btf.named(name).next().is_some()),
        }
    }

    /// The probes to which each definition of `case` comes.
    ///
    /// # Errors
    /// What is wrong with a definition, or with what is expected of its hits, at its place in the file.
    pub(crate) fn probes(&self, file: &SuiteSource, case: &TestCase) -> Result<Vec<Vec<ProbeRequest>>> {
        let mut all = Vec::new();
        for probe in &case.probes {
            let definitions = Definitions::of(self.kernel, self.btf.as_ref(), &self.debug, Expand::Small);
            let files = ProgramFiles::below(Path::new("/"));
            let mut definitions = definitions.with_programs(Box::new(move |path| files.find(path)));
            definitions.read(probe.at.get_ref()).map_err(|error| self.wrong(file, &probe.at, error))?;
            let found = definitions.finish().probes;
            self.fields(file, probe, &found)?;
            all.push((probe, found));
        }
        if let Some(definition) = &case.fail_nth {
            let mut definitions = Definitions::of(self.kernel, self.btf.as_ref(), &self.debug, Expand::Small);
            let read = definitions.inject(definition.get_ref(), FAIL_NTH, false);
            read.map_err(|error| self.wrong(file, definition, error))?;
        }
        let returns = |id: &str| {
            let found = all.iter().find(|(probe, _)| probe.id.get_ref() == id);
            found.is_some_and(|(_, found)| found.iter().all(ProbeRequest::returns))
        };
        for (probe, ratio) in
            case.probes.iter().flat_map(|probe| probe.ratios().map(move |ratio| (probe, ratio)))
        {
            let ids = [probe.id.get_ref(), &ratio.get_ref().of];
            if let Some(id) = ids.into_iter().find(|id| !returns(id)) {
                let message = format!("`{id}` probes no returns: only calls that return have durations");
                return Err(file.mistake(ratio.span(), message, Some("write FUNCTION%return".to_owned())));
            }
        }
        Ok(all.into_iter().map(|(_, found)| found).collect())
    }

    /// Refuses the first probe whose module can come from nowhere, as `vmm run` does. `found` are those of each definition, and
    /// `folder` is where the guest's command begins.
    pub(crate) fn check_modules(
        &self,
        file: &SuiteSource,
        folder: &Path,
        (suite, case): (&TestSuite, &TestCase),
        found: &[Vec<ProbeRequest>],
    ) -> Result<()> {
        let is_in_module = |probe: &ProbeRequest| matches!(probe.place, Place::Module { .. });
        if !found.iter().flatten().any(is_in_module) {
            return Ok(());
        }
        let (words, initramfs);
        let origin = match (&case.run, case.initrd(suite)) {
            (Some(program), _) => {
                words = program.words();
                ModuleOrigin::Command { modules: self.modules, root: Path::new("/"), folder, words: &words }
            }
            (None, initrd) => {
                let path = match initrd {
                    Some(initrd) => folder.join(initrd.get_ref()),
                    None => Cache::open()?.initramfs()?,
                };
                initramfs = file::read(&path)?;
                ModuleOrigin::Initramfs(&initramfs)
            }
        };
        for (probe, found) in case.probes.iter().zip(found) {
            if let Some(missing) = module_files::missing(&origin, self.kernel, found) {
                let hint = (!missing.is_in_kernel && case.run.is_some()).then(|| {
                    "where `run` brings the module from elsewhere, name the module in `run`".to_owned()
                });
                return Err(file.mistake(probe.at.span(), self.here(missing.said), hint));
            }
        }
        Ok(())
    }

    /// Checks that hits have what is expected of them.
    fn fields(&self, file: &SuiteSource, expected: &ProbeExpectation, found: &[ProbeRequest]) -> Result<()> {
        let is_counted = found.iter().any(|probe| probe.counted.is_some());
        if is_counted && (expected.has_values() || expected.ratios().next().is_some()) {
            let message = "a histogram counts these hits: nothing else is known of them";
            return Err(file.mistake_in(&expected.at, message));
        }
        let names =
            || found.iter().flat_map(|probe| &probe.plan.capture.fields).map(|field| field.name.as_str());
        for wanted in expected.args.iter().chain(&expected.values).flat_map(|wanted| wanted.keys()) {
            let name = wanted.get_ref();
            if !names().any(|known| known == name) {
                let near = nearest(names(), name, 2);
                let near = if near.is_empty() { names().take(8).collect() } else { near };
                let list = near.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                let hint =
                    if list.is_empty() { "they read nothing".to_owned() } else { format!("there is {list}") };
                return Err(file.mistake(
                    wanted.span(),
                    self.here(format!("hits have no field `{name}`")),
                    Some(hint),
                ));
            }
        }
        Ok(())
    }

    /// What is wrong with a definition, at its place in the file.
    fn wrong(&self, file: &SuiteSource, at: &Spanned<String>, error: DefinitionError) -> Error {
        let (span, message, hint) = match error {
            DefinitionError::Text(error) => {
                (file.within(at, error.span.clone()), error.to_string(), advice::hint(&error))
            }
            DefinitionError::Misplaced { span, hint, error } => {
                let (message, advice) = told(Error::from(*error));
                (file.within(at, span), message, hint.or(advice))
            }
            DefinitionError::Plain(error) => {
                let (message, hint) = told(Error::from(*error));
                (at.span(), message, hint)
            }
            error => (at.span(), error.to_string(), None),
        };
        file.mistake(span, self.here(message), hint)
    }

    /// What is said of this kernel.
    fn here(&self, message: String) -> String {
        format!("on {}: {message}", self.name)
    }
}

/// An error with its causes, and what to do.
fn told(error: Error) -> (String, Option<String>) {
    (format!("{error:#}"), advice::of(&error))
}
