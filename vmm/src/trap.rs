//! From a debug exit to a [`Trap`]: the same for #BP that KVM intercepts and for #BP that goes to the guest first.
//!
//! Where the hardware does not intercept #BP, an execution breakpoint stands on the guest's own handler for
//! vector 3. At that exit the guest's frame is on the stack; undoing it gives the state at the `int3`, as if it
//! had been intercepted.

use crate::kvm::{Breakpoints, DebugException, DebugExit, KvmVcpu};
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::memory::VirtMemory;
use probe_engine::paging::PageFault;
use probe_engine::regs::{Regs, rflags};

/// What a debug exit means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// An `int3` was executed in kernel mode.
    Breakpoint(Breakpoint),
    /// An execution breakpoint of ours; RIP is on the instruction that has not run yet.
    Execution(Regs),
    /// An exception that can only be the guest's own.
    Guest(GuestException),
}

/// An executed `int3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breakpoint {
    /// The registers before it: RIP is on the `int3`.
    pub regs: Regs,
    /// How it came to us.
    pub delivery: Delivery,
}

/// How a #BP comes to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    /// KVM exits before the guest sees the exception.
    Intercepted,
    /// The guest's handler is about to run; the CPU's state is `frame`'s no more.
    Reflected,
}

/// An exception to give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestException {
    /// Nothing of it was taken from the guest: its handler is at its first instruction.
    Delivered,
    /// It has to be injected.
    Intercepted(DebugException),
}

/// Tells what `exit` is. `handler` is the guest's entry for vector 3, when a breakpoint of ours stands on it.
pub fn classify(
    exit: DebugExit,
    vcpu: &mut KvmVcpu,
    ram: &GuestRam,
    breakpoints: &Breakpoints,
    handler: Option<Gva>,
) -> Trap {
    const BP_VECTOR: u32 = 3;
    let regs = vcpu.regs();
    let rip = Gva(regs.rip);
    if exit.exception == BP_VECTOR {
        if vcpu.in_user_mode() {
            return Trap::Guest(GuestException::Intercepted(DebugException::Breakpoint));
        }
        return Trap::Breakpoint(Breakpoint { regs, delivery: Delivery::Intercepted });
    }
    let by_register = exit.dr6 & 0xf != 0 && breakpoints.contain(rip);
    if !by_register {
        return Trap::Guest(GuestException::Intercepted(DebugException::Debug { dr6: exit.dr6 }));
    }
    if handler != Some(rip) {
        return Trap::Execution(regs);
    }
    let memory = VirtMemory { phys: ram, space: vcpu.address_space() };
    match undo_frame(&regs, &memory) {
        Ok(Some(regs)) => Trap::Breakpoint(Breakpoint { regs, delivery: Delivery::Reflected }),
        // From user mode, or a stack that cannot be read: never ours.
        Ok(None) | Err(_) => Trap::Guest(GuestException::Delivered),
    }
}

/// The registers before the `int3` whose exception frame is on top of the stack, or `None` when it was executed
/// in user mode (Intel SDM volume 3, 6.14.2: RIP, CS, RFLAGS, RSP, SS, eight bytes each).
fn undo_frame(regs: &Regs, memory: &VirtMemory<'_, GuestRam>) -> Result<Option<Regs>, PageFault> {
    let mut frame = [0u8; 40];
    memory.read(Gva(regs.rsp), &mut frame)?;
    let (words, _) = frame.as_chunks::<8>();
    let [rip, cs, flags, rsp, _ss] = *words else { return Ok(None) };
    if u64::from_le_bytes(cs) & 3 != 0 {
        return Ok(None);
    }
    Ok(Some(Regs {
        rip: u64::from_le_bytes(rip).wrapping_sub(1),
        rflags: u64::from_le_bytes(flags) & !rflags::RF,
        rsp: u64::from_le_bytes(rsp),
        ..*regs
    }))
}

/// The guest's entry for vector 3, from its interrupt descriptor table at `idt` (Intel SDM volume 3, 6.14.1: the
/// offset is spread over bytes 0-1, 6-7 and 8-11 of a 16-byte gate).
///
/// # Errors
/// The [`PageFault`] of a table that is not mapped.
pub fn int3_handler(idt: Gva, memory: &VirtMemory<'_, GuestRam>) -> Result<Gva, PageFault> {
    const GATE: u64 = 16;
    let mut gate = [0; GATE as usize];
    memory.read(idt.add(3 * GATE), &mut gate)?;
    let [a, b, _, _, _, _, c, d, e, f, g, h, ..] = gate;
    Ok(Gva(u64::from_le_bytes([a, b, c, d, e, f, g, h])))
}
