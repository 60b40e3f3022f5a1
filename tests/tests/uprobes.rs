//! Probes in programs: event by event what the guest's own uprobe_events have, whoever is registered first.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use object::{Object, ObjectSegment, ObjectSymbol};
use serde_json::Value;
use std::collections::BTreeMap;
use tests::compiled::compiled;
use tests::product::{Ended, Run, binary, command, run};

/// The program that the guest runs, and copies to where it is probed.
const PROBED: &str = env!("CARGO_BIN_EXE_probed");
/// Where it is probed.
const COPY: &str = "/tmp/probed";
/// How often it calls each function, in each of two processes.
const ROUNDS: u64 = 3;

/// A probe: its kind, its function, and what it fetches.
type Row = (&'static str, &'static str, &'static str);

const ROWS: &[Row] = &[
    ("p", "probed_sum", ""),
    ("p", "probed_sum", "a=%di b=%si:u32 c=%dx:s16"),
    ("p", "probed_sum", "a=%di:u8 b=%si:x16 c=%dx:s64"),
    ("p", "probed_sum", "sp=$stack ip=%ip back=$stack0"),
    ("r", "probed_sum", "ret=$retval:u64"),
    ("r", "probed_sum", "ret=$retval:x8 again=%ax:s32"),
    ("p", "probed_text", "text=+0(%di):string"),
    ("p", "probed_text", "text=+2(%di):ustring n=+0(%si):u64 m=+8(%si):u32"),
    ("p", "probed_text", "words=+0(%si):x64[4]"),
    ("p", "probed_text", "c=+0(%di):s8 b=+8(%si):b4@4/32"),
    ("r", "probed_text", "text=+0($retval):string"),
    ("p", "probed_many", "g=$stack1 h=$stack2:u64 e=%r8 f=%r9"),
    ("p", "probed_many", "g=+8($stack):u64 comm=$comm"),
    ("r", "probed_many", "ret=$retval:s64"),
    ("p", "probed_nest", "depth=%di:u64"),
    ("r", "probed_nest", "ret=$retval:u64"),
    ("p", "probed_leap", ""),
    ("r", "probed_leap", "ret=$retval:u32"),
    ("p", "probed_leaped", "ax=%ax:u8"),
    ("r", "probed_leaped", ""),
    ("p", "probed_signal", "signal=%di:s32"),
    ("r", "probed_signal", ""),
    ("p", "probed_sum", "code=@+{main}:x64 low=@+{main}:u16"),
    ("r", "probed_sum", "code=@+{main}:x32 sum=$retval:u64"),
];

/// By the pid of a task and the name of an event: the fields of each, in their order.
type Seen = BTreeMap<(String, u64), Vec<BTreeMap<String, String>>>;

/// What a compiler of this machine makes the program of that has names.
const GREET: &str = r#"
#include <stdio.h>
#include <string.h>
struct person { const char *name; int age; struct person *next; };
__attribute__((noipa)) int greet(struct person *who, const char *name, double weight)
{
    int sum = who->age + strlen(name);
    return printf("%s\n", who->name) > 0 ? sum - (int)weight : 0;
}
int main(void)
{
    struct person second = {"second", 7, 0}, first = {"first", 41, &second};
    return greet(&first, "world", 2.0) == 44 ? 0 : 1;
}
"#;

/// A program whose calls are followed.
const NEST: &str = r#"
#include <setjmp.h>
#include <unistd.h>
static jmp_buf out;
__attribute__((noipa)) int leaf(void) { return getppid() > 0; }
__attribute__((noipa)) int jumps(int n) { if (n == 0) longjmp(out, 1); return jumps(n - 1) + 1; }
__attribute__((noipa)) int nest(int n) { int sum = leaf(); return n ? nest(n - 1) + sum : sum; }
__attribute__((noipa)) int catches(void) { return setjmp(out) == 0 ? jumps(1) : 7; }
int main(void) { return nest(1) + catches() == 9 ? 0 : 1; }
"#;

/// A number in whichever way it is written, or a text.
fn value(written: &str) -> String {
    let (sign, digits) = written.strip_prefix('-').map_or(("", written), |rest| ("-", rest));
    let number = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    };
    number.map_or_else(|| written.trim_matches(['"', '\'']).to_owned(), |number| format!("{sign}{number}"))
}

/// `probed-7 [000] ..... 1.234567: EVENT: (ADDRESS) NAME=VALUE NAME=VALUE`
fn theirs(console: &str) -> Seen {
    let trace = console.split("the trace begins").nth(1).unwrap().split("the trace ends").next().unwrap();
    let mut seen = Seen::new();
    for line in trace.lines().filter(|line| line.trim_start().starts_with("probed-")) {
        let (head, rest) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let (event, words) = rest.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let pid = head.split_whitespace().next().unwrap().rsplit_once('-').unwrap().1.parse().unwrap();
        let fields = words.split(") ").nth(1).unwrap_or_default().split_whitespace();
        let fields = fields.map(|field| field.split_once('=').unwrap_or_else(|| panic!("{line}")));
        let fields =
            fields.map(|(name, written)| (name.to_owned(), value(written.trim_end_matches(',')))).collect();
        seen.entry((event.to_owned(), pid)).or_default().push(fields);
    }
    seen
}

/// What probes have seen, in its order.
fn passes(run: &Run) -> impl Iterator<Item = &Value> {
    run.output.iter().filter(|line| ["hit", "return"].iter().any(|kind| line["type"] == *kind))
}

fn ours(run: &Run) -> Seen {
    let mut seen = Seen::new();
    for hit in passes(run) {
        let written = |value: &Value| match value {
            Value::String(text) => self::value(text),
            Value::Array(all) => {
                let all = all.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned));
                format!("{{{}}}", all.collect::<Vec<_>>().join(","))
            }
            value => self::value(&value.to_string()),
        };
        let fields = hit["fields"].as_object().into_iter().flatten();
        let fields = fields.map(|(name, value)| (name.clone(), written(value)));
        let pid = hit["task"]["pid"].as_u64().unwrap();
        let event = hit["event"].as_str().unwrap_or_else(|| panic!("{hit}")).to_owned();
        seen.entry((event, pid)).or_default().push(fields.collect());
    }
    seen
}

/// Where in its file a function begins.
fn offset(program: &object::File<'_>, name: &str) -> u64 {
    let symbol = program.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap();
    in_file(program, symbol.address())
}

/// Where an address is in a file.
fn in_file(program: &object::File<'_>, address: u64) -> u64 {
    let mut segments = program.segments();
    let is_there =
        |own: &object::Segment<'_, '_>| (own.address()..own.address() + own.size()).contains(&address);
    let segment = segments.find(is_there).unwrap();
    address - segment.address() + segment.file_range().0
}

/// The guest's own probes in a copy of the program come when `ours_first` says, and both are compared.
fn agrees(ours_first: bool, optimize: &str) {
    let Some(binary) = binary() else { return };
    let bytes = std::fs::read(PROBED).unwrap();
    let program = object::File::parse(&*bytes).unwrap();
    let (mut own, mut their) = (String::new(), String::new());
    for (number, (kind, function, fetches)) in ROWS.iter().enumerate() {
        let at = offset(&program, function);
        let fetches = fetches.replace("{main}", &format!("{:#x}", offset(&program, "main")));
        // Half of them by their symbols: who reads the file says where in it the place is.
        let place = if number % 2 == 0 && !fetches.contains("@+") {
            (*function).to_owned()
        } else {
            format!("{at:#x}")
        };
        own += &format!("{kind}:e{number} {COPY}:{place} {fetches}\n");
        their += &format!("echo '{kind}:e{number} {COPY}:{at:#x} {fetches}' >> uprobe_events\n");
    }
    own += &format!("p:fresh {COPY}:probed_fresh text=+1(%di):string\n");
    let folder = tempfile::tempdir().unwrap();
    let definitions = folder.path().join("probes");
    std::fs::write(&definitions, own).unwrap();
    let definitions = format!("--probes={}", definitions.to_str().unwrap());
    // Ours are registered when a program is about to run. The shell's own `echo` is none.
    let first = if ours_first { "/bin/true" } else { "" };
    let script = format!(
        "\
[ -e /sys/kernel/tracing/trace ] || mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
cp {PROBED} {COPY}
{first}
{their}
echo 1 > events/uprobes/enable
{COPY} {ROUNDS}
echo 0 > events/uprobes/enable
echo the trace begins
cat trace
echo the trace ends
cmp {PROBED} {COPY} && echo the file is the same
echo > uprobe_events
"
    );
    let words = [&definitions, optimize, "--cpus=2", "--append=quiet", "--", "sh", "-ec", &script];
    let run = run(&binary, &words);
    run.assert_success();
    assert!(run.console.contains("the file is the same"));
    let (theirs, mut ours) = (theirs(&run.console), ours(&run));
    let is_fresh = |(event, _): &(String, u64)| event == "fresh";
    let fresh: Vec<_> = ours.extract_if(.., |key, _| is_fresh(key)).flat_map(|(_, all)| all).collect();
    assert_eq!(fresh.len() as u64, 2 * ROUNDS, "both processes");
    assert!(fresh.iter().all(|fields| fields["text"].starts_with("ELF")), "memory is brought in: {fresh:?}");
    let mut wrong = Vec::new();
    for key in theirs.keys().chain(ours.keys()) {
        let [their, our] = [&theirs, &ours].map(|seen| seen.get(key).cloned().unwrap_or_default());
        if their != our {
            let differ = their.iter().zip(&our).find(|(their, our)| their != our);
            wrong.push(format!("{key:?}: {} and {} events, as {differ:?}", their.len(), our.len()));
        }
    }
    wrong.dedup();
    let events: std::collections::BTreeSet<_> = ours.keys().map(|(event, _)| event).collect();
    println!("{} definitions with events, {} differ", events.len(), wrong.len());
    // A function that is left by a leap has no return.
    assert!(wrong.is_empty() && events.len() == ROWS.len() - 1, "{events:?}\n{}", wrong.join("\n"));
    let calls = |name: &str| {
        ours.iter().filter(|((event, _), _)| event == name).map(|(_, all)| all.len()).sum::<usize>()
    };
    assert_eq!(calls("e0") as u64, 2 * ROUNDS, "both processes");
    assert_eq!(calls("e14") as u64, 2 * ROUNDS * 6);
    registers_are_the_programs(&run);
    returns_have_durations(&run);
}

/// Of a hit, what every one tells is the program's, and not that of the kernel's function which the guest calls for it.
fn registers_are_the_programs(run: &Run) {
    let number = |value: &Value| match value.as_str() {
        Some(hex) => u64::from_str_radix(&hex[2..], 16).unwrap(),
        None => value.as_u64().unwrap_or_else(|| panic!("{value}")),
    };
    let of = |event: &'static str| passes(run).filter(move |hit| hit["event"] == event);
    assert!(of("e3").all(|hit| hit["rip"] == hit["fields"]["ip"]));
    for hit in of("e11") {
        let (args, fields) = (hit["args"].as_array().unwrap(), &hit["fields"]);
        assert_eq!([number(&args[4]), number(&args[5])], [number(&fields["e"]), number(&fields["f"])]);
    }
    assert!(of("e4").all(|hit| number(&hit["value"]) == hit["fields"]["ret"].as_u64().unwrap()));
}

/// Each return is of a call that was seen to begin, and a call takes longer than those that it makes.
fn returns_have_durations(run: &Run) {
    let event = |number: usize| format!("e{number}");
    for (number, _) in ROWS.iter().enumerate().filter(|(_, (kind, ..))| *kind == "r") {
        let begun = run.of_type("hit").into_iter().find(|hit| hit["event"] == event(number));
        assert!(begun.is_none(), "{begun:?}");
    }
    let mut nested = BTreeMap::<u64, Vec<u64>>::new();
    for back in run.of_type("return").into_iter().filter(|back| back["event"] == event(15)) {
        let pid = back["task"]["pid"].as_u64().unwrap();
        nested.entry(pid).or_default().push(back["duration_ns"].as_u64().unwrap());
    }
    assert_eq!(nested.len(), 2);
    for durations in nested.values().flat_map(|all| all.chunks(6)) {
        assert!(durations.is_sorted() && durations[0] > 0, "{durations:?}");
    }
}

#[test]
fn events_are_the_guests_own_where_its_probes_come_later() {
    agrees(true, "--optimize=require");
}

#[test]
fn events_are_the_guests_own_where_its_probes_come_first() {
    agrees(false, "--optimize=off");
}

/// What a program gives back it was given before, by the functions of the C library that it calls.
#[test]
fn what_a_program_frees_it_has_allocated() {
    let Some(binary) = binary() else { return };
    let library = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6"];
    let library = library.into_iter().find(|path| std::fs::exists(path).unwrap()).unwrap();
    let mut probes = vec![format!("-pp:free {library}:free p=$arg1 if p != 0")];
    for name in ["malloc", "calloc", "realloc"] {
        probes.push(format!("-pr:{name} {library}:{name} p=$retval"));
        probes.push(format!("-pp:{name}_called {library}:{name}"));
    }
    let words = probes.iter().map(String::as_str).chain(["--cpus=2", "--", "ls", "-l", "/usr/bin"]);
    let run = run(&binary, &words.collect::<Vec<_>>());
    run.assert_success();
    let mut given = BTreeMap::new();
    let mut counts = BTreeMap::<String, u64>::new();
    for hit in passes(&run).filter(|hit| hit["task"]["comm"] == "ls") {
        let event = hit["event"].as_str().unwrap();
        *counts.entry(event.to_owned()).or_default() += 1;
        let pointer = hit["fields"]["p"].to_string();
        match event {
            "free" => assert!(given.contains_key(&pointer), "{hit}"),
            "malloc" | "calloc" | "realloc" => drop(given.insert(pointer, event)),
            _ => {}
        }
    }
    println!("{counts:?}");
    for name in ["malloc", "calloc", "realloc"] {
        assert_eq!(counts.get(name), counts.get(&format!("{name}_called")), "each call returns: {counts:?}");
    }
    assert!(counts["malloc"] > 100 && counts["free"] > 10, "{counts:?}");
}

/// The library is loaded when the program has run for a while, in several processes at a time, and read from the disk once more.
#[test]
fn a_library_is_probed_wherever_it_is_loaded() {
    let Some(binary) = binary() else { return };
    let libraries = ["/usr/lib/x86_64-linux-gnu/gconv/UTF-16.so", "/usr/lib64/gconv/UTF-16.so"];
    let library = libraries.into_iter().find(|path| std::fs::exists(path).unwrap()).unwrap();
    let before = std::fs::read(library).unwrap();
    let probe = format!("-pp:loaded {library}:gconv_init");
    let returned = format!("-pr:left {library}:gconv_init ret=$retval:s32");
    let script = format!(
        "\
convert() {{ printf 'h\\0i\\0' | iconv -f UTF-16LE -t UTF-8; }}
for n in 1 2 3; do convert & done
wait
echo 3 > /proc/sys/vm/drop_caches
convert
cksum < {library}
"
    );
    let run = run(&binary, &[&probe, &returned, "--cpus=2", "--", "sh", "-ec", &script]);
    run.assert_success();
    let of = |event: &str| -> Vec<u64> {
        let hits = passes(&run).filter(|hit| hit["event"] == event);
        hits.map(|hit| hit["task"]["pid"].as_u64().unwrap()).collect()
    };
    let (loaded, left) = (of("loaded"), of("left"));
    let processes: std::collections::BTreeSet<_> = loaded.iter().collect();
    assert!(processes.len() == 4 && loaded.len() == left.len(), "{loaded:?} {left:?}");
    assert_eq!(run.console.matches("hi").count(), 4, "{}", run.console);
    assert_eq!(std::fs::read(library).unwrap(), before, "the file on the host");
    let file = std::fs::File::open(library).unwrap();
    let sum = std::process::Command::new("cksum").stdin(file).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    assert!(run.console.contains(sum.trim()), "the file in the guest: {}", run.console);
}

/// The guest begins with a file of the same name, before the command has a root of its own: that is another shell.
#[test]
fn a_commands_program_is_its_own() {
    let Some(binary) = binary() else { return };
    let bytes = std::fs::read("/bin/sh").unwrap();
    let program = object::File::parse(&*bytes).unwrap();
    let probe = format!("-pp:starts /bin/sh:{:#x}", in_file(&program, program.entry()));
    let run = run(&binary, &[&probe, "--", "sh", "-ec", "sh -c :; sh -c :"]);
    run.assert_success();
    let started = run.of_type("hit").into_iter().filter(|hit| hit["event"] == "starts").count();
    assert_eq!(started, 3, "{}", run.said);
}

/// Where the packaged Python is, which has tracepoints of its own.
const PYTHON: &str = "/usr/bin/python3";

/// A tracepoint of a packaged program: Python says when it collects garbage, of which generation, and how much that was.
#[test]
fn a_packaged_program_tells_of_itself_by_its_own_tracepoints() {
    let Some(binary) = binary() else { return };
    let path = std::fs::canonicalize(PYTHON).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let path = path.to_str().unwrap();
    let has_own = bytes.windows(9).any(|own| own == b"gc__start");
    let begins = format!("-pusdt:begins {path}:python:gc__start generation=$arg1:s32");
    let ends = format!("-pusdt:ends {path}:python:gc__done found=$arg1:s64");
    let script = "import gc; [gc.collect(generation) for generation in (0, 1, 2)]";
    let words = [&begins, &ends, "--cpus=2", "--", path, "-S", "-c", script];
    if !has_own {
        let run = run(&binary, &words);
        return assert!(run.said.contains("it has no tracepoint `python:gc__start`"), "{}", run.said);
    }
    let run = run(&binary, &words);
    run.assert_success();
    let read = |event: &str, field: &str| -> Vec<i64> {
        let hits = run.of_type("hit").into_iter().filter(|hit| hit["event"] == event);
        hits.map(|hit| hit["fields"][field].as_i64().unwrap_or_else(|| panic!("{hit}"))).collect()
    };
    let (begun, ended) = (read("begins", "generation"), read("ends", "found"));
    println!("{begun:?} {ended:?}");
    assert_eq!(begun.len(), ended.len(), "each that begins ends");
    let last = begun.windows(3).rposition(|generations| generations == [0, 1, 2]);
    assert!(last.is_some() && begun.iter().all(|generation| (0..=2).contains(generation)), "{begun:?}");
    assert!(ended.iter().all(|found| *found >= 0), "{ended:?}");
}

/// All functions that are called so, in a file that this machine has as well: each is probed by its own name.
#[test]
fn a_pattern_of_a_known_file_is_a_probe_for_each_function() {
    let Some(binary) = binary() else { return };
    let library = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6"];
    let library = library.into_iter().find(|path| std::fs::exists(path).unwrap()).unwrap();
    let all = format!("-pp:memory {library}:[cmf]*alloc if comm == \"ls\"");
    let one = format!("-pp:one {library}:malloc if comm == \"ls\"");
    let run = run(&binary, &[&all, &one, "--cpus=2", "--", "ls", "/usr/bin"]);
    run.assert_success();
    let mut probes = run.of_type("probe");
    let one = probes.pop().unwrap();
    let name = |of: &Value| of["probe"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    let counts: BTreeMap<_, _> =
        probes.iter().map(|probe| (name(probe), probe["hits"].as_u64().unwrap())).collect();
    println!("{counts:?}");
    assert_eq!(counts.get("malloc").copied(), one["hits"].as_u64(), "{counts:?}");
    assert!(counts.contains_key("calloc") && counts["malloc"] > 10, "{counts:?}");
    let mut seen = BTreeMap::<_, u64>::new();
    passes(&run)
        .filter(|hit| hit["event"] == "memory")
        .for_each(|hit| *seen.entry(name(hit)).or_default() += 1);
    assert!(counts.iter().all(|(name, hits)| seen.get(name).copied().unwrap_or(0) == *hits), "{seen:?}");
    let table = run.said.lines().find(|line| line.starts_with(&format!("{library}:malloc ")));
    assert!(table.is_some_and(|line| line.contains(&counts["malloc"].to_string())), "{}", run.said);
}

/// All functions that are called so, in a file that the guest makes: the table has the hits of each.
#[test]
fn the_table_has_the_hits_of_each_function_that_a_pattern_means() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "nest", NEST, &["-O1"]);
    let copy = folder.path().join("copy");
    let [program, copy] = [&program, &copy].map(|path| path.to_str().unwrap());
    let (all, made) = (format!("-pp:all {copy}:[nlj]*"), format!("cp {program} {copy} && {copy}"));
    let run = run(&binary, &[&all, "--cpus=2", "--", "sh", "-c", &made]);
    run.assert_success();
    let probes = run.of_type("probe");
    let [all] = probes.as_slice() else { panic!("{probes:?}") };
    let places = all["places"].as_array().unwrap();
    let places: BTreeMap<_, _> = places
        .iter()
        .map(|place| (place["place"].as_str().unwrap(), place["hits"].as_u64().unwrap()))
        .collect();
    assert_eq!(places, BTreeMap::from([("nest", 2), ("leaf", 2), ("jumps", 2)]), "{}", run.said);
    assert_eq!(all["hits"], 6);
    assert!(run.said.lines().any(|line| line.trim_start().starts_with("nest ")), "{}", run.said);
}

/// Parameters by name, of a program with debugging information and of one that has that in a file beside it.
#[test]
fn parameters_of_programs_have_names() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "greet", GREET, &["-g", "-O1"]);
    let at = |rest: &str| format!("{}:greet{rest}", program.display());
    let probes = [
        at(""),
        format!("r {}", at("")),
        format!("p:named {}", at(" text=name:string age=who->age next=who->next->name:string if age > 40")),
        format!("p:never {}", at(" age=who->age if age < 40")),
        format!("r:value {}", at(" v=$retval")),
    ];
    let mut words = vec![];
    for probe in &probes {
        words.extend(["--probe", probe]);
    }
    words.extend(["--", program.to_str().unwrap()]);
    let ran = run(&binary, &words);
    assert_eq!(ran.code, 0, "{}", ran.said);
    let hits: Vec<Value> = passes(&ran).map(|hit| hit["fields"].clone()).collect();
    println!("{hits:#?}");
    assert_eq!(hits.len(), 4);
    let of = |name: &str| hits.iter().find(|hit| !hit[name].is_null()).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(of("who")["who"]["to"]["age"], 41);
    assert_eq!(of("who")["name"], "world");
    assert_eq!(of("return")["return"], 44);
    assert_eq!(of("v")["v"], 44);
    let named = of("text");
    assert_eq!((&named["text"], &named["next"]), (&"world".into(), &"second".into()));
}

/// Calls of a program's functions and of the kernel's are shown in each other, also where a jump leaves some.
#[test]
fn calls_of_a_program_and_of_the_kernel_are_one_graph() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "nest", NEST, &["-O1"]);
    let pattern = format!("{}:[nlcj]*", program.display());
    let words = ["graph", &pattern, "__x64_sys_getppid", "--", program.to_str().unwrap()];
    let output = command(&binary, folder.path(), &words).output().ended();
    let (shown, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let lines = said.lines().chain(shown.lines()).filter_map(|line| Some(line.split_once("| ")?.1));
    let path = format!("{}:", program.display());
    let graph: Vec<String> = lines.map(|line| line.replace(&path, "")).collect();
    let call = |depth: usize, text: &str| format!("{:1$}{text}", "", 2 * depth);
    let nested = [
        call(0, "nest() {"),
        call(1, "leaf() {"),
        call(2, "__x64_sys_getppid();"),
        call(1, "} /* leaf */"),
        call(1, "nest() {"),
        call(2, "leaf() {"),
        call(3, "__x64_sys_getppid();"),
        call(2, "} /* leaf */"),
        call(1, "} /* nest */"),
        call(0, "} /* nest */"),
        call(0, "catches() {"),
        call(1, "jumps() {"),
        call(2, "jumps() {"),
        call(0, "} /* catches */"),
    ];
    assert_eq!(graph, nested, "{said}");
}

/// A program that is in a container alone, of whose first process the number is known.
#[test]
fn a_program_in_a_container_is_probed_there() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "nest", NEST, &["-O1", "-static"]);
    let program = program.to_str().unwrap();
    let inside = format!(
        "[ $$ = 5000 ] || exit 9; mount -t tmpfs none /mnt; cp {program} /mnt/nest; exec chroot /mnt /nest"
    );
    // A thread of the kernel's may have taken the number.
    let script = format!(
        "for n in 1 2 3; do echo 4999 > /proc/sys/kernel/ns_last_pid; unshare -m sh -ec '{inside}' && break; done; {program}"
    );
    let run = run(&binary, &["-pp:inside /proc/5000/root/nest:leaf", "--", "sh", "-c", &script]);
    run.assert_success();
    let pids: Vec<_> = run.of_type("hit").into_iter().map(|hit| hit["task"]["pid"].clone()).collect();
    assert_eq!(pids, [5000, 5000], "{}{}", run.said, run.console);
}
