//! What a handler sees of a hit, and what it can say about how the guest goes on.

use super::command::{Command, HandlerRequest};
use super::member::Member;
use super::program::ProgramRegs;
use crate::clock::Clock;
use crate::errands::Errands;
use crate::kernel_view::KernelView;
use crate::memory::GuestRam;
use crate::stack::{Callers, Stack, Walked};
use probe_engine::addr::Gva;
use probe_engine::capture::{Capture, Scene, Value};
use probe_engine::linux::names::Names;
use probe_engine::linux::scope::Scope;
use probe_engine::linux::task::Task;
use probe_engine::paging::PageFault;
use probe_engine::probe::inject::skip_function;
use probe_engine::probe::table::ProbeId;
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;
use rustix::io::Errno;

/// One hit of one probe.
pub struct Hit<'a> {
    /// The guest's registers, as they will be when it goes on. RIP is on the probed instruction, in a post
    /// handler behind it, in a return handler at the caller. A pre handler that changes RIP redirects the
    /// guest: the probed instruction is then not executed. At an access RIP is behind the instruction that made it.
    pub regs: Regs,
    /// The guest's memory as its own code sees it at this moment. What is not mapped there is an error, and
    /// never a fault in the guest.
    pub memory: VirtMemory<'a, GuestRam>,
    /// The probe.
    pub probe: ProbeId,
    /// Where it stands (GVA); for a return, where the function was entered; for a watch, what is watched.
    pub at: Gva,
    /// The vCPU that took the hit.
    pub vcpu: usize,
    pub(crate) ticks: u64,
    pub(crate) clock: &'a Clock,
    /// For a return: how long the call took, in ticks.
    pub(crate) duration: Option<u64>,
    pub(crate) access: Option<Access>,
    pub(crate) kernel: &'a KernelView,
    pub(crate) callers: &'a dyn Callers,
    pub(crate) errands: &'a Errands,
    /// Where the kernel keeps what it has of this vCPU (GVA).
    pub(crate) area: Option<Gva>,
    pub(crate) requests: &'a mut Vec<HandlerRequest>,
    /// Where the registers of the program are, if the probe is in one.
    pub(crate) program: Option<ProgramRegs<'a>>,
    /// What was read, and by what.
    pub(crate) captured: Option<(&'a Capture, &'a [u8])>,
}

/// What a probed instruction raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The exception's number: 14 is #PF, 13 #GP, 0 #DE.
    pub vector: u8,
    /// Its error code, 0 where it has none.
    pub code: u32,
    /// The address that #PF is about.
    pub address: Gva,
}

impl Fault {
    pub(crate) const PAGE_FAULT: u8 = 14;
}

/// What became of watched memory, as a number of its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// What it held when it was last looked at: when it was set, or at the access before this one.
    pub old: u64,
    /// What it holds now. The same as before when it was only read, or written with the same value.
    pub new: u64,
}

impl Hit<'_> {
    /// For a watch of memory: what it held, and what it holds. `None` at an instruction.
    #[must_use]
    pub fn access(&self) -> Option<Access> {
        self.access
    }

    /// When the hit was taken: nanoseconds since the guest was started.
    #[must_use]
    pub fn nanos(&self) -> u64 {
        self.clock.rate().nanos(self.ticks)
    }

    /// For a return: how long the call took, in nanoseconds.
    #[must_use]
    pub fn duration(&self) -> Option<u64> {
        Some(self.clock.rate().duration(self.duration?))
    }

    /// Argument number `n` of the function that is being entered, from 0 on: six in registers, the others on
    /// the stack behind the return address (System V ABI, 3.2.3). `None` when the stack cannot be read.
    #[must_use]
    pub fn argument(&self, n: usize) -> Option<u64> {
        match self.regs.args().get(n) {
            Some(value) => Some(*value),
            None => self.memory.read_u64(Gva(self.regs.rsp).add(8 * (n as u64 - 5))).ok(),
        }
    }

    /// The registers of the program, where the probe is in one: `regs` are those of the kernel's function that is called for it.
    #[must_use]
    pub fn program(&self) -> Option<ProgramRegs<'_>> {
        self.program
    }

    /// Who called: the stack as `regs` have it, with at most `most` frames of the kernel. `None` where the session does
    /// not know how: see [`Guest::stacks`](crate::guest::Guest::stacks).
    #[must_use]
    pub fn stack(&self, most: usize) -> Option<Stack> {
        let Self { kernel: view, callers, memory, regs, .. } = self;
        let task = self.task().map(|task| task.at);
        Stack::of_walk(Walked { view, callers: *callers, memory, regs, task }, most)
    }

    /// Names for the addresses of a stack. `None` where the session has no
    /// [`symbols`](crate::guest::Guest::symbols).
    #[must_use]
    pub fn names(&self) -> Option<Names<'_>> {
        self.kernel.names()
    }

    /// The task that runs on this vCPU, if it can be told.
    #[must_use]
    pub fn task(&self) -> Option<Task> {
        task(self.kernel, &self.memory, self.area)
    }

    /// Whether the guest is here for an [errand](crate::session::Handle::errand) of ours.
    #[must_use]
    pub fn is_errand(&self) -> bool {
        self.errands.has_workers() && self.task().is_some_and(|task| self.errands.is_worker(task.at))
    }

    /// Lets the guest go on at `rip` (GVA) instead of executing the probed instruction.
    pub fn redirect(&mut self, rip: Gva) {
        self.regs.rip = rip.0;
    }

    /// At a function's entry: returns `value` to its caller at once, as if the function had.
    ///
    /// # Errors
    /// The [`PageFault`] of a stack that cannot be read; nothing has changed then.
    pub fn skip_function(&mut self, value: u64) -> Result<(), PageFault> {
        skip_function(&mut self.regs, &self.memory, value)
    }

    /// At a function's entry: has the call fail with `error`, as the kernel's own functions do, and without its being made. For
    /// functions that give an `int` or a `long`.
    ///
    /// # Errors
    /// As [`skip_function`](Self::skip_function).
    pub fn fail(&mut self, error: Errno) -> Result<(), PageFault> {
        self.skip_function(i64::from(-error.raw_os_error()).cast_unsigned())
    }

    /// A member of the structure at `at` (GVA) as a number, extended with zeros.
    ///
    /// # Errors
    /// The [`PageFault`] where it is not mapped.
    pub fn member(&self, at: u64, member: Member) -> Result<u64, PageFault> {
        let mut bytes = [0; 8];
        let own = bytes.split_at_mut(member.size.min(8)).0;
        self.memory.read(Gva(at).add(member.offset), own)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// What the probe's definition has read of the field of that name, at an instruction or a return.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value<'_>> {
        let (capture, record) = self.captured?;
        capture.values(record).find(|(field, _)| field.name == name).map(|(_, value)| value)
    }

    /// The string at `at` (GVA, kernel or user), up to its NUL or `most` bytes of it.
    ///
    /// # Errors
    /// The [`PageFault`] at the first byte that is not mapped.
    pub fn string(&self, at: Gva, most: usize) -> Result<Vec<u8>, PageFault> {
        let mut string = Vec::new();
        while string.len() < most {
            let mut byte = [0];
            self.memory.read(at.add(string.len() as u64), &mut byte)?;
            if byte == [0] {
                break;
            }
            string.extend(byte);
        }
        Ok(string)
    }

    /// Has `command` carried out soon, while the guest goes on. One that cannot be is
    /// [reported](crate::session::Report::refused). Whoever wants the numbers of what is registered registers by a
    /// [`Handle`](crate::session::Handle) on another thread.
    pub fn command(&mut self, command: Command) {
        self.requests.push(HandlerRequest::Soon(command));
    }

    /// Has `command` carried out before this vCPU goes on. See [`command`](Self::command).
    pub fn command_and_wait(&mut self, command: Command) {
        self.requests.push(HandlerRequest::Wait(command));
    }
}

/// What does not change from one probe of a site to the next.
#[derive(Clone, Copy)]
pub(crate) struct HitContext<'a> {
    pub(crate) memory: &'a VirtMemory<'a, GuestRam>,
    pub(crate) vcpu: usize,
    pub(crate) ticks: u64,
    pub(crate) clock: &'a Clock,
    pub(crate) kernel: &'a KernelView,
    pub(crate) callers: &'a dyn Callers,
    pub(crate) errands: &'a Errands,
    /// See [`Hit::task`].
    pub(crate) area: Option<Gva>,
}

/// The task of the vCPU whose per-CPU area is at `area`, if it can be told.
fn task(kernel: &KernelView, memory: &VirtMemory<'_, GuestRam>, area: Option<Gva>) -> Option<Task> {
    kernel.task?.read(memory, area?.0).ok()
}

impl<'a> HitContext<'a> {
    /// The task that runs, if it can be told.
    pub(crate) fn task(&self) -> Option<Task> {
        task(self.kernel, self.memory, self.area)
    }

    /// Whether this is in `scope`.
    pub(crate) fn is_inside(&self, scope: Scope) -> bool {
        let tells = || {
            let (layout, area) = (self.kernel.task?, self.area?);
            Some(layout.is_inside(scope, self.memory, area.0))
        };
        scope == Scope::Boot || tells().unwrap_or(false)
    }

    /// What can be read now, with these registers; at a return with the arguments that the function was entered with.
    pub(crate) fn scene<'b>(
        &self,
        regs: &'b Regs,
        entered_with: Option<[u64; 6]>,
        task: Option<&'b Task>,
    ) -> Scene<'b, VirtMemory<'b, GuestRam>>
    where
        'a: 'b,
    {
        let per_cpu = self.area.map(|area| area.0);
        Scene {
            regs,
            entered_with,
            memory: self.memory,
            slide: self.kernel.slide,
            task,
            cpu: self.vcpu,
            per_cpu,
        }
    }

    /// The hit of `probe` at `at`.
    pub(crate) fn hit<'b>(
        &self,
        probe: ProbeId,
        at: Gva,
        regs: Regs,
        requests: &'b mut Vec<HandlerRequest>,
    ) -> Hit<'b>
    where
        'a: 'b,
    {
        Hit {
            regs,
            memory: *self.memory,
            probe,
            at,
            vcpu: self.vcpu,
            ticks: self.ticks,
            clock: self.clock,
            duration: None,
            access: None,
            kernel: self.kernel,
            callers: self.callers,
            errands: self.errands,
            area: self.area,
            requests,
            program: None,
            captured: None,
        }
    }
}
