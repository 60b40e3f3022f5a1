//! Stacks as the kernel's code would make them, walked back by its tables.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory};
use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::orc::{OrcRow, OrcTable};
use probe_engine::linux::symbols::Function;
use probe_engine::linux::unwind::{Code, End, FrameKind, KernelCode, Walk};
use probe_engine::paging::AddressSpace;
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;

use crate::depth::{Depth, writes};
use crate::ram::{Ram, STACK, STACK_LEN};
use crate::{CALLED, each_kernel, functions};

const SLIDE: u64 = 0x1c80_0000;
/// Most calls on it.
const MOST_CALLS: usize = 100;

/// The first direct call on a function's straight way.
struct Call {
    to: Gva,
    back: Gva,
    depth: Depth,
}

/// Where each function calls another for the first time.
fn calls(kernel: &Kernel, table: &OrcTable) -> HashMap<Gva, Call> {
    let fentry = kernel.symbol("__fentry__").unwrap();
    let mut info = InstructionInfoFactory::new();
    let mut found = HashMap::new();
    for Function { symbol, end } in functions(kernel) {
        let code = kernel.image().bytes_from(symbol.at).unwrap();
        let code = code.get(..end.offset_from(symbol.at).unwrap() as usize).unwrap_or(code);
        let mut depth = Depth::CALLED;
        for instruction in &mut Decoder::with_ip(64, code, symbol.at.0, DecoderOptions::NONE) {
            let to = Gva(instruction.near_branch_target());
            if instruction.flow_control() == FlowControl::Call && to != fentry {
                // What straight code looks like differs from its rows for a handful by hand.
                let agrees = table.find(Gva(instruction.ip())).is_some_and(|row| depth.is(row));
                if agrees && table.find(symbol.at) == Some(CALLED) && table.find(to) == Some(CALLED) {
                    found.insert(symbol.at, Call { to, back: Gva(instruction.next_ip()), depth });
                }
                break;
            }
            match depth.behind(&instruction, fentry, &writes(&mut info, &instruction)) {
                Some(behind) => depth = behind,
                None => break,
            }
        }
    }
    found
}

#[test]
fn stacks_made_by_code_are_walked_back_by_tables() {
    each_kernel(|path, kernel, table| {
        let ram = Ram::new();
        let memory = VirtMemory::new(&ram, AddressSpace::new(0, 0));
        let code = KernelCode::of(kernel).unwrap();
        let code = Code { kernel: &code, slide: SLIDE, modules: &[] };
        let bottom = table.rows().find(|(_, row)| *row == OrcRow::EndOfStack).unwrap().0.add(1 + SLIDE);
        let calls = calls(kernel, table);
        let (mut frames, mut longest, mut time) = (0, 0, Duration::ZERO);
        for start in calls.keys() {
            // RSP before the next call, and RBP, as the functions change them.
            let (mut at, mut cfa, mut rbp) = (*start, STACK.0 + STACK_LEN, 0x1234_5678);
            ram.push(cfa - 8, bottom.0);
            let mut expected = vec![bottom];
            while let Some(call) = calls.get(&at).filter(|_| expected.len() <= MOST_CALLS) {
                let Depth { rsp, rbp: frame, pushed_rbp } = call.depth;
                let below = |bytes: i64| cfa.wrapping_sub(bytes as u64);
                if below(rsp) < STACK.0 + 0x100 {
                    break;
                }
                if let Some(pushed) = pushed_rbp {
                    ram.push(below(pushed), rbp);
                    // Without being a frame pointer it may be anything.
                    rbp = frame.map_or(at.0, below);
                }
                at = call.to;
                cfa = below(rsp);
                ram.push(cfa - 8, call.back.add(SLIDE).0);
                expected.push(call.back.add(SLIDE));
            }
            expected.push(at.add(SLIDE));
            expected.reverse();
            let regs = Regs { rip: at.add(SLIDE).0, rsp: cfa - 8, rbp, ..Regs::default() };
            let begin = Instant::now();
            let mut walk = Walk::new(code, &memory, &regs, MOST_CALLS + 2, |_, _| None);
            let found: Vec<_> = (&mut walk).collect();
            time += begin.elapsed();
            assert!(
                found.iter().map(|frame| frame.at).eq(expected.iter().copied()),
                "{found:?} {expected:?}"
            );
            assert!(found.iter().skip(1).all(|frame| frame.is_reliable && frame.kind == FrameKind::Return));
            assert_eq!(walk.end(), Some(End::Bottom));
            frames += found.len();
            longest = longest.max(found.len());
        }
        let each = time / frames as u32;
        eprintln!("{path}: {} stacks, {frames} frames, {longest} at most, {each:?} a frame", calls.len());
        assert!(calls.len() > 20_000);
    });
}
