use super::*;
use crate::capture::filter::{Order, Test};
use crate::capture::{Base, Fetch, Hop, Read, What};
use crate::detour::behind::behind;
use crate::detour::condition::{ComparedString, HitCondition, Number, Origin};
use crate::detour::layout::{self, CALLS, HITS, SLOTS, Slots, record};
use crate::detour::reads::{Given, Reads};
use crate::detour::relocation::RelocatedCode;
use crate::detour::verdict::{FunctionText, verdict};
use crate::detour::work::Calls;
use crate::insn::emulate::Segments;
use crate::insn::plan::{StepPlan, plan};
use crate::linux::branches::is_lower_half;
use crate::linux::current::CurrentTask;
use crate::linux::glob::Glob;
use crate::linux::patched::PatchedText;
use crate::linux::scope::ScopeLayout;
use crate::linux::targets::tests::targets;
use crate::linux::task;
use crate::linux::testing::Ram;
use crate::linux::thunks::tests::thunks;
use crate::memory::PhysMemory as _;
use crate::probe::jump_constraints::JumpConstraints;
use crate::regs::Regs;
use iced_x86::Register::{R8, RAX, RBX, RSP};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

pub(super) const SITE: Gva = Gva(0xffff_ffff_8100_0000);
pub(super) const AT: Gva = Gva(0xffff_ffff_9060_0000);

pub(super) const COPIES: Copies = Copies {
    bytes: [Gva(0xffff_ffff_8120_0000), Gva(0xffff_ffff_8120_0100)],
    string: [Gva(0xffff_ffff_8120_0200), Gva(0xffff_ffff_8120_0300)],
    stack: 32,
    irq_stack: Some(0x3_5018),
};

pub(super) fn guest() -> Guest {
    Guest {
        fault_in: None,
        window: Gva(0xffff_ffff_9100_0000),
        rings: Rings::of(2),
        cpu: Some(Cpu {
            number: 0x3_500c,
            per_cpu: Some(0x3_5020),
            task: TaskLayout {
                current: CurrentTask { offset: 0x3_5000 },
                preempt_count: Some(0x3_5008),
                softirq_count: None,
                comm: 2976,
                pid: 2432,
                tgid: 2436,
                user: Some(task::User { cred: 2952, uid: 8 }),
                namespace: Some(task::Namespace {
                    thread_pid: 2496,
                    level: 4,
                    numbers: 96,
                    stride: 16,
                    number: 0,
                }),
                scopes: ScopeLayout::default(),
            },
        }),
        slide: 0,
        trampolines: Gva(0xffff_ffff_9050_0000),
        copies: Some(COPIES),
        branches: Branches::default(),
    }
}

fn of_one_cpu() -> Guest {
    Guest { rings: Rings::of(1), ..guest() }
}

/// The same with PREEMPT_RT, whose tasks count their soft interrupts in this member.
fn realtime_guest(softirq_count: u64) -> Guest {
    let mut guest = guest();
    let cpu = guest.cpu.as_mut().unwrap();
    cpu.task.softirq_count = Some(softirq_count);
    guest
}

/// The name of the task.
const COMM: ComparedString = ComparedString { entry: None, most: task::COMM as u16, goes_on: false };

fn counts(condition: Option<HitCondition>) -> Work {
    let (scope, reads) = (Scope::Boot, Reads::default());
    Work { probe: 3, scope, condition, record: None, reads, groups: None, consumer: None, calls: None }
}

fn records() -> Work {
    Work { record: Some(Vec::new()), ..counts(None) }
}

fn assemble(works: &[Work]) -> Stub {
    Stub::assemble(&guest(), AT, SITE, None, works).unwrap()
}

fn decode(code: &[u8]) -> Vec<Instruction> {
    Decoder::with_ip(64, code, AT.0, DecoderOptions::NONE).into_iter().collect()
}

/// The instructions of a hit at which interrupts are on and no branch is taken but those that end it.
fn straight(code: &[u8]) -> Vec<Instruction> {
    let all = decode(code);
    let mut path = Vec::new();
    let mut next = AT.0;
    while let Some(instruction) = all.iter().find(|instruction| instruction.ip() == next) {
        path.push(*instruction);
        next = match instruction.flow_control() {
            FlowControl::UnconditionalBranch => instruction.near_branch_target(),
            _ => instruction.next_ip(),
        };
    }
    assert_eq!(next, SITE.0 + 5, "it leads back");
    path
}

/// Executes `stub` from its start on until it leads back, by emulating each instruction. `other` executes what is not in the
/// stub. Returns the tables of counters that were counted in, of probe 3.
pub(super) fn emulated(
    stub: &Stub,
    guest: &Guest,
    ram: &Ram,
    segments: &Segments,
    before: Regs,
    mut other: impl FnMut(&mut Regs),
) -> Vec<u64> {
    let (mut regs, mut counted, mut steps) = (before, Vec::new(), 0);
    while regs.rip != SITE.0 + 5 {
        steps += 1;
        assert!(steps < 100_000, "it is bounded");
        let own = |at: Gva| {
            let bytes = stub.code.get(at.0.wrapping_sub(AT.0) as usize..)?;
            (!bytes.is_empty()).then(|| bytes[..bytes.len().min(15)].to_vec())
        };
        if own(Gva(regs.rip)).is_some() {
            let behind = behind(&regs, &ram.memory(), own, &(Gva(0)..Gva(0)), |_| None).unwrap();
            assert_eq!(behind, Regs { rip: SITE.0 + 5, ..before }, "at {:#x}", regs.rip);
        }
        let Some(bytes) = stub.code.get(regs.rip.wrapping_sub(AT.0) as usize..) else {
            other(&mut regs);
            continue;
        };
        let instruction = crate::insn::decode::decode(bytes, Gva(regs.rip)).unwrap();
        let is_memory = instruction.op0_kind() == OpKind::Memory;
        if instruction.mnemonic() == Mnemonic::Inc && is_memory {
            let is_slot = instruction.memory_base() == RAX;
            assert_ne!(is_slot, instruction.has_lock_prefix());
            let by_rax = if is_slot { regs.rax } else { 0 };
            let table = instruction.memory_displacement64().wrapping_add(by_rax) - guest.window.0 - 8 * 3;
            counted.push(if is_slot && table >= SLOTS { HITS } else { table });
            regs.rip = instruction.next_ip();
            continue;
        }
        let StepPlan::Emulate(emulation) = plan(bytes, Gva(regs.rip), None, false).unwrap() else {
            panic!("{instruction}")
        };
        emulation.execute(&mut regs, &ram.memory(), segments).unwrap();
    }
    assert_eq!(Regs { rip: before.rip, rflags: before.rflags, ..regs }, before);
    counted
}

/// The instructions of a hit of probe 3 that only counts, and the one that does.
fn count(guest: &Guest) -> (String, Instruction) {
    let path = straight(&Stub::assemble(guest, AT, SITE, None, &[counts(None)]).unwrap().code);
    let names: Vec<String> = path.iter().map(|i| format!("{:?}", i.mnemonic()).to_lowercase()).collect();
    (names.join(" "), *path.iter().find(|i| i.mnemonic() == Mnemonic::Inc).unwrap())
}

#[test]
fn a_count_takes_eleven_instructions_with_the_jump() {
    let (names, inc) = count(&of_one_cpu());
    assert_eq!(names, "pushfq cli nop inc test je and popfq sti jmp");
    assert!(!inc.has_lock_prefix());
    assert_eq!(inc.ip_rel_memory_address(), guest().window.0 + HITS + 3 * 8);
}

#[test]
fn a_count_is_in_a_slot_of_the_cpu_where_there_are_several() {
    let (names, inc) = count(&guest());
    assert_eq!(names, "pushfq cli nop push mov and shl inc pop test je and popfq sti jmp");
    assert!(!inc.has_lock_prefix());
    assert_eq!(inc.memory_displacement64(), guest().window.0 + SLOTS + 3 * 8);
}

#[test]
fn a_count_has_the_lock_where_the_cpus_number_is_not_known_or_there_is_no_slot() {
    let (names, inc) = count(&Guest { cpu: None, ..guest() });
    assert_eq!(names, "pushfq cli nop inc test je and popfq sti jmp");
    assert!(inc.has_lock_prefix());
    let guest = guest();
    let probe = (Slots::of(guest.rings.cpus).stride() / 8) as u32;
    let stub = assemble(&[Work { probe, ..counts(None) }]);
    let inc = straight(&stub.code)[3];
    assert!(inc.has_lock_prefix());
    assert_eq!(inc.ip_rel_memory_address(), guest.window.0 + HITS + 8 * u64::from(probe));
}

#[test]
fn a_count_that_is_written_out_is_what_is_assembled() {
    let works = [counts(None)];
    let head = |code: &mut Assembler<'_>, end: &mut CodeLabel| {
        code.asm.set_label(end)?;
        Ok(code.asm.zero_bytes()?)
    };
    for guest in [guest(), of_one_cpu(), Guest { cpu: None, ..guest() }] {
        let assembled = Stub::assemble_any(&guest, AT, SITE, &works, head).unwrap();
        let written = Stub::assemble(&guest, AT, SITE, None, &works).unwrap();
        assert_eq!(written, assembled.end(&guest, AT, SITE.add(5), None).unwrap());
    }
}

#[test]
fn a_record_takes_seventy_seven_instructions_with_the_jump() {
    let stub = Stub::assemble(&of_one_cpu(), AT, SITE, None, &[records()]).unwrap();
    let path = straight(&stub.code);
    assert_eq!(path.len() + 1, 77);
    let mut stores =
        path.iter().filter(|i| i.mnemonic() == Mnemonic::Mov && i.memory_base() == iced_x86::Register::RCX);
    let last = stores.rfind(|i| i.op0_kind() == iced_x86::OpKind::Memory).unwrap();
    assert_eq!(last.memory_displacement64(), record::SEQUENCE, "the sequence number is written last");
}

#[test]
fn a_record_of_a_realtime_kernel_has_the_soft_interrupts_of_the_task() {
    const MEMBER: u64 = 3368;
    let work = [records()];
    let guest = realtime_guest(MEMBER);
    let stub = |guest: &Guest| Stub::assemble(guest, AT, SITE, None, &work).unwrap();
    let (usual, realtime) = (straight(&assemble(&work).code), straight(&stub(&guest).code));
    let load = realtime.iter().position(|i| i.memory_displacement64() == MEMBER).unwrap();
    let names: Vec<Mnemonic> = realtime[load..load + 3].iter().map(Instruction::mnemonic).collect();
    assert_eq!(names, [Mnemonic::Mov, Mnemonic::And, Mnemonic::Or]);
    assert_eq!(realtime[load + 1].immediate(1), u64::from(task::SOFTIRQS));
    assert_eq!(realtime[load + 2].memory_displacement64(), record::PREEMPT_COUNT);
    assert_eq!(realtime.len(), usual.len() + 3, "others do without");
}

#[test]
fn what_is_pushed_is_popped_and_nothing_else_is_changed() {
    let everything = HitCondition::All(vec![
        HitCondition::Not(Box::new(HitCondition::Text(COMM, true, "cat".to_owned()))),
        HitCondition::Pattern(COMM, Glob::new("[!c]?*cat*t").unwrap()),
        HitCondition::Any(vec![
            HitCondition::Number(
                Number { from: Origin::Pid, low: 0, width: 32, is_signed: false },
                Test::Number(Order::Greater, 7),
            ),
            HitCondition::Number(
                Number { from: Origin::Cpu, low: 0, width: 32, is_signed: false },
                Test::Among(vec![0..2, 5..6]),
            ),
            HitCondition::Number(
                Number {
                    from: Origin::Given(Given::Register(Register::Rsp)),
                    low: 3,
                    width: 9,
                    is_signed: true,
                },
                Test::Bits(0xf000_0000_0000_0001),
            ),
        ]),
    ]);
    let record = Some(vec![Register::Rax, Register::Rsp, Register::Rflags, Register::R15]);
    let stub = assemble(&[Work { record, ..counts(Some(everything)) }, counts(None)]);
    let mut depth = 0i64;
    for instruction in decode(&stub.code) {
        match instruction.mnemonic() {
            Mnemonic::Push | Mnemonic::Pushfq => depth += 1,
            Mnemonic::Pop => depth -= 1,
            _ => {}
        }
        // Only what is saved is written.
        let mut info = iced_x86::InstructionInfoFactory::new();
        for used in info.info(&instruction).used_registers() {
            use iced_x86::OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            let writes = matches!(used.access(), Write | CondWrite | ReadWrite | ReadCondWrite);
            let full = used.register().full_register();
            let saved = [
                iced_x86::Register::RAX,
                iced_x86::Register::RCX,
                iced_x86::Register::RDX,
                iced_x86::Register::R8,
                iced_x86::Register::RSP,
            ];
            assert!(!writes || saved.contains(&full), "{instruction} writes {full:?}");
        }
    }
    assert_eq!(depth, 1, "the flags are popped on both ways out");
}

#[test]
fn a_shut_gate_leads_past_all_that_is_done() {
    let stub = assemble(&[counts(None)]);
    let mut code = stub.code.clone();
    let (at, bytes) = stub.shut();
    code[at..at + JUMP].copy_from_slice(&bytes);
    let names: Vec<Mnemonic> = straight(&code).iter().map(Instruction::mnemonic).collect();
    assert!(!names.contains(&Mnemonic::Inc), "{names:?}");
    assert_eq!(names.first(), Some(&Mnemonic::Pushfq));
    assert_eq!(names.last(), Some(&Mnemonic::Jmp));
    assert_eq!(stub.passed(AT).next().map(|passed| passed.start), Some(AT.add(7)));
}

#[test]
fn what_is_too_far_is_refused() {
    let far = Gva(0xffff_ffff_0000_0000);
    assert!(jump(far, SITE).is_err());
    assert!(Stub::assemble(&guest(), far, SITE, None, &[counts(None)]).is_err());
    assert_eq!(jump(SITE, SITE.add(0x105)).unwrap(), [0xe9, 0, 1, 0, 0]);
}

/// A probe of returns that reads `record` of each.
fn returns(record: Option<Vec<Register>>, calls: Calls) -> Work {
    Work { record, calls: Some(calls), ..counts(None) }
}

#[test]
fn no_stub_is_longer_than_is_said_before() {
    let others = ["ax", "bx", "sp", "bp", "r10", "r11", "r12", "r13", "r14", "r15", "ip", "flags"];
    let all = || others.iter().filter_map(|name| Register::named(name)).collect::<Vec<_>>();
    assert_eq!(all().len(), others.len());
    let calls = Calls { most: Some(2), arguments: true };
    let guest = realtime_guest(3368);
    for work in [counts(None), Work { record: Some(all()), ..counts(None) }, returns(Some(all()), calls)] {
        for works in [vec![work.clone()], vec![work; 3]] {
            let stub = Stub::assemble(&guest, AT, SITE, None, &works);
            let length = stub.map_or(0, |stub| stub.code.len());
            println!("{length} bytes of {}", Stub::most_bytes(&works));
            assert!(length > 0 && length <= Stub::most_bytes(&works));
        }
    }
}

/// The instructions from the way out of a trampoline to the caller.
fn straight_out(code: &[u8]) -> Vec<Instruction> {
    let all = decode(code);
    let mut path = Vec::new();
    let mut next = all.iter().find(|instruction| instruction.mnemonic() == Mnemonic::Endbr64).unwrap().ip();
    while let Some(instruction) = all.iter().find(|instruction| instruction.ip() == next) {
        path.push(*instruction);
        next = match instruction.flow_control() {
            FlowControl::UnconditionalBranch => instruction.near_branch_target(),
            _ => instruction.next_ip(),
        };
    }
    assert_eq!(next, guest().ret().0, "where code of ours returns");
    path
}

#[test]
fn a_return_that_is_recorded_takes_less_than_a_hundred_and_sixty() {
    let works = [returns(Some(Vec::new()), Calls::default())];
    let stub = Stub::assemble(&of_one_cpu(), AT, SITE, None, &works).unwrap();
    // The jump at the entry, the call of the trampoline, and what both ways through the way out take.
    let of_leave = way_out(&guest()).len() + 1;
    let (entry, exit) = (straight(&stub.code).len() + 1, straight_out(&stub.code).len() + of_leave + 1);
    println!("a return takes {entry} instructions at the entry and {exit} at the return");
    assert!(entry + exit <= 160, "{entry} + {exit}");
}

#[test]
fn every_trampoline_leads_to_the_way_out_and_names_its_instance() {
    let guest = guest();
    let code = trampolines();
    let step = layout::TRAMPOLINE as usize;
    let leave = guest.trampolines.0 + CALLS as u64 * layout::TRAMPOLINE;
    for number in [0, 1, CALLS as usize - 1] {
        let at = guest.trampolines.0 + (number * step) as u64;
        let call = Decoder::with_ip(64, &code[number * step..], at, DecoderOptions::NONE).decode();
        assert_eq!((call.mnemonic(), call.near_branch_target()), (Mnemonic::Call, leave));
        assert_eq!(call.len(), 5, "what it pushes is 5 behind the trampoline");
    }
    assert_eq!(code.len(), CALLS as usize * step);
}

/// The instructions from a trampoline to the stub of its instance.
fn way_out(guest: &Guest) -> Vec<Instruction> {
    let at = guest.trampolines.0 + layout::TRAMPOLINES;
    let mut code = Vec::new();
    for instruction in Decoder::with_ip(64, &leave(guest).unwrap(), at, DecoderOptions::NONE) {
        code.push(instruction);
        if instruction.flow_control() != FlowControl::Next {
            return code;
        }
    }
    panic!("it leads nowhere: {code:?}")
}

/// A CPU on the way from a trampoline is on its way to the caller, whatever the guest's branches are.
#[test]
fn who_is_on_the_way_out_goes_on_at_the_caller() {
    const THUNK: Gva = Gva(0xffff_ffff_8200_0840);
    const CALLER: Gva = Gva(0xffff_ffff_8123_4567);
    for thunk in [None, Some(THUNK)] {
        let guest = Guest { branches: Branches { ret: thunk, jump: thunk }, ..guest() };
        let named = guest.trampolines.add(8 * 7 + 5);
        let leave_at = guest.trampolines.add(layout::TRAMPOLINES);
        let code = leave(&guest).unwrap();
        let ram = Ram::new();
        let stack = Ram::BASE.0 + 0x800;
        let before =
            Regs { rsp: stack, rax: 1, rbx: 2, rcx: 3, rdx: 4, r8: 8, rflags: 0x202, ..Regs::default() };
        let range = leave_at..leave_at.add(LEAVE as u64);
        let own = |at: Gva| at.is_in(&range).then(|| code[(at.0 - leave_at.0) as usize..].to_vec());
        let original = |at: Gva| (at == named).then_some(CALLER);
        let after = Regs { rip: CALLER.0, rsp: stack + 8, ..before };
        let check = |regs: &Regs| {
            assert_eq!(behind(regs, &ram.memory(), own, &range, original), Some(after), "{regs:x?}");
        };
        let put = |at: u64, value: u64| {
            let memory = ram.memory();
            let gpa = memory.translate(Gva(at), crate::paging::Access::Read).unwrap();
            memory.phys.write(gpa, &value.to_le_bytes()).unwrap();
        };
        put(stack, named.0);
        let mut regs = Regs { rip: leave_at.0, ..before };
        for instruction in way_out(&guest) {
            check(&regs);
            let pushed = match instruction.mnemonic() {
                Mnemonic::Push => {
                    Some(crate::insn::operand::general(instruction.op0_register()).unwrap().of(&regs))
                }
                Mnemonic::Pushfq => Some(regs.rflags),
                _ => None,
            };
            if let Some(value) = pushed {
                regs.rsp -= 8;
                put(regs.rsp, value);
            } else if instruction.mnemonic() == Mnemonic::Cli {
                regs.rflags &= !0x200;
            } else {
                // What it finds of its instance.
                (regs.rax, regs.rbx) = (0xaaaa, 0xbbbb);
            }
            regs.rip = instruction.next_ip();
        }
        // All is put back, and it returns.
        check(&Regs { rip: guest.ret().0, ..before });
    }
}

/// The instruction by which code of ours returns.
fn way_back(guest: &Guest) -> Instruction {
    let code = leave(guest).unwrap();
    assert_eq!(code.len(), LEAVE);
    Decoder::with_ip(64, &code[calls::RET..], guest.ret().0, DecoderOptions::NONE).decode()
}

#[test]
fn code_of_ours_branches_as_the_guest_does() {
    const RETURNS: Gva = Gva(0xffff_ffff_8200_0840);
    const JUMPS: Gva = Gva(0xffff_ffff_8200_0020);
    for (ret, jump) in
        [(None, None), (Some(RETURNS), None), (None, Some(JUMPS)), (Some(RETURNS), Some(JUMPS))]
    {
        let guest = Guest { branches: Branches { ret, jump }, ..guest() };
        let (out, back) = (way_out(&guest), way_back(&guest));
        let (last, load) = (out[out.len() - 1], out[out.len() - 2]);
        assert_eq!(load.to_string(), "mov rax,[rbx+20h]");
        let leads_to = |instruction: &Instruction| match instruction.flow_control() {
            FlowControl::UnconditionalBranch => Some(Gva(instruction.near_branch_target())),
            FlowControl::IndirectBranch | FlowControl::Return => None,
            _ => panic!("{instruction}"),
        };
        assert_eq!((leads_to(&back), leads_to(&last)), (ret, jump));
        let [returns, jumps] = [back, last].map(|instruction| instruction.to_string());
        assert!(ret.is_some() || returns == "ret", "{returns}");
        assert!(jump.is_some() || jumps == "jmp rax", "{jumps}");
        // Where ITS leaves them alone.
        assert!(!is_lower_half(guest.ret()) && !is_lower_half(Gva(last.next_ip() - 1)));
        // Until it is known, it is as without: whoever is in it goes on when it is written again.
        let before = way_out(&self::guest());
        assert_eq!(out[..out.len() - 1], before[..before.len() - 1]);
    }
    let far = Branches { ret: Some(Gva(0xffff_8880_0000_0000)), jump: None };
    assert!(leave(&Guest { branches: far, ..guest() }).is_err());
}

/// Every stub leaves by jumps whose target is in its code.
#[test]
fn no_stub_branches_to_what_is_in_a_register_or_in_memory() {
    let limited = Calls { most: Some(2), arguments: true };
    let entry = assemble(&[returns(Some(Vec::new()), limited), records(), counts(None)]);
    // xor eax, eax; ret
    let (region, _) = stub_over(&[0x31, 0xc0, 0xc3, 0xcc, 0xcc], &[returns(None, limited)]);
    let next = RelocatedCode::single(&[0xc3], SITE.add(5)).unwrap();
    let next = Stub::assemble(&guest(), AT, SITE, Some(&next), &[counts(None)]).unwrap();
    for (stub, returns) in [(entry, 1), (region, 2), (next, 2)] {
        let code = decode(&stub.code);
        let back = code.iter().filter(|instruction| instruction.near_branch_target() == guest().ret().0);
        assert_eq!(back.count(), returns);
        for instruction in code {
            let flow = instruction.flow_control();
            let is_indirect =
                matches!(flow, FlowControl::IndirectBranch | FlowControl::IndirectCall | FlowControl::Return);
            assert!(!is_indirect, "{instruction}");
        }
    }
}

#[test]
fn what_a_return_saves_it_gives_back_and_it_writes_nothing_else() {
    let limited = Calls { most: Some(2), arguments: true };
    let stub = assemble(&[returns(Some(vec![Register::Rsp, Register::Rbx, Register::Rip]), limited)]);
    let code = decode(&stub.code);
    let (entry, exit) = code.split_at(code.iter().position(|i| i.mnemonic() == Mnemonic::Endbr64).unwrap());
    let count = |code: &[Instruction], what| code.iter().filter(|i| i.mnemonic() == what).count();
    assert_eq!((count(entry, Mnemonic::Push), count(entry, Mnemonic::Pop)), (5, 5));
    assert_eq!((count(exit, Mnemonic::Push), count(exit, Mnemonic::Pop)), (0, 5));
    let passed: Vec<_> = stub.passed(AT).collect();
    assert_eq!(passed[0].end.0, exit[0].ip(), "the way out is not the entry's");
    let out = exit.iter().find(|i| i.near_branch_target() == guest().ret().0).unwrap();
    assert_eq!(passed[1], Gva(out.next_ip())..AT.add(stub.code.len() as u64), "the end is");
    let mut info = iced_x86::InstructionInfoFactory::new();
    for instruction in &code {
        use iced_x86::{
            OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write},
            Register as R,
        };
        for used in info.info(instruction).used_registers() {
            let writes = matches!(used.access(), Write | CondWrite | ReadWrite | ReadCondWrite);
            let saved = [R::RAX, R::RCX, R::RDX, R::R8, R::RBX, R::RSP];
            assert!(!writes || saved.contains(&used.register().full_register()), "{instruction}");
        }
    }
}

#[test]
fn who_finds_no_instance_says_so_and_who_may_not_take_one_does_not() {
    let limited = Calls { most: Some(2), arguments: false };
    let works = [returns(None, limited)];
    let stub = assemble(&works);
    println!("a return that is counted takes {} bytes", stub.code.len());
    assert!(stub.code.len() <= Stub::most_bytes(&works));
    let code = decode(&stub.code);
    let flag = code
        .iter()
        .position(|i| i.memory_displacement64() == guest().window.0 + layout::RAN_OUT + 3)
        .unwrap();
    let leads = |how: Mnemonic| code.iter().find(|i| i.mnemonic() == how).unwrap().near_branch_target();
    assert_eq!((code[flag].mnemonic(), code[flag].immediate8()), (Mnemonic::Mov, 1));
    assert_eq!(code[flag - 1].mnemonic(), Mnemonic::Jmp, "nobody else comes by");
    assert_eq!(leads(Mnemonic::Je), code[flag].ip(), "the pool is empty");
    for refused in [Mnemonic::Js, Mnemonic::Jae] {
        assert_eq!(leads(refused), code[flag + 1].ip(), "{refused:?}");
    }
}

/// The stub of a count over the region at the start of `code`, at [`SITE`].
fn over(code: &[u8]) -> (Stub, RelocatedCode) {
    stub_over(code, &[counts(None)])
}

fn stub_over(code: &[u8], works: &[Work]) -> (Stub, RelocatedCode) {
    let patched = PatchedText::new(Vec::new(), Vec::new(), Vec::new());
    let constraints = &JumpConstraints::at(SITE, &patched, &targets(&[], &[]));
    let region =
        verdict(&FunctionText { start: SITE, bytes: code, slide: 0, constraints, thunks: &thunks() })
            .unwrap();
    let stub = Stub::over(&of_one_cpu(), AT, &region, works).unwrap();
    assert!(stub.code.len() <= Stub::most_bytes_over(&region, works));
    (stub, region)
}

#[test]
fn moved_instructions_run_when_the_flags_are_back() {
    // push rbp; mov rbp, rsp; mov rax, [rip+0x100]; ret
    let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x05, 0, 1, 0, 0, 0xc3];
    let (stub, region) = over(&code);
    let path = decode(&stub.code);
    let names: Vec<String> = path.iter().map(|i| format!("{:?}", i.mnemonic()).to_lowercase()).collect();
    assert_eq!(names.join(" "), "pushfq cli nop inc popfq push mov mov jmp");
    assert_eq!(path[7].ip_rel_memory_address(), SITE.0 + 11 + 0x100);
    assert_eq!(path[8].near_branch_target(), SITE.0 + 11);
    let moved: Vec<_> = stub.moved(AT, &region).collect();
    let expected = [(5, 0), (6, 1), (7, 4)].map(|(n, at)| (Gva(path[n].ip()), SITE.add(at)));
    assert_eq!(moved, expected);
    // Who comes to a shut gate runs them as well.
    let (gate, shut) = stub.shut();
    let shut = Decoder::with_ip(64, &shut, AT.0 + gate as u64, DecoderOptions::NONE).decode();
    assert_eq!(shut.near_branch_target(), path[4].ip());
}

#[test]
fn a_moved_call_leaves_the_stub() {
    // push rbx; call +0x100; ret
    let (stub, region) = over(&[0x53, 0xe8, 0, 1, 0, 0, 0xc3]);
    let path = decode(&stub.code);
    let names: Vec<Mnemonic> = path.iter().skip(4).map(Instruction::mnemonic).collect();
    assert_eq!(names, [Mnemonic::Popfq, Mnemonic::Push, Mnemonic::Push, Mnemonic::Jmp]);
    assert_eq!(path[6].immediate32to64() as u64, SITE.0 + 6, "it returns behind the original");
    assert_eq!(path[7].near_branch_target(), SITE.0 + 0x106);
    assert!(stub.moved(AT, &region).eq([(Gva(path[5].ip()), SITE), (Gva(path[6].ip()), SITE.add(1))]));
}

#[test]
fn moved_instructions_are_behind_what_returns_need() {
    let (stub, region) = stub_over(&[0x55, 0x48, 0x89, 0xe5, 0x53, 0xc3], &[returns(None, Calls::default())]);
    let path = decode(&stub.code);
    let jump = path.iter().position(|i| i.mnemonic() == Mnemonic::Popfq).unwrap() + 1;
    let names: Vec<Mnemonic> = path.iter().skip(path.len() - 4).map(Instruction::mnemonic).collect();
    assert_eq!(names, [Mnemonic::Push, Mnemonic::Mov, Mnemonic::Push, Mnemonic::Jmp]);
    assert_eq!(path[jump].near_branch_target(), path[path.len() - 4].ip());
    let (_, shut) = stub.shut();
    let gate = AT.0 + stub.shut().0 as u64;
    let shut = Decoder::with_ip(64, &shut, gate, DecoderOptions::NONE).decode();
    assert_eq!(shut.near_branch_target(), path[jump - 1].ip());
    assert_eq!(stub.moved(AT, &region).next(), Some((Gva(path[path.len() - 4].ip()), SITE)));
}

#[test]
fn the_instruction_behind_the_nop_runs_before_anything_else_can_happen() {
    // mov rax, [rip+0x100]
    let next = RelocatedCode::single(&[0x48, 0x8b, 0x05, 0, 1, 0, 0], SITE.add(5)).unwrap();
    let works = [counts(None)];
    let stub = Stub::assemble(&of_one_cpu(), AT, SITE, Some(&next), &works).unwrap();
    assert!(stub.code.len() <= Stub::most_bytes(&works));
    let code = decode(&stub.code);
    let names: Vec<String> = code.iter().map(|i| format!("{:?}", i.mnemonic()).to_lowercase()).collect();
    let [counts, on, quiet, aside] =
        ["pushfq cli nop inc test je", "and popfq sti mov jmp", "popfq mov jmp", "popfq jmp"];
    assert_eq!(names.join(" "), [counts, on, quiet, aside].join(" "));
    let behind = SITE.0 + 12;
    assert_eq!((code[10].near_branch_target(), code[13].near_branch_target()), (behind, behind));
    assert!([9, 12].into_iter().all(|n| code[n].ip_rel_memory_address() == behind + 0x100));
    assert_eq!(code[5].near_branch_target(), code[11].ip());
    // Who comes to a shut gate was not counted, and comes to the instruction where it stands.
    let (gate, shut) = stub.shut();
    let shut = Decoder::with_ip(64, &shut, AT.0 + gate as u64, DecoderOptions::NONE).decode();
    assert_eq!((shut.near_branch_target(), code[15].near_branch_target()), (code[14].ip(), SITE.0 + 5));
    assert_eq!(stub.passed(AT).count(), 0, "nobody else comes there");
    assert!(stub.moved(AT, &next).eq([9, 12].map(|n| (Gva(code[n].ip()), SITE.add(5)))));
}

#[test]
fn what_must_stay_behind_the_nop_stays() {
    for code in [&[0xfb][..], &[0xf3, 0x0f, 0x1e, 0xfa], &[0x06], &[0xcc], &[0xc2, 8, 0]] {
        assert_eq!(RelocatedCode::single(code, SITE), None, "{code:02x?}");
    }
}

#[test]
fn memory_is_read_by_the_guests_own_functions_and_one_hit_at_a_time() {
    let fetch = |read| Fetch { base: Base::Argument(0), hops: vec![Hop::at(8)], read };
    let mut reads = Reads::default();
    assert_eq!(reads.add(&fetch(Read::Word(4)), false), Ok(Some(0)));
    let string = Read::Memory(Hop::of_user(-16), What::String(4096));
    assert_eq!(reads.add(&fetch(string), false), Ok(Some(48)));
    let length = reads.length;
    let is_read = HitCondition::Number(
        Number { from: Origin::Memory(0), low: 0, width: 32, is_signed: false },
        Test::Number(Order::Equal, 7),
    );
    let work = Work { record: Some(Vec::new()), reads, ..counts(Some(is_read)) };
    let stub = assemble(&[work, counts(None)]);
    let code = decode(&stub.code);
    let count = |mnemonic| code.iter().filter(|i| i.mnemonic() == mnemonic).count();
    let calls: Vec<u64> =
        code.iter().filter(|i| i.is_call_near()).map(Instruction::near_branch_target).collect();
    let [[kernel, user], [_, strings_of_user]] =
        [COPIES.bytes, COPIES.string].map(|both| both.map(|at| at.0));
    // The pointer, the pointer again, and the string that only a process can have.
    assert_eq!(calls, [user, kernel, user, kernel, strings_of_user]);
    // DF and AC are cleared by what is pushed for that.
    assert_eq!((count(Mnemonic::Push), count(Mnemonic::Pop), count(Mnemonic::Popfq)), (11, 10, 3));
    let moves = |mnemonic| code.iter().position(|i| i.mnemonic() == mnemonic && i.op0_register() == RSP);
    let (down, up) = (moves(Mnemonic::Sub).unwrap(), moves(Mnemonic::Add).unwrap());
    assert_eq!([down, up].map(|n| code[n].immediate(1)), [length; 2]);
    let flag = (guest().window.0 + layout::POOLS + layout::READING) as u32;
    let flags: Vec<(usize, u64)> = code
        .iter()
        .enumerate()
        .filter(|(_, i)| i.mnemonic() == Mnemonic::Mov && i.memory_displacement32() == flag)
        .map(|(n, i)| (n, i.immediate(1)))
        .collect();
    let [(taken, 1), (given_back, 0)] = flags[..] else { panic!("{flags:?}") };
    assert!(taken < down && up < given_back);
    assert_eq!(count(Mnemonic::Movsq), 1, "the record has the area");
}

#[test]
fn a_return_reads_by_what_it_has_and_by_what_its_call_had() {
    let fetch = |base| Fetch { base, hops: Vec::new(), read: Read::Memory(HERE, What::Bytes(8)) };
    const HERE: Hop = Hop::at(0);
    let mut reads = Reads::default();
    for base in [Base::Argument(1), Base::Register(Register::Rax), Base::Stack(2)] {
        assert!(reads.add(&fetch(base), true).unwrap().is_some());
    }
    let length = reads.length;
    let calls = Calls { most: None, arguments: true };
    let code = decode(&assemble(&[Work { reads, ..returns(Some(Vec::new()), calls) }]).code);
    let (entry, exit) = code.split_at(code.iter().position(|i| i.mnemonic() == Mnemonic::Endbr64).unwrap());
    let count = |code: &[Instruction], what| code.iter().filter(|i| i.mnemonic() == what).count();
    assert_eq!((count(entry, Mnemonic::Call), count(entry, Mnemonic::Push)), (0, 5));
    // Five are saved before that, and what is pushed for the flags is popped into them.
    assert_eq!((count(exit, Mnemonic::Push), count(exit, Mnemonic::Pop)), (5 + 1, 10));
    // Each is read by one of two functions, from where rax leads.
    assert_eq!(count(exit, Mnemonic::Call), 2 * 4);
    let loads = |base, at| {
        let is_load = |i: &&Instruction| i.mnemonic() == Mnemonic::Mov && i.op0_register() == RAX;
        exit.iter().filter(is_load).any(|i| i.memory_base() == base && i.memory_displacement64() == at)
    };
    assert!(loads(RBX, instance::ARGUMENTS + 8), "the second argument is in the instance");
    assert!(loads(RSP, length + 9 * 8), "rax was the first to be saved");
    let behind =
        |i: &Instruction| i.mnemonic() == Mnemonic::Lea && i.memory_displacement64() == length + 12 * 8;
    assert!(exit.iter().any(behind), "the stack is as it will be behind the return");
    // Whether it was read or not, the instance is given back, and all is as it was.
    let given_back =
        exit.iter().position(|i| i.mnemonic() == Mnemonic::Cmpxchg && i.memory_base() == R8).unwrap();
    let jumps = exit[..given_back].iter().map(|i| i.near_branch_target());
    assert!(jumps.max() < Some(exit[given_back].ip()), "nothing leads past that");
    let restored: Vec<_> = exit[given_back + 2..].iter().map(Instruction::mnemonic).take(12).collect();
    assert_eq!(restored, [[Mnemonic::Pop; 10].as_slice(), &[Mnemonic::Popfq, Mnemonic::Jmp]].concat());
}

#[test]
fn a_guest_without_such_functions_has_no_stub_that_reads() {
    let mut reads = Reads::default();
    reads.add(&Fetch::word(Base::Stack(1), 8), false).unwrap();
    let works = [Work { reads, ..counts(None) }];
    let guest = Guest { copies: None, ..guest() };
    assert!(Stub::assemble(&guest, AT, SITE, None, &works).is_err());
}

#[test]
fn a_string_is_compared_by_words_with_its_nul() {
    let mut reads = Reads::default();
    let read = Read::Memory(Hop::of_user(0), What::String(64));
    let at = reads.add(&Fetch { base: Base::Argument(1), hops: Vec::new(), read }, false).unwrap().unwrap();
    let name = ComparedString { entry: Some(at), most: 64, goes_on: false };
    let text = HitCondition::Text(name, true, "/etc/passwd".to_owned());
    let code = decode(&assemble(&[Work { reads, ..counts(Some(text)) }]).code);
    let displaced = |i: &&Instruction, at: u64| i.memory_base() == RSP && i.memory_displacement64() == at;
    let length = code.iter().filter(|i| i.mnemonic() == Mnemonic::Cmp && displaced(i, at + 8));
    assert_eq!(length.map(|i| i.immediate(1)).collect::<Vec<_>>(), [0], "unread");
    let words = code.iter().filter(|i| i.mnemonic() == Mnemonic::Mov && i.op1_kind() == OpKind::Immediate64);
    let expected = [u64::from_le_bytes(*b"/etc/pas"), u64::from_le_bytes(*b"\0\0\0\0swd\0")];
    assert_eq!(words.map(|i| i.immediate(1)).collect::<Vec<_>>(), expected);
}

#[test]
fn without_type_information_only_a_plain_count_is_a_stub() {
    let guest = Guest { cpu: None, ..guest() };
    let stub = |work: Work| Stub::assemble(&guest, AT, SITE, None, &[work]);
    assert!(stub(counts(None)).is_ok());
    for work in [records(), returns(None, Calls { most: None, arguments: false })] {
        let error = stub(work).unwrap_err().to_string();
        assert!(error.contains("CONFIG_DEBUG_INFO_BTF"), "{error}");
    }
}

#[test]
fn a_cpu_finds_its_own_words_on_either_side_of_its_gs_base() {
    // As up to 6.14, and as since 6.15 in a kernel that was moved.
    for offset in [0x3_5000, 0xffff_ffff_83e0_5000] {
        let mut guest = guest();
        guest.cpu.as_mut().unwrap().task.current.offset = offset;
        let stub = Stub::assemble(&guest, AT, SITE, None, &[records()]).unwrap();
        let own = |i: &&Instruction| i.segment_prefix() == iced_x86::Register::GS;
        let places: Vec<u64> =
            straight(&stub.code).iter().filter(own).map(|i| i.memory_displacement64()).collect();
        assert!(places.contains(&offset), "{places:x?}");
    }
    let mut guest = guest();
    guest.cpu.as_mut().unwrap().task.current.offset = 0xffff_8880_0000_0000;
    assert!(Stub::assemble(&guest, AT, SITE, None, &[records()]).is_err());
}
