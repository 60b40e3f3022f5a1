//! Which return trampolines are whose: they are taken in whole rows.

use probe_engine::probe::table::TRAMPOLINE_ROW;
use std::ops::Range;

/// Which rows of trampolines are taken.
pub(super) struct Rows(Vec<bool>);

impl Rows {
    /// So many trampolines, all free.
    pub(super) fn new(trampolines: u32) -> Self {
        Self(vec![false; (trampolines / TRAMPOLINE_ROW) as usize])
    }

    /// The numbers of the first trampolines that are free in a row, at least `count` and at least one row.
    pub(super) fn take(&mut self, count: u32) -> Option<Range<u32>> {
        let wanted = count.div_ceil(TRAMPOLINE_ROW).max(1) as usize;
        let start = self.0.windows(wanted).position(|rows| rows.iter().all(|taken| !taken))?;
        self.0.iter_mut().skip(start).take(wanted).for_each(|taken| *taken = true);
        let number = |row: usize| row as u32 * TRAMPOLINE_ROW;
        Some(number(start)..number(start + wanted))
    }

    pub(super) fn give_back(&mut self, numbers: Range<u32>) {
        let rows = numbers.start / TRAMPOLINE_ROW..numbers.end.div_ceil(TRAMPOLINE_ROW);
        self.0.iter_mut().take(rows.end as usize).skip(rows.start as usize).for_each(|taken| *taken = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trampolines_are_taken_in_whole_rows_and_given_back() {
        let mut rows = Rows::new(64);
        assert_eq!(rows.take(10), Some(0..16));
        assert_eq!(rows.take(17), Some(16..48));
        assert_eq!(rows.take(17), None);
        rows.give_back(0..10);
        assert_eq!(rows.take(1), Some(0..16));
        assert_eq!(rows.take(16), Some(48..64));
        assert_eq!(rows.take(1), None);
        assert_eq!(rows.take(u32::MAX), None);
        rows.give_back(48..64);
        assert_eq!(rows.take(0), Some(48..64));
    }
}
