//! Counting: a hit in the slot of the CPU where the probe has some, all else in a counter that CPUs share.

use super::{Assembler, Done, Guest, NoStub, Stub, displacement, imm, rip_relative};
use crate::addr::Gva;
use crate::detour::layout::{HITS, Slots};
use crate::insn::copy::jump;
use iced_x86::code_asm::rax;
use iced_x86::{Code, Instruction};

/// What all stubs begin with.
const BEGIN: [u8; 7] = [
    0x9c, 0xfa, // pushfq; cli
    0x0f, 0x1f, 0x44, 0x00, 0x00, // gate
];
const GATE: usize = 2;

/// One that only counts, which is what tens of thousands of functions get at a time: the bytes are written out.
pub(super) fn only_counting(guest: &Guest, at: Gva, probe: u32) -> Result<Stub, NoStub> {
    /// `push rax`, `pop rax`
    const SAVE: [u8; 2] = [0x50, 0x58];
    let mut code = BEGIN.to_vec();
    match in_slot(guest, probe) {
        Some(count) => {
            let [push, pop] = SAVE;
            code.push(push);
            code.extend(count);
            code.push(pop);
        }
        None => {
            if is_shared(guest) {
                code.push(0xf0); // lock
            }
            code.extend([0x48, 0xff, 0x05]); // inc qword [rip + counter]
            let counter = guest.window.add(HITS).add(8 * u64::from(probe));
            let [_, distance @ ..] = jump(at.add(code.len() as u64 - 1), counter)?;
            code.extend(distance);
        }
    }
    let end = code.len();
    Ok(Stub::with_gate(code, GATE, end))
}

/// The code that counts a hit in the slot of the CPU, by rax. `None` where the probe has none, where the kernel does not tell
/// the CPU's number, or where 32 bits do not reach.
fn in_slot(guest: &Guest, probe: u32) -> Option<Vec<u8>> {
    let slots = Slots::of(guest.rings.cpus);
    let slot = guest.window.add(slots.offset(probe)?).0;
    let slot = i32::try_from(slot.cast_signed()).ok()?;
    let number = imm(displacement(guest.cpu?.number).ok()?).ok()?;
    let mut code = vec![0x65, 0x8b, 0x04, 0x25]; // mov eax, gs:[number]
    code.extend(number.to_le_bytes());
    code.push(0x25); // and eax, mask
    code.extend(slots.mask().to_le_bytes());
    code.extend([0xc1, 0xe0, slots.stride().ilog2() as u8]); // shl eax, shift
    code.extend([0x48, 0xff, 0x80]); // inc qword [rax + slot]
    code.extend(slot.to_le_bytes());
    Some(code)
}

/// Whether another CPU may change a counter of hits.
fn is_shared(guest: &Guest) -> bool {
    guest.rings.cpus > 1
}

impl Assembler<'_> {
    /// Counts a hit. Uses rax, if that is saved.
    pub(super) fn count_hit(&mut self, probe: u32) -> Done {
        let Some(count) = in_slot(self.guest, probe) else {
            return self.change(Code::Inc_rm64, HITS, probe, is_shared(self.guest));
        };
        let is_saved = !self.saved.is_empty();
        if !is_saved {
            self.asm.push(rax)?;
        }
        self.asm.db(&count)?;
        if !is_saved {
            self.asm.pop(rax)?;
        }
        Ok(())
    }

    /// `lock inc` of a counter, or `lock dec`: another CPU, or the host, may change it too.
    pub(super) fn count(&mut self, how: Code, table: u64, probe: u32) -> Done {
        self.change(how, table, probe, true)
    }

    fn change(&mut self, how: Code, table: u64, probe: u32, is_shared: bool) -> Done {
        let at = self.guest.window.add(table).add(8 * u64::from(probe));
        let mut count = Instruction::with1(how, rip_relative(at))?;
        count.set_has_lock_prefix(is_shared);
        self.asm.add_instruction(count)?;
        Ok(())
    }
}
