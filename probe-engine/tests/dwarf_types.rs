//! The types that are made of a real kernel's debugging information, compared with those that pahole has made of it: the
//! kernel's own BTF.
//!
//! VMM_TEST_VMLINUX names an ELF vmlinux that has both: without it there is nothing to compare, and the test says so.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::time::Instant;
use std::{env, fs};

use probe_engine::linux::btf::{Btf, Kind, c};
use probe_engine::linux::dwarf::{self, DebugFile};
use probe_engine::linux::vmlinux::Vmlinux;

#[test]
fn types_and_functions_are_those_of_pahole() {
    let Ok(path) = env::var("VMM_TEST_VMLINUX") else {
        eprintln!("nothing is compared: VMM_TEST_VMLINUX does not name a vmlinux");
        return;
    };
    let file = fs::read(path).unwrap();
    let start = Instant::now();
    let section = dwarf::btf(&DebugFile::read(&file).unwrap()).unwrap();
    let ours = Btf::parse(&section).unwrap();
    eprintln!("{} types in {} bytes in {:.1?}", ours.type_count(), section.len(), start.elapsed());
    let image = Vmlinux::parse(file).unwrap();
    let theirs = Btf::parse(image.section(".BTF").unwrap().bytes).unwrap();
    eprintln!(
        "pahole: {} types in {} bytes",
        theirs.type_count(),
        image.section(".BTF").unwrap().bytes.len()
    );
    let (mut same, mut all, mut shown) = (0, 0, 0);
    let mut functions = (0, 0);
    for ty in theirs.types().filter(|ty| !ty.name().is_empty()) {
        match ty.kind {
            Kind::Structure(_) | Kind::Enumeration(_) => {
                let text = c::definition(&theirs, ty);
                let found = ours.named(ty.name()).any(|own| c::definition(&ours, own) == text);
                all += 1;
                same += usize::from(found);
                if !found && shown < 20 {
                    shown += 1;
                    let own: Vec<_> = ours.named(ty.name()).map(|own| c::definition(&ours, own)).collect();
                    eprintln!("{text}\n--- ours\n{}", own.join("\n"));
                }
            }
            Kind::Function { .. } => {
                let text = |btf: &Btf<'_>| btf.function(ty.name()).map(|found| c::prototype(btf, found));
                functions.1 += 1;
                let is_same = text(&ours) == text(&theirs);
                functions.0 += usize::from(is_same);
                if !is_same && functions.1 - functions.0 < 20 {
                    eprintln!("{:?}\n--- ours {:?}", text(&theirs), text(&ours));
                }
            }
            _ => {}
        }
    }
    eprintln!(
        "of {all} structures, unions and enumerations {same} are the same, of {} functions {}",
        functions.1, functions.0
    );
    // An array of arrays is one array to pahole; and of several functions or typedefs of one name it chooses another.
    assert!(same * 1000 >= all * 995, "{same} of {all} structures are the same");
    assert!(
        functions.0 * 1000 >= functions.1 * 990,
        "{} of {} functions are the same",
        functions.0,
        functions.1
    );
}
