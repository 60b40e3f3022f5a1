//! A stack is walked without an allocation: `VMM_TEST_KERNELS` lists boot images, separated by colons.
#![allow(clippy::unwrap_used, reason = "what goes wrong here is a failed test")]

#[path = "kernel_stacks/ram.rs"]
mod ram;

use peak_alloc::PeakAlloc;
use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::unwind::{Code, KernelCode, Walk};
use probe_engine::paging::AddressSpace;
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;
use ram::{Ram, STACK, STACK_LEN};

/// Counts what all threads allocate: this program has one test.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const SLIDE: u64 = 0x1c80_0000;
/// Among the modules.
const UNKNOWN: Gva = Gva(0xffff_ffff_c012_3456);

#[test]
fn a_stack_is_walked_without_an_allocation() {
    let Ok(list) = std::env::var("VMM_TEST_KERNELS") else {
        return println!("skipped: VMM_TEST_KERNELS names no kernels");
    };
    for path in list.split(':') {
        let kernel = Kernel::read(&std::fs::read(path).unwrap(), None).unwrap();
        let ram = Ram::new();
        let memory = VirtMemory::new(&ram, AddressSpace::new(0, 0));
        let code = KernelCode::of(&kernel).unwrap();
        let code = Code { kernel: &code, slide: SLIDE, modules: &[] };
        let text: Vec<Gva> = kernel.symbols().text().map(|symbol| symbol.at.add(1 + SLIDE)).collect();
        let (mut frames, mut guessed) = (0, 0);
        for rips in text.chunks_exact(STACK_LEN as usize / 8) {
            // Any code may have called any other. What a module of which nothing is known has called, is guessed.
            for (n, rip) in rips.iter().enumerate() {
                let caller = if n % 8 == 0 { UNKNOWN } else { *rip };
                ram.push(STACK.0 + 8 * n as u64, caller.0);
            }
            for (n, rip) in rips.iter().enumerate() {
                let rsp = STACK.0 + 8 * (n as u64 % 512);
                let regs = Regs { rip: rip.0, rsp, rbp: rsp + 0x40, ..Regs::default() };
                let before = MEMORY.current_usage();
                MEMORY.reset_peak_usage();
                for frame in Walk::new(code, &memory, &regs, 64, |_, _| None) {
                    frames += 1;
                    guessed += u32::from(!frame.is_reliable);
                }
                assert_eq!(MEMORY.peak_usage(), before, "{path}: a stack at {rip}");
            }
        }
        println!("{path}: {frames} frames, {guessed} of them guessed");
        assert!(frames > 100_000 && guessed > 10_000 && frames - guessed > 10_000);
    }
}
