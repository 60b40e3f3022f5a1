//! Where the time was spent: functions, by how many samples were in them.

use crate::record::{SampleLine, percent};
use probe_engine::guest_text::Escaped;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// Functions that have a row of their own.
const ROWS: usize = 30;
/// Different names that are kept. A guest may make up any number: those that come later are one.
const MOST: usize = 64 << 10;

/// Of a longer name of a process's function the beginning is shown, in bytes.
const LONGEST_NAME: usize = 256;

/// Periods of samples, by function.
#[derive(Default)]
pub(crate) struct Top {
    functions: BTreeMap<String, Share>,
    all: u64,
}

/// Periods in which a function ran.
#[derive(Clone, Copy, Default)]
struct Share {
    /// It ran itself.
    own: u64,
    /// It, or something that it had called.
    total: u64,
}

impl Top {
    /// Adds a sample.
    pub(crate) fn add(&mut self, sample: &SampleLine) {
        let periods = u64::from(sample.periods);
        self.all = self.all.saturating_add(periods);
        let mut names: Vec<String> = Vec::new();
        for frame in &sample.stack {
            names.extend(frame.inlined.iter().map(|inlined| inlined.name.clone()));
            names.push(frame.function());
        }
        let process = || sample.task.as_ref().map_or("?".to_owned(), |task| task.shown().to_string());
        for frame in sample.user_frames().into_iter().flatten() {
            names.push(match frame.place {
                Some(_) => {
                    let function = frame.function();
                    let end = function.floor_char_boundary(LONGEST_NAME);
                    format!("{} ({})", Escaped(function.get(..end).unwrap_or_default().as_bytes()), process())
                }
                None => format!("[user] {}", process()),
            });
        }
        if let Some(first) = names.first() {
            let own = &mut self.share(first.clone()).own;
            *own = own.saturating_add(periods);
        }
        // A function that calls itself ran once.
        names.sort_unstable();
        names.dedup();
        for name in names {
            let total = &mut self.share(name).total;
            *total = total.saturating_add(periods);
        }
    }

    fn share(&mut self, name: String) -> &mut Share {
        let is_known = self.functions.len() < MOST || self.functions.contains_key(&name);
        self.functions.entry(if is_known { name } else { "(others)".to_owned() }).or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all == 0
    }
}

/// As a table.
impl fmt::Display for Top {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<_> = self.functions.iter().collect();
        rows.sort_by_key(|(name, share)| (Reverse((share.own, share.total)), *name));
        writeln!(f, "{:>8}  {:>6}  function", "self", "total")?;
        for (name, Share { own, total }) in rows.iter().take(ROWS) {
            writeln!(f, "{:>7.1}%  {:>5.1}%  {name}", percent(*own, self.all), percent(*total, self.all))?;
        }
        match rows.len().checked_sub(ROWS) {
            None | Some(0) => Ok(()),
            Some(more) => writeln!(f, "{:>8}  {:>6}  and {more} more", "", ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Line, Reader, example};

    #[test]
    fn a_function_has_what_it_ran_and_what_it_had_called() {
        let mut reader = Reader::open(example("jsonl").as_bytes()).unwrap();
        let mut top = Top::default();
        while let Some(line) = reader.next().unwrap() {
            if let Line::Sample(mut sample) = line {
                // A call in a call is one.
                let frames = sample.stack.clone();
                sample.stack.extend(frames);
                top.add(&sample);
            }
        }
        let expected = [
            "    self   total  function",
            "   66.7%   66.7%  getdents64 (ls)",
            "   33.3%   33.3%  do_sys_openat2",
            "    0.0%   33.3%  [user] ls",
            "    0.0%   33.3%  do_syscall_64",
        ];
        assert_eq!(top.to_string().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_name_of_a_program_does_nothing_to_a_terminal() {
        let named = example("jsonl").replace("getdents64+", &format!("\\u001b[2J{}+", "x".repeat(1000)));
        let mut reader = Reader::open(named.as_bytes()).unwrap();
        let mut top = Top::default();
        while let Some(line) = reader.next().unwrap() {
            if let Line::Sample(sample) = line {
                top.add(&sample);
            }
        }
        let shown = top.to_string();
        assert!(shown.contains("\\x1b[2Jxxx") && !shown.contains('\x1b'), "{shown}");
        assert!(shown.lines().all(|line| line.len() < 2 * LONGEST_NAME));
    }
}
