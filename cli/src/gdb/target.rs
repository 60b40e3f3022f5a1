//! The guest as gdbstub wants a target to be: its CPUs are threads, numbered from 1.

use super::guest::{Guest, Stop};
use super::monitor;
use super::points::{Point, Points};
use super::registers::{Cpu, Register, X86_64, value};
use anyhow::{Error, Result};
use gdbstub::common::{Signal, Tid};
use gdbstub::stub::MultiThreadStopReason;
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadResume, MultiThreadResumeOps, MultiThreadSchedulerLocking,
    MultiThreadSchedulerLockingOps, MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::base::single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps, SwBreakpoint,
    SwBreakpointOps, WatchKind,
};
use gdbstub::target::ext::monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps};
use gdbstub::target::ext::section_offsets::{Offsets, SectionOffsets, SectionOffsetsOps};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};

/// The guest of one gdb.
pub(super) struct Debugged {
    pub(super) guest: Guest,
    pub(super) points: Points,
    /// The CPU that is to execute one instruction when gdb lets the guest go on.
    step: Option<usize>,
    /// Whether one does.
    is_stepping: bool,
    /// The CPU at which the guest has come to stand still.
    stopped: usize,
}

/// The thread that a CPU is.
fn thread(vcpu: usize) -> Tid {
    Tid::MIN.saturating_add(vcpu)
}

fn vcpu(thread: Tid) -> usize {
    thread.get() - 1
}

/// What gdb is told of something that cannot be done: that it cannot.
fn refused<T>(result: Result<T>) -> TargetResult<T, Debugged> {
    result.map_err(|_| TargetError::NonFatal)
}

impl Debugged {
    pub(super) fn new(guest: Guest) -> Self {
        Self { guest, points: Points::default(), step: None, is_stepping: false, stopped: 0 }
    }

    /// What gdb is to be told next, where the guest goes on for it.
    pub(super) fn next_stop(&mut self) -> Option<MultiThreadStopReason<u64>> {
        self.guest.hear();
        if self.is_stepping {
            // What others have come to waits until that one has done its step, unless it has come to something itself.
            let at = self.guest.stops.iter().position(|stop| stop.probe.is_none());
            if at.is_none() && self.guest.was_resumed {
                // Somebody else has let all go on, and nobody will be told of a step. Where the guest has ended, that is seen soon.
                return self.interrupt().ok();
            }
            let at = at?;
            let stop = self.guest.stops.remove(at)?;
            self.is_stepping = false;
            return Some(self.reason(stop).unwrap_or(trapped(stop)));
        }
        while !self.guest.stops.is_empty() {
            if let Some(reason) = self.told_stop() {
                return Some(reason);
            }
            // Nobody wants to know it any more. Where that cannot be said the guest has ended, which is seen soon.
            let _ = self.guest.resume();
            self.guest.hear();
        }
        None
    }

    /// The next of the stops so far that gdb wants to know.
    fn told_stop(&mut self) -> Option<MultiThreadStopReason<u64>> {
        loop {
            let stop = self.guest.stops.pop_front()?;
            if let Some(reason) = self.reason(stop) {
                return Some(reason);
            }
        }
    }

    /// What gdb is told of `stop`; nothing where its breakpoint is not in any more.
    fn reason(&mut self, stop: Stop) -> Option<MultiThreadStopReason<u64>> {
        let tid = thread(stop.vcpu);
        let reason = match stop.probe.map(|probe| self.points.of_probe(probe)) {
            None => trapped(stop),
            Some(None) => return None,
            Some(Some(Point::Break { at })) if at == stop.rip => MultiThreadStopReason::SwBreak(tid),
            Some(Some(Point::Hardware { at })) if at == stop.rip => MultiThreadStopReason::HwBreak(tid),
            // It has moved out of the way of the guest's own patching: gdb knows of nothing there.
            Some(Some(Point::Break { .. } | Point::Hardware { .. })) => trapped(stop),
            Some(Some(Point::Watch { at, access, .. })) => {
                MultiThreadStopReason::Watch { tid, kind: access.kind(), addr: at }
            }
        };
        self.stopped = stop.vcpu;
        Some(reason)
    }

    /// gdb wants the guest to stand still.
    pub(super) fn interrupt(&mut self) -> Result<MultiThreadStopReason<u64>> {
        self.guest.pause()?;
        self.is_stepping = false;
        if let Some(stop) = self.told_stop() {
            return Ok(stop);
        }
        self.stopped = 0;
        Ok(MultiThreadStopReason::SignalWithThread { tid: thread(0), signal: Signal::SIGINT })
    }
}

fn trapped(stop: Stop) -> MultiThreadStopReason<u64> {
    MultiThreadStopReason::SignalWithThread { tid: thread(stop.vcpu), signal: Signal::SIGTRAP }
}

impl Target for Debugged {
    type Arch = X86_64;
    type Error = Error;

    fn base_ops(&mut self) -> BaseOps<'_, X86_64, Error> {
        BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }

    fn support_section_offsets(&mut self) -> Option<SectionOffsetsOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for Debugged {
    fn read_registers(&mut self, regs: &mut Cpu, tid: Tid) -> TargetResult<(), Self> {
        *regs = refused(self.guest.registers(vcpu(tid)))?;
        Ok(())
    }

    fn write_registers(&mut self, regs: &Cpu, tid: Tid) -> TargetResult<(), Self> {
        let mut changed = regs.clone();
        let held = refused(self.guest.registers(vcpu(tid)))?;
        changed.0.retain(|name, value| held.0.get(name) != Some(value));
        refused(self.guest.set_registers(vcpu(tid), &changed))
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    /// As much as there is: what gdb asks for may reach into a page that is not there.
    fn read_addrs(&mut self, at: u64, data: &mut [u8], tid: Tid) -> TargetResult<usize, Self> {
        const PAGE: u64 = 4096;
        let vcpu = vcpu(tid);
        let in_page = data.len().min((PAGE - at % PAGE) as usize);
        let read = self.guest.read(at, data.len(), vcpu).or_else(|_| self.guest.read(at, in_page, vcpu));
        let read = refused(read)?;
        data.iter_mut().zip(&read).for_each(|(to, from)| *to = *from);
        Ok(read.len().min(data.len()))
    }

    fn write_addrs(&mut self, at: u64, data: &[u8], tid: Tid) -> TargetResult<(), Self> {
        refused(self.guest.write(at, data, vcpu(tid)))
    }

    fn list_active_threads(&mut self, is_active: &mut dyn FnMut(Tid)) -> Result<()> {
        self.guest.cpus()?.iter().for_each(|line| is_active(thread(line.vcpu)));
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl ThreadExtraInfo for Debugged {
    fn thread_extra_info(&self, tid: Tid, buf: &mut [u8]) -> Result<usize> {
        let line = self.guest.seen_cpus().iter().find(|line| line.vcpu == vcpu(tid));
        let text = line.map(monitor::standing).unwrap_or_default();
        let count = text.len().min(buf.len());
        buf.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        Ok(count)
    }
}

impl SingleRegisterAccess<Tid> for Debugged {
    fn read_register(&mut self, tid: Tid, register: Register, buf: &mut [u8]) -> TargetResult<usize, Self> {
        let (name, bytes) = register.known().ok_or(TargetError::NonFatal)?;
        let held = refused(self.guest.registers(vcpu(tid)))?;
        let value = held.0.get(name).ok_or(TargetError::NonFatal)?.to_le_bytes();
        let all = value.into_iter().chain(std::iter::repeat(0)).take(bytes);
        buf.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        Ok(bytes.min(buf.len()))
    }

    fn write_register(&mut self, tid: Tid, register: Register, bytes: &[u8]) -> TargetResult<(), Self> {
        let name = register.general().ok_or(TargetError::NonFatal)?;
        let changed = Cpu([(name.to_owned(), value(bytes))].into());
        refused(self.guest.set_registers(vcpu(tid), &changed))
    }
}

impl MultiThreadResume for Debugged {
    fn resume(&mut self) -> Result<()> {
        self.guest.hear();
        if let Some(vcpu) = self.step.take() {
            self.is_stepping = true;
            return self.guest.step(vcpu);
        }
        // What gdb has not been told comes first.
        if self.guest.stops.is_empty() { self.guest.resume() } else { Ok(()) }
    }

    fn clear_resume_actions(&mut self) -> Result<()> {
        self.step = None;
        Ok(())
    }

    fn set_resume_action_continue(&mut self, _: Tid, _: Option<Signal>) -> Result<()> {
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSingleStep for Debugged {
    fn set_resume_action_step(&mut self, tid: Tid, _: Option<Signal>) -> Result<()> {
        self.step = Some(vcpu(tid));
        Ok(())
    }
}

impl MultiThreadSchedulerLocking for Debugged {
    /// A step is one of a CPU while all others stand still in any case.
    fn set_resume_action_scheduler_lock(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Breakpoints for Debugged {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Debugged {
    fn add_sw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.points.insert(Point::Break { at }, &mut self.guest))
    }

    fn remove_sw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.points.take_out(Point::Break { at }, &mut self.guest))
    }
}

impl HwBreakpoint for Debugged {
    fn add_hw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.points.insert(Point::Hardware { at }, &mut self.guest))
    }

    fn remove_hw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.points.take_out(Point::Hardware { at }, &mut self.guest))
    }
}

impl HwWatchpoint for Debugged {
    fn add_hw_watchpoint(&mut self, at: u64, length: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        let point = Point::Watch { at, length, access: kind.into() };
        Ok(self.points.insert(point, &mut self.guest))
    }

    fn remove_hw_watchpoint(&mut self, at: u64, length: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        let point = Point::Watch { at, length, access: kind.into() };
        Ok(self.points.take_out(point, &mut self.guest))
    }
}

impl SectionOffsets for Debugged {
    /// All of a kernel has moved by the same, and the first segment of its file is its text.
    fn get_section_offsets(&mut self) -> Result<Offsets<u64>> {
        let kernel = self.guest.kernel()?;
        Ok(match kernel.text.zip(kernel.slide) {
            Some((text, slide)) => {
                Offsets::Segments { text_seg: text.0.wrapping_add(slide.0), data_seg: None }
            }
            None => Offsets::Sections { text: 0, data: 0, bss: None },
        })
    }
}

impl MonitorCmd for Debugged {
    fn handle_monitor_cmd(&mut self, command: &[u8], mut out: ConsoleOutput<'_>) -> Result<()> {
        let refused = self.points.refused.as_deref();
        let said = monitor::said(command, &mut self.guest, self.stopped, refused);
        out.write_raw(said.as_bytes());
        Ok(())
    }
}
