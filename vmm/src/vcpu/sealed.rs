//! A write of the guest's to a sealed page, or to a register by which programs enter its kernel, which has come back before it was made.

use super::tables::VcpuTables;
use super::{End, Flow, Vcpu};
use crate::clock;
use crate::guard::{Done, Found, Guard, OnWrite, SealedWrite, Suspicion, Writer};
use crate::kvm::{Data, DeviceAccess, Space};
use crate::memory::GuestRam;
use crate::stack::{self, Piece, Stack, Walked};
use probe_engine::addr::{Gpa, Gva};
use probe_engine::guard::attempt::{Write, attempt};
use probe_engine::guard::entries::EntryRegister;
use probe_engine::guard::judge::Objection;
use probe_engine::memory::PhysMemory;
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;

/// So far down the stack is the function that changes text: what it writes with may be a function that it calls.
const NEAR: usize = 4;

impl Vcpu {
    /// The guest was about to store to a sealed page. What its kernel may change is changed.
    pub(super) fn at_sealed(&mut self, tables: &VcpuTables) -> Flow {
        let regs = self.kvm.regs();
        let Some(guard) = self.guard.clone().filter(|guard| guard.is_standing()) else {
            let words = "the host has no memory for the guest (KVM_RUN: EFAULT)";
            return self.over(End::Failed(words.to_owned(), regs));
        };
        let system = self.kvm.system();
        let (space, segments) = (system.space(), system.segments());
        let ram = self.ram.clone();
        let tried = match attempt(&regs, &*ram, space, &segments, |at, length| ram.is_sealed(at, length)) {
            Ok(tried) => tried,
            // The same would come back for ever.
            Err(why) => {
                guard.tell(self.found(&regs, tables, Suspicion::Unknown(why), Done::Stopped));
                return self.over(End::Guarded);
            }
        };
        let is_poking = guard.is_poking(space) && self.is_in_poke(&guard, &regs, tables);
        let (sealed, others): (Vec<Write>, Vec<Write>) =
            tried.writes.into_iter().partition(|write| ram.is_sealed(write.at, write.bytes.len()));
        let sealed = guard.pieces(sealed);
        let objection = match &*sealed {
            [write] => guard.carry_out(write, is_poking, &ram).err(),
            // The kernel changes one place at a time.
            _ => Some(Objection::Place),
        };
        if let Some(objection) = objection {
            let done = done(guard.on_write);
            let found = self.found(&regs, tables, Suspicion::Objection(objection), done);
            for SealedWrite { at, bytes, .. } in &sealed {
                guard.tell(Found {
                    at: Some(*at),
                    length: bytes.len(),
                    bytes: bytes.clone(),
                    ..found.clone()
                });
            }
            match done {
                Done::Stopped => return self.over(End::Guarded),
                Done::Denied => {}
                // It is RAM, as was found when it was tried.
                Done::Written => sealed.iter().for_each(|write| {
                    let _ = write.make(&ram);
                }),
            }
        }
        for write in &others {
            let _ = ram.write(write.at, &write.bytes);
        }
        self.kvm.set_regs(&tried.regs);
        Flow::Run
    }

    /// KVM has carried out an instruction that stores to a sealed page, and hands the bytes on as if to a device.
    pub(super) fn stored_by_kvm(&mut self, write: Write, tables: &VcpuTables) -> Flow {
        let Some(guard) = self.guard.clone() else { return Flow::Run };
        let done = done(guard.on_write);
        if done == Done::Written {
            let _ = self.ram.unsealed().write(write.at, &write.bytes);
        }
        let regs = self.kvm.regs();
        // None of the kernel's patching code is what KVM carries out.
        let found = self.found(&regs, tables, Suspicion::Objection(Objection::Writer), done);
        let at = Some(guard.place(write.at));
        guard.tell(Found { at, length: write.bytes.len(), bytes: write.bytes, ..found });
        if done == Done::Stopped { self.over(End::Guarded) } else { Flow::Run }
    }

    /// The guest is about to write to a register by which programs enter its kernel.
    pub(super) fn at_entry_register(
        &mut self,
        register: EntryRegister,
        value: u64,
        tables: &VcpuTables,
    ) -> Flow {
        let Some(guard) = self.guard.clone() else { return Flow::Run };
        if guard.permits(register, value) {
            self.kvm.set_entry_register(register, value);
            return Flow::Run;
        }
        let done = done(guard.on_write);
        let regs = self.kvm.regs();
        guard.tell(self.found(&regs, tables, Suspicion::Entry(register, value), done));
        match done {
            Done::Stopped => return self.over(End::Guarded),
            Done::Denied => {}
            // A value that the processor does not take is not set, without an exception.
            Done::Written => drop(self.kvm.set_entry_register(register, value)),
        }
        Flow::Run
    }

    /// Whether the function that changes text runs, or has called what does.
    fn is_in_poke(&mut self, guard: &Guard, regs: &Regs, tables: &VcpuTables) -> bool {
        let Some(poke) = guard.poke() else { return false };
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let walked = Walked { view: &tables.kernel, callers: tables, memory: &memory, regs, task: None };
        let mut is_there = false;
        stack::walk(walked, NEAR, |piece| {
            is_there |= matches!(piece, Piece::Frame(frame) if frame.is_reliable && frame.at.is_in(&poke));
        });
        is_there
    }

    /// What is found at `regs`, where nothing is known of the write.
    fn found(&mut self, regs: &Regs, tables: &VcpuTables, why: Suspicion, done: Done) -> Found {
        let ticks = clock::ticks();
        let area = self.area_anywhere(tables);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let task = tables.context(&memory, self.id, (ticks, &self.clock), area).task();
        let stack: Option<Stack> = tables.stack(&memory, regs, task.map(|task| task.at));
        let writer = Writer::Vcpu { id: self.id, rip: Gva(regs.rip), task, stack };
        Found { ticks, at: None, length: 0, bytes: Vec::new(), writer, why, done }
    }
}

/// The store to sealed memory that an access is, which KVM takes for one to a device.
pub(super) fn stored(access: &DeviceAccess<'_>, ram: &GuestRam) -> Option<Write> {
    match &access.data {
        Data::Write(bytes) if access.space == Space::Memory && ram.is_sealed(Gpa(access.at), bytes.len()) => {
            Some(Write { at: Gpa(access.at), bytes: bytes.to_vec() })
        }
        _ => None,
    }
}

fn done(on_write: OnWrite) -> Done {
    match on_write {
        OnWrite::Report => Done::Written,
        OnWrite::Deny => Done::Denied,
        OnWrite::Stop => Done::Stopped,
    }
}
