//! From a debug exit to a [`Trap`]: the same for #BP that KVM intercepts and for #BP that goes to the guest first.
//!
//! Where the hardware does not intercept #BP, an execution breakpoint stands on the guest's own handler for
//! vector 3. At that exit the guest's frame is on the stack; undoing it gives the state at the `int3`, as if it
//! had been intercepted.

use crate::kvm::{Breakpoints, DebugException, DebugExit, KvmVcpu};
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::paging::PageFault;
use probe_engine::regs::{Regs, rflags};
use probe_engine::virt_memory::VirtMemory;

/// Entries of the guest for vector 3 (GVA): early in its boot it changes from one to another.
pub type Int3Handlers = [Option<Gva>; 2];

/// What a debug exit means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trap {
    /// An `int3` was executed in kernel mode.
    Breakpoint(Breakpoint),
    /// Debug registers of ours fired.
    Debug(Fired),
    /// An exception that can only be the guest's own.
    Guest(GuestException),
}

/// Debug registers of ours fired, all at accesses or all at an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fired {
    /// At an access RIP is behind the instruction that made it; at an execution on the one that has not run yet.
    pub regs: Regs,
    /// Which of DR0 to DR3.
    pub registers: [bool; 4],
    /// Whether an instruction is about to run.
    pub execution: bool,
    /// What else the same #DB tells the guest: that it steps through its own code.
    pub guest: Option<DebugException>,
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

impl Delivery {
    /// How many places can be watched at a time: the CPU has four debug registers, and where a #BP goes to the guest
    /// first, one of them stands on its handler.
    #[must_use]
    pub fn watches(self) -> usize {
        match self {
            Self::Intercepted => 4,
            Self::Reflected => 3,
        }
    }
}

/// An exception to give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestException {
    /// Nothing of it was taken from the guest: its handler is at its first instruction.
    Delivered,
    /// It has to be injected.
    Intercepted(DebugException),
    /// As the former, behind the `icebp` that RIP is on.
    Icebp(DebugException),
}

/// Tells what `exit` is. `handlers` are the guest's entries for vector 3, when breakpoints of ours stand on them.
pub fn classify(
    exit: DebugExit,
    vcpu: &mut KvmVcpu,
    ram: &GuestRam,
    breakpoints: &Breakpoints,
    handlers: Int3Handlers,
) -> Trap {
    const BP_VECTOR: u32 = 3;
    let regs = vcpu.regs();
    let rip = Gva(regs.rip);
    if exit.exception == BP_VECTOR {
        if !rip.is_kernels() && vcpu.in_user_mode() {
            return Trap::Guest(GuestException::Intercepted(DebugException::Breakpoint));
        }
        return Trap::Breakpoint(Breakpoint { regs, delivery: Delivery::Intercepted });
    }
    let memory = VirtMemory::new(ram, vcpu.address_space());
    let accessed = breakpoints.accessed(exit.dr6);
    if accessed.contains(&true) {
        // An execution breakpoint on the next instruction is met when the guest goes on.
        let guest =
            (exit.dr6 & DR6_GUEST != 0).then_some(DebugException::Debug { dr6: exit.dr6 & !DR6_FIRED });
        return Trap::Debug(Fired { regs, registers: accessed, execution: false, guest });
    }
    let reached = breakpoints.reached(exit.dr6, rip);
    if !reached.contains(&true) || exit.dr6 & DR6_GUEST != 0 {
        let exception = DebugException::Debug { dr6: exit.dr6 & !DR6_FIRED };
        return Trap::Guest(match is_icebp(exit.dr6, rip, &memory) {
            true => GuestException::Icebp(exception),
            false => GuestException::Intercepted(exception),
        });
    }
    if !handlers.contains(&Some(rip)) {
        return Trap::Debug(Fired { regs, registers: reached, execution: true, guest: None });
    }
    match undo_frame(&regs, &memory) {
        Ok(Some(regs)) => Trap::Breakpoint(Breakpoint { regs, delivery: Delivery::Reflected }),
        // From user mode, or a stack that cannot be read: never ours.
        Ok(None) | Err(_) => Trap::Guest(GuestException::Delivered),
    }
}

/// DR0 to DR3 fired (Intel SDM volume 3, 18.2.3).
const DR6_FIRED: u64 = 0xf;
/// Debug registers are accessed, one step is done, another task runs: what only the guest can have asked for.
const DR6_GUEST: u64 = 1 << 13 | 1 << 14 | 1 << 15;

/// Whether a #DB without a cause in DR6 is that of an `icebp` at `rip`: VMX leaves RIP on it, where the guest's handler
/// has to find it behind.
fn is_icebp(dr6: u64, rip: Gva, memory: &VirtMemory<'_, GuestRam>) -> bool {
    const ICEBP: u8 = 0xf1;
    let mut byte = [0];
    dr6 & (DR6_FIRED | DR6_GUEST) == 0 && memory.read(rip, &mut byte).is_ok() && byte == [ICEBP]
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

/// The guest's entry for `vector`, from its interrupt descriptor table at `idt` (Intel SDM volume 3, 6.14.1: the
/// offset is spread over bytes 0-1, 6-7 and 8-11 of a 16-byte gate).
///
/// # Errors
/// The [`PageFault`] of a table that is not mapped.
pub fn handler(idt: Gva, vector: u8, memory: &VirtMemory<'_, GuestRam>) -> Result<Gva, PageFault> {
    const GATE: u64 = 16;
    let mut gate = [0; GATE as usize];
    memory.read(idt.add(u64::from(vector) * GATE), &mut gate)?;
    let [a, b, _, _, _, _, c, d, e, f, g, h, ..] = gate;
    Ok(Gva(u64::from_le_bytes([a, b, c, d, e, f, g, h])))
}
