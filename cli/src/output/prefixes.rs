//! The table of `vmm coverage`: how many functions ran, by the prefixes of their names.

use super::width;
use crate::record::{FunctionCount, Prefix};
use std::fmt;

/// Prefixes that have a row of their own.
const MOST: usize = 40;

/// The rows of the table. The first ones are kept, and of all others their sum.
#[derive(Default)]
pub(crate) struct PrefixTable {
    rows: Vec<Prefix>,
    others: usize,
    in_others: FunctionCount,
}

impl PrefixTable {
    pub(crate) fn push(&mut self, row: Prefix) {
        if self.rows.len() < MOST {
            self.rows.push(row);
        } else {
            self.others += 1;
            self.in_others += row.count;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn all(&self) -> FunctionCount {
        let mut all = self.in_others;
        self.rows.iter().for_each(|row| all += row.count);
        all
    }
}

impl fmt::Display for PrefixTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = format!("{} others", self.others);
        let names = self.rows.iter().map(|row| row.prefix.as_str());
        let width = width(names.chain([others.as_str()]));
        writeln!(f, "{:width$}  {:>6}  {:>6}  {:>5}", "prefix", "ran", "armed", "%")?;
        let mut row = |name: &str, FunctionCount { ran, armed, .. }| {
            let percent = 100.0 * ran as f64 / armed.max(1) as f64;
            writeln!(f, "{name:width$}  {ran:>6}  {armed:>6}  {percent:>5.1}")
        };
        self.rows.iter().try_for_each(|of| row(&of.prefix, of.count))?;
        if self.others > 0 {
            row(&others, self.in_others)?;
        }
        let all = self.all();
        row("all", all)?;
        match all.unarmed {
            0 => Ok(()),
            unarmed => writeln!(f, "{unarmed} more could not be armed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: impl IntoIterator<Item = (String, FunctionCount)>) -> String {
        let mut table = PrefixTable::default();
        rows.into_iter().for_each(|(prefix, count)| table.push(Prefix { prefix, count }));
        table.to_string()
    }

    #[test]
    fn the_table_sums_up_what_has_no_row_of_its_own() {
        let rows = [("b", 2, 2, 1), ("c", 1, 1, 0), ("a", 0, 1, 0)];
        let rows = rows
            .map(|(prefix, ran, armed, unarmed)| (prefix.to_owned(), FunctionCount { ran, armed, unarmed }));
        assert_eq!(
            table(rows),
            "prefix       ran   armed      %\n\
             b              2       2  100.0\n\
             c              1       1  100.0\n\
             a              0       1    0.0\n\
             all            3       4   75.0\n\
             1 more could not be armed\n"
        );
        let one = FunctionCount { ran: 0, armed: 1, unarmed: 0 };
        let many = table((0..50).map(|n| (format!("p{n}"), one)));
        assert!(
            many.contains("\n10 others       0      10    0.0\nall             0      50    0.0\n"),
            "{many}"
        );
    }
}
