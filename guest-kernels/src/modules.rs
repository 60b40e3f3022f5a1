//! Kernel modules as packages and builds have them: found by name, decompressed, and put into loading order.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::manifest::COMMAND_MODULES;
use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

/// What a module's `.modinfo` section says before the comma-separated names of the modules it needs.
const DEPENDS: &[u8] = b"\0depends=";

/// A decompressed module.
#[derive(Debug)]
pub(crate) struct Module {
    /// `kvm-amd.ko`
    pub(crate) file_name: String,
    pub(crate) bytes: Vec<u8>,
}

/// Where the modules of a kernel are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Modules {
    /// Nobody has said where.
    Unknown,
    /// These are the modules with which a guest reaches folders of this machine, in the order in which they load.
    ForCommand(Vec<PathBuf>),
    /// Below this directory.
    Below(PathBuf),
    /// In this directory, in which the kernel was built, as its `modules.order` says.
    Built(PathBuf),
}

impl Modules {
    /// Modules with which a guest reaches folders of this machine: name and contents, in the order in which they load. What is
    /// not there may be built in.
    ///
    /// # Errors
    /// [`ModuleError`].
    pub fn for_command(&self) -> Result<Vec<(String, Vec<u8>)>, ModuleError> {
        let found = match self {
            Self::Unknown => return Ok(Vec::new()),
            Self::ForCommand(paths) => paths.iter().map(|path| Module::read(path)).collect(),
            Self::Below(dir) => for_command(all(dir)?),
            Self::Built(dir) => for_command(built(dir)?),
        };
        Ok(found?.into_iter().map(|module| (module.file_name, module.bytes)).collect())
    }

    /// The names of all of them, as `lsmod` prints names.
    ///
    /// # Errors
    /// [`ModuleError::Unreadable`].
    pub fn names(&self) -> Result<Vec<String>, ModuleError> {
        let files = match self {
            Self::Unknown => return Ok(Vec::new()),
            Self::ForCommand(paths) => return Ok(paths.iter().filter_map(|path| name_of(path)).collect()),
            Self::Below(dir) => all(dir)?,
            Self::Built(dir) => built(dir)?,
        };
        Ok(files.values().filter_map(|path| name_of(path)).collect())
    }
}

/// Why modules cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// A module is wanted, or needed by a wanted one, and is not there.
    #[error("there is no module {name}")]
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

/// The wanted modules of those below `tree`, and all that they need, each after what it needs.
pub(crate) fn in_load_order(tree: &Path, wanted: &[&str]) -> Result<Vec<Module>, ModuleError> {
    order(all(tree)?, wanted)
}

/// Those of [`Modules::for_command`] below `tree`.
pub(crate) fn command_modules(tree: &Path) -> Result<Vec<Module>, ModuleError> {
    for_command(all(tree)?)
}

/// Files of modules by their names, in [`canonical`] form.
type Files = BTreeMap<String, PathBuf>;

fn for_command(files: Files) -> Result<Vec<Module>, ModuleError> {
    let is_there = |name: &&str| files.contains_key(&format!("{}.ko", canonical(name)));
    let wanted: Vec<&str> = COMMAND_MODULES.iter().copied().filter(is_there).collect();
    order(files, &wanted)
}

fn order(mut files: Files, wanted: &[&str]) -> Result<Vec<Module>, ModuleError> {
    let mut order = Vec::new();
    wanted.iter().try_for_each(|name| add(name, &mut files, &mut order))?;
    Ok(order)
}

/// All below `tree`.
fn all(tree: &Path) -> Result<Files, ModuleError> {
    let mut files = BTreeMap::new();
    find(tree, &mut files).map_err(|source| ModuleError::Unreadable { path: tree.to_owned(), source })?;
    Ok(files)
}

/// Those that `modules.order` names in the directory of a build.
fn built(dir: &Path) -> Result<Files, ModuleError> {
    let path = dir.join("modules.order");
    let order = match fs::read_to_string(&path) {
        Ok(order) => order,
        Err(source) => return Err(ModuleError::Unreadable { path, source }),
    };
    let files = order.lines().filter_map(built_path).map(|path| dir.join(path));
    Ok(files
        .filter(|path| path.is_file())
        .filter_map(|path| Some((canonical(&module_name(&path)?), path)))
        .collect())
}

/// Where a build has the module of a line of `modules.order`: `drivers/a.o`, which was `kernel/drivers/a.ko` before 6.3.
fn built_path(line: &str) -> Option<String> {
    match line.strip_suffix(".o") {
        Some(name) => Some(format!("{name}.ko")),
        None => line.strip_prefix("kernel/").map(str::to_owned),
    }
}

/// Adds one module after what it needs. It is taken out of `files`, so that one that needs itself is not met again.
fn add(name: &str, files: &mut Files, order: &mut Vec<Module>) -> Result<(), ModuleError> {
    let file_name = format!("{}.ko", canonical(name));
    if order.iter().any(|module| canonical(&module.file_name) == file_name) {
        return Ok(());
    }
    let Some(path) = files.remove(&file_name) else {
        return Err(ModuleError::Missing { name: name.to_owned() });
    };
    let module = Module::read(&path)?;
    let Some(needed) = depends(&module.bytes) else { return Err(ModuleError::NoModule { path }) };
    needed.iter().try_for_each(|name| add(name, files, order))?;
    order.push(module);
    Ok(())
}

/// Names use `-` and `_` alike.
fn canonical(name: &str) -> String {
    name.replace('_', "-")
}

/// `kvm-amd.ko` for `.../kvm-amd.ko.xz`; nothing for what is no module.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = [".xz", ".zst", ".gz"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    name.ends_with(".ko").then(|| name.to_owned())
}

/// What `lsmod` calls the module in this file: `kvm_amd` for `.../kvm-amd.ko.xz`; nothing for what is no module.
#[must_use]
pub fn name_of(path: &Path) -> Option<String> {
    Some(module_name(path)?.strip_suffix(".ko")?.replace('-', "_"))
}

fn find(dir: &Path, files: &mut Files) -> io::Result<()> {
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

impl Module {
    fn read(path: &Path) -> Result<Self, ModuleError> {
        let file_name = module_name(path).ok_or_else(|| ModuleError::NoModule { path: path.to_owned() })?;
        match read(path) {
            Ok(bytes) => Ok(Self { file_name, bytes }),
            Err(source) => Err(ModuleError::Unreadable { path: path.to_owned(), source }),
        }
    }
}

/// What a file holds, decompressed.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::read(path)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => bounded(XzReader::new_mem_limit(file.as_slice(), true, XZ_MEMORY_KIB), MOST_BYTES),
        Some("gz") => bounded(MultiGzDecoder::new(file.as_slice()), MOST_BYTES),
        Some("zst") => bounded(StreamingDecoder::new(file.as_slice()).map_err(io::Error::other)?, MOST_BYTES),
        _ => Ok(file),
    }
}

/// Largest module that is decompressed, in bytes: with debugging information, the largest has half of it.
const MOST_BYTES: u64 = 1 << 30;
/// What a decoder of xz may take, for a dictionary of 128 MiB.
pub(crate) const XZ_MEMORY_KIB: u32 = (128 + 1) << 10;

/// All that `decoder` gives, if that is no more than `most` bytes.
fn bounded(decoder: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    decoder.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!(
            "it is larger than {} MiB when it is decompressed",
            most >> 20
        )));
    }
    Ok(bytes)
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
    fn a_build_names_its_modules_itself() {
        let dir = std::env::temp_dir().join(format!("vmm-built-{}", std::process::id()));
        fs::create_dir_all(dir.join("kernel")).unwrap();
        let ko = |path: &str, depends: &str| {
            fs::write(dir.join(path), format!("\0depends={depends}\0")).unwrap();
        };
        ko("virtio_pci.ko", "kernel-part");
        ko("kernel/kernel_part.ko", "");
        ko("kernel/overlay.ko", "");
        let names = |order: &str| -> Vec<String> {
            fs::write(dir.join("modules.order"), order).unwrap();
            let modules = Modules::Built(dir.clone()).for_command().unwrap();
            modules.into_iter().map(|(name, _)| name).collect()
        };
        let expected = ["kernel_part.ko", "virtio_pci.ko"];
        assert_eq!(names("virtio_pci.o\nkernel/kernel_part.o\ndrivers/not_built.o\n"), expected);
        assert_eq!(names("kernel/virtio_pci.ko\nkernel/kernel/kernel_part.ko\n"), expected);
        assert!(names("").is_empty());
        let below: Vec<_> = Modules::Below(dir.clone()).for_command().unwrap();
        assert_eq!(below.last().map(|(name, _)| name.as_str()), Some("overlay.ko"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn compressed_modules_are_decompressed() {
        use std::io::Write as _;
        let dir = std::env::temp_dir().join(format!("vmm-compressed-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let text = b"\0depends=\0";
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gz.write_all(text).unwrap();
        let zst = ruzstd::encoding::compress_to_vec(
            text.as_slice(),
            ruzstd::encoding::CompressionLevel::Uncompressed,
        );
        for (name, bytes) in [("overlay.ko.gz", gz.finish().unwrap()), ("virtiofs.ko.zst", zst)] {
            fs::write(dir.join(name), bytes).unwrap();
        }
        let modules = Modules::Below(dir.clone()).for_command().unwrap();
        let whole = |name: &str| (name.to_owned(), text.to_vec());
        assert_eq!(modules, [whole("virtiofs.ko"), whole("overlay.ko")]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_would_fill_memory_is_not_decompressed() {
        let endless = bounded(io::repeat(0), 3 << 20).unwrap_err();
        assert_eq!(endless.to_string(), "it is larger than 3 MiB when it is decompressed");
        assert_eq!(bounded(&[7; 9][..], 9).unwrap(), [7; 9]);
        assert!(bounded(&[7; 10][..], 9).is_err());
    }

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
