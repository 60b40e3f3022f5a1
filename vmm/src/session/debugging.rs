//! What a debugger asks of a guest that stands still: one instruction of one vCPU, other registers, other memory; and telling it
//! where the guest has come to stand.

use super::control::Control;
use super::handle::{DebugError, WriteAt};
use super::stop::Stop;
use super::stopped::{KernelPlace, StopCause, Stopped};
use crate::clock;
use crate::layout::{RESERVED, RESERVED_SIZE};
use crate::vcpu::VcpuTables;
use crate::world::Parked;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::memory::PhysMemory as _;
use probe_engine::paging::Access;
use probe_engine::probe::table::ProbeId;
use probe_engine::regs::Regs;
use std::sync::mpsc::Sender;

impl Control<'_> {
    /// From now on `follower` is told where the guest comes to stand.
    pub(super) fn follow(&mut self, follower: Sender<Stopped>) {
        self.debugging.follower = Some(follower);
    }

    /// A vCPU has come to `probe`, at `regs`, where the guest is to stand still, unless nobody wants that any more.
    pub(super) fn stop_reached(&mut self, vcpu: usize, probe: ProbeId, regs: Regs, tables: &mut VcpuTables) {
        if !self.registry.get(probe).is_some_and(|entry| entry.enabled && entry.active.stops_guest()) {
            return;
        }
        if tables.stepping == Some(vcpu) {
            tables.stepping = None;
        }
        self.debugging.stopped(vcpu, StopCause::Probe(probe), regs);
    }

    /// A vCPU has executed the instruction that it was to execute, unless that is not wanted any more.
    pub(super) fn stepped(&mut self, vcpu: usize, regs: Regs, tables: &mut VcpuTables) {
        if tables.stepping == Some(vcpu) {
            tables.stepping = None;
            self.debugging.stopped(vcpu, StopCause::Step, regs);
        }
    }

    /// Tells where the guest has come to stand, behind all that was asked for before it did. A vCPU that is about to execute its one
    /// instruction goes on by itself.
    pub(super) fn tell_stopped(&mut self, parked: &Parked<'_>, tables: &VcpuTables) {
        if !self.debugging.stopped.is_empty() {
            self.paused.get_or_insert_with(clock::ticks);
            parked.freeze();
        }
        if let (Some(vcpu), Some(_)) = (tables.stepping, self.paused) {
            parked.let_alone(vcpu);
        }
        for stopped in self.debugging.stopped.drain(..) {
            // One that is gone has said that the guest is to go on.
            if let Some(follower) = &self.debugging.follower {
                // Nobody may wait for it any more.
                let _ = follower.send(stopped);
            }
        }
    }

    /// Has `vcpu` execute one instruction.
    pub(super) fn step(
        &self,
        vcpu: usize,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) -> Result<(), DebugError> {
        self.standing_vcpu(vcpu, parked)?;
        tables.stepping = Some(vcpu);
        Ok(())
    }

    /// Has `vcpu` go on with other registers.
    pub(super) fn set_regs(
        &self,
        vcpu: usize,
        regs: Regs,
        parked: &Parked<'_>,
        tables: &VcpuTables,
    ) -> Result<(), DebugError> {
        let shown = self.standing_vcpu(vcpu, parked)?;
        if tables.is_amid_own(Gva(shown.rip)) {
            return Err(DebugError::InOwnCode(vcpu));
        }
        let space = parked.positions().get(vcpu).and_then(|position| position.space());
        if !space.is_some_and(|space| space.is_canonical(Gva(regs.rip))) {
            return Err(DebugError::NoCode(Gva(regs.rip)));
        }
        // Who is in a copy stays there, where RIP is not what was changed.
        let rip = if Gva(regs.rip) == tables.shown(Gva(shown.rip)) { shown.rip } else { regs.rip };
        parked.set_regs(vcpu, Regs { rip, ..regs });
        Ok(())
    }

    /// The registers of `vcpu`, where the guest is paused and the vCPU is between two instructions.
    fn standing_vcpu(&self, vcpu: usize, parked: &Parked<'_>) -> Result<Regs, DebugError> {
        if self.paused.is_none() {
            return Err(DebugError::Runs);
        }
        let positions = parked.positions();
        let position = positions.get(vcpu).ok_or(DebugError::NoVcpu(vcpu))?;
        position.at.map(|(regs, _)| regs).ok_or(DebugError::Amid(vcpu))
    }

    /// Writes memory. What of ours stands there is put there anew, over what is written.
    pub(super) fn write(
        &mut self,
        wanted: &WriteAt,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) -> Result<(), DebugError> {
        let space = self.space(wanted.vcpu, &parked.positions())?;
        let user = || space;
        let spaces = match wanted.vcpu {
            Some(_) => tables.spaces(&user),
            None => space.into(),
        };
        let mut pieces: Vec<(Gpa, &[u8])> = Vec::new();
        let (mut at, mut rest) = (wanted.at, &*wanted.bytes);
        while !rest.is_empty() {
            const PAGE: u64 = 4096;
            let in_page = rest.len().min((PAGE - at.0 % PAGE) as usize);
            let (now, later) = rest.split_at(in_page);
            let gpa = spaces.of(at).translate(&*self.ram, at, Access::Read);
            let gpa = gpa.map_err(|fault| DebugError::Unmapped(fault.at))?;
            let is_ours = gpa.0.wrapping_sub(RESERVED.0) < RESERVED_SIZE;
            let mut held = vec![0; in_page];
            if is_ours || self.ram.read(gpa, &mut held).is_err() {
                return Err(DebugError::Unmapped(at));
            }
            if self.ram.is_sealed(gpa, in_page) {
                return Err(DebugError::Sealed(at));
            }
            pieces.push((gpa, now));
            (at, rest) = (at.add(in_page as u64), later);
        }
        for (gpa, bytes) in &pieces {
            let stop = Stop { parked, ram: &self.ram };
            self.arming.lift_over(*gpa..gpa.add(bytes.len() as u64), &mut self.registry, &stop, tables);
            self.ram.write(*gpa, bytes).map_err(|_| DebugError::Unmapped(wanted.at))?;
        }
        Ok(())
    }

    /// Where the kernel is, once that is known.
    pub(super) fn kernel_place(&self) -> Option<KernelPlace> {
        let map = self.arming.running().map(|running| running.map).or(self.stage.map())?;
        let (text, text_end) = (self.kernel.text, self.kernel.text_end);
        Some(KernelPlace { text, text_end, slide: map.slide(), is_final: self.arming.is_ready() })
    }
}
