use super::*;
use crate::linux::symbol_file::SymbolFile;
use crate::linux::testing::{Part, elf};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const DATA: u64 = 0xffff_ffff_8200_0000;

/// `start` and `asm_exc_int3` in text, of an instruction of two bytes and of nops; a variable of 4 bytes, one of 8, two
/// of one name, one at an odd place; a per-CPU variable as kallsyms has it, and one as System.map has it.
fn kernel() -> Kernel {
    kernel_with("0000000000000040 A cpu_info\n0000000000000080 D cpu_number\n")
}

/// The same with these lines for its per-CPU variables.
fn kernel_with(per_cpu: &str) -> Kernel {
    const XOR_EAX_EAX: [u8; 2] = [0x31, 0xc0];
    let text = [&XOR_EAX_EAX[..], &[0x90; 30]].concat();
    let image = elf(&[Part::text(".text", TEXT, text), Part::data(".data", DATA, vec![0; 0x100])]);
    let map = format!(
        "{per_cpu}{TEXT:x} T _text\n{TEXT:x} T start\n{:x} T asm_exc_int3\n{:x} T _etext\n\
         {DATA:x} d first\n{:x} D panic_on_oops\n{:x} D jiffies\n{:x} D jiffies_64\n\
         {:x} d twin\n{:x} d twin\n{:x} d odd\n{:x} d last\n",
        TEXT + 16,
        TEXT + 32,
        DATA + 0x10,
        DATA + 0x18,
        DATA + 0x18,
        DATA + 0x20,
        DATA + 0x28,
        DATA + 0x31,
        DATA + 0x80,
    );
    Kernel::read(&image, Some(&SymbolFile::parse(map.into_bytes()).unwrap())).unwrap()
}

#[test]
fn understood_and_given_back_as_written() {
    let cases = [
        ("jiffies:8:w", "jiffies", Length::Eight, Condition::Write),
        ("jiffies+0x4:4:rw", "jiffies+0x4", Length::Four, Condition::ReadWrite),
        ("start+2:1:x", "start+2", Length::One, Condition::Execute),
        ("0xffffffff82000000:2:w", "0xffffffff82000000", Length::Two, Condition::Write),
    ];
    for (written, place, length, condition) in cases {
        let spec: WatchSpec = written.parse().unwrap_or_else(|e| panic!("{written}: {e}"));
        assert_eq!(
            (spec.place.to_string().as_str(), spec.length, spec.condition),
            (place, length, condition)
        );
        assert_eq!(spec.to_string(), written);
    }
}

#[test]
fn every_mistake_has_its_own_sentence() {
    let text = str::to_owned;
    let cases = [
        ("", WatchSpecError::Parts(text(""))),
        ("jiffies", WatchSpecError::Parts(text("jiffies"))),
        ("jiffies:w", WatchSpecError::Parts(text("jiffies:w"))),
        ("jiffies:8", WatchSpecError::Parts(text("jiffies:8"))),
        ("jiffies:3:w", WatchSpecError::Length(text("3"))),
        ("jiffies::w", WatchSpecError::Length(text(""))),
        ("jiffies:16:rw", WatchSpecError::Length(text("16"))),
        ("jiffies:08:w", WatchSpecError::Length(text("08"))),
        ("jiffies:8:r", WatchSpecError::Condition(text("r"))),
        ("jiffies:8:wr", WatchSpecError::Condition(text("wr"))),
        ("jiffies:8:", WatchSpecError::Condition(text(""))),
        ("start:8:x", WatchSpecError::ExecuteLength(text("8"))),
        ("dummy:numdummies:4:w", WatchSpecError::Module(text("dummy:numdummies"))),
        ("jiff*:8:w", WatchSpecError::NotOnePlace(text("jiff*"))),
        ("start%return:1:x", WatchSpecError::NotOnePlace(text("start%return"))),
        (":8:w", WatchSpecError::Place(SpecError::Empty)),
        ("jiffies+:8:w", WatchSpecError::Place(SpecError::NoOffset(text("jiffies+")))),
        ("1234:8:w", WatchSpecError::Place(SpecError::BareNumber(text("1234")))),
        ("0xffffffff82000000+8:8:w", WatchSpecError::Place(SpecError::AddressOffset(text("+8")))),
    ];
    for (written, expected) in cases {
        let error = written.parse::<WatchSpec>().unwrap_err();
        assert_eq!(error, expected, "{written:?}");
        assert!(!error.to_string().contains('\n'), "{written:?}");
    }
}

#[test]
fn what_can_be_watched_is_found() {
    let kernel = kernel();
    let cases = [
        ("jiffies:8:w", DATA + 0x18),
        ("jiffies+4:4:rw", DATA + 0x1c),
        ("jiffies_64+7:1:w", DATA + 0x1f),
        ("panic_on_oops:4:w", DATA + 0x10),
        ("odd:1:rw", DATA + 0x31),
        ("odd+1:2:rw", DATA + 0x32),
        // What is behind the last symbol nobody knows.
        ("last+0x78:8:w", DATA + 0xf8),
        ("0xffffffff82000008:8:w", DATA + 8),
        ("start:1:x", TEXT),
        ("start+2:1:x", TEXT + 2),
        ("start:8:rw", TEXT),
        ("0xffffffff81000003:1:x", TEXT + 3),
    ];
    for (written, at) in cases.into_iter().chain([("twin#2:8:w", DATA + 0x28)]) {
        let spec: WatchSpec = written.parse().unwrap();
        let watch = resolve(&spec, &kernel).unwrap_or_else(|e| panic!("{written}: {e}"));
        assert_eq!((watch.at, watch.length, watch.condition), (Gva(at), spec.length, spec.condition));
        assert_eq!(watch.name, written);
    }
}

#[test]
fn what_cannot_be_watched_has_a_reason() {
    let text = str::to_owned;
    let kernel = kernel();
    let behind =
        |name: &str, size, offset, length| WatchError::Behind { name: text(name), size, offset, length };
    let unaligned = |at, length| WatchError::Unaligned { at: Gva(at), length };
    let cases = [
        ("jifies:8:w", WatchError::Unknown { name: text("jifies"), nearest: vec![text("jiffies")] }),
        ("qqqqqqqqq:8:w", WatchError::Unknown { name: text("qqqqqqqqq"), nearest: Vec::new() }),
        (
            "twin:8:w",
            WatchError::NotOne(NotOne {
                name: text("twin"),
                has_ordinal: false,
                found: vec![Gva(DATA + 0x20), Gva(DATA + 0x28)],
            }),
        ),
        ("cpu_info:8:w", WatchError::Absolute(text("cpu_info"))),
        ("cpu_number:4:w", WatchError::Absolute(text("cpu_number"))),
        ("jiffies+8:1:w", behind("jiffies", 8, 8, 1)),
        ("jiffies+1:8:w", behind("jiffies", 8, 1, 8)),
        ("jiffies+0x7fffffffffffffff:8:w", behind("jiffies", 8, i64::MAX as u64, 8)),
        ("jiffies+2:4:w", unaligned(DATA + 0x1a, 4)),
        ("odd:2:w", unaligned(DATA + 0x31, 2)),
        ("0xffffffff82000004:8:w", unaligned(DATA + 4, 8)),
        ("jiffies:1:x", WatchError::NotText(Gva(DATA + 0x18))),
        ("asm_exc_int3:1:x", WatchError::BreakpointHandler(Gva(TEXT + 16))),
        // Behind the image, before it, across its end, and where an address wraps.
        ("0xffffffff82000100:8:w", WatchError::Outside(Gva(DATA + 0x100))),
        ("0x40:8:w", WatchError::Outside(Gva(0x40))),
        ("last+0x80:8:w", WatchError::Outside(Gva(DATA + 0x100))),
        ("0xffffffffffffffff:8:w", WatchError::Outside(Gva(u64::MAX))),
    ];
    for (written, expected) in cases {
        let error = resolve(&written.parse().unwrap(), &kernel).unwrap_err();
        assert_eq!(error, expected, "{written}");
        assert!(!error.to_string().contains('\n'), "{written}");
    }
    let inside = resolve(&"start+1:1:x".parse().unwrap(), &kernel).unwrap_err();
    assert!(matches!(inside, WatchError::Boundary(BoundaryError::Inside { .. })), "{inside:?}");
    let unknown = resolve(&"jifies:8:w".parse().unwrap(), &kernel).unwrap_err();
    assert_eq!(unknown.to_string(), "the kernel has no symbol `jifies`; did you mean `jiffies`?");
}

#[test]
fn a_per_cpu_variable_among_the_data_cannot_be_watched() {
    let section = DATA + 0x90;
    let lines = [(section, "__per_cpu_start"), (section, "cpu_number"), (section + 0x20, "__per_cpu_end")];
    let lines: String = lines.map(|(at, name)| format!("{at:x} D {name}\n")).concat();
    let kernel = kernel_with(&lines);
    for place in ["cpu_number", "0xffffffff82000098"] {
        let error = resolve(&format!("{place}:4:w").parse().unwrap(), &kernel).unwrap_err();
        assert_eq!(error, WatchError::Absolute(place.to_owned()));
    }
    assert!(resolve(&"jiffies:8:w".parse().unwrap(), &kernel).is_ok());
}
