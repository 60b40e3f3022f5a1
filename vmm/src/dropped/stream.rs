//! The stream by which files leave a guest.
//!
//! Each part of it is a kind (u8), the length of what follows (u32, little endian, at most [`LONGEST`]), and that many bytes:
//!
//! ```text
//! BEGIN   a file: its kind (u8), whether it is new (u8), mode (u32), size (u64), time (u64), path
//! BYTES   the next bytes of it
//! SENT    what came of it (u8): it has no more bytes
//! END     no file follows; whether there would be more of them (u8)
//! ```

use super::{FileKind, LONGEST_PATH, LeftFile, MOST_FILES, MOST_IN_ALL, MOST_OF_NAMES, Sent, names};
use std::io::{self, Write};

/// The most bytes of one part, without what stands before them.
const LONGEST: usize = 32 << 10;
/// What stands before them: kind and length.
const HEADER: usize = 5;
/// What a file has before its path.
const FIXED: usize = 22;

mod kind {
    pub(super) const BEGIN: u8 = 1;
    pub(super) const BYTES: u8 = 2;
    pub(super) const SENT: u8 = 3;
    pub(super) const END: u8 = 4;
}

/// A part of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// A file begins.
    Begin(&'a LeftFile),
    /// The next bytes of a file, or of a link's target.
    Bytes(&'a [u8]),
    /// The file has no more bytes.
    Sent(Sent),
    /// No file follows.
    End {
        /// Whether there are more files than those that were told of.
        has_more: bool,
    },
}

/// Why a stream is not read on.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// A part has another form than all that a guest's init sends.
    #[error("what the guest sends of its files makes no sense")]
    Form,
    /// A path is none of a file below the root.
    #[error("the guest sends a path that is none of a file below its root")]
    Path,
    /// There are more files, or more bytes, than are sent.
    #[error("the guest sends more than it may")]
    Much,
    /// Whoever takes the parts could not.
    #[error(transparent)]
    Taker(#[from] io::Error),
}

/// Writes a part. `Bytes` may have [any length](Part::Bytes).
pub(crate) fn write(out: &mut impl Write, part: &Part<'_>) -> io::Result<()> {
    match part {
        Part::Begin(LeftFile { path, kind: of, is_new, mode, size, modified_ns }) => {
            let path = path.get(..LONGEST_PATH.min(path.len())).unwrap_or_default();
            begin(out, kind::BEGIN, FIXED + path.len())?;
            out.write_all(&[*of as u8, u8::from(*is_new)])?;
            out.write_all(&mode.to_le_bytes())?;
            out.write_all(&size.to_le_bytes())?;
            out.write_all(&modified_ns.to_le_bytes())?;
            out.write_all(path)
        }
        Part::Bytes(bytes) => bytes.chunks(LONGEST).try_for_each(|bytes| {
            begin(out, kind::BYTES, bytes.len())?;
            out.write_all(bytes)
        }),
        Part::Sent(sent) => {
            begin(out, kind::SENT, 1)?;
            out.write_all(&[*sent as u8])
        }
        Part::End { has_more } => {
            begin(out, kind::END, 1)?;
            out.write_all(&[u8::from(*has_more)])
        }
    }
}

fn begin(out: &mut impl Write, kind: u8, length: usize) -> io::Result<()> {
    let length = u32::try_from(length).map_err(io::Error::other)?;
    out.write_all(&[kind])?;
    out.write_all(&length.to_le_bytes())
}

/// Reads a stream as it comes in, in pieces of any length.
#[derive(Default)]
pub struct StreamReader {
    /// What has come of a part that is not whole.
    begun: Vec<u8>,
    /// The file that is being sent, and how many bytes of it have come.
    open: Option<(LeftFile, u64)>,
    files: usize,
    bytes: u64,
    /// How many bytes paths and targets of links have.
    named: usize,
    /// Whether nothing more is read, and whether the stream was whole.
    end: Option<bool>,
}

impl StreamReader {
    /// Whether all files have come that were to come.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.end == Some(true)
    }

    /// Hands the parts that are whole with `bytes` to `take`. After an error nothing is read any more, and there is no other one.
    ///
    /// # Errors
    /// [`StreamError`].
    pub fn read(
        &mut self,
        bytes: &[u8],
        mut take: impl FnMut(Part<'_>) -> io::Result<()>,
    ) -> Result<(), StreamError> {
        if self.end.is_some() {
            return Ok(());
        }
        self.begun.extend_from_slice(bytes);
        let mut begun = std::mem::take(&mut self.begun);
        let mut rest = &begun[..];
        let read = loop {
            match self.part(rest, &mut take) {
                Ok(Some(behind)) if self.end.is_none() => rest = behind,
                Ok(_) => break Ok(()),
                Err(error) => {
                    self.end = Some(false);
                    break Err(error);
                }
            }
        };
        let used = begun.len() - rest.len();
        begun.drain(..used);
        if self.end.is_none() {
            self.begun = begun;
        }
        read
    }

    /// Hands the first part of `bytes` on; what is behind the part, where it is whole.
    fn part<'a>(
        &mut self,
        bytes: &'a [u8],
        take: &mut impl FnMut(Part<'_>) -> io::Result<()>,
    ) -> Result<Option<&'a [u8]>, StreamError> {
        let Some((header, behind)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [kind, length @ ..] = *header;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(StreamError::Form);
        }
        let Some((payload, behind)) = behind.split_at_checked(length) else { return Ok(None) };
        match (kind, &mut self.open, payload) {
            (kind::BEGIN, None, payload) => {
                let file = file(payload).ok_or(StreamError::Form)?;
                names(&file.path).ok_or(StreamError::Path)?;
                self.files += 1;
                self.named += file.path.len();
                if self.files > MOST_FILES || self.named > MOST_OF_NAMES {
                    return Err(StreamError::Much);
                }
                take(Part::Begin(&file))?;
                self.open = Some((file, 0));
            }
            (kind::BYTES, Some((file, came)), payload) => {
                *came += payload.len() as u64;
                match file.kind {
                    FileKind::Link => self.named += payload.len(),
                    _ => self.bytes += payload.len() as u64,
                }
                if *came > file.kind.most() || self.bytes > MOST_IN_ALL || self.named > MOST_OF_NAMES {
                    return Err(StreamError::Much);
                }
                take(Part::Bytes(payload))?;
            }
            (kind::SENT, Some(_), [sent]) => {
                take(Part::Sent(Sent::of(*sent).ok_or(StreamError::Form)?))?;
                self.open = None;
            }
            (kind::END, None, [has_more @ (0 | 1)]) => {
                take(Part::End { has_more: *has_more == 1 })?;
                self.end = Some(true);
            }
            _ => return Err(StreamError::Form),
        }
        Ok(Some(behind))
    }
}

/// The file that a part begins.
fn file(payload: &[u8]) -> Option<LeftFile> {
    let ([kind, is_new @ (0 | 1)], rest) = payload.split_first_chunk()? else { return None };
    let (mode, rest) = rest.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let (modified, path) = rest.split_first_chunk()?;
    Some(LeftFile {
        path: path.to_vec(),
        kind: FileKind::of(*kind)?,
        is_new: *is_new == 1,
        mode: u32::from_le_bytes(*mode) & 0o7777,
        size: u64::from_le_bytes(*size),
        modified_ns: u64::from_le_bytes(*modified),
    })
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A stream of these files with their bytes.
    pub(crate) fn stream(files: &[(LeftFile, &[u8], Sent)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (file, bytes, sent) in files {
            for part in [Part::Begin(file), Part::Bytes(bytes), Part::Sent(*sent)] {
                write(&mut out, &part).unwrap();
            }
        }
        write(&mut out, &Part::End { has_more: false }).unwrap();
        out
    }

    pub(crate) fn left(path: &[u8], kind: FileKind, size: u64) -> LeftFile {
        LeftFile { path: path.to_vec(), kind, is_new: true, mode: 0o4755, size, modified_ns: 7 }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{left, stream};
    use super::*;
    use crate::dropped::{LONGEST_NAME, MOST_OF_A_FILE};
    use proptest::prelude::*;

    /// Reads `bytes` in pieces of this length: the parts in words, those of bytes joined, and why no more was read.
    fn read(bytes: &[u8], piece: usize) -> (Vec<String>, bool, Option<String>) {
        let (mut reader, mut parts, mut contents) = (StreamReader::default(), Vec::new(), Vec::new());
        let mut error = None;
        for bytes in bytes.chunks(piece.max(1)) {
            let read = reader.read(bytes, |part| {
                match part {
                    Part::Begin(file) => parts.push(file.path.escape_ascii().to_string()),
                    Part::Bytes(bytes) => contents.extend_from_slice(bytes),
                    Part::Sent(sent) => parts.push(format!("{} bytes {sent:?}", contents.len())),
                    Part::End { has_more } => parts.push(format!("end {has_more}")),
                }
                Ok(())
            });
            if let Err(why) = read {
                assert!(error.is_none());
                error = Some(why.to_string());
            }
        }
        (parts, reader.is_whole(), error)
    }

    #[test]
    fn what_was_written_is_read_however_it_comes() {
        let large = vec![b'x'; 3 * LONGEST + 1];
        let files = [
            (left(b"tmp/a", FileKind::Regular, 3), &b"abc"[..], Sent::Whole),
            (left(b"tmp/\xff\n", FileKind::Link, 11), b"/etc/shadow", Sent::Whole),
            (left(b"large", FileKind::Regular, 1 << 40), &large, Sent::TooLarge),
        ];
        let bytes = stream(&files);
        for piece in [1, 7, 4096, bytes.len()] {
            let (parts, is_whole, error) = read(&bytes, piece);
            let total = 14 + large.len();
            let last = format!("{total} bytes TooLarge");
            let expected =
                ["tmp/a", "3 bytes Whole", "tmp/\\xff\\n", "14 bytes Whole", "large", &last, "end false"];
            assert_eq!((parts, is_whole, error), (expected.map(str::to_owned).to_vec(), true, None));
        }
        let (parts, is_whole, error) = read(&bytes[..bytes.len() - 1], 100);
        assert_eq!((parts.len(), is_whole, error), (6, false, None), "it is cut");
    }

    #[test]
    fn what_no_init_sends_ends_the_reading() {
        let part =
            |kind: u8, payload: &[u8]| [&[kind][..], &(payload.len() as u32).to_le_bytes(), payload].concat();
        let begin = |path: &[u8], kind: FileKind| {
            let mut out = Vec::new();
            write(&mut out, &Part::Begin(&left(path, kind, 1))).unwrap();
            out
        };
        let file = begin(b"f", FileKind::Regular);
        let sent = part(kind::SENT, &[Sent::Whole as u8]);
        let many = [&file[..], &sent].concat().repeat(MOST_FILES + 1);
        let form = "what the guest sends of its files makes no sense";
        let path = "the guest sends a path that is none of a file below its root";
        let much = "the guest sends more than it may";
        for (bytes, why) in [
            (part(9, b""), form),
            (part(kind::BYTES, b"of nothing"), form),
            (sent.clone(), form),
            ([&file[..], &file].concat(), form),
            ([&file[..], &part(kind::END, &[0])].concat(), form),
            (part(kind::END, &[2]), form),
            (part(kind::END, &[]), form),
            ([&file[..], &part(kind::SENT, &[9])].concat(), form),
            (part(kind::BEGIN, &[1; FIXED - 1]), form),
            (part(kind::BEGIN, &[&[9][..], &[0; FIXED - 1], b"f"].concat()), form),
            (part(kind::BEGIN, &[&[1, 2][..], &[0; FIXED - 2], b"f"].concat()), form),
            (part(kind::BYTES, &[])[..1].iter().copied().chain([0xff; 4]).collect(), form),
            (begin(b"../up", FileKind::Regular), path),
            (begin(b"/etc/passwd", FileKind::Regular), path),
            (begin(b"", FileKind::Regular), path),
            ([begin(b"f", FileKind::Fifo), part(kind::BYTES, b"x")].concat(), much),
            ([begin(b"f", FileKind::Link), part(kind::BYTES, &[b'x'; LONGEST_PATH + 1])].concat(), much),
            (many, much),
        ] {
            let (_, is_whole, error) = read(&bytes, 64 << 10);
            assert_eq!((is_whole, error.as_deref()), (false, Some(why)), "{}", bytes[..9].escape_ascii());
        }
    }

    #[test]
    fn no_file_and_not_all_of_them_have_more_bytes_than_they_may() {
        let mut reader = StreamReader::default();
        let (mut out, block) = (Vec::new(), vec![0; 1 << 20]);
        let mut total = 0;
        let mut feed = |part: Part<'_>| {
            out.clear();
            write(&mut out, &part).unwrap();
            reader.read(&out, |part| {
                total += if let Part::Bytes(bytes) = part { bytes.len() as u64 } else { 0 };
                Ok(())
            })
        };
        let mebibytes = MOST_OF_A_FILE >> 20;
        for _ in 0..MOST_IN_ALL / MOST_OF_A_FILE {
            feed(Part::Begin(&left(b"f", FileKind::Regular, 0))).unwrap();
            (0..mebibytes).for_each(|_| feed(Part::Bytes(&block)).unwrap());
            feed(Part::Sent(Sent::Whole)).unwrap();
        }
        feed(Part::Begin(&left(b"f", FileKind::Regular, 0))).unwrap();
        assert!(matches!(feed(Part::Bytes(b"x")), Err(StreamError::Much)));
        assert_eq!(total, MOST_IN_ALL);
    }

    #[test]
    fn all_names_together_have_no_more_bytes_than_they_may() {
        let path = [&b"n".repeat(LONGEST_NAME)[..], b"/"].concat().repeat(LONGEST_PATH / (LONGEST_NAME + 1));
        let path = &path[..path.len() - 1];
        let target = vec![b't'; LONGEST_PATH];
        let link = (left(path, FileKind::Link, 0), &target[..], Sent::Whole);
        let one = path.len() + target.len();
        let links = |n| stream(&vec![link.clone(); n]);
        let (_, is_whole, error) = read(&links(MOST_OF_NAMES / one), 64 << 10);
        assert_eq!((is_whole, error), (true, None));
        let (_, is_whole, error) = read(&links(MOST_OF_NAMES / one + 1), 64 << 10);
        assert_eq!((is_whole, error.as_deref()), (false, Some("the guest sends more than it may")));
    }

    proptest! {
        /// Whatever comes, in whatever pieces, is read in the same way, and keeps no more than a part.
        #[test]
        fn what_is_read_does_not_depend_on_pieces(
            parts in prop::collection::vec((0_u8..6, prop::collection::vec(any::<u8>(), 0..64)), 0..12),
            piece in 1_usize..200,
        ) {
            let bytes: Vec<u8> = parts
                .iter()
                .flat_map(|(kind, payload)| {
                    [&[*kind][..], &(payload.len() as u32).to_le_bytes(), payload].concat()
                })
                .collect();
            let whole = read(&bytes, bytes.len());
            prop_assert_eq!(read(&bytes, piece), whole);
            let mut reader = StreamReader::default();
            let _ = reader.read(&bytes, |_| Ok(()));
            prop_assert!(reader.begun.len() <= LONGEST + HEADER);
        }
    }
}
