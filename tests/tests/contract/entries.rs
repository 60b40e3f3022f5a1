//! Registers by which programs enter a kernel: a write of the guest's comes here before it is made, where that is wanted. All others are
//! written as ever.

use probe_engine::guard::entries::EntryRegister;
use probe_engine::regs::Regs;
use tests::code::{CODE, DATA, ending, mov, stack, store};
use tests::host::fit;
use vmm::kvm::{Exit, KvmVcpu, Left, Space};
use vmm::selftest::micro::{self, MicroGuest, Privilege};

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const WRMSR: &[u8] = &[0x0f, 0x30];
/// `rdmsr; shl rdx, 32; or rax, rdx`
const RDMSR: &[u8] = &[0x0f, 0x32, 0x48, 0xc1, 0xe2, 0x20, 0x48, 0x09, 0xd0];
const KERNEL_GS_BASE: u32 = 0xc000_0102;
const BEFORE: u64 = 0xffff_ffff_8100_0000;
const VALUE: u64 = 0xffff_ffff_8200_1230;

/// Writes `value` to register `index`.
fn write(index: u32, value: u64) -> Vec<u8> {
    let set = [mov(RCX, index.into()), mov(RAX, value & 0xffff_ffff), mov(RDX, value >> 32)].concat();
    [&set[..], WRMSR].concat()
}

/// Reads register `index` and keeps it.
fn read(index: u32) -> Vec<u8> {
    [&mov(RCX, index.into())[..], RDMSR, &store(DATA, RAX)].concat()
}

/// A guest that runs `program` and ends, in which KVM is to ask from now on.
fn asking(program: &[&[u8]]) -> Option<(MicroGuest, KvmVcpu)> {
    let fit = fit()?;
    let guest = MicroGuest::new(&fit.hypervisor).unwrap();
    guest.write(CODE, &ending(program)).unwrap();
    let vcpu = guest.add_vcpu(&fit.hypervisor, 0, 1).unwrap();
    micro::start(&vcpu, CODE, stack(0), Privilege::Kernel).unwrap();
    assert!(vcpu.set_entry_register(EntryRegister::Lstar, BEFORE));
    guest.machine().entry_filter().unwrap().ask().unwrap();
    Some((guest, vcpu))
}

#[track_caller]
fn ends(vcpu: &mut KvmVcpu) {
    match vcpu.run() {
        Left::Access(access) if access.space == Space::Port => {}
        left => panic!("{left:?}"),
    }
}

#[test]
fn a_write_to_an_entry_is_asked_about_before_it_is_made() {
    let lstar = EntryRegister::Lstar.index();
    let program = [write(lstar, VALUE), read(lstar)];
    for is_made in [false, true] {
        let Some((guest, mut vcpu)) = asking(&[&program[0], &program[1]]) else { return };
        match vcpu.run() {
            Left::Exit(exit) => assert_eq!(exit, Exit::EntryWritten(EntryRegister::Lstar, VALUE)),
            left => panic!("{left:?}"),
        }
        let at: Regs = vcpu.regs();
        let behind = CODE.0 + program[0].len() as u64;
        assert_eq!(at.rip, behind - WRMSR.len() as u64, "the instruction is not over");
        assert!(vcpu.entry_registers().contains(&(EntryRegister::Lstar, BEFORE)));
        if is_made {
            assert!(vcpu.set_entry_register(EntryRegister::Lstar, VALUE));
        }
        // The guest goes on behind it either way, without an exception.
        ends(&mut vcpu);
        let expected = if is_made { VALUE } else { BEFORE };
        assert_eq!(guest.read_u64(DATA).unwrap(), expected);
    }
}

/// All stops: the write is over when the vCPU stands still.
#[test]
fn a_write_to_an_entry_is_completed_before_a_vcpu_stands_still() {
    let program = [write(EntryRegister::Lstar.index(), VALUE)];
    let Some((_guest, mut vcpu)) = asking(&[&program[0]]) else { return };
    assert!(matches!(vcpu.run(), Left::Exit(Exit::EntryWritten(..))));
    let exit = vcpu.complete_access(|access| -> Option<()> { panic!("{access:?}") });
    assert_eq!(exit, Ok(Exit::Interrupted));
    assert_eq!(vcpu.regs().rip, CODE.0 + program[0].len() as u64);
}

#[test]
fn other_registers_are_written_without_an_exit() {
    let program = [write(KERNEL_GS_BASE, VALUE), read(KERNEL_GS_BASE), read(EntryRegister::Lstar.index())];
    let Some((guest, mut vcpu)) = asking(&[&program[0], &program[1]]) else { return };
    ends(&mut vcpu);
    assert_eq!(guest.read_u64(DATA).unwrap(), VALUE);
    let Some((guest, mut vcpu)) = asking(&[&program[2]]) else { return };
    ends(&mut vcpu);
    assert_eq!(guest.read_u64(DATA).unwrap(), BEFORE, "reading is not asked about");
}
