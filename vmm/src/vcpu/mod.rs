//! A vCPU's thread: runs the guest, takes hits, stops when the world does.

mod breakpoint;
mod bring_in;
mod call;
mod errand;
mod fault;
mod held;
mod hit;
mod mailbox;
mod note;
mod ring_full;
mod sample;
mod sealed;
mod step;
mod tables;
mod watch;

use crate::clock::Clock;
use crate::devices::{Devices, PowerEvent};
use crate::events::Recorder;
use crate::guard::Guard;
use crate::kvm::{DebugException, DebugExit, DeviceAccess, Exit, KvmVcpu, Left, Shared};
use crate::memory::GuestRam;
use crate::own_thread::OwnThread;
use crate::samples::Sampler;
use crate::signals::timer::Timer;
use crate::trap::{self, Delivery, GuestException, Trap};
use crate::world::VcpuPosition;
use hit::Passed;
pub use mailbox::Mailbox;
pub(crate) use mailbox::Spent;
use probe_engine::addr::Gva;
use probe_engine::paging::AddressSpace;
use probe_engine::regs::{Regs, rflags};
use probe_engine::virt_memory::VirtMemory;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;
pub use step::Step;
use tables::AfterStop;
pub use tables::{Cause, Detoured, VcpuRequest, VcpuTables, World};
use vmm_sys_util::errno;
pub(crate) use watch::value;

/// Why a vCPU ended the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The guest asked for it.
    Power(PowerEvent),
    /// A triple fault, at these registers.
    TripleFault(Regs),
    /// The guest has written to sealed memory, and is not to go on.
    Guarded,
    /// KVM could not go on: its words, and the registers.
    Failed(String, Regs),
}

/// What a vCPU's thread works with.
pub struct Vcpu {
    /// Its number.
    pub id: usize,
    /// Its descriptor.
    pub kvm: KvmVcpu,
    /// The devices it reaches.
    pub devices: Arc<Devices>,
    /// The guest's memory.
    pub ram: Arc<GuestRam>,
    /// Where it meets the control thread.
    pub world: Arc<World>,
    /// Where its hits go.
    pub recorder: Recorder,
    /// Where its samples go, if it is sampled.
    pub sampler: Option<Sampler>,
    /// Who is asked about stores to sealed memory, if there is any.
    pub guard: Option<Arc<Guard>>,
    /// What time it is.
    pub clock: Arc<Clock>,
    /// Where what handlers want goes.
    pub mailbox: Mailbox,
    /// Where it has just been counted.
    pub passed: Option<Passed>,
    /// The instruction that it is to execute while all others stand still.
    pub step: Option<Step>,
    /// Whether its registers were changed while it stood still.
    pub was_moved: bool,
    /// Where the kernel keeps what it has of this vCPU (GVA), once that is known and stays.
    pub area: Option<Gva>,
    /// Where it says that the run is over.
    pub ends: Sender<End>,
}

/// What follows a state.
enum Flow {
    /// KVM_RUN.
    Run,
    /// The thread is over.
    End,
}

/// Tells the world that this thread ends, on every way out: nobody may wait for a thread that is gone.
struct Leaving {
    id: usize,
    world: Arc<World>,
    ends: Sender<End>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if thread::panicking() {
            let words = format!("the thread of vCPU {} panicked, which is a defect of this program", self.id);
            let _ = self.ends.send(End::Failed(words, Regs::default()));
        }
        self.world.ended(self.id);
    }
}

impl Vcpu {
    /// The thread's whole life.
    pub fn main(mut self) {
        let _leaving = Leaving { id: self.id, world: self.world.clone(), ends: self.ends.clone() };
        let _own = OwnThread::enter();
        let mut tables = self.world.tables();
        let mut flow = self.apply(&tables);
        let timer = self.sampler.as_ref().map(|sampler| Timer::start(sampler.sampling.period()));
        if let Some(Err(error)) = &timer {
            flow = self.over(End::Failed(format!("the host refused a timer: {error}"), Regs::default()));
        }
        while let Flow::Run = flow {
            self.sample(&tables);
            flow = match self.world.wants_attention() {
                false => self.run(&mut tables),
                true => match self.rest(&mut tables) {
                    Flow::Run if self.step.is_some() => self.step_on(&mut tables),
                    flow => flow,
                },
            };
        }
        self.show_processor();
    }

    /// Says what this vCPU is set to, which stands still now, to who looks at a guarded guest.
    fn show_processor(&mut self) {
        if let Some(guard) = &self.guard {
            let processor = self.kvm.processor();
            if !guard.is_standing() && processor.is_used() {
                guard.enters_by(self.id, self.kvm.entry_registers());
            }
            guard.stopped(self.id, processor);
        }
    }

    fn run(&mut self, tables: &mut Arc<VcpuTables>) -> Flow {
        match self.kvm.run() {
            Left::Access(access) => match sealed::stored(&access, &self.ram) {
                Some(write) => self.stored_by_kvm(write, tables),
                None => match self.devices.bus.serve(access) {
                    None => Flow::Run,
                    Some(event) => self.over(End::Power(event)),
                },
            },
            Left::Exit(exit) => self.exit(exit, tables),
        }
    }

    fn exit(&mut self, exit: Exit, tables: &mut Arc<VcpuTables>) -> Flow {
        match exit {
            Exit::Interrupted | Exit::NotStarted => Flow::Run,
            Exit::Debug(exit) => self.debug_exit(exit, tables),
            Exit::Shutdown => {
                let regs = self.kvm.regs();
                self.over(End::TripleFault(regs))
            }
            Exit::Sealed => self.at_sealed(tables),
            Exit::EntryWritten(register, value) => self.at_entry_register(register, value, tables),
            Exit::Failed(words) => {
                let regs = self.kvm.regs();
                self.over(End::Failed(words, regs))
            }
        }
    }

    /// The run is over: says so and waits for the end of the world.
    fn over(&mut self, end: End) -> Flow {
        let rip = Gva(self.kvm.regs().rip);
        // The receiver outlives every vCPU thread.
        let _ = self.ends.send(end);
        loop {
            if let AfterStop::End = self.world.pause(self.id, rip, Duration::from_secs(1)) {
                return Flow::End;
            }
        }
    }

    /// Stops with the world. A pending port access is completed first, or its registers would be stale.
    fn rest(&mut self, tables: &mut Arc<VcpuTables>) -> Flow {
        let mut writes = Vec::new();
        let serve = |access: DeviceAccess<'_>| match sealed::stored(&access, &self.ram) {
            Some(write) => {
                writes.push(write);
                None
            }
            None => self.devices.bus.serve(access),
        };
        let completed = self.kvm.complete_access(serve);
        for write in writes {
            if let Flow::End = self.stored_by_kvm(write, tables) {
                return Flow::End;
            }
        }
        let flow = match completed {
            Ok(exit) => self.exit(exit, tables),
            Err(event) => self.over(End::Power(event)),
        };
        if let Flow::End = flow {
            return Flow::End;
        }
        let regs = self.kvm.regs();
        if self.has_stepped(&regs, tables) {
            self.step = None;
            return self.hold(Cause::Stepped, regs, tables);
        }
        self.show_processor();
        let at = Some((regs, self.kvm.system_regs()));
        let stand = VcpuPosition { rip: Gva(regs.rip), is_halted: self.kvm.is_halted(&regs), at };
        let next = self.world.rest(self.id, stand);
        self.obey(next, &regs, tables)
    }

    /// Goes on after a stop, in which the guest was at `regs`.
    fn obey(&mut self, next: AfterStop, regs: &Regs, tables: &mut Arc<VcpuTables>) -> Flow {
        self.pass_over();
        let changed = self.world.take_regs(self.id);
        if let Some(changed) = &changed
            && let Err(error) = self.kvm.write_regs(changed)
        {
            return self.failed("KVM refused registers", error, *changed);
        }
        self.was_moved |= changed.is_some();
        let regs = changed.as_ref().unwrap_or(regs);
        if let AfterStop::Run(new) = &next {
            self.begin_step(regs, new);
        }
        match next {
            AfterStop::End => Flow::End,
            AfterStop::Run(new) if Arc::ptr_eq(&new, tables) => {
                self.kvm.excuse_pause();
                Flow::Run
            }
            AfterStop::Run(new) => {
                *tables = new;
                self.passed = match tables.sites.left(Gva(regs.rip)) {
                    Some(nop) => Some(Passed::in_detour(nop)),
                    None => self.passed.filter(|passed| passed.is_next(regs)),
                };
                self.kvm.excuse_pause();
                self.apply(tables)
            }
        }
    }

    /// Sets this vCPU's breakpoints, and what it shows of itself.
    fn apply(&mut self, tables: &VcpuTables) -> Flow {
        // A shadow that a hit has left before this is ended by the next one.
        let events = tables.shared.events || self.kvm.is_in_shadow();
        // A sample looks at all memory.
        let system = tables.shared.system || self.sampler.is_some();
        self.kvm.share(Shared { events, system, ..tables.shared });
        match self.kvm.debug(&tables.breakpoints) {
            Ok(()) => Flow::Run,
            Err(error) => {
                let regs = self.kvm.regs();
                self.over(End::Failed(format!("KVM refused the vCPU's breakpoints: {error}"), regs))
            }
        }
    }

    fn debug_exit(&mut self, exit: DebugExit, tables: &mut Arc<VcpuTables>) -> Flow {
        let Some(exit) = self.without_step(exit) else { return Flow::Run };
        let handlers = tables.int3_handlers;
        match trap::classify(exit, &mut self.kvm, &self.ram, &tables.breakpoints, handlers) {
            Trap::Breakpoint(breakpoint) => self.met_int3(&breakpoint, tables),
            Trap::Debug(fired) => self.fired(&fired, tables),
            Trap::Guest(exception) => self.give_back(exception, tables),
        }
    }

    fn give_back(&mut self, exception: GuestException, tables: &VcpuTables) -> Flow {
        let exception = match exception {
            GuestException::Delivered => {
                self.resume_past_breakpoint();
                return Flow::Run;
            }
            GuestException::Intercepted(exception) => exception,
            GuestException::Icebp(exception) => {
                let mut regs = self.kvm.regs();
                regs.rip = regs.rip.wrapping_add(1);
                if let Err(error) = self.kvm.write_regs(&regs) {
                    return self.failed("KVM refused registers", error, regs);
                }
                exception
            }
        };
        match self.kvm.inject(exception, &tables.breakpoints) {
            Ok(()) => Flow::Run,
            Err(error) => {
                let regs = self.kvm.regs();
                self.failed("the guest's own exception could not be given back", error, regs)
            }
        }
    }

    fn failed(&mut self, what: &str, error: errno::Error, regs: Regs) -> Flow {
        self.over(End::Failed(format!("{what}: {error}"), regs))
    }

    fn resume_past_breakpoint(&mut self) {
        let mut regs = self.kvm.regs();
        regs.rflags |= rflags::RF;
        self.kvm.set_regs(&regs);
    }

    /// Where the kernel keeps what it has of this vCPU (GVA), where that says which task runs.
    fn per_cpu_area(&mut self, tables: &VcpuTables) -> Option<Gva> {
        if tables.kernel.task.is_none() && tables.kernel.current.is_none() {
            return None;
        }
        self.area.or_else(|| self.kvm.per_cpu_area())
    }

    /// As [`per_cpu_area`](Self::per_cpu_area), at a site: the code of entries is not probed, and all other code of the kernel
    /// finds its area by GS.
    fn area_at_site(&mut self, tables: &VcpuTables) -> Option<Gva> {
        let area = self.per_cpu_area(tables);
        self.area = area.filter(|_| tables.kernel_space.is_some());
        area
    }

    /// Whether code can be at `rip`: the address is canonical. One that is with four levels is with five.
    fn may_be_code(&mut self, rip: Gva) -> bool {
        AddressSpace::new(0, 0).is_canonical(rip) || self.kvm.address_space().is_canonical(rip)
    }

    /// What memory holds at `at` in its address space.
    fn byte_at(&mut self, at: Gva) -> Option<u8> {
        let memory = VirtMemory::new(&*self.ram, self.kvm.address_space());
        let mut byte = [0];
        memory.read(at, &mut byte).ok()?;
        let [byte] = byte;
        Some(byte)
    }

    /// A ring is full. While the reader catches up, this vCPU stands still like a parked one, where the guest is at `regs`:
    /// until it may go on, or has other tables.
    fn wait_for_reader(
        &mut self,
        regs: &Regs,
        tables: &mut Arc<VcpuTables>,
        may_go_on: impl Fn(&Self) -> bool,
    ) -> Flow {
        self.recorder.count_wait();
        self.show_processor();
        let before = tables.clone();
        let position = VcpuPosition { rip: Gva(regs.rip), ..VcpuPosition::default() };
        while Arc::ptr_eq(&before, tables) && !may_go_on(self) {
            let next = self.world.wait(self.id, position, Duration::from_millis(1));
            if let Flow::End = self.obey(next, regs, tables) {
                return Flow::End;
            }
        }
        Flow::Run
    }

    fn hold(&mut self, cause: Cause, regs: Regs, tables: &mut Arc<VcpuTables>) -> Flow {
        self.show_processor();
        let request = VcpuRequest { vcpu: self.id, cause, regs, system: self.kvm.system_regs() };
        let next = self.world.hold(request);
        self.obey(next, &regs, tables)
    }
}

fn guest_exception(delivery: Delivery) -> GuestException {
    match delivery {
        Delivery::Intercepted => GuestException::Intercepted(DebugException::Breakpoint),
        Delivery::Reflected => GuestException::Delivered,
    }
}
