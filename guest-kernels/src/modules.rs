//! Kernel modules as packages ship them: found by name, decompressed, and put into loading order.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::manifest::COMMAND_MODULES;
use lzma_rust2::XzReader;

/// What a module's `.modinfo` section says before the comma-separated names of the modules it needs.
const DEPENDS: &[u8] = b"\0depends=";

/// A decompressed module.
#[derive(Debug)]
pub(crate) struct Module {
    /// `kvm-amd.ko`
    pub(crate) file_name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Why the modules of a package cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// A module is wanted, or needed by a wanted one, and the package does not have it.
    #[error("the package has no module {name}")]
    Missing {
        /// The module's name.
        name: String,
    },
    /// A file cannot be read or decompressed.
    #[error("cannot read {path}")]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file has no list of what it needs.
    #[error("{path} is no kernel module")]
    NoModule {
        /// The file.
        path: PathBuf,
    },
}

/// The wanted modules and all that they need, each after what it needs.
pub(crate) fn in_load_order(tree: &Path, wanted: &[&str]) -> Result<Vec<Module>, ModuleError> {
    let mut files = all(tree)?;
    let mut order = Vec::new();
    wanted.iter().try_for_each(|name| add(name, &mut files, &mut order))?;
    Ok(order)
}

/// Modules with which a guest reaches folders of this machine, of those below `tree`: name and contents, in the order in
/// which they load. What is not there may be built in.
///
/// # Errors
/// [`ModuleError`].
pub fn for_command(tree: &Path) -> Result<Vec<(String, Vec<u8>)>, ModuleError> {
    let found = command_modules(tree)?;
    Ok(found.into_iter().map(|module| (module.file_name, module.bytes)).collect())
}

pub(crate) fn command_modules(tree: &Path) -> Result<Vec<Module>, ModuleError> {
    let files = all(tree)?;
    let is_there = |name: &&str| files.contains_key(&format!("{}.ko", canonical(name)));
    let wanted: Vec<&str> = COMMAND_MODULES.iter().copied().filter(is_there).collect();
    in_load_order(tree, &wanted)
}

fn all(tree: &Path) -> Result<BTreeMap<String, PathBuf>, ModuleError> {
    let mut files = BTreeMap::new();
    find(tree, &mut files).map_err(|source| ModuleError::Unreadable { path: tree.to_owned(), source })?;
    Ok(files)
}

/// Adds one module after what it needs. It is taken out of `files`, so that one that needs itself is not met again.
fn add(
    name: &str,
    files: &mut BTreeMap<String, PathBuf>,
    order: &mut Vec<Module>,
) -> Result<(), ModuleError> {
    let file_name = format!("{}.ko", canonical(name));
    if order.iter().any(|module| canonical(&module.file_name) == file_name) {
        return Ok(());
    }
    let Some(path) = files.remove(&file_name) else {
        return Err(ModuleError::Missing { name: name.to_owned() });
    };
    let bytes = match read(&path) {
        Ok(bytes) => bytes,
        Err(source) => return Err(ModuleError::Unreadable { path, source }),
    };
    let Some(needed) = depends(&bytes) else { return Err(ModuleError::NoModule { path }) };
    needed.iter().try_for_each(|name| add(name, files, order))?;
    let file_name = module_name(&path).unwrap_or(file_name);
    order.push(Module { file_name, bytes });
    Ok(())
}

/// Names use `-` and `_` alike.
fn canonical(name: &str) -> String {
    name.replace('_', "-")
}

/// `kvm-amd.ko` for `.../kvm-amd.ko.xz`; nothing for what is no module.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_suffix(".xz").unwrap_or(name);
    name.ends_with(".ko").then(|| name.to_owned())
}

fn find(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            find(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(canonical(&name), path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::read(path)?;
    if path.extension().is_some_and(|extension| extension == "xz") {
        let mut bytes = Vec::new();
        XzReader::new(file.as_slice(), true).read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    Ok(file)
}

/// Names of the modules that a module needs, from its own `.modinfo`.
fn depends(module: &[u8]) -> Option<Vec<String>> {
    let at = module.windows(DEPENDS.len()).position(|window| window == DEPENDS)?;
    let list = module.get(at + DEPENDS.len()..)?.split(|&byte| byte == 0).next()?;
    let list = std::str::from_utf8(list).ok()?;
    Some(list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_comes_first_and_once() {
        let tree = std::env::temp_dir().join(format!("vmm-modules-{}", std::process::id()));
        fs::create_dir_all(tree.join("deep/er")).unwrap();
        for (path, info) in [
            ("kvm-amd.ko", &b"\x7fELF\0license=GPL\0depends=kvm,my_ccp\0name=kvm_amd\0"[..]),
            ("deep/kvm.ko", b"\0depends=irqbypass\0"),
            ("deep/er/irqbypass.ko", b"\0depends=\0"),
            ("my-ccp.ko", b"\0depends=kvm\0"),
            ("other.ko", b"\0depends=\0"),
        ] {
            fs::write(tree.join(path), info).unwrap();
        }
        let order = in_load_order(&tree, &["kvm_amd", "irqbypass"]).unwrap();
        let names: Vec<_> = order.iter().map(|module| module.file_name.as_str()).collect();
        assert_eq!(names, ["irqbypass.ko", "kvm.ko", "my-ccp.ko", "kvm-amd.ko"]);
        let missing = in_load_order(&tree, &["kvm-intel"]);
        assert!(matches!(missing, Err(ModuleError::Missing { name }) if name == "kvm-intel"));
        fs::remove_dir_all(&tree).unwrap();
    }
}
