//! Stopping the world: guest text and the tables of the vCPUs change only while every vCPU is parked.
//!
//! The control thread raises `attention` and signals each running vCPU until it has stopped; a vCPU looks at
//! `attention` before each KVM_RUN. A signal that arrives between the look and KVM_RUN is lost, so the control
//! thread signals again until all have answered. A vCPU can also stop by itself with a [`VcpuRequest`] and is held
//! until the control thread has answered it. Nothing here is touched by a hit, except one load of `attention`.

mod stop;

pub use stop::{Parked, VcpuPosition};

use probe_engine::addr::Gva;
use probe_engine::regs::Regs;
use probe_engine::system_regs::SystemRegs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stop::{Resumed, StopState};
use vmm_sys_util::eventfd::EventFd;

/// A vCPU stopped by itself and waits for the control thread.
pub struct VcpuRequest<C> {
    /// Who.
    pub vcpu: usize,
    /// At what.
    pub cause: C,
    /// Its general registers there; RIP is on the instruction that it stopped at.
    pub regs: Regs,
    /// Its other registers there.
    pub system: SystemRegs,
}

/// What a vCPU does after it stood still.
pub enum AfterStop<T> {
    /// Goes on by these tables.
    Run(Arc<T>),
    /// Ends its thread.
    End,
}

/// Where the control thread and the vCPU threads meet. vCPUs go by the tables `T` between two stops, and stop by
/// themselves for a cause `C`.
pub struct World<T, C> {
    stops: StopState,
    /// They change only while every vCPU is parked.
    tables: Mutex<Arc<T>>,
    requests: Mutex<Vec<VcpuRequest<C>>>,
    /// Wakes the control thread when a request waits for it.
    wake_control: Arc<EventFd>,
}

impl<T, C> World<T, C> {
    /// A world of `cpus` running vCPUs.
    #[must_use]
    pub fn new(cpus: usize, tables: T, wake_control: Arc<EventFd>) -> Self {
        Self {
            stops: StopState::new(cpus),
            tables: Mutex::new(Arc::new(tables)),
            requests: Mutex::default(),
            wake_control,
        }
    }

    /// The tables that vCPUs go by now.
    #[must_use]
    pub fn tables(&self) -> Arc<T> {
        lock(&self.tables).clone()
    }

    // What vCPU threads call.

    /// Whether the vCPU has to [`rest`](Self::rest) before it may run on.
    pub fn wants_attention(&self) -> bool {
        self.stops.wants_attention()
    }

    /// Parks vCPU `id`, which stands at `position`, until the stop is over.
    pub fn rest(&self, id: usize, position: VcpuPosition) -> AfterStop<T> {
        self.after(self.stops.rest(id, position))
    }

    /// Holds the vCPU of `request` until the control thread has answered.
    pub fn hold(&self, request: VcpuRequest<C>) -> AfterStop<T> {
        let vcpu = request.vcpu;
        let at = Some((request.regs, request.system));
        let position = VcpuPosition { rip: Gva(request.regs.rip), is_halted: false, at };
        let resumed = self.stops.hold(vcpu, position, || {
            lock(&self.requests).push(request);
            // The control thread reads the queue after the wake-up, so a full counter loses nothing.
            let _ = self.wake_control.write(1);
        });
        self.after(resumed)
    }

    /// Counts vCPU `id`, which goes on at `rip`, as parked for at most `time`, because it waits for something other
    /// than a stop.
    pub fn pause(&self, id: usize, rip: Gva, time: Duration) -> AfterStop<T> {
        self.linger(id, VcpuPosition { rip, ..VcpuPosition::default() }, time)
    }

    /// The same, of which it is known how the vCPU stands: between two instructions of the guest.
    pub fn linger(&self, id: usize, position: VcpuPosition, time: Duration) -> AfterStop<T> {
        self.after(self.stops.pause(id, position, time, false))
    }

    /// The same, because it [waits](Self::has_waiting) for whoever reads the events.
    pub fn wait(&self, id: usize, position: VcpuPosition, time: Duration) -> AfterStop<T> {
        self.after(self.stops.pause(id, position, time, true))
    }

    /// The registers with which vCPU `id` goes on, where somebody has [changed](Parked::set_regs) them in the stop that is over.
    pub fn take_regs(&self, id: usize) -> Option<Regs> {
        self.stops.take_regs(id)
    }

    /// Says that the thread of vCPU `id` is about to end.
    pub fn ended(&self, id: usize) {
        self.stops.ended(id);
    }

    /// A vCPU that runs finds the tables of its stop: they change only in the next one, for which that vCPU is waited for.
    fn after(&self, resumed: Resumed) -> AfterStop<T> {
        match resumed {
            Resumed::Running => AfterStop::Run(self.tables()),
            Resumed::Ending => AfterStop::End,
        }
    }

    // What the control thread calls.

    /// The requests since the last call.
    pub fn take_requests(&self) -> Vec<VcpuRequest<C>> {
        std::mem::take(&mut lock(&self.requests))
    }

    /// Stops every vCPU. `kick(id)` interrupts that vCPU's KVM_RUN; it is repeated until the vCPU has answered.
    pub fn park(&self, kick: impl Fn(usize)) -> Parked<'_> {
        self.stops.park(kick)
    }

    /// Gives all vCPUs new tables.
    pub fn set_tables(&self, _: &Parked<'_>, tables: T) {
        *lock(&self.tables) = Arc::new(tables);
    }

    /// Whether a vCPU [waits](Self::wait) for whoever reads the events.
    pub fn has_waiting(&self) -> bool {
        self.stops.has_waiting()
    }

    /// Stops every vCPU as [`park`](Self::park) does, until [`thaw`](Self::thaw): what is done in stops can be done
    /// meanwhile, and nobody runs between them.
    pub fn freeze(&self, kick: impl Fn(usize)) {
        self.stops.freeze(kick);
    }

    /// The same of a world that is to begin so.
    pub fn begin_frozen(&self) {
        self.stops.begin_frozen();
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        self.stops.thaw();
    }

    /// Makes every vCPU thread end, and returns when all have.
    pub fn end(&self, kick: impl Fn(usize)) {
        self.stops.end(kick);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
