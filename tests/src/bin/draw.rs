//! Draws instructions from kernels for the differential test: `draw FILE COUNT KERNEL...`.
//!
//! COUNT distinct ones, each encoding form in turn, so that the rare ones are all there.
#![allow(clippy::expect_used, clippy::panic, reason = "what goes wrong here is a failed test")]

use probe_engine::linux::kernel::Kernel;
use std::fs;
use tests::differential::corpus::{Drawer, to_file};
use tests::differential::rng::Rng;

/// Enough that a second helping brings hardly any new form.
const RANDOM_TRIES: usize = 4_000_000;

fn main() {
    let mut words = std::env::args().skip(1);
    let file = words.next().expect("a file to write");
    let count = words.next().and_then(|word| word.parse().ok()).expect("a number of instructions");
    let mut drawer = Drawer::default();
    for path in words {
        let image = fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let kernel = Kernel::read(&image, None).unwrap_or_else(|error| panic!("{path}: {error}"));
        drawer.take(&kernel);
    }
    let (forms, instructions) = (drawer.forms(), drawer.instructions());
    println!("draw: {instructions} distinct instructions of {forms} forms in the kernels");
    let mut rng = Rng::new(1);
    drawer.take_random(RANDOM_TRIES, &mut rng);
    println!("draw: {} more forms from random bytes", drawer.forms() - forms);
    let drawn = drawer.draw(count, &mut rng);
    fs::write(&file, to_file(&drawn)).unwrap_or_else(|error| panic!("{file}: {error}"));
    println!("draw: {} instructions written to {file}", drawn.len());
}
