//! The file beside the kernel that says more of it: `--symbols`, or the vmlinux of the same build.

use crate::args::SymbolSource;
use crate::file::read;
use crate::say::say;
use anyhow::{Context, Result};
use guest_kernels::KernelFiles;
use probe_engine::linux::btf::BtfError;
use probe_engine::linux::debug_info::{DebugInfo, DebugInfoError};
use probe_engine::linux::dwarf::{DebugFile, DwarfError};
use probe_engine::linux::kernel::{Kernel, KernelError};
use probe_engine::linux::symbol_file::{SymbolFile, check_build};
use probe_engine::linux::vmlinux::Vmlinux;
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

/// A kernel's file, and where more is said of it.
pub(crate) struct KernelSource {
    image: PathBuf,
    /// What --symbols names.
    named: Option<PathBuf>,
    /// What lies in the folder of the build.
    built: Option<PathBuf>,
    /// What one of them holds, once it was read.
    file: OnceCell<SymbolFile>,
}

impl KernelSource {
    /// That of the kernel at `image`. `built` is the vmlinux of its build, where there is one.
    pub(crate) fn new(image: &Path, built: Option<&Path>, symbols: &SymbolSource) -> Self {
        Self {
            image: image.to_owned(),
            named: symbols.symbols.clone(),
            built: built.map(Path::to_owned),
            file: OnceCell::new(),
        }
    }

    /// That of a kernel's files.
    pub(crate) fn of(files: &KernelFiles, symbols: &SymbolSource) -> Self {
        Self::new(&files.image, files.vmlinux.as_deref(), symbols)
    }

    /// Reads and understands the kernel, whose file holds `image`.
    pub(crate) fn kernel(&self, image: &[u8]) -> Result<Kernel> {
        self.kernel_with(image, &mut |_| ())
    }

    /// As [`kernel`](Self::kernel), and calls `done` with the name of each step when it is done.
    pub(crate) fn kernel_with(&self, image: &[u8], done: &mut dyn FnMut(&'static str)) -> Result<Kernel> {
        let named = self.named.as_deref().map(|path| self.file(path)).transpose()?;
        let built = || self.built.as_deref().and_then(|path| self.file(path).ok());
        let mut kernel = match Kernel::read_with(image, named, done) {
            Err(error @ KernelError::Symbols(_)) if named.is_none() => {
                built().and_then(|built| Kernel::read_with(image, Some(built), done).ok()).ok_or(error)
            }
            kernel => kernel,
        }
        .with_context(|| format!("cannot use the kernel {}", self.image.display()))?;
        // Those are of functions alone (no CONFIG_KALLSYMS_ALL).
        if named.is_none() && !kernel.symbols().have_data() && self.beside(&kernel)?.is_some() {
            kernel = Kernel::read_with(image, built(), done).unwrap_or(kernel);
        }
        if matches!(kernel.btf(), Err(BtfError::Missing)) {
            self.add_types(&mut kernel)?;
            done("types");
        }
        Ok(kernel)
    }

    /// Gives a kernel without types those that the file beside it has.
    fn add_types(&self, kernel: &mut Kernel) -> Result<()> {
        let beside = self.beside(kernel)?;
        let path = beside.map_or(&*self.image, |(_, path)| path);
        match kernel.take_types(beside.map(|(image, _)| image)) {
            Ok(()) | Err(DwarfError::Missing) => Ok(()),
            // The kernel can be used without them.
            Err(error) if !self.is_named() => {
                say(format_args!("the kernel's types cannot be taken from {}: {error}", path.display()));
                Ok(())
            }
            Err(error) => Err(error)
                .with_context(|| format!("the kernel's types cannot be taken from {}", path.display())),
        }
    }

    /// The ELF file beside the kernel, if that is of the same build.
    fn beside(&self, kernel: &Kernel) -> Result<Option<(&Vmlinux, &Path)>> {
        if let Some(path) = self.named.as_deref() {
            return Ok(self.file(path)?.image().map(|image| (image, path)));
        }
        let Some(path) = self.built.as_deref() else { return Ok(None) };
        // One that nobody has named may be anything.
        let image = self.file(path).ok().and_then(SymbolFile::image);
        Ok(image.filter(|image| check_build(image, kernel.image()).is_ok()).map(|image| (image, path)))
    }

    /// The debugging information of `kernel`: of the file that --symbols names, of what the build has left, or the kernel's own.
    pub(crate) fn debug_info<'a>(&'a self, kernel: &'a Kernel) -> DebugInfo<'a> {
        DebugInfo::found_by(kernel, || self.debug(kernel).map_err(|error| DebugInfoError::File(error.into())))
    }

    fn debug<'a>(&'a self, kernel: &'a Kernel) -> Result<Option<DebugFile<'a>>> {
        let (image, path) = self.beside(kernel)?.unwrap_or((kernel.image(), &self.image));
        match DebugFile::read(image.file()) {
            Ok(file) => Ok(Some(file)),
            Err(DwarfError::Missing) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot use {}", path.display())),
        }
    }

    /// The folder of the kernel's build, where that is known.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.built.as_deref()?.parent()
    }

    /// Whether the user has named a file, so that what it says is worth the time.
    pub(crate) fn is_named(&self) -> bool {
        self.named.is_some()
    }

    fn file(&self, path: &Path) -> Result<&SymbolFile> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = SymbolFile::parse(read(path)?)
            .with_context(|| format!("the symbols cannot be taken from {}", path.display()))?;
        Ok(self.file.get_or_init(|| file))
    }
}
