//! Stubs that read the task and per-CPU variables, as they run: each instruction is emulated.

use crate::addr::Gva;
use crate::capture::filter::{Filter, Operand, Order, Test};
use crate::capture::shape::Shape;
use crate::capture::{Base, Capture, Fetch, Field, Hop, Read, What};
use crate::detour::layout;
use crate::detour::stub::tests::{AT, COPIES, SITE, emulated, guest};
use crate::detour::stub::{Guest, Stub};
use crate::detour::work::Work;
use crate::insn::emulate::Segments;
use crate::linux::testing::Ram;
use crate::probe::plan::{ProbePlan, Trigger};
use crate::regs::Regs;

/// The CPU's own area, from the offset on that it is used from; its task; and the task's stack.
const CPU: Gva = Gva(Ram::BASE.0 + 0x1000);
const TASK: Gva = Gva(Ram::BASE.0 + 0x2000);
const STACK: Gva = Gva(Ram::BASE.0 + 0x8000);
/// What lies between a per-CPU variable and the CPU's own one.
const PER_CPU: u64 = 0x5000_0000;
const SLIDE: u64 = 0x1a00_0000;
const SYMBOL: Gva = Gva(0xffff_ffff_8310_0040);

/// Whether a hit counts if what is read is this. What the guest's functions read at is their address, twice over.
fn counts(fetch: &Fetch, than: u64) -> bool {
    let guest = Guest { window: Gva(Ram::BASE.0 - layout::POOLS), slide: SLIDE, ..guest() };
    let field = Field { name: "it".to_owned(), fetch: fetch.clone(), shape: Shape::Hex };
    let filter = Filter::Test(Operand::Field(0), Test::Number(Order::Equal, than.into()));
    let capture = Capture { fields: vec![field], filter: Some(filter), ..Capture::default() };
    let work = Work::of(3, &ProbePlan::new(Trigger::Pass).reading(capture.clone())).unwrap();
    let stub = Stub::assemble(&guest, AT, SITE, None, &[work]).unwrap();
    let ram = Ram::new();
    ram.put(CPU, &TASK.0.to_le_bytes());
    ram.put(CPU.add(0x20), &PER_CPU.to_le_bytes());
    ram.put(TASK.add(COPIES.stack), &STACK.0.to_le_bytes());
    let segments = Segments { gs_base: CPU.0 - guest.cpu.unwrap().task.current.offset, fs_base: 0 };
    let before = Regs { rip: AT.0, rsp: STACK.0 + 0x3800, rsi: 0x1000, ..Regs::default() };
    let counted = emulated(&stub, &guest, &ram, &segments, before, |regs| {
        assert!(COPIES.bytes.contains(&Gva(regs.rip)));
        ram.put(Gva(regs.rdi), &regs.rsi.wrapping_mul(2).to_le_bytes());
        regs.rax = 0;
        regs.rip = ram.memory().read_u64(Gva(regs.rsp)).unwrap();
        regs.rsp += 8;
    });
    match counted[..] {
        [] => false,
        [layout::HITS] => true,
        _ => panic!("{counted:x?}"),
    }
}

#[test]
fn a_stub_knows_the_task_and_the_cpus_own_variables() {
    let own = |offset| Hop { per_cpu: true, ..Hop::at(offset) };
    let fetch = |base, hops: &[Hop], read| Fetch { base, hops: hops.to_vec(), read };
    let memory = |hop| Read::Memory(hop, What::Bytes(8));
    let twice = |at: u64| at.wrapping_mul(2);
    let symbol = SYMBOL.0 + SLIDE + PER_CPU;
    for (fetch, expected) in [
        (fetch(Base::Current, &[], Read::Word(8)), TASK.0),
        (fetch(Base::Current, &[], memory(Hop::at(0x10))), twice(TASK.0 + 0x10)),
        (fetch(Base::Kernel(SYMBOL), &[], memory(own(8))), twice(symbol + 8)),
        (fetch(Base::Kernel(SYMBOL), &[], Read::Address(own(-8), 8)), symbol - 8),
        // As up to 6.14, where the symbol is an offset.
        (fetch(Base::Constant(0x40), &[], memory(own(0))), twice(0x40 + PER_CPU)),
        (fetch(Base::Argument(1), &[], Read::Address(own(4), 8)), 0x1004 + PER_CPU),
        // A pointer to such a variable lies in memory.
        (fetch(Base::Argument(1), &[Hop::at(8)], memory(own(0))), twice(twice(0x1008) + PER_CPU)),
        (fetch(Base::Argument(1), &[own(8)], memory(Hop::at(4))), twice(twice(0x1008 + PER_CPU) + 4)),
        (
            fetch(Base::Argument(1), &[own(8)], Read::Address(own(0), 4)),
            (twice(0x1008 + PER_CPU) + PER_CPU) & 0xffff_ffff,
        ),
    ] {
        assert!(counts(&fetch, expected), "{fetch:?} is not {expected:#x}");
        assert!(!counts(&fetch, expected ^ 1), "{fetch:?}");
    }
}

#[test]
fn a_kernel_that_does_not_tell_where_they_are_has_no_such_stub() {
    let own = Hop { per_cpu: true, ..Hop::at(0) };
    let fetch = Fetch { read: Read::Memory(own, What::Bytes(8)), ..Fetch::word(Base::Constant(0x40), 8) };
    let field = Field { name: "it".to_owned(), fetch, shape: Shape::Hex };
    let capture = Capture { fields: vec![field], ..Capture::default() };
    let work = Work::of(3, &ProbePlan::new(Trigger::Pass).reading(capture.clone()).recorded()).unwrap();
    let mut guest = guest();
    guest.cpu.as_mut().unwrap().per_cpu = None;
    let error = Stub::assemble(&guest, AT, SITE, None, &[work]).unwrap_err().to_string();
    assert!(error.contains("does not say where a CPU has its own variables"), "{error}");
}
