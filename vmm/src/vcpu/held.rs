//! A vCPU that a hit makes wait: until another one opens a gate, or for a time.

use super::tables::{Cause, VcpuTables};
use super::{Flow, Vcpu};
use crate::clock;
use crate::gate::{Gate, HeldVcpu};
use crate::probe::{HandlerRequest, Waiting};
use crate::world::VcpuPosition;
use probe_engine::addr::Gva;
use probe_engine::linux::task::Task;
use probe_engine::probe::table::ProbeId;
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
                Waiting::Gate { gate, within, probe, task } => {
                    self.wait_at(&gate, within, (probe, task), tables)
                }
            };
            if let Flow::End = flow {
                return Flow::End;
            }
        }
        Flow::Run
    }

    fn wait_at(
        &mut self,
        gate: &Gate,
        within: Duration,
        (probe, task): (ProbeId, Option<Task>),
        tables: &mut Arc<VcpuTables>,
    ) -> Flow {
        if !gate.enter(self.id) {
            return Flow::Run;
        }
        let begun = clock::ticks();
        if let Flow::End = self.stand(within, || gate.is_open(), tables) {
            return Flow::End;
        }
        let by = gate.leave();
        let ticks = (begun, clock::ticks());
        let held = HeldVcpu { gate: gate.id(), probe, vcpu: self.id, task, ticks, by };
        if by.is_some() {
            self.mailbox.deliver(HandlerRequest::Held(held));
            return Flow::Run;
        }
        // Why nobody came can be seen as long as this one does not go on.
        let regs = self.kvm.regs();
        self.hold(Cause::TimedOut(held), regs, tables)
    }

    /// Stands still like a parked vCPU for this time, or until `may_go_on`.
    fn stand(&mut self, time: Duration, may_go_on: impl Fn() -> bool, tables: &mut Arc<VcpuTables>) -> Flow {
        let until = Instant::now() + time;
        let regs = self.kvm.regs();
        let at = Some((regs, self.kvm.address_space()));
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
