//! Hits as columns of numbers, a block of them at a time. `page/data.js` reads them.

use super::tables::{Source, Tables};
use super::write_data;
use crate::record::{
    DroppedLine, FindingLine, FoundThing, FoundWrite, Function, Hit, LeftBehind, MOST_OF_A_HIT, Probe,
    Recorded, SampleLine, ScanFindingLine, Style, write_bounded,
};
use std::fmt::{self, Display};
use std::io::{self, Write};
use vmm::events::{Nanos, What};

/// After so many hits a block is written,
const MOST_HITS: usize = 1 << 16;
/// or after so many bytes of text.
const MOST_TEXT: usize = 8 << 20;
/// In place of the high half of a difference that is not known.
const NO_SHIFT: u32 = 0x8000_0000;
/// In place of the CPU of what no CPU has done.
const NO_CPU: u32 = u32::MAX;

/// Hits that are not written yet.
#[derive(Default)]
pub(super) struct Block {
    /// Of each, in the order of `COLUMNS` in `page/data.js`.
    rows: Vec<[[u32; 4]; 3]>,
    text: String,
    /// How long the text is for a browser.
    units: u32,
}

impl Block {
    /// Adds a hit of `probe`, if that is known.
    pub(super) fn hit(&mut self, hit: &Hit, probe: Option<&Probe>, tables: &mut Tables) {
        let event = &hit.event;
        let (kind, took) = match event.what {
            What::Hit { .. } => (0, 0),
            What::Return { duration: Nanos(took), .. } => (1, took),
            What::Access { .. } => (2, 0),
        };
        let row = Row {
            nanos: event.nanos,
            guest_nanos: event.guest_nanos,
            cpu: u32::try_from(event.vcpu).unwrap_or(u32::MAX),
            probe: tables.hit_of(probe.map_or(Source::Unknown, |probe| Source::Probe(probe.id))),
            task: tables.task(event.task.as_ref()),
            kind,
            took,
            stack: tables.stack(hit.stack.as_ref()),
        };
        self.push(&row, &Values { hit, probe });
    }

    /// Adds the first call of a function.
    pub(super) fn function(&mut self, function: &Function, tables: &mut Tables) {
        let row = Row {
            nanos: function.time_ns,
            guest_nanos: function.guest_ns,
            cpu: function.vcpu,
            probe: tables.hit_of(Source::FirstCalls),
            task: tables.task(None),
            kind: 0,
            took: 0,
            stack: tables.stack(None),
        };
        self.push(&row, &function.function);
    }

    /// Adds a sample.
    pub(super) fn sample(&mut self, sample: &SampleLine, tables: &mut Tables) {
        let user = sample.user_frames().unwrap_or_default();
        let row = Row {
            nanos: sample.time_ns,
            guest_nanos: sample.guest_ns,
            cpu: sample.vcpu,
            probe: tables.hit_of(Source::Samples),
            task: tables.task(sample.task.as_ref()),
            kind: 0,
            took: 0,
            stack: tables.innermost(&sample.stack, &user),
        };
        self.push(&row, &sample.function());
    }

    /// Adds a write to sealed memory.
    pub(super) fn finding(&mut self, finding: &FindingLine, tables: &mut Tables) {
        let row = Row {
            nanos: finding.nanos(),
            guest_nanos: finding.guest_nanos(),
            cpu: finding.vcpu().unwrap_or(NO_CPU),
            probe: tables.hit_of(Source::Findings),
            task: tables.task(finding.task()),
            kind: 3,
            took: 0,
            stack: tables.innermost(finding.frames(), &[]),
        };
        self.push(&row, &FoundWrite(finding));
    }

    /// Adds what a scan has found, at `nanos` where it has no time.
    pub(super) fn scan_finding(&mut self, finding: &ScanFindingLine, nanos: u64, tables: &mut Tables) {
        let row = Row {
            guest_nanos: finding.guest_nanos(),
            kind: 4,
            ..Row::of_nobody(finding.nanos().unwrap_or(nanos), Source::Scans, tables)
        };
        self.push(&row, &format_args!("{}: {}", finding.check(), FoundThing(finding)));
    }

    /// Adds a file that the command has left.
    pub(super) fn dropped(&mut self, file: &DroppedLine, tables: &mut Tables) {
        let row = Row { kind: 5, ..Row::of_nobody(file.nanos(), Source::Dropped, tables) };
        self.push(&row, &LeftBehind(file));
    }

    fn push(&mut self, row: &Row, values: &dyn Display) {
        let from = self.text.len();
        // Writing to a string cannot fail.
        let _ = write_bounded(&mut self.text, MOST_OF_A_HIT, values);
        let added = self.text.get(from..).unwrap_or_default().encode_utf16().count();
        self.units = self.units.saturating_add(u32::try_from(added).unwrap_or(u32::MAX));
        let [time_low, time_high] = halves(row.nanos);
        let shift = row.guest_nanos.map(|guest| halves(guest.wrapping_sub(row.nanos)));
        let [shift_low, shift_high] = shift.unwrap_or([0, NO_SHIFT]);
        let [took_low, took_high] = halves(row.took);
        let Row { cpu, probe, task, kind, stack, .. } = *row;
        let numbers = [
            [time_low, time_high, shift_low, shift_high],
            [cpu, probe, task, kind],
            [took_low, took_high, stack, self.units],
        ];
        self.rows.push(numbers);
    }

    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= MOST_HITS || self.text.len() >= MOST_TEXT
    }

    /// Writes the hits, and forgets them.
    pub(super) fn write(&mut self, out: &mut impl Write) -> io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        write_data(out, "class=\"hits\"", |data| {
            let number = u32::try_from(self.rows.len()).map_err(io::Error::other)?;
            data.write_all(&number.to_le_bytes())?;
            let columns = self.rows.first().map_or(0, |row| row.as_flattened().len());
            for column in 0..columns {
                let numbers = self.rows.iter().filter_map(|row| row.as_flattened().get(column));
                data.write_all(&numbers.flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())?;
            }
            data.write_all(self.text.as_bytes())
        })?;
        self.rows.clear();
        self.text.clear();
        self.units = 0;
        Ok(())
    }
}

/// What is known of a hit.
struct Row {
    nanos: u64,
    guest_nanos: Option<u64>,
    cpu: u32,
    probe: u32,
    task: u32,
    kind: u32,
    /// How long the call took, of a return.
    took: u64,
    stack: u32,
}

impl Row {
    /// Of what no CPU and no task has done.
    fn of_nobody(nanos: u64, source: Source, tables: &mut Tables) -> Self {
        Self {
            nanos,
            guest_nanos: None,
            cpu: NO_CPU,
            probe: tables.hit_of(source),
            task: tables.task(None),
            kind: 0,
            took: 0,
            stack: tables.stack(None),
        }
    }
}

/// The low half and the high one.
fn halves(number: u64) -> [u32; 2] {
    [number as u32, (number >> 32) as u32]
}

/// What a hit has read, as the lines of a run have it.
struct Values<'a> {
    hit: &'a Hit,
    probe: Option<&'a Probe>,
}

impl fmt::Display for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let style = self.probe.map_or(Style::Registers, |probe| probe.style);
        match (style, &self.hit.event.what) {
            (_, What::Access { old, new }) => write!(f, "old={old:#x} new={new:#x}"),
            (Style::Registers | Style::Graph, What::Return { value, .. }) => write!(f, "value={value:#x}"),
            (Style::Registers | Style::Graph, What::Hit { args: [a, b, c, d, e, g] }) => {
                write!(f, "rdi={a:#x} rsi={b:#x} rdx={c:#x} rcx={d:#x} r8={e:#x} r9={g:#x}")
            }
            (Style::Call, What::Return { .. }) => {
                self.fields().try_for_each(|(_, value)| write!(f, "= {value}"))
            }
            (Style::Call | Style::Event, _) => {
                let between = if style == Style::Call { ", " } else { " " };
                let mut comma = "";
                for (name, value) in self.fields() {
                    write!(f, "{comma}{name}={value}")?;
                    comma = between;
                }
                Ok(())
            }
        }
    }
}

impl<'a> Values<'a> {
    fn fields(&self) -> impl Iterator<Item = (&'a str, Recorded<'a>)> {
        let read = &self.hit.fields;
        let fields = self.probe.into_iter().flat_map(|probe| &probe.fields);
        fields.map(|field| {
            (field.name.as_str(), Recorded { shape: &field.shape, value: read.get(&field.name) })
        })
    }
}
