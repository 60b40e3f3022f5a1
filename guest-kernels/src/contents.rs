//! Which files an initramfs has: archives one after the other, each as it is or compressed.

use crate::modules::XZ_MEMORY_KIB;
use cpio::newc;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;
use std::io::{self, BufRead, BufReader};

/// The paths of all entries of `image`.
///
/// # Errors
/// When it is damaged, or compressed in a way that is not known here.
pub fn file_names(image: &[u8]) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    archives(&mut &*image, &mut names, true)?;
    Ok(names)
}

/// Reads one archive after the other. What a decoder gives is not compressed once more.
fn archives(input: &mut dyn BufRead, names: &mut Vec<String>, may_be_compressed: bool) -> io::Result<()> {
    loop {
        let buffer = input.fill_buf()?;
        match buffer.first() {
            None => return Ok(()),
            Some(0) => {
                let padding = buffer.iter().take_while(|byte| **byte == 0).count();
                input.consume(padding);
            }
            Some(b'0') => archive(input, names)?,
            Some(first) if may_be_compressed => decompressed(*first, input, names)?,
            Some(_) => return Err(io::Error::other("an archive is damaged")),
        }
    }
}

fn archive(mut input: &mut dyn BufRead, names: &mut Vec<String>) -> io::Result<()> {
    loop {
        let entry = newc::Reader::new(input)?;
        let (name, is_last) = (entry.entry().name().to_owned(), entry.entry().is_trailer());
        input = entry.finish()?;
        if is_last {
            return Ok(());
        }
        names.push(name);
    }
}

/// The archives in what is compressed, by its first byte.
fn decompressed(first: u8, input: &mut dyn BufRead, names: &mut Vec<String>) -> io::Result<()> {
    match first {
        0x1f => archives(&mut BufReader::new(MultiGzDecoder::new(input)), names, false),
        0xfd => {
            let decoder = XzReader::new_mem_limit(input, true, XZ_MEMORY_KIB);
            archives(&mut BufReader::new(decoder), names, false)
        }
        0x28 => {
            let decoder = StreamingDecoder::new(input).map_err(io::Error::other)?;
            archives(&mut BufReader::new(decoder), names, false)
        }
        _ => Err(io::Error::other("an archive is compressed in an unknown way")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Archive;

    fn names(image: &[u8]) -> Option<Vec<String>> {
        file_names(image).ok()
    }

    #[test]
    fn archives_are_read_one_after_the_other() {
        let archive = |path: &str| Archive::new().file(path, 0o644, vec![7; 5000]);
        let (plain, packed) = (archive("a.ko").to_bytes().unwrap(), archive("lib/b.ko").to_gzip().unwrap());
        let is_there = |image: &[u8], expected: &[&str]| {
            let found = names(image).unwrap();
            expected.iter().all(|name| found.iter().any(|found| found == name))
        };
        assert!(is_there(&plain, &["a.ko"]) && is_there(&packed, &["lib", "lib/b.ko"]));
        assert!(is_there(&[&*plain, &packed].concat(), &["a.ko", "lib/b.ko"]));
        assert!(is_there(&[&*plain, &[0; 700], &packed, &packed].concat(), &["a.ko", "lib/b.ko"]));
        assert_eq!(names(b""), Some(Vec::new()));
        for damaged in [&b"text"[..], &plain[..plain.len() - 200], &packed[..packed.len() / 2], b"07070"] {
            assert_eq!(names(damaged), None);
        }
        assert_eq!(
            names(&[&*plain, b"text"].concat()),
            None,
            "what is not understood may have anything in it"
        );
    }
}
