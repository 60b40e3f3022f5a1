//! Corrupt input makes errors: no panic, nothing that takes long, and no more memory than is allowed.
//!
//! What is done with it is what the fuzz targets do (`fuzz`, which is no part of this workspace), with their seeds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may fail like tests")]

#[path = "../../fuzz/src/engine.rs"]
#[allow(unreachable_pub, reason = "it is a library of its own")]
mod targets;

#[path = "corruption/harness.rs"]
#[allow(unreachable_pub, reason = "another crate's tests use it as well")]
mod harness;

use harness::{Target, cut_every_seed, damage, damaged, read_every_seed, run, seeds};
use proptest::prelude::*;

const TARGETS: [Target; 8] = [
    // A type in C has up to 65,536 lines, however often they say the same.
    Target { name: "btf", entry: targets::btf, least: 64 << 20 },
    // A compressed section holds what it says, up to a thousand times its size.
    Target { name: "dwarf", entry: targets::dwarf, least: 64 << 20 },
    Target { name: "kallsyms", entry: targets::kallsyms, least: 1 << 20 },
    Target { name: "orc", entry: targets::orc, least: 1 << 20 },
    Target { name: "modules", entry: targets::modules, least: 1 << 20 },
    // A ring of records may say that all of them are the same long text.
    Target { name: "printk", entry: targets::printk, least: 32 << 20 },
    Target { name: "splat", entry: targets::splat, least: 1 << 20 },
    Target { name: "definition", entry: targets::definition, least: 1 << 20 },
];

#[test]
fn every_seed_is_read() {
    read_every_seed(&TARGETS);
}

#[test]
fn every_seed_may_end_anywhere() {
    cut_every_seed(&TARGETS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_seed_may_be_damaged(
        target in proptest::sample::select(TARGETS.to_vec()),
        seed: prop::sample::Index,
        places in proptest::collection::vec((any::<prop::sample::Index>(), damage()), 1..6),
    ) {
        let seeds = seeds(target);
        run(target, &damaged(seed.get::<Vec<u8>>(&seeds), &places));
    }
}
