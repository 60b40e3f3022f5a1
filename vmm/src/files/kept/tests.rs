//! Files of guests that send what they like.

use super::*;
use crate::dropped::testing::{left, stream};
use crate::dropped::{DEEPEST, LONGEST_NAME, StreamReader};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use tempfile::TempDir;

/// A folder `in` beside a file that nobody may change, and what came of a stream there.
fn kept(bytes: &[u8], prepare: impl FnOnce(&Path)) -> (TempDir, KeptFolder) {
    let all = tempfile::tempdir().unwrap();
    fs::write(all.path().join("beside"), "untouched").unwrap();
    let folder = all.path().join("in");
    fs::create_dir(&folder).unwrap();
    prepare(&folder);
    let mut kept = KeptFolder::open(&folder).unwrap();
    let mut reader = StreamReader::default();
    for piece in bytes.chunks(1000) {
        let _ = reader.read(piece, |part| {
            kept.take(&part);
            Ok(())
        });
    }
    kept.finish();
    assert_eq!(fs::read(all.path().join("beside")).unwrap(), b"untouched");
    assert_eq!(fs::read_dir(all.path()).unwrap().count(), 2, "something was made beside the folder");
    (all, kept)
}

/// What is said of files.
fn said(told: &Told) -> Vec<String> {
    told.first.iter().map(|error| format!("{error}: {}", error.source().unwrap())).collect()
}

/// All files below: their paths, and what is in them.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(open) = folders.pop() {
        for entry in fs::read_dir(open).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            assert!(kind.is_dir() || kind.is_file());
            assert!(!entry.file_name().to_str().unwrap().chars().any(char::is_control));
            let path = entry.path();
            if kind.is_dir() {
                folders.push(path);
            } else {
                let below = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                found.insert(below, fs::read(path).unwrap());
            }
        }
    }
    found
}

fn file<'a>(path: &[u8], bytes: &'a [u8]) -> (LeftFile, &'a [u8], Sent) {
    (left(path, FileKind::Regular, bytes.len() as u64), bytes, Sent::Whole)
}

#[test]
fn files_are_made_below_the_folder_and_nobody_runs_them() {
    let other = |path: &[u8], kind, bytes: &'static [u8]| (left(path, kind, 1), bytes, Sent::Whole);
    let cut = (left(b"cut", FileKind::Regular, 9), &b"half"[..], Sent::Unread);
    let bytes = stream(&[
        file(b"tmp/x/dropped", b"payload"),
        file(b"etc/motd", b"changed"),
        other(b"tmp/shadow", FileKind::Link, b"/etc/shadow"),
        other(b"tmp/pipe", FileKind::Fifo, b""),
        other(b"tmp/null", FileKind::Device, b""),
        file(b"tmp/\x1b[2J\n", b"named"),
        cut,
    ]);
    let (all, kept) = kept(&bytes, |_| {});
    let folder = all.path().join("in");
    assert_eq!((kept.made, said(&kept.lost), said(&kept.elsewhere)), (3, vec![], vec![]));
    for (path, contents) in
        [("tmp/x/dropped", "payload"), ("etc/motd", "changed"), ("tmp/\\x1b[2J\\n", "named")]
    {
        assert_eq!(fs::read_to_string(folder.join(path)).unwrap(), contents);
        assert_eq!(fs::metadata(folder.join(path)).unwrap().mode(), libc::S_IFREG | 0o600, "{path}");
    }
    assert_eq!(fs::metadata(folder.join("tmp/x")).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(fs::read_dir(folder.join("tmp")).unwrap().count(), 2);
    assert!(!folder.join("cut").exists());
}

#[test]
fn no_name_that_the_guest_chooses_keeps_a_file_from_being_made() {
    let long = [b'\xff'; LONGEST_NAME];
    let deep = [&b"\xff".repeat(LONGEST_NAME / 4)[..], b"/"].concat().repeat(DEEPEST / 3);
    let below = |folder: &[u8]| [folder, b"/x"].concat();
    let bytes = stream(&[
        file(b"a", b"first"),
        file(b"a", b"second"),
        file(b"a/b", b"below a file"),
        file(&long, b"longer with its escapes"),
        file(&below(&long), b"below such a folder"),
        file(&below(&deep[..deep.len() - 1]), b"a long way below"),
        file(b"\x9b", b"a byte"),
        file(b"\xc2\x9b", b"a character"),
        file(b"last", b"made"),
    ]);
    let (all, kept) = kept(&bytes, |_| {});
    let expected = [
        ("a", "first"),
        ("\\file-2", "second"),
        ("\\file-3", "below a file"),
        ("\\file-4", "longer with its escapes"),
        ("\\file-5", "below such a folder"),
        ("\\file-6", "a long way below"),
        ("\\x9b", "a byte"),
        ("\\u{9b}", "a character"),
        ("last", "made"),
    ];
    let expected = expected.map(|(path, bytes)| (path.to_owned(), bytes.as_bytes().to_vec()));
    assert_eq!(files(&all.path().join("in")), expected.into());
    assert_eq!((kept.made, said(&kept.lost)), (9, vec![]));
    let elsewhere = said(&kept.elsewhere);
    for (said, (what, why)) in elsewhere.iter().zip([
        ("a is kept as \\file-2: ", "File exists"),
        ("a/b is kept as \\file-3: ", "Not a directory"),
        ("\\xff\\xff", "File name too long"),
        ("\\xff\\xff", "File name too long"),
        ("\\xff\\xff", "File name too long"),
    ]) {
        assert!(said.starts_with(what) && said.contains(why), "{said}");
    }
    assert_eq!(elsewhere.len(), 5);
}

#[test]
fn no_more_folders_are_made_than_there_may_be() {
    let all = tempfile::tempdir().unwrap();
    let mut kept = KeptFolder::open(all.path()).unwrap();
    // What is not kept has had its folders.
    kept.folders = MOST_FOLDERS - 1;
    for path in [&b"a/b/c"[..], b"d/e", b"a/f"] {
        kept.take(&Part::Begin(&left(path, FileKind::Regular, 1)));
        kept.take(&Part::Sent(Sent::Whole));
    }
    assert_eq!((kept.finish(), kept.folders), (3, MOST_FOLDERS));
    let expected = ["a/f", "\\file-1", "\\file-2"].map(|path| (path.to_owned(), vec![]));
    assert_eq!(files(all.path()), expected.into());
    assert!(said(&kept.elsewhere)[0].ends_with("20000 folders have been made"));
}

#[test]
fn what_cannot_be_made_is_said_and_the_others_are_made() {
    let bytes =
        stream(&[file(b"link/x", b"through a link"), file(b"name", b"over a link"), file(b"last", b"made")]);
    let (all, kept) = kept(&bytes, |folder| {
        symlink("..", folder.join("link")).unwrap();
        symlink("../beside", folder.join("name")).unwrap();
        fs::write(folder.join(by_number(2)), "was there").unwrap();
    });
    assert_eq!(kept.made, 2);
    let folder = all.path().join("in");
    assert_eq!(fs::read_to_string(folder.join(by_number(1))).unwrap(), "through a link");
    assert_eq!(fs::read_to_string(folder.join(by_number(2))).unwrap(), "was there");
    let [lost] = &said(&kept.lost)[..] else { panic!("{:?}", kept.lost) };
    assert!(lost.starts_with("name is not kept: File exists"), "{lost}");
}

#[test]
fn no_number_of_files_made_elsewhere_hides_one_that_is_lost() {
    let mut files: Vec<_> = (0..20).map(|_| file(b"a", b"x")).collect();
    files.push(file(b"a", b"lost"));
    let (_all, kept) = kept(&stream(&files), |folder| {
        fs::write(folder.join(by_number(21)), "was there").unwrap();
    });
    assert_eq!((kept.elsewhere.first.len(), kept.elsewhere.more), (MOST_TOLD, 9));
    assert_eq!((kept.lost.first.len(), kept.lost.more), (1, 0));
}

#[test]
fn a_file_of_which_the_stream_breaks_off_is_not_kept() {
    let bytes = stream(&[file(b"whole", b"1"), file(b"half", &[b'x'; 5000])]);
    let (all, kept) = kept(&bytes[..2000], |_| {});
    assert_eq!(kept.made, 1);
    assert!(all.path().join("in/whole").exists() && !all.path().join("in/half").exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever the names, everything is a regular file or a folder, and lies below, and every file that was let through is there.
    #[test]
    fn nothing_is_made_elsewhere(
        paths in prop::collection::vec("(\\.\\.|\\.|[a-c]|/|\\x00|\u{1b}|\n|\u{e9}){1,12}", 1..8),
    ) {
        let through = paths.iter().take_while(|path| names(path.as_bytes()).is_some()).count();
        let files_sent: Vec<_> = paths.iter().map(|path| file(path.as_bytes(), b"x")).collect();
        let (all, kept) = kept(&stream(&files_sent), |_| {});
        prop_assert_eq!(kept.made, through as u64);
        prop_assert_eq!(files(&all.path().join("in")).len(), through);
    }
}
