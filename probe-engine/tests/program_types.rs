//! What the debugging information of programs says, of a program that the machine's own C compiler has made.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::capture::argument_place::ArgumentPlace;
use probe_engine::capture::typed::{Expand, Signature};
use probe_engine::linux::btf::Btf;
use probe_engine::linux::dwarf::{Hidden, VariablePlace};
use probe_engine::linux::partial_file::PartialFile;
use probe_engine::linux::program_file::{Looked, NoPlace, ProgramDebug, ProgramDebugError, look};
use probe_engine::linux::program_place::InFile;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = r"
struct point { int x, y; };
struct big { long words[4]; };
struct mixed { double value; long number; };
struct person { const char *name; int age; struct person *next; unsigned low : 3, high : 5; };
enum kind { ONE = 1, TWO = 2 };
struct two { long a, b; };
typedef float vector __attribute__((vector_size(16)));
volatile long sum;

__attribute__((noinline)) int greet(struct person *who, const char *name, enum kind kind, unsigned char small)
{
    int total = who->age + name[0] + kind + small;
    sum += total;
    return total;
}
__attribute__((noinline)) struct big make(long seed, struct mixed mixed, double value, int last)
{
    sum += seed;
    return (struct big){{seed, mixed.number, value, last}};
}
__attribute__((noinline)) struct two two(long a)
{
    sum += a;
    return (struct two){a, sum};
}
__attribute__((noinline)) __int128 wide(long a)
{
    sum += a;
    return (__int128)a * sum;
}
__attribute__((noinline)) double half(struct point point, long after, double value, vector v, long double wide, int last)
{
    sum += point.x + after + v[0] + wide + last;
    return value / 2;
}
__attribute__((noinline)) long many(long a, long b, long c, long d, long e, struct person *f, struct point *g, int h)
{
    sum += a + b + c + d + e;
    return f->age + g->x + h;
}
struct large { char bytes[200]; };
struct __attribute__((packed)) packed { char a; int b; };
__attribute__((noinline)) long spilled(double a, double b, double c, double d, double e, double f, double g, double h,
    double on_stack, int n, __int128 wide, long l1, long l2, long l3, __int128 spilled, long after, long double extended,
    int last, struct large large, int behind, struct packed packed, int end)
{
    sum += a + on_stack + n + wide + l1 + l2 + l3 + spilled + extended + large.bytes[0] + behind + packed.b + end;
    return after + last;
}
int main(int argc, char **argv)
{
    struct large large = {{0}};
    struct packed packed = {1, 2};
    sum += spilled(1, 2, 3, 4, 5, 6, 7, 8, 9, argc, 11, 12, 13, 14, 15, 16, 17, 18, large, 19, packed, 20);
    struct person who = {argv[0], argc, 0, 1, 2};
    struct point point = {argc, 2};
    greet(&who, argv[0], TWO, 200);
    make(argc, (struct mixed){1, 2}, 3, 4);
    half(point, 1, 2, (vector){1}, 3, 4);
    sum += two(argc).a + (long)wide(argc);
    return many(1, 2, 3, 4, 5, &who, &point, argc) == 0;
}
";

/// What the compiler makes of the source with these options.
fn compiled(name: &str, options: &[&str]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, SOURCE).unwrap();
    let compiler = Command::new("cc").args(options).arg("-o").arg(&program).arg(&source).status();
    assert!(compiler.expect("`cc`, by which this was linked, is there").success());
    program
}

fn debug(path: &PathBuf) -> ProgramDebug {
    ProgramDebug::read(std::fs::read(path).unwrap(), |_| None).unwrap()
}

fn symbol(name: &str, offset: u64) -> InFile {
    InFile::Symbol { name: name.to_owned(), offset }
}

/// The parameters of a function, each with its place, and what a hit at its entry reads.
fn parameters(debug: &ProgramDebug, name: &str) -> (Vec<(String, ArgumentPlace)>, String) {
    let at = debug.find(&symbol(name, 0)).unwrap();
    let function = debug.types(&at).unwrap();
    let types = function.types.clone();
    let btf = Btf::parse(&types).unwrap();
    let signature = Signature::of_program(&btf, function);
    let fields = signature.arguments(&btf, name, Expand::Small);
    let value = signature.value(&btf, name, Expand::Small);
    let shown: Vec<String> =
        fields.iter().chain(&value).map(|field| format!("{}:{}", field.name, field.type_name())).collect();
    let parameters = signature.parameters.into_iter().map(|parameter| (parameter.name, parameter.place));
    (parameters.collect(), shown.join(" "))
}

#[test]
fn parameters_are_where_the_abi_has_them() {
    use ArgumentPlace::{Nowhere, Pair, Slot, Stack};
    for (name, options) in [
        ("optimized", &["-g", "-O2", "-fno-ipa-cp", "-fno-ipa-sra"][..]),
        ("plain", &["-g", "-O0"]),
        ("dwarf4", &["-gdwarf-4", "-O1", "-fno-ipa-cp", "-fno-ipa-sra"]),
    ] {
        let debug = debug(&compiled(name, options));
        let of = |function: &str| {
            let (parameters, shown) = parameters(&debug, function);
            let places: Vec<_> =
                parameters.iter().map(|(name, place)| (name.as_str(), *place)).collect::<Vec<_>>();
            (format!("{places:?}"), shown)
        };
        let places = |all: &[(&str, ArgumentPlace)]| format!("{all:?}");
        let (greet, shown) = of("greet");
        assert_eq!(
            greet,
            places(&[("who", Slot(0)), ("name", Slot(1)), ("kind", Slot(2)), ("small", Slot(3))])
        );
        println!("{shown}");
        // The result's address comes first, and a structure with a number of both kinds takes a register of each.
        let (make, _) = of("make");
        assert_eq!(
            make,
            places(&[("seed", Slot(1)), ("mixed", Nowhere), ("value", Nowhere), ("last", Slot(3))])
        );
        let (half, shown) = of("half");
        let expected = [
            ("point", Slot(0)),
            ("after", Slot(1)),
            ("value", Nowhere),
            ("v", Nowhere),
            ("wide", Nowhere),
            ("last", Slot(2)),
        ];
        assert_eq!(half, places(&expected));
        println!("{shown}");
        // The code that the compiler makes of it reads them in these slots.
        let (spilled, _) = of("spilled");
        let expected = [
            ("on_stack", Nowhere),
            ("n", Slot(0)),
            ("wide", Pair(1)),
            ("l1", Slot(3)),
            ("l2", Slot(4)),
            ("l3", Slot(5)),
            ("spilled", Nowhere),
            ("after", Slot(10)),
            ("extended", Nowhere),
            ("last", Slot(14)),
            ("large", Nowhere),
            ("behind", Slot(40)),
            ("packed", Stack(41)),
            ("end", Slot(42)),
        ];
        assert!(spilled.ends_with(&places(&expected)[1..]), "{spilled}");
        let (many, _) = of("many");
        assert!(many.ends_with(&places(&[("g", Slot(6)), ("h", Slot(7))])[1..]), "{many}");
    }
}

/// What is returned in two registers, or elsewhere, is not what one register has.
#[test]
fn a_result_that_one_register_does_not_hold_is_not_told() {
    let debug = debug(&compiled("results", &["-g", "-O2", "-fno-ipa-cp", "-fno-ipa-sra"]));
    let base = |name: &str| {
        let function = debug.types(&debug.find(&symbol(name, 0)).unwrap()).unwrap();
        let types = function.types.clone();
        let btf = Btf::parse(&types).unwrap();
        Signature::of_program(&btf, function)
            .value(&btf, name, Expand::Small)
            .map(|field| format!("{:?}", field.fetch.base))
    };
    for name in ["two", "wide", "make", "half"] {
        assert_eq!(base(name).as_deref(), Some("Unknown"), "{name}");
    }
    for name in ["greet", "many"] {
        assert_eq!(base(name).as_deref(), Some("Register(Rax)"), "{name}");
    }
}

#[test]
fn a_variable_of_a_frame_is_not_there_where_its_function_begins() {
    let debug = debug(&compiled("frames", &["-g", "-O0"]));
    let variables = |offset| {
        let at = debug.find(&symbol("greet", offset)).unwrap();
        let found = debug.variables(&at).unwrap();
        let place = |name: &str| found.variables.iter().find(|own| own.name == name).map(|own| own.place);
        (place("who"), place("total"))
    };
    assert_eq!(variables(0), (Some(Err(Hidden::NotYet)), Some(Err(Hidden::NotYet))));
    let (who, total) = variables(60);
    let is_in_frame = |place| matches!(place, Some(Ok(VariablePlace::Memory(..))));
    assert!(is_in_frame(who) && is_in_frame(total), "{who:?} {total:?}");
}

#[test]
fn what_is_not_known_is_said() {
    let path = compiled("stripped", &["-O1", "-s"]);
    let stripped = debug(&path);
    assert!(matches!(stripped.find(&symbol("greet", 0)), Err(NoPlace::NoSymbol { .. })));
    let plain = debug(&compiled("no_types", &["-O1"]));
    let at = plain.find(&symbol("greet", 0)).unwrap();
    assert!(matches!(plain.types(&at), Err(ProgramDebugError::Dwarf(_))));
}

/// `objcopy --only-keep-debug` and `strip` make two of a file, as distributions have them.
#[test]
fn a_file_beside_the_program_says_what_that_does_not() {
    let whole = compiled("whole", &["-g", "-O2", "-Wl,--build-id=sha1"]);
    let (debug_file, stripped) = (whole.with_extension("debug"), whole.with_extension("stripped"));
    let run = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).status();
        assert!(done.expect("binutils, of which the linker is, are there").success());
    };
    let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
    run("objcopy", &["--only-keep-debug", &text(&whole), &text(&debug_file)]);
    run("strip", &["-o", &text(&stripped), &text(&whole)]);
    let all = debug(&whole);
    let own = all.find(&symbol("greet", 0)).unwrap();
    assert_eq!(own.known.symbol, None);
    let mut asked = Vec::new();
    let program = std::fs::read(&stripped).unwrap();
    let beside = ProgramDebug::read(program.clone(), |build_id| {
        asked = build_id.to_vec();
        std::fs::read(&debug_file).ok()
    })
    .unwrap();
    assert_eq!(Some(&asked), own.known.build_id.as_ref());
    let at = beside.find(&symbol("greet", 0)).unwrap();
    assert!(at.known.symbol.is_some(), "the program has no symbol");
    assert_eq!(beside.types(&at).unwrap(), all.types(&own).unwrap());
    // The guest's file is looked at without symbols, and has to be that one.
    let look_at = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        let mut file = PartialFile::new(bytes.len() as u64).unwrap();
        file.put(0, &bytes);
        look(&file, &symbol("greet", 0), Some(&at.known))
    };
    let found = look_at(&stripped).unwrap();
    assert!(
        matches!(&found, Looked::Found(places) if Some(places[0].offset) == at.known.symbol),
        "{found:?}"
    );
    assert_eq!(
        look_at(&compiled("later", &["-g", "-O2", "-DLATER", "-Wl,--build-id=md5"])),
        Err(NoPlace::OtherBuild)
    );
    assert_eq!(look_at(&compiled("unnamed", &["-g", "-Wl,--build-id=none"])), Err(NoPlace::OtherBuild));
    // A file of another build says nothing.
    let other = compiled("other", &["-g", "-O1", "-Wl,--build-id=sha1"]);
    let foreign = ProgramDebug::read(program, |_| std::fs::read(&other).ok()).unwrap();
    assert!(matches!(foreign.find(&symbol("greet", 0)), Err(NoPlace::NoSymbol { .. })));
}
