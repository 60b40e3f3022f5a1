//! Stacks as profilers take them: one frame behind the other, from the outermost on, with how many hits had them. Where CPUs were
//! sampled, they are those of samples alone, with the periods that they stand for.

use super::ReportError;
use super::stacked::{Stacked, each_stack};
use crate::record::Reader;
use probe_engine::guest_text::is_special;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};

/// Most bytes of different stacks that are kept.
const MOST: usize = 128 << 20;

/// Stacks, with how many hits had them.
type Folded = BTreeMap<String, u64>;

/// Writes each stack with its hits, `task;frame;frame count`. There may be several lines of one stack in a long
/// recording: their hits add up.
pub(super) fn write_folded(
    recording: &mut Reader<impl BufRead>,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    fold(recording, &mut |folded| {
        folded.iter().try_for_each(|(stack, hits)| writeln!(out, "{stack} {hits}"))?;
        Ok(())
    })
}

/// Writes the stacks as a flame graph: SVG, to be opened in a web browser.
pub(super) fn write_svg(
    recording: &mut Reader<impl BufRead>,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    let (mut all, mut has_more) = (Vec::new(), 0);
    fold(recording, &mut |folded| {
        match all.is_empty() {
            true => all.extend(folded.iter().map(|(stack, hits)| format!("{stack} {hits}"))),
            // One picture has no room for more.
            false => has_more += folded.values().sum::<u64>(),
        }
        Ok(())
    })?;
    if has_more > 0 {
        all.push(format!("(more stacks than are shown) {has_more}"));
    }
    let mut options = inferno::flamegraph::Options::default();
    let (title, unit, nothing) = match recording.header().period_ns {
        Some(_) => ("Samples", "periods", "samples"),
        None => ("Stacks of hits", "hits", "hits with stacks"),
    };
    (options.title, options.count_name) = (title.to_owned(), unit.to_owned());
    // A function has one colour in all pictures.
    options.deterministic = true;
    match all.is_empty() {
        // There would be a picture that says that something went wrong.
        true => Err(ReportError::Nothing(nothing)),
        false => Ok(inferno::flamegraph::from_lines(&mut options, all.iter().map(String::as_str), out)?),
    }
}

/// Counts the hits of each stack, and hands over what was counted: at the end, and before it takes too much memory.
fn fold(
    recording: &mut Reader<impl BufRead>,
    take: &mut dyn FnMut(&Folded) -> Result<(), ReportError>,
) -> Result<(), ReportError> {
    let (mut folded, mut bytes) = (Folded::new(), 0);
    let read = each_stack(recording, &mut |stacked| {
        let stack = folded_stack(stacked);
        match folded.get_mut(&stack) {
            Some(hits) => *hits = stacked.count.saturating_add(*hits),
            None => {
                bytes += stack.len() + 64;
                folded.insert(stack, stacked.count);
            }
        }
        if bytes > MOST {
            bytes = 0;
            take(&std::mem::take(&mut folded))?;
        }
        Ok(())
    });
    if !folded.is_empty() {
        take(&folded)?;
    }
    read
}

/// The task, the frames of its process, and those of the kernel; of a hit without a stack, its probe.
fn folded_stack(Stacked { task, user, frames, probe, .. }: &Stacked<'_>) -> String {
    let mut text = String::new();
    match task {
        Some(task) => push(&mut text, &String::from_utf8_lossy(task.comm())),
        None => push(&mut text, "?"),
    }
    user.iter().rev().for_each(|frame| push(&mut text, &frame.function()));
    for frame in frames.iter().rev() {
        push(&mut text, &frame.function());
        frame.inlined.iter().rev().for_each(|inlined| push(&mut text, &inlined.name));
    }
    if let Some(probe) = probe {
        push(&mut text, probe);
    }
    text
}

/// Adds a frame, behind the others.
fn push(text: &mut String, frame: &str) {
    if !text.is_empty() {
        text.push(';');
    }
    // A task may call itself nothing.
    let frame = if frame.is_empty() { "?" } else { frame };
    // What separates frames and counts is in no name.
    text.extend(frame.chars().map(|c| match c {
        ';' => ':',
        c if c.is_whitespace() || is_special(c) => '_',
        c => c,
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;

    #[test]
    fn a_frame_without_a_name_is_a_frame() {
        let nameless =
            example("json").replace("\"comm\":\"head\"", "\"comm\":\"\"").replace("__x64_sys_openat+", "+");
        let mut folded = Vec::new();
        write_folded(&mut Reader::open(nameless.as_bytes()).unwrap(), &mut folded).unwrap();
        assert_eq!(
            String::from_utf8(folded).unwrap(),
            "?;0x7f321cd08ca9;do_syscall_64;?;do_sys_openat2 1\n?;vfs_read%return 1\n"
        );
    }

    #[test]
    fn samples_are_folded_by_their_periods() {
        let mut folded = Vec::new();
        write_folded(&mut Reader::open(example("jsonl").as_bytes()).unwrap(), &mut folded).unwrap();
        assert_eq!(
            String::from_utf8(folded).unwrap(),
            "ls;0x7f321cd08ca9;do_syscall_64;do_sys_openat2 1\nls;getdents64 2\n"
        );
    }
}
