//! Which passes are hits at all, as branches.

use super::calls::absolute;
use super::{Assembler, Done, NoStub, displacement, imm, own};
use crate::detour::layout::OUTSIDE;
use crate::detour::work::Work;
use crate::linux::in_scope::INTERRUPTS;
use crate::linux::scope::{Scope, SystemNames};
use crate::linux::task::SOFTIRQS;
use iced_x86::Code;
use iced_x86::code_asm::{CodeLabel, dword_ptr, eax, qword_ptr, rax, rcx};

impl Assembler<'_> {
    /// Goes to the label that is returned unless this is in the scope of `work`. Uses rax and rcx.
    pub(super) fn begin_scope(&mut self, work: &Work) -> Result<CodeLabel, NoStub> {
        let outside = self.asm.create_label();
        match work.scope {
            Scope::Boot => {}
            Scope::Init => {
                let started = self.cpu()?.task.scopes.started.ok_or_else(unknown)?;
                self.asm.cmp(dword_ptr(absolute(started.at)?), started.running.cast_signed())?;
                self.asm.jb(outside)?;
            }
            Scope::Command => self.unless_of_command(outside)?,
        }
        Ok(outside)
    }

    /// Whoever went to `outside` is counted, and comes together with all others.
    pub(super) fn end_scope(&mut self, work: &Work, mut outside: CodeLabel) -> Done {
        if work.scope == Scope::Boot {
            return Ok(());
        }
        let mut end = self.asm.create_label();
        self.asm.jmp(end)?;
        self.asm.set_label(&mut outside)?;
        self.count(Code::Inc_rm64, OUTSIDE, work.probe)?;
        self.asm.set_label(&mut end)?;
        Ok(self.asm.zero_bytes()?)
    }

    fn unless_of_command(&mut self, outside: CodeLabel) -> Done {
        let task = self.cpu()?.task;
        let SystemNames { nsproxy, uts_ns, init } = task.scopes.names.ok_or_else(unknown)?;
        self.asm.mov(eax, own(dword_ptr(displacement(task.preempt_count.ok_or_else(unknown)?)?)))?;
        self.asm.mov(rcx, own(qword_ptr(displacement(task.current.offset)?)))?;
        if let Some(softirqs) = task.softirq_count {
            self.asm.test(eax, INTERRUPTS.cast_signed())?;
            self.asm.jnz(outside)?;
            self.asm.mov(eax, dword_ptr(rcx + imm(softirqs)?))?;
            self.asm.and(eax, SOFTIRQS.cast_signed())?;
        }
        self.asm.test(eax, INTERRUPTS.cast_signed())?;
        self.asm.jnz(outside)?;
        self.asm.mov(rax, qword_ptr(rcx + imm(nsproxy)?))?;
        self.asm.test(rax, rax)?;
        self.asm.jz(outside)?;
        self.asm.mov(rax, qword_ptr(rax + imm(uts_ns)?))?;
        self.asm.cmp(rax, absolute(init)?)?;
        Ok(self.asm.je(outside)?)
    }
}

fn unknown() -> NoStub {
    NoStub("this kernel does not tell what is in its scope".to_owned())
}

#[cfg(test)]
mod tests {
    use crate::addr::Gva;
    use crate::detour::layout::{HITS, OUTSIDE};
    use crate::detour::stub::tests::{AT, SITE, emulated, guest};
    use crate::detour::stub::{Guest, Stub};
    use crate::detour::work::{Calls, Work};
    use crate::insn::emulate::Segments;
    use crate::linux::scope::{Scope, Started, SystemNames};
    use crate::linux::testing::Ram;
    use crate::probe::plan::{ProbePlan, Trigger};
    use crate::regs::Regs;

    const CPU: Gva = Gva(Ram::BASE.0 + 0x1000);
    const TASK: Gva = Gva(Ram::BASE.0 + 0x2000);
    const PROXY: Gva = Gva(Ram::BASE.0 + 0x4000);
    const INIT_NAMES: Gva = Gva(Ram::BASE.0 + 0x5000);
    const STATE: Gva = Gva(Ram::BASE.0 + 0x6000);
    const STACK: Gva = Gva(Ram::BASE.0 + 0x7800);
    const SOFTIRQS: u64 = 64;

    fn guest_with_scopes(is_realtime: bool) -> Guest {
        let mut guest = guest();
        let task = &mut guest.cpu.as_mut().unwrap().task;
        task.scopes.started = Some(Started { at: STATE, running: 3 });
        task.scopes.names = Some(SystemNames { nsproxy: 80, uts_ns: 8, init: INIT_NAMES });
        task.softirq_count = is_realtime.then_some(SOFTIRQS);
        guest
    }

    /// What a pass counts, which has to be what the host finds.
    fn counted(guest: &Guest, scope: Scope, ram: &Ram) -> Vec<u64> {
        let task = guest.cpu.unwrap().task;
        let segments = Segments { gs_base: CPU.0 - task.current.offset, fs_base: 0 };
        let work = Work::of(3, &ProbePlan { scope, ..ProbePlan::default() }).unwrap();
        let stub = Stub::assemble(guest, AT, SITE, None, &[work]).unwrap();
        let regs = Regs { rip: AT.0, rsp: STACK.0, rax: 1, rcx: 2, rdx: 3, r8: 8, ..Regs::default() };
        let counted = emulated(&stub, guest, ram, &segments, regs, |_| panic!("it leaves the stub"));
        let is_inside = task.is_inside(scope, &ram.memory(), segments.gs_base);
        assert_eq!(counted, [if is_inside { HITS } else { OUTSIDE }]);
        counted
    }

    #[test]
    fn a_stub_and_the_host_agree_on_what_is_in_a_scope() {
        let ram = Ram::new();
        ram.put(CPU, &TASK.0.to_le_bytes());
        let guest = guest_with_scopes(false);
        for (state, table) in [(0u32, OUTSIDE), (2, OUTSIDE), (3, HITS), (4, HITS)] {
            ram.put(STATE, &state.to_le_bytes());
            assert_eq!(counted(&guest, Scope::Init, &ram), [table]);
        }
        for is_realtime in [false, true] {
            let guest = guest_with_scopes(is_realtime);
            let mut seen = [0, 0];
            for proxy in [0, PROXY.0] {
                for names in [INIT_NAMES.0, INIT_NAMES.0 + 8] {
                    for (preempt, softirqs) in [
                        (0u32, 0u32),
                        (0x8000_0201, 0),
                        (0x100, 0),
                        (0x1_0000, 0),
                        (0x10_0000, 0),
                        (0, 0x100),
                        (0, 0x200),
                    ] {
                        ram.put(TASK.add(80), &proxy.to_le_bytes());
                        ram.put(PROXY.add(8), &names.to_le_bytes());
                        ram.put(CPU.add(8), &preempt.to_le_bytes());
                        ram.put(TASK.add(SOFTIRQS), &softirqs.to_le_bytes());
                        let is_hit = counted(&guest, Scope::Command, &ram) == [HITS];
                        if let Some(seen) = seen.get_mut(usize::from(is_hit)) {
                            *seen += 1;
                        }
                    }
                }
            }
            assert_eq!(seen, if is_realtime { [25, 3] } else { [24, 4] });
        }
    }

    #[test]
    fn a_call_from_outside_is_not_followed() {
        let guest = guest_with_scopes(false);
        let trigger = Trigger::Return { max_active: None };
        let work = Work::of(3, &ProbePlan { scope: Scope::Init, ..ProbePlan::new(trigger) }).unwrap();
        assert_eq!(work.calls, Some(Calls::default()));
        let stub = Stub::assemble(&guest, AT, SITE, None, &[work]).unwrap();
        let ram = Ram::new();
        ram.put(STATE, &2u32.to_le_bytes());
        let segments = Segments { gs_base: CPU.0 - guest.cpu.unwrap().task.current.offset, fs_base: 0 };
        let regs = Regs { rip: AT.0, rsp: STACK.0, ..Regs::default() };
        let counted = emulated(&stub, &guest, &ram, &segments, regs, |_| panic!("it leaves the stub"));
        assert_eq!(counted, [OUTSIDE]);
        assert_eq!(ram.memory().read_u64(STACK).unwrap(), 0, "its return address is as it was");
    }
}
