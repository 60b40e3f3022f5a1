use proptest::prelude::*;

use super::super::testing::{CLOSE, OPEN, damage, sections, vmlinux};
use super::*;
use crate::linux::btf::Btf;
use crate::linux::testing;
use crate::regs::Register;

/// What has a name so many bytes behind the start of `open`: each with its size and where it is.
fn named(offset: u64) -> Vec<String> {
    let file = vmlinux(&sections());
    let file = DebugFile::read(&file).unwrap();
    assert!(file.variables_at(OPEN.add(0x60)).unwrap().variables.is_empty(), "no code is there");
    let scope = file.variables_at(OPEN.add(offset)).unwrap();
    let btf = Btf::parse(&scope.types).unwrap();
    let shown = |variable: &LocalVariable| {
        let size = btf.size(variable.ty.unwrap()).unwrap();
        let place = match variable.place {
            Ok(VariablePlace::Register(register)) => register.name().to_owned(),
            Ok(VariablePlace::Memory(register, offset)) => format!("{offset}({})", register.name()),
            Ok(VariablePlace::Constant(number)) => format!("{}", number.cast_signed()),
            Err(why) => format!("{why:?}"),
        };
        format!("{}:{size} {place}", variable.name)
    };
    scope.variables.iter().map(shown).collect()
}

#[test]
fn variables_are_where_the_debugging_information_says_at_each_address() {
    let always = [
        "gone:4 OptimizedOut",
        "three:4 3",
        "minus:4 -2",
        "half:8 Pieces",
        "sum:8 Computed",
        "fixed:4 Fixed",
        "beyond:4 Indirect",
        "vector:8 OtherRegister",
        "pair:16 dx",
        "elsewhere:4 Fixed",
    ];
    let hidden = "late:4 OptimizedOut";
    let cases: [(u64, &[&str]); 5] = [
        // The stack slot follows the stack pointer, and holds nothing before the function has begun.
        (0, &["file:8 di", "count:4 ax", "copy:16 NotYet", hidden]),
        (4, &["file:8 di", "count:4 ax", "copy:16 -24(sp)", hidden]),
        (8, &["file:8 bx", "count:4 ax", "copy:16 24(sp)", hidden]),
        (
            0x18,
            &["limit:4 si", "count:8 8(sp)", "inner:4 r8", "file:4 OptimizedOut", "copy:16 24(sp)", hidden],
        ),
        (0x20, &["file:8 EntryValue", "count:4 ax", "copy:16 24(sp)", "late:4 r12"]),
    ];
    for (offset, expected) in cases {
        let mut found = named(offset);
        found.retain(|own| !always.contains(&own.as_str()));
        let mut expected = expected.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "at {offset:#x}");
        assert_eq!(named(offset).len(), found.len() + always.len());
    }
    // Where no frame information is, the stack slots that count from the frame are not known, and others are.
    assert_eq!(named(0x40), ["slot:4 NoFrame", "below:4 NotYet"]);
    assert_eq!(named(0x44), ["slot:4 NoFrame", "below:4 -8(bp)"]);
}

#[test]
fn the_innermost_block_comes_first() {
    // A block without code is no block of its own, and what an inlined function has lost hides other variables.
    let file = vmlinux(&sections());
    let scope = DebugFile::read(&file).unwrap().variables_at(OPEN.add(0x14)).unwrap();
    let order: Vec<&str> = scope.variables.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!(order.get(..4).unwrap(), ["limit", "file", "count", "inner"]);
}

#[test]
fn slots_need_frame_information_and_registers_do_not() {
    let mut sections = sections();
    sections.retain(|(name, ..)| *name != ".debug_frame");
    let file = vmlinux(&sections);
    let file = DebugFile::read(&file).unwrap();
    let places = |at| {
        let found = file.variables_at(at).unwrap().variables;
        found.into_iter().map(|own| (own.name, own.place)).collect::<std::collections::HashMap<_, _>>()
    };
    assert_eq!(places(OPEN)["copy"], Err(Hidden::NoFrame));
    assert_eq!(places(OPEN)["file"], Ok(VariablePlace::Register(Register::Rdi)));
    assert_eq!(places(CLOSE.add(4))["below"], Ok(VariablePlace::Memory(Register::Rbp, -8)));
}

#[test]
fn seeds_of_the_fuzz_target() {
    testing::seed("seeds/dwarf/variables", &vmlinux(&sections()));
}

proptest! {
    #[test]
    fn no_corruption_panics(
        section in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bytes in proptest::collection::vec(any::<u8>(), 1..8),
    ) {
        let mut sections = sections();
        damage(&mut sections, section, at, &bytes);
        let file = vmlinux(&sections);
        if let Ok(debug) = DebugFile::read(&file) {
            for offset in [0, 0x18, 0x40] {
                drop(debug.variables_at(OPEN.add(offset)).map(|scope| Btf::parse(&scope.types).is_ok()));
            }
        }
    }
}
