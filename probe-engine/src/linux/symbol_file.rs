//! A file beside the kernel that says what its symbols are: its System.map, or the ELF vmlinux that its build leaves.

use super::kallsyms;
use super::symbols::SymbolTable;
use super::symtab::{self, SymtabError};
use super::system_map::{self, SystemMapError};
use super::vmlinux::{Vmlinux, VmlinuxError};
use crate::addr::Gva;

/// Symbols that stand at the start of a section, by which one sees whether a file is of this kernel.
const STARTS: [(&str, &str); 4] = [
    ("_sinittext", ".init.text"),
    ("__start___ex_table", "__ex_table"),
    ("__start_BTF", ".BTF"),
    ("__bss_start", ".bss"),
];

/// A file that cannot stand in for a kernel's own symbols.
#[derive(Debug, thiserror::Error)]
pub enum SymbolFileError {
    /// Neither of the two formats.
    #[error("it is neither a System.map nor an ELF vmlinux")]
    Foreign,
    /// An unusable System.map.
    #[error("it is no usable System.map")]
    SystemMap(#[from] SystemMapError),
    /// A damaged ELF file, or one that is no kernel.
    #[error(transparent)]
    Vmlinux(#[from] VmlinuxError),
    /// An ELF file without symbols.
    #[error("it has no symbols of its own")]
    Symtab(#[from] SymtabError),
    /// A file of another kernel.
    #[error("it is of another kernel: its build-id is {file}, that of the kernel is {kernel}")]
    OtherBuild {
        /// In hexadecimal.
        file: String,
        /// In hexadecimal.
        kernel: String,
    },
    /// Symbols of another kernel.
    #[error("it is of another kernel: it has {symbol} at {file}, the kernel at {kernel}")]
    OtherKernel {
        /// A symbol that both must have at the same place.
        symbol: &'static str,
        /// Where the file has it.
        file: Gva,
        /// Where the kernel has it.
        kernel: Gva,
    },
}

/// A file beside a kernel.
#[derive(Debug)]
pub enum SymbolFile {
    /// A System.map.
    Map(SymbolTable),
    /// An ELF vmlinux, with or without debugging information.
    Image(Vmlinux),
}

impl SymbolFile {
    /// Reads a file, whose contents tell which of the two it is.
    ///
    /// # Errors
    /// [`SymbolFileError`], a sentence for the user.
    pub fn parse(file: Vec<u8>) -> Result<Self, SymbolFileError> {
        if file.starts_with(b"\x7fELF") {
            return Ok(Self::Image(Vmlinux::parse(file)?));
        }
        let text = str::from_utf8(&file).map_err(|_| SymbolFileError::Foreign)?;
        Ok(Self::Map(system_map::parse(text)?))
    }

    /// The ELF file.
    #[must_use]
    pub fn image(&self) -> Option<&Vmlinux> {
        match self {
            Self::Image(image) => Some(image),
            Self::Map(_) => None,
        }
    }

    /// The symbols of `kernel`, if the file is of that.
    ///
    /// # Errors
    /// [`SymbolFileError`], a sentence for the user.
    pub fn symbols(&self, kernel: &Vmlinux) -> Result<SymbolTable, SymbolFileError> {
        let symbols = match self {
            Self::Map(symbols) => symbols.clone(),
            Self::Image(image) => {
                check_build(image, kernel)?;
                match symtab::read(image) {
                    // A stripped one may have its kallsyms.
                    Err(SymtabError::Stripped) => {
                        kallsyms::decode(image).map_err(|_| SymbolFileError::Symtab(SymtabError::Stripped))?
                    }
                    symbols => symbols?,
                }
            }
        };
        let starts = STARTS
            .iter()
            .filter_map(|(symbol, section)| Some((*symbol, kernel.section(section)?.range.start)));
        for (symbol, start) in [("_text", kernel.text_start())].into_iter().chain(starts) {
            match symbols.address_of(symbol) {
                Some(file) if file != start => {
                    return Err(SymbolFileError::OtherKernel { symbol, file, kernel: start });
                }
                _ => {}
            }
        }
        Ok(symbols)
    }
}

/// Checks that `image` is of the same build as `kernel`, as far as both say of which they are.
///
/// # Errors
/// [`SymbolFileError::OtherBuild`].
pub fn check_build(image: &Vmlinux, kernel: &Vmlinux) -> Result<(), SymbolFileError> {
    match (image.build_id(), kernel.build_id()) {
        (Some(file), Some(kernel)) if file != kernel => {
            Err(SymbolFileError::OtherBuild { file: hexadecimal(file), kernel: hexadecimal(kernel) })
        }
        _ => Ok(()),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::{Part, elf};

    const TEXT: u64 = 0xffff_ffff_8100_0000;
    const INIT: u64 = TEXT + 0x1000;

    fn read_for_a_kernel(file: &[u8]) -> Result<SymbolTable, SymbolFileError> {
        let parts = [Part::text(".text", TEXT, vec![0x90]), Part::text(".init.text", INIT, vec![0x90])];
        SymbolFile::parse(file.to_vec())?.symbols(&Vmlinux::parse(elf(&parts)).unwrap())
    }

    #[test]
    fn a_system_map_of_this_kernel_is_taken() {
        let map = format!("{TEXT:x} T _text\n{INIT:x} T _sinittext\n");
        assert_eq!(read_for_a_kernel(map.as_bytes()).unwrap().len(), 2);
    }

    #[test]
    fn what_cannot_stand_in_is_said() {
        let say = |file: &[u8]| read_for_a_kernel(file).unwrap_err().to_string();
        assert_eq!(say(b"\xff\xfe"), "it is neither a System.map nor an ELF vmlinux");
        assert_eq!(say(b""), "it is no usable System.map");
        let other = format!("{TEXT:x} T _text\n{:x} T _sinittext\n", INIT + 0x1000);
        assert_eq!(
            say(other.as_bytes()),
            "it is of another kernel: it has _sinittext at 0xffffffff81002000, the kernel at 0xffffffff81001000"
        );
        let stripped = elf(&[Part::text(".text", TEXT, vec![0x90])]);
        assert_eq!(say(&stripped), "it has no symbols of its own");
    }

    #[test]
    fn a_file_of_another_build_is_refused() {
        let image = |id: Option<u8>| {
            let note = [&4u32.to_le_bytes()[..], &4u32.to_le_bytes(), &3u32.to_le_bytes(), b"GNU\0"].concat();
            let mut parts = vec![Part::text(".text", TEXT, vec![0x90])];
            parts.extend(id.map(|id| Part::data(".notes", INIT, [note, vec![id; 4]].concat())));
            Vmlinux::parse(elf(&parts)).unwrap()
        };
        let said = check_build(&image(Some(0xab)), &image(Some(1))).unwrap_err().to_string();
        assert_eq!(said, "it is of another kernel: its build-id is abababab, that of the kernel is 01010101");
        for (file, kernel) in [(Some(1), Some(1)), (None, Some(1)), (Some(1), None), (None, None)] {
            assert!(check_build(&image(file), &image(kernel)).is_ok());
        }
    }
}
