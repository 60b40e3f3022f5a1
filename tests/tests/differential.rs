//! Every way past an instruction against the CPU, with instructions from real kernels.
//!
//! `VMM_DIFF_CORPUS` names the file that `draw` made of them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "what goes wrong here is a failed test")]

use std::fs;
use std::time::Instant;
use tests::differential::compare::compare;
use tests::differential::corpus::from_file;
use tests::differential::guest::Guest;
use tests::host::fit;

#[test]
fn what_emulation_and_copies_leave_is_what_the_cpu_leaves() {
    let Some(corpus) = std::env::var_os("VMM_DIFF_CORPUS") else {
        return println!("skipped: VMM_DIFF_CORPUS names no instructions; `cargo xtask test` does");
    };
    let Some(fit) = fit() else { return };
    let drawn = from_file(&fs::read(&corpus).unwrap());
    let before = Instant::now();
    let outcome = compare(&mut Guest::new(fit), &drawn);
    let [emulated, copied] = outcome.opcodes.map(|opcodes| opcodes.len());
    println!("differential: {} instructions in {:.1?}", drawn.len(), before.elapsed());
    println!("differential: emulated {} of {emulated} opcodes", outcome.emulated);
    println!("differential: copied {} of {copied} opcodes", outcome.copied);
    println!("differential: refused {:?}", outcome.refused);
    println!("differential: not tried {:?}", outcome.excluded);
    println!("differential: known of this CPU {:?}", outcome.known);
    println!("differential: mismatches {:?}", outcome.mismatches);
    println!("differential: exceptions {:?}", outcome.vectors);
    for words in outcome.described.iter().take(300) {
        println!("{words}");
    }
    assert!(outcome.mismatches.is_empty(), "mismatches by opcode: {:?}", outcome.mismatches);
    assert!(emulated >= 500 && copied >= 155, "{emulated} opcodes emulated, {copied} copied");
    let compared = outcome.emulated + outcome.copied;
    assert!(compared * 10 >= drawn.len() * 9, "only {compared} of {} were compared", drawn.len());
}
