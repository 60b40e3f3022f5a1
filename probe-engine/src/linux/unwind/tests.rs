use super::*;
use crate::gate::Form;
use crate::linux::orc::{OrcLayout, OrcTable};
use crate::linux::testing::{Ram, orc};
use proptest::prelude::*;

const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
const SLIDE: u64 = 0x0b20_0000;
const TEXT_LEN: u64 = 0x1000;
const MODULE: Gva = Gva(0xffff_ffff_c030_0000);
/// In the middle of all that is mapped.
const STACK: u64 = Ram::BASE.0 + 0x8000;
const IRQ_STACK: u64 = Ram::BASE.0 + 0x4000;

/// `push %rbp; mov %rsp, %rbp; ...; leave; ret`.
const FRAMED: u64 = 0x100;
/// `sub $0x20, %rsp; ...`.
const PLAIN: u64 = 0x200;
const PLAIN_BODY: u64 = 0x204;
/// Registers are saved at RSP, or what IRET takes.
const REGS: u64 = 0x300;
const IRET: u64 = 0x400;
/// As [`IRET`], of a call.
const IRET_CALL: u64 = 0x480;
/// Where the previous RSP is the word at RSP, or at RBP - 8.
const SP_INDIRECT: u64 = 0x500;
const BP_INDIRECT: u64 = 0x580;
/// Realigned by R10, R13, RDI, RDX.
const R10: u64 = 0x600;
const R13: u64 = 0x640;
const DI: u64 = 0x680;
const DX: u64 = 0x6c0;
const BOTTOM: u64 = 0x700;
const UNDEFINED: u64 = 0x800;
/// What ftrace copies: not in the text, but in the memory that tests have.
const TEMPLATE: u64 = Ram::BASE.0 + 0x2000 - SLIDE - TEXT.0;
const TEMPLATE_START: [[u8; 8]; 2] = [*b"ftrace_r", *b"egs_call"];
/// Where the guest's own return probes return to.
const HOOK: u64 = 0xe00;

fn kernel() -> OrcTable {
    let rows = [
        (0, (8, 0, 0x205)),
        (FRAMED, (8, 0, 0x205)),
        (FRAMED + 1, (16, -16, 0x215)),
        (FRAMED + 4, (16, -16, 0x214)),
        (FRAMED + 0x1f, (8, 0, 0x205)),
        (PLAIN, (8, 0, 0x205)),
        (PLAIN_BODY, (0x28, 0, 0x205)),
        (REGS, (0, 0, 0xb05)),
        (IRET, (0, 0, 0xc05)),
        (IRET_CALL, (0, 0, 0x405)),
        (SP_INDIRECT, (8, 0, 0x209)),
        (BP_INDIRECT, (-8, 0, 0x248)),
        (R10, (0, 0, 0x206)),
        (R13, (0, 0, 0x207)),
        (DI, (0, 0, 0x203)),
        (DX, (0, 0, 0x202)),
        (BOTTOM, (0, 0, 0x100)),
        (UNDEFINED, (0, 0, 0)),
        (TEMPLATE, (8, 0, 0x205)),
        (TEMPLATE + 4, (0x28, 0, 0x205)),
    ];
    table(TEXT, &rows)
}

fn table(start: Gva, rows: &[(u64, (i16, i16, u16))]) -> OrcTable {
    let ips_at = start.add(0x10_0000);
    let rows: Vec<_> = rows.iter().map(|(at, row)| (start.add(*at), *row)).collect();
    let (ips, rows) = orc(ips_at, &rows);
    OrcTable::from_parts(OrcLayout::SinceSixFour, &ips, ips_at, &rows).unwrap()
}

/// A kernel with this table, whose ftrace has one template, and whose kretprobes have a trampoline.
fn code_of(orc: OrcTable) -> KernelCode {
    KernelCode::new(orc, TEXT..TEXT.add(TEXT_LEN), [None, Some(TEXT.add(TEMPLATE))], Some(TEXT.add(HOOK)))
}

/// The run-time address of kernel text.
fn text(offset: u64) -> u64 {
    TEXT.0 + SLIDE + offset
}

fn regs(rip: u64, rsp: u64, rbp: u64) -> Regs {
    Regs { rip, rsp, rbp, ..Regs::default() }
}

/// RAM with these words, each with its address.
fn ram(words: &[(u64, u64)]) -> Ram {
    let ram = Ram::new();
    ram.put(Gva(text(TEMPLATE)), &TEMPLATE_START.concat());
    for (at, word) in words {
        ram.put(Gva(*at), &word.to_le_bytes());
    }
    ram
}

/// What a walk of at most `most` frames finds: frames with their kind, `?` for a guess, and the end.
fn walked(regs: &Regs, words: &[(u64, u64)], most: usize) -> String {
    let module = ModuleCode {
        text: MODULE..MODULE.add(0x100),
        init_text: Gva(0)..Gva(0),
        orc: table(MODULE, &[(0, (16, 0, 0x205)), (0x100, (0, 0, 0))]).into(),
    };
    let kernel = code_of(kernel());
    let code = Code { kernel: &kernel, slide: SLIDE, modules: &[module] };
    // A trampoline for the return to PLAIN_BODY + 9.
    let real = |slot: Gva, value: Gva| {
        (value == Gva(text(0xf00)) && slot.0 >= Ram::BASE.0).then_some(Gva(text(PLAIN_BODY + 9)))
    };
    let ram = ram(words);
    let memory = ram.memory();
    let mut walk = Walk::new(code, &memory, regs, most, real);
    let mut found = String::new();
    for frame in &mut walk {
        found += match frame.kind {
            FrameKind::Start => "",
            FrameKind::Return => "> ",
            FrameKind::Interrupted => "! ",
        };
        found += &match frame.at {
            at if at.is_in(&(Gva(text(0))..Gva(text(TEXT_LEN)))) => format!("{:x}", at.0 - text(0)),
            at if at.is_in(&(MODULE..MODULE.add(0x1000))) => format!("module {:x}", at.0 - MODULE.0),
            at => at.to_string(),
        };
        found += if frame.is_reliable { " " } else { "? " };
    }
    assert!(walk.next().is_none());
    found
        + &match walk.end().unwrap() {
            End::Bottom => "bottom".to_owned(),
            End::User(UserRegs { rip, rsp, rbp }) => format!("user {rip} {rsp} {rbp}"),
            End::Cut(cut) => cut.to_string(),
        }
}

fn walk(regs: &Regs, words: &[(u64, u64)]) -> String {
    walked(regs, words, 128)
}

/// Saved registers at `at`, as pairs of address and word.
fn saved(at: u64, ip: u64, cs: u64, sp: u64, bp: u64) -> [(u64, u64); 4] {
    [(at + 128, ip), (at + 136, cs), (at + 152, sp), (at + 32, bp)]
}

#[test]
fn every_place_of_a_function_leads_to_its_caller() {
    let bottom = text(BOTTOM + 5);
    // RSP, RBP and the slot of the return address at each stage.
    for (rip, rsp, rbp, words) in [
        (FRAMED, STACK, 1, vec![(STACK, bottom)]),
        (FRAMED + 1, STACK, 1, vec![(STACK, 1), (STACK + 8, bottom)]),
        (FRAMED + 4, STACK, STACK + 0x20, vec![(STACK + 0x20, 1), (STACK + 0x28, bottom)]),
        (FRAMED + 0x1f, STACK, 1, vec![(STACK, bottom)]),
        (PLAIN, STACK, 1, vec![(STACK, bottom)]),
        (PLAIN_BODY, STACK, 1, vec![(STACK + 0x20, bottom)]),
    ] {
        let found = walk(&regs(text(rip), rsp, rbp), &words);
        assert_eq!(found, format!("{rip:x} > 705 bottom"));
    }
}

#[test]
fn a_return_address_is_looked_up_where_the_call_is() {
    // The call is the last instruction of PLAIN's body, and of the bottom.
    let words = [(STACK, text(REGS)), (STACK + 0x28, text(UNDEFINED))];
    assert_eq!(walk(&regs(text(PLAIN), STACK, 0), &words), "200 > 300 > 800 bottom");
    // There a start or an interrupted instruction is another.
    let words = saved(STACK, text(UNDEFINED), 0x10, STACK + 0x100, 0);
    let undefined = "nothing is known of the stack at 0xffffffff8c200800";
    assert_eq!(walk(&regs(text(REGS), STACK, 0), &words), format!("300 ! 800 {undefined}"));
    assert_eq!(walk(&regs(text(UNDEFINED), STACK, 0), &[]), format!("800 {undefined}"));
}

#[test]
fn saved_registers_go_on_where_they_say() {
    let mut words = vec![(STACK, text(REGS + 5))];
    // On the same stack, in PLAIN's body, which keeps RBP, which the callers of FRAMED need.
    words.extend(saved(STACK + 8, text(PLAIN_BODY), 0x10, STACK + 0x100, STACK + 0x200));
    words.push((STACK + 0x120, text(FRAMED + 9)));
    words.extend([(STACK + 0x200, 7), (STACK + 0x208, text(BOTTOM + 5))]);
    let expected = "200 > 305 ! 204 > 109 > 705 bottom";
    assert_eq!(walk(&regs(text(PLAIN), STACK, 0), &words), expected);

    // An interrupt frame has no RBP: it still is what it was.
    let mut words = saved(STACK, text(FRAMED + 4), 0x10, STACK + 0x100, 99).to_vec();
    words.extend([(STACK + 0x200, 7), (STACK + 0x208, text(BOTTOM + 5))]);
    let iret = words.iter().map(|(at, word)| (if *at < STACK + 0x100 { at - 128 } else { *at }, *word));
    let iret: Vec<_> = iret.filter(|(at, _)| *at >= STACK).collect();
    let expected = "400 ! 104 > 705 bottom";
    assert_eq!(walk(&regs(text(IRET), STACK, STACK + 0x200), &iret), expected);
}

/// A task that is held is in code that no table knows: interrupted there, or in the scheduler that it has called from there.
#[test]
fn a_task_that_is_held_is_where_it_goes_on() {
    let entry = Ram::BASE.add(0x1000);
    let gate = |form: Form| -> Vec<(u64, u64)> {
        let mut code = form.bytes(entry, Some(Gva(text(PLAIN)))).unwrap();
        code.resize(code.len().next_multiple_of(8), 0);
        let words = code.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        (entry.0..).step_by(8).zip(words).collect()
    };
    // The first instruction of a function: an instruction earlier is another one.
    let (caller, frame) = (STACK + 0x200, [(STACK + 0x208, 7), (STACK + 0x210, text(BOTTOM + 5))]);
    let mut words = gate(Form::Spins);
    words.extend(saved(STACK, entry.add(3).0, 0x10, STACK + 0x100, 5));
    words.extend([(STACK + 0x100, 0x246), (STACK + 0x108, text(PLAIN)), (STACK + 0x110, text(BOTTOM + 5))]);
    assert_eq!(walk(&regs(text(REGS), STACK, 0), &words), "300 ! 200 > 705 bottom");

    // Eleven words lie above the return address, of which the last one is RBP.
    let mut words = gate(Form::Yields);
    words.extend([
        (STACK, entry.add(23).0),
        (STACK + 8 + 80, caller + 8),
        (STACK + 8 + 88, text(FRAMED + 4)),
    ]);
    words.extend(frame);
    assert_eq!(walk(&regs(text(PLAIN), STACK, STACK + 8 + 80), &words), "200 ! 104 > 705 bottom");
    words[gate(Form::Yields).len() + 2].1 = text(PLAIN);
    words.push((STACK + 8 + 96, text(BOTTOM + 5)));
    assert_eq!(walk(&regs(text(PLAIN), STACK, STACK + 8 + 80), &words), "200 ! 200 > 705 bottom");
}

#[test]
fn user_registers_end_a_kernel_stack() {
    let user = saved(STACK, 0x40_1000, 0x33, 0x7ffe_0000_1000, 0x7ffe_0000_1100);
    let found = walk(&regs(text(REGS), STACK, 0), &user);
    assert_eq!(found, "300 user 0x401000 0x7ffe00001000 0x7ffe00001100");
    // In the first instructions RBP is still the user's.
    let user = saved(STACK - 128, 0x40_1000, 0x33, 0x7ffe_0000_1000, 0);
    assert_eq!(walk(&regs(text(IRET), STACK, 5), &user), "400 user 0x401000 0x7ffe00001000 0x5");
    assert_eq!(walk(&regs(0x40_1000, 1, 2), &[]), "user 0x401000 0x1 0x2");
    // The same registers in kernel mode are no place of the kernel's.
    let wild = saved(STACK, 0x40_1000, 0x10, STACK + 0x100, 0);
    assert_eq!(walk(&regs(text(REGS), STACK, 0), &wild), "300 no code at 0x401000");
}

#[test]
fn stacks_may_change_as_the_kernel_changes_them() {
    // A handler on the stack for interrupts, whose top holds the task's RSP.
    let mut words = vec![
        (IRQ_STACK, text(SP_INDIRECT + 5)),
        (IRQ_STACK + 8, STACK),
        (STACK, text(REGS + 5)),
        (STACK + 0x200, text(BOTTOM + 5)),
    ];
    words.extend(saved(STACK + 8, text(PLAIN), 0x10, STACK + 0x200, 0));
    let expected = "200 > 505 > 305 ! 200 > 705 bottom";
    assert_eq!(walk(&regs(text(PLAIN), IRQ_STACK, 0), &words), expected);
    // The other way round: the stack of an exception may lie higher than the task's.
    let mut words = saved(STACK, text(PLAIN), 0x10, IRQ_STACK, 0).to_vec();
    words.push((IRQ_STACK, text(BOTTOM + 5)));
    let expected = "300 ! 200 > 705 bottom";
    assert_eq!(walk(&regs(text(REGS), STACK, 0), &words), expected);
    // RBP leads there as well.
    let words = [
        (IRQ_STACK - 8, STACK),
        (IRQ_STACK, STACK + 0x20),
        (STACK - 8, text(FRAMED + 9)),
        (STACK + 0x28, text(BOTTOM + 5)),
    ];
    let found = walk(&regs(text(BP_INDIRECT), IRQ_STACK - 0x100, IRQ_STACK), &words);
    assert_eq!(found, "580 > 109 > 705 bottom");
}

#[test]
fn a_realigned_stack_is_found_by_a_saved_register() {
    let at = STACK + 0x40;
    for (rip, name) in [(R10, "r10"), (R13, "r13"), (DI, "rdi"), (DX, "rdx")] {
        let mut regs = regs(text(rip), STACK, 0);
        match name {
            "r10" => regs.r10 = at,
            "r13" => regs.r13 = at,
            "rdi" => regs.rdi = at,
            _ => regs.rdx = at,
        }
        let words = [(at - 8, text(rip + 9))];
        let found = walk(&regs, &words);
        let no = "the stack at 0xffffffff8c200";
        let expected =
            format!("{rip:x} > {:x} {no}{:x} is found by a register that is not known", rip + 9, rip + 9);
        assert_eq!(found, expected, "{name}");
    }
    // Those that an interrupt saved are still there when an NMI comes before they are restored.
    let mut words = saved(STACK, text(IRET), 0x10, STACK + 0x100, 0).to_vec();
    words.push((STACK + 56, STACK + 0x240));
    words.extend([(STACK + 0x100, text(R10)), (STACK + 0x108, 0x10), (STACK + 0x118, STACK + 0x200)]);
    words.push((STACK + 0x238, text(BOTTOM + 1)));
    assert_eq!(walk(&regs(text(REGS), STACK, 0), &words), "300 ! 400 ! 600 > 701 bottom");
}

#[test]
fn code_without_rows_is_passed_by_its_frame_pointer() {
    let generated = 0xffff_ffff_c080_0123;
    let words = [
        (STACK, generated),
        (STACK + 0x40, STACK + 0x100),
        (STACK + 0x48, text(FRAMED + 9)),
        (STACK + 0x108, text(BOTTOM + 1)),
    ];
    let found = walk(&regs(text(PLAIN), STACK, STACK + 0x40), &words);
    assert_eq!(found, format!("200 > {generated:#x} > 109? > 701? bottom"));
    // A module's code has rows, the code around it has none.
    let words = [(STACK, MODULE.0 + 9), (STACK + 16, text(BOTTOM + 1))];
    assert_eq!(walk(&regs(text(PLAIN), STACK, 0), &words), "200 > module 9 > 701 bottom");
}

#[test]
fn a_trampoline_of_ftrace_is_what_it_was_copied_from() {
    let page = Ram::BASE.0 + 0x1000;
    let [first, second] = TEMPLATE_START.map(u64::from_le_bytes);
    let code = [(page, first), (page + 8, second)];
    let back = page + 9;
    let stack = [(STACK, back), (STACK + 0x28, text(BOTTOM + 1))];
    let walk = |words: &[&[(u64, u64)]]| walk(&regs(text(PLAIN), STACK, 0), &words.concat());
    assert_eq!(walk(&[&code, &stack]), format!("200 > {back:#x} > 701 bottom"));
    // Anything else has to have a frame pointer.
    let guessed = "the stack pointer goes astray, to 0x8";
    for other in [page, text(TEMPLATE) + 8] {
        let found = walk(&[&code, &stack, &[(other, 1)]]);
        assert_eq!(found, format!("200 > {back:#x} {guessed}"));
    }
}

#[test]
fn a_call_that_the_guest_follows_itself_is_the_last() {
    let words = [(STACK, text(HOOK)), (STACK + 8, text(BOTTOM + 1))];
    let hooked = "the guest keeps the real return address, and has 0xffffffff8c200e00 in its place";
    assert_eq!(walk(&regs(text(PLAIN), STACK, 0), &words), format!("200 {hooked}"));
}

#[test]
fn a_call_of_null_has_a_caller() {
    let words = [(STACK, text(BOTTOM + 1))];
    assert_eq!(walk(&regs(0, STACK, 0), &words), "0x0 > 701 bottom");
    assert_eq!(walk(&regs(text(PLAIN), STACK, 0), &[(STACK, 0)]), "200 no code at 0x0");
}

#[test]
fn a_trampoline_shows_the_real_caller() {
    let words = [(STACK, text(0xf00)), (STACK + 0x28, text(BOTTOM + 1))];
    assert_eq!(walk(&regs(text(PLAIN), STACK, 0), &words), "200 > 20d > 701 bottom");
    // An interrupt at the trampoline: the return address was just taken.
    let mut words = saved(STACK, text(0xf00), 0x10, STACK + 0x100, 0).to_vec();
    words.push((STACK + 0x120, text(BOTTOM + 1)));
    assert_eq!(walk(&regs(text(REGS), STACK, 0), &words), "300 ! 20d > 701 bottom");
}

#[test]
fn a_stack_that_leads_nowhere_is_cut() {
    let astray = |at: u64| format!("the stack pointer goes astray, to {at:#x}");
    let framed = |rbp, words: &[(u64, u64)]| walk(&regs(text(FRAMED + 4), STACK, rbp), words);
    let down = STACK - 0x20;
    assert_eq!(framed(down, &[(down + 8, text(0))]), format!("104 {}", astray(down + 16)));
    let far = STACK + LARGEST_STACK - 8;
    assert_eq!(framed(far, &[(far + 8, text(0))]), format!("104 {}", astray(far + 16)));
    assert_eq!(framed(0x7ffe_0000_0000, &[]), format!("104 {}", astray(0x7ffe_0000_0008)));
    let none = "the stack cannot be read";
    assert_eq!(framed(0xffff_c900_0000_0000, &[]), format!("104 {none}"));
    assert_eq!(walk(&regs(text(REGS), u64::MAX - 9, 0), &[]), format!("300 {none}"));
    assert_eq!(framed(STACK, &[(STACK + 8, STACK)]), format!("104 > 0xffffffffc0008000 {}", astray(8)));

    // Registers that were saved in a circle.
    let circle = saved(STACK, text(REGS), 0x10, STACK, 0);
    let found = walk(&regs(text(REGS), STACK, 0), &circle);
    assert_eq!(found, format!("300 {}{}", "! 300 ".repeat(MOST_STACKS as usize), astray(STACK)));
}

#[test]
fn a_walk_ends_after_as_many_frames_as_were_asked_for() {
    let words = [(STACK, text(PLAIN_BODY + 5)), (STACK + 0x28, text(BOTTOM + 1))];
    let most = |most| walked(&regs(text(PLAIN), STACK, 0), &words, most);
    assert_eq!(most(0), "more frames than asked for");
    assert_eq!(most(1), "200 more frames than asked for");
    assert_eq!(most(2), "200 > 209 more frames than asked for");
    assert_eq!(most(3), "200 > 209 > 701 bottom");
}

proptest! {
    /// Whatever lies on the stack, and whatever the tables say: a walk ends, and shows no more than it may.
    #[test]
    fn any_stack_is_walked_to_an_end(
        rows in proptest::collection::vec((0..TEXT_LEN, (-64..64i16, -64..64i16, row_flags())), 1..40),
        start in (0..TEXT_LEN, 0..0x200u64, 0..0x200u64),
        words in proptest::collection::vec((any::<bool>(), 0..TEXT_LEN), 0x100),
        most in 0..200usize,
    ) {
        let kernel = code_of(table(TEXT, &rows));
        let code = Code { kernel: &kernel, slide: SLIDE, modules: &[] };
        let ram = Ram::new();
        for (at, (is_text, value)) in (STACK..).step_by(8).zip(&words) {
            let word = if *is_text { text(*value) } else { STACK + value / 2 };
            ram.put(Gva(at), &word.to_le_bytes());
        }
        let memory = ram.memory();
        let (rip, rsp, rbp) = start;
        let mut walk = Walk::new(code, &memory, &regs(text(rip), STACK + rsp, STACK + rbp), most, |_, _| None);
        let frames: Vec<_> = (&mut walk).collect();
        prop_assert!(frames.len() <= most);
        prop_assert!(walk.end().is_some());
        let is_true = frames.iter().all(|frame| code.has(frame.at));
        prop_assert!(is_true);
    }
}

/// Flags of a row that are valid since 6.4.
fn row_flags() -> impl Strategy<Value = u16> {
    let sp = 2..10u16;
    let bp = prop::sample::select(vec![0u16, 1, 4]);
    (0..5u16, sp, bp, any::<bool>()).prop_map(|(kind, sp, bp, signal)| match kind {
        0 | 1 => kind << 8,
        _ => u16::from(signal) << 11 | kind << 8 | bp << 4 | sp,
    })
}

mod user {
    use super::*;

    const USER_STACK: u64 = Ram::USER.0;
    /// Where another return address lies than the call has.
    const HOOKED: u64 = USER_STACK + 0x208;

    fn walk(rbp: u64, words: &[(u64, u64)], most: usize) -> (Vec<u64>, UserEnd) {
        let ram = Ram::new();
        for (at, word) in words {
            ram.put(Ram::BASE.add(at - USER_STACK), &word.to_le_bytes());
        }
        let memory = ram.memory();
        let regs = UserRegs { rip: Gva(0x40_1000), rsp: Gva(0), rbp: Gva(rbp) };
        let real = |slot, _| (slot == Gva(HOOKED)).then_some(Gva(0x40_4000));
        let mut walk = UserWalk::new(&memory, regs, most, real);
        let found = (&mut walk).map(|at| at.0).collect();
        assert_eq!(walk.next(), None);
        (found, walk.end().unwrap())
    }

    #[test]
    fn frame_pointers_lead_to_the_first_frame() {
        let first = USER_STACK + 0x10;
        let second = USER_STACK + 0x80;
        let words = [(first, second), (first + 8, 0x40_2000), (second, 0), (second + 8, 0x40_3000)];
        assert_eq!(walk(first, &words, 9), (vec![0x40_1000, 0x40_2000, 0x40_3000], UserEnd::Bottom));
        assert_eq!(walk(first, &words, 2), (vec![0x40_1000, 0x40_2000], UserEnd::Full));
        assert_eq!(walk(0, &[], 9), (vec![0x40_1000], UserEnd::Bottom));
        let hooked = HOOKED - 8;
        let words = [(hooked, 0), (HOOKED, 0x7fff_ffff_e000)];
        assert_eq!(walk(hooked, &words, 9), (vec![0x40_1000, 0x40_4000], UserEnd::Bottom));
    }

    #[test]
    fn anything_else_ends_it() {
        let first = USER_STACK + 0x10;
        let from = |rbp, words: &[(u64, u64)]| walk(rbp, words, 9).1;
        for next in [first, first - 8] {
            let found = from(first, &[(first, next), (first + 8, 0x40_2000)]);
            assert_eq!(found, UserEnd::NotRising(Gva(first)));
        }
        assert_eq!(from(STACK, &[]), UserEnd::NoUser(Gva(STACK)));
        assert_eq!(from(first, &[(first + 8, STACK)]), UserEnd::NoUser(Gva(STACK)));
        assert_eq!(from(first, &[(first, first + 16)]), UserEnd::Bottom);
        assert!(matches!(from(1, &[]), UserEnd::Memory(fault) if fault.at == Gva(1)));
        assert!(matches!(from(USER_STACK + Ram::LEN - 8, &[]), UserEnd::Memory(_)));
        let nowhere = 0x1000_0000_0000_0000;
        assert_eq!(from(nowhere, &[]), UserEnd::NoUser(Gva(nowhere)));
        assert_eq!(from(first, &[(first + 8, nowhere)]), UserEnd::NoUser(Gva(nowhere)));
    }
}
