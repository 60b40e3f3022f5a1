//! A recording as one page, which shows itself in a browser and asks nobody else for anything.
//!
//! The page is `page/page.html` with its style, its script and its data put in. All that comes from the recording is data in
//! base64, which can end no element; the script shows it as text. The browser runs that one script alone, by its hash.
//!
//! Hits are written as they are read. What is kept until the end has bounds: see [`tables`].

mod blocks;
mod meta;
mod tables;

use super::ReportError;
use crate::record::{Line, Reader};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use blocks::Block;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::io::{self, BufRead, Write};
use tables::Tables;

const PAGE: &str = include_str!("../page/page.html");
/// How pages of this program look.
pub(crate) const STYLE: &str = include_str!("../page/page.css");
const SCRIPT: &str = concat!(
    "\"use strict\";\n",
    include_str!("../page/format.js"),
    include_str!("../page/data.js"),
    include_str!("../page/model.js"),
    include_str!("../page/canvas.js"),
    include_str!("../page/timeline.js"),
    include_str!("../page/table.js"),
    include_str!("../page/cards.js"),
    include_str!("../page/flame.js"),
    include_str!("../page/main.js"),
);

/// Writes the page. What is before a line that cannot be read is shown, and the page says so as well.
pub(super) fn write(
    recording: &mut Reader<impl BufRead>,
    mut out: &mut dyn Write,
) -> Result<(), ReportError> {
    let (head, tail) = PAGE.split_once("@data").unwrap_or((PAGE, ""));
    let head = head.replace("@style-hash", &hash(STYLE)).replace("@script-hash", &hash(SCRIPT));
    out.write_all(head.replace("@style", STYLE).as_bytes())?;
    let mut page = Shown::default();
    let read = loop {
        match recording.next() {
            Ok(Some(line)) => page.add(line, recording, &mut out)?,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    page.block.write(&mut out)?;
    page.tables.register(recording.probes());
    let meta = meta::Meta::of(recording, &page, read.as_ref().err());
    write_data(&mut out, "id=\"meta\"", |data| Ok(serde_json::to_writer(data, &meta)?))?;
    out.write_all(tail.replace("@script", SCRIPT).as_bytes())?;
    Ok(read?)
}

/// So many reports of the kernel are shown.
const MOST_SPLATS: usize = 100;
/// So many warnings are shown. A run has fewer: one for each check of a scan, and some of its own.
const MOST_WARNINGS: usize = 100;

/// What has been read, but for the hits that have been written.
#[derive(Default)]
struct Shown {
    hits: u64,
    /// Reports of the kernel: how many, and the first of them.
    splat_count: usize,
    splats: Vec<String>,
    /// What was not seen, not told or not made to its end: how much, and the first of that.
    warning_count: usize,
    warnings: Vec<String>,
    /// What is no hit: findings, and files that were left.
    findings: u64,
    dropped: u64,
    /// The latest time of all.
    last: u64,
    block: Block,
    tables: Tables,
}

impl Shown {
    fn add(&mut self, line: Line, recording: &Reader<impl BufRead>, out: &mut impl Write) -> io::Result<()> {
        match line {
            Line::Splat(splat) => {
                self.splat_count += 1;
                if self.splats.len() < MOST_SPLATS {
                    self.splats.push(splat.to_string());
                }
            }
            Line::Registered
            | Line::Prefix(_)
            | Line::Sampled(_)
            | Line::Hold(_)
            | Line::Gate(_)
            | Line::Order(_)
            | Line::Injection(_)
            | Line::Nth(_)
            | Line::Runs(_)
            | Line::End
            | Line::Unknown => {}
            Line::Finding(finding) => {
                self.findings += 1;
                self.last = self.last.max(finding.nanos());
                self.block.finding(&finding, &mut self.tables);
            }
            Line::ScanFinding(finding) => {
                self.findings += 1;
                self.block.scan_finding(&finding, self.last, &mut self.tables);
            }
            Line::Dropped(file) => {
                self.dropped += 1;
                self.last = self.last.max(file.nanos());
                self.block.dropped(&file, &mut self.tables);
            }
            Line::Guard(guard) => guard.warnings().into_iter().for_each(|warning| self.warn(warning)),
            Line::ScanCheck(check) if !check.is_silent() => self.warn(check.to_string()),
            Line::ScanCheck(_) => {}
            Line::DroppedEnd(end) if !end.has_all() => self.warn(end.to_string()),
            Line::DroppedEnd(_) => {}
            Line::Hit(hit) => {
                self.hits += 1;
                self.last = self.last.max(hit.event.nanos);
                let probe = recording.probe(hit.event.probe.0);
                self.block.hit(&hit, probe, &mut self.tables);
            }
            Line::Sample(sample) => {
                self.hits += 1;
                self.block.sample(&sample, &mut self.tables);
            }
            Line::Function(function) => {
                self.hits += 1;
                self.block.function(&function, &mut self.tables);
            }
            Line::Entry(entry) => self.tables.histograms.entry(entry, recording.text().len()),
            Line::Histogram(whole) => self.tables.histograms.whole(whole),
            // So there are no more of them than of probes.
            Line::Probe(end) if recording.probe(end.id).is_some() => self.tables.probe_end(end),
            Line::Probe(_) => {}
        }
        if self.block.is_full() { self.block.write(out) } else { Ok(()) }
    }

    fn warn(&mut self, warning: String) {
        self.warning_count += 1;
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(warning);
        }
    }
}

/// Writes a block of data: an element that a browser takes for no script.
fn write_data<W: Write>(
    out: &mut W,
    attributes: &str,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    write!(out, "<script type=\"text/plain\" {attributes}>")?;
    let mut data = GzEncoder::new(EncoderWriter::new(&mut *out, &STANDARD), Compression::new(3));
    fill(&mut data)?;
    data.finish()?.finish()?;
    out.write_all(b"</script>\n")
}

/// By which a page allows a script or a style that is written in it.
pub(crate) fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}
