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
    /// What the reader has to know, all of which is shown.
    notes: Vec<String>,
    /// Reports of the kernel, the first of them. The guest can make as many as it likes.
    splats: &'a [String],
    splat_count: usize,
    /// How many hits there are, with what is none.
    count: u64,
    findings: u64,
    dropped: u64,
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
        let Shown { hits, findings, dropped, tables, splats, splat_count, .. } = page;
        let header = recording.header();
        let (frame, parent) = tables.nodes();
        let notes = notes(page, error);
        let release = header.kernel.release.clone().unwrap_or_else(|| "unknown".to_owned());
        Self {
            title: header
                .command
                .as_ref()
                .map_or_else(|| format!("Linux {release}"), |words| words.join(" ")),
            started_ms: header.wall_ns / 1_000_000,
            facts: facts(header, release),
            notes,
            splats,
            splat_count: *splat_count,
            count: hits + findings + dropped,
            findings: *findings,
            dropped: *dropped,
            probes: &tables.probes,
            tasks: &tables.tasks,
            frames: &tables.frames,
            nodes: Nodes { frame, parent },
            histograms: &tables.histograms.all,
            end: recording.end(),
        }
    }
}

/// Where the page has less than there was.
fn notes(page: &Shown, error: Option<&ReadError>) -> Vec<String> {
    let Shown { warnings, warning_count, tables, .. } = page;
    let mut notes = Vec::new();
    if let Some(error) = error {
        notes.push(format!("The recording cannot be read to its end: {error}."));
    }
    notes.extend(warnings.iter().cloned());
    if *warning_count > warnings.len() {
        notes.push(format!("There are {} more warnings.", warning_count - warnings.len()));
    }
    for (number, what) in [(tables.without_task, "task"), (tables.without_stack, "stack")] {
        if number > 0 {
            notes.push(format!("{number} hits are shown without their {what}: there are too many {what}s."));
        }
    }
    if tables.histograms.left_out > 0 {
        notes.push("There are more histograms than are shown.".to_owned());
    }
    notes
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Line, example};

    #[test]
    fn no_report_of_the_kernel_takes_a_warnings_place() {
        let lines = |kind: &str, of: &str| -> String {
            example(kind).lines().filter(|line| line.contains(of)).map(|line| format!("{line}\n")).collect()
        };
        let header = lines("json", "\"type\":\"header\"");
        let splats = lines("json", "\"type\":\"splat\"").repeat(200);
        let guard = lines("jsonl finding", "\"type\":\"guard\"")
            .replace("\"unsealed_modules\":0", "\"unsealed_modules\":2")
            .replace("\"untold\":0", "\"untold\":30000")
            .replace("\"guards_entries\":true", "\"guards_entries\":false");
        let end = lines("jsonl dropped", "\"type\":\"dropped_end\"");
        let more = end.replace("\"has_more\":false", "\"has_more\":true");
        let text = [header, splats, guard, end, more].concat();
        let mut recording = Reader::open(text.as_bytes()).unwrap();
        let mut page = Shown::default();
        while let Some(line) = recording.next().unwrap() {
            assert!(!matches!(line, Line::Unknown));
            page.add(line, &recording, &mut std::io::sink()).unwrap();
        }
        let meta = Meta::of(&recording, &page, None);
        let expected = [
            "guard: 2 modules could not be sealed",
            "guard: 30000 findings came too fast to be told",
            "guard: nobody asks where system calls lead: this KVM is from before Linux 5.10",
            "dropped: 3 files, of which 1 are kept; there are more than are told",
        ];
        assert_eq!(meta.notes, expected);
        assert_eq!((meta.splats.len(), meta.splat_count), (100, 200));
    }
}
