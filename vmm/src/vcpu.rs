//! A vCPU's thread: runs the guest, takes hits, stops when the world does.

use crate::clock;
use crate::devices::{Devices, PowerEvent};
use crate::events::Recorder;
use crate::kvm::{DebugException, DebugExit, Exception, Exit, KvmVcpu};
use crate::memory::GuestRam;
use crate::trap::{self, Breakpoint, Delivery, GuestException, Trap};
use crate::world::{Cause, Next, Orders, Request, World};
use probe_engine::addr::Gva;
use probe_engine::insn::emulate::EmulationFault;
use probe_engine::insn::plan::Plan;
use probe_engine::memory::VirtMemory;
use probe_engine::probe::hit::Verdict;
use probe_engine::probe::table::UserProbes;
use probe_engine::regs::{Regs, rflags};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

/// Why a vCPU ended the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The guest asked for it.
    Power(PowerEvent),
    /// A triple fault, at these registers.
    TripleFault(Regs),
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
        let mut orders = self.world.orders();
        let mut flow = self.apply(&orders);
        while let Flow::Run = flow {
            flow = if self.world.wants_attention() { self.rest(&mut orders) } else { self.run(&mut orders) };
        }
    }

    fn run(&mut self, orders: &mut Arc<Orders>) -> Flow {
        let exit = self.kvm.run(&self.devices);
        self.exit(exit, orders)
    }

    fn exit(&mut self, exit: Exit, orders: &mut Arc<Orders>) -> Flow {
        match exit {
            Exit::Handled | Exit::Interrupted | Exit::NotStarted => Flow::Run,
            Exit::Debug(exit) => self.debug_exit(exit, orders),
            Exit::Power(event) => self.over(End::Power(event)),
            Exit::Shutdown => {
                let regs = self.kvm.regs();
                self.over(End::TripleFault(regs))
            }
            Exit::Failed(words) => {
                let regs = self.kvm.regs();
                self.over(End::Failed(words, regs))
            }
        }
    }

    /// The run is over: says so and waits for the end of the world.
    fn over(&mut self, end: End) -> Flow {
        // The receiver outlives every vCPU thread.
        let _ = self.ends.send(end);
        loop {
            if let Next::End = self.world.pause(self.id, Duration::from_secs(1)) {
                return Flow::End;
            }
        }
    }

    /// Stops with the world. A pending port access is completed first, or its registers would be stale.
    fn rest(&mut self, orders: &mut Arc<Orders>) -> Flow {
        let exit = self.kvm.complete_access(&self.devices);
        if let Flow::End = self.exit(exit, orders) {
            return Flow::End;
        }
        let next = self.world.rest(self.id);
        self.obey(next, orders)
    }

    fn obey(&mut self, next: Next, orders: &mut Arc<Orders>) -> Flow {
        match next {
            Next::End => Flow::End,
            Next::Run(new) if Arc::ptr_eq(&new, orders) => {
                self.kvm.excuse_pause();
                Flow::Run
            }
            Next::Run(new) => {
                *orders = new;
                self.kvm.excuse_pause();
                self.apply(orders)
            }
        }
    }

    /// Sets this vCPU's breakpoints.
    fn apply(&mut self, orders: &Orders) -> Flow {
        match self.kvm.debug(&orders.breakpoints) {
            Ok(()) => Flow::Run,
            Err(error) => {
                let regs = self.kvm.regs();
                self.over(End::Failed(format!("KVM refused the vCPU's breakpoints: {error}"), regs))
            }
        }
    }

    fn debug_exit(&mut self, exit: DebugExit, orders: &mut Arc<Orders>) -> Flow {
        let handler = orders.int3_handler;
        match trap::classify(exit, &mut self.kvm, &self.ram, &orders.breakpoints, handler) {
            Trap::Breakpoint(breakpoint) => self.breakpoint(&breakpoint, orders),
            Trap::Execution(regs) => {
                let flow = self.hold(Cause::Breakpoint, regs, orders);
                // The breakpoint may still be there: RF lets its instruction pass.
                self.resume_past_breakpoint();
                flow
            }
            Trap::Guest(exception) => self.give_back(exception, orders),
        }
    }

    /// Finds whose `int3` it was. After each wait the question is asked again: the answer may have changed.
    fn breakpoint(&mut self, breakpoint: &Breakpoint, orders: &mut Arc<Orders>) -> Flow {
        let at = Gva(breakpoint.regs.rip);
        loop {
            let current = orders.clone();
            let verdict = current.sites.judge(at, || self.byte_at(at));
            let flow = match verdict {
                Verdict::Foreign => return self.give_back(guest_exception(breakpoint.delivery), orders),
                Verdict::Stale => {
                    self.go_on(breakpoint, &breakpoint.regs);
                    return Flow::Run;
                }
                Verdict::Ours(site) => match (site.internal, &site.user) {
                    (Some(internal), _) => self.hold(Cause::Internal(internal), breakpoint.regs, orders),
                    (None, Some(user)) if !self.recorder.has_room(user.probes.len()) => {
                        self.wait_for_reader(orders)
                    }
                    (None, Some(user)) => return self.hit(breakpoint, user),
                    (None, None) => return self.give_back(guest_exception(breakpoint.delivery), orders),
                },
            };
            if let Flow::End = flow {
                return Flow::End;
            }
        }
    }

    /// Handlers first, in order of registration, then past the instruction.
    fn hit(&mut self, breakpoint: &Breakpoint, user: &UserProbes) -> Flow {
        let ticks = clock::ticks();
        let at = Gva(breakpoint.regs.rip);
        let args = breakpoint.regs.args();
        for probe in &user.probes {
            self.recorder.record(ticks, *probe, at, args);
        }
        let mut regs = breakpoint.regs;
        let segments = self.kvm.segments();
        let memory = VirtMemory { phys: &*self.ram, space: self.kvm.address_space() };
        let Plan::Emulate(emulation) = &user.plan;
        match emulation.execute(&mut regs, &memory, &segments) {
            Ok(()) => {
                self.go_on(breakpoint, &regs);
                Flow::Run
            }
            Err(fault) => self.fault(breakpoint, fault),
        }
    }

    /// The probed instruction faults: the guest gets its exception with RIP on the instruction.
    fn fault(&mut self, breakpoint: &Breakpoint, fault: EmulationFault) -> Flow {
        let exception = match fault {
            EmulationFault::Page(fault) if fault.is_canonical() => Exception::PageFault(fault),
            EmulationFault::Page(_) | EmulationFault::BranchTarget(_) => Exception::GeneralProtection,
            EmulationFault::NotRam(at) => {
                let words =
                    format!("the probed instruction at {:#x} accesses a device at {at}", breakpoint.regs.rip);
                return self.over(End::Failed(words, breakpoint.regs));
            }
        };
        match self.kvm.raise(exception, &breakpoint.regs) {
            Ok(()) => Flow::Run,
            Err(error) => {
                let words = format!("KVM refused the fault of a probed instruction: {error}");
                self.over(End::Failed(words, breakpoint.regs))
            }
        }
    }

    /// Continues with `regs`; nothing is written when they are those of the exit.
    fn go_on(&mut self, breakpoint: &Breakpoint, regs: &Regs) {
        if breakpoint.delivery == Delivery::Reflected || *regs != breakpoint.regs {
            self.kvm.set_regs(regs);
        }
    }

    fn give_back(&mut self, exception: GuestException, orders: &Orders) -> Flow {
        match exception {
            GuestException::Delivered => self.resume_past_breakpoint(),
            GuestException::Intercepted(exception) => {
                if let Err(error) = self.kvm.inject(exception, &orders.breakpoints) {
                    let regs = self.kvm.regs();
                    let words = format!("the guest's own exception could not be given back: {error}");
                    return self.over(End::Failed(words, regs));
                }
            }
        }
        Flow::Run
    }

    fn resume_past_breakpoint(&mut self) {
        let mut regs = self.kvm.regs();
        regs.rflags |= rflags::RF;
        self.kvm.set_regs(&regs);
    }

    /// The ring is full. While the reader catches up, this vCPU stands still like a parked one.
    fn wait_for_reader(&mut self, orders: &mut Arc<Orders>) -> Flow {
        self.recorder.count_wait();
        let next = self.world.pause(self.id, Duration::from_millis(1));
        self.obey(next, orders)
    }

    fn hold(&mut self, cause: Cause, regs: Regs, orders: &mut Arc<Orders>) -> Flow {
        let request =
            Request { vcpu: self.id, cause, regs, space: self.kvm.address_space(), idt: self.kvm.idt() };
        let next = self.world.hold(request);
        self.obey(next, orders)
    }

    /// What memory holds at `at` in the address space of the moment.
    fn byte_at(&mut self, at: Gva) -> Option<u8> {
        let memory = VirtMemory { phys: &*self.ram, space: self.kvm.address_space() };
        let mut byte = [0];
        memory.read(at, &mut byte).ok()?;
        let [byte] = byte;
        Some(byte)
    }
}

fn guest_exception(delivery: Delivery) -> GuestException {
    match delivery {
        Delivery::Intercepted => GuestException::Intercepted(DebugException::Breakpoint),
        Delivery::Reflected => GuestException::Delivered,
    }
}
