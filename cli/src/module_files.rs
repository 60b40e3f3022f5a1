//! Whether the modules that are probed can come into the guest at all, as far as that is known before it boots.
//!
//! A guest without a command has its initramfs alone. One with a command has this machine's files: modules come from where a
//! kernel's modules lie, or from a file that the command names.

use crate::guest_files::Files;
use anyhow::{Result, bail};
use guest_kernels::{Modules, file_names, name_of};
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::nearest::{nearest, suggestion};
use probe_engine::probe::place::Place;
use probe_engine::request::ProbeRequest;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Refuses the first probe whose module can come from nowhere.
pub(crate) fn check(files: &Files, kernel: &Kernel, probes: &[ProbeRequest]) -> Result<()> {
    let words;
    let origin = match &files.work {
        None => ModuleOrigin::Initramfs(&files.initramfs),
        Some(work) => {
            words = [std::slice::from_ref(&work.words.program), &work.words.args].concat();
            let (root, folder) = (work.root(), work.words.folder.as_path());
            ModuleOrigin::Command { modules: &files.modules, root, folder, words: &words }
        }
    };
    match missing(&origin, kernel, probes) {
        None => Ok(()),
        Some(Missing { probe, said, is_in_kernel: true }) => bail!("--probe {probe}: {said}"),
        Some(Missing { probe, said, .. }) => {
            bail!("--probe {probe}: {said}; --allow-pending has a probe wait for a module from elsewhere")
        }
    }
}

/// Where the modules of a guest come from.
pub(crate) enum ModuleOrigin<'a> {
    /// Its initramfs, alone.
    Initramfs(&'a [u8]),
    /// This machine's files.
    Command {
        /// Those of its kernel.
        modules: &'a Modules,
        /// The folder that is its root.
        root: &'a Path,
        /// Its working directory.
        folder: &'a Path,
        /// Its program and that one's arguments.
        words: &'a [OsString],
    },
}

/// A probe whose module can come from nowhere.
pub(crate) struct Missing {
    /// The probe.
    probe: String,
    /// What there is to say of it.
    pub(crate) said: String,
    /// Whether the kernel itself has the function, so that the module is a mistake.
    pub(crate) is_in_kernel: bool,
}

/// The first probe whose module can come from nowhere.
pub(crate) fn missing(
    origin: &ModuleOrigin<'_>,
    kernel: &Kernel,
    probes: &[ProbeRequest],
) -> Option<Missing> {
    let mut known = None;
    for asked in probes {
        let Place::Module { module, symbol, .. } = &asked.place else { continue };
        let known = known.get_or_insert_with(|| KnownModules::of(origin, kernel));
        if known.may_have(module) {
            continue;
        }
        let (probe, place) = (asked.name(), known.place);
        let name = asked.plan.tracepoint.as_ref().map_or(symbol, |tracepoint| &tracepoint.name);
        let is_in_kernel = kernel.symbols().lookup(symbol).next().is_some();
        let said = match is_in_kernel {
            true => format!(
                "there is no module `{module}` {place}, and the kernel itself has `{name}`: leave out `{module}:`"
            ),
            false => {
                let near = nearest(known.names.iter().map(String::as_str), module, 2);
                let near = suggestion(&near.into_iter().map(str::to_owned).collect::<Vec<_>>());
                format!("there is no module `{module}` {place}{near}")
            }
        };
        return Some(Missing { probe, said, is_in_kernel });
    }
    None
}

/// The modules that are known of.
struct KnownModules<'a> {
    names: BTreeSet<String>,
    /// Where they are, behind `there is no module`.
    place: &'static str,
    /// Whether there may be others there.
    is_open: bool,
    /// What may name another one.
    words: &'a [OsString],
}

impl<'a> KnownModules<'a> {
    fn of(origin: &ModuleOrigin<'a>, kernel: &Kernel) -> Self {
        match *origin {
            ModuleOrigin::Initramfs(initramfs) => {
                let names = file_names(initramfs);
                let is_open = names.is_err();
                let names = names.unwrap_or_default();
                let names = names.iter().filter_map(|path| name_of(Path::new(path))).collect();
                Self { names, place: "in the guest's initramfs", is_open, words: &[] }
            }
            ModuleOrigin::Command { modules, root, folder, words } => {
                let installed = kernel.release().map(|release| root.join("lib/modules").join(release));
                let mut names: BTreeSet<String> = modules.names().into_iter().flatten().collect();
                names.extend(
                    installed.into_iter().flat_map(|dir| Modules::Below(dir).names().unwrap_or_default()),
                );
                let here = fs::read_dir(folder).into_iter().flatten().flatten();
                names.extend(here.filter_map(|entry| name_of(&entry.path())));
                let place = "among those of the kernel, in the working directory, or in the command";
                Self { names, place, is_open: false, words }
            }
        }
    }

    fn may_have(&self, module: &str) -> bool {
        let mut words = self.words.iter();
        self.is_open
            || self.names.contains(module)
            || words.any(|word| word.to_string_lossy().replace('-', "_").contains(module))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_from_what_is_known_or_from_what_the_command_names() {
        let may_have = |is_open, words: &[&str], module: &str| {
            let words: Vec<OsString> = words.iter().map(Into::into).collect();
            let names = BTreeSet::from(["kvm_amd".to_owned()]);
            KnownModules { names, place: "", is_open, words: &words }.may_have(module)
        };
        assert!(may_have(false, &[], "kvm_amd") && !may_have(false, &[], "kvm"));
        assert!(may_have(true, &[], "kvm"));
        assert!(may_have(false, &["insmod", "/tmp/my-mod.ko"], "my_mod"));
        assert!(may_have(false, &["sh", "-c", "make && modprobe my_mod"], "my_mod"));
        assert!(!may_have(false, &["insmod", "/tmp/other.ko"], "my_mod"));
    }
}
