//! A task that a hit makes wait: until another one opens a gate, or for a time.

use super::hit::Passed;
use super::tables::VcpuTables;
use super::{Flow, Vcpu, guest_exception};
use crate::clock;
use crate::gate::{Gate, HeldTask, LONGEST_WAIT, WentOn};
use crate::kvm::Shadow;
use crate::probe::{HandlerRequest, Waiting};
use crate::trap::Breakpoint;
use crate::world::VcpuPosition;
use probe_engine::addr::Gva;
use probe_engine::gate::Form;
use probe_engine::probe::pace::{GateId, HoldMode};
use probe_engine::regs::{Regs, rflags};
use probe_engine::virt_memory::VirtMemory;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a vCPU sleeps before it looks at its gate again.
const LOOK: Duration = Duration::from_micros(100);

impl Vcpu {
    /// Waits as hits have asked for, one after the other. The guest's registers are those with which it goes on.
    pub(super) fn wait_for(&mut self, waiting: Vec<Waiting>, tables: &mut Arc<VcpuTables>) -> Flow {
        for wait in waiting {
            let flow = match wait {
                Waiting::Time(time) => self.stand(time, || false, tables),
                Waiting::Gate { gate, within, mode, probe, task } => {
                    let begun = clock::ticks();
                    let counted_at = self.passed.map(|passed| passed.nop());
                    let held = HeldTask {
                        gate: gate.id(),
                        probe,
                        vcpu: self.id,
                        task,
                        begun,
                        ended: begun,
                        why: WentOn::Overdue,
                        counted_at,
                        mode: if self.may_yield(&gate, mode, tables) {
                            HoldMode::Task
                        } else {
                            HoldMode::Cpu
                        },
                    };
                    let deadline = held.begun.saturating_add(self.clock.rate().ticks(within));
                    match gate.enter(held, deadline) {
                        true => self.wait_at(&gate, held.mode, tables),
                        false => Flow::Run,
                    }
                }
                Waiting::Turn(gate) => self.wait_at(&gate, HoldMode::Cpu, tables),
            };
            if let Flow::End = flow {
                return Flow::End;
            }
        }
        Flow::Run
    }

    /// Whether a task that waits at `gate` can have its CPU run others, where that is wanted: the kernel could preempt it where it is now, and
    /// a function of the kernel's may be called with its flags.
    fn may_yield(&mut self, gate: &Gate, mode: HoldMode, tables: &VcpuTables) -> bool {
        const NEEDED: u64 = rflags::IF | rflags::DF | rflags::AC | rflags::TF | rflags::NT;
        let is_wanted = mode == HoldMode::Task && gate.code(Form::Yields).is_some();
        if !is_wanted || self.kvm.regs().rflags & NEEDED != rflags::IF {
            return false;
        }
        let Some((preemption, area)) = tables.kernel.preemption.zip(self.area_at_site(tables)) else {
            return false;
        };
        let system = self.kvm.system();
        let user = || system.space();
        preemption.is_allowed(&VirtMemory::new(&*self.ram, tables.spaces(&user)), area.0).unwrap_or(false)
    }

    /// The task is held at the gate.
    fn wait_at(&mut self, gate: &Gate, mode: HoldMode, tables: &mut Arc<VcpuTables>) -> Flow {
        if self.enter_code(gate, mode, tables) {
            return Flow::Run;
        }
        // The guest has no code to wait at yet: the vCPU stands still.
        gate.stands();
        let is_over = || gate.is_open() || gate.is_overdue(clock::ticks());
        if let Flow::End = self.stand(LONGEST_WAIT, is_over, tables) {
            return Flow::End;
        }
        gate.give_up(clock::ticks(), &self.ram);
        self.left(gate);
        Flow::Run
    }

    /// Has the guest go on at the code of `gate`, if there is such, and behind that where it would have gone on now.
    fn enter_code(&mut self, gate: &Gate, mode: HoldMode, tables: &VcpuTables) -> bool {
        let form = match mode {
            HoldMode::Cpu => Form::Spins,
            HoldMode::Task => Form::Yields,
        };
        let Some(code) = gate.code(form) else { return false };
        let regs = self.kvm.regs();
        let top = regs.rsp.wrapping_sub(8);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        if memory.write(Gva(top), &regs.rip.to_le_bytes()).is_err() {
            return false;
        }
        // The gate knows of it.
        self.passed = None;
        self.kvm.set_regs(&Regs { rip: code.entry.0, rsp: top, ..regs });
        true
    }

    /// The task that was held at the gate of this number has left its code.
    pub(super) fn gate_opened(
        &mut self,
        breakpoint: &Breakpoint,
        id: GateId,
        tables: &mut Arc<VcpuTables>,
    ) -> Flow {
        let Some(gate) = tables.gates.0.get(&id).cloned() else {
            return self.give_back(guest_exception(breakpoint.delivery), tables);
        };
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let rip = Gva(breakpoint.regs.rip);
        let code = gate.codes().find(|code| code.entry.add(code.form.trap()) == rip);
        let behind =
            code.and_then(|code| code.form.past(&breakpoint.regs, code.entry, &memory).ok().flatten());
        let Some(regs) = behind else {
            return self.give_back(guest_exception(breakpoint.delivery), tables);
        };
        let counted_at = self.left(&gate).and_then(|held| held.counted_at);
        self.passed = counted_at.map(|nop| Passed::at_gate(nop, &regs));
        let shadow = if self.passed.is_some() { Shadow::Begins } else { Shadow::Over };
        self.go_on(breakpoint, &regs, shadow)
    }

    /// Tells what became of the task that was held.
    fn left(&self, gate: &Gate) -> Option<HeldTask> {
        let held = gate.leave(clock::ticks(), &self.ram)?;
        self.mailbox.deliver(HandlerRequest::Held(held));
        Some(held)
    }

    /// Stands still like a parked vCPU for this time, or until `may_go_on`.
    fn stand(&mut self, time: Duration, may_go_on: impl Fn() -> bool, tables: &mut Arc<VcpuTables>) -> Flow {
        let until = Instant::now() + time;
        let regs = self.kvm.regs();
        self.show_processor();
        let at = Some((regs, self.kvm.system_regs()));
        let position = VcpuPosition { rip: Gva(regs.rip), is_halted: false, at };
        while !may_go_on() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let next = self.world.linger(self.id, position, left.min(LOOK));
            if let Flow::End = self.obey(next, &regs, tables) {
                return Flow::End;
            }
        }
        Flow::Run
    }
}
