//! What definitions mean that come while the guest runs.
//!
//! They are looked up outside, where the kernel's file and those of programs are, in a kernel that is read when the first one comes.

use super::server::Definer;
use crate::advice::Advised;
use crate::args::Run;
use crate::guest_files::Files;
use crate::program_files::ProgramFiles;
use crate::requests::{ForAll, Known, added};
use crate::symbol_file::KernelSource;
use crate::target::{Target, check_modules};
use probe_engine::linux::scope::Scope;
use probe_engine::request::KernelConstraints;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use vmm::guest::Optimize;

/// What definitions are looked up in.
pub(crate) struct Additions {
    image: Vec<u8>,
    source: KernelSource,
    /// Where the files of the guest's programs are, if it has a command.
    root: Option<PathBuf>,
    for_all: ForAll,
    scope: Scope,
    optimize: Optimize,
}

impl Additions {
    /// For the guest of `run`, which has these files, with probes that do what its options say.
    pub(crate) fn new(run: &Run, files: &Files, target: &Target) -> Self {
        let root = || run.guest.root.as_deref().unwrap_or(Path::new("/")).to_owned();
        Self {
            image: files.image.clone(),
            source: files.source(&run.guest.symbols),
            root: run.guest.has_command().then(root),
            for_all: ForAll::of(run),
            scope: target.scope,
            optimize: target.serving.optimize,
        }
    }

    /// Looks up what comes.
    pub(crate) fn definer(self) -> Definer {
        Box::new(move |definitions, tell| {
            // There may never be any.
            let Ok(first) = definitions.recv() else { return };
            self.look_up(first, &definitions, tell);
        })
    }

    fn look_up(
        &self,
        first: (u64, Vec<String>),
        rest: &Receiver<(u64, Vec<String>)>,
        tell: &dyn Fn(u64, Result<Vec<probe_engine::request::ProbeRequest>, String>),
    ) {
        let all = std::iter::once(first).chain(rest.iter());
        let kernel = match self.source.kernel(&self.image) {
            Ok(kernel) => kernel,
            Err(error) => {
                let why = Advised(&error).to_string();
                return all.for_each(|(number, _)| tell(number, Err(why.clone())));
            }
        };
        let (btf, debug) = (kernel.btf().ok(), self.source.debug_info(&kernel));
        let files = self.root.as_deref().map(ProgramFiles::below);
        let known = Known { kernel: &kernel, btf: btf.as_ref(), debug: &debug, files: files.as_ref() };
        let constraints = KernelConstraints::new(&kernel);
        for (number, definitions) in all {
            let probes = added(&definitions, self.for_all, known).and_then(|mut probes| {
                check_modules(&kernel, &probes)?;
                probes.iter_mut().for_each(|probe| probe.plan.scope = self.scope);
                if self.optimize != Optimize::Off {
                    constraints.note_all(&mut probes);
                }
                Ok(probes)
            });
            tell(number, probes.map_err(|error| Advised(&error).to_string()));
        }
    }
}
