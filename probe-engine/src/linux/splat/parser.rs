//! From the lines of the log to reports: what each caller writes is followed for itself, as several CPUs may report at a time.

use super::frame::SplatFrame;
use super::interrupts::ImpossibleInterrupts;
use super::kind::SplatKind;
use super::line::{TraceLine, heading, rip, source_line, taint, trace};
use super::report::Splat;
use super::title::{Title, refined, title};
use crate::linux::printk::{PrintkCaller, PrintkRecord};

/// Reports that are followed at a time. With one more, the oldest one is over.
const MOST_OPEN: usize = 16;
/// Lines of a report that are kept.
const MOST_LINES: usize = 160;
/// Bytes that are kept of a line.
const LONGEST_LINE: usize = 400;
/// Frames of a report that are kept.
const MOST_FRAMES: usize = 64;
/// Lines before a title, between `cut here` and it, that belong to the report.
const MOST_BEFORE: usize = 8;
/// Of a report that has not grown for so many pauses nothing more will come.
const PAUSES: u32 = 20;

/// Finds the reports in the records of a log.
#[derive(Debug, Default)]
pub struct SplatParser {
    open: Vec<OpenReport>,
}

/// A report whose end was not seen.
#[derive(Debug)]
struct OpenReport {
    caller: PrintkCaller,
    /// What it is, once its title was there.
    splat: Option<Splat>,
    /// The lines before the title.
    before: Vec<String>,
    nanos: u64,
    /// Where the kernel was, by its registers.
    rip: Option<SplatFrame>,
    stack: StackState,
    interrupts: ImpossibleInterrupts,
    /// Whether its title told of a fault, and how that is handled.
    is_fault: bool,
    has_die_line: bool,
    pauses: u32,
}

/// How far the stack of a report was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StackState {
    Before,
    Inside,
    Behind,
}

impl SplatParser {
    /// Whether a report has begun that may go on.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Takes the next record, and gives the reports that are whole by it.
    pub fn record(&mut self, record: &PrintkRecord) -> Vec<Splat> {
        let mut whole = Vec::new();
        // What processes write is no report of the kernel.
        if record.facility != 0 {
            return whole;
        }
        let text = String::from_utf8_lossy(&record.text);
        for line in text.split('\n') {
            self.line(record, cut(line), &mut whole);
        }
        whole
    }

    fn line(&mut self, record: &PrintkRecord, line: &str, whole: &mut Vec<Splat>) {
        let (caller, nanos) = (record.caller, record.nanos);
        let found = title(line);
        let own = self.open.iter().position(|open| open.caller == caller);
        let is_cut_here = line.contains("[ cut here ]");
        if let Some(open) = own.and_then(|own| self.open.get_mut(own)) {
            let goes_on = match (&found, &open.splat) {
                (None, _) => !is_cut_here,
                (Some(_), None) => true,
                // How the fault is handled that was told of.
                (Some(new), Some(_)) => new.is_die && open.is_fault && !open.has_die_line,
            };
            if goes_on {
                let is_over = open.add(found, line);
                if is_over && let Some(own) = own {
                    whole.extend(self.open.remove(own).finish());
                }
                return;
            }
        }
        if let Some(own) = own.filter(|_| found.is_some() || is_cut_here) {
            whole.extend(self.open.remove(own).finish());
        }
        if found.is_some() || is_cut_here {
            if self.open.len() >= MOST_OPEN {
                whole.extend(self.open.remove(0).finish());
            }
            let mut open = OpenReport::new(caller, nanos);
            open.add(found, line);
            self.open.push(open);
            return;
        }
        // Of a CPU that was asked by another one where it is.
        let asked =
            |open: &&mut OpenReport| open.splat.as_ref().is_some_and(|splat| is_about_others(splat.kind));
        if let PrintkCaller::Cpu(_) = caller
            && let Some(open) = self.open.iter_mut().find(asked)
        {
            open.add(None, line);
        }
    }

    /// The log was read to its end, and nothing has come for a while: gives the reports that have not grown for many pauses.
    pub fn pause(&mut self) -> Vec<Splat> {
        self.open.iter_mut().for_each(|open| open.pauses += 1);
        let (over, open) = std::mem::take(&mut self.open).into_iter().partition(|open| open.pauses > PAUSES);
        self.open = open;
        let over: Vec<OpenReport> = over;
        over.into_iter().filter_map(OpenReport::finish).collect()
    }

    /// The log goes on no more: gives all reports that have begun.
    pub fn finish(&mut self) -> Vec<Splat> {
        std::mem::take(&mut self.open).into_iter().filter_map(OpenReport::finish).collect()
    }
}

/// Whether such a report asks other CPUs to write where they are.
fn is_about_others(kind: SplatKind) -> bool {
    matches!(kind, SplatKind::RcuStall | SplatKind::SoftLockup | SplatKind::HardLockup)
}

impl OpenReport {
    fn new(caller: PrintkCaller, nanos: u64) -> Self {
        Self {
            caller,
            splat: None,
            before: Vec::new(),
            nanos,
            rip: None,
            stack: StackState::Before,
            interrupts: ImpossibleInterrupts::default(),
            is_fault: false,
            has_die_line: false,
            pauses: 0,
        }
    }

    /// Takes a line, with what it is the title of, and says whether it is the last one.
    fn add(&mut self, found: Option<Title>, line: &str) -> bool {
        self.pauses = 0;
        if let Some(title) = found {
            self.has_die_line |= title.is_die;
            if self.splat.is_none() {
                self.begin(title);
            }
        }
        let Some(splat) = &mut self.splat else {
            if self.before.len() < MOST_BEFORE {
                self.before.push(line.to_owned());
            }
            return false;
        };
        if splat.text.len() < MOST_LINES {
            splat.text.push(line.to_owned());
        }
        self.interrupts.line(line);
        if let Some(heading) = heading(line) {
            // A task that is spoken of is another one than that which speaks.
            let speaks = splat.kind == SplatKind::HungTask;
            splat.cpu = splat.cpu.or(Some(heading.cpu).filter(|_| !speaks));
            splat.task.get_or_insert(heading.task);
            splat.taint.get_or_insert(heading.taint);
        } else if splat.taint.is_none()
            && let Some((_, letters)) = taint(line)
        {
            splat.taint = Some(letters);
        }
        if self.rip.is_none() {
            self.rip = rip(line);
        }
        match self.stack {
            StackState::Before if line.trim() == "Call Trace:" => self.stack = StackState::Inside,
            StackState::Inside => match trace(line) {
                Some(TraceLine::Frame(frame)) if splat.frames.len() < MOST_FRAMES => splat.frames.push(frame),
                Some(_) => {}
                None => self.stack = StackState::Behind,
            },
            StackState::Before | StackState::Behind => {}
        }
        line.starts_with("---[ end ")
    }

    fn begin(&mut self, title: Title) {
        let message = self.before.iter().skip(1).find(|line| !line.trim().is_empty());
        let message = message.map(String::as_str).unwrap_or_default();
        let kind = refined(title.kind, message, title.at.as_deref());
        let is_warning = title.kind == SplatKind::Warning;
        self.is_fault = title.kind == SplatKind::Oops;
        let text = match is_warning && !message.is_empty() {
            true => format!("{}: {}", title.text, message.trim()),
            false => title.text,
        };
        self.rip = title.function.filter(|_| is_warning);
        self.splat = Some(Splat {
            kind,
            title: text,
            nanos: self.nanos,
            task: title.task,
            cpu: title.cpu,
            taint: None,
            at: title.at.or_else(|| source_line(message)),
            frames: Vec::new(),
            impossible: None,
            text: std::mem::take(&mut self.before),
        });
    }

    /// The report, if it is one.
    fn finish(self) -> Option<Splat> {
        let mut splat = self.splat?;
        splat.impossible = self.interrupts.found();
        if let Some(rip) = self.rip {
            if self.is_fault {
                splat.title = format!("{} in {}", splat.title, rip.source_name());
            }
            // The first frame without a guess may be the same.
            let is_same = |frame: &SplatFrame| frame.function == rip.function && frame.place == rip.place;
            if !splat.frames.first().is_some_and(is_same) {
                splat.frames.insert(0, rip);
            }
        }
        // A process may be called as a report would begin.
        let is_one = splat.kind != SplatKind::General || !splat.frames.is_empty();
        is_one.then_some(splat)
    }
}

/// What is kept of a line.
fn cut(line: &str) -> &str {
    let mut end = line.len().min(LONGEST_LINE);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.get(..end).unwrap_or_default().trim_end()
}

#[cfg(test)]
mod tests;
