//! A guest that runs many instructions, each from a start state to its first exception, without leaving the CPU.
//!
//! The host writes a batch of [`Start`]s to the guest's memory. For each the guest fills the data window, loads all
//! registers, and jumps to the code, around which there is nothing but `int3`. Every exception comes to one handler,
//! which keeps what was left as an [`End`] and goes on with the next.

mod code;

use probe_engine::addr::{Gpa, Gva};
use probe_engine::memory::PhysMemory;
use probe_engine::paging::{Access, AddressSpace};
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;
use std::io;
use std::sync::Arc;
use vmm::devices::{Devices, console::SerialConsole};
use vmm::guest::Host;
use vmm::kvm::{Exit, KvmVcpu, Left};
use vmm::memory::GuestRam;
use vmm::selftest::BreakpointDelivery;
use vmm::selftest::micro::{self, ExceptionStack, MicroGuest, Privilege};
use vmm_sys_util::eventfd::EventFd;

/// How many a batch has at most.
pub const BATCH: usize = 256;
/// Bytes around each piece of code.
pub const CELL: u64 = 0x200;
/// Where in its cell the code starts: 8 bits of displacement reach either end.
pub const IN_CELL: u64 = 0x80;
/// Where original number n runs, in cells.
pub const ORIGINALS: Gva = Gva(0xffff_ffff_8100_0000);
/// Where copy number n runs, in cells.
pub const SLOTS: Gva = Gva(0xffff_ffff_c000_0000);
/// Base of FS: an address that no operand has by chance, and near enough to zero for 32 bits of displacement.
pub const FS_BASE: u64 = 0x12_3458;
/// Base of GS.
pub const GS_BASE: u64 = 0x65_4320;

/// Bytes of the data window: half of them at the end of one page, half at the start of the next.
pub const WINDOW: usize = 0x400;
const HALF: u64 = WINDOW as u64 / 2;
const PAGE: u64 = 0x1000;

/// One view of the window's two pages: guest-virtual address of the boundary between them, and which are there.
pub struct View {
    /// The first byte of the second page.
    pub middle: Gva,
    first: Option<Mode>,
    second: Option<Mode>,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    ReadOnly,
    Writable,
}

/// Both pages writable; as the others, reachable from code with 32 bits of displacement.
pub const BOTH: View = view(0xffff_ffff_8800_2000, Some(Mode::Writable), Some(Mode::Writable));
/// The same two within 32 bits.
pub const LOW: View = view(0x3000_2000, Some(Mode::Writable), Some(Mode::Writable));
/// What an instruction may cross from or into.
pub const EDGES: [View; 4] = [
    view(0xffff_ffff_8801_2000, Some(Mode::Writable), None),
    view(0xffff_ffff_8802_2000, None, Some(Mode::Writable)),
    view(0xffff_ffff_8803_2000, Some(Mode::ReadOnly), Some(Mode::ReadOnly)),
    view(0xffff_ffff_8804_2000, Some(Mode::Writable), Some(Mode::ReadOnly)),
];

const fn view(middle: u64, first: Option<Mode>, second: Option<Mode>) -> View {
    View { middle: Gva(middle), first, second }
}

/// Where in the window the byte at `at` is.
#[must_use]
pub fn in_window(at: Gva) -> Option<usize> {
    let views = EDGES.iter().chain([&BOTH, &LOW]);
    views
        .filter_map(|view| at.offset_from(view.middle.offset(-(HALF as i64))).map(|offset| (view, offset)))
        .find_map(|(view, offset)| {
            let there = if offset < HALF { view.first } else { view.second };
            (there.is_some() && offset < WINDOW as u64).then_some(offset as usize)
        })
}

/// Guest-physical addresses. The first 64 KiB are the micro guest's own.
const TABLES: Gpa = Gpa(0x1_0000);
const CODE: Gpa = Gpa(0x3_0000);
const VARIABLES: Gpa = Gpa(0x3_2000);
const STACK: Gpa = Gpa(0x3_3000);
const DATA: Gpa = Gpa(0x3_4000);
const ORIGINAL_CELLS: Gpa = Gpa(0x4_0000);
const SLOT_CELLS: Gpa = Gpa(0x8_0000);
const STARTS: Gpa = Gpa(0xe_0000);
const ENDS: Gpa = Gpa(0x15_0000);

/// Guest-virtual address of the guest's own code and data: `HIGH` above the physical one.
const HIGH: u64 = 0xffff_ffff_9000_0000;

/// A record in the guest's memory: words, FXSAVE area, window.
const RECORD: usize = 0x700;
const FX_AT: usize = 0x100;
const WINDOW_AT: usize = 0x300;
/// Bytes of an FXSAVE area.
pub const FX: usize = 0x200;

/// The state in front of an instruction. RIP says where it runs.
#[derive(Clone)]
pub struct Start {
    /// All but the segment bases, which are constant.
    pub regs: Regs,
    /// x87 and SSE registers (Intel SDM volume 1, 10.5.1).
    pub fx: [u8; FX],
    /// Memory.
    pub window: [u8; WINDOW],
}

/// The state behind it, or at the exception that it raised.
#[derive(Clone, PartialEq, Eq)]
pub struct End {
    /// At the exception. Of an `int3`, RIP is its address.
    pub regs: Regs,
    /// The exception, 3 being the orderly end.
    pub vector: u64,
    /// Its error code, or 0.
    pub code: u64,
    /// CR2, where the exception is #PF; 0 otherwise.
    pub cr2: u64,
    /// x87 and SSE registers.
    pub fx: [u8; FX],
    /// Memory.
    pub window: [u8; WINDOW],
}

/// Vector of `int3`.
pub const BP: u64 = 3;
/// Vector of what is no instruction.
pub const UD: u64 = 6;
/// Vector of the stack fault.
pub const SS: u64 = 12;
/// Vector of the general protection fault.
pub const GP: u64 = 13;
/// Vector of the page fault.
pub const PF: u64 = 14;

/// The guest, between two batches.
pub struct Guest {
    micro: MicroGuest,
    vcpu: KvmVcpu,
    devices: Devices,
    is_qemu: bool,
}

impl Guest {
    /// A guest that is ready for its first batch.
    pub fn new(fit: &'static Host) -> Self {
        let micro = MicroGuest::new(&fit.hypervisor).unwrap();
        map_all(micro.ram());
        let (code, handlers) = code::code();
        micro.ram().write(CODE, &code).unwrap();
        for (vector, handler) in (0..).zip(handlers) {
            micro.gate(vector, handler, Privilege::Kernel, ExceptionStack::Own).unwrap();
        }
        /// Of the stack table's first entry, in the task-state segment (see `micro`).
        const IST1: Gva = Gva(0x6024);
        micro.write(IST1, &stack_top().0.to_le_bytes()).unwrap();
        let vcpu = micro.add_vcpu(&fit.hypervisor, 0, 1).unwrap();
        micro::start(&vcpu, high(CODE), stack_top(), Privilege::Kernel).unwrap();
        let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let devices = Devices::new(SerialConsole::new(interrupt, Box::new(io::sink()), false));
        let mut guest = Self { micro, vcpu, devices, is_qemu: fit.delivery == BreakpointDelivery::Reflected };
        guest.exit();
        guest
    }

    /// Whether the CPU is that of QEMU, which alone does not intercept breakpoints.
    pub fn is_qemu(&self) -> bool {
        self.is_qemu
    }

    /// Writes `bytes` as original number `n`, nothing but `int3` around it.
    pub fn original(&self, n: usize, bytes: &[u8]) {
        self.cell(ORIGINAL_CELLS, n, bytes);
    }

    /// Writes `code` to slot number `n`.
    pub fn slot(&self, n: usize, code: &[u8]) {
        self.cell(SLOT_CELLS, n, code);
    }

    fn cell(&self, cells: Gpa, n: usize, bytes: &[u8]) {
        let mut cell = [0xcc; CELL as usize];
        cell[IN_CELL as usize..][..bytes.len()].copy_from_slice(bytes);
        self.micro.ram().write(cells.add(n as u64 * CELL), &cell).unwrap();
    }

    /// Lets the CPU run from each of `starts`, at most [`BATCH`].
    pub fn run(&mut self, starts: &[Start]) -> Vec<End> {
        let ram = self.micro.ram().clone();
        for (n, start) in (0..).zip(starts) {
            ram.write(STARTS.add(n * RECORD as u64), &start.record()).unwrap();
        }
        let words = [high(STARTS).0, high(ENDS).0, starts.len() as u64];
        ram.write(VARIABLES, &words.map(u64::to_le_bytes).concat()).unwrap();
        if !starts.is_empty() {
            self.exit();
        }
        let mut record = [0; RECORD];
        let mut end = |n| {
            ram.read(ENDS.add(n * RECORD as u64), &mut record).unwrap();
            End::of(&record)
        };
        (0..starts.len() as u64).map(&mut end).collect()
    }

    /// Runs up to the guest's next port access.
    fn exit(&mut self) {
        loop {
            match self.vcpu.run() {
                Left::Access(access) => {
                    self.devices.bus.serve(access);
                    return;
                }
                Left::Exit(Exit::Interrupted) => {}
                Left::Exit(other) => {
                    let mut at = [0; 16];
                    self.micro.ram().read(VARIABLES, &mut at).unwrap();
                    panic!("{other:?} at {:x?}, variables {at:x?}", self.vcpu.regs());
                }
            }
        }
    }

    /// Whether the guest can read the byte at `at`.
    pub fn is_mapped(&self, at: Gva) -> bool {
        AddressSpace::new(ROOT.0, 0).translate(&**self.micro.ram(), at, Access::Read).is_ok()
    }

    /// Does with the guest's memory and the data window of `start` what `change` does; returns the window.
    pub fn with_memory<T>(
        &self,
        start: &Start,
        change: impl FnOnce(&VirtMemory<'_, GuestRam>) -> T,
    ) -> (T, [u8; WINDOW]) {
        let ram: &Arc<GuestRam> = self.micro.ram();
        let at = DATA.add(PAGE - HALF);
        ram.write(at, &start.window).unwrap();
        let result = change(&VirtMemory::new(ram, AddressSpace::new(ROOT.0, 0)));
        let mut window = [0; WINDOW];
        ram.read(at, &mut window).unwrap();
        (result, window)
    }
}

impl Start {
    fn record(&self) -> [u8; RECORD] {
        let r = &self.regs;
        let words = [
            r.rflags, r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15, r.rip,
        ];
        let mut record = [0; RECORD];
        for (slot, word) in record.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        record[FX_AT..][..FX].copy_from_slice(&self.fx);
        record[WINDOW_AT..][..WINDOW].copy_from_slice(&self.window);
        record
    }
}

impl End {
    /// An FXSAVE area without what the instruction's address goes into, and what the CPU need not write: last x87
    /// opcode and addresses, MXCSR_MASK, reserved bytes.
    pub fn comparable(mut fx: [u8; FX]) -> [u8; FX] {
        for range in [6..24, 28..32, 416..FX] {
            fx[range].fill(0);
        }
        fx
    }

    fn of(record: &[u8; RECORD]) -> Self {
        let word = |n: usize| u64::from_le_bytes(record[n * 8..][..8].try_into().unwrap());
        // What `code` stores: sixteen registers (RSP is the handler's), vector, code, RIP, CS, RFLAGS, RSP, SS, CR2.
        let (vector, rip) = (word(16), word(18));
        let regs = Regs {
            rax: word(0),
            rcx: word(1),
            rdx: word(2),
            rbx: word(3),
            rsp: word(21),
            rbp: word(5),
            rsi: word(6),
            rdi: word(7),
            r8: word(8),
            r9: word(9),
            r10: word(10),
            r11: word(11),
            r12: word(12),
            r13: word(13),
            r14: word(14),
            r15: word(15),
            rip: if vector == BP { rip - 1 } else { rip },
            rflags: word(20),
        };
        Self {
            regs,
            vector,
            code: word(17),
            cr2: if vector == PF { word(23) } else { 0 },
            fx: Self::comparable(record[FX_AT..][..FX].try_into().unwrap()),
            window: record[WINDOW_AT..][..WINDOW].try_into().unwrap(),
        }
    }
}

/// The top page table, where the micro guest has it.
const ROOT: Gpa = Gpa(0x1000);

fn high(at: Gpa) -> Gva {
    Gva(HIGH + at.0)
}

fn stack_top() -> Gva {
    high(STACK).add(PAGE)
}

/// Replaces the micro guest's address space by one in which hardly anything is mapped, and only what instructions
/// are meant to write is writable.
fn map_all(ram: &GuestRam) {
    use Mode::{ReadOnly, Writable};
    ram.write(ROOT, &[0; PAGE as usize]).unwrap();
    let mut map = Map { ram, next_table: TABLES };
    let mut range = |at: Gva, to: Gpa, bytes: u64, mode| {
        for offset in (0..bytes).step_by(PAGE as usize) {
            map.page(at.add(offset), to.add(offset), mode);
        }
    };
    // GDT, IDT and task-state segment.
    range(Gva(0x4000), Gpa(0x4000), 3 * PAGE, ReadOnly);
    range(high(CODE), CODE, 2 * PAGE, ReadOnly);
    range(high(VARIABLES), VARIABLES, 2 * PAGE, Writable);
    range(high(STARTS), STARTS, (BATCH * RECORD) as u64, ReadOnly);
    range(high(ENDS), ENDS, (BATCH * RECORD) as u64, Writable);
    range(ORIGINALS, ORIGINAL_CELLS, BATCH as u64 * CELL, ReadOnly);
    range(SLOTS, SLOT_CELLS, BATCH as u64 * CELL, ReadOnly);
    for view in EDGES.iter().chain([&BOTH, &LOW]) {
        for (at, to, mode) in [
            (view.middle.offset(-(PAGE as i64)), DATA, view.first),
            (view.middle, DATA.add(PAGE), view.second),
        ] {
            if let Some(mode) = mode {
                range(at, to, PAGE, mode);
            }
        }
    }
}

struct Map<'a> {
    ram: &'a GuestRam,
    next_table: Gpa,
}

impl Map<'_> {
    fn page(&mut self, at: Gva, to: Gpa, mode: Mode) {
        const PRESENT: u64 = 1;
        const WRITABLE: u64 = 2;
        const FLAGS: u64 = 0xfff;
        let mut table = ROOT;
        for shift in [39, 30, 21] {
            let entry = table.add((at.0 >> shift & 0x1ff) * 8);
            let mut word = [0; 8];
            self.ram.read(entry, &mut word).unwrap();
            let mut word = u64::from_le_bytes(word);
            if word == 0 {
                word = self.next_table.0 | PRESENT | WRITABLE;
                self.next_table = self.next_table.add(PAGE);
                assert!(self.next_table <= CODE, "room for page tables");
                self.ram.write(entry, &word.to_le_bytes()).unwrap();
            }
            table = Gpa(word & !FLAGS);
        }
        let writable = if mode == Mode::Writable { WRITABLE } else { 0 };
        let entry = to.0 | PRESENT | writable;
        self.ram.write(table.add((at.0 >> 12 & 0x1ff) * 8), &entry.to_le_bytes()).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_seen_through_every_view_where_its_pages_are() {
        let [gone_after, gone_before, ..] = &EDGES;
        for (at, offset) in [
            (BOTH.middle, Some(HALF as usize)),
            (BOTH.middle.offset(-(HALF as i64)), Some(0)),
            (BOTH.middle.offset(-(HALF as i64) - 1), None),
            (LOW.middle.add(HALF - 1), Some(WINDOW - 1)),
            (LOW.middle.add(HALF), None),
            (gone_after.middle.offset(-1), Some(HALF as usize - 1)),
            (gone_after.middle, None),
            (gone_before.middle.offset(-1), None),
            (gone_before.middle, Some(HALF as usize)),
        ] {
            assert_eq!(in_window(at), offset, "{at}");
        }
    }

    #[test]
    fn an_end_is_read_from_where_the_guest_writes_it() {
        let mut record = [0; RECORD];
        for (n, word) in (0..24).zip(record.chunks_exact_mut(8)) {
            word.copy_from_slice(&(100 + n as u64).to_le_bytes());
        }
        record[16 * 8..][..8].copy_from_slice(&PF.to_le_bytes());
        let end = End::of(&record);
        assert_eq!((end.vector, end.code, end.cr2), (PF, 117, 123));
        assert_eq!((end.regs.rip, end.regs.rflags, end.regs.rsp, end.regs.r15), (118, 120, 121, 115));
        record[16 * 8..][..8].copy_from_slice(&BP.to_le_bytes());
        let end = End::of(&record);
        assert_eq!((end.regs.rip, end.cr2), (117, 0));
    }
}
