//! The licences of all libraries that the program is linked with, as their packages have them.

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `cargo metadata` says.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    manifest_path: PathBuf,
    /// None of those of the workspace.
    source: Option<String>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// None for what is linked.
    kind: Option<String>,
}

/// A list of the libraries, and the texts of their licences, each once.
pub(super) fn all() -> anyhow::Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let platform = ["--filter-platform", "x86_64-unknown-linux-gnu"];
    let asked = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(platform)
        .current_dir(super::ROOT)
        .output()
        .context("cannot run cargo")?;
    ensure!(asked.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&asked.stderr));
    let metadata: Metadata =
        serde_json::from_slice(&asked.stdout).context("cargo metadata is not understood")?;
    let linked = linked(&metadata)?;
    let mut text = "vmm is linked with these libraries:\n\n".to_owned();
    let mut texts = BTreeMap::<String, Vec<&str>>::new();
    for package in metadata.packages.iter().filter(|package| linked.contains(package.id.as_str())) {
        let licence = package.license.as_deref().unwrap_or("see below");
        writeln!(text, "{} {}: {licence}", package.name, package.version)?;
        for licence in texts_of(&package.manifest_path)? {
            texts.entry(licence).or_default().push(&package.name);
        }
    }
    text.push_str("the standard library of Rust: MIT OR Apache-2.0\n");
    text.push_str("the C library of the machine on which vmm was built, GNU libc: LGPL-2.1-or-later\n");
    for (licence, packages) in texts {
        writeln!(text, "\n---- {} ----\n\n{}", packages.join(", "), licence.trim_end())?;
    }
    Ok(text)
}

/// The packages of others whose code is in the program.
fn linked(metadata: &Metadata) -> anyhow::Result<BTreeSet<&str>> {
    let packages: BTreeMap<&str, &Package> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let nodes: BTreeMap<&str, &Node> =
        metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let program = metadata.packages.iter().find(|package| package.name == "cli" && package.source.is_none());
    let mut found = BTreeSet::new();
    let mut open = vec![program.context("the workspace has no cli")?.id.as_str()];
    while let Some(id) = open.pop() {
        let (Some(package), Some(node)) = (packages.get(id), nodes.get(id)) else { continue };
        // The compiler runs these.
        let is_macro =
            package.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"));
        if !is_macro && found.insert(id) {
            let linked = node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            open.extend(linked.map(|dep| dep.pkg.as_str()));
        }
    }
    found.retain(|id| packages.get(id).is_some_and(|package| package.source.is_some()));
    Ok(found)
}

/// The texts beside a package's manifest.
fn texts_of(manifest: &Path) -> anyhow::Result<Vec<String>> {
    let folder = manifest.parent().context("a manifest is in a folder")?;
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
        let is_text = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"]
            .iter()
            .any(|word| name.starts_with(word));
        if is_text && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    let read =
        |path: PathBuf| fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()));
    paths.into_iter().map(read).collect()
}
