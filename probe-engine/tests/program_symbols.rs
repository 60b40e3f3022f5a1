//! Which function a name means, in a library that the machine's own C compiler has made.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::linux::program_file::{NoPlace, ProgramDebug, list};
use probe_engine::linux::program_place::InFile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = r#"
int first(void) { return 1; }
int second(void) { return 2; }
int third(void) { return 3; }
__asm__(".symver first,twice@V_1");
__asm__(".symver second,twice@@V_2");
__asm__(".symver third,gone@V_1");
static int found(void) { return 4; }
static void *find(void) { return found; }
int chosen(void) __attribute__((ifunc("find")));
"#;
const VERSIONS: &str =
    "V_1 { global: twice; gone; }; V_2 { global: twice; chosen; first; second; third; local: *; } V_1;";

/// A library with several versions of a function, whose symbols are all there, or only those that programs are linked with.
fn library(is_stripped: bool) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [source, versions, library] =
        ["versions.c", "versions.map", "versions.so"].map(|name| folder.join(name));
    fs::write(&source, SOURCE).unwrap();
    fs::write(&versions, VERSIONS).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1"]).args(is_stripped.then_some("-s"));
    compiler.arg(format!("-Wl,--version-script={}", versions.display())).arg("-o").arg(&library).arg(&source);
    assert!(compiler.status().expect("a C compiler, as Rust's linker needs it, is there").success());
    library
}

#[test]
fn of_several_versions_that_is_meant_which_programs_get() {
    for is_stripped in [false, true] {
        let bytes = fs::read(library(is_stripped)).unwrap();
        let debug = ProgramDebug::read(bytes.clone(), |_| None).unwrap();
        let find = |name: &str| {
            let at = InFile::Symbol { name: name.to_owned(), offset: 0 };
            debug.find(&at).map(|found| found.offset)
        };
        let [first, second, third] = ["first", "second", "third"].map(|name| find(name).unwrap());
        for (name, expected) in [
            ("twice", second),
            ("twice@@V_2", second),
            ("twice@V_2", second),
            ("twice@V_1", first),
            // There is no other one.
            ("gone", third),
        ] {
            assert_eq!(find(name), Ok(expected), "{name}, stripped: {is_stripped}");
        }
        let missing = |name: &str, nearest: &[&str]| {
            let nearest = nearest.iter().copied().map(str::to_owned).collect();
            assert_eq!(find(name), Err(NoPlace::NoSymbol { name: name.to_owned(), nearest }));
        };
        missing("twice@V_3", &["twice"]);
        missing("twise", &["twice"]);
        missing("nothing_of_the_kind", &[]);
        let check = |at: InFile| debug.check(&at).is_ok();
        let functions = |pattern: &str| check(InFile::Functions(pattern.to_owned()));
        assert!(functions("tw*") && functions("tw[hi]ce") && !functions("tv*"));
        assert!(check(InFile::Offset(first)) && !check(InFile::Offset(4)));
        assert!(!check(InFile::Tracepoint { provider: "a".to_owned(), name: "b".to_owned() }));
        assert_eq!(find("chosen"), Err(NoPlace::Indirect("chosen".to_owned())));
        let listed = list(&bytes).unwrap().functions;
        let is_indirect = listed.iter().find(|function| function.name == "chosen").map(|own| own.is_indirect);
        assert_eq!(is_indirect, Some(true));
    }
}
