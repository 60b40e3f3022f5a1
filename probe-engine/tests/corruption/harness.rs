//! What is done with the seeds of a target, and the limits that it is held to.

use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Counts what all threads allocate: one at a time is looked at.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;
static ALONE: Mutex<()> = Mutex::new(());

/// More than any of these inputs needs on a loaded machine.
const LONGEST: Duration = Duration::from_secs(5);
/// What a byte of the input may make allocate.
const PER_BYTE: usize = 256;

/// What is given such input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    /// Returns whether it came to what the input is about.
    pub entry: fn(&[u8]) -> bool,
    /// What may be allocated for the shortest input.
    pub least: usize,
}

/// The seeds of a target.
pub fn seeds(target: Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target.name);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Runs a target, and holds it to its limits. Returns what it says of the input.
pub fn run(Target { name, entry, least }: Target, input: &[u8]) -> bool {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let start = Instant::now();
    let is_read = entry(input);
    let (took, most) = (start.elapsed(), MEMORY.peak_usage().saturating_sub(before));
    assert!(took < LONGEST, "{name}: {took:?}");
    assert!(most < least + PER_BYTE * input.len(), "{name}: {most} bytes for {}", input.len());
    is_read
}

/// What is done to a seed, at some place.
#[derive(Debug, Clone)]
pub enum Damage {
    Replace(Vec<u8>),
    Insert(Vec<u8>),
    Remove(usize),
    /// A number of 32 bits that is the largest, or nearly.
    Large(u8),
}

pub fn damage() -> impl Strategy<Value = Damage> {
    let bytes = || proptest::collection::vec(any::<u8>(), 1..12);
    prop_oneof![
        4 => bytes().prop_map(Damage::Replace),
        1 => bytes().prop_map(Damage::Insert),
        1 => (1_usize..40).prop_map(Damage::Remove),
        2 => (0_u8..4).prop_map(Damage::Large),
    ]
}

pub fn damaged(seed: &[u8], places: &[(prop::sample::Index, Damage)]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for (at, damage) in places {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match damage {
            Damage::Replace(new) => bytes.iter_mut().skip(at).zip(new).for_each(|(byte, new)| *byte = *new),
            Damage::Insert(new) => drop(bytes.splice(at..at, new.iter().copied())),
            Damage::Remove(len) => drop(bytes.drain(at..(at + len).min(bytes.len()))),
            Damage::Large(less) => {
                let number = (u32::MAX >> (less * 8)).to_le_bytes();
                bytes.iter_mut().skip(at).zip(number).for_each(|(byte, new)| *byte = new);
            }
        }
    }
    bytes
}

/// Each seed says something of the target.
pub fn read_every_seed(targets: &[Target]) {
    for &target in targets {
        let seeds = seeds(target);
        assert!(!seeds.is_empty(), "{}", target.name);
        for (n, seed) in seeds.iter().enumerate() {
            assert!(run(target, seed), "{}: seed {n} in the order of names says nothing", target.name);
        }
    }
}

/// Each may end anywhere.
pub fn cut_every_seed(targets: &[Target]) {
    for &target in targets {
        for seed in seeds(target) {
            let step = (seed.len() / 200).max(1);
            for len in (0..seed.len()).step_by(step) {
                run(target, seed.get(..len).unwrap_or_default());
            }
        }
    }
}
