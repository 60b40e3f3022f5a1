//! The compressed kernel inside a boot image, unpacked.
//!
//! Formats and the length behind them: scripts/Makefile.lib (`cmd_gzip`, `cmd_zstd22_with_size`,
//! `cmd_lz4_with_size`, `cmd_xzkern_with_size`). The build appends the unpacked length as four little-endian bytes;
//! gzip needs none because its own trailer ends in the same four bytes.

use std::io::{self, Read};

use super::read::{array, u32_at};

/// Largest kernel that is unpacked, in bytes: the kernel maps at most this much of itself
/// (`KERNEL_IMAGE_SIZE`, 1 GiB under KASLR), and real ones need a tenth of it.
pub const MAX_UNPACKED: u32 = 512 << 20;
/// `zstd --ultra -22` asks for a window of 128 MiB, whatever the size of the kernel.
const ZSTD_WINDOW: u64 = 128 << 20;
/// The dictionary of `xz_wrap.sh` is 32 MiB (128 MiB since 6.11); the decoder adds less than a mebibyte.
const XZ_MEMORY_KIB: u32 = (128 + 1) << 10;

/// How the payload is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// CONFIG_KERNEL_GZIP.
    Gzip,
    /// CONFIG_KERNEL_XZ, with or without the x86 BCJ filter.
    Xz,
    /// CONFIG_KERNEL_LZ4: the legacy frame of `lz4 -l`.
    Lz4,
    /// CONFIG_KERNEL_ZSTD.
    Zstd,
}

impl Compression {
    /// Tells the format by the payload's first bytes.
    #[must_use]
    pub fn detect(payload: &[u8]) -> Option<Self> {
        match payload {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x02, 0x21, 0x4c, 0x18, ..] => Some(Self::Lz4),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            _ => None,
        }
    }
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

/// A payload that does not give a kernel.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// No known magic: bzip2, lzma and lzo kernels, and damaged files.
    #[error(
        "the kernel is compressed in an unknown way (it begins with {0:02x?}); gzip, xz, lz4 and zstd are known"
    )]
    UnknownFormat([u8; 4]),
    /// Not even a length.
    #[error("the compressed kernel is only {0} bytes long")]
    TooShort(usize),
    /// The length given behind the payload is not believed.
    #[error("the kernel would be {0} bytes long unpacked, which is more than {MAX_UNPACKED}")]
    TooLarge(u32),
    /// The decoder met something that it does not accept.
    #[error("the {format} data of the kernel is damaged")]
    Damaged {
        /// The format by its magic.
        format: Compression,
        /// What the decoder says.
        source: io::Error,
    },
    /// The decoder was content, and still something is missing or left over.
    #[error(
        "the {format} data of the kernel is damaged: it does not unpack to the {says} bytes that it should"
    )]
    WrongLength {
        /// The format by its magic.
        format: Compression,
        /// The length given behind the payload, in bytes.
        says: u32,
    },
}

/// Unpacks the payload of a boot image to the ELF file that [`super::vmlinux::Vmlinux`] reads. Relocations for
/// KASLR may follow the ELF file in the same bytes.
///
/// # Errors
/// [`UnpackError`]; nothing beyond the stated length, and never more than [`MAX_UNPACKED`], is unpacked.
pub fn unpack(payload: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let too_short = UnpackError::TooShort(payload.len());
    let Some(magic) = array(payload, 0) else { return Err(too_short) };
    let format = Compression::detect(payload).ok_or(UnpackError::UnknownFormat(magic))?;
    let Some(tail) = payload.len().checked_sub(4) else { return Err(too_short) };
    let Some(says) = u32_at(payload, tail) else { return Err(too_short) };
    if says > MAX_UNPACKED {
        return Err(UnpackError::TooLarge(says));
    }
    let packed = payload.get(..tail).unwrap_or_default();
    let unpacked = match format {
        Compression::Gzip => bounded(flate2::read::GzDecoder::new(payload), says),
        Compression::Xz => bounded(lzma_rust2::XzReader::new_mem_limit(packed, false, XZ_MEMORY_KIB), says),
        Compression::Lz4 => bounded(lz4_flex::frame::FrameDecoder::new(packed), says),
        Compression::Zstd => zstd(packed, says),
    }
    .map_err(|source| UnpackError::Damaged { format, source })?;
    if unpacked.len() as u64 != u64::from(says) {
        return Err(UnpackError::WrongLength { format, says });
    }
    Ok(unpacked)
}

/// What `decoder` gives, up to one byte more than it should.
fn bounded(decoder: impl Read, says: u32) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::with_capacity(says as usize);
    decoder.take(u64::from(says) + 1).read_to_end(&mut unpacked)?;
    Ok(unpacked)
}

/// Unpacks zstd, whose checksum its decoder computes and leaves to be compared.
fn zstd(packed: &[u8], says: u32) -> io::Result<Vec<u8>> {
    let mut decoder = ruzstd::decoding::StreamingDecoder::new_with_max_window_size(packed, ZSTD_WINDOW)
        .map_err(io::Error::other)?;
    let unpacked = bounded(&mut decoder, says)?;
    let frame = decoder.into_frame_decoder();
    match (frame.get_checksum_from_data(), frame.get_calculated_checksum()) {
        (Some(stored), Some(own)) if stored != own => Err(io::Error::other("checksum mismatch")),
        _ => Ok(unpacked),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// Calls of one function from 4,000 places: what the BCJ filter is for.
    fn kernel() -> Vec<u8> {
        (0..4000i32).flat_map(|i| [vec![0xe8], (0x10000 - 5 * i).to_le_bytes().to_vec()].concat()).collect()
    }

    /// `xz --check=crc32 --x86 --lzma2=dict=64KiB`, as scripts/xz_wrap.sh calls it, of `kernel()`.
    const XZ: &[u8] = &[
        0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x01, 0x04, 0x00, 0x21,
        0x01, 0x08, 0x00, 0xd2, 0xb9, 0x74, 0xcb, 0xe0, 0x4e, 0x1f, 0x00, 0x40, 0x5d, 0x00, 0x74, 0x01, 0x3c,
        0x00, 0x13, 0x48, 0x62, 0x05, 0x6f, 0xea, 0x2b, 0x07, 0x7a, 0x23, 0xc3, 0x09, 0x65, 0x44, 0x67, 0xae,
        0x2f, 0xa8, 0x0e, 0x0e, 0x52, 0x22, 0xe2, 0xaa, 0xa4, 0x43, 0x96, 0xf7, 0x09, 0xc7, 0x60, 0xd4, 0x32,
        0x29, 0x8a, 0x8d, 0x78, 0x57, 0x6f, 0x0a, 0x37, 0x6d, 0xe3, 0x0e, 0xc9, 0x5c, 0xf9, 0xcb, 0xe6, 0xd6,
        0x5e, 0xd0, 0x63, 0x6d, 0xfc, 0x8d, 0xfa, 0x0a, 0x00, 0x00, 0x00, 0x97, 0x28, 0xb2, 0xc7, 0x00, 0x01,
        0x58, 0xa0, 0x9c, 0x01, 0x00, 0x00, 0xfa, 0xf5, 0xfb, 0xa5, 0x3e, 0x30, 0x0d, 0x8b, 0x02, 0x00, 0x00,
        0x00, 0x00, 0x01, 0x59, 0x5a,
    ];

    fn with_tail(mut packed: Vec<u8>, len: usize) -> Vec<u8> {
        packed.extend((len as u32).to_le_bytes());
        packed
    }

    /// `kernel()` in every format, as the kernel's build makes it.
    fn payloads() -> Vec<(Compression, Vec<u8>)> {
        let kernel = kernel();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&kernel).unwrap();
        // A legacy frame: the magic, then blocks of at most 8 MiB, each behind its length.
        let block = lz4_flex::block::compress(&kernel);
        let lz4 = [&[0x02, 0x21, 0x4c, 0x18][..], &(block.len() as u32).to_le_bytes(), &block].concat();
        let zstd =
            ruzstd::encoding::compress_to_vec(&kernel[..], ruzstd::encoding::CompressionLevel::Fastest);
        vec![
            (Compression::Gzip, gzip.finish().unwrap()),
            (Compression::Lz4, with_tail(lz4, kernel.len())),
            (Compression::Zstd, with_tail(zstd, kernel.len())),
            (Compression::Xz, with_tail(XZ.to_vec(), kernel.len())),
        ]
    }

    #[test]
    fn every_format_unpacks_to_the_same_bytes() {
        for (format, payload) in payloads() {
            assert_eq!(Compression::detect(&payload), Some(format));
            assert!(unpack(&payload).unwrap() == kernel(), "{format}");
        }
    }

    #[test]
    fn a_length_that_does_not_fit_is_an_error() {
        for (format, payload) in payloads() {
            for wrong in [kernel().len() - 1, kernel().len() + 1] {
                let payload = with_tail(payload[..payload.len() - 4].to_vec(), wrong);
                assert!(unpack(&payload).is_err(), "{format}");
            }
            let payload = with_tail(payload[..payload.len() - 4].to_vec(), usize::MAX);
            assert!(matches!(unpack(&payload), Err(UnpackError::TooLarge(u32::MAX))));
        }
    }

    #[test]
    fn no_flipped_bit_goes_unnoticed_where_there_is_a_checksum() {
        for (format, payload) in payloads().into_iter().filter(|(format, _)| *format != Compression::Lz4) {
            for at in (0..payload.len()).step_by(5) {
                let mut flipped = payload.clone();
                flipped[at] ^= 0x10;
                let unpacked = unpack(&flipped);
                assert!(
                    unpacked.is_err() || unpacked.is_ok_and(|bytes| bytes == kernel()),
                    "{format} at {at}"
                );
            }
        }
    }

    #[test]
    fn foreign_bytes_are_named() {
        assert_eq!(
            unpack(b"BZh91AY").unwrap_err().to_string(),
            "the kernel is compressed in an unknown way (it begins with [42, 5a, 68, 39]); gzip, xz, lz4 and zstd are known"
        );
        assert!(matches!(unpack(&[0x1f, 0x8b]), Err(UnpackError::TooShort(2))));
    }

    proptest! {
        #[test]
        fn no_corruption_panics(which in 0usize..4, at in any::<prop::sample::Index>(), new in any::<u8>(), cut in 0usize..40) {
            let mut payload = payloads().swap_remove(which).1;
            let at = at.index(payload.len());
            payload[at] = new;
            payload.truncate(payload.len() - cut);
            let _ = unpack(&payload);
        }
    }
}
