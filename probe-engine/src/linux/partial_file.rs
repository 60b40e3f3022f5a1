//! A file of the guest's, of which parts are known: who looks for something in it says which part is needed next.

use object::ReadRef;
use std::cell::Cell;
use std::ops::Range;

/// Bytes that are known together or not at all.
const PAGE: u64 = 4096;
/// No file is larger of which parts are kept, in bytes.
const LARGEST: u64 = 256 << 20;
/// No text is longer in a table of texts.
const LONGEST_TEXT: u64 = 16 << 10;
/// So much more of a table of texts is needed at a time, in bytes.
const AHEAD: u64 = 1 << 20;
/// No part is that is needed at a time.
const LONGEST: u64 = 64 << 20;

/// A file of which parts are known. What is not known is no memory of the host's.
pub struct PartialFile {
    bytes: Vec<u8>,
    known: Vec<bool>,
    needed: Cell<Option<Range<u64>>>,
    refused: Cell<bool>,
}

impl PartialFile {
    /// A file of so many bytes, of which nothing is known. `None` for one that is too large.
    #[must_use]
    pub fn new(size: u64) -> Option<Self> {
        let length = usize::try_from(size).ok().filter(|_| size <= LARGEST)?;
        let known = vec![false; length.div_ceil(PAGE as usize)];
        Some(Self { bytes: vec![0; length], known, needed: Cell::new(None), refused: Cell::new(false) })
    }

    /// From `offset` on, the beginning of a page, these bytes are known. What is behind the file's end is left out.
    pub fn put(&mut self, offset: u64, bytes: &[u8]) {
        let Some(place) = usize::try_from(offset).ok().and_then(|at| self.bytes.get_mut(at..)) else {
            return;
        };
        place.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let pages = (bytes.len() as u64).div_ceil(PAGE);
        let first = (offset / PAGE) as usize;
        self.known.iter_mut().skip(first).take(pages as usize).for_each(|known| *known = true);
    }

    /// Which whole pages are needed of what was asked for since this was called last, if any are.
    pub fn needed(&self) -> Option<Range<u64>> {
        self.needed.take()
    }

    /// Whether any are.
    pub(super) fn is_needed(&self) -> bool {
        let needed = self.needed.take();
        let is_needed = needed.is_some();
        self.needed.set(needed);
        is_needed
    }

    /// Whether more was asked for at a time than a file of a program has there.
    #[must_use]
    pub fn has_refused(&self) -> bool {
        self.refused.get()
    }

    fn known(&self, range: Range<u64>) -> Result<&[u8], ()> {
        if range.end > self.bytes.len() as u64 || range.end < range.start {
            return Err(());
        }
        if range.end - range.start > LONGEST {
            self.refused.set(true);
            return Err(());
        }
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        let is_known = |page: u64| self.known.get(page as usize).copied().unwrap_or(false);
        match pages.clone().all(is_known) {
            true => self.bytes.get(range.start as usize..range.end as usize).ok_or(()),
            false => {
                self.need(pages);
                Err(())
            }
        }
    }

    /// Those of `pages` are needed that are between the first and the last of which nothing is known.
    fn need(&self, pages: Range<u64>) {
        let is_new = |page: &u64| !self.known.get(*page as usize).copied().unwrap_or(true);
        let (first, last) = (pages.clone().find(is_new), pages.rev().find(is_new));
        if let (Some(first), Some(last)) = (first, last) {
            self.needed.set(Some(first * PAGE..(last + 1) * PAGE));
        }
    }
}

impl<'a> ReadRef<'a> for &'a PartialFile {
    fn len(self) -> Result<u64, ()> {
        Ok(self.bytes.len() as u64)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        self.known(offset..offset.checked_add(size).ok_or(())?)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let last = range.end.min(self.bytes.len() as u64);
        let mut at = range.start;
        let farthest = last.min(at.saturating_add(LONGEST_TEXT));
        while at < farthest {
            let page = at / PAGE;
            if !self.known.get(page as usize).copied().unwrap_or(false) {
                self.need(page..last.min((page + 1) * PAGE + AHEAD).div_ceil(PAGE));
                return Err(());
            }
            let next = farthest.min((page + 1) * PAGE);
            let part = self.bytes.get(at as usize..next as usize).ok_or(())?;
            if let Some(end) = part.iter().position(|byte| *byte == delimiter) {
                return self.bytes.get(range.start as usize..at as usize + end).ok_or(());
            }
            at = next;
        }
        Err(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_needed() {
        let mut file = PartialFile::new(10_000).unwrap();
        assert_eq!((&file).read_bytes_at(5000, 10), Err(()));
        assert_eq!(file.needed(), Some(4096..8192));
        assert_eq!(file.needed(), None);
        file.put(4096, &[7; 4096]);
        assert_eq!((&file).read_bytes_at(5000, 10), Ok(&[7; 10][..]));
        assert_eq!((&file).read_bytes_at(8000, 1000), Err(()));
        assert_eq!(file.needed(), Some(8192..12288));
        file.put(8192, &[8; 4096]);
        assert_eq!((&file).read_bytes_at(9990, 10), Ok(&[8; 10][..]));
        assert_eq!((&file).read_bytes_at(9990, 11), Err(()), "it ends there");
        assert_eq!(file.needed(), None);
        assert_eq!((&file).read_bytes_at_until(8000..9000, 8), Ok(&[7; 192][..]));
        assert_eq!((&file).read_bytes_at(u64::MAX, 2), Err(()));
    }

    #[test]
    fn a_text_without_an_end_is_none() {
        let mut file = PartialFile::new(1 << 20).unwrap();
        file.put(0, &vec![7; 1 << 20]);
        assert_eq!((&file).read_bytes_at_until(5..1 << 20, 0), Err(()));
        assert_eq!((file.needed(), file.has_refused()), (None, false));
        file.put(LONGEST_TEXT, &[0]);
        let text = (&file).read_bytes_at_until(5..1 << 20, 0).unwrap();
        assert_eq!(text.len() as u64, LONGEST_TEXT - 5);
    }

    #[test]
    fn nothing_is_kept_of_what_no_program_has() {
        assert!(PartialFile::new(LARGEST + 1).is_none());
        let mut file = PartialFile::new(LONGEST + 1).unwrap();
        assert_eq!((&file).read_bytes_at(0, LONGEST + 1), Err(()));
        assert_eq!((file.needed(), file.has_refused()), (None, true));
        file.put(u64::MAX - 4095, &[1; 4096]);
        assert!((&PartialFile::new(0).unwrap()).read_bytes_at(0, 1).is_err());
    }
}
