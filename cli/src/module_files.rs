//! Whether the modules that are probed can come into the guest at all, as far as that is known before it boots.
//!
//! A guest without a command has its initramfs alone. One with a command has this machine's files: modules come from where a
//! kernel's modules lie, or from a file that the command names.

use crate::guest_files::Files;
use crate::work::Work;
use anyhow::{Result, bail};
use guest_kernels::{Modules, file_names, name_of};
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::nearest::{nearest, suggestion};
use probe_engine::probe::place::Place;
use probe_engine::request::ProbeRequest;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Refuses the first probe whose module can come from nowhere.
pub(crate) fn check(files: &Files, kernel: &Kernel, probes: &[ProbeRequest]) -> Result<()> {
    let mut known = None;
    for asked in probes {
        let Place::Module { module, symbol, .. } = &asked.place else { continue };
        let known = known.get_or_insert_with(|| KnownModules::of(files, kernel));
        if known.may_have(module, files.work.as_ref()) {
            continue;
        }
        let (name, place) = (asked.name(), known.place);
        if kernel.symbols().lookup(symbol).next().is_some() {
            bail!(
                "--probe {name}: there is no module `{module}` {place}, and the kernel itself has `{symbol}`: leave \
                 out `{module}:`"
            );
        }
        let near = nearest(known.names.iter().map(String::as_str), module, 2);
        let near = suggestion(&near.into_iter().map(str::to_owned).collect::<Vec<_>>());
        bail!(
            "--probe {name}: there is no module `{module}` {place}{near}; --allow-pending has a probe wait for a module \
             from elsewhere"
        );
    }
    Ok(())
}

/// The modules that are known of.
struct KnownModules {
    names: BTreeSet<String>,
    /// Where they are, behind `there is no module`.
    place: &'static str,
    /// Whether there may be others there.
    is_open: bool,
}

impl KnownModules {
    fn of(files: &Files, kernel: &Kernel) -> Self {
        let Some(work) = &files.work else {
            let names = file_names(&files.initramfs);
            let is_open = names.is_err();
            let names = names.unwrap_or_default();
            let names = names.iter().filter_map(|path| name_of(Path::new(path))).collect();
            return Self { names, place: "in the guest's initramfs", is_open };
        };
        let installed = kernel.release().map(|release| work.root().join("lib/modules").join(release));
        let mut names: BTreeSet<String> = files.modules.names().into_iter().flatten().collect();
        names.extend(installed.into_iter().flat_map(|dir| Modules::Below(dir).names().unwrap_or_default()));
        let here = fs::read_dir(&work.words.folder).into_iter().flatten().flatten();
        names.extend(here.filter_map(|entry| name_of(&entry.path())));
        Self {
            names,
            place: "among those of the kernel, in the working directory, or in CMD",
            is_open: false,
        }
    }

    fn may_have(&self, module: &str, work: Option<&Work>) -> bool {
        let says_so = |work: &Work| {
            let mut words = std::iter::once(&work.words.program).chain(&work.words.args);
            words.any(|word| word.to_string_lossy().replace('-', "_").contains(module))
        };
        self.is_open || self.names.contains(module) || work.is_some_and(says_so)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm::command::Words;

    #[test]
    fn a_module_comes_from_what_is_known_or_from_what_the_command_names() {
        let known =
            |is_open| KnownModules { names: BTreeSet::from(["kvm_amd".to_owned()]), place: "", is_open };
        let work = |args: &[&str]| {
            let args = args.iter().map(Into::into).collect();
            let words = Words { program: "insmod".into(), args, env: Vec::new(), folder: "/".into() };
            Work { words, folders: Vec::new(), repeat: None }
        };
        assert!(known(false).may_have("kvm_amd", None) && !known(false).may_have("kvm", None));
        assert!(known(true).may_have("kvm", None));
        assert!(known(false).may_have("my_mod", Some(&work(&["/tmp/my-mod.ko"]))));
        assert!(known(false).may_have("my_mod", Some(&work(&["-c", "make && modprobe my_mod"]))));
        assert!(!known(false).may_have("my_mod", Some(&work(&["/tmp/other.ko"]))));
    }
}
