//! ORC tables of real kernels against their code: `VMM_TEST_KERNELS` lists boot images, separated by colons.
#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use std::time::Instant;

use iced_x86::{Code, Decoder, DecoderOptions, InstructionInfoFactory};
use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::orc::{BpBase, Holds, OrcFrame, OrcLayout, OrcRow, OrcTable, SpBase};
use probe_engine::linux::symbols::{Function, SymbolTable};

use depth::{Depth, writes};

mod calls;
mod depth;
mod ram;

/// Calls `check` with each kernel's path, and what was read of it.
fn each_kernel(check: impl Fn(&str, &Kernel, &OrcTable)) {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        eprintln!("skipped: VMM_TEST_KERNELS names no kernels");
        return;
    };
    for path in list.split(':') {
        let kernel = Kernel::read(&std::fs::read(path).unwrap(), None).unwrap();
        let start = Instant::now();
        let table = OrcTable::parse(kernel.image()).unwrap();
        eprintln!("{path}: {} rows in {:?}, {:?}", table.len(), start.elapsed(), table.layout());
        check(path, &kernel, &table);
    }
}

/// The functions of the kernel's text, without the padding before them.
fn functions(kernel: &Kernel) -> Vec<Function<'_>> {
    let symbols =
        kernel.symbols().text().filter(|symbol| kernel.image().is_text(symbol.at) && !symbol.is_padding());
    let mut found: Vec<_> = symbols.filter_map(|symbol| kernel.symbols().function_at(symbol.at)).collect();
    found.dedup();
    found
}

/// What holds where a function has just been called.
const CALLED: OrcRow = OrcRow::Frame(OrcFrame {
    holds: Holds::Return,
    sp: SpBase::Sp,
    sp_offset: 8,
    bp: BpBase::Unchanged,
    bp_offset: 0,
    signal: false,
});

#[test]
fn rows_are_sorted_and_cover_all_text() {
    each_kernel(|path, kernel, table| {
        assert!(table.len() > 300_000);
        let at: Vec<Gva> = table.rows().map(|(at, _)| at).collect();
        assert!(at.is_sorted());
        assert_eq!(at.first(), Some(&kernel.image().text_start()));
        // What kexec copies elsewhere and runs there is among the data since 6.14.
        let copied = kernel.symbol("__relocate_kernel_start").zip(kernel.symbol("__relocate_kernel_end"));
        let is_code = |at: Gva| {
            kernel.image().is_text(at) || copied.is_some_and(|(start, end)| at.is_in(&(start..end)))
        };
        assert!(at.iter().all(|at| is_code(*at) || is_code(at.offset(-1))));
        let is_new = kernel.image().section(".orc_header").is_some();
        assert_eq!(table.layout() != OrcLayout::UntilSixTwo, is_new);
        let start = Instant::now();
        let found = at.iter().filter(|at| table.find(**at).is_some()).count();
        eprintln!("{path}: {found} rows found in {:?}", start.elapsed());
        assert_eq!(found, at.len());
    });
}

/// Whether `code` begins with what ftrace can make a call of, behind what indirect branches may lead to.
fn is_traced(code: &[u8], at: Gva, fentry: Gva) -> bool {
    let first = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE)
        .into_iter()
        .find(|i| i.code() != Code::Endbr64);
    first.is_some_and(|first| first.is_call_near() && first.near_branch_target() == fentry.0)
}

#[test]
fn a_function_is_entered_with_its_return_address_at_rsp() {
    each_kernel(|path, kernel, table| {
        let image = kernel.image();
        let fentry = kernel.symbol("__fentry__").unwrap();
        let (mut traced, mut cold, mut others) = (0, 0, Vec::new());
        let functions = functions(kernel);
        for Function { symbol, .. } in &functions {
            let is_traced = is_traced(image.bytes_from(symbol.at).unwrap(), symbol.at, fentry);
            traced += usize::from(is_traced);
            if table.find(symbol.at) == Some(CALLED) {
                continue;
            }
            // objtool is told to leave a few functions alone, which never return as they were called.
            assert!(!is_traced || table.find(symbol.at) == Some(OrcRow::Undefined), "{}", symbol.name);
            // Parts of functions, out of their way, have the frames that those had there. Others are code by hand:
            // entries, thunks, what is copied elsewhere, and marks between functions.
            if symbol.name.ends_with(".cold") {
                cold += 1;
            } else {
                others.push(symbol.name);
            }
        }
        let (all, other) = (functions.len(), others.len());
        eprintln!(
            "{path}: of {all} functions {traced} traced, {cold} cold, {other} entered otherwise: {others:?}"
        );
        assert!(traced > 30_000 && other < 300);
    });
}

/// The table comes from objtool, which follows every way through the code, and this from iced, which follows one.
#[test]
fn rows_say_what_the_code_does_to_the_stack() {
    each_kernel(|path, kernel, table| {
        let fentry = kernel.symbol("__fentry__").unwrap();
        let mut info = InstructionInfoFactory::new();
        let (mut instructions, mut moved, mut wrong) = (0, 0, Vec::new());
        for Function { symbol, end } in functions(kernel) {
            let len = end.offset_from(symbol.at).unwrap() as usize;
            let code = kernel.image().bytes_from(symbol.at).unwrap();
            let code = code.get(..len).unwrap_or(code);
            let mut depth = (table.find(symbol.at) == Some(CALLED)).then_some(Depth::CALLED);
            for instruction in &mut Decoder::with_ip(64, code, symbol.at.0, DecoderOptions::NONE) {
                let Some(here) = depth else { break };
                instructions += 1;
                moved += usize::from(here.rsp != 8);
                if !here.is(table.find(Gva(instruction.ip())).unwrap()) {
                    wrong.push(symbol.name);
                    break;
                }
                depth = here.behind(&instruction, fentry, &writes(&mut info, &instruction));
            }
        }
        eprintln!("{path}: {instructions} instructions, {moved} of them with RSP moved, differ in {wrong:?}");
        // Code by hand that pushes what it has no name for, or takes its return address with it; and three places
        // where an alternative pushes, and its nops do not.
        const BY_HAND: [&str; 7] = [
            "arch_rethook_trampoline",
            "error_entry",
            "paranoid_entry",
            "xen_error_entry",
            "__stack_chk_fail",
            "__ubsan_handle_load_invalid_value",
            "ubsan_type_mismatch_common",
        ];
        assert!(wrong.iter().all(|name| BY_HAND.contains(name)));
        assert!(instructions > 500_000 && moved > 300_000);
    });
}

#[test]
fn tables_are_small_enough_to_be_sent() {
    each_kernel(|path, kernel, table| {
        let start = Instant::now();
        let json = serde_json::to_vec(table).unwrap();
        let sending = start.elapsed();
        let start = Instant::now();
        assert!(serde_json::from_slice::<OrcTable>(&json).unwrap() == *table);
        eprintln!("{path}: rows in {} bytes, {sending:?} and {:?} back", json.len(), start.elapsed());
        assert!(json.len() < 4 << 20);

        let symbols = kernel.symbols();
        let start = Instant::now();
        let json = serde_json::to_vec(symbols).unwrap();
        let sending = start.elapsed();
        let start = Instant::now();
        let back: SymbolTable = serde_json::from_slice(&json).unwrap();
        eprintln!("{path}: symbols in {} bytes, {sending:?} and {:?} back", json.len(), start.elapsed());
        assert!(back.iter().eq(symbols.iter()));
    });
}
