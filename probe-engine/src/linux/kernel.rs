//! All that a kernel's file says, in one place: image, symbols, text that must be left alone, and how its boot can
//! be followed.

use super::btf::{Btf, BtfError};
use super::bzimage::{BzImage, BzImageError};
use super::kallsyms::{self, KallsymsError};
use super::landmarks::Boot;
use super::patched::PatchedText;
use super::symbols::SymbolTable;
use super::symtab::{self, SymtabError};
use super::system_map::{self, SystemMapError};
use super::unpack::{UnpackError, unpack};
use super::vmlinux::{Vmlinux, VmlinuxError};
use crate::addr::Gva;
use std::ops::Range;

/// The step of [`Kernel::read_with`] that every boot of the kernel has to make as well.
pub const UNPACK: &str = "unpack";

/// A kernel file that was understood. All addresses are link-time addresses.
#[derive(Debug)]
pub struct Kernel {
    image: Vmlinux,
    symbols: SymbolTable,
    patched: PatchedText,
    boot: Boot,
    relative_base: RelativeBase,
}

/// The one relocated pointer by which the slide of KASLR is found.
#[derive(Debug, Clone, Copy)]
struct RelativeBase {
    at: Gva,
    value: Gva,
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
    #[error("the kernel's symbols cannot be read from it: give them with --system-map")]
    Symbols(#[from] KallsymsError),
    /// A damaged symbol table of an ELF file.
    #[error("the kernel's symbols cannot be read from it: give them with --system-map")]
    Symtab(#[from] SymtabError),
    /// An unusable System.map.
    #[error("the System.map is of no use")]
    SystemMap(#[from] SystemMapError),
    /// A System.map of another kernel.
    #[error("the System.map is of another kernel: it has _text at {map}, the kernel at {image}")]
    OtherKernel {
        /// `_text` of the System.map.
        map: Gva,
        /// Start of the kernel's text.
        image: Gva,
    },
}

impl Kernel {
    /// Reads a kernel's `file`: a bzImage or an ELF vmlinux. Its symbols come from `system_map` when given, from
    /// the image's own kallsyms otherwise, or from its symbol table when it has one and no kallsyms.
    ///
    /// # Errors
    /// [`KernelError`], a sentence for the user, causes behind it.
    pub fn read(file: &[u8], system_map: Option<&str>) -> Result<Self, KernelError> {
        Self::read_with(file, system_map, &mut |_| ())
    }

    /// As [`read`](Self::read), and calls `done` with the name of each step when it is done: whoever has a clock can
    /// tell what each takes. A file that needs no unpacking has no such step.
    ///
    /// # Errors
    /// As those of [`read`](Self::read).
    pub fn read_with(
        file: &[u8],
        system_map: Option<&str>,
        done: &mut dyn FnMut(&'static str),
    ) -> Result<Self, KernelError> {
        let (unpacked, boot) = if file.starts_with(b"\x7fELF") {
            (file.to_vec(), Boot::Direct)
        } else {
            let image = BzImage::parse(file)?;
            let jumps = image.kernel_jumps().map_or(Boot::Unknown, Boot::Decompressor);
            let unpacked = unpack(image.payload())?;
            done(UNPACK);
            (unpacked, jumps)
        };
        let image = Vmlinux::parse(unpacked)?;
        done("ELF");
        let (symbols, relative_base) = read_symbols(&image, system_map)?;
        done("symbols");
        let patched = PatchedText::from_image(&image, &symbols);
        done("patched text");
        Ok(Self { image, symbols, patched, boot, relative_base })
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

    /// The text that must be left alone.
    #[must_use]
    pub fn patched(&self) -> &PatchedText {
        &self.patched
    }

    /// Its type information.
    ///
    /// # Errors
    /// [`BtfError`] when it has none, or a damaged one.
    pub fn btf(&self) -> Result<Btf<'_>, BtfError> {
        Btf::parse(self.image.section(".BTF").ok_or(BtfError::Missing)?.bytes)
    }

    /// What runs before it.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.boot
    }

    /// Where the image holds the pointer that KASLR relocates by its slide, and that pointer's link-time value.
    #[must_use]
    pub fn relative_base(&self) -> (Gva, Gva) {
        (self.relative_base.at, self.relative_base.value)
    }
}

fn read_symbols(
    image: &Vmlinux,
    system_map: Option<&str>,
) -> Result<(SymbolTable, RelativeBase), KernelError> {
    let kallsyms = kallsyms::decode(image);
    let Some(text) = system_map else {
        return match kallsyms {
            Ok(found) => {
                let base = RelativeBase { at: found.relative_base_at, value: found.relative_base };
                Ok((found.symbols, base))
            }
            Err(error) => {
                let symbols = symtab::read(image).map_err(|_| KernelError::Symbols(error))?;
                let base = base_by_name(image, &symbols).ok_or(KernelError::Symbols(error))?;
                Ok((symbols, base))
            }
        };
    };
    let symbols = system_map::parse(text)?;
    let start = image.text_start();
    match symbols.address_of("_text") {
        Some(map) if map != start => return Err(KernelError::OtherKernel { map, image: start }),
        _ => {}
    }
    let base = match kallsyms {
        Ok(found) => RelativeBase { at: found.relative_base_at, value: found.relative_base },
        Err(error) => base_by_name(image, &symbols).ok_or(KernelError::Symbols(error))?,
    };
    Ok((symbols, base))
}

/// The relocated pointer by its symbol, where the tables around it were not understood.
fn base_by_name(image: &Vmlinux, symbols: &SymbolTable) -> Option<RelativeBase> {
    let at = symbols.address_of("kallsyms_relative_base")?;
    let value = image.bytes_at(at, 8)?.try_into().ok().map(u64::from_le_bytes)?;
    Some(RelativeBase { at, value: Gva(value) })
}
