//! The Linux/x86 boot image: setup header, protected-mode kernel, compressed payload.
//!
//! Format: Documentation/arch/x86/boot.rst. The file starts with real-mode setup sectors, of which only the header
//! at 0x1f1 matters here; behind them lies the protected-mode kernel, which is loaded as it is. Its own layout
//! (arch/x86/boot/compressed/vmlinux.lds.S) is: entry code (`.head.text`), the compressed payload
//! (`.rodata..compressed`), and only then the rest of the decompressor's code (`.text`) and data.

use std::ops::Range;

use super::read::{array, u16_at, u32_at, u64_at};
use crate::addr::Gpa;

/// Where the setup header begins, in the file and in the zero page alike.
pub const SETUP_HEADER: usize = 0x1f1;
/// The 64-bit entry point, from the start of the protected-mode kernel (boot.rst, "64-bit Boot Protocol").
pub const ENTRY_64: u64 = 0x200;
/// Boot protocol 2.12: the first with `xloadflags`, hence the first that can promise a 64-bit entry.
const OLDEST_PROTOCOL: u16 = 0x020c;
/// `XLF_KERNEL_64`.
const XLF_KERNEL_64: u16 = 1;
const SECTOR: usize = 512;

/// A file that is not a Linux kernel for x86-64, or not all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BzImageError {
    /// Some other kind of file.
    #[error("not a bzImage: {0}")]
    Foreign(&'static str),
    /// A kernel from before 2012, or a hand-made one.
    #[error("not supported: boot protocol {}.{:02}, the oldest supported is 2.12", .0 >> 8, .0 & 0xff)]
    OldProtocol(u16),
    /// A 32-bit kernel.
    #[error("not supported: the kernel has no 64-bit entry point")]
    No64BitEntry,
    /// The file is shorter than its header says.
    #[error("truncated: the header says {says} bytes of {part}, the file ends after {has}")]
    Truncated {
        /// What is cut short.
        part: &'static str,
        /// Its length by the header, in bytes.
        says: u64,
        /// How many of them are there.
        has: u64,
    },
}

/// The fields of the setup header that a boot loader needs. Names are those of boot.rst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetupHeader {
    /// Boot protocol, 0x020f for 2.15.
    pub version: u16,
    /// Bit 0: 64-bit entry at [`ENTRY_64`]; bit 1: may be loaded above 4 GiB; bits 5 and 6: 5-level paging.
    pub xloadflags: u16,
    /// Longest command line in bytes, without the final NUL.
    pub cmdline_size: u32,
    /// Highest guest-physical address that the initramfs may occupy.
    pub initrd_addr_max: Gpa,
    /// Alignment that the decompressed kernel needs, in bytes.
    pub kernel_alignment: u32,
    /// Whether the kernel may be loaded anywhere; it then moves itself to `pref_address` or, under KASLR, elsewhere.
    pub relocatable: bool,
    /// Where the kernel would like to run.
    pub pref_address: Gpa,
    /// Contiguous memory that it needs from its run-time start, in bytes.
    pub init_size: u32,
}

/// A boot image, borrowed from the file's bytes.
#[derive(Debug, Clone)]
pub struct BzImage<'a> {
    setup: SetupHeader,
    setup_bytes: &'a [u8],
    protected_offset: usize,
    protected: &'a [u8],
    payload: Range<usize>,
}

/// The decompressor's two indirect jumps: each is reached once in a boot, with an address in RAX that is known no
/// earlier. `head_64.S` makes them, of which `arch/x86/boot/compressed` has had no other shape since 2.6.30.
///
/// Hardware execution breakpoints on them find the kernel under KASLR: the first at
/// `load address + relocation_jump`, whose RAX gives the second through [`KernelJumps::entry_jump_at`]. Memory is
/// identity-mapped there, so that all of these are virtual and physical addresses at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KernelJumps {
    /// Offset of the `jmp *%rax` into the copy of the decompressor that got out of the output's way.
    pub relocation_jump: u64,
    /// What that RAX points to, as an offset (`.Lrelocated`): RAX minus this is where the copy begins.
    pub relocated: u64,
    /// Offset of the `jmp *%rax` into the decompressed kernel, whose RAX is the kernel's physical entry point. It
    /// is reached in the copy, never where the kernel was loaded.
    pub entry_jump: u64,
}

impl KernelJumps {
    /// Where the last jump lies in the copy, given RAX at the relocation jump.
    #[must_use]
    pub fn entry_jump_at(&self, rax_at_relocation_jump: u64) -> Gpa {
        Gpa(rax_at_relocation_jump.wrapping_sub(self.relocated).wrapping_add(self.entry_jump))
    }
}

/// The decompressor's code is not of the known shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoKernelJumps {
    /// `lea disp32(%rbx),%rax; jmp *%rax` is missing or there are several.
    #[error("{0} jumps to the relocated decompressor instead of one")]
    Relocation(usize),
    /// `call extract_kernel; mov %r15,%rsi (or pop %rsi); jmp *%rax` is missing.
    #[error("no jump to the decompressed kernel")]
    Entry,
}

/// The release that a boot image says it has (`kernel_version`, boot.rst).
#[must_use]
pub fn version(file: &[u8]) -> Option<&str> {
    let at = usize::from(u16_at(file, 0x20e)?);
    let text = file.get((at != 0).then_some(at + 0x200)?..)?;
    let release = text.split(|byte| matches!(byte, b' ' | 0)).next()?;
    str::from_utf8(release).ok().filter(|release| !release.is_empty())
}

impl<'a> BzImage<'a> {
    /// Finds the parts of a boot image.
    ///
    /// # Errors
    /// [`BzImageError`] says in one sentence what kind of file it is not, or how much of it is missing.
    pub fn parse(file: &'a [u8]) -> Result<Self, BzImageError> {
        const ENDS_EARLY: BzImageError = BzImageError::Foreign("the file ends inside the setup header");
        if file.starts_with(b"\x7fELF") {
            return Err(BzImageError::Foreign("this is an ELF file"));
        }
        if array(file, 0x1fe) != Some([0x55, 0xaa]) || array(file, 0x202) != Some(*b"HdrS") {
            return Err(BzImageError::Foreign("no Linux setup header at 0x1f1"));
        }
        let header = || {
            let version = u16_at(file, 0x206)?;
            let setup = SetupHeader {
                version,
                xloadflags: u16_at(file, 0x236)?,
                cmdline_size: u32_at(file, 0x238)?,
                initrd_addr_max: Gpa(u32_at(file, 0x22c)?.into()),
                kernel_alignment: u32_at(file, 0x230)?,
                relocatable: *file.get(0x234)? != 0,
                pref_address: Gpa(u64_at(file, 0x258)?),
                init_size: u32_at(file, 0x260)?,
            };
            // The header's length is the target of the short jump at 0x200, which skips it.
            let end = 0x202 + usize::from(*file.get(0x201)?);
            let setup_bytes = file.get(SETUP_HEADER..end)?;
            let setup_sects = *file.get(SETUP_HEADER)?;
            let paragraphs = u32_at(file, 0x1f4)?;
            Some((setup, setup_bytes, setup_sects, paragraphs, u32_at(file, 0x248)?, u32_at(file, 0x24c)?))
        };
        let (setup, setup_bytes, setup_sects, paragraphs, payload_offset, payload_length) =
            header().ok_or(ENDS_EARLY)?;
        if setup.version < OLDEST_PROTOCOL {
            return Err(BzImageError::OldProtocol(setup.version));
        }
        if setup.xloadflags & XLF_KERNEL_64 == 0 {
            return Err(BzImageError::No64BitEntry);
        }

        // "For backwards compatibility, if the setup_sects field contains 0, the real value is 4."
        let sectors = if setup_sects == 0 { 4 } else { usize::from(setup_sects) };
        let protected_offset = (sectors + 1) * SECTOR;
        let rest = file.get(protected_offset..).unwrap_or_default();
        let payload_start = payload_offset as usize;
        let payload_end = payload_start.saturating_add(payload_length as usize);
        if payload_end > rest.len() {
            return Err(BzImageError::Truncated {
                part: "payload",
                says: payload_length.into(),
                has: rest.len().saturating_sub(payload_start) as u64,
            });
        }
        // Behind the kernel a signature may follow, which is not loaded.
        let size = u64::from(paragraphs) * 16;
        let protected = rest.get(..size as usize).ok_or(BzImageError::Truncated {
            part: "kernel",
            says: size,
            has: rest.len() as u64,
        })?;
        if payload_end > protected.len() || payload_start < ENTRY_64 as usize {
            return Err(BzImageError::Foreign("its payload lies outside the protected-mode kernel"));
        }
        Ok(Self { setup, setup_bytes, protected_offset, protected, payload: payload_start..payload_end })
    }

    /// The fields of the setup header.
    #[must_use]
    pub fn setup(&self) -> &SetupHeader {
        &self.setup
    }

    /// The setup header as it is in the file, to be copied to [`SETUP_HEADER`] of the zero page.
    #[must_use]
    pub fn setup_bytes(&self) -> &'a [u8] {
        self.setup_bytes
    }

    /// Where the protected-mode kernel begins in the file, in bytes.
    #[must_use]
    pub fn protected_offset(&self) -> usize {
        self.protected_offset
    }

    /// The protected-mode kernel: what is loaded, at an address of the loader's choice when relocatable.
    #[must_use]
    pub fn protected(&self) -> &'a [u8] {
        self.protected
    }

    /// The compressed kernel, for [`super::unpack::unpack`].
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.protected.get(self.payload.clone()).unwrap_or_default()
    }

    /// Finds the decompressor's two indirect jumps.
    ///
    /// # Errors
    /// [`NoKernelJumps`] when the code looks otherwise; a guess would let the breakpoint miss the kernel.
    pub fn kernel_jumps(&self) -> Result<KernelJumps, NoKernelJumps> {
        // lea disp32(%rbx),%rax; jmp *%rax: in `.head.text`, that is, before the payload.
        let entry_code = self.protected.get(ENTRY_64 as usize..self.payload.start).unwrap_or_default();
        let mut found = entry_code.windows(9).enumerate().filter_map(|(at, code)| match code {
            [0x48, 0x8d, 0x83, a, b, c, d, 0xff, 0xe0] => {
                Some((ENTRY_64 + at as u64 + 7, u32::from_le_bytes([*a, *b, *c, *d])))
            }
            _ => None,
        });
        let first = found.next();
        let others = found.count();
        let (relocation_jump, relocated) = match (first, others) {
            (Some(jump), 0) => jump,
            _ => return Err(NoKernelJumps::Relocation(usize::from(first.is_some()) + others)),
        };

        // `.Lrelocated` clears BSS and calls at most a handful of functions before its jump, 55 bytes on in 6.12.
        const REACH: usize = 256;
        let start = relocated as usize;
        let code = self.protected.get(start..).unwrap_or_default();
        let code = code.get(..REACH).unwrap_or(code);
        let entry_jump = code.windows(10).enumerate().find_map(|(at, code)| match code {
            [0xe8, _, _, _, _, 0x4c, 0x89, 0xfe, 0xff, 0xe0] => Some(at + 8),
            [0xe8, _, _, _, _, 0x5e, 0xff, 0xe0, ..] => Some(at + 6),
            _ => None,
        });
        let entry_jump = entry_jump.ok_or(NoKernelJumps::Entry)?;
        Ok(KernelJumps {
            relocation_jump,
            relocated: relocated.into(),
            entry_jump: u64::from(relocated) + entry_jump as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAYLOAD: usize = 0x2cc;

    /// A bzImage with one setup sector, 64 bytes of payload, and both jumps.
    fn image(last_call: &[u8]) -> Vec<u8> {
        let mut kernel = vec![0x90; PAYLOAD];
        kernel[0x2c3..0x2cc].copy_from_slice(&[0x48, 0x8d, 0x83, 0x20, 0x03, 0, 0, 0xff, 0xe0]);
        kernel.extend([0x11; 64]);
        kernel.resize(0x320, 0);
        kernel.extend([0x31, 0xc0]);
        kernel.extend(last_call);
        kernel.resize(0x400, 0xf4);
        let mut file = vec![0; 1024];
        file[0x1f1] = 1;
        file[0x1f4..0x1f8].copy_from_slice(&0x40u32.to_le_bytes());
        file[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        file[0x200..0x202].copy_from_slice(&[0xeb, 0x6a]);
        file[0x202..0x206].copy_from_slice(b"HdrS");
        file[0x206..0x208].copy_from_slice(&0x20fu16.to_le_bytes());
        file[0x234] = 1;
        file[0x236] = 0x7f;
        file[0x248..0x24c].copy_from_slice(&(PAYLOAD as u32).to_le_bytes());
        file[0x24c..0x250].copy_from_slice(&64u32.to_le_bytes());
        file[0x258..0x260].copy_from_slice(&0x100_0000u64.to_le_bytes());
        file.extend(kernel);
        file.extend(b"signature");
        file
    }

    const CALL_MOV: &[u8] = &[0xe8, 1, 2, 3, 4, 0x4c, 0x89, 0xfe, 0xff, 0xe0];
    const CALL_POP: &[u8] = &[0xe8, 1, 2, 3, 4, 0x5e, 0xff, 0xe0];

    #[test]
    fn parts_are_found_and_the_signature_is_not_loaded() {
        let file = image(CALL_MOV);
        let image = BzImage::parse(&file).unwrap();
        assert_eq!(image.setup().pref_address, Gpa(0x100_0000));
        assert!(image.setup().relocatable);
        assert_eq!(image.setup_bytes().len(), 0x202 + 0x6a - 0x1f1);
        assert_eq!(image.protected().len(), 0x400);
        assert_eq!(image.payload(), [0x11; 64]);
    }

    #[test]
    fn both_shapes_of_the_last_jump_are_found() {
        for (code, jump) in [(CALL_MOV, 0x32a), (CALL_POP, 0x328)] {
            let file = image(code);
            let jumps = BzImage::parse(&file).unwrap().kernel_jumps().unwrap();
            assert_eq!(jumps, KernelJumps { relocation_jump: 0x2ca, relocated: 0x320, entry_jump: jump });
            assert_eq!(jumps.entry_jump_at(0x500_0320), Gpa(0x500_0000 + jump));
        }
        let file = image(&[0xe8, 1, 2, 3, 4, 0xff, 0xe0]);
        assert_eq!(BzImage::parse(&file).unwrap().kernel_jumps(), Err(NoKernelJumps::Entry));
    }

    #[test]
    fn a_second_relocation_jump_is_not_guessed_about() {
        let mut file = image(CALL_MOV);
        let jump: [u8; 9] = array(&file, 1024 + 0x2c3).unwrap();
        file[1024 + 0x240..][..9].copy_from_slice(&jump);
        assert_eq!(BzImage::parse(&file).unwrap().kernel_jumps(), Err(NoKernelJumps::Relocation(2)));
    }

    #[test]
    fn errors_are_sentences() {
        let say = |file: &[u8]| BzImage::parse(file).unwrap_err().to_string();
        let good = image(CALL_MOV);
        assert_eq!(say(b""), "not a bzImage: no Linux setup header at 0x1f1");
        assert_eq!(say(b"\x7fELF"), "not a bzImage: this is an ELF file");
        assert_eq!(say(&good[..0x230]), "not a bzImage: the file ends inside the setup header");
        assert_eq!(
            say(&good[..1024 + PAYLOAD + 10]),
            "truncated: the header says 64 bytes of payload, the file ends after 10"
        );
        assert_eq!(
            say(&good[..1024 + 0x3ff]),
            "truncated: the header says 1024 bytes of kernel, the file ends after 1023"
        );
        let mut old = good.clone();
        old[0x206] = 7;
        assert_eq!(say(&old), "not supported: boot protocol 2.07, the oldest supported is 2.12");
        let mut narrow = good.clone();
        narrow[0x236] = 0;
        assert_eq!(say(&narrow), "not supported: the kernel has no 64-bit entry point");
    }

    proptest! {
        #[test]
        fn no_corruption_panics(at in 0usize..0x800, bytes in proptest::collection::vec(any::<u8>(), 1..64), cut in 0usize..2048) {
            let mut file = image(CALL_MOV);
            for (byte, new) in file.iter_mut().skip(at).zip(&bytes) {
                *byte = *new;
            }
            file.truncate(file.len() - cut);
            if let Ok(image) = BzImage::parse(&file) {
                let _ = image.kernel_jumps();
                let _ = image.payload();
            }
        }
    }
}
