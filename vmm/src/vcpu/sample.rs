//! A sample: where the guest is when this thread's timer has expired.

use super::Vcpu;
use super::tables::VcpuTables;
use crate::clock;
use crate::samples::{SeenSample, Spent};
use crate::signals::timer;
use crate::stack::{self, FRAMES, Walked};
use probe_engine::addr::Gva;
use probe_engine::virt_memory::VirtMemory;

impl Vcpu {
    /// Takes the sample that is due, if one is. That makes one system call: the question whether the vCPU waits.
    ///
    /// A timer that expires while the vCPU is out of the guest is seen here before it goes in again: what an access or a hit
    /// takes is the time of the code that has made it. One that expires behind this look does not interrupt KVM_RUN, and is told
    /// with the next exit.
    pub(super) fn sample(&mut self, tables: &VcpuTables) {
        let Some(periods) = self.expired() else { return };
        let ticks = clock::ticks();
        let regs = self.kvm.regs();
        let is_waiting = self.kvm.is_waiting();
        let area = self.area_anywhere(tables);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let context = tables.context(&memory, self.id, (ticks, &self.clock), area);
        let Some(sampler) = &mut self.sampler else { return };
        let rip = Gva(regs.rip);
        if is_waiting {
            sampler.count(Spent::Idle, periods);
        } else if tables.is_own(rip) {
            sampler.count(Spent::Own, periods);
        } else if !tables.kernel.is_found || !context.is_inside(sampler.sampling.scope) {
            sampler.count(Spent::Outside, periods);
        } else {
            let seen = SeenSample { ticks, rip, periods, task: context.task() };
            let task = seen.task.map(|task| task.at);
            let walked = Walked { view: &tables.kernel, callers: tables, memory: &memory, regs: &regs, task };
            sampler.note(seen, |put| stack::walk(walked, FRAMES, put));
        }
        sampler.took(clock::ticks().wrapping_sub(ticks));
    }

    /// What has passed since the last sample is no time of the guest's: it was made to stand still.
    pub(super) fn pass_over(&mut self) {
        if let (Some(periods), Some(sampler)) = (self.expired(), &self.sampler) {
            sampler.count(Spent::Stopped, periods);
        }
    }

    /// How often the timer has expired since it was asked last, where it has.
    fn expired(&self) -> Option<u32> {
        self.sampler.as_ref()?;
        Some(timer::expired()).filter(|periods| *periods > 0)
    }

    /// Where the kernel keeps what it has of this vCPU (GVA), at any instruction: behind an entry, GS is the process's own for a
    /// few instructions more.
    pub(super) fn area_anywhere(&mut self, tables: &VcpuTables) -> Option<Gva> {
        let area = self.per_cpu_area(tables)?;
        if self.kvm.in_user_mode() {
            self.area = Some(area).filter(|_| tables.kernel_space.is_some());
        }
        Some(area).filter(|area| area.is_kernels())
    }
}
