//! Following a call to its return: see [`instances`](crate::detour::instances).
//!
//! ```text
//! trampoline:     call leave          names the instance by what it pushes, where the return address was
//!
//! leave:          pushfq              for all of them, behind the last trampoline
//!                 cli
//!                 push ...
//!                 mov rax, [the instance's stub]
//!                 jmp rax             or to the guest's thunk for that
//! ret:            ret                 or a jump to the guest's return thunk
//!
//! stub:           endbr64             behind the one of the function's entry
//!                 the return address is what it was
//!                 lock inc [hits]     if it is the call that was followed, and the condition holds; then its record
//!                 the instance is given back
//!                 pop ...
//!                 popfq
//!                 jmp ret
//! ```
//!
//! `jmp rax` and `ret` are the only branches of ours whose target is not in the code. They are [as the
//! guest's](crate::linux::branches): mitigations that it has chosen hold for them too. Both are in the upper half of a cache
//! line, where the guest leaves its own as they are against ITS.
//!
//! CPUs predict returns by a stack of calls. The call of the trampoline is there for `ret` to take off: the callers' returns are
//! predicted as without us. Behind it is an `int3`, where a prediction ends. The function's return to the trampoline
//! and `ret` are mispredicted, and so is a retpoline. The guest's call depth tracking counts one call less than there are
//! for each call that is followed, so that it refills that stack too early, and never too late.
//!
//! In all of this rbx is the address of the instance: functions that [read](super::memory) for it leave that as it is.

use super::{Assembler, Cpu, Done, Guest, NoStub, displacement, imm, memory, own};
use crate::addr::Gva;
use crate::capture::Register;
use crate::detour::instances::instance;
use crate::detour::layout::{
    INSTANCE, INSTANCES, LIVE, POOL, POOLS, RAN_OUT, STRAYS, TICKETS, TRAMPOLINE, TRAMPOLINES, UNFOLLOWED,
    record,
};
use crate::detour::work::{Calls, Work};
use crate::insn::copy::jump;
use iced_x86::Code;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, byte_ptr, dword_ptr, eax, ebx, ecx, edx, qword_ptr, r8, r8d,
    rax, rbx, rcx, rdx, rsp,
};

/// Bytes of [`leave`].
pub const LEAVE: usize = 64;
/// Where in it code of ours goes to return.
pub(in crate::detour) const RET: usize = 48;

const INT3: u8 = 0xcc;
const JMP_RAX: [u8; 2] = [0xff, 0xe0];
const RET_NEAR: u8 = 0xc3;

/// What trampolines need besides what a stub does.
pub(in crate::detour) const SAVED: &[AsmRegister64] = &[rax, rcx, rdx, r8, rbx];

/// The trampolines of all instances, for [`Guest::trampolines`]. They lead to [`leave`], behind them.
#[must_use]
pub fn trampolines() -> Vec<u8> {
    const CALL: u8 = 0xe8;
    let mut code = vec![INT3; TRAMPOLINES as usize];
    let (trampolines, _) = code.as_chunks_mut::<{ TRAMPOLINE as usize }>();
    for (number, trampoline) in (0..).zip(trampolines) {
        let next = TRAMPOLINES - number * TRAMPOLINE - 5;
        let [a, b, c, d, ..] = next.to_le_bytes();
        *trampoline = [CALL, a, b, c, d, INT3, INT3, INT3];
    }
    code
}

/// The code that all trampolines lead to, and by which all code of ours returns. It can be written again in a stop once it is
/// known how the guest branches: nothing but what branches is another one then.
///
/// # Errors
/// The data window, or the guest's thunk, is not near.
pub fn leave(guest: &Guest) -> Result<Vec<u8>, NoStub> {
    let at = guest.trampolines.add(TRAMPOLINES);
    let mut assembler =
        Assembler { asm: CodeAssembler::new(64)?, guest, site: None, saved: &[], area: 0, waits: Vec::new() };
    assembler.lead_on()?;
    let mut code = assembler.asm.assemble(at.0)?;
    match guest.branches.jump {
        None => code.extend(JMP_RAX),
        Some(thunk) => code.extend(jump(at.add(code.len() as u64), thunk)?),
    }
    if code.len() > RET {
        return Err(NoStub("the way out of a call is too long".to_owned()));
    }
    code.resize(RET, INT3);
    match guest.branches.ret {
        None => code.push(RET_NEAR),
        Some(thunk) => code.extend(jump(guest.ret(), thunk)?),
    }
    code.resize(LEAVE, INT3);
    Ok(code)
}

impl Assembler<'_> {
    /// In a trampoline: saves all, and loads the address of the stub of its instance into rax.
    fn lead_on(&mut self) -> Done {
        self.asm.pushfq()?;
        self.asm.cli()?;
        self.save(SAVED)?;
        self.asm.mov(rbx, qword_ptr(rsp + self.pushed() + 8))?;
        self.asm.sub(rbx, absolute(self.guest.trampolines.add(5))?)?;
        self.asm.shl(rbx, (INSTANCE / TRAMPOLINE).ilog2())?;
        self.asm.lea(rbx, qword_ptr(rbx + self.at(INSTANCES)?))?;
        self.asm.mov(rax, qword_ptr(rbx + instance::STUB))?;
        Ok(())
    }

    /// At a function's entry: follows the call, which is to return to `leave`. Uses what is saved.
    pub(super) fn enter(&mut self, work: &Work, calls: Calls, leave: CodeLabel) -> Done {
        let Guest { rings, trampolines, .. } = *self.guest;
        let Cpu { number, task, .. } = self.cpu()?;
        let (pools, live) = (self.at(POOLS)?, self.at(LIVE)?);
        let (mut none, mut again, mut next) =
            (self.asm.create_label(), self.asm.create_label(), self.asm.create_label());
        let mut empty = self.asm.create_label();
        let slot = imm(self.pushed() + 8)?;
        if calls.most.is_some() {
            self.count(Code::Dec_rm64, TICKETS, work.probe)?;
            self.asm.js(none)?;
        }
        // The pool of this CPU. Its number is the guest's word.
        self.asm.mov(ebx, own(dword_ptr(displacement(number)?)))?;
        self.asm.cmp(ebx, rings.cpus.cast_signed())?;
        self.asm.jae(none)?;
        self.asm.shl(ebx, POOL.ilog2())?;
        // Takes its first instance, unless another CPU gives one back in this moment: then it is tried again.
        self.asm.mov(rax, qword_ptr(rbx + pools))?;
        self.asm.set_label(&mut again)?;
        self.asm.mov(rdx, rax)?;
        self.asm.shr(rdx, 32u32)?;
        self.asm.jz(empty)?;
        self.asm.lea(r8d, dword_ptr(rax + 1))?;
        self.asm.or(r8, qword_ptr(rdx + live))?;
        self.asm.lock().cmpxchg(qword_ptr(rbx + pools), r8)?;
        self.asm.jne(again)?;
        // From here on: rdx where its word in LIVE is, and its trampoline.
        self.asm.mov(rbx, rdx)?;
        self.asm.shl(rbx, (INSTANCE / TRAMPOLINE).ilog2())?;
        self.asm.lea(rbx, qword_ptr(rbx + self.at(INSTANCES)?))?;
        self.asm.mov(rax, qword_ptr(rsp + slot))?;
        self.asm.mov(qword_ptr(rbx + instance::BACK), rax)?;
        self.asm.mov(dword_ptr(rbx + instance::PROBE), work.probe.cast_signed())?;
        // A call that returns through another instance returns where that does.
        let mut known = self.asm.create_label();
        self.asm.mov(qword_ptr(rbx + instance::CALLER), rax)?;
        self.asm.sub(rax, absolute(trampolines)?)?;
        self.asm.cmp(rax, imm(TRAMPOLINES)?)?;
        self.asm.jae(known)?;
        self.asm.shl(rax, (INSTANCE / TRAMPOLINE).ilog2())?;
        self.asm.mov(rax, qword_ptr(rax + self.at(INSTANCES + instance::CALLER)?))?;
        self.asm.mov(qword_ptr(rbx + instance::CALLER), rax)?;
        self.asm.set_label(&mut known)?;
        self.asm.lea(rax, qword_ptr(rsp + slot))?;
        self.asm.mov(qword_ptr(rbx + instance::SLOT), rax)?;
        self.asm.lea(rax, qword_ptr(leave))?;
        self.asm.mov(qword_ptr(rbx + instance::STUB), rax)?;
        self.asm.mov(rax, own(qword_ptr(displacement(task.current.offset)?)))?;
        self.asm.mov(qword_ptr(rdx + live), rax)?;
        self.asm.add(rdx, absolute(trampolines)?)?;
        self.asm.mov(qword_ptr(rsp + slot), rdx)?;
        if calls.arguments {
            self.put(rbx, (instance::ARGUMENTS..).step_by(8), (0..6).filter_map(Register::of_argument))?;
        }
        if work.record.is_some() {
            self.ticks()?;
            self.asm.mov(qword_ptr(rbx + instance::BEGAN), rax)?;
        }
        self.asm.jmp(next)?;
        self.asm.set_label(&mut empty)?;
        self.asm.mov(byte_ptr(self.at(RAN_OUT + u64::from(work.probe))?), 1)?;
        self.asm.set_label(&mut none)?;
        if calls.most.is_some() {
            self.count(Code::Inc_rm64, TICKETS, work.probe)?;
        }
        self.count(Code::Inc_rm64, UNFOLLOWED, work.probe)?;
        self.asm.set_label(&mut next)?;
        self.asm.zero_bytes()?;
        Ok(())
    }

    /// A call returns, and all is saved: counts and records it, and leaves for where it really returns to.
    pub(super) fn leave(&mut self, work: &Work, calls: Calls, label: &mut CodeLabel) -> Done {
        self.saved = SAVED;
        let (mut stray, mut free, mut again) =
            (self.asm.create_label(), self.asm.create_label(), self.asm.create_label());
        self.asm.set_label(label)?;
        self.asm.endbr64()?;
        if !work.reads.is_empty() {
            self.save(memory::SAVED)?;
        }
        let (slot, live) = (imm(self.pushed() + 8)?, self.at(LIVE)?);
        self.asm.mov(rax, qword_ptr(rbx + instance::BACK))?;
        self.asm.mov(qword_ptr(rsp + slot), rax)?;
        self.asm.lea(rax, qword_ptr(rsp + slot))?;
        self.asm.cmp(rax, qword_ptr(rbx + instance::SLOT))?;
        self.asm.jne(stray)?;
        self.asm.mov(edx, dword_ptr(rbx + (instance::SELF + 4)))?;
        self.asm.mov(rax, own(qword_ptr(displacement(self.cpu()?.task.current.offset)?)))?;
        self.asm.cmp(rax, qword_ptr(rdx + live))?;
        self.asm.jne(stray)?;
        self.work(work)?;
        self.asm.jmp(free)?;
        self.asm.set_label(&mut stray)?;
        self.count(Code::Inc_rm64, STRAYS, work.probe)?;
        self.asm.set_label(&mut free)?;
        self.asm.mov(edx, dword_ptr(rbx + (instance::SELF + 4)))?;
        self.asm.mov(r8, qword_ptr(rbx + instance::HOME))?;
        let home = qword_ptr(r8 + self.at(0)?);
        self.asm.mov(rax, home)?;
        self.asm.set_label(&mut again)?;
        // The next one in the upper half, and nothing in the lower.
        self.asm.mov(ecx, eax)?;
        self.asm.xor(rcx, rax)?;
        self.asm.mov(qword_ptr(rdx + live), rcx)?;
        self.asm.lea(ecx, dword_ptr(rax + 1))?;
        self.asm.or(rcx, qword_ptr(rbx + instance::SELF))?;
        self.asm.lock().cmpxchg(home, rcx)?;
        self.asm.jne(again)?;
        if calls.most.is_some() {
            self.count(Code::Inc_rm64, TICKETS, work.probe)?;
        }
        self.restore()?;
        self.asm.popfq()?;
        self.asm.jmp(self.guest.ret().0)?;
        Ok(())
    }

    /// What a record of a return says of its call, in the record at rcx. Uses rax.
    pub(super) fn returned(&mut self) -> Done {
        let value = self.register(Register::Rax)?;
        self.asm.mov(qword_ptr(rcx + record::VALUE), value)?;
        for (from, to) in [(instance::BEGAN, record::BEGAN), (instance::CALLER, record::BACK)] {
            self.asm.mov(rax, qword_ptr(rbx + from))?;
            self.asm.mov(qword_ptr(rcx + to), rax)?;
        }
        Ok(())
    }

    /// Argument `n` that the call was made with, in rax.
    pub(super) fn entered(&mut self, n: u8) -> Done {
        Ok(self.asm.mov(rax, qword_ptr(rbx + instance::ARGUMENTS + 8 * u64::from(n)))?)
    }

    /// All of them, at `places` in the record at rcx. Uses rax.
    pub(super) fn entered_with(&mut self, places: &mut impl Iterator<Item = u64>) -> Done {
        for (n, to) in (0..6).zip(places) {
            self.entered(n)?;
            self.asm.mov(qword_ptr(rcx + to), rax)?;
        }
        Ok(())
    }

    /// An offset in the data window as a displacement.
    pub(super) fn at(&self, offset: u64) -> Result<i32, NoStub> {
        absolute(self.guest.window.add(offset))
    }
}

/// An address in the last 2 GiB, where Linux has its text and our windows are near, as a displacement or an immediate.
pub(super) fn absolute(at: Gva) -> Result<i32, NoStub> {
    i32::try_from(at.0.cast_signed()).map_err(|_| NoStub(format!("{at} is not in the last 2 GiB")))
}
