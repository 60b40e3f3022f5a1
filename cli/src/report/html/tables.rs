//! What hits refer to by numbers: probes, tasks and stacks; and the histograms of a run.
//!
//! A guest may have as many tasks and stacks as it likes. So many are kept, and how many more there were is said.

use crate::record::{Entry, Frame, HistogramEnd, Probe, ProbeEnd, Stack, UserFrame};
use indexmap::{IndexMap, IndexSet};
use probe_engine::linux::task::{Context, Task};
use serde::Serialize;
use serde_json::{Map, Value};

/// Tasks that are kept; hits of others have none.
const MOST_TASKS: usize = 1 << 16;
/// Functions within functions that are kept; hits of other stacks have none.
const MOST_NODES: usize = 1 << 20;
/// Bytes of functions' names that are kept; hits of stacks with others have none.
const MOST_NAMES: usize = 64 << 20;
/// Entries of histograms that are kept,
const MOST_ENTRIES: usize = 1 << 14;
/// so many bytes of their lines,
const MOST_OF_ENTRIES: usize = 16 << 20;
/// and so many histograms.
const MOST_HISTOGRAMS: usize = 1 << 12;
/// For a hit without a stack, and what is called by nobody.
const NO_NODE: u32 = u32::MAX;

#[derive(Default)]
pub(super) struct Tables {
    pub(super) probes: IndexMap<Source, PageProbe>,
    /// `None` is a task that is not known.
    pub(super) tasks: IndexSet<Option<PageTask>>,
    pub(super) frames: IndexSet<PageFrame>,
    /// A frame, and the one that has called it.
    nodes: IndexSet<(u32, u32)>,
    /// How long the frames' names are, in bytes.
    names: usize,
    pub(super) histograms: Histograms,
    /// Hits whose task or stack is left out.
    pub(super) without_task: u64,
    pub(super) without_stack: u64,
}

/// What hits are of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// The probe with this id, which was registered.
    Probe(u32),
    /// One that was not: the recording is damaged.
    Unknown,
    /// Functions that are probed once each, by `vmm coverage`.
    FirstCalls,
    /// Where CPUs were when their timers expired.
    Samples,
    /// Writes to sealed memory.
    Findings,
    /// What scans of the memory have found.
    Scans,
    /// Files that the command has left.
    Dropped,
}

/// A probe, and what it came to.
#[derive(Default, Serialize)]
pub(super) struct PageProbe {
    id: Option<u32>,
    name: String,
    address: Option<String>,
    hits: u64,
    outside: u64,
    missed: u64,
    reasons: String,
    outstanding: usize,
    state: String,
    trapped: Option<String>,
}

#[derive(PartialEq, Eq, Hash, Serialize)]
pub(super) struct PageTask {
    comm: String,
    pid: u32,
    context: Option<&'static str>,
}

/// A function's name, and all that is said of the frame.
#[derive(PartialEq, Eq, Hash, Serialize)]
pub(super) struct PageFrame(String, String);

impl Source {
    /// That of a probe is known at the end.
    fn name(self) -> &'static str {
        match self {
            Self::Probe(_) => "",
            Self::Unknown => "probes that were not registered",
            Self::FirstCalls => "first calls of functions",
            Self::Samples => "samples",
            Self::Findings => "FINDING",
            Self::Scans => "FINDING of a scan",
            Self::Dropped => "DROPPED file",
        }
    }
}

impl Tables {
    /// Gives the probes that were registered their names.
    pub(super) fn register<'a>(&mut self, probes: impl Iterator<Item = &'a Probe>) {
        for probe in probes {
            let row = self.probes.entry(Source::Probe(probe.id)).or_default();
            row.id = Some(probe.id);
            row.name = match &probe.event {
                Some(event) => format!("{event} ({})", probe.probe),
                None => probe.probe.clone(),
            };
            if row.state.is_empty() {
                row.state = "not known: the recording ends before".to_owned();
            }
        }
    }

    /// What a probe came to, by its own count.
    pub(super) fn probe_end(&mut self, end: ProbeEnd) {
        let probe = PageProbe {
            id: Some(end.id),
            name: end.probe,
            address: Some(end.address.to_string()),
            hits: end.hits,
            outside: end.outside,
            missed: end.missed,
            reasons: end.reasons,
            outstanding: end.outstanding,
            state: end.state,
            trapped: end.trapped,
        };
        self.probes.insert(Source::Probe(end.id), probe);
    }

    /// The number of what a hit is of, which has one hit more.
    pub(super) fn hit_of(&mut self, source: Source) -> u32 {
        let entry = self.probes.entry(source);
        let number = entry.index();
        let new = || PageProbe { name: source.name().to_owned(), ..PageProbe::default() };
        let hits = &mut entry.or_insert_with(new).hits;
        *hits = hits.saturating_add(1);
        number as u32
    }

    pub(super) fn task(&mut self, task: Option<&Task>) -> u32 {
        let mut page = task.map(|task| PageTask {
            comm: task.shown().to_string(),
            pid: task.pid,
            context: Context::name(task.context),
        });
        if self.tasks.len() >= MOST_TASKS && !self.tasks.contains(&page) {
            self.without_task += 1;
            page = None;
        }
        self.tasks.insert_full(page).0 as u32
    }

    /// The number of the innermost function of a stack.
    pub(super) fn stack(&mut self, stack: Option<&Stack>) -> u32 {
        let Some(stack) = stack else { return NO_NODE };
        let user = stack.user.as_ref().map_or(&[][..], |user| &user.frames);
        self.innermost(&stack.frames, user)
    }

    /// The same of these frames of the kernel, and of a process.
    pub(super) fn innermost(&mut self, kernel: &[Frame], user: &[UserFrame]) -> u32 {
        let (process, kernel) = (user.iter().rev(), kernel.iter().rev());
        let outermost_first = process.map(PageFrame::of_process).chain(kernel.flat_map(PageFrame::all_of));
        let mut node = NO_NODE;
        for frame in outermost_first {
            if self.nodes.len() >= MOST_NODES || self.names >= MOST_NAMES {
                self.without_stack += 1;
                return NO_NODE;
            }
            let bytes = frame.0.len() + frame.1.len();
            let (frame, is_new) = self.frames.insert_full(frame);
            self.names += if is_new { bytes } else { 0 };
            let frame = frame as u32;
            node = self.nodes.insert_full((frame, node)).0 as u32;
        }
        node
    }

    /// For each function within functions the number of its frame, and that of the one that has called it.
    pub(super) fn nodes(&self) -> (Vec<u32>, Vec<u32>) {
        self.nodes.iter().copied().unzip()
    }
}

impl PageFrame {
    fn of_process(frame: &UserFrame) -> Self {
        Self(frame.function(), format!("user: {frame}"))
    }

    /// A frame, and behind it the functions that are inlined there, the innermost last.
    fn all_of(frame: &Frame) -> impl Iterator<Item = Self> {
        let guess = if frame.guessed { "? " } else { "" };
        let place = |file: &str, line: Option<u32>| match line {
            Some(line) => format!(" {file}:{line}"),
            None => format!(" {file}:?"),
        };
        let source = frame.file.as_deref().map(|file| place(file, frame.line)).unwrap_or_default();
        let name = frame.name.clone().unwrap_or_else(|| frame.address.to_string());
        let own = Self(frame.function(), format!("{guess}{name}{source}"));
        let inlined = frame.inlined.iter().rev().map(move |inlined| {
            let name = format!("{} (inlined)", inlined.name);
            let text = format!("{guess}{name}{}", place(&inlined.file, inlined.line));
            Self(name, text)
        });
        std::iter::once(own).chain(inlined)
    }
}

/// What the run has counted instead of recording it.
#[derive(Default)]
pub(super) struct Histograms {
    pub(super) all: IndexMap<String, PageHistogram>,
    entries: usize,
    /// How long the lines of these are, in bytes.
    bytes: usize,
    /// Lines of histograms that are left out.
    pub(super) left_out: u64,
}

#[derive(Default, Serialize)]
pub(super) struct PageHistogram {
    name: String,
    definition: String,
    hits: u64,
    dropped: u64,
    rows: Vec<Row>,
    left_out: u64,
}

#[derive(Serialize)]
struct Row {
    keys: Map<String, Value>,
    hitcount: u64,
    values: Map<String, Value>,
}

impl Histograms {
    /// The histogram of this name, unless there are too many.
    fn called(&mut self, name: String) -> Option<&mut PageHistogram> {
        if self.all.len() >= MOST_HISTOGRAMS && !self.all.contains_key(&name) {
            self.left_out += 1;
            return None;
        }
        let new = || PageHistogram { name: name.clone(), ..PageHistogram::default() };
        Some(self.all.entry(name.clone()).or_insert_with(new))
    }

    /// Adds an entry, of which the line has so many bytes.
    pub(super) fn entry(&mut self, entry: Entry, bytes: usize) {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        let is_kept = self.entries <= MOST_ENTRIES && self.bytes <= MOST_OF_ENTRIES;
        let Some(histogram) = self.called(entry.histogram) else { return };
        if !is_kept {
            histogram.left_out += 1;
            return;
        }
        histogram.rows.push(Row { keys: entry.keys, hitcount: entry.hitcount, values: entry.values });
    }

    pub(super) fn whole(&mut self, whole: HistogramEnd) {
        let Some(histogram) = self.called(whole.histogram) else { return };
        histogram.definition = whole.definition;
        histogram.hits = whole.hits;
        histogram.dropped = whole.dropped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Address, BOTTOM, USER, UserStack};
    use probe_engine::addr::Gva;

    fn task(pid: u32) -> Task {
        let comm = *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0";
        Task { at: Gva(0), pid, tgid: pid, ns_pid: None, uid: None, context: Context::default(), comm }
    }

    fn stack(names: &[&str]) -> Stack {
        let frame = |name: &&str| Frame {
            address: Address(8),
            name: Some(format!("{name}+0x1/0x2")),
            file: None,
            line: None,
            interrupted: false,
            guessed: false,
            inlined: Vec::new(),
        };
        Stack { frames: names.iter().map(frame).collect(), end: BOTTOM.to_owned(), user: None }
    }

    #[test]
    fn a_guest_with_too_many_tasks_keeps_the_first_ones() {
        let mut tables = Tables::default();
        let most = MOST_TASKS as u32;
        for pid in 0..most + 10 {
            tables.task(Some(&task(pid)));
        }
        // The ones that are left out are one that is not known.
        assert_eq!((tables.tasks.len(), tables.without_task), (MOST_TASKS + 1, 10));
        assert_eq!((tables.task(Some(&task(7))), tables.task(Some(&task(most)))), (7, most));
    }

    #[test]
    fn a_page_has_an_end_whatever_the_recording_names() {
        let mut tables = Tables::default();
        let entry = |histogram: String| Entry {
            histogram,
            keys: Map::new(),
            hitcount: 1,
            values: Map::new(),
            text: String::new(),
        };
        for n in 0..MOST_HISTOGRAMS + 10 {
            tables.histograms.entry(entry(n.to_string()), 1);
        }
        assert_eq!((tables.histograms.all.len(), tables.histograms.left_out), (MOST_HISTOGRAMS, 10));
        tables.histograms.entry(entry("0".to_owned()), MOST_OF_ENTRIES);
        let first = &tables.histograms.all["0"];
        assert_eq!((first.rows.len(), first.left_out), (1, 1));
        for n in 0..=MOST_NAMES / 4000 {
            tables.stack(Some(&stack(&[&format!("{n}{}", "f".repeat(2000))])));
        }
        assert!(tables.names < MOST_NAMES + 10_000 && tables.without_stack > 0);
    }

    #[test]
    fn stacks_share_their_callers() {
        let mut tables = Tables::default();
        let numbers = [
            tables.stack(Some(&stack(&["read", "entry"]))),
            tables.stack(Some(&stack(&["write", "entry"]))),
            tables.stack(Some(&stack(&["read", "entry"]))),
            tables.stack(None),
        ];
        assert_eq!(numbers, [1, 2, 1, NO_NODE]);
        assert_eq!(tables.nodes(), (vec![0, 1, 2], vec![NO_NODE, 0, 0]));
        let names: Vec<&str> = tables.frames.iter().map(|PageFrame(name, _)| name.as_str()).collect();
        assert_eq!(names, ["entry", "read", "write"]);
    }
    #[test]
    fn the_kernel_was_called_by_the_process() {
        let mut tables = Tables::default();
        let user = [0x20, 0x10].map(|at| UserFrame { address: Address(at), place: None }).to_vec();
        let user = UserStack { frames: user, end: BOTTOM.to_owned() };
        let stack = Stack { end: USER.to_owned(), user: Some(user), ..stack(&["read", "entry"]) };
        assert_eq!(tables.stack(Some(&stack)), 3);
        assert_eq!(tables.nodes(), (vec![0, 1, 2, 3], vec![NO_NODE, 0, 1, 2]));
        let texts: Vec<&str> = tables.frames.iter().map(|PageFrame(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["user: 0x10", "user: 0x20", "entry+0x1/0x2", "read+0x1/0x2"]);
    }
}
