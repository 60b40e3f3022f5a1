//! Tables of what the CPU oracle cannot or need not ask: exact flags by hand, faults, and what changes with them.

use super::emulate::{Emulation, Passed, Segments};
use super::fault::EmulationFault;
use super::plan::{StepPlan, plan};
use crate::addr::{Gpa, Gva};
use crate::memory::{NoMemory, PhysMemory};
use crate::paging::{AddressSpace, PageFault};
use crate::regs::Regs;
use crate::regs::rflags::{AC, AF, CF, DF, ID, IF, IOPL, NT, OF, PF, RF, SF, TF, VM, ZF};
use crate::virt_memory::VirtMemory;
use std::cell::{Cell, RefCell};

const AT: Gva = Gva(0xffff_ffff_8100_0000);
/// Three pages: RAM, RAM that is read-only, and a device. Around them nothing is mapped.
const PAGE: u64 = 0xffff_c900_0000_0000;
const READ_ONLY: u64 = PAGE + 0x1000;
const DEVICE: u64 = PAGE + 0x2000;
const END: u64 = PAGE + 0x3000;
/// The entries on the way to the first page, and last that of the second one.
const ENTRIES: [Gpa; 5] = [
    Gpa(0x1000 + (PAGE >> 39 & 0x1ff) * 8),
    Gpa(0x2000 + (PAGE >> 30 & 0x1ff) * 8),
    Gpa(0x3000 + (PAGE >> 21 & 0x1ff) * 8),
    Gpa(0x4000),
    Gpa(0x4008),
];
/// Bits of an entry.
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;

/// Guest memory that notes how each store arrived. Its page tables are marked as Linux marks its own: accessed and
/// dirty.
struct Ram {
    bytes: RefCell<Vec<u8>>,
    stores: RefCell<Vec<(Gpa, usize)>>,
    /// What another CPU writes just before the next comparison: where, and what.
    meddling: Cell<Option<(Gpa, u64)>>,
}

impl PhysMemory for Ram {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        let ram = self.bytes.borrow();
        let start = at.0 as usize;
        buf.copy_from_slice(ram.get(start..start + buf.len()).ok_or(NoMemory(at))?);
        Ok(())
    }
    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
        let start = at.0 as usize;
        self.bytes
            .borrow_mut()
            .get_mut(start..start + bytes.len())
            .ok_or(NoMemory(at))?
            .copy_from_slice(bytes);
        self.stores.borrow_mut().push((at, bytes.len()));
        Ok(())
    }
    fn compare_exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, NoMemory> {
        if let Some((at, value)) = self.meddling.take() {
            self.write(at, &value.to_le_bytes())?;
        }
        let is_old = self.entry(at) == old;
        if is_old {
            self.write(at, &new.to_le_bytes())?;
        }
        Ok(is_old)
    }
}

impl Ram {
    fn new() -> Self {
        let mut bytes = vec![0; 0x7000];
        let mut entry = |table: usize, index: u64, value: u64| {
            let at = table + index as usize * 8;
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        entry(0x1000, PAGE >> 39 & 0x1ff, 0x2063);
        entry(0x2000, PAGE >> 30 & 0x1ff, 0x3063);
        entry(0x3000, PAGE >> 21 & 0x1ff, 0x4063);
        entry(0x4000, 0, 0x5063);
        entry(0x4000, 1, 0x6061);
        entry(0x4000, 2, 0xfee0_0063);
        Self { bytes: RefCell::new(bytes), stores: RefCell::default(), meddling: Cell::default() }
    }

    fn memory(&self) -> VirtMemory<'_, Self> {
        VirtMemory::new(self, AddressSpace::new(0x1000, 0))
    }

    /// The entry of a page table at `at`.
    fn entry(&self, at: Gpa) -> u64 {
        let mut entry = [0; 8];
        self.read(at, &mut entry).unwrap();
        u64::from_le_bytes(entry)
    }

    /// Changes the entries on the way to the first page and the second one, clearing `clear` and setting `set`.
    fn change_entries(&self, clear: u64, set: u64) {
        for at in ENTRIES {
            let entry = self.entry(at) & !clear | set;
            self.write(at, &entry.to_le_bytes()).unwrap();
        }
        self.stores.borrow_mut().clear();
    }

    fn get(&self, at: u64) -> u64 {
        self.memory().read_u64(Gva(at)).unwrap()
    }

    fn set(&self, at: u64, value: u64) {
        self.memory().write(Gva(at), &value.to_le_bytes()).unwrap();
        self.stores.borrow_mut().clear();
    }
}

fn emulation(bytes: &[u8]) -> Emulation {
    match plan(bytes, AT, None, false) {
        Ok(StepPlan::Emulate(emulation)) => emulation,
        other => panic!("{bytes:02x?}: {other:?}"),
    }
}

fn execute(bytes: &[u8], regs: &mut Regs, ram: &Ram) -> Result<Passed, EmulationFault> {
    let segments = Segments { fs_base: PAGE + 0x100, gs_base: PAGE + 0x200 };
    emulation(bytes).execute(regs, &ram.memory(), &segments)
}

/// Runs `bytes` without memory and gives back what became of `regs`.
fn after(bytes: &[u8], regs: Regs) -> Regs {
    let mut regs = Regs { rip: AT.0, ..regs };
    execute(bytes, &mut regs, &Ram::new()).unwrap();
    regs
}

#[test]
fn arithmetic_flags() {
    const ADD: [u8; 2] = [0x00, 0xd8]; // add al, bl
    const SUB: [u8; 2] = [0x28, 0xd8];
    const CMP: [u8; 2] = [0x38, 0xd8];
    const AND: [u8; 2] = [0x20, 0xd8];
    const INC: [u8; 2] = [0xfe, 0xc0];
    const DEC: [u8; 2] = [0xfe, 0xc8];
    const NEG: [u8; 2] = [0xf6, 0xd8];
    const NOT: [u8; 2] = [0xf6, 0xd0];
    // instruction, al, bl, flags before, al after, flags after
    let cases: [([u8; 2], u64, u64, u64, u64, u64); 17] = [
        (ADD, 0x01, 0x01, CF, 0x02, 0),
        (ADD, 0x0f, 0x01, 0, 0x10, AF),
        (ADD, 0xff, 0x01, 0, 0x00, CF | AF | ZF | PF),
        (ADD, 0x7f, 0x01, 0, 0x80, AF | SF | OF),
        (ADD, 0x80, 0x80, 0, 0x00, CF | ZF | PF | OF),
        (SUB, 0x00, 0x01, 0, 0xff, CF | AF | SF | PF),
        (SUB, 0x80, 0x01, 0, 0x7f, AF | OF),
        (SUB, 0x10, 0x10, CF, 0x00, ZF | PF),
        (CMP, 0x10, 0x11, 0, 0x10, CF | AF | SF | PF),
        (AND, 0xf0, 0x0f, CF | OF | AF, 0x00, ZF | PF),
        (INC, 0xff, 0, CF, 0x00, CF | AF | ZF | PF),
        (INC, 0x7f, 0, 0, 0x80, AF | SF | OF),
        (DEC, 0x00, 0, 0, 0xff, AF | SF | PF),
        (DEC, 0x80, 0, CF, 0x7f, CF | AF | OF),
        (NEG, 0x00, 0, CF, 0x00, ZF | PF),
        (NEG, 0x80, 0, 0, 0x80, CF | SF | OF),
        (NOT, 0xff, 0, CF | OF, 0x00, CF | OF),
    ];
    for (bytes, al, bl, before, value, flags) in cases {
        let upper = 0x1122_3344_5566_7700;
        let regs = Regs { rax: upper | al, rbx: bl, rflags: before | IF, ..Regs::default() };
        let regs = after(&bytes, regs);
        assert_eq!((regs.rax, regs.rflags), (upper | value, flags | IF), "{bytes:02x?} {al:#x} {bl:#x}");
    }
}

#[test]
fn widths_and_high_bytes() {
    const RAX: u64 = 0x1122_3344_5566_7788;
    const RBX: u64 = 0xffff_ffff_ffff_9abc;
    let cases: [(&[u8], u64); 14] = [
        (&[0x89, 0xd8], 0xffff_9abc),                 // mov eax, ebx
        (&[0x66, 0x89, 0xd8], 0x1122_3344_5566_9abc), // mov ax, bx
        (&[0x88, 0xd8], 0x1122_3344_5566_77bc),       // mov al, bl
        (&[0x88, 0xdc], 0x1122_3344_5566_bc88),       // mov ah, bl
        (&[0x88, 0xf8], 0x1122_3344_5566_779a),       // mov al, bh
        (&[0x86, 0xe0], 0x1122_3344_5566_8877),       // xchg al, ah
        (&[0x48, 0xc7, 0xc0, 0, 0, 0, 0x80], 0xffff_ffff_8000_0000),
        (&[0xb8, 0, 0, 0, 0x80], 0x8000_0000),
        (&[0x48, 0x0f, 0xbe, 0xc3], 0xffff_ffff_ffff_ffbc), // movsx rax, bl
        (&[0x0f, 0xb6, 0xc7], 0x9a),                        // movzx eax, bh
        (&[0x48, 0x63, 0xc3], 0xffff_ffff_ffff_9abc),       // movsxd rax, ebx
        (&[0x0f, 0x44, 0xc3], 0x5566_7788),                 // cmove eax, ebx, not taken
        (&[0x67, 0x48, 0x8d, 0x43, 0x01], 0xffff_9abd),     // lea rax, [ebx+1]
        (&[0x48, 0x8d, 0x05, 0x10, 0, 0, 0], AT.0 + 0x17),  // lea rax, [rip+0x10]
    ];
    for (bytes, rax) in cases {
        let regs = after(bytes, Regs { rax: RAX, rbx: RBX, ..Regs::default() });
        assert_eq!(regs.rax, rax, "{bytes:02x?}");
        assert_eq!(regs.rip, AT.0 + bytes.len() as u64, "{bytes:02x?}");
    }
}

#[test]
fn segment_bases_are_added_to_loads_and_not_to_lea() {
    let ram = Ram::new();
    ram.set(PAGE + 0x108, 0xf5);
    ram.set(PAGE + 0x208, 0x65);
    let cases: [(&[u8], u64); 3] = [
        (&[0x64, 0x48, 0x8b, 0x43, 0x08], 0xf5),
        (&[0x65, 0x48, 0x8b, 0x43, 0x08], 0x65),
        (&[0x65, 0x48, 0x8d, 0x43, 0x08], 0x08),
    ];
    for (bytes, rax) in cases {
        let mut regs = Regs::default();
        execute(bytes, &mut regs, &ram).unwrap();
        assert_eq!(regs.rax, rax, "{bytes:02x?}");
    }
}

#[test]
fn the_stack_keeps_its_order() {
    let ram = Ram::new();
    let rsp = PAGE + 0x800;
    let mut regs = Regs { rsp, ..Regs::default() };
    execute(&[0x54], &mut regs, &ram).unwrap(); // push rsp
    assert_eq!((regs.rsp, ram.get(rsp - 8)), (rsp - 8, rsp));
    execute(&[0x5c], &mut regs, &ram).unwrap(); // pop rsp
    assert_eq!(regs.rsp, rsp);
    execute(&[0xe8, 0xfb, 0, 0, 0], &mut regs, &ram).unwrap(); // call +0xfb
    assert_eq!((regs.rip, regs.rsp, ram.get(rsp - 8)), (AT.0 + 0x100, rsp - 8, AT.0 + 5));
    execute(&[0xc2, 0x10, 0], &mut regs, &ram).unwrap(); // ret 16
    assert_eq!((regs.rip, regs.rsp), (AT.0 + 5, rsp + 16));
}

#[test]
fn an_aligned_store_is_one_write() {
    let ram = Ram::new();
    let mut regs = Regs { rsp: PAGE + 0x808, rax: 1, ..Regs::default() };
    execute(&[0x50], &mut regs, &ram).unwrap();
    execute(&[0x48, 0x01, 0x04, 0x24], &mut regs, &ram).unwrap(); // add [rsp], rax
    assert_eq!(*ram.stores.borrow(), [(Gpa(0x5800), 8), (Gpa(0x5800), 8)]);
    assert_eq!(ram.get(PAGE + 0x800), 2);
}

const LOAD: &[u8] = &[0x48, 0x8b, 0x03]; // mov rax, [rbx]
const STORE: &[u8] = &[0x48, 0x89, 0x03]; // mov [rbx], rax
const ADD_TO_MEMORY: &[u8] = &[0x48, 0x01, 0x03]; // add [rbx], rax

#[test]
fn page_tables_are_marked_as_by_the_cpu() {
    const A: u64 = ACCESSED;
    const AD: u64 = ACCESSED | DIRTY;
    // instruction, rbx, what becomes of the entries
    let cases = [
        (LOAD, PAGE + 8, Ok(()), [A, A, A, A, 0]),
        (STORE, PAGE + 8, Ok(()), [A, A, A, AD, 0]),
        (ADD_TO_MEMORY, PAGE + 8, Ok(()), [A, A, A, AD, 0]),
        (LOAD, READ_ONLY - 4, Ok(()), [A, A, A, A, A]),
        (LOAD, PAGE - 4, Err(0), [0; 5]),
        (STORE, READ_ONLY, Err(3), [0; 5]),
        (STORE, READ_ONLY - 4, Err(3), [0; 5]),
        (ADD_TO_MEMORY, READ_ONLY, Err(3), [0; 5]),
    ];
    for (bytes, rbx, expected, marks) in cases {
        let ram = Ram::new();
        ram.change_entries(AD, 0);
        let mut regs = Regs { rbx, ..Regs::default() };
        let passed = execute(bytes, &mut regs, &ram).map(|_| ()).map_err(|fault| match fault {
            EmulationFault::Page(fault) => fault.code,
            other => panic!("{other}"),
        });
        assert_eq!(passed, expected, "{bytes:02x?} {rbx:#x}");
        assert_eq!(ENTRIES.map(|at| ram.entry(at) & AD), marks, "{bytes:02x?} {rbx:#x}");
        // Once they are set nothing more is written than what the instruction writes.
        ram.stores.borrow_mut().clear();
        let mut again = Regs { rbx, ..Regs::default() };
        let _ = execute(bytes, &mut again, &ram);
        let is_store = bytes != LOAD && expected.is_ok();
        assert_eq!(ram.stores.borrow().len(), usize::from(is_store), "{bytes:02x?} {rbx:#x}");
    }
}

#[test]
fn user_memory_is_closed_by_smap_unless_the_alignment_flag_opens_it() {
    const SMAP: u64 = 1 << 21;
    const PUSH: &[u8] = &[0x50];
    const POPFQ: &[u8] = &[0x9d];
    const CLOSED: u64 = 0;
    // instruction, address, CR4, flags, fault code
    let cases = [
        (LOAD, PAGE, SMAP, CLOSED, Err(1)),
        (STORE, PAGE, SMAP, CLOSED, Err(3)),
        (ADD_TO_MEMORY, PAGE, SMAP, CLOSED, Err(3)),
        (PUSH, PAGE + 8, SMAP, CLOSED, Err(3)),
        (POPFQ, PAGE, SMAP, CLOSED, Err(1)),
        (LOAD, PAGE, SMAP, AC, Ok(())),
        (STORE, PAGE, SMAP, AC, Ok(())),
        // It closes behind itself.
        (POPFQ, PAGE, SMAP, AC, Ok(())),
        (STORE, READ_ONLY, SMAP, AC, Err(3)),
        (LOAD, END, SMAP, CLOSED, Err(0)),
        (LOAD, PAGE, 0, CLOSED, Ok(())),
        (STORE, PAGE, 0, CLOSED, Ok(())),
    ];
    for (bytes, at, cr4, rflags, expected) in cases {
        let ram = Ram::new();
        ram.change_entries(ACCESSED | DIRTY, USER);
        let before = ram.bytes.borrow().clone();
        let memory = VirtMemory::new(&ram, AddressSpace::new(0x1000, cr4));
        let mut regs = Regs { rbx: at, rsp: at, rflags, ..Regs::default() };
        let passed = emulation(bytes).execute(&mut regs, &memory, &Segments::default());
        let passed = passed.map(|_| ()).map_err(|fault| match fault {
            EmulationFault::Page(fault) => fault.code,
            other => panic!("{other}"),
        });
        assert_eq!(passed, expected, "{bytes:02x?} {cr4:#x} {rflags:#x}");
        assert!(passed.is_ok() || *ram.bytes.borrow() == before, "{bytes:02x?} {cr4:#x} {rflags:#x}");
        // The host may look at any time.
        assert!(memory.read_u64(Gva(PAGE)).is_ok());
    }
}

#[test]
fn a_page_that_one_level_keeps_from_user_mode_is_the_kernels() {
    const SMAP: u64 = 1 << 21;
    for closed in &ENTRIES[..4] {
        let ram = Ram::new();
        ram.change_entries(0, USER);
        let entry = ram.entry(*closed) & !USER;
        ram.write(*closed, &entry.to_le_bytes()).unwrap();
        let memory = VirtMemory::new(&ram, AddressSpace::new(0x1000, SMAP));
        let mut regs = Regs { rbx: PAGE, ..Regs::default() };
        let passed = emulation(LOAD).execute(&mut regs, &memory, &Segments::default());
        assert_eq!(passed, Ok(Passed::Plainly), "{closed}");
    }
}

#[test]
fn what_the_host_reads_and_writes_leaves_no_mark() {
    let ram = Ram::new();
    ram.change_entries(ACCESSED | DIRTY, 0);
    ram.set(PAGE + 8, 7);
    assert_eq!(ram.get(PAGE + 8), 7);
    assert_eq!(ENTRIES.map(|at| ram.entry(at) & (ACCESSED | DIRTY)), [0; 5]);
}

#[test]
fn an_entry_that_the_guest_changes_meanwhile_is_read_again() {
    let ram = Ram::new();
    ram.change_entries(DIRTY, 0);
    ram.meddling.set(Some((Gpa(0x4000), 0x6003)));
    let mut regs = Regs { rax: 7, rbx: PAGE, ..Regs::default() };
    execute(STORE, &mut regs, &ram).unwrap();
    assert_eq!((ram.entry(Gpa(0x4000)), ram.entry(Gpa(0x5000)), ram.entry(Gpa(0x6000))), (0x6063, 0, 7));

    ram.change_entries(DIRTY, 0);
    ram.meddling.set(Some((Gpa(0x4000), 0x6021)));
    let fault = PageFault { at: Gva(PAGE), code: 3, canonical: true };
    assert_eq!(execute(STORE, &mut regs, &ram), Err(EmulationFault::Page(fault)));
    assert_eq!(ram.entry(Gpa(0x4000)), 0x6021);
}

/// Not canonical.
const NOWHERE: u64 = 0x0000_8000_0000_0000;

#[test]
fn faults_change_nothing_and_say_what_the_cpu_would() {
    let page = |at, code| EmulationFault::Page(PageFault { at: Gva(at), code, canonical: at != NOWHERE });
    const PUSH: &[u8] = &[0x50];
    const POP: &[u8] = &[0x58];
    const CALL: &[u8] = &[0xe8, 0, 0, 0, 0];
    const RET: &[u8] = &[0xc3];
    const PUSH_MEMORY: &[u8] = &[0xff, 0x33]; // push [rbx]
    const COMPARE: &[u8] = &[0x48, 0x39, 0x03]; // cmp [rbx], rax
    const PUSHFQ: &[u8] = &[0x9c];
    const POPFQ: &[u8] = &[0x9d];
    const ADC: &[u8] = &[0x48, 0x11, 0x03]; // adc [rbx], rax
    const SHIFT: &[u8] = &[0x48, 0xd3, 0x23]; // shl [rbx], cl, where cl is 0
    const MULTIPLY: &[u8] = &[0x48, 0xf7, 0x23]; // mul [rbx]
    const TEST_BIT: &[u8] = &[0x48, 0x0f, 0xba, 0x23, 0]; // bt [rbx], 0
    const SET_BIT: &[u8] = &[0x48, 0x0f, 0xba, 0x2b, 0]; // bts [rbx], 0
    const LEAVE: &[u8] = &[0xc9]; // from rbp, which is 0 here
    const STORE_TO_STACK: &[u8] = &[0x3e, 0x89, 0x04, 0x24]; // mov ds:[rsp], eax: the prefix means nothing
    const STORE_OVER_STACK: &[u8] = &[0x65, 0x89, 0x04, 0x24]; // mov gs:[rsp], eax
    const CONDITIONAL: &[u8] = &[0x48, 0x0f, 0x44, 0x03]; // cmove rax, [rbx], not taken
    let good = PAGE + 0x800;
    let cases = [
        (PUSH, PAGE, 0, page(PAGE - 8, 2)),
        (PUSH, READ_ONLY + 8, 0, page(READ_ONLY, 3)),
        (PUSH, READ_ONLY + 4, 0, page(READ_ONLY, 3)),
        (PUSH, DEVICE + 8, 0, EmulationFault::NotRam(Gva(DEVICE))),
        (POP, END, 0, page(END, 0)),
        (POP, DEVICE, 0, EmulationFault::NotRam(Gva(DEVICE))),
        (CALL, PAGE, 0, page(PAGE - 8, 2)),
        (RET, END - 8, 0, EmulationFault::NotRam(Gva(END - 8))),
        (RET, END - 4, 0, page(END, 0)),
        (PUSH_MEMORY, good, END, page(END, 0)),
        (PUSH_MEMORY, PAGE, good, page(PAGE - 8, 2)),
        (ADD_TO_MEMORY, good, END, page(END, 2)),
        (ADD_TO_MEMORY, good, READ_ONLY, page(READ_ONLY, 3)),
        (COMPARE, good, END, page(END, 0)),
        (STORE, good, END, page(END, 2)),
        (STORE, good, DEVICE, EmulationFault::NotRam(Gva(DEVICE))),
        (CONDITIONAL, good, END, page(END, 0)),
        (PUSHFQ, PAGE, 0, page(PAGE - 8, 2)),
        (POPFQ, END, 0, page(END, 0)),
        (ADC, good, READ_ONLY, page(READ_ONLY, 3)),
        (SHIFT, good, READ_ONLY, page(READ_ONLY, 3)),
        (MULTIPLY, good, END, page(END, 0)),
        (TEST_BIT, good, END, page(END, 0)),
        (SET_BIT, good, READ_ONLY, page(READ_ONLY, 3)),
        (LEAVE, good, 0, page(0, 0)),
        (STORE, good, NOWHERE, page(NOWHERE, 2)),
        (STORE_OVER_STACK, NOWHERE.wrapping_sub(PAGE + 0x200), 0, page(NOWHERE, 2)),
        (STORE_TO_STACK, NOWHERE, 0, EmulationFault::Stack(Gva(NOWHERE))),
        (PUSH, NOWHERE + 8, 0, EmulationFault::Stack(Gva(NOWHERE))),
        (CALL, NOWHERE + 8, 0, EmulationFault::Stack(Gva(NOWHERE))),
        (POP, NOWHERE, 0, EmulationFault::Stack(Gva(NOWHERE))),
        (RET, NOWHERE, 0, EmulationFault::Stack(Gva(NOWHERE))),
    ];
    for (bytes, rsp, rbx, expected) in cases {
        let ram = Ram::new();
        let before = Regs { rax: 7, rbx, rsp, rip: AT.0, rflags: CF | RF, ..Regs::default() };
        let bytes_before = ram.bytes.borrow().clone();
        let mut regs = before;
        assert_eq!(execute(bytes, &mut regs, &ram), Err(expected), "{bytes:02x?}");
        assert_eq!(regs, before, "{bytes:02x?}");
        assert!(*ram.bytes.borrow() == bytes_before, "{bytes:02x?}");
    }
}

#[test]
fn an_address_that_5_levels_have_is_a_page_fault_there() {
    const LA57: u64 = 1 << 12;
    const UNMAPPED: u64 = 0xff11_0000_0000_0000;
    let (ram, segments) = (Ram::new(), Segments::default());
    let memory = VirtMemory::new(&ram, AddressSpace::new(0x1000, LA57));
    let before = Regs { rax: UNMAPPED, rsp: UNMAPPED + 8, ..Regs::default() };
    for (bytes, code) in [(&[0x50][..], 2), (&[0x48, 0x8b, 0x40, 0x08], 0)] {
        let at = Gva(if code == 2 { UNMAPPED } else { UNMAPPED + 8 });
        let fault = EmulationFault::Page(PageFault { at, code, canonical: true });
        assert_eq!(emulation(bytes).execute(&mut before.clone(), &memory, &segments), Err(fault));
    }
    // A branch there is done: it is the fetch that faults.
    let mut regs = before;
    assert_eq!(emulation(&[0xff, 0xe0]).execute(&mut regs, &memory, &segments), Ok(Passed::Plainly));
    assert_eq!(regs.rip, UNMAPPED);
}

#[test]
fn a_branch_to_no_canonical_address_faults_before_it_pushes() {
    let fault = Err(EmulationFault::BranchTarget(Gva(NOWHERE)));
    let ram = Ram::new();
    ram.set(PAGE, NOWHERE);
    let before = Regs { rax: NOWHERE, rsp: PAGE + 0x800, rip: AT.0, ..Regs::default() };
    for (bytes, rsp) in [(&[0xff, 0xd0], PAGE + 0x800), (&[0xff, 0xe0], PAGE + 0x800), (&[0xf3, 0xc3], PAGE)]
    {
        let mut regs = Regs { rsp, ..before };
        assert_eq!(execute(bytes, &mut regs, &ram), fault, "{bytes:02x?}");
        assert_eq!(regs, Regs { rsp, ..before });
        assert!(ram.stores.borrow().is_empty());
    }
}

#[test]
fn resume_is_cleared_and_the_other_system_flags_stay() {
    let regs = after(&[0x90], Regs { rflags: RF | TF | IF | CF, ..Regs::default() });
    assert_eq!(regs.rflags, TF | IF | CF);
}

#[test]
fn interrupts_that_were_off_stay_off_for_one_more_instruction_after_sti() {
    let cases: [(&[u8], u64, u64, Passed); 4] = [
        (&[0xfb], 0, IF, Passed::InShadow),
        (&[0xfb], IF, IF, Passed::Plainly),
        (&[0xfa], IF, 0, Passed::Plainly),
        (&[0xfa], 0, 0, Passed::Plainly),
    ];
    for (bytes, before, after, expected) in cases {
        let mut regs = Regs { rip: AT.0, rflags: before | CF, ..Regs::default() };
        let passed = execute(bytes, &mut regs, &Ram::new());
        assert_eq!((passed, regs.rflags), (Ok(expected), after | CF), "{bytes:02x?} {before:#x}");
    }
}

#[test]
fn flags_on_the_stack_are_those_that_kernel_code_sees_and_may_change() {
    let all = CF | PF | AF | ZF | SF | TF | IF | DF | OF | IOPL | NT | AC | ID;
    let ram = Ram::new();
    let rsp = PAGE + 0x800;
    let mut regs = Regs { rsp, rflags: all | RF | VM | 2, ..Regs::default() };
    execute(&[0x9c], &mut regs, &ram).unwrap();
    assert_eq!((regs.rsp, ram.get(rsp - 8)), (rsp - 8, all | 2));

    // image, flags before, flags after
    let cases = [
        (u64::MAX, 2, all | 2),
        (0, all | 2, 2),
        (RF | VM | 1 << 19 | 1 << 20, 2, 2),
        (0, RF | VM | 1 << 19 | 1 << 20 | 2, VM | 1 << 19 | 1 << 20 | 2),
    ];
    for (image, before, after) in cases {
        ram.set(rsp, image);
        let mut regs = Regs { rsp, rflags: before, ..Regs::default() };
        // popfq opens no shadow.
        assert_eq!(execute(&[0x9d], &mut regs, &ram), Ok(Passed::Plainly));
        assert_eq!((regs.rsp, regs.rflags), (rsp + 8, after), "{image:#x} {before:#x}");
    }
}

proptest::proptest! {
    #[test]
    fn no_instruction_panics_in_any_state(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 1..16),
        rax: u64, rcx: u64, rdx: u64, rflags: u64,
        rsp in PAGE - 16..END + 16,
        rbx in PAGE - 16..END + 16,
    ) {
        if let Ok(StepPlan::Emulate(emulation)) = plan(&bytes, AT, None, true) {
            let ram = Ram::new();
            let segments = Segments { fs_base: rdx, gs_base: rbx };
            let before = Regs { rax, rcx, rdx, rbx, rsp, rflags, rip: AT.0, ..Regs::default() };
            let mut regs = before;
            let passed = emulation.execute(&mut regs, &ram.memory(), &segments);
            proptest::prop_assert!(passed.is_ok() || regs == before);
        }
    }
}
