//! Where a table's rows are, block of addresses by block: a row is looked for among a few, and not among all.

use std::ops::Range;

/// So many rows begin in a block, on average.
const ROWS: usize = 4;

/// Blocks of equal size over all rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Blocks {
    /// The logarithm of a block's size in bytes.
    shift: u32,
    /// For each block, how many rows begin before it.
    before: Vec<u32>,
}

impl Blocks {
    /// Those over rows at these `offsets`, which are in order.
    pub(super) fn over(offsets: &[u32]) -> Self {
        let bytes = offsets.last().map_or(0, |last| u64::from(*last)) + 1;
        let wanted = bytes.div_ceil(offsets.len().div_ceil(ROWS).max(1) as u64);
        let shift = wanted.next_power_of_two().ilog2();
        let mut before = Vec::new();
        for (row, offset) in (0..).zip(offsets) {
            let block = (u64::from(*offset) >> shift) as usize;
            before.resize(before.len().max(block + 1), row);
        }
        Self { shift, before }
    }

    /// Which of `rows` rows begin in the block that the byte at `offset` is in. Those behind the last row are in none.
    #[inline]
    pub(super) fn rows_around(&self, offset: u64, rows: usize) -> Range<usize> {
        let before = |block: usize| self.before.get(block).map_or(rows, |row| *row as usize);
        let block = usize::try_from(offset >> self.shift).unwrap_or(usize::MAX);
        before(block)..before(block.saturating_add(1))
    }
}
