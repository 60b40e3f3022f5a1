//! What the sources promise of their layout, read from them as text: no circle of files, no KVM in the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates in which nothing may know each other in a circle.
const CRATES: [&str; 5] = ["probe-engine", "vmm", "cli", "guest-kernels", "xtask"];

/// A module by its path in the crate; none is the crate itself.
type Module = Vec<String>;

/// Which module knows which.
type Graph = BTreeMap<Module, BTreeSet<Module>>;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// The modules of the crate in `root`, each with its [code].
fn modules(root: &Path) -> BTreeMap<Module, String> {
    sources(root).into_iter().map(|(module, source)| (module, code(&source))).collect()
}

/// The modules of the crate in `root`, each with its source.
fn sources(root: &Path) -> BTreeMap<Module, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && name != "tests" {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
                let place = path.strip_prefix(root).unwrap().with_extension("");
                let mut module: Module = place.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
                module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
                found.insert(module, fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

/// `source` without comments, texts, and the tests at its end.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let source = source.split("#[cfg(test)]\npub(crate) mod tests {").next().unwrap_or_default();
    let mut code = String::new();
    for line in source.lines() {
        let line = line.split("//").next().unwrap_or_default();
        code.extend(line.split('"').step_by(2));
        code.push('\n');
    }
    code
}

/// The paths that a tree of `use` names: `a::{b, c::d}` names `a::b` and `a::c::d`.
fn paths(tree: &str, before: &[String], found: &mut Vec<Module>) {
    let (head, rest) = tree.split_once('{').map_or((tree, None), |(head, rest)| (head, Some(rest)));
    let head = head.split(" as ").next().unwrap_or_default();
    let words = head.split("::").map(|word| word.trim().to_owned()).filter(|word| !word.is_empty());
    let path: Module = before.iter().cloned().chain(words).collect();
    let Some(rest) = rest else { return found.push(path) };
    let (mut depth, mut start) = (0, 0);
    for (at, sign) in rest.char_indices() {
        match sign {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let branch = &rest[start..at];
                if !branch.trim().is_empty() {
                    paths(branch, &path, found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Paths in `code`, outside of `use`, that begin in the crate or beside the module.
fn inline(code: &str) -> Vec<Module> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c| !is_path(c)).filter(|word| word.contains("::"));
    words.map(|word| word.split("::").map(str::to_owned).collect()).collect()
}

struct Sources {
    modules: BTreeMap<Module, String>,
    /// What is known by another path than its own.
    reexported: BTreeMap<Module, Module>,
}

impl Sources {
    fn new(modules: BTreeMap<Module, String>) -> Self {
        let mut sources = Self { modules, reexported: BTreeMap::new() };
        for (module, code) in sources.modules.clone() {
            for (is_public, tree) in uses(&code) {
                let mut named = Vec::new();
                paths(tree, &[], &mut named);
                for path in named.into_iter().filter(|_| is_public) {
                    let Some(absolute) = sources.absolute(&module, &path) else { continue };
                    let known: Module = module.iter().chain(path.last()).cloned().collect();
                    sources.reexported.insert(known, absolute);
                }
            }
        }
        sources
    }

    /// `path`, as `module` writes it, from the crate on; `None` for what is of other crates.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(module.iter().chain(rest).cloned().collect()),
            "super" => {
                let ups = path.iter().take_while(|word| *word == "super").count();
                let kept = module.len().checked_sub(ups)?;
                Some(module.iter().take(kept).chain(path.iter().skip(ups)).cloned().collect())
            }
            _ => {
                let below: Module = module.iter().chain([first]).cloned().collect();
                self.modules.contains_key(&below).then(|| below.into_iter().chain(rest.to_vec()).collect())
            }
        }
    }

    /// The module in which what has this path is defined.
    fn owner(&self, path: Module) -> Module {
        let mut path = path;
        // No name is passed on so often.
        for _ in 0..8 {
            let length = (0..=path.len()).rev().find(|n| self.modules.contains_key(&path[..*n]));
            let length = length.unwrap_or(0);
            let Some(to) = path.get(..=length).and_then(|known| self.reexported.get(known)) else {
                path.truncate(length);
                return path;
            };
            path = to.iter().chain(&path[length + 1..]).cloned().collect();
        }
        path
    }

    /// Which file knows which. A file may know those that it is a part of, or its parts: not both counts.
    fn files(&self) -> Graph {
        let mut graph = Graph::new();
        for (module, code) in &self.modules {
            let mut named = Vec::new();
            let mut rest = code.clone();
            for (is_public, tree) in uses(code) {
                let mut here = Vec::new();
                paths(tree, &[], &mut here);
                // Passing a name on is not knowing it.
                named.extend(here.into_iter().filter(|_| !is_public));
                rest = rest.replace(tree, "");
            }
            named.extend(inline(&rest));
            let known =
                named.iter().filter_map(|path| self.absolute(module, path)).map(|path| self.owner(path));
            let known = known.filter(|other| other != module && !other.is_empty()).collect();
            graph.insert(module.clone(), known);
        }
        graph
    }
}

/// The trees of all `use` in `code`, and whether each passes its names on.
fn uses(code: &str) -> Vec<(bool, &str)> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let (before, after) = (&rest[..at], &rest[at + 4..]);
        let line = before.rsplit('\n').next().unwrap_or_default().trim();
        let is_use = line.is_empty() || line.starts_with("pub");
        let end = after.find(';').unwrap_or(after.len());
        if is_use {
            found.push((!line.is_empty(), &after[..end]));
            rest = &after[end..];
        } else {
            rest = after;
        }
    }
    found
}

/// Files that know each other in a circle, or lie between two. A part may always know what it is a part of.
fn circles_of_files(graph: &Graph) -> BTreeSet<Module> {
    let parts = graph.iter().map(|(module, known)| {
        let others = known.iter().filter(|other| !module.starts_with(other)).cloned().collect();
        (module.clone(), others)
    });
    circles(parts.collect())
}

/// The same of the folders and files directly in the crate.
fn circles_of_folders(graph: &Graph) -> BTreeSet<Module> {
    let mut folders = Graph::new();
    for (module, known) in graph.iter().filter(|(module, _)| !module.is_empty()) {
        let others = known.iter().map(|other| other[..1].to_vec()).filter(|other| other[..] != module[..1]);
        folders.entry(module[..1].to_vec()).or_default().extend(others);
    }
    circles(folders)
}

/// What is left when all has been taken away that knows nobody, or that nobody knows.
fn circles(mut graph: Graph) -> BTreeSet<Module> {
    loop {
        let left: BTreeSet<Module> = graph.keys().cloned().collect();
        let known: BTreeSet<Module> = graph.values().flatten().cloned().collect();
        graph.values_mut().for_each(|others| others.retain(|other| left.contains(other)));
        graph.retain(|module, others| !others.is_empty() && known.contains(module));
        if graph.len() == left.len() {
            return left;
        }
    }
}

/// Made-up modules, each with its code.
fn made_up(modules: &[(&str, &str)]) -> Graph {
    let module = |(path, code): &(&str, &str)| {
        (path.split("::").filter(|word| !word.is_empty()).map(str::to_owned).collect(), code.to_string())
    };
    Sources::new(modules.iter().map(module).collect()).files()
}

fn names(modules: &BTreeSet<Module>) -> Vec<String> {
    modules.iter().map(|module| module.join("::")).collect()
}

#[test]
fn nothing_knows_each_other_in_a_circle() {
    for name in CRATES {
        let graph = Sources::new(modules(&folder(name).join("src"))).files();
        assert!(graph.values().any(|known| !known.is_empty()), "{name}: files that know others are found");
        assert_eq!(names(&circles_of_files(&graph)), [""; 0], "{name}: files");
        assert_eq!(names(&circles_of_folders(&graph)), [""; 0], "{name}: folders");
    }
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let parts = [("", "mod a;"), ("a", "use crate::b::B;"), ("c", "use crate::a::A;")];
    for (b, circle) in [
        ("use crate::c::C;", true),
        ("use crate::{d::D, c::{self, C}};", true),
        ("fn f() { crate::c::f() }", true),
        ("use super::c;", true),
        ("use crate::e::C;", true),
        ("use crate::d::D;", false),
        ("use other::c::C;", false),
        ("use std::fmt;", false),
    ] {
        let others = [("b", b), ("d", ""), ("e", "pub use crate::c::C;")];
        let graph = made_up(&[&parts[..], &others[..]].concat());
        let expected: &[&str] = if circle { &["a", "b", "c"] } else { &[] };
        assert_eq!(names(&circles_of_files(&graph)), expected, "{b}");
        assert_eq!(names(&circles_of_folders(&graph)), expected, "{b}");
    }
}

#[test]
fn a_part_may_know_what_it_is_a_part_of() {
    let graph = made_up(&[
        ("a", "mod part; use part::P; use crate::b::B;"),
        ("a::part", "use super::A;"),
        ("b", "mod part;"),
        ("b::part", "use crate::a::part::P;"),
    ]);
    assert_eq!(names(&circles_of_files(&graph)), [""; 0]);
    assert_eq!(names(&circles_of_folders(&graph)), ["a", "b"]);
}

#[test]
fn the_engine_has_no_kvm_and_nothing_unsafe() {
    let manifest = fs::read_to_string(folder("probe-engine/Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("[dependencies]\n").unwrap();
    let dependencies = dependencies.lines().take_while(|line| !line.starts_with('['));
    let crates: Vec<&str> = dependencies.filter_map(|line| line.split(['.', ' ', '=']).next()).collect();
    assert!(crates.contains(&"iced-x86"), "its dependencies are found: {crates:?}");
    for kvm in ["kvm-ioctls", "kvm-bindings", "vm-memory", "vmm-sys-util", "linux-loader", "libc", "rustix"] {
        assert!(!crates.contains(&kvm), "{kvm}");
    }
    let root = fs::read_to_string(folder("probe-engine/src/lib.rs")).unwrap();
    assert!(root.contains("#![forbid(unsafe_code)]"));
}

/// What a user of the program can do is said by the program.
#[test]
fn errors_of_the_libraries_name_no_option() {
    let option =
        |text: &str| text.split(" --").skip(1).any(|word| word.starts_with(|c: char| c.is_alphabetic()));
    assert!(option("give it more with --memory"));
    for name in ["probe-engine", "vmm"] {
        let sources = sources(&folder(name).join("src"));
        let texts = sources.values().flat_map(|source| source.split("#[error(").skip(1));
        let texts: Vec<_> = texts.filter_map(|rest| rest.split(")]\n").next()).collect();
        assert!(texts.len() > 50, "{name}: the texts of errors are found");
        assert_eq!(texts.into_iter().filter(|text| option(text)).collect::<Vec<_>>(), [""; 0], "{name}");
    }
}
