//! Every way past an instruction against the CPU, with instructions from real kernels: emulated, copied, moved into a detour.
//!
//! `VMM_DIFF_CORPUS` names the file that `draw` made of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "what goes wrong here is a failed test")]

use std::fs;
use std::time::Instant;
use tests::differential::compare::{Opcodes, compare};
use tests::differential::corpus::from_file;
use tests::differential::guest::{BP, Guest};
use tests::host::fit;

#[test]
fn what_emulation_and_copies_leave_is_what_the_cpu_leaves() {
    let Some(corpus) = std::env::var_os("VMM_DIFF_CORPUS") else {
        assert!(std::env::var_os("VMM_CONTRACT_REQUIRED").is_none(), "VMM_DIFF_CORPUS names no instructions");
        return println!("skipped: VMM_DIFF_CORPUS names no instructions; `cargo xtask test` does");
    };
    let Some(fit) = fit() else { return };
    let drawn = from_file(&fs::read(&corpus).unwrap());
    let before = Instant::now();
    let outcome = compare(&mut Guest::new(fit), &drawn);
    println!("differential: {} instructions in {:.1?}", drawn.len(), before.elapsed());
    for (how, opcodes) in
        [("emulated", &outcome.emulated), ("copied", &outcome.copied), ("moved", &outcome.moved)]
    {
        println!("differential: {how} {} of {} opcodes", total(opcodes), opcodes.len());
    }
    println!("differential: refused {:?}", outcome.refused);
    println!("differential: not tried {:?}", outcome.excluded);
    for instruction in &outcome.stateless {
        println!("skipped: `{instruction}`: no state was found in which it comes back");
    }
    println!("differential: nothing to compare with {:?}", outcome.incomparable);
    println!("differential: corrected {:?}", outcome.corrected);
    println!("differential: mismatches {:?}", outcome.mismatches);
    println!("differential: exceptions {:?}", outcome.vectors);
    for words in outcome.described.iter().take(300) {
        println!("{words}");
    }
    assert!(outcome.mismatches.is_empty(), "mismatches by opcode: {:?}", outcome.mismatches);
    let [emulated, copied, moved] =
        [&outcome.emulated, &outcome.copied, &outcome.moved].map(|opcodes| opcodes.len());
    assert!(emulated >= 500 && copied >= 155, "{emulated} opcodes emulated, {copied} copied");
    assert!(moved >= 620, "{moved} opcodes moved");
    assert!(outcome.stateless.len() <= 3, "no states for {:?}", outcome.stateless);
    let compared = total(&outcome.emulated) + total(&outcome.copied);
    assert!(compared * 100 >= drawn.len() * 98, "only {compared} of {} were compared", drawn.len());
    let moved = total(&outcome.moved);
    assert!(moved * 100 >= drawn.len() * 98, "only {moved} of {} were compared after a move", drawn.len());
    // Most run to their end: what only faults shows little.
    let ended = outcome.vectors.get(&BP).copied().unwrap_or_default();
    assert!(ended * 100 >= compared * 85, "only {ended} of {compared} came to their end");
}

fn total(opcodes: &Opcodes) -> usize {
    opcodes.values().sum()
}
