//! Calls that a return probe follows: from the function's entry to its return.

use super::note::note;
use super::tables::VcpuTables;
use super::{Flow, Vcpu, guest_exception};
use crate::clock;
use crate::events::{SeenHit, Ticks, What};
use crate::kvm::Shadow;
use crate::memory::GuestRam;
use crate::probe::{Active, Data, HandlerRequest, Hit, Kind, Miss, ReturnHandlers};
use crate::trap::Breakpoint;
use probe_engine::addr::Gva;
use probe_engine::probe::returns::{Call, Pool};
use probe_engine::virt_memory::VirtMemory;

/// A function is entered: its return address is on top of the stack, and is replaced by a trampoline's.
pub(super) fn enter(
    probe: &Active,
    handlers: &ReturnHandlers,
    pool: &Pool<Data>,
    hit: &mut Hit<'_>,
    tables: &VcpuTables,
) {
    if probe.is_broken() {
        return;
    }
    let slot = Gva(hit.regs.rsp);
    let Ok(back) = hit.memory.read_u64(slot).map(Gva) else { return probe.miss(Miss::NoStack) };
    let task = current_task(tables, &hit.memory, hit.area);
    let (at, args) = (hit.regs.rip, hit.regs.args());
    let call = Call { task, function: hit.at, slot, back, ticks: hit.ticks, args };
    let Some(number) = reserve(pool, hit.vcpu, &call, tables) else {
        return probe.miss(Miss::NoInstance);
    };
    let data = match &handlers.entry {
        None => None,
        Some(entry) => match probe.call(hit, |hit| entry(hit)) {
            // One that redirects the guest has no call to follow either.
            Some(Some(data)) if hit.regs.rip == at => Some(Box::new(data)),
            _ => return pool.release(number),
        },
    };
    let trampoline = tables.trampolines.add(number.into());
    if hit.memory.write(slot, &trampoline.0.to_le_bytes()).is_err() {
        pool.release(number);
        return probe.miss(Miss::NoStack);
    }
    pool.follow(number, call, data);
}

/// A free instance for `call`. When there is none, calls of its task that cannot return any more make room: those below
/// on its stack, and one in this very slot unless the slot leads to a trampoline already (as in a tail call).
fn reserve(pool: &Pool<Data>, vcpu: usize, call: &Call, tables: &VcpuTables) -> Option<u32> {
    pool.reserve(vcpu).or_else(|| {
        let is_chained = tables.is_trampoline(call.back);
        pool.forget_below(call.task, if is_chained { call.slot } else { call.slot.add(8) });
        pool.reserve(vcpu)
    })
}

/// The task that runs on this vCPU (GVA of its `task_struct`), or 0 when it cannot be told.
pub(super) fn current_task(tables: &VcpuTables, memory: &VirtMemory<'_, GuestRam>, area: Option<Gva>) -> Gva {
    let task = tables.kernel.current.zip(area).and_then(|(current, area)| current.read(memory, area.0).ok());
    task.unwrap_or(Gva(0))
}

impl Vcpu {
    /// A followed call returns: RIP is on its trampoline.
    pub(super) fn returned(
        &mut self,
        breakpoint: &Breakpoint,
        number: u32,
        owner: &Active,
        tables: &VcpuTables,
    ) -> (Flow, Vec<HandlerRequest>) {
        let ticks = clock::ticks();
        let mut requests = Vec::new();
        let Kind::Return(handlers, pool) = &owner.kind else {
            return (self.give_back(guest_exception(breakpoint.delivery), tables), requests);
        };
        let Some((call, data)) = pool.leave(number) else {
            return (self.give_back(guest_exception(breakpoint.delivery), tables), requests);
        };
        let mut regs = breakpoint.regs;
        // Other probes may follow the same call: what handlers and readers see is the caller's own address.
        let caller = tables.caller(call.back, &self.ram);
        regs.rip = caller.0;
        let area = self.area_at_site(tables);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let is_same = call.slot.add(8) == Gva(regs.rsp) && call.task == current_task(tables, &memory, area);
        if !is_same {
            owner.miss(Miss::Stray);
        } else if !owner.is_broken() && !owner.is_retired() {
            let duration = ticks.saturating_sub(call.ticks);
            let clock = &*self.clock;
            let context = tables.context(&memory, self.id, (ticks, clock), area);
            let task = if owner.plan.tells_task() { context.task() } else { None };
            let scene = context.scene(&regs, Some(call.args), task.as_ref());
            let counts = self.recorder.capture(&owner.plan.capture, &scene);
            if counts {
                let what = What::Return { value: regs.rax, duration: Ticks(duration) };
                let seen = SeenHit { ticks, probe: owner.id, rip: Gva(regs.rip), what, task };
                note(&mut self.recorder, owner, &context, &regs, seen);
            }
            if counts && let Some(handler) = &handlers.handler {
                let mut hit = context.hit(owner.id, call.function, regs, &mut requests);
                hit.duration = Some(duration);
                hit.captured = Some((&owner.plan.capture, self.recorder.captured()));
                owner.call(&mut hit, |hit| handler(hit, data.map(|data| *data)));
                regs = hit.regs;
            }
            if counts {
                owner.pace(self.id, task, &self.ram, &mut requests);
            }
        }
        if regs.rip == caller.0 {
            regs.rip = call.back.0;
        }
        (self.go_on(breakpoint, &regs, Shadow::Over), requests)
    }
}
