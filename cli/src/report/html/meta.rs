//! What the page has beside its hits.

use super::Shown;
use super::tables::{PageFrame, PageHistogram, PageProbe, PageTask, Source};
use crate::record::{End, Header, HostKind, ReadError, Reader};
use indexmap::{IndexMap, IndexSet};
use serde::{Serialize, Serializer};
use std::io::BufRead;

#[derive(Serialize)]
pub(super) struct Meta<'a> {
    title: String,
    /// When the guest was started, in milliseconds since 1970.
    started_ms: u64,
    /// Names and values for the head of the page.
    facts: Vec<(&'static str, String)>,
    /// What the reader has to know.
    notes: Vec<String>,
    /// How many hits there are.
    count: u64,
    #[serde(serialize_with = "values")]
    probes: &'a IndexMap<Source, PageProbe>,
    tasks: &'a IndexSet<Option<PageTask>>,
    frames: &'a IndexSet<PageFrame>,
    nodes: Nodes,
    #[serde(serialize_with = "values")]
    histograms: &'a IndexMap<String, PageHistogram>,
    end: Option<&'a End>,
}

/// Functions within functions, as columns.
#[derive(Serialize)]
struct Nodes {
    frame: Vec<u32>,
    parent: Vec<u32>,
}

fn values<K, V: Serialize, S: Serializer>(map: &IndexMap<K, V>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map.values())
}

impl<'a> Meta<'a> {
    pub(super) fn of<R: BufRead>(
        recording: &'a Reader<R>,
        page: &'a Shown,
        error: Option<&ReadError>,
    ) -> Self {
        let Shown { hits, tables, splats, splat_count, .. } = page;
        let header = recording.header();
        let (frame, parent) = tables.nodes();
        let mut notes = splats.clone();
        if *splat_count > splats.len() {
            notes.push(format!("There are {} more splats.", splat_count - splats.len()));
        }
        if let Some(error) = error {
            notes.push(format!("The recording cannot be read to its end: {error}."));
        }
        if tables.without_task > 0 {
            notes.push(format!(
                "{} hits are shown without their task: there are too many tasks.",
                tables.without_task
            ));
        }
        if tables.without_stack > 0 {
            notes.push(format!(
                "{} hits are shown without their stack: there are too many stacks.",
                tables.without_stack
            ));
        }
        if tables.histograms.left_out > 0 {
            notes.push("There are more histograms than are shown.".to_owned());
        }
        let release = header.kernel.release.clone().unwrap_or_else(|| "unknown".to_owned());
        Self {
            title: header
                .command
                .as_ref()
                .map_or_else(|| format!("Linux {release}"), |words| words.join(" ")),
            started_ms: header.wall_ns / 1_000_000,
            facts: facts(header, release),
            notes,
            count: *hits,
            probes: &tables.probes,
            tasks: &tables.tasks,
            frames: &tables.frames,
            nodes: Nodes { frame, parent },
            histograms: &tables.histograms.all,
            end: recording.end(),
        }
    }
}

fn facts(header: &Header, release: String) -> Vec<(&'static str, String)> {
    let host = match header.host {
        HostKind::Kvm => "KVM of the machine",
        HostKind::Emulated => "emulated",
    };
    let mut facts = vec![
        ("Kernel", release),
        ("Host", host.to_owned()),
        ("CPUs", header.cpus.to_string()),
        ("Scope", header.scope.clone()),
    ];
    // The first digits tell builds apart.
    facts.extend(header.kernel.build_id.as_ref().map(|id| ("Build id", id.chars().take(12).collect())));
    facts
}
