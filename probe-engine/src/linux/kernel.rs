//! All that a kernel's file says, in one place: image, symbols, text that must be left alone, and how its boot can
//! be followed.

use super::boot::Boot;
use super::btf::{Btf, BtfError};
use super::bzimage::{self, BzImage, BzImageError};
use super::dwarf::{self, DebugFile, DwarfError};
use super::ftrace::FtraceSites;
use super::kallsyms::{self, KallsymsError};
use super::patched::PatchedText;
use super::relocations::{self, RelocatedPointer, RelocationsError};
use super::symbol_file::{SymbolFile, SymbolFileError};
use super::symbols::SymbolTable;
use super::symtab;
use super::unpack::{UnpackError, unpack};
use super::vmlinux::{Vmlinux, VmlinuxError};
use crate::addr::Gva;
use std::ops::Range;

/// The step of [`Kernel::read_with`] that every boot of the kernel has to make as well.
pub const UNPACK: &str = "unpack";

/// Longest release (__NEW_UTS_LEN, include/uapi/linux/utsname.h).
const LONGEST_RELEASE: usize = 64;

/// A kernel file that was understood. All addresses are link-time addresses.
#[derive(Debug)]
pub struct Kernel {
    image: Vmlinux,
    symbols: SymbolTable,
    patched: PatchedText,
    ftrace: FtraceSites,
    /// A `.BTF` section, where the image has none.
    types: Option<Vec<u8>>,
    /// The setup header of its bzImage.
    setup: Vec<u8>,
    /// The bzImage's decompressor, if it came with one.
    decompressor: Option<Boot>,
    relocated: Option<RelocatedPointer>,
    /// What its bzImage says of its version.
    version: Option<String>,
}

/// A kernel file that was not understood.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A damaged bzImage.
    #[error(transparent)]
    BzImage(#[from] BzImageError),
    /// A payload that cannot be unpacked.
    #[error("the bzImage cannot be unpacked")]
    Unpack(#[from] UnpackError),
    /// A damaged kernel image.
    #[error(transparent)]
    Vmlinux(#[from] VmlinuxError),
    /// No symbols inside, and none given.
    #[error("the kernel's symbols cannot be read from it")]
    Symbols(#[from] KallsymsError),
    /// An unusable file of symbols.
    #[error("the symbols cannot be taken from their file")]
    SymbolFile(#[from] SymbolFileError),
    /// A kernel that may be moved by a slide that nothing tells.
    #[error(transparent)]
    Relocations(#[from] RelocationsError),
}

impl Kernel {
    /// Reads a kernel's `file`: a bzImage or an ELF vmlinux. Its symbols come from the file `symbols` when given, from the
    /// image's own kallsyms otherwise, or from its symbol table when it has one, and no kallsyms or one of functions alone.
    ///
    /// # Errors
    /// [`KernelError`], a sentence for the user, causes behind it.
    pub fn read(file: &[u8], symbols: Option<&SymbolFile>) -> Result<Self, KernelError> {
        Self::read_with(file, symbols, &mut |_| ())
    }

    /// As [`read`](Self::read), and calls `done` with the name of each step when it is done: whoever has a clock can
    /// tell what each takes. A file that needs no unpacking has no such step.
    ///
    /// # Errors
    /// As those of [`read`](Self::read).
    pub fn read_with(
        file: &[u8],
        symbols: Option<&SymbolFile>,
        done: &mut dyn FnMut(&'static str),
    ) -> Result<Self, KernelError> {
        let (unpacked, setup, decompressor, version) = if file.starts_with(b"\x7fELF") {
            (file.to_vec(), Vec::new(), None, None)
        } else {
            let image = BzImage::parse(file)?;
            let jumps = image.kernel_jumps().map_or(Boot::Unknown, Boot::Decompressor);
            let unpacked = unpack(image.payload())?;
            done(UNPACK);
            (unpacked, image.setup_bytes().to_vec(), Some(jumps), bzimage::version(file).map(str::to_owned))
        };
        let image = Vmlinux::parse(unpacked)?;
        done("ELF");
        let symbols = read_symbols(&image, symbols)?;
        done("symbols");
        let patched = PatchedText::from_image(&image, &symbols);
        done("patched text");
        let ftrace = FtraceSites::of(&image, &symbols);
        let relocated = relocations::first_pointer(&image)?;
        Ok(Self { image, symbols, patched, ftrace, types: None, setup, decompressor, relocated, version })
    }

    /// Its symbols.
    #[must_use]
    pub fn symbols(&self) -> &SymbolTable {
        &self.symbols
    }

    /// The only symbol of this name.
    #[must_use]
    pub fn symbol(&self, name: &str) -> Option<Gva> {
        self.symbols.address_of(name)
    }

    /// The function around `at`.
    #[must_use]
    pub fn function(&self, at: Gva) -> Option<Range<Gva>> {
        self.symbols.function_at(at).map(|function| function.range())
    }

    /// Its image.
    #[must_use]
    pub fn image(&self) -> &Vmlinux {
        &self.image
    }

    /// Its image's file, which is all that is left of it.
    #[must_use]
    pub fn into_file(self) -> Vec<u8> {
        self.image.into_file()
    }

    /// The text that must be left alone.
    #[must_use]
    pub fn patched(&self) -> &PatchedText {
        &self.patched
    }

    /// What its ftrace may make calls of.
    #[must_use]
    pub fn ftrace(&self) -> &FtraceSites {
        &self.ftrace
    }

    /// Its release, as `uname -r` says it there: from its banner, or else from the header of its bzImage.
    #[must_use]
    pub fn release(&self) -> Option<&str> {
        let banner = self.symbol("linux_banner").and_then(|at| self.image.bytes_from(at));
        let words = banner.and_then(|banner| banner.strip_prefix(b"Linux version "));
        let release = words.and_then(|words| words.split(|byte| *byte == b' ').next());
        let release = release.and_then(|release| str::from_utf8(release).ok());
        release.or(self.version.as_deref()).filter(|release| {
            (1..=LONGEST_RELEASE).contains(&release.len())
                && release.bytes().all(|byte| byte.is_ascii_graphic())
        })
    }

    /// Its type information.
    ///
    /// # Errors
    /// [`BtfError`] when it has none, or a damaged one.
    pub fn btf(&self) -> Result<Btf<'_>, BtfError> {
        let own = self.image.section(".BTF").map(|section| section.bytes);
        Btf::parse(own.or(self.types.as_deref()).ok_or(BtfError::Missing)?)
    }

    /// Takes the types of a kernel that has none from the ELF file of its build, or from its own image: from `.BTF`, or from
    /// debugging information, which takes seconds.
    ///
    /// # Errors
    /// [`DwarfError`] where it has neither, or they cannot be read.
    pub fn take_types(&mut self, file: Option<&Vmlinux>) -> Result<(), DwarfError> {
        let file = file.unwrap_or(&self.image);
        let section = file.section(".BTF").map(|section| section.bytes.to_vec());
        self.types = Some(match section {
            Some(section) => section,
            None => dwarf::btf(&DebugFile::read(file.file())?)?,
        });
        Ok(())
    }

    /// How it is booted directly.
    #[must_use]
    pub fn direct(&self) -> Boot {
        Boot::Direct { setup: self.setup.clone() }
    }

    /// How its bzImage boots it; `None` for a kernel that came as an ELF file.
    #[must_use]
    pub fn decompressor(&self) -> Option<Boot> {
        self.decompressor.clone()
    }

    /// A pointer by which the slide of KASLR is found; `None` where the kernel runs where it was linked.
    #[must_use]
    pub fn relocated(&self) -> Option<RelocatedPointer> {
        self.relocated
    }
}

/// The kernel's symbols: from `file` beside it where there is one, otherwise from its own kallsyms, or from its symbol
/// table where that has more.
fn read_symbols(image: &Vmlinux, file: Option<&SymbolFile>) -> Result<SymbolTable, KernelError> {
    match file {
        Some(file) => Ok(file.symbols(image)?),
        None => match kallsyms::decode(image) {
            // Those are of functions alone (no CONFIG_KALLSYMS_ALL), and a file that is not stripped has the others.
            Ok(symbols) if !symbols.have_data() => Ok(symtab::read(image).unwrap_or(symbols)),
            Ok(symbols) => Ok(symbols),
            Err(error) => symtab::read(image).map_err(|_| KernelError::Symbols(error)),
        },
    }
}
