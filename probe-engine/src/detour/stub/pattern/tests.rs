//! Stubs with patterns, as they run: each instruction is emulated.

use crate::addr::Gva;
use crate::capture::filter::{Filter, Operand, Test};
use crate::capture::shape::Shape;
use crate::capture::{Base, Capture, Fetch, Field, Hop, Read, What};
use crate::detour::layout;
use crate::detour::reads::LONGEST_STRING;
use crate::detour::stub::tests::{AT, COPIES, SITE, emulated, guest};
use crate::detour::stub::{Guest, Stub};
use crate::detour::work::Work;
use crate::insn::emulate::Segments;
use crate::linux::glob::Glob;
use crate::linux::task::COMM;
use crate::linux::testing::Ram;
use crate::probe::plan::{ProbePlan, Trigger};
use crate::regs::Regs;
use proptest::prelude::*;

const PROBE: u32 = 3;
/// The CPU's own area, from the offset on that it is used from; its task; and the task's stack.
const CPU: Gva = Gva(Ram::BASE.0 + 0x1000);
const TASK: Gva = Gva(Ram::BASE.0 + 0x2000);
const STACK: Gva = Gva(Ram::BASE.0 + 0x8000);
/// What surrounds strings.
const OTHERS: [u8; 0x3800] = [b'a'; 0x3800];

/// What becomes of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Counted,
    Passed,
    Missed,
}

/// What the probe reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Comm,
    String,
    Array,
}

fn capture(from: From, test: Test) -> Capture {
    let read = |read| Fetch { read, ..Fetch::word(Base::Argument(1), 8) };
    let fetch = match from {
        From::Comm => Fetch::word(Base::Comm, 0),
        From::String => read(Read::Pointee { what: What::String(512), user: false }),
        From::Array => read(Read::Memory(Hop::at(0), What::Bytes(COMM as u16))),
    };
    let fields = vec![Field { name: "it".to_owned(), fetch, shape: Shape::Text }];
    Capture { fields, filter: Some(Filter::Test(Operand::Field(0), test)), ..Capture::default() }
}

/// One hit of a probe that counts, with this text, or nothing, where it reads.
fn run(capture: &Capture, text: Option<&[u8]>) -> Outcome {
    let guest = Guest { window: Gva(Ram::BASE.0 - layout::POOLS), ..guest() };
    let work = Work::of(PROBE, &ProbePlan::new(Trigger::Pass).reading(capture.clone())).unwrap();
    let stub = Stub::assemble(&guest, AT, SITE, None, &[work]).unwrap();
    let ram = Ram::new();
    ram.put(CPU, &TASK.0.to_le_bytes());
    ram.put(TASK.add(COPIES.stack), &STACK.0.to_le_bytes());
    ram.put(STACK, &OTHERS);
    let comm: Vec<u8> = text.unwrap_or_default().iter().copied().chain([0; COMM]).take(COMM).collect();
    ram.put(TASK.add(guest.cpu.unwrap().task.comm - 8), &OTHERS[..COMM + 16]);
    ram.put(TASK.add(guest.cpu.unwrap().task.comm), &comm);
    let segments = Segments { gs_base: CPU.0 - guest.cpu.unwrap().task.current.offset, fs_base: 0 };
    let before = Regs {
        rip: AT.0,
        rsp: STACK.0 + OTHERS.len() as u64,
        rsi: 0x1000,
        rax: 1,
        rcx: 2,
        rdx: 3,
        rdi: 4,
        r8: 8,
        r9: 9,
        ..Regs::default()
    };
    let counted = emulated(&stub, &guest, &ram, &segments, before, |regs| copy(&ram, regs, text));
    match counted[..] {
        [] => Outcome::Passed,
        [layout::HITS] => Outcome::Counted,
        [layout::UNREAD] => Outcome::Missed,
        _ => panic!("{counted:x?}"),
    }
}

/// As the kernel's own function copies to rdi what is at rsi, up to rdx bytes of it, and returns.
fn copy(ram: &Ram, regs: &mut Regs, text: Option<&[u8]>) {
    assert!([COPIES.bytes, COPIES.string].concat().contains(&Gva(regs.rip)));
    assert_eq!(regs.rsi, 0x1000);
    let room = regs.rdx as usize;
    let (to, text) =
        (Gva(regs.rdi), text.map(|text| text.iter().copied().chain([0; COMM]).collect::<Vec<u8>>()));
    regs.rax = match text {
        None => -14i64 as u64,
        Some(bytes) if COPIES.bytes.contains(&Gva(regs.rip)) => {
            ram.put(to, &bytes[..room]);
            0
        }
        Some(bytes) => {
            let length = bytes.iter().position(|byte| *byte == 0).unwrap() + 1;
            let copied = length.min(room);
            ram.put(to, &bytes[..copied - 1]);
            ram.put(to.add(copied as u64 - 1), &[0]);
            copied as u64
        }
    };
    // What a function may use.
    (regs.rcx, regs.rdx, regs.rsi, regs.rdi) = (!0, !0, !0, !0);
    (regs.r8, regs.r9, regs.r10, regs.r11) = (!0, !0, !0, !0);
    regs.rip = ram.memory().read_u64(Gva(regs.rsp)).unwrap();
    regs.rsp += 8;
}

fn matches(from: From, pattern: &str, text: &[u8]) -> Outcome {
    run(&capture(from, Test::Glob(Glob::new(pattern).unwrap())), Some(text))
}

#[test]
fn a_pattern_is_matched_where_the_name_of_the_task_is_and_in_memory() {
    for (pattern, yes, no) in [
        ("", &[""][..], &["a"][..]),
        ("bash", &["bash"], &["bas", "bashs", ""]),
        ("*", &["", "x"], &[]),
        ("ba*", &["ba", "bash", "bababababababa"], &["b", "abash"]),
        ("*sh", &["sh", "bash", "shsh"], &["shs", "s", ""]),
        ("*as*", &["bash", "as", "aas"], &["bsh", "a"]),
        ("a*bc*d", &["abcd", "aXbbcXd", "abcbcdd"], &["abd", "abcdX", "acbd"]),
        ("a*a", &["aa", "aba"], &["a"]),
        ("b?s[a-h]", &["bash", "bAsa"], &["basi", "bsh", "bashh"]),
        ("[!a-m0]*", &["z", "n0"], &["a", "0", ""]),
        ("[z-a]", &[], &["b"]),
        ("kworker/*:[0-9]", &["kworker/u4:1", "kworker/0:0"], &["kworker/u4:1H", "kworker/0-0"]),
        ("a\\*\\?", &["a*?"], &["ab?"]),
        ("[]a]", &["]", "a"], &["b"]),
    ] {
        for from in [From::Comm, From::String, From::Array] {
            for text in yes {
                assert_eq!(
                    matches(from, pattern, text.as_bytes()),
                    Outcome::Counted,
                    "{from:?} {pattern} {text}"
                );
            }
            for text in no {
                assert_eq!(
                    matches(from, pattern, text.as_bytes()),
                    Outcome::Passed,
                    "{from:?} {pattern} {text}"
                );
            }
        }
    }
    // No NUL is behind these.
    for from in [From::Comm, From::Array] {
        assert_eq!(matches(from, "*fg", b"0123456789abcdefg"), Outcome::Passed);
        assert_eq!(matches(from, "0*89abcdef", b"0123456789abcdefg"), Outcome::Counted);
    }
}

#[test]
fn what_is_not_there_matches_nothing_nor_does_it_differ() {
    let glob = Test::Glob(Glob::new("*").unwrap());
    for from in [From::String, From::Array] {
        for test in [glob.clone(), Test::Text(true, String::new()), Test::Text(false, "x".to_owned())] {
            let capture = capture(from, test);
            assert_eq!(run(&capture, None), Outcome::Passed);
            let filter = capture.filter.clone().map(|filter| Filter::Not(Box::new(filter)));
            assert_eq!(run(&Capture { filter, ..capture }, None), Outcome::Counted);
        }
    }
}

#[test]
fn a_hit_is_missed_when_what_is_kept_does_not_decide() {
    let longest = usize::from(LONGEST_STRING);
    let path = |length: usize| ["/usr/lib/".as_bytes(), &vec![b'x'; length - 12], b".so"].concat();
    let outcomes = |text: &[u8]| {
        let patterns =
            ["/usr/*", "/etc/*", "*.so", "*lib*", "*.so*", "/etc/*.so", "/usr/lib", "*?so", "/*[!x]*/*"];
        patterns.map(|pattern| match matches(From::String, pattern, text) {
            Outcome::Counted => '+',
            Outcome::Passed => '-',
            Outcome::Missed => '?',
        })
    };
    for (length, expected) in [
        (longest - 1, "+-+++--++"),
        // Its end is there, and nobody knows that it is the end.
        (longest, "+-?++--?+"),
        (longest + 1, "+-?+?--?+"),
        (2 * longest, "+-?+?--?+"),
    ] {
        assert_eq!(String::from_iter(outcomes(&path(length))), expected, "{length}");
    }
}

#[test]
fn texts_are_compared_as_patterns_without_stars_are() {
    for from in [From::Comm, From::String, From::Array] {
        for text in ["", "a", "bash", "0123456", "01234567", "012345678", "0123456789abcde"] {
            let outcome =
                |is: &[u8], equal| run(&capture(from, Test::Text(equal, text.to_owned())), Some(is));
            let same = text.as_bytes();
            let longer = [same, b"a"].concat();
            let (shorter, other) = (&longer[1..], [&longer[1..], b"x"].concat());
            assert_eq!([true, false].map(|equal| outcome(same, equal)), [Outcome::Counted, Outcome::Passed]);
            for is in [&longer[..], shorter, &other].into_iter().filter(|is| *is != same) {
                let outcomes = [true, false].map(|equal| outcome(is, equal));
                assert_eq!(outcomes, [Outcome::Passed, Outcome::Counted], "{from:?} {text} {is:?}");
            }
        }
    }
}

/// Patterns of few letters, which almost match.
fn pattern() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        3 => Just("*"),
        1 => Just("?"),
        3 => Just("a"),
        3 => Just("b"),
        1 => Just("abab"),
        1 => Just("babba"),
        1 => Just("[ab]"),
        1 => Just("[!a]"),
        1 => Just("[b-z0]"),
    ];
    proptest::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// A stub says what the host does.
    #[test]
    fn a_stub_matches_as_the_host_does(pattern in pattern(), text in "[ab]{0,16}", negated: bool) {
        let glob = Glob::new(&pattern).unwrap();
        let counts = glob.matches(&text) != negated;
        for from in [From::Comm, From::String, From::Array] {
            let capture = capture(from, Test::Glob(glob.clone()));
            let filter = capture.filter.clone().filter(|_| negated);
            let filter = filter.map(|filter| Filter::Not(Box::new(filter))).or(capture.filter);
            let outcome = run(&Capture { filter, fields: capture.fields, ..Capture::default() }, Some(text.as_bytes()));
            prop_assert_eq!(outcome, if counts { Outcome::Counted } else { Outcome::Passed }, "{:?}", from);
        }
    }

    /// What it says of the beginning holds of the whole.
    #[test]
    fn what_is_kept_decides_for_the_whole(pattern in pattern(), text in "[ab]{250,262}", rest in "[ab]{0,6}") {
        let outcome = matches(From::String, &pattern, text.as_bytes());
        let kept = text.get(..usize::from(LONGEST_STRING)).unwrap_or(&text);
        let glob = Glob::new(&pattern).unwrap();
        let is_cut = text.len() >= usize::from(LONGEST_STRING);
        prop_assert!(is_cut || outcome != Outcome::Missed);
        let whole = if is_cut { text.clone() + &rest } else { text.clone() };
        for all in [kept, &text, &whole] {
            let said = if glob.matches(all) { Outcome::Counted } else { Outcome::Passed };
            prop_assert!([said, Outcome::Missed].contains(&outcome), "{outcome:?} {all}");
        }
    }
}
