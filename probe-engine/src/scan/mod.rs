//! The integrity of a kernel that runs, or ran when its memory was written to a file: what its memory says against its file, and what
//! its own lists say against each other. Nothing is written.

pub mod code;
mod executable;
pub mod finding;
mod helpers;
pub mod hooks;
mod image;
mod interrupts;
mod modules;
mod pointers;
pub mod processes;
pub mod processors;
pub mod seals;
mod subject;
mod tables;
mod thunks;
mod walk;

use self::code::Code;
use self::finding::{Check, Finding};
use self::hooks::{Hook, Overwritten};
use self::image::Expected;
use self::modules::Found;
use self::pointers::Census;
use self::processes::Process;
use self::processors::ProcessorState;
use self::seals::Seals;
use self::subject::Subject;
use self::walk::Unreadable;
use crate::guard::sealed::{NotSealable, SealedKernel};
use crate::linux::btf::{Btf, BtfError};
use crate::linux::kernel::Kernel;
use crate::linux::modules::Module;
use crate::linux::names::ModuleNames;
use crate::linux::relocations::RelocationsError;
use crate::linux::running::RunningKernel;
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;
use std::sync::Arc;

/// So many findings of one check are told.
const MOST_TOLD: usize = 1000;

/// What has come of a scan.
#[derive(Debug)]
pub struct Scan {
    /// The checks, in the order of [`Check::ALL`].
    pub checks: Vec<Checked>,
    /// The modules, by where they are.
    pub modules: Vec<Module>,
    /// What their functions are called, as far as that can be read.
    pub names: Vec<Arc<ModuleNames>>,
    /// The processes, by their numbers.
    pub processes: Vec<Process>,
    /// Who is called where.
    pub hooks: Vec<Hook>,
}

/// What has come of one check.
#[derive(Debug)]
pub struct Checked {
    /// Which.
    pub check: Check,
    /// How many [things](Check::things) it has looked at.
    pub looked_at: u64,
    /// What it has found.
    pub findings: Vec<Finding>,
    /// How much more.
    pub untold: u64,
    /// Why it was not made, or not to its end.
    pub failure: Option<String>,
}

/// A kernel that cannot be scanned.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// Without types nothing can be read.
    #[error(transparent)]
    Types(#[from] BtfError),
    /// Its code has no known bounds.
    #[error("the kernel cannot be scanned: {0}")]
    NotSealable(#[from] NotSealable),
    /// It is not known what KASLR has changed in its code.
    #[error(transparent)]
    Relocations(#[from] RelocationsError),
}

impl Checked {
    fn new(check: Check) -> Self {
        Self { check, looked_at: 0, findings: Vec::new(), untold: 0, failure: None }
    }

    fn tell(&mut self, finding: Finding) {
        if self.findings.len() < MOST_TOLD {
            self.findings.push(finding);
        } else {
            self.untold += 1;
        }
    }

    /// Makes the check, which says how much it has looked at.
    fn make<E: ToString>(check: Check, look: impl FnOnce(&mut dyn FnMut(Finding)) -> Result<u64, E>) -> Self {
        let mut made = Self::new(check);
        match look(&mut |finding| made.tell(finding)) {
            Ok(looked_at) => made.looked_at = looked_at,
            Err(error) => made.failure = Some(error.to_string()),
        }
        made
    }
}

/// Whether the list of processes begins and ends in this memory, so that it is likely to be all of the guest's.
#[must_use]
pub fn is_whole<M: PhysMemory + ?Sized>(kernel: &Kernel, running: &RunningKernel, phys: &M) -> bool {
    let memory = VirtMemory::new(phys, running.space);
    let tasks = || kernel.btf().ok()?.member("task_struct", "tasks")?.offset();
    let head = kernel.symbol("init_task").zip(tasks()).map(|(at, tasks)| running.map.gva(at).add(tasks));
    head.is_some_and(|head| walk::list(&memory, head).is_ok_and(|processes| !processes.is_empty()))
}

/// Looks at one kernel as often as it is wanted.
pub struct Scanner<'a> {
    kernel: &'a Kernel,
    btf: Btf<'a>,
    running: RunningKernel,
    expected: Expected<'a>,
}

impl<'a> Scanner<'a> {
    /// One for the `running` kernel, of which `kernel` is the file.
    ///
    /// # Errors
    /// [`ScanError`] where the kernel's file does not say enough.
    pub fn new(kernel: &'a Kernel, running: &RunningKernel) -> Result<Self, ScanError> {
        let (btf, running) = (kernel.btf()?, *running);
        let expected = Expected::of(kernel, SealedKernel::of(kernel)?, running.map)?;
        Ok(Self { kernel, btf, running, expected })
    }

    /// Looks at this memory, at the `processors`, as far as anything is known of them, and at what a guard has sealed of modules, where
    /// there is one. What the memory does not say is the failure of a check.
    pub fn scan<M: PhysMemory + ?Sized>(
        &mut self,
        phys: &M,
        processors: &[ProcessorState],
        seals: Option<&Seals>,
    ) -> Scan {
        let Self { kernel, btf, running, expected } = self;
        let memory = VirtMemory::new(phys, running.space);
        let subject = Subject { kernel, btf, running, memory };
        let mut failures = Vec::new();
        let found = modules::read(&subject).unwrap_or_else(|error| {
            failures.push((Check::Modules, error.to_string()));
            Found::default()
        });
        let code = Code::of(&subject, &found.modules, expected.generated()).unwrap_or_else(|error| {
            failures.push((Check::Executable, error.to_string()));
            Code::default()
        });
        let read = hooks::read(&subject, &code);
        let (hooks, overwritten) = read.unwrap_or_else(|error| {
            failures.push((Check::Hooks, error.to_string()));
            (Vec::new(), Overwritten::default())
        });
        let processes = processes::read(&subject).unwrap_or_else(|error| {
            failures.extend([Check::Credentials, Check::PageTables].map(|check| (check, error.to_string())));
            Vec::new()
        });
        let census = Census { subject: &subject, code: &code };
        let made = |check| match check {
            Check::Image => Checked::make(check, |tell| {
                expected.compare(&subject.memory, &code, &overwritten, tell).map(|()| expected.length())
            }),
            Check::PageTables => Checked::make(check, |tell| {
                let kernels = tables::check(&subject, expected.fixed(), &processes, tell)?;
                let modules = seals.map_or(0, |seals| seals.check_pages(&subject.memory, tell));
                Ok::<_, Unreadable>(kernels + modules)
            }),
            Check::Executable => {
                let freed = seals.map_or(&[][..], |seals| &seals.freed);
                Checked::make(check, |tell| executable::check(phys, running.space, &code, freed, tell))
            }
            Check::Modules => Checked::make(check, |tell| {
                found.findings.iter().cloned().for_each(&mut *tell);
                if let Some(seals) = seals {
                    seals.check_modules(&found.modules, tell);
                }
                Ok::<_, ScanError>(found.modules.len() as u64)
            }),
            Check::Interrupts => Checked::make(check, |tell| interrupts::check(&subject, tell)),
            Check::Hooks => Checked::make(check, |tell| {
                hooks.iter().filter_map(hooks::finding).for_each(tell);
                Ok::<_, ScanError>(hooks.len() as u64)
            }),
            Check::Pointers => Checked::make(check, |tell| census.check(tell)),
            Check::Credentials => Checked::make(check, |tell| {
                processes::check(&subject, &processes, tell).map(|()| processes.len() as u64)
            }),
            Check::Helpers => Checked::make(check, |tell| helpers::check(&subject, tell)),
            Check::Processors => Checked::make(check, |tell| processors::check(&subject, processors, tell)),
        };
        let mut checks: Vec<Checked> = Check::ALL.into_iter().map(made).collect();
        for (check, failure) in failures {
            if let Some(made) = checks.iter_mut().find(|made| made.check == check) {
                made.failure = Some(failure);
            }
        }
        // Findings and hooks alone are told by names.
        let is_named = !hooks.is_empty() || checks.iter().any(|made| !made.findings.is_empty());
        let names = if is_named { modules::names(&subject, &found.modules) } else { Vec::new() };
        Scan { checks, modules: found.modules, names, processes, hooks }
    }
}
