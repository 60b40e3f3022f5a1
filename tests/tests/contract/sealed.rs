//! Sealed pages: a write of the guest's comes back here before it is made, and is made once it may be. Nothing in the guest can
//! tell.

use probe_engine::addr::{Gpa, Gva};
use probe_engine::memory::PhysMemory;
use probe_engine::regs::Regs;
use std::ops::Range;
use tests::code::{CODE, DATA, HANDLER, code, ending, mov, stack};
use tests::host::fit;
use vmm::kvm::{Data, Exit, KvmVcpu, Left, Space};
use vmm::selftest::micro::{self, ExceptionStack, MicroGuest, Privilege};

/// What is sealed, between two pages that are not.
const SEALED: Gva = Gva(DATA.0 + 0x3000);
const PAGE: u64 = 0x1000;
/// The first page table, of whose entries the first one maps all that runs here.
const PAGE_TABLE: Gva = Gva(0x1000);
const ACCESSED: u64 = 1 << 5;

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RSI: u8 = 6;
const RDI: u8 = 7;
const VALUE: u64 = 0x1122_3344_5566_7788;

/// A guest with one sealed page.
struct Guest {
    guest: MicroGuest,
    vcpu: KvmVcpu,
    pages: Range<Gpa>,
}

impl Guest {
    /// It runs `program` and ends, with `rsp`.
    fn new(program: &[&[u8]], rsp: Gva, page: Gva) -> Option<Self> {
        let fit = fit()?;
        let guest = MicroGuest::sealable(&fit.hypervisor).unwrap();
        guest.write(CODE, &ending(program)).unwrap();
        let vcpu = guest.add_vcpu(&fit.hypervisor, 0, 1).unwrap();
        micro::start(&vcpu, CODE, rsp, Privilege::Kernel).unwrap();
        let pages = Gpa(page.0)..Gpa(page.0 + PAGE);
        guest.ram().seal(&pages).unwrap();
        Some(Self { guest, vcpu, pages })
    }

    /// Runs the guest to a write that is not allowed, again as often as it is tried, and gives the registers there.
    #[track_caller]
    fn denied(&mut self) -> Regs {
        let mut come_to = || match self.vcpu.run() {
            Left::Exit(Exit::Sealed) => self.vcpu.regs(),
            left => panic!("{left:?}"),
        };
        let first = come_to();
        assert_eq!(come_to(), first, "nothing has changed");
        first
    }

    /// Allows writing, and runs the guest to its end.
    #[track_caller]
    fn goes_on(&mut self) {
        self.guest.ram().unseal(&self.pages).unwrap();
        match self.vcpu.run() {
            Left::Access(access) if access.space == Space::Port => {
                assert!(matches!(access.data, Data::Write(_)), "it switches the machine off");
            }
            left => panic!("{left:?}"),
        }
    }

    fn bytes<const N: usize>(&self, at: Gva) -> [u8; N] {
        let mut bytes = [0; N];
        self.guest.ram().read(Gpa(at.0), &mut bytes).unwrap();
        bytes
    }
}

#[test]
fn a_store_comes_back_before_it_is_made() {
    const MOV: &[u8] = &[0x48, 0x89, 0x07];
    const LOCK_XADD: &[u8] = &[0xf0, 0x48, 0x0f, 0xc1, 0x07];
    const LOCK_CMPXCHG16B: &[u8] = &[0xf0, 0x48, 0x0f, 0xc7, 0x0f];
    const FXSAVE: &[u8] = &[0x0f, 0xae, 0x07];
    const SGDT: &[u8] = &[0x0f, 0x01, 0x07];
    const PUSH: &[u8] = &[0x50];
    const CALL: &[u8] = &[0xe8, 0, 0, 0, 0];
    let inside = SEALED.add(0x800);
    let end = SEALED.add(PAGE);
    let stores = [
        ("mov", MOV, inside),
        ("lock xadd", LOCK_XADD, inside),
        ("lock cmpxchg16b", LOCK_CMPXCHG16B, inside),
        ("fxsave", FXSAVE, inside),
        ("sgdt", SGDT, inside),
        ("push", PUSH, inside),
        ("call", CALL, inside),
        ("mov into the page", MOV, Gva(SEALED.0 - 4)),
        ("mov out of the page", MOV, Gva(end.0 - 4)),
        ("xadd into the page", LOCK_XADD, Gva(SEALED.0 - 4)),
    ];
    for (name, store, at) in stores {
        println!("{name}");
        // What is compared with zeros is equal, and replaced by rcx:rbx.
        let set_up = code(&[&mov(RDI, at.0), &mov(3, VALUE), &mov(RCX, VALUE)]);
        let set_up = match store {
            LOCK_CMPXCHG16B => set_up,
            _ => code(&[&set_up, &mov(RAX, VALUE)]),
        };
        let rsp = if [PUSH, CALL].contains(&store) { at.add(8) } else { stack(0) };
        let Some(mut guest) = Guest::new(&[&set_up, store], rsp, SEALED) else { return };
        let regs = guest.denied();
        let is_at = CODE.add(set_up.len() as u64);
        assert_eq!((regs.rip, regs.rsp, regs.rdi), (is_at.0, rsp.0, at.0));
        assert_eq!(guest.bytes::<16>(at), [0; 16], "nothing of it is made");
        guest.goes_on();
        assert_ne!(guest.bytes::<8>(at), [0; 8], "all of it is made");
    }
}

#[test]
fn a_string_store_has_come_as_far_as_it_may() {
    const STD: &[u8] = &[0xfd];
    const REP_MOVSB: &[u8] = &[0xf3, 0xa4];
    let source = code(&[&mov(RSI, CODE.0), &mov(RCX, 16)]);
    let upwards = code(&[&mov(RDI, SEALED.0 - 8), &source]);
    let Some(mut guest) = Guest::new(&[&upwards, REP_MOVSB], stack(0), SEALED) else { return };
    let regs = guest.denied();
    let is_at = CODE.0 + upwards.len() as u64;
    assert_eq!((regs.rip, regs.rcx, regs.rdi, regs.rsi), (is_at, 8, SEALED.0, CODE.0 + 8));
    assert_eq!(guest.bytes::<8>(Gva(SEALED.0 - 8)), guest.bytes(CODE));
    assert_eq!(guest.bytes::<8>(SEALED), [0; 8]);
    guest.goes_on();
    assert_eq!(guest.bytes::<16>(Gva(SEALED.0 - 8)), guest.bytes(CODE));

    let end = SEALED.add(PAGE);
    let downwards = code(&[STD, &source, &mov(RDI, end.0 + 7), &mov(RSI, CODE.0 + 15)]);
    let Some(mut guest) = Guest::new(&[&downwards, REP_MOVSB], stack(0), SEALED) else { return };
    let regs = guest.denied();
    assert_eq!((regs.rcx, regs.rdi, regs.rsi), (8, end.0 - 1, CODE.0 + 7));
    guest.goes_on();
    assert_eq!(guest.bytes::<16>(Gva(end.0 - 8)), guest.bytes(CODE));
}

/// RIP is at an instruction that stores nothing there: it has raised the exception whose frame has no room.
#[test]
fn an_exception_that_finds_no_stack_comes_back_and_is_delivered_later() {
    const UD2: &[u8] = &[0x0f, 0x0b];
    /// `add qword [rsp], 2; iretq`
    const SKIP: &[u8] = &[0x48, 0x83, 0x04, 0x24, 0x02, 0x48, 0xcf];
    let rsp = SEALED.add(0x800);
    let Some(mut guest) = Guest::new(&[UD2], rsp, SEALED) else { return };
    guest.guest.write(HANDLER, SKIP).unwrap();
    guest.guest.gate(6, HANDLER, Privilege::User, ExceptionStack::Current).unwrap();
    let regs = guest.denied();
    assert_eq!((regs.rip, regs.rsp), (CODE.0, rsp.0));
    assert_eq!(guest.bytes::<40>(Gva(rsp.0 - 40)), [0; 40]);
    guest.goes_on();
    assert_eq!(u64::from_le_bytes(guest.bytes(Gva(rsp.0 - 40))), CODE.0 + 2);
}

/// Nor does the instruction store anything whose page table's entry is marked by the CPU.
#[test]
fn a_walk_that_marks_a_page_table_comes_back() {
    const NOP: &[u8] = &[0x90];
    let Some(mut guest) = Guest::new(&[NOP], stack(0), PAGE_TABLE) else { return };
    assert_eq!(guest.denied().rip, CODE.0);
    let entry = |guest: &Guest| u64::from_le_bytes(guest.bytes(PAGE_TABLE));
    assert_eq!(entry(&guest) & ACCESSED, 0);
    guest.goes_on();
    assert_eq!(entry(&guest) & ACCESSED, ACCESSED);
}

/// KVM makes some stores by itself: such a one looks like a store to a device, behind its instruction.
#[test]
fn a_store_that_kvm_makes_comes_as_one_to_a_device() {
    const INSB: &[u8] = &[0x6c];
    let set_up = code(&[&mov(RDI, SEALED.0), &mov(RDX, 0x3fd)]);
    let Some(mut guest) = Guest::new(&[&set_up, INSB], stack(0), SEALED) else { return };
    match guest.vcpu.run() {
        Left::Access(access) => match access.data {
            Data::Read(bytes) => bytes.fill(0x5a),
            data => panic!("{data:?}"),
        },
        left => panic!("{left:?}"),
    }
    match guest.vcpu.run() {
        Left::Access(access) => {
            assert_eq!((access.space, access.at), (Space::Memory, SEALED.0));
            assert!(matches!(access.data, Data::Write([0x5a])), "{access:?}");
        }
        left => panic!("{left:?}"),
    }
    assert_eq!(guest.bytes(SEALED), [0]);
    assert_eq!(guest.vcpu.regs().rip, CODE.0 + (set_up.len() + INSB.len()) as u64);
}
