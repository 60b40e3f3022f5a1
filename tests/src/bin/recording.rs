//! Writes a recording of so many hits to standard output, for a look at what `vmm report` makes of it.
#![allow(clippy::unwrap_used, reason = "a tool of developers")]

use std::io::{BufWriter, stdout};
use tests::recording::{Size, write};

fn main() {
    let hits = std::env::args().nth(1).map_or(2_000, |hits| hits.parse().unwrap());
    write(&mut BufWriter::new(stdout().lock()), Size { hits, has_stacks: true });
}
