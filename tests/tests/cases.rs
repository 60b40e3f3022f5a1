//! `vmm test`: files of cases come to exactly these verdicts, and parts of them unite to the whole.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use tests::cases::{UNRECORDED, file, keep_from_recording, verdicts};
use tests::kernel::is_default;
use tests::product::{Ended, binary, command};

/// What `vmm test` says of a file of cases.
fn test(name: &str, words: &[&str], folder: &Path) -> Option<Output> {
    let (binary, file) = (binary()?, file(name));
    let words = [&["test", file.to_str().unwrap()], words].concat();
    Some(command(&binary, folder, &words).output().ended())
}

/// What comes of the cases of `verdicts.toml`.
const EXPECTED: [(&str, &str); 9] = [
    ("a forbidden hit fails", "failed"),
    ("a guest that dies fails", "failed"),
    ("a module that nobody loads leaves it open", "inconclusive"),
    ("another order fails", "failed"),
    ("another value fails", "failed"),
    ("hits are counted, in order, with what they have read", "passed"),
    ("subtests are results of their own", "failed"),
    (UNRECORDED, "infrastructure"),
    ("what the kernel lacks is skipped", "skipped"),
];

#[test]
fn every_verdict_comes_of_its_case_and_parts_unite_to_the_whole() {
    if !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let part = |index: &str, output: &Path| {
        keep_from_recording(output, 7, "debian:6.12");
        let words =
            ["test", file("verdicts.toml").to_str().unwrap(), "--jobs=1", "--retries=1", "--shard=auto"]
                .map(str::to_owned);
        let mut words = words.to_vec();
        words.extend(["--shards=2".to_owned(), format!("--output={}", output.display())]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut part = command(&binary, folder.path(), &words);
        part.env("JOB_COMPLETION_INDEX", index).stdout(Stdio::piped()).spawn().unwrap()
    };
    let parts = [part("0", &first), part("1", &second)];
    for part in parts {
        // Each part has a case that fails.
        assert_eq!(part.wait_with_output().ended().status.code(), Some(1));
    }
    let (xml, page) = (folder.path().join("junit.xml"), folder.path().join("page.html"));
    let words = [
        "test",
        "--merge",
        first.to_str().unwrap(),
        second.to_str().unwrap(),
        "--format=json",
        "--junit",
        xml.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ];
    // No guest runs: no host and no kernel are named.
    let merged = std::process::Command::new(&binary).args(words).output().unwrap();
    assert_eq!(merged.status.code(), Some(1), "{}", String::from_utf8_lossy(&merged.stderr));
    let verdicts = verdicts(&merged);
    let found: Vec<_> = verdicts.iter().map(|case| (case.name.as_str(), case.verdict.as_str())).collect();
    assert_eq!(found, EXPECTED);
    let text = String::from_utf8(merged.stdout).unwrap();
    let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
    // What could not be run was run once more, and nothing else.
    assert!(line("cannot be recorded").contains("\"attempts\":2"), "{text}");
    assert!(line("a forbidden hit").contains("\"attempts\":1"), "{text}");
    let xml = fs::read_to_string(&xml).unwrap();
    let counts = "tests=\"11\" skipped=\"1\" failures=\"6\" errors=\"2\"";
    assert!(xml.contains(counts) && xml.contains("&lt;bad&gt;"), "{xml}");
    page_of_parts(&binary, &page, [&second, &first]);
    let missing = std::process::Command::new(&binary).args(["test", "--merge"]).arg(&first).output().unwrap();
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("was run by no part"), "{said}");
}

/// `page` shows what the parts have kept, and is the same of these parts in another order.
fn page_of_parts(binary: &Path, page: &Path, parts: [&Path; 2]) {
    let other = page.with_file_name("other.html");
    let mut merge = std::process::Command::new(binary);
    merge.args(["test", "--merge"]).args(parts).arg("--html").arg(&other).output().unwrap();
    let text = fs::read_to_string(page).unwrap();
    assert!(text == fs::read_to_string(&other).unwrap());
    for shown in ["Report of the kernel", "Kernel panic", "&lt;bad&gt;: failed", "workload=panic"] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
}

#[test]
fn promises_of_the_product_hold_as_cases() {
    if !is_default() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = test("product.toml", &["--format=json"], folder.path()) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{:?} {said}", verdicts(&output));
    assert_eq!(verdicts(&output).len(), 8);
}

#[test]
fn a_mistake_is_shown_at_its_place_and_boots_nothing() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cases.toml");
    let begin = "[[test]]\nname = 'a'\nrun = 'true'\n";
    let probe = format!("{begin}[[test.probe]]\nid = 'open'\nhits = 1\nat = ");
    for (text, place, says) in [
        ("[[test]]\nnmae = 'a'\n".to_owned(), "2:1", "`name`"),
        (format!("{begin}exit = 'no'\n"), "4:8", "invalid type"),
        (format!("{begin}requires = ['function']\n"), "4:13", "`function:`"),
        (format!("{begin}[test.order]\nsequence = ['open']\n"), "5:13", "there is no probe `open`"),
        (format!("{probe}'do_sys_openat2 filename:strng'\n"), "7:31", "did you mean `string`"),
        (format!("{probe}\"do_sys_opena2\"\n"), "7:6", "do_sys_openat2"),
        (format!("{probe}'vfs_read'\np99 = '<= 3 x open'\n"), "8:7", "probes no returns"),
        (format!("{probe}'vfs_read'\nargs = [{{ cuont = 1 }}]\n"), "8:11", "there is `count`"),
        (format!("{probe}'no_such_module:f'\n"), "7:6", "there is no module `no_such_module`"),
        (format!("{probe}'nosuch:vfs_read'\n"), "7:6", "leave out `nosuch:`"),
        (probe.replace("run = 'true'", "") + "'dummy:f'\n", "7:6", "in the guest's initramfs"),
        ("[[test]]\nname = 'a'\ninitrd = 'none'\n".to_owned(), "3:10", "there is no none"),
    ] {
        fs::write(&path, &text).unwrap();
        let words = ["test", path.to_str().unwrap()];
        let output = command(&binary, folder.path(), &words).output().ended();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}\n{said}");
        assert!(said.contains(&format!("cases.toml:{place}")) && said.contains(says), "{text}\n{said}");
    }
}
